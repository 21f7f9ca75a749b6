"""Where K is split: how the sums of a tile's parts come together, and who goes on with all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from tilewright.dtypes import u32
from tilewright.lang import operations as tw
from tilewright.lang.control import let, var, when
from tilewright.lang.fragments import Fragment
from tilewright.lang.launch import launcher_memory
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.signals import await_, signal, ticket
from tilewright.lang.tensors import Tensor
from tilewright.schedule.adding import add_parts, add_stack
from tilewright.schedule.partition import Work
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.thread_order import in_order_of_threads
from tilewright.threads.distribution import Distribution

FAN = 12
"""Parts whose sums one block adds up."""

LEAST_SHARE = 8
"""Columns of a tile that a block goes on with, at least."""


class Fixup:
    """What the ways through global memory have in common.

    Groups of warps that share a tile have sums of their own, and so has each total.

    Args:
        schedule: how the product is computed.
        tiles: tiles whose K is split.
        parts: parts of all of them.
        totals: how many sums each element has, which lie one after the other.
    """

    zeroed = False
    """Whether the memory of a tile holds zeros when its first part comes, and again after its last."""

    def __init__(self, schedule: Schedule, tiles: Index, parts: Index, totals: int = 1) -> None:
        self.has_roles, self.most = schedule.roles != "none", most_parts(schedule)
        self.totals = totals
        self.has_copies = schedule.staging in ("cp_async", "fragments")
        groups = schedule.groups if self.has_roles else 1
        kept = maximum(self.kept(tiles, parts), 1) * totals
        self.order = in_order_of_threads(schedule.mma.c())
        shape = (kept, groups, *self.order.extents)
        partial_sums = launcher_memory(shape, schedule.atom.c_dtype, resets=self.zeroed)
        arrived = launcher_memory((maximum(tiles, 1), groups), u32, resets=True)
        self.sums, self.arrived = partial_sums, arrived
        self.groups = groups

    def kept(self, tiles: Index, parts: Index) -> Index:
        """Of how many tiles there is memory for the sums."""
        raise NotImplementedError

    def quiet(self) -> None:
        """Without roles: the ring is still, for what comes now may lie where it lay."""
        if not self.has_roles:
            if self.has_copies:
                tw.async_wait(0)
            tw.barrier()

    @contextmanager
    def completed(self, work: Work, *totals: Fragment) -> Iterator[None]:
        """The with block is executed by those who have the sums of all parts, in ``totals``."""
        last = var(1)
        with made_by("reduction"):
            self.quiet()
            with when(work.segment.parts > 1):
                last.set(self.meet(work, totals))
        with when(last.get() > 0):
            yield

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Bring the sums of a part to the others.

        Returns:
            1 for those who then have all of them in ``totals``, else 0.
        """
        raise NotImplementedError

    def held(self, slot: Index, group: Index, number: int = 0) -> Tensor:
        """(rows, columns): the memory of the sums of a total."""
        return self.order.tile(self.sums[slot * self.totals + number, group])

    def barrier(self, work: Work) -> Index | None:
        """The number of the barrier at which a group meets."""
        return 1 + work.group if self.has_roles else None

    def counter(self, work: Work) -> Tensor:
        """How many parts of a tile have come."""
        return self.arrived[work.segment.tile, work.group]

    def take_ticket(self, work: Work, counter: Tensor, parts: Index) -> Index:
        """1 for the part that comes last of so many, else 0."""
        number = ticket(counter, of=parts, barrier=self.barrier(work))
        return maximum(number - (parts - 2), 0)


