"""Groups of warps that decode operand A on its way into the registers from which it is multiplied.

Bulk copies bring what lies in memory.  A group loads its part of it from shared memory, makes the operand of
it in registers, and multiplies these by the tile of B in shared memory, while it decodes the next part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment
from tilewright.lang.transaction_barriers import wait
from tilewright.schedule.bulk import Bulk, Consumer
from tilewright.schedule.factors import Product
from tilewright.schedule.fragments_ring import decoded_part
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Source, Sources
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES, SwizzledStages

SETS = 2
"""Sets of registers that take turns: the multiplication reads one while the other is decoded into."""


def part_depth(dtype: DType) -> int:
    """How deep a part is: a row of 128 bytes of what is multiplied, so that parts of B are whole panels."""
    return ROW_BYTES // dtype.bytes


@dataclass(frozen=True)
class Decoded:
    """The registers of an operand along M that is decoded.

    Args:
        source: the operand.
        ring: the stages that bulk copies bring it to.
        raw: a part as it lies in memory.
        made: the operand that is made of it, in as many sets as take turns.
    """

    source: Source
    ring: SwizzledStages
    raw: Fragment
    made: tuple[Fragment, ...]


class DecodingConsumer(Consumer):
    """As `Consumer`, part by part: the next one is decoded under the multiplication of this one."""

    def __init__(self, ring: Bulk) -> None:
        super().__init__(ring)
        schedule = ring.schedule
        self.depth = part_depth(schedule.atom.a_dtype)
        self.parts = schedule.block_k // self.depth
        self.accumulation = replace(self.accumulation, parts=self.parts)
        self.spread = tw.operand_a(schedule.mma, self.depth)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Multiply a part; when the one before it is done, decode the next into its registers, fetch another.

        What is fetched is decoded one part later, so that nobody waits for shared memory.  It is decoded at
        once where a part is half of a tile, and the next tile would be asked for too early; and where
        neighbours along K are none in memory, and each number would take a register of its own until then.
        """
        pairs = [*zip(self.ring.sources, self.ring.rings, strict=True)]
        decoded = [self._registers(source, ring) for source, ring in pairs if not source.side]
        of_n = [ring for source, ring in pairs if source.side]

        def operands(step: Step) -> tuple[Held, Held]:
            stage = self.ring.number(work, step) % self.ring.stages
            parts = []
            for ring in of_n:
                b = ring.operand(stage, 0)
                parts.append(b.tiles((b.shape[0], self.depth))[0, step.part])
            return [one.made[step.part % SETS] for one in decoded], parts

        def release(step: Step) -> None:
            self.ring.release(self.ring.number(work, step) % self.ring.stages)

        at_once = self.parts == SETS or any(one.source.sample.unit_dim == 0 for one in decoded)
        ahead = 1 if at_once else 2
        decode = Verb("decode", 1, partial(self._decode, decoded, work), outside=not at_once)
        fetching = [
            Verb("acquire", ahead, partial(self._acquire, work), self.parts),
            Verb("fetch", ahead, partial(self._fetch, decoded, work)),
        ]
        return [
            *self.accumulation.verbs(sums, operands, work),
            Verb("release", -self.parts, release, self.parts),
            *([*fetching, decode] if at_once else [decode, *fetching]),
            *self.accumulation.promoting(sums, work),
        ]

    def _registers(self, source: Source, ring: SwizzledStages) -> Decoded:
        with made_by("staging", source.part):
            # What is decoded behind the last part is multiplied by nobody, but it must be something.
            raw = tw.fragment(self.spread, source.held or source.sample.dtype, 0, name=f"r{source.name}")
            kind, name = self.ring.schedule.atom.a_dtype, f"d{source.name}"
            return Decoded(
                source, ring, raw, tuple(tw.fragment(self.spread, kind, name=name) for _ in range(SETS))
            )

    def _acquire(self, work: Work, step: Step) -> None:
        """Wait until a stage is full."""
        ring, number = self.ring, self._number(work, step)
        wait(ring.full[number % ring.stages], number // ring.stages % 2)

    def _fetch(self, decoded: Sequence[Decoded], work: Work, step: Step) -> None:
        """Load a part from shared memory as it lies there."""
        stage = self._number(work, step) % self.ring.stages
        for one in decoded:
            tile = one.ring.operand(stage, work.group)
            tw.copy(tile.tiles(self.spread.shape)[0, step.part], one.raw)

    def _decode(self, decoded: Sequence[Decoded], work: Work, step: Step) -> None:
        """Make the operands of a part: into registers whose multiplication is known to be complete."""
        for one in decoded:
            row = one.source.row(work)
            if not self.ring.pingpong:  # whose groups take tiles of their own
                row = row * self.ring.schedule.groups + work.group
            made = decoded_part(one.source, one.raw, work, step, self.ring.schedule.block_k, row)
            one.made[step.part % SETS].assign(made)

    def _number(self, work: Work, step: Step) -> Index:
        """The running number of a step; before the loop no iteration has a name for it yet."""
        return self.ring.number(work, step) if step.inside is True else work.first + step.index


class DecodingBulk(Bulk):
    """The ring from which operand A is decoded by those who multiply it."""

    is_read_by_threads = True

    def consumer(self) -> DecodingConsumer:
        """Those who decode and multiply."""
        return DecodingConsumer(self)


def bulk_ring(schedule: Schedule, sources: Sources, products: tuple[Product, ...]) -> Bulk:
    """The ring that bulk copies fill for these operands."""
    decodes = schedule.atom.asynchronous and sources[0].decode is not None
    return (DecodingBulk if decodes else Bulk)(schedule, sources, products)
