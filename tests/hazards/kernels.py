"""Kernels for tests of the hazard checker. Golden files name their lines."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.dtypes import dtype
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec


def basic_gemm(A, B, C, *, tile, threads, mma, vector):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=vector)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=vector)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def seed_gemm(A, B, C, *, tile, threads, mma, vector):
    """The basic GEMM of the wrapper's tutorial, as published: no barrier after the multiply."""
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=vector)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=vector)
        tw.barrier()
        tw.mma(sA, sB, acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def pipelined_gemm(A, B, C, *, tile, threads, mma, vector, pending=1, early=False):
    """Asynchronous copies fill two stages: one is multiplied while the next is loaded."""
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((2, tile_m, tile_k), A.dtype)
    sB = tw.shared((2, tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    steps = tw.ceil_div(A.shape[1], tile_k)
    tw.copy_async(A.tile((tile_m, tile_k), (m, 0)), sA[0], threads=threads, vector=vector)
    tw.copy_async(B.tile((tile_n, tile_k), (n, 0)), sB[0], threads=threads, vector=vector)
    tw.async_commit()
    for k in tw.range(steps):
        ahead = k if early else k + 1
        with tw.when(k + 1 < steps):
            tw.copy_async(A.tile((tile_m, tile_k), (m, k + 1)), sA[ahead % 2], threads=threads, vector=vector)
            tw.copy_async(B.tile((tile_n, tile_k), (n, k + 1)), sB[ahead % 2], threads=threads, vector=vector)
        tw.async_commit()
        tw.async_wait(pending)
        tw.barrier()
        tw.mma(sA[k % 2], sB[k % 2], acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def padded_layout(A, B, *, elems):
    """A tile in shared memory as (K0, M, K1) with rows of (M + 1) K1, as in the tutorial's optimised GEMM."""
    sA = tw.shared((4, 256, 8), A.dtype, layout=tw.Layout((4, 256, 8), (257 * 8, 8, 1)), elems=elems)
    source = A.tile((256, 32), (0, 0)).unmerge(1, (4, 8)).permute(1, 0, 2)
    target = B.tile((256, 32), (0, 0)).unmerge(1, (4, 8)).permute(1, 0, 2)
    tw.copy(source, sA, threads=(4, 64, 1), vector=8)
    tw.barrier()
    tw.copy(sA, target, threads=(4, 64, 1), vector=8)


def exchange(X, Y, *, ordered):
    """One warp transposes a tile in shared memory: each lane writes a row and reads a column."""
    turned = tw.shared((32, 32), X.dtype)
    tw.copy(X.tile((32, 32), (0, 0)), turned, threads=(32, 1))
    if ordered:
        tw.warp_barrier()
    tw.copy(turned, Y.tile((32, 32), (0, 0)), threads=(1, 32), vector_dim=0)


def half_written(X, Y, *, rows):
    """Only the first rows of a shared tile are written before all of them are read."""
    held = tw.shared((32, 8), X.dtype)
    tw.copy(X.tile((rows, 8), (0, 0)), held[0:rows], threads=(rows, 1))
    tw.barrier()
    tw.copy(held, Y.tile((32, 8), (0, 0)), threads=(32, 1))


def overlapping_blocks(X, Y, *, step):
    """Each block writes 64 rows, ``step`` rows after the block before it."""
    b = tw.block_index(4)
    tw.copy(X.tile((64, 8), (0, 0)), Y[b * step : b * step + 64].tile((64, 8), (0, 0)), threads=(32, 1))


PROGRAMS = {
    function.__name__: Program(function, declared)
    for function, declared in (
        *((gemm, {"A": "M K", "B": "N K", "C": "M N"}) for gemm in (basic_gemm, seed_gemm, pipelined_gemm)),
        (padded_layout, {"A": "M K", "B": "M K"}),
        *((f, {"X": "M N", "Y": "M N"}) for f in (exchange, half_written)),
        (overlapping_blocks, {"X": "M N", "Y": "R N"}),
    )
}


def spec(array: np.ndarray) -> TensorSpec:
    """The class of a packed or strided array of unknown extents."""
    strides = [stride // array.itemsize for stride in array.strides]
    unit = next((dim for dim in reversed(range(array.ndim)) if strides[dim] == 1), None)
    extents = tuple(int(np.gcd(n, 16)) for n in array.shape)
    multiples = tuple(1 if dim == unit else int(np.gcd(s, 16)) for dim, s in enumerate(strides))
    return TensorSpec(dtype(array.dtype), array.ndim, unit, extents, multiples, 16, False)


def trace(name: str, arrays: dict[str, np.ndarray], **constants) -> Kernel:
    """Trace a kernel of this file for these arrays."""
    return PROGRAMS[name].trace({key: spec(array) for key, array in arrays.items()}, constants)


def gemm_arrays(m: int, n: int, k: int, inputs="f32", out="f32", seed: int = 0) -> dict[str, np.ndarray]:
    """Return random A and B, and a poisoned C."""
    rng = np.random.default_rng(seed)
    element, result = dtype(inputs), dtype(out)
    if element.is_float:
        a, b = (rng.standard_normal((rows, k)).astype(element.numpy) for rows in (m, n))
    else:
        a, b = (rng.integers(-9, 9, (rows, k)).astype(element.numpy) for rows in (m, n))
    return {"A": a, "B": b, "C": np.full((m, n), np.nan if result.is_float else 77, result.numpy)}
