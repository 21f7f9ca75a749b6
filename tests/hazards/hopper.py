"""Kernels of roles, mbarriers, bulk copies and asynchronous MMA.  Golden files name their lines."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.dtypes import dtype
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program

from .kernels import spec


def tile_order(index, tiles_m, tiles_n, group):
    """The tile of a running index: ``group`` rows of tiles at a time, one column after another."""
    per = group * tiles_n
    first = tw.let(index // per * group)
    rows = tw.let(tw.minimum(tiles_m - first, group))
    return tw.let(first + index % per % rows), tw.let(index % per // rows)


def hopper_gemm(A, B, C, *, tile, mma, stages, blocks, group):
    tile_m, tile_n, tile_k = tile
    block = tw.block_index(blocks)
    tiles_m, tiles_n = tw.ceil_div(C.shape, (tile_m, tile_n))
    steps = tw.ceil_div(A.shape[1], tile_k)
    mine = tw.ceil_div(tiles_m * tiles_n - block, blocks)
    sA = tw.shared((stages, tile_m, tile_k), A.dtype, swizzle=128)
    sB = tw.shared((stages, tile_n, tile_k), B.dtype, swizzle=128)
    sC = tw.shared((tile_n // 64, tile_m, 64), C.dtype, swizzle=128)
    full = tw.mbarrier(stages, arrivals=1)
    empty = tw.mbarrier(stages, arrivals=8)
    tw.barrier()
    with tw.role(warps=4, registers=40):
        for t in tw.range(mine):
            m, n = tile_order(block + t * blocks, tiles_m, tiles_n, group)
            for k in tw.range(steps):
                step = tw.let(t * steps + k)
                s, phase = tw.let(step % stages), tw.let(step // stages % 2)
                tw.wait(empty[s], 1 - phase)
                tw.arrive(full[s], expect_bytes=(tile_m + tile_n) * tile_k * A.dtype.bytes)
                tw.tma_load(A, (m * tile_m, k * tile_k), sA[s], full[s])
                tw.tma_load(B, (n * tile_n, k * tile_k), sB[s], full[s])
    with tw.role(warps=8, registers=232):
        for t in tw.range(mine):
            m, n = tile_order(block + t * blocks, tiles_m, tiles_n, group)
            acc = tw.accumulator(mma)
            for k in tw.range(steps, provenance="mainloop"):
                step = tw.let(t * steps + k)
                s, phase = tw.let(step % stages), tw.let(step // stages % 2)
                tw.wait(full[s], phase)
                tw.mma_fence()
                tw.mma_async(sA[s], sB[s], acc)
                tw.mma_commit()
                tw.mma_wait(1)
                with tw.when(k > 0):
                    tw.arrive(empty[(step - 1) % stages], each="warp")
            tw.mma_wait(0)
            with tw.when(steps > 0):
                tw.arrive(empty[(t * steps + steps - 1) % stages], each="warp")
            tw.bulk_wait(0)
            tw.role_barrier(1, 256)
            tw.copy(acc, sC.permute(1, 0, 2).merge(1))
            tw.fence_async()
            tw.role_barrier(1, 256)
            for j in tw.unroll(tile_n // 64):
                tw.tma_store(sC[j], C, (m * tile_m, n * tile_n + 64 * j))
            tw.bulk_commit()
        tw.bulk_wait(0)


PROGRAMS = {"hopper_gemm": Program(hopper_gemm, {"A": "M K", "B": "N K", "C": "M N"})}


def trace(name: str, arrays: dict[str, np.ndarray], **constants) -> Kernel:
    """A kernel of this file, for these arrays."""
    return PROGRAMS[name].trace({key: spec(array) for key, array in arrays.items()}, constants)


def padded(values: np.ndarray, unit: int = 8) -> np.ndarray:
    """The values, in rows of a multiple of ``unit`` elements, as TMA needs them."""
    rows, columns = values.shape
    whole = np.zeros((rows, max(-(-columns // unit), 1) * unit), values.dtype)
    view = whole[:, :columns]
    view[...] = values
    return view


def operands(m: int, n: int, k: int, element="bf16", seed: int = 0) -> dict[str, np.ndarray]:
    """Random A and B, and a C that no one has written, with rows that TMA can address."""
    rng = np.random.default_rng(seed)
    kind = dtype(element).numpy
    a, b = (padded(rng.standard_normal((rows, k)).astype(kind)) for rows in (m, n))
    return {"A": a, "B": b, "C": padded(np.full((m, n), np.nan, kind))}


def constants(tile=(128, 64, 64), stages=3, blocks=2, group=2, element="bf16") -> dict[str, object]:
    """The constants of the Hopper GEMM."""
    mma = tw.TiledMma(tw.atoms.wgmma(dtype(element), tile[1]), (2, 1))
    return {"tile": tile, "mma": mma, "stages": stages, "blocks": blocks, "group": group}
