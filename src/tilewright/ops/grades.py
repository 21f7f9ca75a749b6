"""How exactly f32 is multiplied on tensor cores, and from what size on operands are split for it."""

from __future__ import annotations

from math import prod

from tilewright.ops.problem import Problem

F32, F16 = "f32", "f16"
GRADES = {F32: 2, F16: 1}
"""How many halves of each number are multiplied, by the precision that is asked for."""

MOST_RANK = 2
"""Dimensions of batches of an operand that is split."""

FASTER_FROM = 2.0**28
"""Multiplications from which splitting the operands is faster than multiply-adds of f32."""


def pays(problem: Problem) -> bool:
    """Whether tensor cores are faster with operands that are split first."""
    operands = (problem.operands["a"], problem.operands["b"])
    is_flat = all(len(one.shape) - 2 <= MOST_RANK for one in operands)
    return is_flat and prod(problem.batch) * problem.m * problem.n * problem.k >= FASTER_FROM
