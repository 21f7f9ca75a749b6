"""The Hopper GEMM in clusters: its text, its machine code, and the instructions that reach other blocks."""

from __future__ import annotations

import runpy
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from tests.eight_lines import product

import tilewright as tw
from tilewright.ir import verify
from tilewright.ir.async_ops import Arrive
from tilewright.ir.clusters import needs_cluster_scope
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

from .mailbox import mailbox

PAIRS = runpy.run_path(
    str(Path(__file__).parents[2] / "hazards" / "pairs.py"), run_name="tests.hazards.pairs"
)
GEMM = runpy.run_path(str(Path(__file__).parents[2] / "hazards" / "clusters.py"))["cluster_gemm"]


EXCHANGE = runpy.run_path(str(Path(__file__).parents[2] / "hazards" / "peers.py"))["exchange"]
CLUSTERS = [(2, 1), (1, 2), (2, 2), (4, 1), (1, 1)]


def trace(cluster=(2, 1), columns=256, stages=4, divisor=256, dtype=tw.bf16):
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns))
    spec = tw.TensorSpec(dtype, 2, 1, (divisor, divisor), (min(divisor, 16), 1), 16, False)
    constants = {"stages": stages, "buffers": 2, "blocks": 132, "group": 8, "cluster": cluster}
    return GEMM.trace(spec, spec, spec, mma=mma, **constants)


COMPILED = [
    *((256, 4, divisor, cluster) for divisor in (256, 8) for cluster in CLUSTERS),
    *((*tile, *one) for tile in ((192, 4), (128, 6)) for one in ((8, (2, 2)), (8, (1, 1)), (256, (2, 1)))),
]
"""All clusters of the widest tile, which has no register to spare; of narrower ones the largest and none."""


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(("columns", "stages", "divisor", "cluster"), COMPILED, ids=str)
def test_it_compiles_without_spills_or_warnings(cluster, columns, stages, divisor) -> None:
    kernel = trace(cluster, columns, stages, divisor)
    assert [str(v) for v in (*verify.violations(kernel), *cuda.violations(kernel, "sm_90a"))] == []
    binary = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


@pytest.mark.parametrize(("way", "without", "parts"), [("read", -1, 1), ("add", -1, 0), ("store", -1, 0)])
def test_behind_reads_alone_blocks_only_part(way, without, parts) -> None:
    """If blocks write each other's memory, or another operation follows, a barrier orders the writes."""
    given = tw.like("f32", 256, 64), tw.like("f32", 256, 64)
    traced = EXCHANGE.trace(*given, across=2, way=way, without=without, target="cuda", arch="sm_90a")
    text = cuda.emit(traced, "sm_90a").text
    assert text.count("  cluster_part();") == parts
    assert text.count("  cluster_barrier();") >= 1
    compile_text(text, "sm_90a")


def test_what_arrives_elsewhere_is_waited_for() -> None:
    assert "cluster_part" not in cuda.emit(trace(), "sm_90a").text


def test_golden(golden) -> None:
    golden(cuda.emit(trace(), "sm_90a").text, "cluster_gemm_bf16.cu")


def test_printed_and_parsed_it_is_the_same() -> None:
    kernel = trace((2, 2))
    for each in (kernel, cuda.emit(kernel, "sm_90a").kernel):
        text = tw.ir.print_kernel(each)
        assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


def test_masks_have_a_bit_for_every_block_that_gets_the_box() -> None:
    text = cuda.emit(trace((2, 2)), "sm_90a").text
    [a, b] = [line for line in text.splitlines() if "0x" in line and "<<" in line and "1ull" not in line]
    assert "0x5 << row" in a  # ranks row and row + 2: the blocks of this row of the cluster
    assert "0x3 << (2*column)" in b


def test_a_cluster_of_one_block_has_no_trace_of_clusters() -> None:
    text = cuda.emit(trace((1, 1)), "sm_90a").text
    body = text[text.index("extern") :]
    assert "cluster" not in body.replace("cluster_gemm", "").replace("clusters.py", "")


def test_only_accesses_of_threads_need_the_order_of_the_cluster() -> None:
    """It waits for all memory accesses of a warp, which takes a quarter of the GEMM's time."""
    assert ".release.cluster.shared" not in (text := cuda.emit(trace(), "sm_90a").text)
    assert ".acquire.cluster.shared" not in text
    x, y = np.zeros((64, 64), ml_dtypes.bfloat16), np.zeros((128, 64), ml_dtypes.bfloat16)
    text = cuda.emit(PAIRS["trace"]({"X": x, "Y": y}), "sm_90a").text  # threads read what a multicast wrote
    assert "mbarrier_arrive_at_cluster(empty" in text
    assert "mbarrier_wait_cluster(empty" in text
    compile_text(text, "sm_90a")
    text = cuda.emit(mailbox.trace(x.astype(np.float32), x.astype(np.float32)), "sm_90a").text
    assert ".release.cluster.shared" in text
    assert ".acquire.cluster.shared" in text


