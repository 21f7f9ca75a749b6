"""Values of a loop that depend on a running extreme: powers of it, and its index.

If all terms of a sum have the factor ``f(h(extreme))``, with a linear ``h`` and ``f`` one of `POWERS`, the
sum is rescaled from one extreme to another by the factor ``f(h(new) - h(old))``.

The index of an extreme is the smallest position whose element is the extreme of the row, or NaN:
``where((x == top) | (x != x), positions, NOWHERE).min``.  A loop carries it as the companion of the extreme.
A step replaces the index if its own extreme exceeds the extreme so far, or is the first NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, TypeGuard

from tilewright.dataflow.nodes import (
    Axis,
    Cell,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Position,
    Rearrange,
    Reduce,
    Span,
    Sum,
)
from tilewright.dtypes import DType, boolean
from tilewright.lang.dataflow.recorder import holds_all
from tilewright.lang.tile_arithmetic import NOWHERE
from tilewright.schedule.factors import plain

POWERS = ("exp", "exp2")
"""Functions for which ``f(x + y) = f(x) f(y)``."""

OLD, NEW = "old", "new"

Exponent = dict[tuple[int, str], tuple[float, tuple[Any, ...]]]
"""A linear function of extremes: (cell, `OLD` or `NEW`) -> its coefficient, a number times named values."""

Weight = tuple[str, tuple[Any, ...]]
"""The factor that all terms of a value share: a function of `POWERS`, and the exponent as sorted items."""

PLAIN: Weight = ("", ())
"""The weight of a value that depends on no cell."""

ZERO: Weight = ("0", ())
"""The weight of the value 0, which matches every other weight."""


class Powers:
    """Analysis of values as powers of the extremes of a loop.

    Args:
        span: the span of the loop.
        old: the number of each extreme, by the `id` of its node before a step.
        new: the number of each extreme, by the `id` of its node after a step.
        is_free: function that says whether a value depends on no carried value.
        carried: the `id` of other carried values; a value that depends on one has no weight.
        is_bounded: function that says whether the power of an exponent cannot overflow in a step; default:
            always True, because the author wrote the loop.
    """

    def __init__(
        self,
        span: Span,
        old: Mapping[int, int],
        new: Mapping[int, int],
        is_free: Callable[[Node], bool],
        carried: Collection[int] = (),
        is_bounded: Callable[[Node], bool] = lambda exponent: True,
    ) -> None:
        self.span, self.old, self.new, self.is_free = span, old, new, is_free
        self.carried, self.is_bounded = carried, is_bounded
        self.named: dict[str, Node] = {}
        """The values that multiply extremes, by their names in exponents."""

    def exponent(self, node: Node) -> Exponent | None:
        """Return a value as a linear function of extremes, without terms that need no cell; or None."""
        if id(node) in self.new:
            return {(self.new[id(node)], NEW): (1.0, ())}
        if id(node) in self.old:
            return {(self.old[id(node)], OLD): (1.0, ())}
        if self.is_free(node):
            return {}
        match node:
            case Rearrange(argument=argument):
                return self.exponent(argument)
            case Map(function="neg", given=(one,)):
                return _scaled(self.exponent(one), (-1.0, ()))
            case Map(function="add", given=(left, right)):
                return _together(self.exponent(left), self.exponent(right))
            case Map(function="sub", given=(left, right)):
                return _together(self.exponent(left), _scaled(self.exponent(right), (-1.0, ())))
            case Map(function="mul", given=(left, right)):
                return self._product(left, right)
            case Map(function="fma", given=(left, right, more)):
                return _together(self._product(left, right), self.exponent(more))
        extreme = finite(node)
        return None if extreme is None else self.exponent(extreme)

    def _product(self, left: Node, right: Node) -> Exponent | None:
        """The product of a linear function and a value that depends on no cell."""
        if self.is_free(left):
            left, right = right, left
        if self.is_free(left) and self.is_free(right):
            return {}
        if not self.is_free(right) or self.span in right.axes:
            return None
        return _scaled(self.exponent(left), self._factor(right))

    def _factor(self, node: Node) -> tuple[float, tuple[Any, ...]]:
        """A value as a number times names; equal values have equal names."""
        node = plain(node)
        match node:
            case Literal(value=value):
                return float(value), ()
            case Map(function="mul", given=(left, right)):
                return times(self._factor(left), *self._factor(right))
            case Map(function="neg", given=(one,)):
                return times(self._factor(one), -1.0)
            case NumberParam(name=name):
                pass
            case Integer(value=value):
                name = repr(value)
            case _:
                name = str(id(node))
        self.named[name] = node
        return 1.0, (name,)

    def weight(self, node: Node) -> Weight | None:
        """The weight that all terms of a value share; None if they share none."""
        if isinstance(node, Literal) and node.value == 0:
            return ZERO
        if self.is_free(node):
            return PLAIN
        if id(node) in self.carried:
            return None
        match node:
            case Rearrange(argument=argument) | Reduce(combine="sum", argument=argument):
                return self.weight(argument)
            case Map(function=function, given=(one,)) if function == "neg" or (
                function == "convert" and node.dtype.is_float
            ):
                return self.weight(one)
            case Map(function="exp" | "exp2" as function, given=(one,)):
                exponent = self.exponent(one)
                if exponent is None or any(part == OLD for _, part in exponent) or not self.is_bounded(one):
                    return None
                return function, tuple(sorted(exponent.items(), key=repr))
            case Map(function="add" | "sub", given=(left, right)):
                return _shared(self.weight(left), self.weight(right))
            case Map(function="select", given=(condition, left, right)) if self.is_free(condition):
                return _shared(self.weight(left), self.weight(right))
            case Map(function="mul", given=(left, right)) | Sum(a=left, b=right, scale_a=None, scale_b=None):
                weights = (self.weight(left), self.weight(right))
                return next((one for one in weights if one != PLAIN), PLAIN) if PLAIN in weights else None
            case Map(function="div", given=(left, right)) if self.is_free(right):
                return self.weight(left)
            case Map(function="fma", given=(left, right, more)):
                weights = (self.weight(left), self.weight(right))
                both = next((one for one in weights if one != PLAIN), PLAIN) if PLAIN in weights else None
                return _shared(both, self.weight(more))
        return None


def finite(node: Node) -> Node | None:
    """The extreme in ``where(extreme == limit, 0, extreme)``; None for other values.

    The limit is the neutral element of the extreme.  If the extreme is the limit, all its values are, and
    every term that has a power of the extreme is 0.
    """
    match node:
        case Map(
            function="select",
            given=(Map(function="equal", given=(one, Literal(value=limit))), Literal(value=0), other),
        ) if one is other:
            match one:
                case Reduce(combine=name) | Map(function=name):
                    lowest = {"max": -float("inf"), "min": float("inf")}.get(name)
                case Cell(start=Literal(value=first)):
                    lowest = math.copysign(float("inf"), first) if first else None
                case _:
                    lowest = None
            return one if limit == lowest else None
    return None


def times(
    factor: tuple[float, tuple[Any, ...]], number: float, names: tuple[Any, ...] = ()
) -> tuple[float, tuple[Any, ...]]:
    """The product of two factors, each a number times names."""
    return factor[0] * number, tuple(sorted((*factor[1], *names)))


def _scaled(exponent: Exponent | None, factor: tuple[float, tuple[Any, ...]]) -> Exponent | None:
    if exponent is None:
        return None
    return {key: times(one, *factor) for key, one in exponent.items()}


def _together(left: Exponent | None, right: Exponent | None) -> Exponent | None:
    """The sum of two linear functions of different extremes."""
    if left is None or right is None or left.keys() & right.keys():
        return None
    return left | right


def _shared(left: Weight | None, right: Weight | None) -> Weight | None:
    """The weight of a sum."""
    if ZERO in (left, right):
        return right if left == ZERO else left
    return left if left == right else None


# ---------------------------------------------------------------- indices of extremes


def extreme_of_place(node: Node, row: Span) -> Reduce | None:
    """Return the extreme of a row if a value is the extreme's first index, else None.

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
            if not isinstance(plain(place), Position):
                return None
            extreme = _extreme(hit)
            is_of_row = extreme is not None and extreme.argument.axes[extreme.axis] == row
            return extreme if is_of_row else None
    return None


