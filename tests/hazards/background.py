"""Small kernels with background operations. A switch selects each possible fault."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program

from .kernels import spec

BOX_BYTES = 8 * 64 * 2


def relay(X, Y, *, wrong=""):
    """TMA fills a stage, two warps copy it to Y by ordinary loads, and TMA fills the stage again."""
    held = tw.shared((2, 8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(2, arrivals=1)
    empty = tw.hopper.mbarrier(2, arrivals=1 if wrong in ("one arrival too few", "first thread alone") else 2)
    if wrong != "no barrier":
        tw.barrier()
    tiles = tw.ceil_div(X.shape[0], 8)
    with tw.role(warps=1):
        for t in tw.range(tiles):
            s, phase = tw.let(t % 2), tw.let(t // 2 % 2)
            if wrong != "no wait for empty":
                tw.hopper.wait(empty[s], 1 - phase)
            tw.hopper.arrive(
                full[s], expect_bytes=BOX_BYTES + {"too few bytes": -16, "too many": 16}.get(wrong, 0)
            )
            half = slice(0, 4 if wrong == "half a box" else 8)
            tw.hopper.tma_load(X.tile((8, 64), (t, 0))[half], held[s, half], full[s])
            if wrong == "two copies":
                tw.hopper.tma_load(X.tile((8, 64), (t, 0)), held[s], full[s])
            if wrong == "two arrivals":
                tw.hopper.arrive(full[s])
            if wrong == "barrier in a role":
                tw.barrier()
    with tw.role(warps=2):
        for t in tw.range(tiles if wrong != "last tile is left" else tiles - 1):
            s, phase = tw.let(t % 2), tw.let(t // 2 % 2)
            if wrong != "no wait for full":
                tw.hopper.wait(full[(s + 1) if wrong == "a stage that is not there" else s], phase)
            tw.copy(held[s], Y.tile((8, 64), (t, 0)), threads=(8, 8))
            if wrong == "no fence":
                part = held[s].partition((8, 8))
                tw.copy(tw.load(part), part)
            else:
                tw.hopper.fence_async()
            if wrong != "no arrival":
                tw.hopper.arrive(empty[s], each="role" if wrong == "first thread alone" else "warp")


def two_readers(X, Y, *, wrong=""):
    """TMA fills a tile once. Each of two warps copies half of it to Y; the first warp may copy too early."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=BOX_BYTES)
        tw.hopper.tma_load(X.tile((8, 64), (0, 0)), held, full[0])
    for half in tw.unroll(2):
        with tw.role(warps=1):
            tw.hopper.wait(full[0], 1 if wrong == "the other parity" and half == 0 else 0)
            part = held[:, half * 32 : half * 32 + 32]
            tw.copy(part, Y.tile((8, 32), (0, half)), threads=(8, 4))


def staged_store(X, Y, *, wrong=""):
    """Two warps write a tile to shared memory, and TMA stores it."""
    held = tw.shared((8, 64), X.dtype, swizzle=128)
    with tw.role(warps=2):
        for t in tw.range(tw.ceil_div(X.shape[0], 8)):
            if wrong != "no wait before the next tile":
                tw.hopper.bulk_wait(1 if wrong == "waits for one group too few" else 0)
            if wrong != "no barrier after the wait":
                tw.role_barrier(1, 64)
            tw.copy(X.tile((8, 64), (t, 0)), held, threads=(8, 8))
            if wrong != "no fence":
                tw.hopper.fence_async()
            if wrong != "no barrier before the store":
                tw.role_barrier(2 if wrong == "another number" else 1, 64)
            tw.hopper.tma_store(held, Y.tile((8, 64), (t, 0)))
            if wrong != "no commit":
                tw.hopper.bulk_commit()
        if wrong != "no wait at the end":
            tw.hopper.bulk_wait(0)
        if wrong == "reads what it stored":
            tw.role_barrier(1, 64)
            tw.copy(tw.load(Y.tile((8, 64), (0, 0)).partition((8, 8))), held)


def multiply(A, B, C, *, mma, wrong=""):
    """One warpgroup multiplies tiles that it has written to shared memory; A may also come from registers."""
    sA = tw.shared((64, 64), A.dtype, swizzle=128)
    sB = tw.shared((64, 64), B.dtype, swizzle=128)
    tw.copy(A.tile((64, 64), (0, 0)), sA, threads=(16, 8))
    tw.copy(B.tile((64, 64), (0, 0)), sB, threads=(16, 8))
    if wrong != "no proxy fence":
        tw.hopper.fence_async()
    if wrong != "no barrier":
        tw.barrier()
    acc = tw.accumulator(mma)
    a = tw.load(sA, mma.a(64))
    if wrong != "no mma_fence":
        tw.hopper.mma_fence()
    tw.hopper.mma_async(sA, sB, acc)
    tw.hopper.mma_async(a, sB, acc)
    if wrong == "A is overwritten":
        tw.fill(a, 0)
    if wrong == "the accumulator is filled":
        tw.fill(acc, 0)
    if wrong == "touched between two":
        tw.hopper.mma_commit()
        tw.hopper.mma_wait(0)
        tw.copy(acc * 2, acc)
        tw.hopper.mma_async(sA, sB, acc)
    if wrong != "no commit":
        tw.hopper.mma_commit()
    if wrong != "no wait":
        tw.hopper.mma_wait(1 if wrong == "waits for one group too few" else 0)
    if wrong == "B is overwritten":
        tw.copy(A.tile((64, 64), (0, 0)), sB, threads=(16, 8))
    tw.copy(acc, C.tile((64, 64), (0, 0)))


def crooked_box(X, Y, *, row, column):
    """TMA loads a box that begins inside of a row of 128 bytes, or ends beyond the allocation."""
    held = tw.shared((16, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=BOX_BYTES // 2)
        place = tw.let(tw.var(row).get() + 0)
        tw.hopper.tma_load(X.tile((8, 32), (0, 0)), held[place : place + 8, column : column + 32], full[0])
        tw.hopper.wait(full[0], 0)


MOVE, GEMM = {"X": "M N", "Y": "P Q"}, {"A": "M K", "B": "N K", "C": "M N"}
PROGRAMS = {
    "relay": Program(relay, MOVE),
    "two_readers": Program(two_readers, MOVE),
    "staged_store": Program(staged_store, MOVE),
    "multiply": Program(multiply, GEMM),
    "crooked_box": Program(crooked_box, MOVE),
}


def trace(name: str, arrays: dict[str, np.ndarray], **constants) -> Kernel:
    """A kernel of this file, for these arrays."""
    return PROGRAMS[name].trace({key: spec(array) for key, array in arrays.items()}, constants)
