"""Kernels on other blocks' shared memory are right; every barrier that is left out is found."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda

from .peers import BARRIERS, MMA, THREADS, WAYS, arguments, check, exchange, operands, split_k

pytestmark = pytest.mark.in_turns(3)

CLUSTERS = pytest.mark.parametrize("across", [2, 4])


@CLUSTERS
@pytest.mark.parametrize("way", WAYS)
def test_it_is_right_and_clean(way: str, across: int) -> None:
    for shape in ((32 * across, 64), (200, 71)):
        x, y = arguments(shape, across, way, seed=across)
        assert exchange(x, y, across=across, way=way, target="reference").target == "reference"
        check(x, y, across, way)
        assert not exchange.check(x, y, across=across, way=way).findings


@CLUSTERS
@pytest.mark.parametrize(("way", "without"), [(way, n) for way in WAYS for n in range(BARRIERS[way])])
def test_every_barrier_that_is_left_out_is_found(way: str, without: int, across: int) -> None:
    x, y = arguments((32 * across, 64), across, way, seed=1)
    found = exchange.check(x, y, across=across, way=way, without=without).findings
    kinds = {finding.kind.value for finding in found}
    if without == 0:
        assert "reaches a block that may not have begun" in kinds
    else:
        assert "reaches a block that may have ended" in kinds


@CLUSTERS
@pytest.mark.parametrize("way", WAYS)
def test_the_text_compiles(way: str, across: int) -> None:
    kernel = exchange.trace(*arguments((200, 71), across, way, 0), across=across, way=way)
    assert not [*verify.violations(kernel), *cuda.violations(kernel, "sm_90a")]
    assert [violation.rule for violation in cuda.violations(kernel, "sm_89")]
    text = cuda.emit(kernel, "sm_90a").text
    assert "mapa.u64" in text
    assert compile_text(text, "sm_90a").resources["spill_store_bytes"] == 0


@pytest.mark.in_turns(4)
@CLUSTERS
@pytest.mark.parametrize("shape", [(64, 64, 160), (70, 90, 5 * 32 + 7), (33, 40, 20)])
def test_split_k_adds_up_in_one_block(shape: tuple[int, int, int], across: int) -> None:
    a, b, c = operands(*shape)
    bound = split_k.bind(mma=MMA, tile_k=32, across=across)
    assert not bound.check(a, b, c).findings
    assert bound(a, b, c, target="reference").target == "reference"
    compare_gemm(a, b.T, c, Accumulation.of(MMA.atom)).raise_if_wrong()
    assert compile_text(cuda.emit(bound.trace(a, b, c), "sm_90a").text, "sm_90a")


@pytest.mark.parametrize("without", [0, 1])
def test_split_k_needs_both_barriers(without: int) -> None:
    found = split_k.check(*operands(64, 64, 160), mma=MMA, tile_k=32, across=2, without=without).findings
    assert found


@tw.kernel(X="M N")
def misused(X, *, how):
    tw.block_index(4)
    if how != "no cluster":
        tw.hopper.cluster_index(2)
    held = tw.shared((16, 16), tw.f16)
    if how in ("rank", "no cluster"):
        tw.hopper.peer(held, 2)
    elif how == "place":
        tw.hopper.peer(held, (2,))
    elif how == "global":
        tw.hopper.peer(X, 1)
    elif how == "twice":
        tw.hopper.peer(tw.hopper.peer(held, 1), 0)
    elif how == "async":
        tw.copy_async(X.tile((16, 16), (0, 0)), tw.hopper.peer(held, 1), threads=32)
    else:
        mma = tw.TiledMma(tw.atoms.MMA_F16, repeats=(1, 2))
        tw.mma(tw.hopper.peer(held, 1), held, tw.accumulator(mma))


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("rank", "rank 2 in a cluster of 2 blocks"),
        ("place", "coordinates go up to"),
        ("no cluster", "without clusters"),
        ("global", "which all blocks can access"),
        ("twice", "another block's memory"),
        ("async", "lies in another block's memory"),
        ("mma", "lies in another block's shared memory"),
    ],
)
def test_refusals_say_what_to_write(how: str, message: str) -> None:
    x = np.zeros((16, 16), np.float16)
    with pytest.raises(tw.TilewrightError, match=message):
        verified(x, how)


def verified(x: np.ndarray, how: str) -> None:
    """Trace a kernel, and raise its legality errors."""
    kernel = misused.trace(x, how=how)
    if broken := verify.violations(kernel):
        raise LegalityError(kernel.name, "cuda", broken)


def test_a_cpu_says_what_to_write_instead() -> None:
    x, y = arguments((64, 64), 2, "read", 0)
    with pytest.raises(LegalityError, match=r"tw\.workspace"):
        exchange(x, y, across=2, way="read", target="cpu")


@tw.kernel(A="M K", C="M N")
def operands_of_peers(A, C, *, mma):
    block = tw.block_index(2)
    rank = tw.hopper.cluster_index(2)
    sA = tw.shared((64, 32), A.dtype)
    tw.copy(A.tile((64, 32), (block, 0)), sA, threads=THREADS)
    tw.hopper.cluster_barrier()
    acc = tw.accumulator(mma)
    a = tw.load(tw.hopper.peer(sA, 1 - rank), tw.operand_a(mma, 32))
    tw.mma(a, sA, acc)
    tw.copy(acc, C.tile((64, 64), (block, 0)))
    tw.hopper.cluster_barrier()


def test_operands_come_from_other_blocks_by_loads_not_by_matrices() -> None:
    a, _, c = operands(128, 64, 32)
    c = np.full((128, 64), np.nan, np.float32)
    bound = operands_of_peers.bind(mma=MMA)
    assert not bound.check(a, c).findings
    bound(a, c, target="reference")
    for block in (0, 64):
        wanted = compare_gemm(
            a[64 - block :][:64], a[block:][:64].T, c[block:][:64], Accumulation.of(MMA.atom)
        )
        wanted.raise_if_wrong()
    text = cuda.emit(bound.trace(a, c), "sm_90a").text
    assert text.count("ldmatrix_x4(&") == 1  # of sA as operand B
    assert compile_text(text, "sm_90a")


@tw.kernel(X="N", Y="N")
def histogram(X, Y):
    """Add 1 to ``Y[b]`` for each element b of X, first in shared memory."""
    block = tw.block_index(tw.ceil_div(X.shape[0], 128))
    counts = tw.shared((32,), tw.i32)
    tw.copy(tw.fragment(tw.blocked((32,), (32,)), tw.i32, 0), counts)
    index = tw.shared((128,), tw.i32)
    tw.copy(X.tile((128,), (block,)), index, threads=128, other=-1)
    tw.barrier()
    ones = tw.fragment(tw.blocked((128,), (128,)), tw.i32, 1)
    tw.copy(ones, counts.rows(index, padded=True), reduction="add")
    tw.barrier()
    tw.copy(counts, Y.tile((32,), (0,)), threads=32, reduction="add")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_histogram_adds_up_in_shared_memory(target: str) -> None:
    x = np.random.default_rng(5).integers(0, 32, 1000).astype(np.int32)
    y = np.zeros(1000, np.int32)
    assert histogram(x, y, target=target).target == target
    np.testing.assert_array_equal(y[:32], np.bincount(x, minlength=32))
    assert not histogram.check(x, y, partial=("Y",)).findings
    for arch in ("sm_80", "sm_90a"):
        text = cuda.emit(histogram.trace(x, y), arch).text
        assert "red.relaxed.cta.shared.add.u32" in text
        assert compile_text(text, arch)


@tw.kernel(X="N", Y="N")
def two_steps(X, Y, *, wrong=""):
    """Store the two tiles of X exchanged in Y; a block does its own work while it waits for the other."""
    block = tw.block_index(2)
    rank = tw.hopper.cluster_index(2)
    held, own = tw.shared((32,), X.dtype), tw.shared((32,), X.dtype)
    x = tw.load(X.tile((32,), (block,)).partition((32,)))
    if wrong != "writes between":
        tw.copy(x, held)
    if wrong != "no arrival":
        tw.hopper.cluster_arrive()
    if wrong == "arrives twice":
        tw.hopper.cluster_arrive()
    if wrong == "writes between":
        tw.copy(x, held)
    tw.copy(x + x, own)
    if wrong == "reads between":
        tw.copy(tw.hopper.peer(held, 1 - rank), Y.tile((32,), (block,)), threads=32)
    if wrong != "no wait":
        tw.hopper.cluster_wait()
    if wrong not in ("reads between", "no wait"):
        tw.copy(tw.hopper.peer(held, 1 - rank), Y.tile((32,), (block,)), threads=32)
    if wrong == "no wait":
        tw.copy(own, Y.tile((32,), (block,)), threads=32)
    else:
        tw.hopper.cluster_barrier()


WRONG = {
    "no arrival": "wrong phase",
    "arrives twice": "wrong phase",
    "no wait": "unfinished at the end",
    "writes between": "write-read race",
    "reads between": "read-write race",
}


def test_a_barrier_in_two_steps_orders_what_comes_before_the_first() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    assert not two_steps.check(x, y).findings
    assert two_steps(x, y, target="reference").target == "reference"
    np.testing.assert_array_equal(y, np.roll(x, 32))
    text = cuda.emit(two_steps.trace(x, y), "sm_90a").text
    kernel = text[text.index("extern") :]
    assert kernel.index("cluster_arrive();") < kernel.index("-> own") < kernel.index("cluster_wait();")
    assert compile_text(text, "sm_90a")


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_two_steps_is_found(wrong: str) -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    found = {finding.kind.value for finding in two_steps.check(x, y, wrong=wrong).findings}
    assert WRONG[wrong] in found


@CLUSTERS
@pytest.mark.parametrize("way", WAYS)
def test_two_steps_are_as_good_as_one(way: str, across: int) -> None:
    x, y = arguments((200, 71), across, way, seed=across)
    bound = exchange.bind(across=across, way=way, halves=True)
    assert not bound.check(x, y).findings
    assert bound(x, y, target="reference").target == "reference"
    check(x, y, across, way)


@tw.kernel(X="N", Y="N", first=int)
def tiles_of_peers(X, Y, first, *, way, turns=1):
    """Each block adds up tiles of the blocks from rank ``first`` on, or writes into one of them."""
    block = tw.block_index(2)
    tw.hopper.cluster_index(2)
    held, spread = tw.shared((32,), X.dtype), tw.blocked((32,), (32,))
    tw.copy(X.tile((32,), (block,)), held, threads=32)
    tw.hopper.cluster_barrier()
    if way == "load":
        total = tw.fragment(spread, X.dtype, 0)
        for turn in tw.range(turns):
            total += tw.load(tw.hopper.peer(held, first + turn), spread)
        tw.copy(total, Y.tile((32,), (block,)))
    elif way == "copy":
        tw.copy(tw.hopper.peer(held, first), Y.tile((32,), (block,)), threads=32)
    elif way == "index":
        at = tw.index(tw.hopper.peer(held, first)[0], 0, 32)
        tw.copy(tw.load(X[at : at + 1].tile((1,), (0,)), tw.blocked((1,), (1,))), Y[block : block + 1])
    else:
        tw.copy(tw.fragment(spread, X.dtype, 1), tw.hopper.peer(held, first), reduction="add")
        tw.hopper.cluster_barrier()
        tw.copy(held, Y.tile((32,), (block,)), threads=32)
    tw.hopper.cluster_barrier()


@pytest.mark.parametrize("way", ["load", "copy", "index", "add"])
def test_a_rank_outside_of_the_cluster_is_found(way) -> None:
    x, y = np.arange(64, dtype=np.int32) % 32, np.zeros(64, np.int32)
    for rank, inside in ((0, True), (1, True), (2, False), (-1, False)):
        found = tiles_of_peers.check(x, y, rank, way=way, partial="Y").findings
        reasons = {finding.reason for finding in found if finding.kind.value == "out-of-bounds access"}
        assert reasons == (set() if inside else {f"rank {rank} in a cluster of the ranks 0 to 1"})
        assert inside != bool(found)
    if way == "load":
        assert not tiles_of_peers.check(x, y, 0, way=way, turns=2).findings
        assert tiles_of_peers.check(x, y, 0, way=way, turns=3).findings


@tw.kernel(X="N", Y="N")
def led(X, Y, *, without="", halves=False):
    """The block of rank 0 loads a tile that all blocks copy; the blocks meet at different lines."""
    tw.block_index(4)
    rank = tw.hopper.cluster_index(4)
    held = tw.shared((32,), X.dtype)

    def meet(name: str) -> None:
        if name == without:
            return
        if halves:
            tw.hopper.cluster_arrive()
            tw.hopper.cluster_wait()
        else:
            tw.hopper.cluster_barrier()

    with tw.when(rank == 0):
        tw.copy(X.tile((32,), (0,)), held, threads=64)
        meet("leader, filled")
        tw.copy(held, Y.tile((32,), (0,)), threads=64)
        meet("leader, read")
    with tw.otherwise():
        meet("follower, filled")
        tw.copy(tw.hopper.peer(held, 0), Y.tile((32,), (rank,)), threads=64)
        meet("follower, read")


@pytest.mark.parametrize("halves", [False, True])
def test_blocks_of_a_cluster_may_meet_at_different_lines(halves) -> None:
    """The barrier of a cluster has neither a number nor a place in the program."""
    x, y = np.arange(32, dtype=np.float32).repeat(4), np.zeros(128, np.float32)
    assert not led.check(x, y, halves=halves).findings
    led(x, y, halves=halves, target="reference")
    np.testing.assert_array_equal(y.reshape(4, 32), np.tile(x[:32], (4, 1)))
    assert compile_text(cuda.emit(led.trace(x, y, halves=halves), "sm_90a").text, "sm_90a")


@pytest.mark.parametrize("halves", [False, True])
@pytest.mark.parametrize("without", ["leader, filled", "leader, read", "follower, filled", "follower, read"])
def test_blocks_of_a_cluster_meet_equally_often(without, halves) -> None:
    found = led.check(
        np.zeros(128, np.float32), np.zeros(128, np.float32), without=without, halves=halves
    ).findings
    assert "barrier divergence" in {finding.kind.value for finding in found}
