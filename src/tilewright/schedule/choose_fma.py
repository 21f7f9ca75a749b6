"""Exact products of f32 on GPUs by multiply-adds, where large tiles would be few or half empty.

A tile is not much larger than the result, and several blocks share a multiprocessor: while one waits for its
operands, or its warps for each other, the others multiply.  Where tiles are few, K is split among all blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.schedule.choose import Candidate, Question, Splitting
from tilewright.schedule.choose_fma_time import fma_us, is_few_tiles
from tilewright.schedule.choose_parts import parts_under
from tilewright.schedule.choose_ways import ways_to_split
from tilewright.schedule.classes import coarse
from tilewright.schedule.legality import reasons
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import fma

LEAST = 16
"""Rows, or columns, of the smallest tile."""

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
    Form((4, 4), (1, 4), (16, 128, 32), 4),
    Form((4, 4), (1, 4), (16, 128, 64)),
    Form((4, 4), (2, 1), (32, 32, 64)),
    Form((4, 4), (2, 2), (32, 64, 64)),
    Form((8, 4), (1, 4), (32, 128, 32)),
    Form((8, 8), (1, 4), (32, 256, 32)),
    Form((4, 4), (4, 2), (64, 64, 32)),
    Form((8, 4), (2, 2), (64, 64, 32)),
    Form((8, 8), (2, 2), (64, 128, 32)),
)
"""Few, so that few kernels are compiled."""


MOST = 12
"""With K in parts, that are proposed."""


def small_tiles(question: Question) -> Iterator[Candidate]:
    """Small tiles, each computed as a whole or with K in parts, in the order of their estimates.

    Where large tiles do, there are none.

    Args:
        question: the problem.
    """
    if not is_few_tiles(question):
        return
    m, n, _ = question.shape
    known = [form if m <= n else form.transposed for form in FORMS]
    fitting = [
        form for form in known if form.tile[0] < 2 * max(m, LEAST) and form.tile[1] < 2 * max(n, LEAST)
    ]
    whole = [one for one in (_whole(question, form) for form in fitting) if _is_legal(question, one)]
    found = [one for plain in whole for one in ways_to_split(question, plain, Splitting("auto"))]
    split = [one for one in found if parts_under(question, one.schedule) > 1]
    best = sorted(split, key=lambda one: one.estimate)[:MOST]
    yield from sorted([*best, *whole], key=lambda one: one.estimate)


def _whole(question: Question, form: Form) -> Candidate:
    schedule = form.schedule
    rows, columns, depth = schedule.tile
    rule = f"multiply-adds: a small tile of {rows} x {columns}, {depth} deep"
    return Candidate(schedule, fma_us(question, schedule), rule)


def _is_legal(question: Question, found: Candidate) -> bool:
    specs = {name: coarse(spec, question.arch) for name, spec in question.specs.items()}
    return not reasons(found.schedule, question.form, specs, question.arch)
