"""General matrix multiply: the explicit kernel."""

from __future__ import annotations

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.scalars import ceil_div
from tilewright.lang.tensors import Tensor
from tilewright.ops.config import Config
from tilewright.ops.mainloop import mainloop
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Bound


@kernel(A="M K", B="N K", C="M N")
def gemm(A: Tensor, B: Tensor, C: Tensor, *, tile: tuple[int, int, int], mma: TiledMma, stages: int) -> None:
    """``C[m, n] = sum_k A[m, k] * B[n, k]``: data-parallel, one block per tile of C."""
    m, n = tw.block_index(ceil_div(C.shape, tile[:2]))
    acc = mainloop(A, B, (m, n), tile=tile, mma=mma, stages=stages)
    tw.copy(acc, C.tile(tile[:2], (m, n)))


def output_dtype(dtype: DType) -> DType:
    """The dtype of ``a @ b`` for operands of ``dtype``: i32 for integers, f16 for fp8, else the same."""
    if dtype.kind == "int":
        return dtypes.i32
    return dtypes.f16 if dtype.bits == 8 else dtype


def bind(config: Config) -> Bound:
    """The GEMM kernel with one configuration."""
    return gemm.bind(tile=config.tile, mma=config.mma, stages=config.stages)
