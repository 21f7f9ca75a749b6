"""The main loop: the one place where a K loop is written."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import range as traced_range
from tilewright.lang.control import unroll, when
from tilewright.lang.scalars import Index, ceil_div
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.views.view import View


def mainloop(
    A: Tensor,
    B: Tensor,
    at: tuple[Index, Index],
    *,
    tile: tuple[int, int, int],
    mma: TiledMma,
    stages: int = 1,
) -> Fragment:
    """``acc[m, n] = sum_k A[m, k] * B[n, k]`` over one block's tile.

    Args:
        A: (M, K) in global memory, unit stride along either dimension.
        B: (N, K) likewise.
        at: the block's tile indices (m, n).
        tile: extents (m, n, k) of the block's tile.
        mma: the tiled MMA; ``mma.tile[:2] == tile[:2]``.
        stages: 1 copies and multiplies in turn; more keep ``stages - 1`` tiles in flight with `copy_async`.

    Returns:
        The accumulator.
    """
    tile_m, tile_n, tile_k = tile
    operands = (
        _Operand(A, at[0], (tile_m, tile_k), mma.threads, stages),
        _Operand(B, at[1], (tile_n, tile_k), mma.threads, stages),
    )
    acc = tw.accumulator(mma)
    count = ceil_div(A.shape[1], tile_k)
    if stages == 1:
        for k in traced_range(count, provenance="mainloop"):
            sA, sB = (operand.load(k) for operand in operands)
            tw.barrier()
            tw.mma(sA, sB, acc)
            tw.barrier()
        return acc
    for stage in unroll(stages - 1):
        _start(operands, stage, count)
    for k in traced_range(count, provenance="mainloop"):
        tw.async_wait(stages - 2)
        tw.barrier()
        _start(operands, k + stages - 1, count)
        sA, sB = (operand.stage(k) for operand in operands)
        tw.mma(sA, sB, acc)
    return acc


def _start(operands: Sequence[_Operand], k: Index, count: Index) -> None:
    """Start the copies of tile ``k``, if there is one, and close their group in any case."""
    with when(k < count):
        for operand in operands:
            operand.load_async(k)
    tw.async_commit()


class _Operand:
    """One operand's tiles in global memory and its stages in shared memory."""

    def __init__(self, source: Tensor, row: Index, tile: tuple[int, int], threads: int, stages: int) -> None:
        self.source, self.row, self.tile = source, row, tile
        # What is contiguous in global memory is contiguous in shared memory too, and vectorised.
        self.unit_dim = 1 if source.unit_dim is None else source.unit_dim
        self.threads = threads
        rows, depth = tile
        strides = (depth, 1) if self.unit_dim == 1 else (1, rows)
        size = rows * depth
        view = View.strided((stages, rows, depth), (size, *strides))
        name = f"s{source.value.name}"
        self.shared = tw.shared((stages, rows, depth), source.dtype, layout=view, name=name)
        self.stages = stages

    def stage(self, k: Index) -> Tensor:
        """The shared tile that holds step ``k``."""
        return self.shared[k % self.stages]

    def load(self, k: Index) -> Tensor:
        """Copy step ``k`` to its stage."""
        target = self.stage(k)
        tw.copy(self._tile(k), target, threads=self.threads)
        return target

    def load_async(self, k: Index) -> None:
        """Start copying step ``k`` to its stage."""
        tw.copy_async(self._tile(k), self.stage(k), threads=self.threads)

    def _tile(self, k: Index) -> Tensor:
        return self.source.tile(self.tile, (self.row, k))
