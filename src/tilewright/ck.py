"""Device GEMMs in the terms of Composable Kernel: an instance by every parameter of its template.

>>> import tilewright as tw
>>> transfer = tw.ck.BlockTransfer(
...     thread_cluster_lengths=(4, 64, 1), thread_cluster_arrange_order=(1, 0, 2), src_access_order=(1, 0, 2),
...     src_vector_dim=2, src_scalar_per_vector=8, dst_scalar_per_vector_k1=8,
... )
>>> transfer.threads
256
"""

from tilewright.instances.gemms import DeviceGemmWmma, DeviceGemmXdl, tiled_mma
from tilewright.instances.problem import GemmProblem, Matrix
from tilewright.instances.template import BlockTransfer, CShuffle
from tilewright.instances.words import Check, Checks
from tilewright.namespaces import namespace

__all__ = [
    "BlockTransfer",
    "CShuffle",
    "Check",
    "Checks",
    "DeviceGemmWmma",
    "DeviceGemmXdl",
    "GemmProblem",
    "Matrix",
    "tiled_mma",
]

__getattr__, __dir__ = namespace(__name__, __all__)
