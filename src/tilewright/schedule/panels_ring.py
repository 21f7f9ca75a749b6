"""The ring of one thread: tiles are packed in the order in which it multiplies them.

Operands that are multiplied in another dtype are converted as they are packed.  Other decoded operands are
decoded there too, from the elements of a tile and from side arrays.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from math import gcd

from tilewright.dataflow.nodes import ArrayPart, Map, NumberParam, walk
from tilewright.lang import operations as tw
from tilewright.schedule.factors import Factor
from tilewright.schedule.facts import Reasons, ScheduleFacts
from tilewright.schedule.form import Form
from tilewright.schedule.fragments_ring import decoded_part
from tilewright.schedule.needs import RING, Buffer
from tilewright.schedule.partition import Work
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import Move, OperandSource, WholeBlock, of_both
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import OperandSide, OperandTile
from tilewright.schedule.stages import PackedTile, is_packed_first, packed, panel_rows
from tilewright.threads.distribution import Distribution, Mode


class PanelStaging(WholeBlock):
    """One thread packs the tiles; it waits for nobody."""

    takes_layout = False

    @classmethod
    def buffers_of(cls, schedule: Schedule, tile: OperandTile, run: int) -> list[Buffer]:
        """A tile as it is multiplied; first a narrow one, if it is packed before it is converted."""
        atom, name = schedule.atom, f"s{tile.name}"
        unit = panel_rows(atom, tile.side == 0, tile.along_rows)
        kind = (atom.a_dtype, atom.b_dtype)[tile.side] if tile.is_decoded else tile.dtype
        size = tile.rows, schedule.block_k
        held = [Buffer(name, RING, size, kind, layout=packed(*size, unit, kind))]
        if tile.is_computed or not is_packed_first(tile.dtype, kind, unit, along_rows=tile.along_rows):
            return held
        layout = packed(*size, unit, tile.dtype)
        return [Buffer(f"{name}_narrow", RING, size, tile.dtype, layout=layout), *held]

    @classmethod
    def decodes_operand(cls, facts: ScheduleFacts, side: OperandSide) -> bool:
        """Operands are decoded as they are packed."""
        return True

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """One thread packs and multiplies."""
        atom, threads = facts.schedule.atom, facts.mma.threads
        if threads > 1:
            text = f"{threads} threads; what lies in panels is packed and multiplied by one"
            one = f'tw.atoms.fma("{atom.a_dtype}", acc="{atom.c_dtype}", lanes=(1, 1), each=(6, 16))'
            yield "staging", text, f'staging="direct", or atom={one} and warps=(1, 1)', facts.form.sum

    def _ring(self, source: OperandSource) -> PackedTile:
        *narrow, buffer = self.buffers_of(self.schedule, source.tile, 0)
        return PackedTile(buffer, narrow[0] if narrow else None)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Pack A, pack B, multiply."""

        def load(step: LoopStep) -> None:
            for move, ring in zip(self._pairs(work, step), self.rings, strict=True):
                with made_by(node=move.part):
                    self._pack(move, ring, work, step)

        def operands(step: LoopStep) -> tuple[Held, Held]:
            return of_both(self.sources, [ring.shared for ring in self.rings])

        return [
            Verb("load", 0, load),
            *self.accumulation.verbs(sums, operands, work),
            *self.accumulation.promoting(sums, work),
        ]

    def _pack(self, move: Move, ring: PackedTile, work: Work, step: LoopStep) -> None:
        """Pack one tile."""
        source = move.operand
        if source is not None and source.tile.is_computed:
            held = tw.load(
                move.source, _of_one(ring.shape, source), element=source.held, name=f"r{source.name}"
            )
            made = decoded_part(source, held, work, step, self.schedule.block_k, source.row(work))
            tw.copy(made, move.target)
            return
        places = [move.source, *([] if ring.narrow is None else [ring.narrow]), move.target]
        for here, there in itertools.pairwise(places):
            tw.copy(here, there, threads=1)


def _of_one(shape: tuple[int, int], source: OperandSource) -> Distribution:
    """All elements of a tile in one thread, those that are neighbours in memory first."""
    first = 0 if source.sample.unit_dim == 0 else 1
    return Distribution(shape, (), tuple(Mode(shape[dim], dim, 1) for dim in (first, 1 - first)))


# ---------------------------------------------------------------- depth of decoded tiles


FUNCTIONS = {"convert", "add", "sub", "mul"}
"""Functions of operands that are decoded as panels are packed."""

RUN = 8
"""Neighbours along K that share the elements of side arrays are a multiple of this."""

DEEPEST = 128
"""A panel so deep, as f32, and what it is computed of leave room in the first-level cache."""


def decoded_depth(form: Form) -> int:
    """How deep tiles are where operand B, and no other, is computed as its panels are packed; else 0.

    Args:
        form: what is computed.
    """
    if not form.is_single or not (form.a.is_plain or form.a.is_converted):
        return 0
    return depth_for(form.b.runs) if is_computed_in_panels(form.b) else 0


def depth_for(runs: Sequence[int]) -> int:
    """How deep tiles are that consist of whole runs along K, or lie in one; 0: runs are too short.

    Args:
        runs: how many neighbours have an element in common, for each array beside the operand.

    Example:
        >>> [depth_for([run]) for run in (32, 128, 96, 256, 40, 20, 4096)]
        [128, 128, 96, 128, 120, 0, 128]
    """
    run = gcd(*runs)
    if not run or run % RUN:
        return 0
    if run <= DEEPEST:
        return DEEPEST // run * run
    return next(depth for depth in range(DEEPEST, 0, -RUN) if run % depth == 0)


def is_computed_in_panels(factor: Factor) -> bool:
    """Whether an operand is made of its elements, and of those beside it that runs along K share, so.

    Args:
        factor: the operand.
    """
    if factor.is_plain or factor.is_converted or len(factor.runs) != len(factor.beside) or not factor.runs:
        return False
    for node in walk(factor.view):
        if isinstance(node, Map) and not (node.function in FUNCTIONS and node.dtype.is_float):
            return False
        if isinstance(node, NumberParam) or (isinstance(node, ArrayPart) and factor.row not in node.at):
            return False
    return True
