"""Exact products of f32 on GPUs by multiply-adds, where large tiles would be few or half empty.

A tile is not much larger than the result, and several blocks share a multiprocessor: while one waits for its
operands, or its warps for each other, the others multiply.  Where tiles are few, K is split among all blocks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_fma_time import fma_us, is_few_tiles
from tilewright.schedule.choose_parts import parts_under, rule_of, split_schedule, tiles_of
from tilewright.schedule.choose_ways import with_more_blocks
from tilewright.schedule.classes import coarse
from tilewright.schedule.fixup import is_split
from tilewright.schedule.legality import reasons
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma

LEAST = 16
"""Rows, or columns, of the smallest tile."""

LEAST_ELEMENTS = 1024
"""Of a tile that is not the only one: smaller ones read their operands too often."""

BAND = 8
"""Rows of tiles that follow each other."""


@dataclass(frozen=True)
class Form:
    """A tile, and how it is dealt out to the threads.

    Args:
        each: rows and columns of a thread.
        warps: of a block, along the rows and the columns.
        tile: its extents.
        stages: of the ring.
        lanes: of a warp, likewise.
    """

    each: tuple[int, int]
    warps: tuple[int, int]
    tile: tuple[int, int, int]
    stages: int = 3

    lanes: tuple[int, int] = (4, 8)

    @property
    def schedule(self) -> Schedule:
        """The schedule that computes every tile as a whole."""
        atom = fma("f32", lanes=self.lanes, each=self.each, paired=True)
        return Schedule(atom, self.tile, self.warps, self.stages, "cp_async", group_m=BAND)

    @property
    def transposed(self) -> Form:
        """The form for as few columns as this one has rows."""
        rows, columns, depth = self.tile
        if rows == columns:
            return self
        tile = (columns, rows, depth)
        return Form(self.each[::-1], self.warps[::-1], tile, self.stages, self.lanes[::-1])


FORMS = (
    Form((4, 2), (1, 1), (16, 16, 64)),
    Form((4, 2), (1, 1), (16, 16, 128)),
    Form((4, 2), (1, 4), (16, 64, 32), 4),
    Form((4, 4), (1, 4), (16, 128, 32), 4),
    Form((4, 4), (1, 4), (16, 128, 64), 4),
    Form((4, 4), (2, 1), (32, 32, 64)),
    Form((4, 4), (2, 2), (32, 64, 64)),
    Form((8, 4), (1, 4), (32, 128, 32)),
    Form((8, 8), (1, 4), (32, 256, 32), 2),
    Form((4, 4), (4, 2), (64, 64, 32)),
    Form((8, 4), (2, 2), (64, 64, 32)),
    Form((8, 8), (2, 1), (64, 64, 32)),
    Form((8, 8), (2, 2), (64, 128, 32)),
    Form((8, 8), (4, 2), (128, 128, 32), 4),
)
"""Few, so that few kernels are compiled."""


MOST = 16
"""With K in parts, that are proposed."""

WAYS = ("auto", "stream")
"""In which K is split where nobody asks for it; blocks that wait for each other took longer."""


def small_tiles(question: Question) -> Iterator[Candidate]:
    """Small tiles, each computed as a whole or with K in parts, in the order of their estimates.

    Where large tiles do, there are none.  Whether they are legal is asked when it is their turn.

    Args:
        question: the problem.
    """
    if not is_few_tiles(question):
        return
    m, n, _ = question.shape
    known = [form if m <= n else form.transposed for form in FORMS]
    fitting = [form.schedule for form in known if _fits(form.tile[:2], (m, n))]
    split = [made for whole in fitting for made in _parted(question, whole)]
    found = sorted([*fitting, *split], key=lambda one: fma_us(question, one))
    specs = {name: coarse(spec, question.arch) for name, spec in question.specs.items()}
    left = MOST
    for schedule in found:
        if (is_split(schedule) and not left) or reasons(schedule, question.form, specs, question.arch):
            continue
        rows, columns, depth = schedule.tile
        rule = f"multiply-adds, few tiles: one of {rows} x {columns}, {depth} deep"
        if is_split(schedule):
            left -= 1
            rule += f", {rule_of(question, schedule)}"
        yield Candidate(schedule, fma_us(question, schedule), rule)


def _fits(tile: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether half of a tile does not hold the result, and it is no small one of many."""
    holds = all(side < 2 * max(extent, LEAST) for side, extent in zip(tile, extents, strict=True))
    whole = all(side >= extent for side, extent in zip(tile, extents, strict=True))
    return holds and (whole or prod(tile) >= LEAST_ELEMENTS)


def _parted(question: Question, whole: Schedule) -> Iterator[Schedule]:
    """A schedule with K in parts, where there are any: also of tiles that are no multiple of the blocks."""
    tiles = tiles_of(question, whole)
    for split_k in WAYS:
        made = split_schedule(whole, split_k, question.processors)
        for one in with_more_blocks(question, made) if made is not None else ():
            if parts_under(question, one) > 1 or (split_k == "stream" and tiles > one.blocks):
                yield one
