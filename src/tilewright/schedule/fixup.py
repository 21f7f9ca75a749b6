"""Reductions of partial sums under split K: how they are added up, and who stores the result.

Each part of K belongs to a block, or to a group of warps in a block.  Blocks exchange partial sums through
global memory or within a cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from tilewright.dataflow.nodes import Store
from tilewright.dtypes import u32
from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import let, otherwise, var, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import launcher_memory
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.signals import await_, signal, ticket
from tilewright.lang.tensors import Tensor
from tilewright.lang.transaction_barriers import cluster_barrier, peer
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.needs import SUMS, Buffer, Needs, spare, tickets
from tilewright.schedule.provenance import each_made_by, made_by
from tilewright.schedule.schedule import ReductionTraits, Schedule
from tilewright.schedule.work import Work
from tilewright.threads.distribution import Distribution, Mode

Roles: TypeAlias = Sequence[tuple[Any, Callable[[Index], Iterator[Work]]]]
"""The agents that multiply, each with a function from the number of a group to the tiles of the block."""

FAN = 12
"""Most parts whose sums one block adds up in one round."""

LEAST_SHARE = 8
"""Least number of columns of a block's share of a tile."""

IN_FLIGHT = 64
"""Registers of a thread for parts in flight: several are read before the first of them is added."""

STACKED = 128
"""Like `IN_FLIGHT`, if the sums of the block's own part are no longer in registers."""

REGISTER_BYTES = 4


class SplitReduction(ReductionTraits):
    """How the sums of a tile's parts are added up.  In this base class a tile has one part.

    A subclass declares its needs, the reasons against it, and two steps: one at the end of a part, and one
    after the last tile of a block.
    """

    stores_at_once = True
    """Whether the epilogue stores a tile at the end of its K loop, not after the last tile of the block."""

    prefetches = True
    """Whether each block stores its tile, so that it may fetch a residual during its last step."""

    @classmethod
    def of(cls, schedule: Schedule, split: tuple[Index, Index] | None, totals: int) -> SplitReduction:
        """Return the reduction of the traced kernel, with its memory.

        Args:
            schedule: the schedule.
            split: tiles whose K is split, and the parts of all of them; None: no tile is split.
            totals: number of sums of each element.
        """
        return cls()

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """Needs of the reduction."""
        return Needs()

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Reasons of this reduction to refuse a schedule."""
        return iter(())

    def end_tile(
        self, work: Work, totals: Sequence[Fragment], values: Any, epilogue: Any, store: Store
    ) -> None:
        """Add up or store the sums of a part, at the end of its steps.

        Args:
            work: the part of a tile.
            totals: its sums.
            values: values of the tile and of its slices, for the epilogue.
            epilogue: stores results.
            store: the result whose source line the recorded operations get.
        """
        with made_by("epilogue", store):
            epilogue.store(*values, totals)

    def end_block(self, roles: Roles, epilogue: Any) -> None:
        """Finish after the last tile of a block.

        Args:
            roles: the agents that multiply.
            epilogue: stores results.
        """


class Fixup(SplitReduction):
    """A reduction through global memory.

    Each group of warps that shares a tile has its own sums there, and so has each total.

    Args:
        schedule: how the product is computed.
        tiles: tiles whose K is split.
        parts: parts of all of them.
        totals: sums of each element, one after the other in memory.
    """

    prefetches = False
    keeps_parts = False
    """Whether the memory holds the sums of each part, not only of each tile."""

    takes_tickets = False
    """Whether blocks take tickets; the last ticket belongs to the last block that arrives."""

    zeroed = False
    """Whether the memory of a tile holds zeros before its first part arrives, and again after its last."""

    def __init__(self, schedule: Schedule, tiles: Index, parts: Index, totals: int = 1) -> None:
        self.has_roles, self.totals = schedule.roles != "none", totals
        self.most = schedule.split_k if isinstance(schedule.split_k, int) else schedule.blocks
        self.has_copies = schedule.copies_in_background
        self.groups = schedule.groups if self.has_roles else 1
        self.allocate(schedule, maximum(parts if self.keeps_parts else tiles, 1))
        arrived = launcher_memory((maximum(tiles, 1), self.groups), u32, resets=True)
        self.arrived = arrived

    def allocate(self, schedule: Schedule, kept: Index) -> None:
        """Allocate the memory of the sums.

        Args:
            schedule: how the product is computed.
            kept: parts, or tiles, whose sums it holds.
        """
        self.order = in_order_of_threads(schedule.mma.c())
        shape = (kept * self.totals, self.groups, *self.order.extents)
        partial_sums = launcher_memory(shape, schedule.atom.c_dtype, resets=self.zeroed)
        self.sums = partial_sums

    @classmethod
    def of(cls, schedule: Schedule, split: tuple[Index, Index] | None, totals: int) -> SplitReduction:
        """Global memory for the sums, if any tile is split."""
        return SplitReduction() if split is None else cls(schedule, *split, totals)

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """A ticket for each group that stores for itself; two, if many parts are added up in two rounds."""
        schedule = facts.schedule
        count = schedule.groups if facts.is_bulk else 1
        return Needs(tickets=(tickets(count),) * cls.rounds(schedule)) if cls.takes_tickets else Needs()

    @classmethod
    def rounds(cls, schedule: Schedule) -> int:
        """Most rounds in which parts are added up."""
        return 1

    def end_tile(
        self, work: Work, totals: Sequence[Fragment], values: Any, epilogue: Any, store: Store
    ) -> None:
        """Combine the sums of all parts; the block that then holds the totals stores them."""
        last = var(1)
        with made_by("reduction"):
            self.quiet()
            with when(work.segment.parts > 1):
                last.set(self.meet(work, totals))
        with when(last.get() > 0), made_by("epilogue", store):
            epilogue.store(*values, totals)

    def quiet(self) -> None:
        """Without roles, wait until the ring is idle: its memory may be used for something else now."""
        if not self.has_roles:
            if self.has_copies:
                tw.async_wait(0)
            tw.barrier()

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Combine the sums of a part with those of the other parts.

        Returns:
            1 in the block that then has the sums of all parts in ``totals``, else 0.
        """
        raise NotImplementedError

    def held(self, slot: Index, group: Index, number: int = 0) -> Tensor:
        """(rows, columns): the memory of the sums of a total."""
        return self.order.tile(self.sums[slot * self.totals + number, group])

    def barrier(self, work: Work) -> Index | None:
        """The number of the barrier of a group; None for the whole block."""
        return 1 + work.group if self.has_roles else None

    def counter(self, work: Work) -> Tensor:
        """The number of parts of a tile that have arrived."""
        return self.arrived[work.segment.tile, work.group]

    def take_ticket(self, work: Work, counter: Tensor, parts: Index) -> Index:
        """1 for the last of ``parts`` parts that arrive, else 0."""
        number = ticket(counter, of=parts, barrier=self.barrier(work))
        return maximum(number - (parts - 2), 0)


