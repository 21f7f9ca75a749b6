"""Products of few rows on Hopper, at the speed of memory: the columns of B along the rows of ``wgmma``.

Up to 64 rows of A cost no time beside B, which is read once.  What counts is how many bytes are on their way:
deep steps, of several times 128 bytes of K, in a ring that fills the shared memory of a multiprocessor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.memory import memory_us
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.stages import ROW_BYTES
from tilewright.targets.atoms import wgmma

ROWS = (8, 16, 32, 64)
"""Rows of A that a tile takes: the smallest that hold all of them."""

MOST_STAGES = 16

BARRIERS_BYTES = 1024
"""What barriers and gaps between buffers take of shared memory, at most."""

FIXED_US = 4.2
"""What a launch takes besides its steps; as measured of the other forms with a block for each tile."""

STEP_US = 0.08
"""What a step takes besides its bytes. An estimate: the forms of 64 columns take 0.04 to 0.075."""

TILE_US = 1.0
"""Between one block and the next one of a multiprocessor, whose ring is empty at first. An estimate."""


@dataclass(frozen=True)
class Stream:
    """A form of the Hopper kernel for few rows of A.

    Args:
        groups: that multiply, each 64 columns of B.
        depth: of a step, in units of 128 bytes of K.
        beside: blocks that share a multiprocessor, and its shared memory.
    """

    groups: int
    depth: int
    beside: int = 1

    @property
    def columns(self) -> int:
        """Of B, in a tile."""
        return 64 * self.groups

    def stages(self, question: Question, rows: int) -> int:
        """As many as shared memory holds beside the results."""
        room = question.arch.shared_bytes // self.beside - BARRIERS_BYTES
        room -= sum(store.operand.dtype.bytes for store in question.form.stores) * rows * self.columns
        return min(room // ((self.columns + rows) * self.depth * ROW_BYTES), MOST_STAGES)

    def schedule(self, question: Question, rows: int, promoted_every: int) -> Schedule:
        """The schedule of the form.

        Args:
            question: the problem.
            rows: of A, in a tile.
            promoted_every: elements along K after which sums are added to others; 0: never.
        """
        dtype = question.dtype
        block_k = self.depth * ROW_BYTES // dtype.bytes
        return Schedule(
            wgmma(dtype, rows),
            (self.columns, rows, block_k),
            stages=self.stages(question, rows),
            staging="tma",
            roles="cooperative",
            groups=self.groups,
            promote=max(promoted_every // block_k, 1) if promoted_every else 0,
            epilogue="staged",
            buffers=1,
            registers=0,
            swap_ab=True,
        )

    def time_us(self, question: Question, rows: int, row_us: tuple[float, float]) -> float:
        """Estimated time: of the multiprocessor with most tiles, or of the memory.

        Args:
            question: the problem.
            rows: of A, in a tile.
            row_us: what 128 bytes of a row of A, and of B, take of one multiprocessor.
        """
        m, n, k = question.shape
        batches = prod(question.extents[:-3])
        blocks = -(-n // self.columns) * -(-m // rows) * batches
        rounds = -(-blocks // max(question.processors, 1))
        steps = -(-k * question.dtype.bytes // (ROW_BYTES * self.depth))
        step = STEP_US + self.depth * (rows * row_us[0] + self.columns * row_us[1])
        waits = -(-rounds // self.beside) * TILE_US
        return FIXED_US + max(rounds * steps * step + waits, memory_us(question))


STREAMS = (Stream(1, 4), Stream(2, 2), Stream(1, 2, beside=2))
"""Few, so that few kernels are compiled; 16 to 32 KiB of B in each step, and about 200 KiB in all rings."""


def candidates(
    question: Question, row_us: tuple[float, float], promoted_every: int = 0
) -> Iterator[Candidate]:
    """Forms for few rows in the order of their estimates; none for many rows.

    None of them is the choice yet, for none has been measured.

    Args:
        question: the problem, whose operands ``wgmma`` takes.
        row_us: what 128 bytes of a row of A, and of B, take of one multiprocessor.
        promoted_every: elements along K after which sums are added to others; 0: never.
    """
    m, _, _ = question.shape
    rows = next((count for count in ROWS if count >= m), None)
    items = prod(question.extents[:-3])
    if rows is None or question.covered != (0, 0) or items > question.arch.grid[-1]:
        return
    known = [stream for stream in STREAMS if stream.stages(question, rows) > 1]
    for stream in sorted(known, key=lambda one: one.time_us(question, rows, row_us)):
        deep = f"steps of {stream.depth * ROW_BYTES} bytes of K"
        yield Candidate(
            stream.schedule(question, rows, promoted_every),
            stream.time_us(question, rows, row_us),
            f"few rows: {stream.columns} columns of B along the rows of the atom, {deep}",
        )
