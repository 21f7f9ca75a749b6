"""Operands that processors compute as their panels are packed: which they are, and how deep their tiles."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd

from tilewright.dataflow.nodes import Map, Number, Part, walk
from tilewright.schedule.factors import Factor
from tilewright.schedule.form import Form

FUNCTIONS = {"convert", "add", "sub", "mul"}
"""What they are computed by."""

RUN = 8
"""Of neighbours along K that have the elements beside them in common, there is a multiple."""

DEEPEST = 128
"""A panel so deep, as f32, and what it is computed of leave room in the first-level cache."""


def decoded_depth(form: Form) -> int:
    """How deep tiles are where operand B, and no other, is computed as its panels are packed; else 0.

    Args:
        form: what is computed.
    """
    if not form.is_single or not (form.a.is_plain or form.a.is_converted):
        return 0
    return depth_for(form.b.runs) if is_computed_in_panels(form.b) else 0


def depth_for(runs: Sequence[int]) -> int:
    """How deep tiles are that consist of whole runs along K, or lie in one; 0: runs are too short.

    Args:
        runs: how many neighbours have an element in common, for each array beside the operand.

    Example:
        >>> [depth_for([run]) for run in (32, 128, 96, 256, 40, 20, 4096)]
        [128, 128, 96, 128, 120, 0, 128]
    """
    run = gcd(*runs)
    if not run or run % RUN:
        return 0
    if run <= DEEPEST:
        return DEEPEST // run * run
    return next(depth for depth in range(DEEPEST, 0, -RUN) if run % depth == 0)


def is_computed_in_panels(factor: Factor) -> bool:
    """Whether an operand is made of its elements, and of those beside it that runs along K share, so.

    Args:
        factor: the operand.
    """
    if factor.is_plain or factor.is_converted or len(factor.runs) != len(factor.beside) or not factor.runs:
        return False
    for node in walk(factor.view):
        if isinstance(node, Map) and not (node.function in FUNCTIONS and node.dtype.is_float):
            return False
        if isinstance(node, Number) or (isinstance(node, Part) and factor.row not in node.at):
            return False
    return True
