"""The ring of a single thread, which packs tiles in the order in which it multiplies them.

While it packs operands, the thread also converts them to the dtype of the multiplication, or decodes them
with their side arrays.
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
from tilewright.schedule.needs import RING, Buffer
from tilewright.schedule.pipeline import LoopStep, Verb
from tilewright.schedule.plans import Held, Sums
from tilewright.schedule.provenance import made_by
from tilewright.schedule.rings import OperandSource, WholeBlock, of_both
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import OperandSide, OperandTile
from tilewright.schedule.stages import PackedTile, is_packed_first, packed, panel_rows
from tilewright.schedule.work import Work
from tilewright.threads.distribution import Distribution, Mode


class PanelStaging(WholeBlock):
    """One thread packs the tiles, and waits for no other thread."""

    takes_layout = False

    @classmethod
    def buffers_of(cls, schedule: Schedule, tile: OperandTile, run: int) -> list[Buffer]:
        """The packed tile; before it the tile in its own dtype, if elements are converted after packing."""
        atom, name = schedule.atom, f"s{tile.factor.name}"
        unit = panel_rows(atom, tile.side == 0, tile.along_rows)
        kind = (atom.a_dtype, atom.b_dtype)[tile.side] if not tile.factor.is_plain else tile.dtype
        size = tile.rows, schedule.block_k
        held = [Buffer(name, RING, size, kind, layout=packed(*size, unit, kind))]
        if tile.factor.is_computed or not is_packed_first(tile.dtype, kind, unit, along_rows=tile.along_rows):
            return held
        layout = packed(*size, unit, tile.dtype)
        return [Buffer(f"{name}_narrow", RING, size, tile.dtype, layout=layout), *held]

    @classmethod
    def decodes_operand(cls, facts: ScheduleFacts, side: OperandSide) -> bool:
        """True: operands are decoded as they are packed."""
        return True

    @classmethod
    def against(cls, facts: ScheduleFacts) -> Reasons:
        """One thread packs and multiplies."""
        atom, threads = facts.schedule.atom, facts.mma.threads
        if threads > 1:
            text = f'{threads} threads; staging="panels" packs and multiplies with one thread'
            one = f'tw.atoms.fma("{atom.a_dtype}", acc="{atom.c_dtype}", lanes=(1, 1), each=(6, 16))'
            yield "staging", text, f'staging="direct", or atom={one} and warps=(1, 1)', facts.form.sum

    def _ring(self, source: OperandSource) -> PackedTile:
        *narrow, buffer = map(self.placed, self.buffers_of(self.schedule, source.tile, 0))
        return PackedTile(buffer, narrow[0] if narrow else None)

    def verbs(self, work: Work, sums: Sums) -> list[Verb]:
        """Pack A, pack B, multiply."""

        def load(step: LoopStep) -> None:
            for move, ring in zip(self._pairs(work, step), self.rings, strict=True):
                source = move.operand
                assert source is not None, "every tile belongs to an operand"
                with made_by(node=move.part):
                    if source.factor.is_computed:
                        # One thread holds the tile, with the contiguous dimension first.
                        dims = (0, 1) if source.sample.unit_dim == 0 else (1, 0)
                        modes = tuple(Mode(ring.shape[dim], dim, 1) for dim in dims)
                        spread = Distribution(ring.shape, (), modes)
                        name, block_k = f"r{source.name}", self.schedule.block_k
                        held = tw.load(move.source, spread, element=source.factor.held, name=name)
                        made = source.decoded(held, work, step, block_k, source.row(work))
                        tw.copy(made, move.target)
                        continue
                    places = [move.source, *([] if ring.narrow is None else [ring.narrow]), move.target]
                    for here, there in itertools.pairwise(places):
                        tw.copy(here, there, threads=1)

        def operands(step: LoopStep) -> tuple[Held, Held]:
            return of_both(self.sources, [ring.shared for ring in self.rings])

        return [
            Verb("load", 0, load),
            *self.accumulation.verbs(sums, operands, work),
            *self.accumulation.promoting(sums, work),
        ]


# ---------------------------------------------------------------- depth of decoded tiles


FUNCTIONS = {"convert", "add", "sub", "mul"}
"""Functions that decode operands as panels are packed."""

RUN = 8
"""The number of neighbours along K that share an element of a side array is a multiple of this."""

DEEPEST = 128
"""Largest depth at which an f32 panel and the elements it is decoded from fit the first-level cache."""


def decoded_depth(form: Form) -> int:
    """Depth of tiles if operand B, and no other, is decoded as its panels are packed; else 0."""
    if not form.is_single or not (form.a.is_plain or form.a.is_converted):
        return 0
    return depth_for(form.b.runs) if is_computed_in_panels(form.b) else 0


def depth_for(runs: Sequence[int]) -> int:
    """Depth of tiles that consist of whole runs along K, or lie in one run; 0: runs are too short.

    Args:
        runs: for each side array the number of neighbours along K that share an element.

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
    """Whether `FUNCTIONS` decode an operand from its elements and from side arrays with runs along K."""
    if not factor.is_computed or len(factor.runs) != len(factor.beside) or not factor.runs:
        return False
    for node in walk(factor.view):
        if isinstance(node, Map) and not (node.function in FUNCTIONS and node.dtype.is_float):
            return False
        if isinstance(node, NumberParam) or (isinstance(node, ArrayPart) and factor.row not in node.at):
            return False
    return True
