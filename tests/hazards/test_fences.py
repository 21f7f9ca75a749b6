"""Which fences between ordinary accesses and bulk copies are needed: docs/decisions/0010-proxy-fences.md."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import TraceError
from tilewright.ir import verify
from tilewright.ir.async_ops import FenceAsync
from tilewright.lang.program import Program
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.reference import Kind, run

from .kernels import spec

MOVE = {"X": "M N", "Y": "P Q"}
BOX_BYTES = 8 * 64 * 2


def checked(function, rows=24, **constants):
    x = np.random.default_rng(0).integers(-9, 9, (rows, 64)).astype(np.float16)
    arrays = {"X": x, "Y": np.full_like(x, np.nan)}
    kernel = Program(function, MOVE).trace({name: spec(a) for name, a in arrays.items()}, constants)
    assert not verify.violations(kernel)
    return run(kernel, arrays), arrays


def kinds(report):
    return {finding.kind for finding in report.findings}


def ring(X, Y, *, changed, fence):
    """Two warps read and may change what TMA loaded into one stage, before TMA fills it again."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full, empty = tw.hopper.mbarrier(1, arrivals=1), tw.hopper.mbarrier(1, arrivals=2)
    tw.barrier()
    with tw.role(warps=1):
        for t in tw.range(tw.ceil_div(X.shape[0], 8)):
            tw.hopper.wait(empty[0], 1 - t % 2)
            if fence == "issuer":
                tw.hopper.fence_async()
            tw.hopper.arrive(full[0], expect_bytes=BOX_BYTES)
            tw.hopper.tma_load(X.tile((8, 64), (t, 0)), held, full[0])
    with tw.role(warps=2):
        for t in tw.range(tw.ceil_div(X.shape[0], 8)):
            tw.hopper.wait(full[0], t % 2)
            values = tw.load(held.partition((8, 8)))
            tw.copy(values, Y.tile((8, 64), (t, 0)).partition((8, 8)))
            if changed:
                tw.copy(values + values, held.partition((8, 8)))
            if fence == "writers":
                tw.hopper.fence_async()
            tw.hopper.arrive(empty[0], each="warp")


@pytest.mark.parametrize("fence", ["", "issuer", "writers"])
def test_what_has_only_been_read_is_refilled_after_a_barrier_without_a_fence(fence) -> None:
    report, arrays = checked(ring, changed=False, fence=fence)
    report.raise_if_any()
    assert (arrays["Y"] == arrays["X"]).all()


@pytest.mark.parametrize("fence", ["", "issuer", "writers"])
def test_what_has_been_written_is_refilled_after_a_fence_on_either_side(fence) -> None:
    report, _ = checked(ring, changed=True, fence=fence)
    assert kinds(report) == (set() if fence else {Kind.PROXY})


def own_reader(X, Y, *, barrier):
    """The warp that issues the copies also reads their elements."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        for t in tw.range(tw.ceil_div(X.shape[0], 8)):
            tw.hopper.arrive(full[0], expect_bytes=BOX_BYTES)
            tw.hopper.tma_load(X.tile((8, 64), (t, 0)), held, full[0])
            tw.hopper.wait(full[0], t % 2)
            with tw.when(t >= 0):
                if barrier == "one lane":
                    tw.copy(tw.load(held.partition((1, 1))), Y.tile((8, 64), (t, 0)).partition((1, 1)))
                else:
                    tw.copy(held, Y.tile((8, 64), (t, 0)), threads=(8, 4))
            if barrier == "warp":
                tw.warp_barrier()


def test_program_order_alone_does_not_keep_a_copy_from_overtaking_a_read() -> None:
    """The read may be unfinished when its thread issues the copy that overwrites its source."""
    checked(own_reader, barrier="warp")[0].raise_if_any()
    assert kinds(checked(own_reader, barrier="one lane")[0]) == {Kind.PROXY}


def stored(X, Y, *, fence):
    """Two warps write a tile, and TMA stores it."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    with tw.role(warps=2):
        tw.copy(X.tile((8, 64), (0, 0)), held, threads=(8, 8))
        if fence == "before":
            tw.hopper.fence_async()
        tw.role_barrier(1, 64)
        if fence == "after":
            tw.hopper.fence_async()
        tw.hopper.tma_store(held, Y.tile((8, 64), (0, 0)))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait()


@pytest.mark.parametrize("fence", ["", "before", "after"])
def test_a_fence_before_the_barrier_or_by_the_issuer_after_it(fence) -> None:
    report, arrays = checked(stored, rows=8, fence=fence)
    assert kinds(report) == (set() if fence else {Kind.PROXY})
    assert (arrays["Y"] == arrays["X"]).all()


