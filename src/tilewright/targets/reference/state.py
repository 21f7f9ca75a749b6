"""The state of a running kernel: warps with registers and integers, blocks with shared memory, clusters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, TypeAlias

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import FENCED, Arrive, MBarrier, MmaAsync
from tilewright.ir.clusters import cluster_blocks
from tilewright.ir.kernel import Kernel, layout_shared
from tilewright.ir.ops import Copy, Op, Shared
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Cond, Int, Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.reference.agents import Actor, Clocks, Message, Proxy, no_clocks
from tilewright.targets.reference.barriers import NamedBarrier, TransactionBarrier
from tilewright.targets.reference.memory import Storage, new_buffer, overlay
from tilewright.targets.reference.numbers import NUMBERS, Numbers
from tilewright.targets.reference.schedules import Skeleton, SyncStep


@dataclass(frozen=True)
class Pause:
    """A point at which a warp waits; operations yield it.

    Args:
        op: the operation.
        ready: returns whether the warp can go on.
        state: describes the awaited event; None if the operation shows it.
        is_last: whether all other runnable warps go on first, because any of them may end the wait.
    """

    op: Op
    ready: Callable[[], bool]
    state: Callable[[], str] | None = None
    is_last: bool = False


Steps: TypeAlias = Iterator[Pause]


@dataclass(frozen=True)
class Slots:
    """A block's slots in its cluster's clocks: four agents of every warp, MMA units, barrier stages."""

    warps: int
    stages: int
    first: int = 0

    @property
    def copies(self) -> int:
        """Slot of the asynchronous copies of warp 0."""
        return self.first + self.warps

    @property
    def stores(self) -> int:
        """Slot of the reads of warp 0's bulk stores."""
        return self.first + 2 * self.warps

    @property
    def landings(self) -> int:
        """Slot of the writes of warp 0's bulk stores."""
        return self.first + 3 * self.warps

    @property
    def units(self) -> int:
        """Slot of the MMA unit of the warpgroup that begins with warp 0."""
        return self.first + 4 * self.warps

    @property
    def barriers(self) -> int:
        """Slot of the first stage of the first transaction barrier."""
        return self.first + 5 * self.warps

    @property
    def end(self) -> int:
        """The first slot of the next block."""
        return self.barriers + self.stages

    @property
    def homes(self) -> list[int]:
        """For the agent of each slot, the slot of the warp that it works for."""
        own = list(range(self.first, self.copies))
        return [*own * 4, *range(self.units, self.end)]


@dataclass
class WarpRegisters:
    """A fragment's values in the lanes of one warp: arrays of shape (lanes, values).

    ``ahead`` has results of asynchronous MMAs for which the warp has not waited.  ``fill`` is the last number
    that all threads wrote to all registers, also threads outside of the distribution, or None.
    """

    values: Array
    written: Array
    ahead: Array | None = None
    fill: Any = None

    @staticmethod
    def blank(dtype: DType, shape: tuple[int, int], numbers: Numbers) -> WarpRegisters:
        """Return registers that nothing has written."""
        return WarpRegisters(numbers.poison(dtype, shape), np.zeros(shape, bool))

    def of_lanes(self, dtype: DType, lanes: int, numbers: Numbers) -> WarpRegisters:
        """Return the registers of the first ``lanes`` lanes; added lanes hold the fill, if it is known.

        A role renumbers its threads, so its warps may hold other parts of a fragment than before.
        """
        had = self.values.shape[0]
        if had == lanes:
            return self
        made = WarpRegisters.blank(dtype, (lanes, self.values.shape[1]), numbers)
        made.values[:had], made.written[:had] = self.values[:lanes], self.written[:lanes]
        if self.fill is not None:
            made.values[had:], made.written[had:] = self.fill, True
        return made


@dataclass(frozen=True)
class Padded:
    """A sum that includes elements beyond the edge of an array, which the next operation may subtract.

    Args:
        share: sum of the elements beyond the edge, for each result.
        sizes: sum of the absolute values of these elements.
        mixed: mask of the results with elements of both kinds.
        extent: number of elements in the sum of each result.
        report: reports the finding; None if a lane of another warp does.
    """

    share: Array
    sizes: Array
    mixed: Array
    extent: int
    report: Callable[[], None] | None


