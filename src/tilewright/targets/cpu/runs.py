"""Runs of neighbours: where an innermost loop divides its index by an extent, the turns of one quotient.

Rows of an im2col matrix, or of merged dimensions, are runs that lie apart: element ``e`` of a row is element
``e % C`` of run ``e // C``.  Divided anew for each element they take longer than everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tilewright.symbolic.expr import add, expand, floordiv, mul
from tilewright.symbolic.nodes import Cond, FloorDiv, Int, Mod, Sym
from tilewright.symbolic.rebuilding import parts, replaced, slope, substitute, symbols
from tilewright.targets.cpu.loops import Nest


@dataclass(frozen=True)
class Runs:
    """How the turns of the innermost loop fall into runs.

    Args:
        first: what its index 0 is, of all elements of the row.
        length: of a run.
        number: which run it is.
        loops: the nest, in which no index of the innermost loop is divided.
    """

    first: Int
    length: Int
    number: Sym
    loops: Nest


def runs(loops: Nest, local: Callable[[str], str]) -> Runs | None:
    """The runs of a nest whose source is read run by run; None if there are none.

    Args:
        loops: over a source and a target.
        local: makes a name for a variable.
    """
    if not loops.axes:
        return None
    index = loops.axes[-1].sym
    divided = {*_divided((*loops.offsets, *loops.conditions), index)}
    if not divided or len({node.left for node in divided}) > 1:
        return None
    (dividend,) = {node.left for node in divided}
    length = min((node.right for node in divided), key=lambda right: len(str(right)))
    if isinstance(length, int):  # such loops are split already where that helps
        return None
    number = Sym(local("run"), 0, None)
    known: dict[Int, Int] = {}
    for node in divided:
        factor = _factor(node.right, length)
        if factor is None:
            return None
        quotient = floordiv(number, factor)
        rest = add(dividend, mul(mul(quotient, node.right), -1))
        known[node] = quotient if isinstance(node, FloorDiv) else rest
    offsets = tuple(expand(replaced(offset, known)) for offset in loops.offsets)
    conditions = tuple(replaced(condition, known) for condition in loops.conditions)
    if index in symbols(conditions[0]) | symbols(conditions[1]) or any(
        slope(offset, index) is None for offset in offsets
    ):
        return None
    made = Nest(loops.axes, offsets, conditions)
    return Runs(substitute(dividend, {index: 0}), length, number, made)


def _divided(values: tuple[Int | Cond, ...], index: Sym) -> Iterator[FloorDiv | Mod]:
    """Where an integer is divided that grows with the index, by one for each turn."""
    for value in values:
        for part in parts(value):
            if (
                isinstance(part, FloorDiv | Mod)
                and index in symbols(part.left)
                and slope(part.left, index) == 1
            ):
                yield part


def _factor(divisor: Int, length: Int) -> int | None:
    """How many times the length a divisor is."""
    for factor in range(1, MOST_TAPS + 1):
        if expand(add(divisor, mul(length, -factor))) == 0:
            return factor
    return None


MOST_TAPS = 64
"""Of a filter along one dimension."""
