"""Groups of warps that decode operand A on its way into the registers from which it is multiplied.

Bulk copies bring what lies in memory.  A group loads its part of it from shared memory, makes the operand of
it in registers, and multiplies these by the tile of B in shared memory, while it decodes the next part.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tilewright.dtypes import DType
from tilewright.lang import operations as tw
from tilewright.lang.scalars import Index
from tilewright.lang.tensors import Fragment, Tensor
from tilewright.lang.transaction_barriers import wait
from tilewright.schedule.bulk import Bulk, Consumer
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Source, decoded_part
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES

SETS = 2
"""Sets of registers that take turns: the multiplication reads one while the other is decoded into."""


def part_depth(dtype: DType) -> int:
    """How deep a part is: a row of 128 bytes of what is multiplied, so that parts of B are whole panels."""
    return ROW_BYTES // dtype.bytes


@dataclass(frozen=True)
class Held:
    """The registers of operand A.

    Args:
        raw: a part as it lies in memory.
        made: the operand that is made of it, in as many sets as take turns.
    """

    raw: Fragment
    made: tuple[Fragment, ...]


class DecodingConsumer(Consumer):
    """As `Consumer`, part by part: the next one is decoded under the multiplication of this one."""

    def __init__(self, ring: Bulk) -> None:
        super().__init__(ring)
        schedule = ring.schedule
        self.depth = part_depth(schedule.atom.a_dtype)
        self.parts = schedule.block_k // self.depth
        self.spread = tw.operand_a(schedule.mma, self.depth)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Multiply a part; when the one before it is done, decode the next into its registers, fetch another.

        What is fetched is decoded one part later, so that nobody waits for shared memory; but at once where
        neighbours along K are none in memory, and each number would take a register of its own until then.
        """
        source, atom = self.ring.sources[0], self.ring.schedule.atom
        with made_by("staging", source.part):
            # What is decoded behind the last part is multiplied by nobody, but it must be something.
            raw = tw.fragment(self.spread, source.sample.dtype, 0, name=f"r{source.name}")
            made = [tw.fragment(self.spread, atom.a_dtype, name=f"d{source.name}") for _ in range(SETS)]
        held = Held(raw, tuple(made))

        def operands(step: Step) -> tuple[Fragment, Tensor]:
            stage = self.ring.number(work, step) % self.ring.stages
            b = self.ring.b.operand(stage, 0)
            return held.made[step.part % SETS], b.tiles((b.shape[0], self.depth))[0, step.part]

        def release(step: Step) -> None:
            self.ring.release(self.ring.number(work, step) % self.ring.stages)

        ahead = 1 if source.sample.unit_dim == 0 else 2
        decode = Verb("decode", 1, partial(self._decode, source, held, work), outside=True)
        fetching = [
            Verb("acquire", ahead, partial(self._acquire, work), self.parts),
            Verb("fetch", ahead, partial(self._fetch, held, work)),
        ]
        return [
            *self.accumulation.verbs(sums, operands),
            Verb("release", -self.parts, release, self.parts),
            *([*fetching, decode] if ahead == 1 else [decode, *fetching]),
        ]

    def _acquire(self, work: Work, step: Step) -> None:
        """Wait until a stage is full."""
        ring, number = self.ring, self._number(work, step)
        wait(ring.full[number % ring.stages], number // ring.stages % 2)

    def _fetch(self, held: Held, work: Work, step: Step) -> None:
        """Load a part from shared memory as it lies there."""
        stage = self._number(work, step) % self.ring.stages
        tile = self.ring.a.operand(stage, work.group)
        tw.copy(tile.tiles(self.spread.shape)[0, step.part], held.raw)

    def _decode(self, source: Source, held: Held, work: Work, step: Step) -> None:
        """Make the operand of a part: into registers whose multiplication is known to be complete."""
        made = decoded_part(source, held.raw, work, step, self.ring.schedule.block_k)
        held.made[step.part % SETS].assign(made)

    def _number(self, work: Work, step: Step) -> Index:
        """The running number of a step; before the loop no iteration has a name for it yet."""
        return self.ring.number(work, step) if step.inside is True else work.first + step.index


class DecodingBulk(Bulk):
    """The ring from which operand A is decoded by those who multiply it."""

    is_read_by_threads = True

    def consumer(self) -> DecodingConsumer:
        """Those who decode and multiply."""
        return DecodingConsumer(self)


def bulk_ring(schedule: Schedule, sources: tuple[Source, Source]) -> Bulk:
    """The ring that bulk copies fill for these operands."""
    decodes = schedule.atom.asynchronous and sources[0].decode is not None
    return (DecodingBulk if decodes else Bulk)(schedule, sources)
