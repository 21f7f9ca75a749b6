"""What a machine's rates say of a problem: the least time of its memory, and how fast it multiplies."""

from __future__ import annotations

from math import prod

from tilewright.schedule.choose import Question
from tilewright.schedule.schedule import Schedule

MOST_STREAMED = 1 << 28
"""Bytes of a matrix that is read once and leaves the second-level cache first.

On an H200 products of few rows gain 2 to 4 us by that, of which the matrix has 32 to 117 MB, and lose as much
where it has 470 MB.
"""


def memory_us(question: Question) -> float:
    """The bytes of A, B and C once, at the rate at which the memory copies; 0 where that is not known.

    Args:
        question: the problem.
    """
    (m, n, k), rates = question.shape, question.arch.rates
    if rates is None:
        return 0.0
    board = rates.boards[0]
    a, b = (sum(one.dtype.bytes for one in side) for side in (question.form.rows_m, question.form.rows_n))
    moved = (m * k * a + k * n * b + m * n * question.dtype.bytes) * prod(question.extents[:-3])
    return moved / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3


def flops_of(question: Question, schedule: Schedule) -> float:
    """Operations that what multiplies does on a multiprocessor in a microsecond, at best.

    Args:
        question: the problem, on a machine whose rates are known.
        schedule: how it is computed.
    """
    atom, rates = schedule.atom, question.arch.rates
    assert rates is not None
    units = rates.fma_flops if atom.instruction == "fma" else rates.tensor_flops
    kind = "tf32" if atom.precision is not None else question.dtype.name
    return units.get(kind, rates.fma_flops["f32"]) * rates.boards[0].clock_mhz
