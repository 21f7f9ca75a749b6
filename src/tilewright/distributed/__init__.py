"""Products over the processes of `torch.distributed`, with gradients: ``import tilewright.distributed``."""

from tilewright.distributed.exchange import RankError
from tilewright.distributed.functions import all_gather_matmul, matmul_all_reduce, matmul_reduce_scatter

__all__ = ["RankError", "all_gather_matmul", "matmul_all_reduce", "matmul_reduce_scatter"]
