"""Proposals if blocks are few or wait for memory: few rows of A, and K in parts.

A form's rate of multiplication says little then.  Forms for few rows join the others, and each form that
leaves multiprocessors idle also comes with its K in parts, all ranked by the estimate `BULK`.

Up to 64 rows of A cost no time besides B, which is read once.  What counts is how many bytes are on their
way: deep steps, of several times 128 bytes of K, in a ring that fills the shared memory of a multiprocessor.
The columns of B lie along the rows of ``wgmma``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import inf

from tilewright.schedule.estimate import BULK
from tilewright.schedule.fallback import is_carried
from tilewright.schedule.load import BARRIERS_BYTES, Load
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.question import Candidate, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.splitting import CLUSTERS, rule_of, sharing, split_schedule
from tilewright.targets.atoms import wgmma

ROWS = (8, 16, 32, 64)
"""Rows of A that a tile takes: the smallest that hold all of them."""

NARROW_COLUMNS = 32
"""Columns of B in a tile that holds up to 64 rows of A along the rows of the atom."""

MOST_STAGES = 16

PAYS = 0.8
"""Time with K in parts, relative to the best form by its own model, that is worth proposing."""

WAYS: tuple[tuple[int | str, str], ...] = (
    ("auto", "workspace"),
    ("auto", "reduce-scatter"),
    *((parts, "cluster") for parts in CLUSTERS),
)
"""Splits and reductions that are tried unasked; streams were never the fastest."""

DOUBT = 1.02
"""Factor on the estimates with K in parts: smaller gains are not believed."""

SHORTEST_BYTES = 8192
"""Bytes along K that are split unasked, at least; with less, parts cost more than they saved."""


@dataclass(frozen=True)
class RowStream:
    """A form of the Hopper kernel for few rows of A.

    Args:
        groups: that multiply.
        depth: of a step, in units of 128 bytes of K.
        beside: blocks that share a multiprocessor, and its shared memory.
        each: columns of B that a group multiplies.
        most: stages.
        copies: of the main loop's body in each turn; with several, results leave from registers.
    """

    groups: int
    depth: int
    beside: int = 1
    each: int = 64
    most: int = MOST_STAGES
    copies: int = 1

    @property
    def columns(self) -> int:
        """Columns of B in a tile."""
        return self.each * self.groups

    def stages(self, question: Question, rows: int) -> int:
        """Stages that shared memory holds besides the results."""
        room = question.arch.shared_bytes // self.beside - BARRIERS_BYTES
        room -= sum(store.operand.dtype.bytes for store in question.form.stores) * rows * self.columns
        a, b = question.form.a.dtype.bytes, question.form.b.dtype.bytes
        return min(room // (self.block_k(question) * (self.columns * b + rows * a)), self.most)

    def block_k(self, question: Question) -> int:
        """Elements along K of a step."""
        return self.depth * ROW_BYTES // question.form.b.dtype.bytes

    def schedule(self, question: Question, rows: int, promoted_every: int) -> Schedule:
        """The schedule of the form.

        Args:
            question: the problem.
            rows: of A, in a tile.
            promoted_every: elements along K after which sums are promoted; 0: never.
        """
        block_k = self.block_k(question)
        return Schedule(
            wgmma(question.b_dtype, rows, question.dtype),
            (self.columns, rows, block_k),
            stages=self.stages(question, rows),
            staging="tma",
            roles="cooperative",
            groups=self.groups,
            promote=max(promoted_every // block_k, 1) if promoted_every else 0,
            epilogue="staged" if self.copies == 1 else "direct",
            buffers=1,
            registers=0,
            swap_ab=True,
            unroll=self.copies,
        )


STREAMS = (RowStream(1, 4), RowStream(2, 2), RowStream(1, 2, beside=2))
"""Few, so that few kernels are compiled; 16 to 32 KiB of B in each step, and about 200 KiB in all rings."""

DECODED = (RowStream(1, 2, most=6, copies=4), *STREAMS)
"""Forms for B that is decoded and contiguous along K: few short stages were faster than more of them."""

ALONG_COLUMNS = (RowStream(1, 2, each=128), RowStream(1, 4, each=128))
"""Forms for B that is decoded and contiguous along N: it lies in rows of 128 bytes, which a group decodes."""


def has_few_rows(question: Question) -> bool:
    """Whether a tile of `STREAMS` holds all rows, and the grid all batch items."""
    return question.shape[0] <= ROWS[-1] and question.covered == (0, 0) and not question.exceeds_grid


def without_waiting(question: Question, whole: Sequence[Candidate], promoted: int) -> Iterator[Candidate]:
    """Forms in the order in which they are tried: the given order, or that of the waiting for memory.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
        whole: forms for any number of rows, the fastest by their own estimates first.
        promoted: elements along K after which sums are promoted; 0: never.
    """
    rated = [replace(one, estimate=_bulk_us(question, one.schedule)) for one in whole]
    if has_few_rows(question):
        yield from _parted(question, rated, [*_few_rows(question, promoted)], inf)
        return
    least = min((one.estimate for one in rated), default=0.0)
    yield from (one for one in _parted(question, rated, [], PAYS * least) if one.schedule.split_k != 1)
    yield from whole


def _few_rows(question: Question, promoted: int) -> Iterator[Candidate]:
    """Forms for few rows."""
    rows = next(count for count in ROWS if count >= question.shape[0])
    if question.shape[0] > NARROW_COLUMNS and not question.decodes:
        # Tiles of 64 rows and few columns: as many as multiprocessors.
        block_k = 2 * ROW_BYTES // question.dtype.bytes
        narrow = Schedule(
            wgmma(question.dtype, NARROW_COLUMNS),
            (ROWS[-1], NARROW_COLUMNS, block_k),
            stages=8,
            staging="tma",
            roles="cooperative",
            group_m=8,
            promote=max(promoted // block_k, 1) if promoted else 0,
            epilogue="staged",
            buffers=1,
            registers=0,
        )
        rule = f"narrow tiles: {NARROW_COLUMNS} columns of B, steps of {2 * ROW_BYTES} bytes of K"
        yield Candidate(narrow, _bulk_us(question, narrow), rule)
    decoded = ALONG_COLUMNS if question.majors[1] == "mn" else DECODED
    for stream in decoded if question.decodes else STREAMS:
        if stream.stages(question, rows) > 1:
            schedule = stream.schedule(question, rows, promoted)
            deep = f"steps of {stream.depth * ROW_BYTES} bytes of K"
            rule = f"few rows: {stream.columns} columns of B along the rows of the atom, {deep}"
            yield Candidate(schedule, _bulk_us(question, schedule), rule)


def _parted(
    question: Question, whole: Sequence[Candidate], few: Sequence[Candidate], most: float
) -> Iterator[Candidate]:
    """The schedules, and those with K in parts that are estimated to take less than `most`, all in order.

    Parted schedules, and forms for few rows, are checked for legality when it is their turn.
    """
    parted = (made for one in (*whole, *few) for made in _parts(question, one) if made.estimate < most)
    found = [*whole, *few, *parted]
    for one in sorted(found, key=lambda one: one.estimate * (1 if one.schedule.split_k == 1 else DOUBT)):
        if one in whole or is_carried(question, one.schedule):
            yield one


def _parts(question: Question, whole: Candidate) -> Iterator[Candidate]:
    """A schedule with K in parts, if half of the multiprocessors are idle without; it need not be legal."""
    if whole.schedule.blocks or question.form.flow.grouped is not None:
        return
    if question.shape[2] * question.dtype.bytes < SHORTEST_BYTES:
        return
    if Load(question, whole.schedule).tiles * 2 > question.processors:
        return
    for split_k, reduction in WAYS:
        made = split_schedule(whole.schedule, split_k, question.processors, reduction)
        for one in () if made is None else (made, *sharing(Load(question, made))):
            load = Load(question, one)
            if load.parts > 1:
                yield Candidate(one, BULK.time_us(load), f"{whole.rule}, {rule_of(load)}")


def _bulk_us(question: Question, schedule: Schedule) -> float:
    return BULK.time_us(Load(question, schedule))
