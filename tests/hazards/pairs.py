"""Pairs of blocks: each loads one half of every tile for both.  A switch selects each possible fault."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program

from .kernels import spec

ROWS, TILE_BYTES, WARPS = 16, 16 * 64 * 2, 2


def pairs(X, Y, *, wrong=""):
    tw.block_index(2)
    rank = tw.hopper.cluster_index(2)
    held = tw.shared((2, ROWS, 64), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(2, arrivals=1)
    alone = wrong in ("counts one block", "releases and counts one block")
    empty = tw.hopper.mbarrier(2, arrivals=WARPS if alone else 2 * WARPS)
    if wrong == "no cluster barrier at the start":
        tw.barrier()
    else:
        tw.hopper.cluster_barrier()
    tiles = tw.ceil_div(X.shape[0], ROWS)
    with tw.role(warps=1):
        for t in tw.range(tiles):
            s, phase = tw.let(t % 2), tw.let(t // 2 % 2)
            if wrong != "no wait for empty":
                tw.hopper.wait(empty[s], 1 - phase)
            size = {"expects half": TILE_BYTES // 2, "expects too much": TILE_BYTES + 16}
            tw.hopper.arrive(full[s], expect_bytes=size.get(wrong, TILE_BYTES))
            half = held[s].tile((ROWS // 2, 64), (rank, 0))
            everyone = () if wrong == "to one block" else 0
            tw.hopper.tma_load(X.tile((ROWS // 2, 64), (t * 2 + rank, 0)), half, full[s], multicast=everyone)
        if wrong == "waits for its last stages instead":
            for i in tw.unroll(2):
                tw.hopper.wait(empty[(tiles + i) % 2], 1 - (tiles + i) // 2 % 2)
    with tw.role(warps=WARPS):
        for t in tw.range(tiles - rank if wrong == "one block leaves the last tile" else tiles):
            s, phase = tw.let(t % 2), tw.let(t // 2 % 2)
            tw.hopper.wait(full[s], phase)
            tw.copy(held[s], Y.tile((ROWS, 64), (rank * tiles + t, 0)), threads=(ROWS, 4))
            if wrong == "no fence":
                part = held[s].partition((ROWS, 4))
                tw.copy(tw.load(part), part)
            else:
                tw.hopper.fence_async()
            tw.hopper.arrive(empty[s], each="warp")
            if wrong not in ("releases one block", "releases and counts one block"):
                other = rank + 1 if wrong == "a block that is not there" else 1 - rank
                tw.hopper.arrive(empty[s], each="warp", block=other)
    if wrong == "one block passes the last barrier by":
        with tw.when(rank == 0):
            tw.hopper.cluster_barrier()
    elif wrong not in ("no cluster barrier at the end", "waits for its last stages instead"):
        tw.hopper.cluster_barrier()


def trace(arrays: dict[str, np.ndarray], wrong: str = "") -> Kernel:
    """Trace the kernel for these arrays."""
    program = Program(pairs, {"X": "M N", "Y": "P Q"})
    return program.trace({key: spec(array) for key, array in arrays.items()}, {"wrong": wrong})
