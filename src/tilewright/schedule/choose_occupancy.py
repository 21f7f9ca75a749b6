"""What a schedule without bulk copies takes of a multiprocessor, about: which share one, and which spill."""

from __future__ import annotations

from math import ceil

from tilewright.schedule.choose import Question
from tilewright.schedule.classes import coarse
from tilewright.schedule.resources import Case
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.settle import width

OTHER_REGISTERS = 48
"""Of a thread of multiply-adds, besides its sums and its operands of four steps."""

SUM_REGISTERS, TENSOR_REGISTERS = 4, 40
"""Of a thread of tensor cores where K is split: for each of its sums, which it also reads of other parts and
adds, and besides."""

LOOP_REGISTERS = 40
"""Of a thread that multiplies one tile while the next waits in registers, besides sums and operands."""

REGISTER_BYTES = 4

MOST_BLOCKS = 32
"""Of a multiprocessor, however small they are."""

SYSTEM_BYTES = 1024
"""Of shared memory, beside what a block asks for; the memory of a multiprocessor has room for one more."""

VECTOR = 4
"""Elements along K that a thread of multiply-adds reads at once."""


def registers_of(question: Question, schedule: Schedule) -> int:
    """Registers of a thread, about.

    Args:
        question: the problem.
        schedule: which splits K.
    """
    mma, sums = schedule.mma, schedule.mma.c().size_values * (2 if schedule.promote else 1)
    if schedule.atom.instruction == "fma":
        found = sums + mma.a(VECTOR).size_values + mma.b(VECTOR).size_values + OTHER_REGISTERS
    else:
        found = SUM_REGISTERS * sums + TENSOR_REGISTERS
    return min(int(found), question.arch.thread_registers)


def resident(question: Question, schedule: Schedule) -> int:
    """Blocks that a multiprocessor runs at once: what registers and shared memory allow.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    (rows, columns, depth), arch = schedule.tile, question.arch
    held = schedule.stages * (rows + columns) * depth * question.dtype.bytes
    of_memory = (arch.shared_bytes + SYSTEM_BYTES) // (held + SYSTEM_BYTES)
    unit = arch.register_unit
    of_a_thread = -(-registers_of(question, schedule) // unit) * unit
    of_registers = arch.registers // (schedule.mma.threads * of_a_thread)
    return max(min(MOST_BLOCKS, of_registers, of_memory), 1)


def spills(question: Question, schedule: Schedule) -> bool:
    """Whether the next tile, which waits in registers, certainly does not fit there beside the sums.

    What does not begin at a multiple of 4 bytes is loaded in pieces, of which each takes a register.

    Args:
        question: the problem.
        schedule: how it is computed.
    """
    if schedule.staging != "registers" or not question.arch.thread_registers:
        return False
    specs = {name: coarse(spec, question.arch) for name, spec in question.specs.items()}
    case = Case(schedule, question.form, specs, question.arch)
    held = 0
    for side in case.sides:
        loaded = side.rows * case.tile[2] * side.dtype.bytes / case.mma.threads
        held += ceil(loaded / min(width(side.spec), REGISTER_BYTES))
    return case.accumulators + held + LOOP_REGISTERS > question.arch.thread_registers