@dataclass(frozen=True)
class Delivery:
    """The elements that an asynchronous copy writes when its group completes, with marks beyond an edge."""

    group: int
    buffer: Storage
    at: Array
    values: Array
    beyond: Array | None = None


@dataclass(frozen=True)
class RegisterUse:
    """Registers that an asynchronous MMA uses until its group has been waited for."""

    value: Value
    group: int
    op: Op
    agent: Actor


@dataclass(frozen=True, eq=False)
class BulkStore:
    """A box that a bulk store reads and writes when its group has been waited for."""

    group: int
    op: Copy
    source: Storage
    at: Array
    target: Storage
    to: Array


@dataclass(eq=False)
class Warp:
    """One warp: its registers and integers, its agent, and the agents of its asynchronous operations.

    Args:
        index: its number in the block.
        block: its block.
        agent: the warp as an agent.
        copies: its asynchronous copies; their time counts the groups from 1, the open one last.
        stores: the reads of its bulk stores; their time counts the groups likewise.
        landings: the writes of its bulk stores.
        env: the values of symbols.
        rank: its number in its role.
        mates: the number of warps of its role.
        fenced: fragments that no operation has touched since the last `mma_fence`.
        flights: fragments that asynchronous MMAs use.
        mma_group: the number of the open group of asynchronous MMAs, from 1.
        waiting: its present wait; None while it runs.
        executes: its present operation.
        beyond: marks of elements beyond the edge of an array, for each fragment that has some.
        replaced: marks of elements for which `tw.where` chose a number in place of one beyond an edge.
        padded: sums that contain elements beyond an edge, until their first use.
        loaded: marks of elements beyond an edge in its last load, or None.
        acquired: the tensor maps that it has acquired: the table of each, and the map's offset in it.
        steps: number of steps of each kind at each place, including omitted loop iterations.
        left_out: number of these steps in omitted iterations.
    """

    index: int
    block: BlockState
    agent: Actor
    copies: Actor
    stores: Actor
    landings: Actor
    env: dict[Sym, int]
    rank: int = 0
    mates: int = 1
    registers: dict[Value, WarpRegisters] = field(default_factory=dict)
    scalars: dict[Value, Any] = field(default_factory=dict)
    variables: dict[Value, int] = field(default_factory=dict)
    deliveries: list[Delivery] = field(default_factory=list)
    bulk: list[BulkStore] = field(default_factory=list)
    fenced: set[Value] = field(default_factory=set)
    flights: list[RegisterUse] = field(default_factory=list)
    mma_group: int = 1
    waiting: Pause | None = None
    executes: Op | None = None
    beyond: dict[Value, Array] = field(default_factory=dict)
    replaced: dict[Value, Array] = field(default_factory=dict)
    padded: dict[Value, Padded] = field(default_factory=dict)
    loaded: Array | None = None
    acquired: set[tuple[Value, int]] = field(default_factory=set)
    steps: Counter[tuple[str, Hashable]] = field(default_factory=Counter)
    left_out: Counter[tuple[str, Hashable]] = field(default_factory=Counter)

    def note(self, kind: str, place: Hashable, amount: int, phase: int, op: Op) -> None:
        """Record a step for the replay in other schedules, see `SyncStep`."""
        self.steps[kind, place] += 1
        skeleton = self.block.cluster.skeleton
        if skeleton is not None:
            skeleton.note(self, SyncStep(kind, place, amount, phase, op))

    def missing_wait(self, use: RegisterUse) -> str:
        """Name the operation that completes the group of an asynchronous MMA, and its verb, for messages."""
        return "mma_wait covers" if use.group < self.mma_group else "mma_commit closes"

    def int(self, value: Int) -> int:
        """Return the present value of an integer."""
        return int(evaluate(value, self.env))

    def cond(self, value: Cond) -> bool:
        """Return the present value of a condition."""
        return bool(evaluate(value, self.env))


@dataclass(eq=False)
class Issue:
    """One asynchronous MMA of a warpgroup; it begins when all its warps have issued it.

    Args:
        op: the operation.
        group: number of its group.
        agent: the MMA as an agent; its clocks have the common knowledge of all warps at their issue.
        origin: the first row and column of the sums.
        is_fresh: whether the products replace the sums.
        a: the buffer of A and its element offsets, of shape (rows, depth); None if A is in registers.
        b: the buffer of B and its element offsets, of shape (columns, depth).
        parts: for each warp that issued it, its accumulator.
        waited: the warps that waited for it.
        is_done: whether it has been executed.
    """

    op: MmaAsync
    group: int
    agent: Actor
    origin: tuple[int, int]
    is_fresh: bool
    a: tuple[Storage, Array] | None
    b: tuple[Storage, Array]
    parts: dict[Warp, WarpRegisters] = field(default_factory=dict)
    waited: set[Warp] = field(default_factory=set)
    is_done: bool = False


