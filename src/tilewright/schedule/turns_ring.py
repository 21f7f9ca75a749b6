"""The ring of two groups of warps that take turns: one loads while the other one multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilewright.lang import operations as tw
from tilewright.lang.control import when
from tilewright.lang.roles import role, role_barrier
from tilewright.lang.scalars import Index
from tilewright.lang.tracer import current
from tilewright.schedule.factors import Product
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.registers_ring import Registers
from tilewright.schedule.rings import Move, Source, Sources, of_both
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import PlainStages, Together

BARRIER = 1
"""The number of the barrier at which all threads of the block meet, each group at lines of its own."""


class Turns(Registers):
    """Two groups share the rows of a tile, and do the same, one of them half a step behind the other.

    In each step along K a group loads: it writes its half of the next tile, which waited in registers, to
    shared memory, asks global memory for its half of the one after that, and reads into registers all that
    it multiplies of this tile.  Then it multiplies, and touches no memory.  Behind either of both all threads
    of the block meet; since the second group has met the first one once more before its first step, one loads
    while the other one multiplies.

    Two stages are enough.  Both groups have read a tile when the first one has multiplied it, and only behind
    the next barrier is the tile after the next one written to the same place.
    """

    def __init__(self, schedule: Schedule, sources: Sources, products: tuple[Product, ...]) -> None:
        super().__init__(schedule, sources, products)
        spreads = [(tw.operand_a, tw.operand_b)[s.side](schedule.mma, schedule.block_k) for s in sources]
        self.spreads = tuple(spreads)

    def _ring(self, source: Source) -> PlainStages:
        """The tiles of all groups: B is the same one for all."""
        schedule, side = self.schedule, source.side
        together = Together(schedule.k1[side], schedule.extra_rows[side])
        rows = source.rows if side else source.rows * schedule.groups
        name = f"s{source.name}"
        return PlainStages(source.sample, rows, schedule.block_k, schedule.stages, name, together)

    @contextmanager
    def role(self, *, again: bool = False) -> Iterator[Index]:
        """All warps of the block, in groups."""
        schedule = self.schedule
        with role(warps=schedule.mma.threads // current().lanes, groups=schedule.groups) as group:
            yield group

    def end(self, work: Work) -> None:
        """The first group meets the second one once more, which is half a step behind."""
        with when(work.group == 0):
            self._meet()

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Load, meet, multiply, meet."""
        put, fetch = self._through_registers(work)
        held = [
            tw.fragment(spread, source.sample.dtype, name=f"r{source.name}")
            for spread, source in zip(self.spreads, self.sources, strict=True)
        ]

        def read(step: Step) -> None:
            for source, ring, fragment in zip(self.sources, self.rings, held, strict=True):
                with made_by(node=source.part):
                    at = (0 if source.side else work.group, 0)
                    tw.copy(ring.shared[step.index % self.schedule.stages].tile(fragment.shape, at), fragment)

        def operands(step: Step) -> tuple[Held, Held]:
            return of_both(self.sources, held)

        def turn(step: Step) -> None:
            self._meet()
            if not step.ahead:  # before the first step
                with when(work.group == 1):
                    self._meet()

        return [
            Verb("put", 1, put, outside=True),
            Verb("fetch", 2, fetch, outside=True),
            Verb("read", 0, read),
            Verb("turn", 1, turn, outside=True),
            *self.accumulation.verbs(sums, operands, work),
            *self.accumulation.promoting(sums, work),
            Verb("turn", 0, lambda step: self._meet()),
        ]

    def _loaded(self, work: Work, step: Step) -> list[Move]:
        """What a group loads: its part of each tile, which goes nowhere yet."""
        schedule, found = self.schedule, []
        for source, ring in zip(self.sources, self.rings, strict=True):
            with made_by(node=source.part):
                row = source.row(work) * schedule.groups + work.group
                tile = source.matrix(work).tile(self._part(ring), (row, work.segment.begin + step.index))
            is_turned = "ab"[source.side] in schedule.turned and source.sample.unit_dim == 0
            found.append(Move(tile, None, source.part, self._dealing(source), is_turned, source))
        return found

    def _pairs(self, work: Work, step: Step) -> list[Move]:
        """The same with where it goes."""
        found = []
        for move, ring in zip(self._loaded(work, step), self.rings, strict=True):
            with made_by(node=move.part):
                stage = ring.shared[step.index % self.schedule.stages]
                found.append(replace(move, target=stage.tile(self._part(ring), (work.group, 0))))
        return found

    def _part(self, ring: PlainStages) -> tuple[int, int]:
        """Rows and depth of what a group copies of a tile."""
        rows, depth = ring.shape
        return rows // self.schedule.groups, depth

    def _meet(self) -> None:
        meet_all(self.schedule)


def meet_all(schedule: Schedule) -> None:
    """All threads of the block meet, wherever they stand."""
    role_barrier(BARRIER, threads=schedule.mma.threads * schedule.groups)


def registers_ring(schedule: Schedule, sources: Sources, products: tuple[Product, ...]) -> Registers:
    """The ring that holds the next tile in registers, for one group of warps or for two that take turns."""
    return (Turns if schedule.alternates else Registers)(schedule, sources, products)
