"""Places of extremes: the first element of a row that is the largest, or the smallest.

The language writes a place as the smallest position whose element is the extreme of the row, or NaN:
``where((x == top) | (x != x), positions, NOWHERE).min``.  A loop along the row carries it as the companion of
the extreme: a step replaces the place if its own extreme is beyond that so far, or is the first NaN.
"""

from __future__ import annotations

from tilewright.dataflow.nodes import Cell, Literal, Map, Node, Position, Rearrange, Reduce, Span
from tilewright.dtypes import DType, boolean
from tilewright.lang.tile_arithmetic import NOWHERE


def extreme_of_place(node: Node, row: Span) -> Reduce | None:
    """The extreme of a row whose first place is a value; None for other values.

    Args:
        node: the value.
        row: the row.
    """
    match node:
        case Reduce(
            combine="min",
            argument=Map(function="select", given=(hit, place, Literal(value=value))),
            axis=axis,
        ) if value == NOWHERE and node.argument.axes[axis] == row:
            if not isinstance(_plain(place), Position):
                return None
            extreme = _extreme(hit)
            is_of_row = extreme is not None and extreme.argument.axes[extreme.axis] == row
            return extreme if is_of_row else None
    return None


def _extreme(hit: Node) -> Reduce | None:
    """The extreme that elements are compared with; those of floats may be NaN, too."""
    match hit:
        case Map(
            function="or",
            given=(
                Map(function="equal", given=(x, top)),
                Map(function="not_equal", given=(one, other)),
            ),
        ) if x is one is other:
            extreme = _plain(top)
        case Map(function="equal", given=(x, top)) if not x.dtype.is_float:
            extreme = _plain(top)
        case _:
            return None
    is_extreme = isinstance(extreme, Reduce) and extreme.combine in ("max", "min")
    return extreme if isinstance(extreme, Reduce) and is_extreme and extreme.argument is x else None


def _plain(node: Node) -> Node:
    """A value without new axes."""
    while isinstance(node, Rearrange):
        node = node.argument
    return node


def moved_place(combine: str, place: Cell, first: Node, so_far: Cell, here: Node) -> Map:
    """The place after a step.

    Args:
        combine: ``"max"`` or ``"min"``.
        place: the place so far.
        first: the place in the step.
        so_far: the extreme before the step.
        here: the extreme of the step.
    """

    def mapped(function: str, *given: Node, kind: DType = boolean) -> Map:
        return Map(kind, place.axes, function, given, location=first.location)

    beyond = mapped("less", *((so_far, here) if combine == "max" else (here, so_far)))
    if here.dtype.is_float:
        is_first_none = mapped("and", mapped("not_equal", here, here), mapped("equal", so_far, so_far))
        beyond = mapped("or", beyond, is_first_none)
    return mapped("select", beyond, first, place, kind=place.dtype)


def compared(condition: Node) -> tuple[Node, Node] | None:
    """The two values of ``low < high``, which may prefer NaN; None for other conditions."""
    match condition:
        case Map(function="less", given=(low, high)):
            return low, high
        case Map(
            function="or",
            given=(
                Map(function="less", given=(low, high)),
                Map(
                    function="and",
                    given=(
                        Map(function="not_equal", given=(new, same)),
                        Map(function="equal", given=(old, again)),
                    ),
                ),
            ),
        ) if new is same and old is again and {id(new), id(old)} == {id(low), id(high)}:
            return low, high
    return None