@dataclass(eq=False)
class MmaUnit:
    """The asynchronous MMAs of one warpgroup.

    Args:
        slot: its slot in clocks.
        size: number of warps that issue an MMA together.
        issues: MMAs that not all of its warps have waited for, by their number in the order of issue.
        issued: number of MMAs that each warp has issued.
    """

    slot: int
    size: int
    issues: dict[int, Issue] = field(default_factory=dict)
    issued: dict[Warp, int] = field(default_factory=dict)


@dataclass(eq=False)
class Gathering:
    """The barrier of all warps of a block or cluster.

    Args:
        place: ``"block"`` or ``"cluster"``.
        warps: the warps that must arrive.
        arrived: the warps that have arrived, each with its operation.
        opened: number of times that it has opened.
        halves: the warps that have arrived and not yet waited, each with the phase and its operation.
        told: the message of the warps that have arrived.
        heard: the complete message of the last opening.
    """

    place: str
    warps: list[Warp] = field(default_factory=list)
    arrived: dict[Warp, Op] = field(default_factory=dict)
    opened: int = 0
    halves: dict[Warp, tuple[int, Op]] = field(default_factory=dict)
    told: Message | None = None
    heard: Message | None = None


@dataclass(frozen=True)
class Visit:
    """An access to another block's barrier or shared memory.  That block must not end before it.

    Args:
        op: the operation.
        time: the time on the clock of the accessing agent.
        action: ``"arrival"``, ``"read"`` or ``"write"``.
        name: name of the barrier or tensor.
    """

    op: Op
    time: int
    action: str
    name: str


@dataclass(eq=False)
class ClusterState:
    """The blocks that run together, by their rank; one block without clusters.

    ``skeleton`` records the steps of their warps if other schedules are to be tried.
    """

    blocks: list[BlockState] = field(default_factory=list)
    barrier: Gathering = field(default_factory=lambda: Gathering("cluster"))
    skeleton: Skeleton | None = None

    def name(self, block: BlockState) -> str:
        """Name a block in messages, e.g. ``" of block (1, 0)"``; empty if there is only one block."""
        return f" of block {block.index}" if len(self.blocks) > 1 else ""


@dataclass(eq=False)
class BlockState:
    """One block: its shared memory, its warps, its barriers, its asynchronous units.

    Args:
        index: its index in the grid, x first.
        rank: its rank in its cluster.
        cluster: its cluster.
        slots: the slots of its agents in the clocks of the cluster.
        buffers: global memory and its shared memory.
        visits: the last time that every agent of another block reached each of its barriers and tensors.
    """

    index: tuple[int, ...]
    rank: int
    cluster: ClusterState
    slots: Slots
    buffers: dict[Value, Storage]
    warps: list[Warp] = field(default_factory=list)
    barrier: Gathering = field(default_factory=lambda: Gathering("block"))
    visits: dict[tuple[Actor, TransactionBarrier | Storage], Visit] = field(default_factory=dict)
    mbarriers: dict[Value, list[TransactionBarrier]] = field(default_factory=dict)
    named: dict[int, NamedBarrier] = field(default_factory=dict)
    units: dict[int, MmaUnit] = field(default_factory=dict)


# ---------------------------------------------------------------- making clusters


RECORDED = 1
"""Number of clusters for which other schedules are tried."""

STORE_WAIT = "no bulk_wait covers its group"
STORE_SHOWN = "bulk_wait is the first thread's; a role_barrier after it shows others"
LANDING_WAIT = "bulk_wait waits until shared memory has been read; no wait in a kernel covers the writes"


