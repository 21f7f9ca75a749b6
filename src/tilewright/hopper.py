"""Operations of NVIDIA GPUs from Hopper on: transaction barriers, bulk copies, `wgmma`, clusters."""

from tilewright.lang.asynchrony import (
    acquire_map,
    bulk_commit,
    bulk_wait,
    by_map,
    fence_async,
    launch_dependents,
    mma_async,
    mma_commit,
    mma_fence,
    mma_wait,
    prior_grid_wait,
    tma_load,
    tma_store,
)
from tilewright.lang.launch import cluster_index
from tilewright.lang.transaction_barriers import (
    Barriers,
    BarrierStage,
    arrive,
    cluster_arrive,
    cluster_barrier,
    cluster_wait,
    mbarrier,
    peer,
    wait,
)
from tilewright.namespaces import namespace

__all__ = [
    "BarrierStage",
    "Barriers",
    "acquire_map",
    "arrive",
    "bulk_commit",
    "bulk_wait",
    "by_map",
    "cluster_arrive",
    "cluster_barrier",
    "cluster_index",
    "cluster_wait",
    "fence_async",
    "launch_dependents",
    "mbarrier",
    "mma_async",
    "mma_commit",
    "mma_fence",
    "mma_wait",
    "peer",
    "prior_grid_wait",
    "tma_load",
    "tma_store",
    "wait",
]

__getattr__, __dir__ = namespace(__name__, __all__)
