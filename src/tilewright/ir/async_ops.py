"""Warp roles and asynchronous operations: transaction barriers, bulk groups, asynchronous MMA, clusters.

A role is a region that some of the warps of a block, or of the role around it, execute; every operation in it
is collective over the role's threads.  A transaction barrier (mbarrier) has phases: a phase completes when
all its expected arrivals came and all expected bytes were delivered; `Wait` passes once the phase of the
given parity has completed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

from tilewright.arch import REFERENCE
from tilewright.errors import Violation
from tilewright.ir.copies import AcquireMap, ByMap
from tilewright.ir.mma import TiledMma
from tilewright.ir.op import (
    ADDRESSED,
    BULK,
    CONTROL,
    GLOBAL,
    MULTIPLIES,
    NAMES,
    REGISTERS,
    SHARED,
    THREADS,
    Block,
    Op,
    Ordering,
    Traits,
)
from tilewright.ir.types import BarrierType, Memory, Type, Value
from tilewright.symbolic.nodes import Cond, Int, Sym, bounds

FENCED = ("shared", "global")
"""Memories for which a fence between ordinary and asynchronous accesses exists."""


@dataclass(frozen=True)
class Role(Op):
    """``count`` warps from warp ``first`` on execute the body, each thread with ``registers`` registers.

    Warps are numbered from the first warp of the enclosing role, or of the block.  Sibling roles run in
    parallel.  So do the ``groups`` of one role, each of ``count`` warps: every group executes the body
    separately, and ``index`` is its number.
    """

    name = "role"
    traits = CONTROL
    roles: ClassVar = {"index": "defines"}
    first: int
    count: int
    body: Block
    registers: int | None = None
    groups: int = 1
    index: Sym | None = None

    @cached_property
    def results(self) -> tuple[Any, ...]:
        """The index of the groups, if it has one."""
        return () if self.index is None else (self.index,)

    @property
    def warps(self) -> int:
        """Warps of all groups."""
        return self.count * self.groups


@dataclass(frozen=True)
class MBarrier(Op):
    """``stages`` transaction barriers in shared memory, each with ``arrivals`` arrivals in a phase.

    Other threads may use them after the next `Barrier`.
    """

    name = "mbarrier"
    traits = CONTROL
    roles: ClassVar = {"result": "defines"}
    result: Value
    stages: int
    arrivals: int

    @staticmethod
    def infer(stages: int, arrivals: int) -> Type:
        """Type of the result."""
        return BarrierType(stages, arrivals)

    def verify(self) -> Iterator[Violation]:
        """Require at least one stage and one arrival."""
        if self.stages < 1 or self.arrivals < 1:
            yield self.violation(
                "mbarrier", f"{self.stages} stages of {self.arrivals} arrivals", "both at least 1"
            )


@dataclass(frozen=True)
class Arrive(Op):
    """Arrive at ``barrier[stage]``; first announce ``expect_bytes`` bytes of bulk copies to its phase.

    ``each`` selects the arrivals: one by the ``"role"``'s first thread, or one by the first lane of each
    ``"warp"`` after the warp's lanes came together.  ``block`` is the cluster rank of the block with the
    barrier; None: this block.  After a ``relaxed`` arrival the waiting thread may let bulk copies overwrite
    shared memory, but sees no writes before the arrival.
    """

    name = "arrive"
    traits = CONTROL
    orders = Ordering("cluster", ADDRESSED, half="release")
    roles: ClassVar = {"barrier": "uses"}
    barrier: Value
    stage: Int
    expect_bytes: int = 0
    each: str = "role"
    block: Int | None = None
    relaxed: bool = False

    def verify(self) -> Iterator[Violation]:
        """Allow announced bytes only at the block's own barrier."""
        if self.block is not None and self.expect_bytes:
            yield self.violation(
                "arrive", f"announces {self.expect_bytes} bytes at another block's barrier", "expect_bytes=0"
            )


@dataclass(frozen=True)
class Wait(Op):
    """Wait until the phase of ``parity`` of ``barrier[stage]`` has completed.

    Phases alternate parity from 0 on; waiting for parity 1 of a fresh barrier passes at once.
    """

    name = "wait"
    traits = CONTROL
    orders = Ordering("cluster", ADDRESSED, (THREADS, BULK), half="acquire")
    roles: ClassVar = {"barrier": "uses"}
    barrier: Value
    stage: Int
    parity: Int


@dataclass(frozen=True)
class BulkCommit(Op):
    """The role's first thread closes the group of bulk stores that it issued."""

    name = "bulk_commit"
    traits = CONTROL


@dataclass(frozen=True)
class BulkWait(Op):
    """The role's first thread waits until at most ``pending`` of its groups still read shared memory."""

    name = "bulk_wait"
    traits = CONTROL
    orders = Ordering("thread", (SHARED,), (BULK,))
    pending: int = 0


@dataclass(frozen=True)
class FenceAsync(Op):
    """Order accesses to ``memory`` before the fence before those by bulk copies and MMA after it.

    The accesses before it are those of its thread, and those that barriers made visible to the thread.
    """

    name = "fence_async"
    traits = CONTROL
    orders = Ordering("thread", ADDRESSED, (THREADS,), (BULK, MULTIPLIES))
    memory: str = "shared"

    def verify(self) -> Iterator[Violation]:
        """Require shared or global memory."""
        if self.memory not in FENCED:
            yield self.violation("fence_async", f"a fence of {self.memory} memory", " or ".join(FENCED))