def test_blocks_exchange_data_through_global_memory() -> None:
    x = np.random.default_rng(3).standard_normal((120, 100)).astype(np.float32)
    y, wanted = np.full_like(x, np.nan), x.copy()
    mailbox.check(x, y).raise_if_any()
    assert mailbox(x, y, target="reference").target == "reference"
    for _ in range(8):
        wanted += np.float32(1)
    np.testing.assert_array_equal(y, wanted)


@tw.kernel(Y="M N")
def one_after_the_other(Y, *, relaxed=False):
    """Block 0 writes, then block 1 writes the same elements: only a barrier decides which value stays."""
    tw.block_index((2, 1))
    rank = tw.hopper.cluster_index((2, 1))[0]
    written = tw.hopper.mbarrier(1, arrivals=4)
    tw.hopper.cluster_barrier()
    ours = tw.fragment(tw.raked((32, 128), (4, 32), 4, 1), tw.f32, 1)
    with tw.when(rank == 0):
        tw.copy(ours, Y.tile((32, 128), (0, 0)))
        tw.hopper.arrive(written[0], each="warp", block=1, relaxed=relaxed)
    with tw.when(rank == 1):
        tw.hopper.wait(written[0], 0)
        tw.copy(ours + 1.0, Y.tile((32, 128), (0, 0)))
    tw.hopper.cluster_barrier()


def test_a_write_after_another_blocks_needs_the_order_too() -> None:
    y = np.full((32, 128), np.nan, np.float32)
    kernel = one_after_the_other.trace(y)
    assert needs_cluster_scope(kernel)
    assert "mbarrier_arrive_at_cluster(written" in cuda.emit(kernel, "sm_90a").text
    one_after_the_other.check(y).raise_if_any()
    assert one_after_the_other(y, target="reference").target == "reference"
    assert (y == 2).all()
    assert not needs_cluster_scope(trace())


def test_a_relaxed_arrival_tells_nothing_of_what_was_written() -> None:
    y = np.full((32, 128), np.nan, np.float32)
    kernel = one_after_the_other.trace(y, relaxed=True)
    assert not needs_cluster_scope(kernel)
    assert "mbarrier_arrive_at(written" in cuda.emit(kernel, "sm_90a").text
    report = one_after_the_other.check(y, relaxed=True)
    assert [finding.kind.value for finding in report.findings] == ["write-write race"], str(report)
    with pytest.raises(tw.TraceError, match="relaxed must be True or False"):
        one_after_the_other.trace(y, relaxed=1)


def test_a_stage_is_released_to_other_blocks_by_relaxed_arrivals() -> None:
    """Threads write C, which would otherwise need the order of the whole cluster in each step."""
    wgmma = tw.atoms.wgmma("bf16", 64)
    for epilogue in ("direct", "staged"):
        schedule = tw.Schedule(
            wgmma, (128, 64, 64), stages=3, staging="tma", roles="cooperative", groups=2, cluster=(2, 1),
            epilogue=epilogue, registers=0,
        )  # fmt: skip
        arrays = (tw.like("bf16", 256, 128), tw.like("bf16", 128, 128), tw.like("bf16", 256, 128))
        kernel = product.bind(schedule=schedule).trace(*arrays)
        assert any(isinstance(op, Arrive) and op.relaxed for op in kernel.walk())
        text = cuda.emit(kernel, "sm_90a").text
        assert ".release.cluster.shared" not in text
        assert ".acquire.cluster.shared" not in text


@tw.kernel(Y="M N")
def handed_over(Y, *, relaxed):
    """Each block writes into the other's shared memory, and arrives at the other's barrier."""
    tw.block_index((2, 1))
    rank = tw.hopper.cluster_index((2, 1))[0]
    held = tw.shared((32, 32), tw.f32)
    written = tw.hopper.mbarrier(1, arrivals=1)
    tw.hopper.cluster_barrier()
    ours = tw.fragment(tw.raked((32, 32), (1, 32), 1, 1), tw.f32, 1)
    tw.copy(ours, tw.hopper.peer(held, (rank + 1) % 2))
    tw.hopper.arrive(written[0], each="warp", block=(rank + 1) % 2, relaxed=relaxed)
    tw.hopper.wait(written[0], 0)
    tw.copy(tw.load(held, ours), Y.tile((32, 32), (rank, 0)))
    tw.hopper.cluster_barrier()


def test_a_relaxed_arrival_is_refused_where_threads_reach_other_blocks_memory() -> None:
    y = np.full((64, 32), np.nan, np.float32)
    assert [*verify.violations(handed_over.trace(y, relaxed=False))] == []
    (found,) = verify.violations(handed_over.trace(y, relaxed=True))
    assert "threads access other blocks' memory" in str(found)
    assert found.nearest == "relaxed=False"
    handed_over(y, relaxed=False, target="reference")
    assert (y == 1).all()