class WorkspaceSums(Fixup):
    """Each block writes its part; the last of `FAN` neighbours to arrive adds up their parts, in their order.

    If there are more parts, the sums of neighbours are written too, and the last block of all adds them up,
    so that no block reads many parts.  The order of additions follows from the number of parts.
    """

    keeps_parts = True
    takes_tickets = True

    @classmethod
    def rounds(cls, schedule: Schedule) -> int:
        """One round if there are never more than `FAN` parts."""
        return 1 if is_flat(schedule) else 2

    def __init__(self, schedule: Schedule, tiles: Index, parts: Index, totals: int = 1) -> None:
        super().__init__(schedule, tiles, parts, totals)
        self.is_flat = self.rounds(schedule) == 1
        if not self.is_flat:
            arrived_near = launcher_memory((maximum(parts, 1), self.groups), u32, resets=True)
            self.arrived_near = arrived_near

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Write; the last of the neighbours, and the last of all, add up."""
        segment = work.segment
        self._write(work, totals, segment.part)
        if self.is_flat:
            last = self.take_ticket(work, self.counter(work), segment.parts)
            with when(last > 0):
                self._add(work, totals, 0, segment.parts, 1)
            return last
        has_all = var(0)
        first = let(segment.part // FAN * FAN)
        near = let(minimum(segment.parts - first, FAN))
        counter = self.arrived_near[segment.slot(first), work.group]
        with when(self.take_ticket(work, counter, near) > 0):
            self._add(work, totals, first, near, 1)
            has_all.set(1)
            with when(segment.parts > FAN):
                self._have_read()
                self._write(work, totals, first)
                count = let(ceil_div(segment.parts, FAN))
                last = self.take_ticket(work, self.counter(work), count)
                has_all.set(last)
                with when(last > 0):
                    self._add(work, totals, 0, count, FAN)
        return has_all.get()

    def _have_read(self) -> None:
        """Do not wait before the memory of a part is written again: each thread writes where it has read."""

    def _write(self, work: Work, totals: Sequence[Fragment], part: Index) -> None:
        for number, total in enumerate(totals):
            tw.copy(total, self.held(work.segment.slot(part), work.group, number))

    def _add(self, work: Work, totals: Sequence[Fragment], first: Index, count: Index, step: int) -> None:
        """Add the parts ``first``, ``first + step``, ..., ``count`` in number, to the totals."""
        most = min(self.most if step == 1 else -(-self.most // step), FAN)
        segment = work.segment
        for number, total in enumerate(totals):

            def part(i: Index, number: int = number) -> Tensor:
                return self.held(segment.slot(first + i * step), work.group, number)

            add_parts(total, count, most, part)


class ReduceScatter(Fixup):
    """Every block writes its part; then each block adds up all parts of its share of the tile.

    A block waits for the other blocks of its tile, so all of them must run at once.  If a tile has fewer
    slices than parts, some blocks have no share, and do not wait.
    """

    shares_tile, waits, takes_buffers, keeps_parts = True, True, False, True

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """Needs a single total; each block stores a narrow share of the tile."""
        schedule = facts.schedule
        if schedule.is_streamed:
            text = (
                'reduction="reduce-scatter"; with split_k="stream" blocks would wait for each other at '
                "the end of every tile"
            )
            yield "reduction", text, 'reduction="workspace", or split_k="auto"', facts.form.sum
        if schedule.epilogue_class.is_buffered:
            text = (
                f'epilogue="{schedule.epilogue}" with reduction="reduce-scatter", where each block '
                "stores only a narrow share of a tile"
            )
            yield "epilogue", text, 'epilogue="direct"', facts.form.stores[0]
        yield from _one_total(facts)

    def end_tile(
        self, work: Work, totals: Sequence[Fragment], values: Any, epilogue: Any, store: Store
    ) -> None:
        """Store the block's share of the tile, or all of it if K has one part."""
        [total] = totals
        segment, shares = work.segment, epilogue.shares
        with when(segment.parts > 1):
            barrier, counter = self.barrier(work), self.counter(work)
            with made_by("reduction"):
                self.quiet()
                tw.copy(total, self.held(segment.slot(segment.part), work.group))
                signal(counter, barrier=barrier)
            with when(segment.part < shares):  # the first blocks have the shares
                with made_by("reduction"):
                    await_(counter, segment.parts, barrier=barrier)
                    # Blocks that have waited count too, and the last of them resets the counter.
                    signal(counter, of=segment.parts + minimum(segment.parts, shares), barrier=barrier)
                with made_by("epilogue", store):
                    epilogue.store_share(work, segment.parts, partial(self.total, work))
        with otherwise(), made_by("epilogue", store):
            epilogue.store(*epilogue.slices(work), (total,))

    def total(self, work: Work, spread: Distribution, number: Index = 0) -> Fragment:
        """The sums of all parts, added up in their order, for some columns of a group's tile.

        Args:
            work: the tile.
            spread: threads that hold the elements of these columns.
            number: index of the slice among the tile's equal slices.
        """
        with made_by("reduction"):
            total, segment = tw.fragment(spread, self.sums.dtype), work.segment
            columns, slot = total.shape[1], segment.slot(0)

            def stack(first: Index, count: Index) -> Tensor:
                tiles = self.order.stack(self.sums[slot + first : slot + first + count, work.group])
                slices = tiles.unmerge(2, (int(tiles.shape[2]) // columns, columns))
                return slices[:, :, number].merge(1)

            add_stack(total, segment.parts, self.most, stack)
        return total


class TurnstileSums(Fixup):
    """Each block waits for the block of the previous part, adds its own part, and passes the sums on."""

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """A reason against ``split_k="stream"``, whose blocks would run one after the other."""
        if facts.schedule.is_streamed:
            text = 'with split_k="stream" the first part of a share is the one that other blocks await'
            yield "reduction", f'reduction="turnstile"; {text}', 'reduction="workspace"', facts.form.sum

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Add the sums of the earlier parts; return whether this block has the last part, and so all sums."""
        segment, barrier, counter = work.segment, self.barrier(work), self.counter(work)
        held = [(total, self.held(segment.tile, work.group, at)) for at, total in enumerate(totals)]
        await_(counter, segment.part, barrier=barrier)
        with when(segment.part > 0):
            for total, sums in held:
                total.assign(total + tw.load(sums, total))
        with when(segment.part < segment.parts - 1):
            for total, sums in held:
                tw.copy(total, sums)
        signal(counter, of=segment.parts, barrier=barrier)
        return maximum(segment.part - (segment.parts - 2), 0)


class AtomicSums(Fixup):
    """Each block adds its part to zeros in memory; the last one to arrive reads the sums and writes zeros."""

    takes_tickets, zeroed, is_ordered = True, True, False

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Add; the last block takes the sums."""
        held = [(total, self.held(work.segment.tile, work.group, at)) for at, total in enumerate(totals)]
        for total, sums in held:
            tw.copy(total, sums, reduction="add")
        last = self.take_ticket(work, self.counter(work), work.segment.parts)
        with when(last > 0):
            for total, sums in held:
                tw.copy(sums, total)
                tw.copy(tw.fragment(total.distribution, total.dtype, 0, name="zeros"), sums)
        return last


class SharedSums(SplitReduction):
    """A reduction through shared memory, after the last tile of a block.

    Args:
        schedule: how the product is computed.
    """

    stores_at_once, prefetches = False, False

    @classmethod
    def of(cls, schedule: Schedule, split: tuple[Index, Index] | None, totals: int) -> SplitReduction:
        """Return a reduction through shared memory."""
        return cls(schedule)

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        groups = schedule.groups if schedule.roles != "none" else schedule.along_k
        self.sums = sums_of(schedule.mma, groups).allocate()

    def end_tile(
        self, work: Work, totals: Sequence[Fragment], values: Any, epilogue: Any, store: Store
    ) -> None:
        """Write the sums of a part to shared memory, where the others read them."""
        [total] = totals
        with made_by("reduction"):
            tw.copy(total, self.sums[work.group])

    def end_block(self, roles: Roles, epilogue: Any) -> None:
        """Wait for all parts, and store."""
        self.meet()
        store = epilogue.form.stores[0]
        for agent, items in roles:
            with made_by("roles"), agent.role(again=True) as group:
                for work in each_made_by("blocks", items(group), store):
                    with made_by("epilogue", store):
                        self.store(work, epilogue)
                with made_by("epilogue", store):
                    epilogue.drain()

    def meet(self) -> None:
        """Wait for all parts."""
        raise NotImplementedError

    def store(self, work: Work, epilogue: Any) -> None:
        """Add up the sums of a tile, and store them."""
        raise NotImplementedError


class ClusterSums(SharedSums):
    """A reduction in a cluster: the sums of a block are in its shared memory, where all blocks read them.

    All warps of the cluster wait at a barrier twice: when all sums are written, and when all are read.
    Groups of warps that share a tile have their own sums.
    """

    in_cluster, shares_tile = True, True

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """A buffer for the sums of each group that stores for itself."""
        return Needs((sums_of(facts.mma, facts.schedule.storing_groups),))

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """The cluster has a block for each part, and its blocks meet outside of roles."""
        schedule, product = facts.schedule, facts.form.sum
        yield from _one_total(facts)
        if isinstance(schedule.split_k, str):
            text = (
                f'split_k="{schedule.split_k}" with reduction="cluster", which needs a fixed number of parts'
            )
            yield "reduction", text, 'split_k=4 and blocks=0, or reduction="workspace"', product
        elif schedule.split_k > MOST_OF_A_CLUSTER:
            most = f"a cluster has at most {MOST_OF_A_CLUSTER} blocks"
            text = f'split_k={schedule.split_k} with reduction="cluster"; {most}'
            yield "split_k", text, f'split_k={MOST_OF_A_CLUSTER}, or reduction="workspace"', product
        if facts.is_bulk and schedule.registers:
            text = (
                f'registers={schedule.registers} with reduction="cluster"; after the main loop the warps '
                "pass a barrier of all roles, and registers cannot be redistributed there"
            )
            yield "registers", text, "registers=0", product

    def end_block(self, roles: Roles, epilogue: Any) -> None:
        """Each block stores its share; no block ends while another one reads its sums."""
        super().end_block(roles, epilogue)
        self.meet()

    def meet(self) -> None:
        """Wait for all blocks of the cluster."""
        with made_by("reduction"):
            cluster_barrier()

    def store(self, work: Work, epilogue: Any) -> None:
        """Add up the block's share of a tile, and store it."""
        blocks = self.schedule.split_k
        assert isinstance(blocks, int), "legality requires an integer split_k"

        def total(spread: Distribution, number: Index) -> Fragment:
            """Return the sums of a slice of columns over all blocks; slices of a tile are equally wide."""
            with made_by("reduction"):
                total, columns = tw.fragment(spread, self.sums.dtype), spread.shape[1]

                def part(i: Index) -> Tensor:
                    whole: Tensor = peer(self.sums, i)[work.group]
                    return whole.unmerge(1, (int(whole.shape[1]) // columns, columns))[:, number]

                add_parts(total, blocks, blocks, part)
            return total

        epilogue.store_share(work, blocks, total)


class GroupSums(SharedSums):
    """A reduction in a block: groups of warps write the sums of their parts of K; the first group stores."""

    @classmethod
    def needs(cls, facts: ScheduleFacts) -> Needs:
        """A buffer for the sums of each group."""
        return Needs((sums_of(facts.mma, facts.schedule.along_k),))

    def meet(self) -> None:
        """Wait for all groups."""
        with made_by("reduction"):
            tw.barrier()

    def store(self, work: Work, epilogue: Any) -> None:
        """Add up the sums of all groups, and store them."""
        slices = epilogue.slices(work)
        with made_by("reduction"):
            total, groups = tw.fragment(self.schedule.mma.c(), self.sums.dtype), self.schedule.groups
            add_parts(total, groups, groups, lambda i: self.sums[i])
        epilogue.store(*slices, (total,))


def sums_of(mma: TiledMma, groups: int) -> Buffer:
    """The tensor in shared memory for the sums of groups of warps, with padded rows."""
    (rows, columns, _), kind = mma.tile, mma.atom.c_dtype
    stride = columns + spare(kind, along_rows=False)
    return Buffer("partial_sums", SUMS, (groups, rows, columns), kind, (rows * stride, stride, 1))


def _one_total(facts: ScheduleFacts) -> Reasons:
    """Shares of a tile need one sum for each element."""
    if len(facts.form.totals) > 1:
        several = f"{len(facts.form.totals)} sums for each element"
        text = f'reduction="{facts.schedule.reduction}" with {several}'
        yield "reduction", text, 'reduction="workspace"', facts.form.sum


MOST_OF_A_CLUSTER = 16
"""Most blocks of a cluster on any machine; the rules of a machine may allow fewer."""


def is_flat(schedule: Schedule) -> bool:
    """Whether there are never more than `FAN` parts, so that one round adds them up."""
    return isinstance(schedule.split_k, int) and schedule.split_k <= FAN


# ---------------------------------------------------------------- sums of parts, in their order


def add_parts(total: Fragment, count: Index, most: int, part: Callable[[Index], Tensor]) -> None:
    """Add up ``count`` parts, in their order; several are read before the first of them is added.

    The reads are in a branch, so that the compiler cannot save registers by additions between them.

    Args:
        total: the result.
        count: number of parts.
        most: largest possible number of parts.
        part: number of a part -> its memory.
    """
    at_once = parts_at_once(count, min(IN_FLIGHT // _registers(total), most))
    is_whole = isinstance(count, int) and at_once == count
    tw.fill(total, 0)
    for turn in traced_range(ceil_div(count, at_once)):
        first = turn * at_once
        held = [tw.fragment(total.distribution, total.dtype, 0, name="part") for _ in range(at_once)]
        with when(first + at_once <= count):
            for i in range(at_once):
                tw.copy(part(first + i), held[i])
        if not is_whole:
            with otherwise():
                for i in range(at_once - 1):
                    with when(first + i < count):
                        tw.copy(part(first + i), held[i])
        for i in range(at_once):
            total.assign(total + held[i])


def add_stack(total: Fragment, count: Index, most: int, stack: Callable[[Index, Index], Tensor]) -> None:
    """Add up ``count`` parts that are neighbours in memory, in their order; one copy reads several.

    Args:
        total: the result.
        count: number of parts.
        most: largest possible number of parts.
        stack: (first part, number of parts) -> their memory, (rows, columns of one part after the other).
    """
    spread, columns = total.distribution, total.shape[1]
    at_once = parts_at_once(count, min(STACKED // _registers(total), most))
    several = Mode(at_once, 1, columns)
    wide = Distribution((spread.shape[0], at_once * columns), spread.threads, (*spread.values, several))
    tw.fill(total, 0)
    for turn in traced_range(ceil_div(count, at_once)):
        first = turn * at_once
        held = tw.fragment(wide, total.dtype, name="parts")
        with when(first + at_once <= count):
            tw.copy(stack(first, at_once), held)
        with otherwise():
            tw.copy(stack(first, count - first).tile(wide.shape, (0, 0)), held)
        for i in range(at_once):
            total.assign(total + held[:, i * columns : (i + 1) * columns])


def _registers(total: Fragment) -> int:
    """Registers of each thread for the values of a total."""
    return max(total.distribution.size_values * total.dtype.bytes // REGISTER_BYTES, 1)


def parts_at_once(count: Index, limit: int) -> int:
    """Number of parts that are read at once: all if their number is known and small, or a power of 2.

    Example:
        >>> parts_at_once(7, 16), parts_at_once(7, 4), parts_at_once(7, 0)
        (7, 4, 1)
    """
    if isinstance(count, int) and count <= limit:
        return count
    return next((size for size in (32, 16, 8, 4, 2) if size <= limit), 1)


# ---------------------------------------------------------------- tiles in the order of threads


@dataclass(frozen=True)
class ThreadOrder:
    """Layout of a tile in memory in which the elements of neighbouring threads are neighbours.

    Args:
        extents: extents of the memory, the fastest last.
        rows: dimensions of the memory that make up the rows of the tile, the slowest first.
        columns: dimensions that make up the columns.
    """

    extents: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    def tile(self, memory: Tensor) -> Tensor:
        """The memory of a tile, as (rows, columns)."""
        return memory if len(self.extents) == 2 else self._ordered(memory, ())

    def stack(self, memory: Tensor) -> Tensor:
        """The memory of several tiles, one after the other, as (rows, tile, columns)."""
        return memory.permute(1, 0, 2) if len(self.extents) == 2 else self._ordered(memory, (0,))

    def _ordered(self, memory: Tensor, between: tuple[int, ...]) -> Tensor:
        """The memory as (rows, leading dimensions, columns)."""
        leading = len(between)
        rows, columns = ([leading + dim for dim in dims] for dims in (self.rows, self.columns))
        ordered = memory.permute(*rows, *between, *columns)
        if len(rows) > 1:
            ordered = ordered.merge(0, len(rows))
        return ordered.merge(1 + leading, len(columns)) if len(columns) > 1 else ordered


def in_order_of_threads(spread: Distribution) -> ThreadOrder:
    """The order for a tile in registers; row-major for a single thread, or if threads hold copies.

    Args:
        spread: threads that hold the elements.

    Example:
        Each of 32 threads holds two neighbours of a row of a 16 x 8 accumulator, and two eight rows below.
        Memory has first the upper half of the rows, thread by thread, then the lower half:

        >>> from tilewright.public import atoms
        >>> in_order_of_threads(atoms.MMA_F16.c)
        ThreadOrder(extents=(2, 8, 4, 2), rows=(0, 1), columns=(2, 3))
    """
    plain = ThreadOrder(spread.shape, (0,), (1,))
    values, threads = [*spread.values], [*spread.threads]
    if spread.size_threads == 1 or spread.copies > 1:
        return plain
    first = [values.pop(0)] if values and values[0].dim == 1 and values[0].step == 1 else []
    modes = [mode for mode in (*reversed(values), *reversed(threads), *first) if mode.extent > 1]
    found = []
    for dim in (0, 1):
        digits = [at for at, mode in enumerate(modes) if mode.dim == dim]
        digits.sort(key=lambda at: -modes[at].step)
        # The modes must be the digits of a number that goes through the dimension once.
        count = 1
        for at in reversed(digits):
            if modes[at].step != count:
                return plain
            count *= modes[at].extent
        if not digits or count != spread.shape[dim]:
            return plain
        found.append(tuple(digits))
    return ThreadOrder(tuple(mode.extent for mode in modes), *found)