@dataclass(frozen=True)
class MmaFence(Op):
    """Order register accesses of the warpgroup before the asynchronous MMAs that follow."""

    name = "mma_fence"
    traits = CONTROL
    orders = Ordering("role", (REGISTERS,), (THREADS,), (MULTIPLIES,))


@dataclass(frozen=True)
class MmaAsync(Op):
    """``c[m, n] += sum_k a[m, k] * b[n, k]`` in the background, by the warpgroups of the role.

    Args:
        a: (M, K), in shared memory or a fragment distributed as ``mma.a(K)``.
        b: (N, K), in shared memory.
        c: fragment distributed as ``mma.c()``; not to be touched before `MmaWait`.
        mma: an atom of 128 lanes, warpgroups, repeats.
        fresh: if true, the products overwrite ``c``, which need not have been written.
        negative: whether to subtract the products.
    """

    name = "mma_async"
    traits = Traits((REGISTERS, SHARED), (MULTIPLIES,))
    roles: ClassVar = {"a": "reads", "b": "reads", "c": "updates"}
    a: Value
    b: Value
    c: Value
    mma: TiledMma
    fresh: Cond | bool = False
    negative: bool = False


@dataclass(frozen=True)
class MmaCommit(Op):
    """Close the group of asynchronous MMAs issued since the last commit."""

    name = "mma_commit"
    traits = CONTROL


@dataclass(frozen=True)
class MmaWait(Op):
    """Wait until at most ``pending`` groups of asynchronous MMAs are unfinished."""

    name = "mma_wait"
    traits = CONTROL
    orders = Ordering("role", (REGISTERS, SHARED), (MULTIPLIES,))
    pending: int = 0


@dataclass(frozen=True)
class RoleBarrier(Op):
    """The ``threads`` threads at barrier ``number`` wait for each other; orders their accesses."""

    name = "role_barrier"
    traits = CONTROL
    orders = Ordering("role", ADDRESSED)
    number: Int
    threads: int

    def verify(self) -> Iterator[Violation]:
        """Require a number from 1 (0 is the block's barrier) to the hardware maximum, and some threads."""
        most = REFERENCE.named_barriers
        low, high = bounds(self.number)
        if not 1 <= low <= high <= most:
            nearest = f"a number from 1 to {most}"
            yield self.violation("role_barrier", f"barrier number {self.number}", nearest)


@dataclass(frozen=True)
class ClusterBarrier(Op):
    """All threads of all blocks of the cluster wait for each other; orders their accesses."""

    name = "cluster_barrier"
    traits = CONTROL
    orders = Ordering("cluster", ADDRESSED)


@dataclass(frozen=True)
class ClusterArrive(Op):
    """The first half of `ClusterBarrier`: waiting threads see everything before it."""

    name = "cluster_arrive"
    traits = CONTROL
    orders = Ordering("cluster", ADDRESSED, half="release")


@dataclass(frozen=True)
class ClusterWait(Op):
    """The second half of `ClusterBarrier`: wait until all threads of the cluster have arrived."""

    name = "cluster_wait"
    traits = CONTROL
    orders = Ordering("cluster", ADDRESSED, half="acquire")


@dataclass(frozen=True)
class Peer(Op):
    """The same tensor in the shared memory of the block of rank ``block`` of the cluster."""

    name = "peer"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses"}
    result: Value
    source: Value
    block: Int

    @staticmethod
    def infer(source: Value, block: Int) -> Type:
        """Type of the result."""
        return replace(source.tensor, block=block)

    def verify(self) -> Iterator[Violation]:
        """Require a tensor in the block's own shared memory."""
        if self.source.tensor.memory is not Memory.SHARED:
            text = f"{self.source} lies in global memory, which all blocks can access directly"
            yield self.violation("peer", text, str(self.source))
        elif self.source.tensor.block is not None or self.source.tensor.indices:
            text = f"{self.source} is a view of another block's memory, or a gather of its rows"
            yield self.violation("peer", text, f"tw.hopper.peer of {self.source.buffer}, and its view")


@dataclass(frozen=True)
class PriorGridWait(Op):
    """Wait until the grids that this one depends on have finished and their writes are visible."""

    name = "prior_grid_wait"
    traits = CONTROL
    orders = Ordering("grid", (GLOBAL,), half="acquire")


@dataclass(frozen=True)
class LaunchDependents(Op):
    """Let the grids that depend on this one start."""

    name = "launch_dependents"
    traits = CONTROL


ASYNC_OPS: tuple[type[Op], ...] = (
    *(Role, MBarrier, Arrive, Wait, BulkCommit, BulkWait, FenceAsync),
    *(
        MmaFence,
        MmaAsync,
        MmaCommit,
        MmaWait,
        RoleBarrier,
        ClusterBarrier,
        ClusterArrive,
        ClusterWait,
        Peer,
        ByMap,
        AcquireMap,
        PriorGridWait,
        LaunchDependents,
    ),
)
