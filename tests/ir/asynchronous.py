"""Kernels with every operation of warp roles, transaction barriers, bulk copies and asynchronous MMA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilewright as tw
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program

MMA = tw.TiledMma(tw.atoms.wgmma(tw.f16, 64), repeats=(1, 1))
SPEC = tw.TensorSpec(tw.f16, 2, 1, (8, 8), (8, 1), 16, False)


def trace(function: Callable[..., Any]) -> Kernel:
    return Program(function, {"A": "M K", "n": int}).trace({"A": SPEC})


def role(A, n):
    with tw.role(warps=4, registers=40):
        tw.warp_barrier()
    with tw.role(warps=8):
        with tw.role(warps=2):
            tw.warp_barrier()
        with tw.role(warps=6):
            pass


def mbarrier(A, n):
    tw.hopper.mbarrier(3, arrivals=2)


def arrive(A, n):
    full = tw.hopper.mbarrier(3, arrivals=1)
    tw.hopper.arrive(full[n % 3], expect_bytes=1024)
    tw.hopper.arrive(full[0], each="warp")
    tw.block_index((4, 4))
    m, k = tw.hopper.cluster_index((2, 2))
    tw.hopper.arrive(full[0], block=(1 - m, k))
    tw.hopper.arrive(full[0], each="warp", block=2)


def wait(A, n):
    tw.hopper.wait(tw.hopper.mbarrier(3, arrivals=1)[1], n // 3 % 2)


def tma_load(A, n):
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.hopper.tma_load(A.tile((64, 64), (n, 0)), tw.shared((64, 64), A.dtype, swizzle=128), full[0])
    tw.block_index((2, 4))
    tw.hopper.cluster_index((2, 4))
    tw.hopper.tma_load(
        A.tile((64, 64), (n, 0)), tw.shared((64, 64), A.dtype, swizzle=128), full[0], multicast=1
    )


def tma_store(A, n):
    tw.hopper.tma_store(tw.shared((64, 64), A.dtype, swizzle=128), A.tile((64, 64), (0, n)))


def bulk_commit(A, n):
    tw.hopper.bulk_commit()


def bulk_wait(A, n):
    tw.hopper.bulk_wait(1)
    tw.hopper.bulk_wait()


def fence_async(A, n):
    tw.hopper.fence_async()


def mma_fence(A, n):
    tw.hopper.mma_fence()


def mma_async(A, n):
    sA, sB = (tw.shared((64, 64), A.dtype, swizzle=128) for _ in range(2))
    acc = tw.accumulator(MMA)
    tw.hopper.mma_async(sA, sB, acc)
    tw.hopper.mma_async(tw.load(sA, tw.operand_a(MMA, 64)), sB, acc)


def mma_commit(A, n):
    tw.hopper.mma_commit()


def mma_wait(A, n):
    tw.hopper.mma_wait(2)


def role_barrier(A, n):
    with tw.role(warps=4):
        tw.role_barrier(1, threads=128)


def peer(A, n):
    tw.block_index((4, 4))
    m, _ = tw.hopper.cluster_index((2, 2))
    held = tw.shared((8, 16), A.dtype)
    tw.copy(A.tile((8, 16), (n, 0)), tw.hopper.peer(held, (1 - m, 0)), threads=32)
    tw.copy(tw.hopper.peer(held[0:4, :], n % 4), held[4:8, :], threads=32)


def cluster_arrive(A, n):
    tw.block_index(2)
    tw.hopper.cluster_index(2)
    tw.hopper.cluster_arrive()


def cluster_wait(A, n):
    tw.block_index(2)
    tw.hopper.cluster_index(2)
    tw.hopper.cluster_wait()


def cluster_barrier(A, n):
    tw.block_index(2)
    tw.hopper.cluster_index(2)
    tw.hopper.cluster_barrier()


def by_map(A, n):
    tw.hopper.by_map(A[0:n, :], tw.workspace((n, 32), "i64"), n, 16)


def acquire_map(A, n):
    tw.hopper.acquire_map(tw.hopper.by_map(A, tw.workspace((n, 16), "i64"), 0, 0).tile((8, 64), (n, 0)))


def prior_grid_wait(A, n):
    tw.hopper.prior_grid_wait()


def launch_dependents(A, n):
    tw.hopper.launch_dependents()


EACH: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(role, mbarrier, arrive, wait, tma_load, tma_store, bulk_commit, bulk_wait, fence_async),
        *(
            mma_fence,
            mma_async,
            mma_commit,
            mma_wait,
            role_barrier,
            cluster_barrier,
            cluster_arrive,
            cluster_wait,
            peer,
            by_map,
            acquire_map,
            prior_grid_wait,
        ),
        launch_dependents,
    )
}
