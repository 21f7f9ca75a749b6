"""The ring of one thread: tiles are packed in the order in which it multiplies them.

Operands that are multiplied in another dtype are converted as they are packed.  Others that are computed of
what lies in memory are computed there: of the elements of a tile, and of the arrays beside them.
"""

from __future__ import annotations

import itertools

from tilewright.lang import operations as tw
from tilewright.schedule.fragments_ring import decoded_part
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import Step, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Move, Source, Whole, of_both
from tilewright.schedule.stages import PackedTile, panel_rows
from tilewright.threads.distribution import Distribution, Mode


class Panels(Whole):
    """One thread packs the tiles; it waits for nobody."""

    def _ring(self, source: Source) -> PackedTile:
        schedule = self.schedule
        unit = panel_rows(schedule.atom, source.along == "m", source.sample.unit_dim == 0)
        kind = (schedule.atom.a_dtype, schedule.atom.b_dtype)[source.side]
        if source.decode is None:
            kind = source.sample.dtype
        size = source.rows, schedule.block_k, unit
        return PackedTile(source.sample, kind, *size, f"s{source.name}", computed=_is_computed(source))

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Pack A, pack B, multiply."""

        def load(step: Step) -> None:
            for move, ring in zip(self._pairs(work, step), self.rings, strict=True):
                with made_by(node=move.part):
                    self._pack(move, ring, work, step)

        def operands(step: Step) -> tuple[Held, Held]:
            return of_both(self.sources, [ring.shared for ring in self.rings])

        return [
            Verb("load", 0, load),
            *self.accumulation.verbs(sums, operands, work),
            *self.accumulation.promoting(sums, work),
        ]

    def _pack(self, move: Move, ring: PackedTile, work: Work, step: Step) -> None:
        """Pack one tile."""
        source = move.operand
        if source is not None and _is_computed(source):
            held = tw.load(
                move.source, _of_one(ring.shape, source), element=source.held, name=f"r{source.name}"
            )
            made = decoded_part(source, held, work, step, self.schedule.block_k, source.row(work))
            tw.copy(made, move.target)
            return
        places = [move.source, *([] if ring.narrow is None else [ring.narrow]), move.target]
        for here, there in itertools.pairwise(places):
            tw.copy(here, there, threads=1)


def _is_computed(source: Source) -> bool:
    """Whether more is done with its elements than to convert them."""
    return source.beside is not None and not (
        source.beside.factor.is_plain or source.beside.factor.is_converted
    )


def _of_one(shape: tuple[int, int], source: Source) -> Distribution:
    """All elements of a tile in one thread, those that are neighbours in memory first."""
    first = 0 if source.sample.unit_dim == 0 else 1
    return Distribution(shape, (), tuple(Mode(shape[dim], dim, 1) for dim in (first, 1 - first)))
