"""Products of few rows on Hopper, at the speed of memory: the columns of B along the rows of ``wgmma``.

Up to 64 rows of A cost no time beside B, which is read once.  What counts is how many bytes are on their way:
deep steps, of several times 128 bytes of K, in a ring that fills the shared memory of a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_time import bulk_us
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.targets.atoms import wgmma

ROWS = (8, 16, 32, 64)
"""Rows of A that a tile takes: the smallest that hold all of them."""

NARROW_COLUMNS = 32
"""Of B, in a tile that holds up to 64 rows of A along the rows of the atom."""

MOST_STAGES = 16

BARRIERS_BYTES = 1024
"""What barriers and gaps between buffers take of shared memory, at most."""


@dataclass(frozen=True)
class Stream:
    """A form of the Hopper kernel for few rows of A.

    Args:
        groups: that multiply.
        depth: of a step, in units of 128 bytes of K.
        beside: blocks that share a multiprocessor, and its shared memory.
        each: columns of B that a group multiplies.
        most: stages.
        copies: of the main loop's body in each turn; where there are several, results leave from registers.
    """

    groups: int
    depth: int
    beside: int = 1
    each: int = 64
    most: int = MOST_STAGES
    copies: int = 1

    @property
    def columns(self) -> int:
        """Of B, in a tile."""
        return self.each * self.groups

    def stages(self, question: Question, rows: int) -> int:
        """As many as shared memory holds beside the results."""
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
            promoted_every: elements along K after which sums are added to others; 0: never.
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


STREAMS = (Stream(1, 4), Stream(2, 2), Stream(1, 2, beside=2))
"""Few, so that few kernels are compiled; 16 to 32 KiB of B in each step, and about 200 KiB in all rings."""

DECODED = (Stream(1, 2, most=6, copies=4), *STREAMS)
"""The same where B is decoded and contiguous along K: few short stages were faster than more of them."""

ALONG_COLUMNS = (Stream(1, 2, each=128), Stream(1, 4, each=128))
"""The same where B is decoded and contiguous along N: it lies in rows of 128 bytes, which a group decodes."""


def has_few_rows(question: Question) -> bool:
    """Whether a tile of `STREAMS` holds all rows, and nothing else speaks against them."""
    items = prod(question.extents[:-3])
    return question.shape[0] <= ROWS[-1] and question.covered == (0, 0) and items <= question.arch.grid[-1]


def candidates(question: Question, promoted_every: int = 0) -> Iterator[Candidate]:
    """Forms for few rows; none for many rows.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
        promoted_every: elements along K after which sums are added to others; 0: never.
    """
    if not has_few_rows(question):
        return
    rows = next(count for count in ROWS if count >= question.shape[0])
    if question.shape[0] > NARROW_COLUMNS and not question.decodes:
        narrow = _narrow(question, promoted_every)
        rule = f"narrow tiles: {NARROW_COLUMNS} columns of B, steps of {2 * ROW_BYTES} bytes of K"
        yield Candidate(narrow, bulk_us(question, narrow), rule)
    decoded = ALONG_COLUMNS if question.majors[1] == "mn" else DECODED
    for stream in decoded if question.decodes else STREAMS:
        if stream.stages(question, rows) > 1:
            schedule = stream.schedule(question, rows, promoted_every)
            deep = f"steps of {stream.depth * ROW_BYTES} bytes of K"
            rule = f"few rows: {stream.columns} columns of B along the rows of the atom, {deep}"
            yield Candidate(schedule, bulk_us(question, schedule), rule)


def _narrow(question: Question, promoted_every: int) -> Schedule:
    """Tiles of 64 rows and few columns, of which there are as many as multiprocessors."""
    dtype = question.dtype
    block_k = 2 * ROW_BYTES // dtype.bytes
    return Schedule(
        wgmma(dtype, NARROW_COLUMNS),
        (ROWS[-1], NARROW_COLUMNS, block_k),
        stages=8,
        staging="tma",
        roles="cooperative",
        group_m=8,
        promote=max(promoted_every // block_k, 1) if promoted_every else 0,
        epilogue="staged",
        buffers=1,
        registers=0,
    )