def _extreme(hit: Node) -> Reduce | None:
    """The extreme in a comparison of elements with it; floats are also compared with NaN."""
    match hit:
        case Map(
            function="or",
            given=(Map(function="equal", given=(x, top)), Map(function="not_equal", given=(one, other))),
        ) if x is one is other:
            extreme = plain(top)
        case Map(function="equal", given=(x, top)) if not x.dtype.is_float:
            extreme = plain(top)
        case _:
            return None
    is_extreme = isinstance(extreme, Reduce) and extreme.combine in ("max", "min")
    return extreme if isinstance(extreme, Reduce) and is_extreme and extreme.argument is x else None


def moved_place(combine: str, place: Cell, first: Node, so_far: Cell, here: Node) -> Map:
    """The index of an extreme after a step.

    Args:
        combine: ``"max"`` or ``"min"``.
        place: the index before the step.
        first: the first index of the step's extreme.
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
    """The two values of ``low < high``, also if NaN counts as the extreme; None for other conditions."""
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


# ---------------------------------------------------------------- values of rows


def scaled_later(node: Sum) -> Node:
    """Rewrite ``(scale * q) @ k`` to ``scale * (q @ k)`` for a number ``scale``; other products stay.

    The number would widen an operand of f16 to f32; after the rewrite the product has the narrow operand.
    """
    match node.a:
        case Map(function="mul", given=(one, other)) if not (one.axes and other.axes):
            number, left = (one, other) if not one.axes else (other, one)
            if node.dtype != number.dtype or node.a.dtype != number.dtype or not left.axes:
                return node
            narrow = left
            while is_widened(narrow):
                narrow = narrow.given[0]
            if narrow is left:  # without the number, products of f32 may overflow
                return node
            made = replace(node, a=narrow)
            return Map(node.dtype, node.axes, "mul", (made, number), location=node.location)
    return node


def is_widened(node: Node) -> TypeGuard[Map]:
    """Whether a value is a conversion to a dtype that can represent all values of its argument."""
    return (
        isinstance(node, Map) and node.function == "convert" and holds_all(node.dtype, [node.given[0].dtype])
    )


def is_extreme(node: Reduce | Sum) -> bool:
    """Whether a reduction is a maximum or a minimum."""
    return isinstance(node, Reduce) and node.combine != "sum"


def guarded(node: Node) -> Node | None:
    """The row's maximum in ``max(maximum, number)``, or its minimum in ``min``; None for other values."""
    match node:
        case Map(function="max" | "min" as function, given=(left, right)):
            reduced, number = (right, left) if isinstance(left, Literal) else (left, right)
            if isinstance(reduced, Reduce) and reduced.combine == function and isinstance(number, Literal):
                return reduced
    return None


def reduction_of(node: Node) -> Reduce | Sum:
    """The reduction in ``max(maximum, number)`` or ``min(minimum, number)``, or the reduction itself."""
    found = guarded(node) or node
    assert isinstance(found, Reduce | Sum)
    return found


def converted(node: Node, kind: DType) -> Node:
    """A value in another dtype."""
    return node if node.dtype == kind else Map(kind, node.axes, "convert", (node,), location=node.location)


def fitted(node: Node, axes: tuple[Axis, ...]) -> Node:
    """A value of rows, with as many axes as ``axes``: a new axis of columns is added or removed."""
    while isinstance(node, Rearrange) and len(node.axes) != len(axes):
        node = node.argument
    if not node.axes or len(node.axes) == len(axes):
        return node
    return Rearrange(node.dtype, (*node.axes, *(None,) * (len(axes) - len(node.axes))), node)