class Workspace(Fixup):
    """Every part is written; who comes last of `FAN` neighbours adds them up, in their order.

    Of many parts, what those have added up is written in turn, and added up by who comes last of them, so
    that nobody reads more than some of them.  The order of additions follows from the number of parts.
    """

    def __init__(self, schedule: Schedule, tiles: Index, parts: Index, totals: int = 1) -> None:
        super().__init__(schedule, tiles, parts, totals)
        self.is_flat = is_flat(schedule)
        if not self.is_flat:
            arrived_near = launcher_memory((maximum(parts, 1), self.groups), u32, resets=True)
            self.arrived_near = arrived_near

    def kept(self, tiles: Index, parts: Index) -> Index:
        """Of all parts."""
        return parts

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Write, and see who is last: of the neighbours, and of all."""
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
                self._write(work, totals, first)
                count = let(ceil_div(segment.parts, FAN))
                last = self.take_ticket(work, self.counter(work), count)
                has_all.set(last)
                with when(last > 0):
                    self._add(work, totals, 0, count, FAN)
        return has_all.get()

    def _write(self, work: Work, totals: Sequence[Fragment], part: Index) -> None:
        for number, total in enumerate(totals):
            tw.copy(total, self.held(work.segment.slot(part), work.group, number))

    def _add(self, work: Work, totals: Sequence[Fragment], first: Index, count: Index, step: int) -> None:
        """Add up so many parts, every so many-th."""
        most = min(self.most if step == 1 else -(-self.most // step), FAN)
        segment = work.segment
        for number, total in enumerate(totals):

            def part(i: Index, number: int = number) -> Tensor:
                return self.held(segment.slot(first + i * step), work.group, number)

            add_parts(total, count, most, part)


class ReduceScatter(Fixup):
    """Every part is written; then each block of the tile goes on with the sums of all parts of a share of it.

    A block waits for all others of its tile, so that all of them must run at once.  Who has no share of the
    tile, which has fewer slices than parts, does not wait.
    """

    def kept(self, tiles: Index, parts: Index) -> Index:
        """Of all parts."""
        return parts

    @contextmanager
    def shared(self, work: Work, total: Fragment, shares: int) -> Iterator[None]:
        """The with block is executed by the blocks that have a share of a tile, when all parts are written.

        Args:
            work: a part of the tile.
            total: the sums of the part.
            shares: into how many shares the tile falls; the first blocks have them.
        """
        segment, barrier, counter = work.segment, self.barrier(work), self.counter(work)
        with made_by("reduction"):
            self.quiet()
            tw.copy(total, self.held(segment.slot(segment.part), work.group))
            signal(counter, barrier=barrier)
        with when(segment.part < shares):
            with made_by("reduction"):
                await_(counter, segment.parts, barrier=barrier)
                # Who has waited counts too, and the last of them resets the counter.
                signal(counter, of=segment.parts + minimum(segment.parts, shares), barrier=barrier)
            yield

    def total(self, work: Work, spread: Distribution, number: Index = 0) -> Fragment:
        """The sums of all parts, added up in their order, of some columns of a group's tile.

        Args:
            work: the tile.
            spread: which threads hold which elements of so many columns.
            number: which of the tile's equal slices they are.
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


def most_parts(schedule: Schedule) -> int:
    """Parts of a tile, at most."""
    split = schedule.split_k
    return split if isinstance(split, int) else schedule.blocks


class Turnstile(Fixup):
    """Every part waits for the one before it, adds its own, and hands the sums on."""

    def kept(self, tiles: Index, parts: Index) -> Index:
        """Of each tile."""
        return tiles

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """The last part has all."""
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


class Atomic(Fixup):
    """Every part adds its own to memory that holds zeros; who comes last takes the sums, and leaves zeros."""

    zeroed = True

    def kept(self, tiles: Index, parts: Index) -> Index:
        """Of each tile."""
        return tiles

    def meet(self, work: Work, totals: Sequence[Fragment]) -> Index:
        """Add, and see who is last."""
        held = [(total, self.held(work.segment.tile, work.group, at)) for at, total in enumerate(totals)]
        for total, sums in held:
            tw.copy(total, sums, reduction="add")
        last = self.take_ticket(work, self.counter(work), work.segment.parts)
        with when(last > 0):
            for total, sums in held:
                tw.copy(sums, total)
                tw.copy(tw.fragment(total.distribution, total.dtype, 0, name="zeros"), sums)
        return last


FIXUPS: Mapping[str, type[Fixup]] = {
    "workspace": Workspace,
    "reduce-scatter": ReduceScatter,
    "turnstile": Turnstile,
    "atomic": Atomic,
}
"""The ways through global memory, by the names that a schedule has for them."""


WAITING = ("reduce-scatter",)
"""Of those the ones in which all blocks of a tile wait for each other: a GPU must run all of them at once."""


def is_flat(schedule: Schedule) -> bool:
    """Whether there are never so many parts that they are added up in two steps."""
    return isinstance(schedule.split_k, int) and schedule.split_k <= FAN


def is_clustered(schedule: Schedule) -> bool:
    """Whether the blocks of a tile's parts are a cluster."""
    return is_split(schedule) and schedule.reduction == "cluster"


def has_shares(schedule: Schedule) -> bool:
    """Whether all blocks of a tile's parts go on, each with the sums of all parts of a share of the tile."""
    return is_split(schedule) and schedule.reduction in ("cluster", "reduce-scatter")


def is_split(schedule: Schedule) -> bool:
    """Whether a schedule splits K."""
    return schedule.split_k != 1
