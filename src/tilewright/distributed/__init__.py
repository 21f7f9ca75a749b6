"""Products over the processes of `torch.distributed`, with gradients: ``import tilewright.distributed``."""

from tilewright.distributed.exchange import RankError
from tilewright.distributed.functions import (
    all_gather_matmul,
    matmul_all_reduce,
    matmul_reduce_scatter,
    replicated_matmul,
)
from tilewright.distributed.modules import (
    ColumnParallelLinear,
    ParallelAttention,
    ParallelGatedMLP,
    RowParallelLinear,
    shares,
)

__all__ = [
    "ColumnParallelLinear",
    "ParallelAttention",
    "ParallelGatedMLP",
    "RankError",
    "RowParallelLinear",
    "all_gather_matmul",
    "matmul_all_reduce",
    "matmul_reduce_scatter",
    "replicated_matmul",
    "shares",
]
