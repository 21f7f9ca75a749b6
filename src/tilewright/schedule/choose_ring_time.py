"""How long products take on GPUs whose operands come without bulk copies, but those of `choose_fma_time`.

The multiprocessor with most blocks is followed: what counts is how soon stage after stage arrives, how often
blocks follow each other, and how many bytes the second-level cache delivers.  The constants were fitted to
products of f16 by ``mma.sync`` in 1 to 132 parts of K on an H200; parts are added up as in `choose_fma_time`.
"""

from __future__ import annotations

from tilewright.schedule.choose import Question
from tilewright.schedule.choose_fma_time import OVERLAP, Load
from tilewright.schedule.choose_occupancy import resident
from tilewright.schedule.choose_parts import parts_under, tiles_of
from tilewright.schedule.memory import flops_of, memory_us
from tilewright.schedule.schedule import Schedule

FIXED_US = 5.0
"""Of a launch."""

BLOCK_US = 4.0
"""Of a block besides its steps: its start, the first stage, and its results."""

ARRIVAL_US = 0.69
"""From the request of a stage to its arrival."""

ISSUED = 1.3
"""How many times as long as by the machine's rate multiplying takes. An estimate."""


def is_ring(question: Question, schedule: Schedule) -> bool:
    """Whether it is a schedule without bulk copies, on a GPU whose rates are known.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    return schedule.staging != "tma" and question.arch.lanes > 1 and question.arch.rates is not None


def path_us(question: Question, schedule: Schedule) -> float:
    """Of the multiprocessor with most blocks.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    load, processors = Load(question, schedule), max(question.processors, 1)
    parts, tiles = parts_under(question, schedule), tiles_of(question, schedule)
    if schedule.split_k == "stream":  # whose blocks begin and end within tiles
        blocks, steps = max(schedule.blocks // processors, 1), -(-tiles * load.steps // schedule.blocks)
    else:
        blocks, steps = max(-(-tiles * parts // processors), 1), -(-load.steps // parts)
    rounds = -(-blocks // min(blocks, resident(question, schedule)))
    rows, columns, depth = schedule.tile
    multiply = blocks * steps * 2 * rows * columns * depth / flops_of(question, schedule) * ISSUED
    arriving = rounds * steps * ARRIVAL_US / max(schedule.stages - 1, 1)
    return max(multiply, arriving) + (rounds + (schedule.split_k == "stream")) * BLOCK_US


def ring_us(question: Question, schedule: Schedule) -> float:
    """Estimated time of a schedule for which `is_ring` holds.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    load = Load(question, schedule)
    waits = (path_us(question, schedule), memory_us(question), load.cached_us())
    overlapped: float = sum(wait**OVERLAP for wait in waits) ** (1 / OVERLAP)
    return FIXED_US + overlapped + load.meeting_us()
