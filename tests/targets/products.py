"""Kernels that multiply by any atom, and a problem for each row of the tables of atoms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.compare import Accumulation, GemmComparison, compare_gemm
from tilewright.checking.sample import normal
from tilewright.ir.mma import MmaAtom
from tilewright.runtime.kernel import Bound
from tilewright.targets.atoms import MMA_SYNC, WGMMA, wgmma

DEPTH_BYTES = 128
"""Of a row of A and B in shared memory; what the swizzle takes."""

COLUMNS = 32
"""Of the atoms of ``wgmma`` that are tried."""


@tw.kernel(A="M K", B="N K", C="M N")
def product(A, B, C, *, mma, depth, from_registers, fence=True):
    """C = A Bᵀ by ``tw.mma``; the author or a pass loads operands into registers, if at all."""
    tile_m, tile_n, _ = mma.tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    swizzle = 128 if mma.atom.asynchronous else None
    sA = tw.shared((tile_m, depth), A.dtype, swizzle=swizzle)
    sB = tw.shared((tile_n, depth), B.dtype, swizzle=swizzle)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], depth)):
        tw.copy(A.tile((tile_m, depth), (m, k)), sA, threads=mma.threads)
        tw.copy(B.tile((tile_n, depth), (n, k)), sB, threads=mma.threads)
        if fence and mma.atom.asynchronous:
            tw.hopper.fence_async()
        tw.barrier()
        if from_registers:
            right = sB if mma.atom.asynchronous else tw.load(sB, tw.operand_b(mma, depth))
            tw.mma(tw.load(sA, tw.operand_a(mma, depth)), right, acc)
        else:
            tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@tw.kernel(A="M K", B="N K", C="M N")
def background_product(A, B, C, *, mma, depth, from_registers):
    """C = A Bᵀ by an asynchronous atom with one stage: TMA, ``wgmma``, and a wait for each."""
    tile_m, tile_n, _ = mma.tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, depth), A.dtype, swizzle=128)
    sB = tw.shared((tile_n, depth), B.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], depth)):
        tw.hopper.arrive(full[0], expect_bytes=(tile_m + tile_n) * depth * A.dtype.bytes)
        tw.hopper.tma_load(A.tile((tile_m, depth), (m, k)), sA, full[0])
        tw.hopper.tma_load(B.tile((tile_n, depth), (n, k)), sB, full[0])
        tw.hopper.wait(full[0], k % 2)
        left = tw.load(sA, tw.operand_a(mma, depth)) if from_registers else sA
        tw.hopper.mma_fence()
        tw.hopper.mma_async(left, sB, acc)
        tw.hopper.mma_commit()
        tw.hopper.mma_wait(0)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


@dataclass(frozen=True)
class Product:
    """A kernel for an atom, and matrices for it.

    Args:
        atom: the atom.
        from_registers: whether operands that may live in registers are loaded by the author.
    """

    atom: MmaAtom
    from_registers: bool

    def __str__(self) -> str:
        return f"{self.atom}{'-registers' if self.from_registers else ''}"

    @property
    def bound(self) -> Bound:
        """Bind one warpgroup, or 2 x 2 warps of 1 x 2 atoms."""
        fixed = {"depth": DEPTH_BYTES // self.atom.a_dtype.bytes, "from_registers": self.from_registers}
        if self.atom.asynchronous:
            return background_product.bind(mma=tw.TiledMma(self.atom), **fixed)
        return product.bind(mma=tw.TiledMma(self.atom, (2, 2), (1, 2)), **fixed)

    def specs(self) -> list[tw.TensorSpec]:
        """Return matrices whose rows are multiples of 16 bytes apart."""
        found = []
        for dtype in (self.atom.a_dtype, self.atom.b_dtype, self.atom.c_dtype):
            unit = 16 // dtype.bytes
            found.append(tw.TensorSpec(dtype, 2, 1, (1, unit), (unit, 1), 16, False))
        return found

    def arrays(self, shape: tuple[int, int, int], seed: int = 0) -> list[Any]:
        """Return random A (M, K) and B (N, K), and C (M, N) of NaN or of the least integer."""
        m, n, k = shape
        rng = np.random.default_rng(seed)
        a, b = (
            np.asarray(rng.integers(0, 256, extents), np.uint8).view(dtype.numpy)
            if not dtype.is_float
            else normal(rng, extents, dtype)
            for extents, dtype in (((m, k), self.atom.a_dtype), ((n, k), self.atom.b_dtype))
        )
        c_dtype = self.atom.c_dtype
        blank = np.nan if c_dtype.is_float else np.iinfo(c_dtype.numpy).min
        return [a, b, np.full((m, n), blank, c_dtype.numpy)]

    def around_the_middle(self) -> tuple[list[Any], Any]:
        """Numbers near the middle between two numbers of the atom, and their products with 1."""
        precision = self.atom.precision
        assert precision is not None
        a, b, c = self.arrays((64, 32, 8))
        last = 2.0**-precision
        a[:], b[:] = 0, 0
        a[:, 0], b[:, 0] = np.tile([1 + 0.49 * last, 1 + 0.51 * last], 32), 1
        rounded = 1 + last if self.atom.rounding == "nearest" else 1.0
        return [a, b, c], np.broadcast_to(np.tile([1.0, rounded], 32)[:, None], c.shape)

    def compare(self, a: Any, b: Any, c: Any) -> GemmComparison:
        """Compare within the bound of the atom's record."""
        return compare_gemm(a, b.T, c, Accumulation.of(self.atom))


ATOMS = (*MMA_SYNC, *(wgmma(row.a, COLUMNS, row.b, row.c) for row in WGMMA))
"""Every atom that has an instruction, the asynchronous ones of one width."""

PRODUCTS = tuple(Product(atom, from_registers) for atom in ATOMS for from_registers in (False, True))

OF_FEWER_BITS = tuple(made for made in PRODUCTS if made.atom.precision is not None)
"""Those that multiply fewer bits than their operands have."""