class Population:
    """Makes the clusters of a kernel; without clusters, of one block each.

    Args:
        kernel: the kernel.
        lanes: threads per warp.
        check: whether memory records its accesses.
        numbers: the arithmetic of numbers.
    """

    def __init__(self, kernel: Kernel, lanes: int, check: bool, numbers: Numbers = NUMBERS) -> None:
        ops = list(kernel.walk())
        self._check, self._numbers = check, numbers
        self._shared = [op for op in ops if isinstance(op, Shared)]
        self._mbarriers = [op for op in ops if isinstance(op, MBarrier)]
        self._arrivals = [op for op in ops if isinstance(op, Arrive)]
        self._addresses = layout_shared(kernel)[0]
        self._splits = kernel.splits_cluster_barriers
        self._in_cluster = bool(kernel.cluster)
        self._recorded = 0
        self.groups: Iterator[int] = count(1)
        """Numbers for the next groups of agents."""
        one = Slots(-(-kernel.threads // lanes), sum(op.stages for op in self._mbarriers))
        self._slots = [replace(one, first=rank * one.end) for rank in range(cluster_blocks(kernel.cluster))]

    @property
    def homes(self) -> list[int]:
        """For the agent of each slot, the slot of the warp that it works for."""
        return [home for slots in self._slots for home in slots.homes]

    @property
    def agents(self) -> int:
        """The number of slots."""
        return self._slots[-1].end

    def cluster(
        self,
        members: Sequence[tuple[tuple[int, ...], Mapping[Sym, int]]],
        buffers: Mapping[Value, Storage],
        scalars: Mapping[Value, Any],
    ) -> ClusterState:
        """Return a cluster that has not begun.

        Args:
            members: each block's index and the values of its symbols, by rank.
            buffers: global memory.
            scalars: the caller's numbers.
        """
        cluster = ClusterState()
        group = next(self.groups)
        for rank, (index, env) in enumerate(members):
            shared = {
                op.result: new_buffer(
                    op.result, op.elems, self._addresses[op.result], self._check, self._numbers
                )
                for op in self._shared
            }
            if self._numbers.in_bytes:
                overlay(shared.values())
            block = BlockState(index, rank, cluster, self._slots[rank], {**buffers, **shared})
            slot = block.slots.barriers
            for op in self._mbarriers:
                expected = [each.expect_bytes for each in self._arrivals if each.barrier is op.result]
                made = block.mbarriers[op.result] = []
                for stage in range(op.stages):
                    place = (f"{op.result}[{stage}]", stage, slot + stage, max(expected, default=0))
                    told, heard = (Message.of(self.agents) for _ in range(2))
                    made.append(TransactionBarrier(*place, op.arrivals, told, heard))
                slot += op.stages
            warps = range(block.slots.warps)
            block.warps += (self._warp(block, number, group, scalars, env) for number in warps)
            block.barrier.warps += block.warps
            cluster.blocks.append(block)
            cluster.barrier.warps += block.warps
        # Other schedules of warps that go on between the halves of a barrier are not tried.
        if self._check and self._mbarriers and not self._splits and self._recorded < RECORDED:
            self._recorded += 1
            stages = [stage for b in cluster.blocks for each in b.mbarriers.values() for stage in each]
            cluster.skeleton = Skeleton(arrivals={stage.slot: stage.arrivals for stage in stages})
        return cluster

    def _warp(
        self, block: BlockState, number: int, group: int, scalars: Mapping[Value, Any], env: Mapping[Sym, int]
    ) -> Warp:
        slots = block.slots
        every = no_clocks(self.agents)
        clocks, *others = (Clocks(known) for known in every)
        issues = dict(zip(FENCED, others, strict=True))
        order = np.zeros(self.agents, np.int64)
        slot = slots.first + number
        own = (slot, block.index, number)
        rank = block.rank if self._in_cluster else None
        agent = Actor(slot, *own, "warp", clocks, issues=issues, every=every, order=order)
        copies = Actor(slots.copies + number, *own, "asynchronous copy", clocks)
        bulk = (*own, "TMA store", clocks, Proxy.ASYNC)
        stores = Actor(slots.stores + number, *bulk, issues=issues, issuer=clocks)
        stores.missing, stores.shown = STORE_WAIT, STORE_SHOWN
        landings = Actor(slots.landings + number, *bulk, issues=issues, issuer=clocks, missing=LANDING_WAIT)
        for each in (agent, copies, stores, landings):
            each.rank, each.group = rank, group
        warp = Warp(number, block, agent, copies, stores, landings, dict(env), number, slots.warps)
        warp.scalars = dict(scalars)
        return warp