def through_global(X, Y, *, fence, after):
    """Two warps write Y, and TMA then loads it into shared memory."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.copy(X.tile((8, 64), (0, 0)), Y.tile((8, 64), (0, 0)), threads=(8, 8))
    if fence and not after:
        tw.hopper.fence_async(fence)
    tw.barrier()
    if fence and after:
        tw.hopper.fence_async(fence)
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=BOX_BYTES)
        tw.hopper.tma_load(Y.tile((8, 64), (0, 0)), held, full[0])
        tw.hopper.wait(full[0], 0)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("fence", ["", "shared", "global"])
def test_global_memory_has_a_fence_of_its_own(fence, after) -> None:
    """A fence of shared memory does not order global memory."""
    report, _ = checked(through_global, rows=8, fence=fence, after=after)
    assert kinds(report) == (set() if fence == "global" else {Kind.PROXY})
    if fence != "global":
        assert 'no fence_async("global")' in str(report)


def test_a_fence_of_global_memory_is_none_of_shared_memory() -> None:
    def kernel(X, Y):
        held = tw.shared((8, 64), X.dtype, swizzle=128)
        with tw.role(warps=2):
            tw.copy(X.tile((8, 64), (0, 0)), held, threads=(8, 8))
            tw.hopper.fence_async("global")
            tw.role_barrier(1, 64)
            tw.hopper.tma_store(held, Y.tile((8, 64), (0, 0)))
            tw.hopper.bulk_commit()
            tw.hopper.bulk_wait()

    assert kinds(checked(kernel, rows=8)[0]) == {Kind.PROXY}


def test_the_text_fences_the_memory_that_is_meant() -> None:
    array = np.zeros((8, 64), np.float16)
    specs = {"X": spec(array), "Y": spec(array)}
    texts = {}
    for fence in ("shared", "global"):
        kernel = Program(through_global, MOVE).trace(specs, {"fence": fence, "after": True})
        texts[fence] = cuda.emit(kernel, "sm_90a").text
        compile_text(texts[fence], "sm_90a")
    assert "fence.proxy.async.shared::cta;" in texts["shared"]
    assert "fence.proxy.async.global;" not in texts["shared"]
    assert "fence.proxy.async.global;" in texts["global"]
    assert "fence.proxy.async.shared::cta;" not in texts["global"]


def test_other_memories_are_refused() -> None:
    with pytest.raises(TraceError, match="choose 'shared' or 'global'"):
        tw.kernel(X="N")(lambda X: tw.hopper.fence_async("registers")).trace(np.zeros(4, np.float32))
    [broken] = FenceAsync("registers").verify()
    assert (broken.rule, broken.nearest) == ("fence_async", "shared or global")


MMA = tw.TiledMma(tw.atoms.wgmma(tw.f16, 64))
TILES_BYTES = 2 * 64 * 64 * 2


@tw.kernel(A="M K", B="N K", C="M N")
def refilled(A, B, C, *, released, warps=1):
    """A warpgroup multiplies tiles that one warp loads into one stage; ``released`` says who releases it."""
    held_a = tw.shared((64, 64), A.dtype, swizzle=128)
    held_b = tw.shared((64, 64), B.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    empty = tw.hopper.mbarrier(1, arrivals=warps)
    tw.barrier()
    turns = tw.ceil_div(A.shape[1], 64)
    with tw.role(warps=4):
        acc = tw.accumulator(MMA)
        for k in tw.range(turns):
            tw.hopper.wait(full[0], k % 2)
            if released == "before the multiply":
                tw.hopper.arrive(empty[0])
            tw.hopper.mma_fence()
            tw.hopper.mma_async(held_a, held_b, acc)
            tw.hopper.mma_commit()
            if released == "before the wait":
                tw.hopper.arrive(empty[0])
            tw.hopper.mma_wait(1 if released == "after a wait that leaves its group out" else 0)
            if released == "after the wait and a barrier of the role":
                tw.role_barrier(1, 128)
            if released.startswith("after"):
                tw.hopper.arrive(empty[0], each="warp" if warps > 1 else "role")
        tw.hopper.mma_wait(0)
        tw.copy(acc, C.tile((64, 64), (0, 0)))
    with tw.role(warps=1):
        for k in tw.range(turns):
            tw.hopper.wait(empty[0], 1 - k % 2)
            tw.hopper.arrive(full[0], expect_bytes=TILES_BYTES)
            tw.hopper.tma_load(A.tile((64, 64), (0, k)), held_a, full[0])
            tw.hopper.tma_load(B.tile((64, 64), (0, k)), held_b, full[0])
    with tw.role(warps=1):
        if released == "by a warp that has not multiplied":
            for k in tw.range(turns):
                tw.hopper.wait(full[0], k % 2)
                tw.hopper.arrive(empty[0])


def multiplied(released, warps=1):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-9, 9, (64, 256)).astype(np.float16) for _ in range(2))
    c = np.full((64, 64), np.nan, np.float32)
    bound = refilled.bind(released=released, warps=warps)
    report = bound.check(a, b, c)
    if report.is_clean:
        bound(a, b, c, target="reference")
        np.testing.assert_array_equal(c, a.astype(np.float32) @ b.astype(np.float32).T)
    return kinds(report)


@pytest.mark.parametrize(
    ("released", "warps"), [("after the wait", 4), ("after the wait and a barrier of the role", 1)]
)
def test_a_stage_that_was_multiplied_is_refilled_after_all_warps_have_waited_without_a_fence(
    released, warps
) -> None:
    assert multiplied(released, warps) == set()


def test_the_wait_of_one_warp_covers_what_its_warpgroup_read_but_not_the_waits_of_the_others() -> None:
    """The stage may be refilled while three warps still wait, so that they miss the phase."""
    assert multiplied("after the wait") == {Kind.OVERTAKEN}


@pytest.mark.parametrize(
    ("released", "kind"),
    [
        ("before the multiply", Kind.READ_WRITE),
        ("before the wait", Kind.READ_WRITE),
        ("after a wait that leaves its group out", Kind.IN_FLIGHT),
        ("by a warp that has not multiplied", Kind.READ_WRITE),
    ],
)
def test_a_stage_that_is_still_multiplied_is_not_refilled(released, kind) -> None:
    assert kind in multiplied(released)
