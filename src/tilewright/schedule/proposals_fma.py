"""Proposals for exact products of f32 on GPUs by multiply-adds, if large tiles would be few or half empty.

A tile is not much larger than the result, and several blocks share a multiprocessor: while one waits for its
operands, or its warps for each other, the others multiply.  If tiles are few, all blocks share K.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.schedule.estimate import FMA
from tilewright.schedule.fixup import is_split
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load
from tilewright.schedule.question import BAND, Candidate, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.splitting import rule_of, split_schedule, with_more_blocks
from tilewright.targets.atoms import fma

LEAST = 16
"""Rows, or columns, of the smallest tile."""

LEAST_ELEMENTS = 1024
"""Elements of a tile, at least, if there are several: smaller tiles read their operands too often."""

FEW = 64
"""Rows, or columns, that large tiles leave half empty."""

LARGE = 128
"""Rows and columns of a large tile."""

IDLE = 4
"""Multiprocessors for each large tile from which on large tiles are few."""

HALF = 0.55
"""Share of the multiprocessors, in all rounds, that large tiles keep busy at most if they are split."""


@dataclass(frozen=True)
class FmaForm:
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
    def transposed(self) -> FmaForm:
        """The form for as few columns as this one has rows."""
        rows, columns, depth = self.tile
        if rows == columns:
            return self
        tile = (columns, rows, depth)
        return FmaForm(self.each[::-1], self.warps[::-1], tile, self.stages, self.lanes[::-1])


FORMS = (
    FmaForm((4, 2), (1, 1), (16, 16, 64)),
    FmaForm((4, 2), (1, 1), (16, 16, 128)),
    FmaForm((4, 2), (1, 4), (16, 64, 32), 4),
    FmaForm((4, 4), (1, 4), (16, 128, 32), 4),
    FmaForm((4, 4), (1, 4), (16, 128, 64), 4),
    FmaForm((4, 4), (2, 1), (32, 32, 64)),
    FmaForm((4, 4), (2, 2), (32, 64, 64)),
    FmaForm((8, 4), (1, 4), (32, 128, 32)),
    FmaForm((8, 8), (1, 4), (32, 256, 32), 2),
    FmaForm((4, 4), (4, 2), (64, 64, 32)),
    FmaForm((8, 4), (2, 2), (64, 64, 32)),
    FmaForm((8, 8), (2, 1), (64, 64, 32)),
    FmaForm((8, 8), (2, 2), (64, 128, 32)),
    FmaForm((8, 8), (4, 2), (128, 128, 32), 4),
)
"""Few, so that few kernels are compiled."""


MOST = 16
"""Schedules with K in parts that are proposed, at most."""

WAYS = ("auto", "stream")
"""Splits that are tried unasked; blocks that wait for each other took longer."""


def is_few_tiles(question: Question) -> bool:
    """Whether a product is one of exact f32, for which large tiles would be few or half empty."""
    form, (m, n, _) = question.form, question.shape
    kinds = {question.dtype.name, form.b.view.dtype.name, form.sum.dtype.name}
    if kinds != {"f32"} or form.precision == "tf32" or question.decodes or question.covered != (0, 0):
        return False
    if form.flow.grouped is not None or question.arch.rates is None:
        return False
    tiles = -(-m // LARGE) * -(-n // LARGE) * question.items
    rounds = -(-tiles // question.processors)
    is_uneven = rounds > 1 and tiles <= HALF * rounds * question.processors
    return min(m, n) <= FEW or tiles * IDLE <= question.processors or is_uneven


def small_tiles(question: Question) -> Iterator[Candidate]:
    """Small tiles, each computed as a whole or with K in parts, in the order of their estimates.

    There are none if large tiles do.  Each is checked for legality when it is its turn.

    Args:
        question: the problem.
    """
    if not is_few_tiles(question):
        return
    m, n, _ = question.shape
    known = [form if m <= n else form.transposed for form in FORMS]
    fitting = [form.schedule for form in known if _fits(form.tile[:2], (m, n))]
    split = [made for whole in fitting for made in _parted(question, whole)]
    found = sorted([*fitting, *split], key=lambda one: FMA.time_us(Load(question, one)))
    left = MOST
    for schedule in found:
        load = Load(question, schedule)
        if (is_split(schedule) and not left) or reasons(
            schedule, question.form, question.classes, question.arch
        ):
            continue
        rows, columns, depth = schedule.tile
        rule = f"multiply-adds, few tiles: one of {rows} x {columns}, {depth} deep"
        if is_split(schedule):
            left -= 1
            rule += f", {rule_of(load)}"
        yield Candidate(schedule, FMA.time_us(load), rule)


def _fits(tile: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether half of a tile does not hold the result, and it is no small one of many."""
    holds = all(side < 2 * max(extent, LEAST) for side, extent in zip(tile, extents, strict=True))
    whole = all(side >= extent for side, extent in zip(tile, extents, strict=True))
    return holds and (whole or prod(tile) >= LEAST_ELEMENTS)


def _parted(question: Question, whole: Schedule) -> Iterator[Schedule]:
    """The schedule with K in parts, if it has any; also tiles that are no multiple of the blocks."""
    tiles = Load(question, whole).tiles
    for split_k in WAYS:
        made = split_schedule(whole, split_k, question.processors)
        for one in with_more_blocks(question, made) if made is not None else ():
            if Load(question, one).parts > 1 or (split_k == "stream" and tiles > one.blocks):
                yield one
