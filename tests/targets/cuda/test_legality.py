"""Features that an architecture lacks are refused before compiling, with the nearest legal choice."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError
from tilewright.ir.kernel import Kernel
from tilewright.ir.parser import parse_kernel
from tilewright.ir.printer import print_kernel
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.nvidia import of_capability
from tilewright.targets.simt.banks import passes
from tilewright.targets.target import CUDA
from tilewright.views.transforms import Swizzle

Cases = dict[str, Callable[[], Kernel]]


@pytest.fixture
def text(cases: Cases) -> str:
    return print_kernel(cases["basic_gemm_f16"]())


def refused(text: str, arch: str = "sm_80") -> list[tuple[str, str, str]]:
    return [(v.rule, v.message, v.nearest) for v in cuda.violations(parse_kernel(text), arch)]


def test_legal_kernels_have_no_violations(text: str) -> None:
    assert refused(text) == []


def test_shared_memory_has_an_end(text: str) -> None:
    grown = text.replace(
        "view=view((256, 32,), 32*i0 + i1, 8192), elems=8192",
        "view=view((256, 32,), 32*i0 + i1, 8192), elems=90000",
    )
    assert refused(grown) == [
        (
            "shared bytes",
            "188288 bytes of shared memory (sA 180000, sB 8192); sm_80 has 166912",
            "sA of 65536 elements",
        )
    ]
    assert refused(grown, "sm_90a") == []


def test_too_many_threads(text: str) -> None:
    assert refused(text.replace("threads=256", "threads=2048")) == [
        ("threads", "2048 threads per block; sm_80 has at most 1024", "1024 threads")
    ]


def test_warps_of_another_size(text: str) -> None:
    assert (
        "warp size",
        "the kernel is written for warps of 64 lanes, sm_80 has 32",
        "atoms of 32 lanes",
    ) in refused(text.replace("lanes=32", "lanes=64"))


def test_unknown_atoms_name_the_nearest(text: str) -> None:
    assert refused(text.replace("mma.m16n8k16.f32.f16", "wmma.f32.f16").replace("'sm_80'", "'gfx11'")) == [
        ("atom", "sm_80 does not execute wmma.f32.f16", "mma.m16n8k16.f32.f16")
    ]


def test_clusters_need_an_architecture_that_has_them(cases: Cases) -> None:
    kernel = cases["in_clusters"]()
    assert [v.rule for v in cuda.violations(kernel, "sm_80")] == ["cluster"]
    assert cuda.violations(kernel, "sm_90a") == []
    wide = parse_kernel(print_kernel(kernel).replace("cluster(0, 2)", "cluster(0, 16)"))
    assert [(v.rule, v.nearest) for v in cuda.violations(wide, "sm_90a")] == [("cluster", "8 blocks")]


def test_the_grid_has_limits(cases: Cases) -> None:
    text = print_kernel(cases["copy_converts"]())
    many = text.replace("n = grid((N + 56) // 64", "n = grid(70000")
    assert many != text
    assert [(v.rule, v.nearest) for v in cuda.violations(parse_kernel(many), "sm_90a")] == [
        ("grid", "make it the first axis")
    ]


def test_architectures_by_name_and_capability() -> None:
    assert CUDA.architecture("sm_90a").shared_bytes == 232448
    assert of_capability(8, 6).shared_bytes == 101376
    with pytest.raises(
        LaunchError, match="unknown architecture 'sm_50' of target cuda; known: sm_80, sm_86, sm_89, sm_90a"
    ):
        CUDA.architecture("sm_50")
    with pytest.raises(LaunchError, match=r"compute capability 7\.5"):
        of_capability(7, 5)


def test_a_swizzle_takes_the_passes_that_the_bytes_need() -> None:
    rows = np.arange(32) % 8 * 32 + np.arange(32) // 8 % 2 * 8
    assert passes(rows.reshape(1, 32), 16, 2) == 16
    swizzle = Swizzle(2, 3, 3)
    swizzled = rows ^ (rows >> 6 & 3) << 3
    assert [swizzle.offset(int(row)) for row in rows] == swizzled.tolist()
    assert passes(swizzled.reshape(1, 32), 16, 2) == 4


@tw.kernel(X="M N", Y="M N")
def sums(X, Y, *, threads):
    part = X.tile((8, 16), (0, 0)).partition(threads)
    tw.copy(tw.load(part) / tw.reduce_sum(tw.load(part), dim=1), Y.tile((8, 16), (0, 0)))


def test_lanes_exchange_values_in_whole_warps() -> None:
    spec = tw.TensorSpec(tw.f32, 2, 1, (4, 4), (4, 1), 16, False)
    found = cuda.violations(sums.trace(spec, spec, threads=(4, 4)), "sm_80")
    assert [(v.rule, v.nearest) for v in found] == [("reduce", "32")]
    assert cuda.violations(sums.trace(spec, spec, threads=(8, 4)), "sm_80") == []


@tw.kernel(A="M K", B="N K", C="M N")
def with_rows(A, B, C, *, mma):
    m, n = tw.block_index(tw.ceil_div(C.shape, mma.tile[:2]))
    acc = tw.accumulator(mma)
    rows = tw.coordinates(acc, 0)  # as many values as the accumulator, but computed where they are used
    for k in tw.range(tw.ceil_div(A.shape[1], 16)):
        a = tw.load(A.tile((mma.tile[0], 16), (m, k)), like=mma.a(16))
        tw.mma(a, tw.load(B.tile((mma.tile[1], 16), (n, k)), like=mma.b(16)), acc)
    tw.copy(tw.where(rows < 3, 0.0, acc), C.tile(mma.tile[:2], (m, n)))


def test_what_can_be_computed_again_takes_no_registers() -> None:
    mma = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(4, 8))
    spec = tw.TensorSpec(tw.f16, 2, 1, (8, 8), (8, 1), 16, False)
    out = tw.TensorSpec(tw.f32, 2, 1, (8, 8), (8, 1), 16, False)
    kernel = with_rows.trace(spec, spec, out, mma=mma)
    assert cuda.violations(kernel, "sm_80") == []
    binary = compile_text(cuda.emit(kernel, "sm_80").text, "sm_80")
    assert binary.resources["spill_store_bytes"] == 0


MMA = tw.TiledMma(tw.atoms.wgmma("f16", 64))
TILE = (64, 64)


@tw.kernel(X="M K", W="N K", rows="R", Y="M N")
def staged(X, W, rows, Y, *, where, declared):
    """A product of tiles in shared memory; an integer from memory places one of them."""
    r = tw.index(rows[0], 0, 2) if declared else tw.index(rows[0])
    held, last = tw.shared((2, *TILE), X.dtype, swizzle=128), tw.var(r)
    b, made = tw.shared(TILE, X.dtype, swizzle=128), tw.shared((2, *TILE), X.dtype, swizzle=128)
    at = {"named": tw.let(r + 0), "counted": tw.let(1 - r), "variable": last.get()}.get(where, r)
    if where == "variable" and declared:
        at = r
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=4), tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=4 * 64 * 64)
        tw.hopper.tma_load(
            X.tile(TILE, (0, 0)), held[0 if where in ("multiplied", "stored") else at], full[0]
        )
        tw.hopper.tma_load(W.tile(TILE, (0, 0)), b, full[0])
    with tw.role(warps=4):
        acc = tw.accumulator(MMA)
        tw.hopper.wait(full[0], 0)
        tw.hopper.mma_fence()
        tw.hopper.mma_async(held[at if where == "multiplied" else 0], b, acc)
        tw.hopper.mma_commit()
        tw.hopper.mma_wait(0)
        with tw.role(warps=1):
            tw.hopper.tma_store(made[at if where == "stored" else 0], Y.tile(TILE, (0, 0)))
            tw.hopper.bulk_commit()
            tw.hopper.bulk_wait(0)


@pytest.mark.parametrize("where", ["loaded", "multiplied", "stored", "named", "counted", "variable"])
def test_engines_take_no_stage_at_an_integer_that_may_lead_out_of_it(where: str) -> None:
    """Threads check each access; TMA and the matrix engine do not."""
    half, rows = np.zeros(TILE, np.float16), np.zeros(1, np.int32)
    kernel = staged.trace(half, half, rows, half, where=where, declared=False)
    broken = tw.ir.violations(kernel)
    assert [one.rule for one in broken] == ["place in shared memory"]
    verb = {"multiplied": "mma_async", "stored": "tma_store"}.get(where, "tma_load")
    assert f"{verb} does not check it" in broken[0].message
    assert broken[0].nearest.startswith("tw.index(..., 0, ")
    with pytest.raises(tw.LegalityError, match="which declares its range"):
        staged.compile(half, half, rows, half, where=where, declared=False, target="cuda", arch="sm_90a")
    made = staged.compile(half, half, rows, half, where=where, declared=True, target="cuda", arch="sm_90a")
    assert made.source
