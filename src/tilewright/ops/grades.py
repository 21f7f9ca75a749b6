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


MOST_ITEMS = 65535
"""Along a dimension of batches, of which an axis of a grid has no more."""


def pays(problem: Problem, *, batch_invariant: bool) -> bool:
    """Whether tensor cores are faster with operands that are split first.

    Args:
        problem: what is multiplied.
        batch_invariant: whether the answer must not depend on how many rows there are.
    """
    operands = (problem.operands["a"], problem.operands["b"])
    is_flat = all(len(one.shape) - 2 <= MOST_RANK for one in operands)
    if not is_flat or max(problem.batch, default=0) > MOST_ITEMS:
        return False
    return batch_invariant or prod(problem.batch) * problem.m * problem.n * problem.k >= FASTER_FROM
