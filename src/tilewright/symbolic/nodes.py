"""The nodes of symbolic integers and conditions, with range, divisor and width of each.

`tilewright.symbolic.expr` builds nodes in canonical form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias, TypeVar, Union, cast, dataclass_transform

import numpy as np

from tilewright.argument_checks import is_integer, legal

Int: TypeAlias = Union[int, "Expr"]
INFINITY = math.inf
OperatorType = TypeVar("OperatorType", bound=Callable[..., Any])
NodeType = TypeVar("NodeType")


def _of_integers(operator: OperatorType) -> OperatorType:
    """Return an operator that gives NotImplemented for anything but integers, so that Python raises."""

    @functools.wraps(operator)
    def operate(self: Expr, other: Any) -> Any:
        known = isinstance(other, Expr) or is_integer(other)
        return operator(self, other) if known else NotImplemented

    return cast("OperatorType", operate)


_BUILT: dict[str, Callable[..., Int]] = {}
_SPELT: dict[str, Callable[..., str]] = {}


def builds(function: OperatorType) -> OperatorType:
    """Register a constructor for the operators of `Expr`, which are defined before it.

    Results are cached, because passes ask for the same sums and products repeatedly.
    Importing any module of `tilewright.symbolic` loads all constructors.
    """
    remembered = cast("OperatorType", functools.lru_cache(maxsize=16384)(function))
    _BUILT[function.__name__] = remembered
    return remembered


def spells(function: OperatorType) -> OperatorType:
    """Register a function that spells integers or conditions."""
    _SPELT[function.__name__] = function
    return function


def hashed_once(node: type[NodeType]) -> type[NodeType]:
    """Cache the hash of an immutable class, whose instances are nested and are keys of many tables."""
    computed = node.__hash__

    def __hash__(self: Any) -> int:  # noqa: N807
        try:
            return self._hash  # type: ignore[no-any-return]
        except AttributeError:
            object.__setattr__(self, "_hash", found := computed(self))
            return found

    node.__hash__ = __hash__  # type: ignore[method-assign]

    def __getstate__(self: Any) -> dict[str, Any]:  # noqa: N807
        # Hashes of strings differ between processes, so the hash is not pickled, and no other cached value.
        return {name: value for name, value in vars(self).items() if name in node.__dataclass_fields__}  # type: ignore[attr-defined]

    if "__dict__" in dir(node):
        node.__getstate__ = __getstate__  # type: ignore[method-assign]
    return node


@dataclass_transform(frozen_default=True)
def node(cls: type[NodeType]) -> type[NodeType]:
    """Make a class of nodes: an immutable record."""
    return hashed_once(dataclass(frozen=True, slots=True, repr=False)(cls))


class Expr:
    """A symbolic integer.  Build it with Python operators and the functions of `tilewright.symbolic.expr`."""

    __slots__ = ("_hash",)

    @_of_integers
    def __add__(self, other: Int) -> Int:
        return _BUILT["add"](self, other)

    __radd__ = __add__

    @_of_integers
    def __sub__(self, other: Int) -> Int:
        return _BUILT["add"](self, _BUILT["mul"](other, -1))

    @_of_integers
    def __rsub__(self, other: Int) -> Int:
        return _BUILT["add"](other, _BUILT["mul"](self, -1))

    def __neg__(self) -> Int:
        return _BUILT["mul"](self, -1)

    @_of_integers
    def __mul__(self, other: Int) -> Int:
        return _BUILT["mul"](self, other)

    __rmul__ = __mul__

    @_of_integers
    def __floordiv__(self, other: Int) -> Int:
        return _BUILT["floordiv"](self, other)

    @_of_integers
    def __rfloordiv__(self, other: Int) -> Int:
        return _BUILT["floordiv"](other, self)

    @_of_integers
    def __mod__(self, other: Int) -> Int:
        return _BUILT["mod"](self, other)

    @_of_integers
    def __rmod__(self, other: Int) -> Int:
        return _BUILT["mod"](other, self)

    @_of_integers
    def __xor__(self, other: Int) -> Int:
        return _BUILT["xor"](self, other)

    __rxor__ = __xor__

    def __bool__(self) -> bool:
        raise TypeError(f"the symbolic integer {self} has no truth value; compare it and use prove()")

    def __repr__(self) -> str:
        return _SPELT["format_int"](self)


@node
class Sym(Expr):
    """A named unknown integer.

    Args:
        name: unique within a kernel.
        low: smallest value.
        high: largest value, or None if unbounded.
        divisor: a positive integer that divides every value.
        stop: a symbolic exclusive upper bound, if one is known (loop and block indices).
    """

    name: str
    low: int = 0
    high: int | None = None
    divisor: int = 1
    stop: Int | None = None


@node
class Add(Expr):
    """``constant + sum(coefficient * term)``; terms are distinct, ordered, and no sums themselves."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int


@node
class Mul(Expr):
    """A product of two or more symbolic factors (constants live in the enclosing sum)."""

    factors: tuple[Expr, ...]


@node
class FloorDiv(Expr):
    """``floor(left / right)``."""

    left: Int
    right: Int


@node
class Mod(Expr):
    """``left - right * floor(left / right)``."""

    left: Int
    right: Int


@node
class Xor(Expr):
    """Bitwise exclusive or of two non-negative integers."""

    left: Expr
    right: Int


@node
class Min(Expr):
    """The smaller of two integers."""

    left: Int
    right: Int


@node
class Max(Expr):
    """The larger of two integers."""

    left: Int
    right: Int


@node
class Select(Expr):
    """``left`` if ``cond`` holds, else ``right``."""

    cond: Cond
    left: Int
    right: Int


@node
class Element(Expr):
    """An integer that lies in memory: element ``at`` of the buffer called ``table``.

    Args:
        table: the whole buffer; in an evaluation its value is a function of ``at``.
        at: the element's offset.
        low: the smallest value.
        high: the largest value.
    """

    table: Sym
    at: Int
    low: int
    high: int


class Cond:
    """A truth value over symbolic integers."""

    __slots__ = ("_hash",)

    def __bool__(self) -> bool:
        raise TypeError(f"the condition {self} has no truth value; use prove()")

    def __repr__(self) -> str:
        return _SPELT["format_cond"](self)


@node
class Constant(Cond):
    """A condition that is known to be true or false."""

    value: bool


@node
class Less(Cond):
    """``left < right``."""

    left: Int
    right: Int


@node
class Equal(Cond):
    """``left == right``."""

    left: Int
    right: Int


@node
class And(Cond):
    """All of the parts hold."""

    parts: tuple[Cond, ...]


@node
class Or(Cond):
    """Some of the parts hold."""

    parts: tuple[Cond, ...]


@node
class Not(Cond):
    """The part does not hold."""

    part: Cond


legal(
    "Int",
    "an integer of 64 bits or a symbolic one",
    "integers",
    lambda v: isinstance(v, Expr) or is_integer(v),
)
Place: TypeAlias = Any
"""An index: an integer, a symbolic one, or a NumPy array of integers."""

legal(
    "Place",
    "an integer, a symbolic one, or an array of integers",
    "integers",
    lambda value: (
        isinstance(value, Expr)
        or is_integer(value)
        or (isinstance(value, np.ndarray) and value.dtype.kind in "iu")
    ),
)
legal("Cond", "a condition", "conditions", lambda value: isinstance(value, Cond))

TRUE = Constant(True)
FALSE = Constant(False)


# ---------------------------------------------------------------- range, divisor and width


@lru_cache(maxsize=16384)
def bounds(value: Int) -> tuple[float, float]:
    """Return the least and greatest possible value: exact integers, or infinity if unknown."""
    match value:
        case Sym():
            unit = max(value.divisor, 1)
            most = INFINITY if value.high is None else value.high // unit * unit
            return -(-value.low // unit) * unit, most
        case Add():
            low: float = value.constant
            high: float = value.constant
            for term, factor in value.terms:
                a, b = (_times(end, factor) for end in bounds(term))
                low, high = low + min(a, b), high + max(a, b)
            return low, high
        case Mul():
            low = high = 1
            for factor_expr in value.factors:
                ends = [_times(x, y) for x in (low, high) for y in bounds(factor_expr)]
                low, high = min(ends), max(ends)
            return low, high
        case FloorDiv():
            low, high = bounds(value.left)
            a, b = bounds(value.right)
            a = max(a, 1)
            ends = [x if abs(x) == INFINITY else int(x // y) for x in (low, high) for y in (a, b)]
            return min(ends), max(ends)
        case Mod():
            _, high = bounds(value.right)
            low_left, high_left = bounds(value.left)
            return 0, min(high - 1, high_left if low_left >= 0 else high - 1)
        case Xor():
            # No more bits than the operands; negative if exactly one of them is.
            four = (*bounds(value.left), *bounds(value.right))
            if max(map(abs, four)) == INFINITY:
                return (0 if min(four) >= 0 else -INFINITY), INFINITY
            span = 1 << max(int(max(end, -1 - end)).bit_length() for end in four)
            return (0 if min(four) >= 0 else -span), span - 1
        case Min() | Max():
            pick = min if isinstance(value, Min) else max
            (a, b), (c, d) = bounds(value.left), bounds(value.right)
            return pick(a, c), pick(b, d)
        case Select():
            (a, b), (c, d) = bounds(value.left), bounds(value.right)
            return min(a, c), max(b, d)
        case Element():
            return value.low, value.high
        case _:
            return value, value  # type: ignore[return-value]


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


@lru_cache(maxsize=16384)
def divisor(value: Int) -> int:
    """Return the largest known integer that divides every value; 0 for the constant 0."""
    match value:
        case Sym():
            return value.low if value.low == value.high and value.low >= 0 else value.divisor
        case Add():
            return math.gcd(value.constant, *(factor * divisor(term) for term, factor in value.terms))
        case Mul():
            return math.prod(divisor(factor) for factor in value.factors)
        case FloorDiv():
            known = divisor(value.left)
            return known // value.right if isinstance(value.right, int) and known % value.right == 0 else 1
        case Mod():
            return math.gcd(divisor(value.left), divisor(value.right))
        case Xor():
            both = math.gcd(divisor(value.left), divisor(value.right))
            return both & -both
        case Min() | Max() | Select():
            return math.gcd(divisor(value.left), divisor(value.right))
        case Element():
            return 1
        case _:
            return abs(int(value))  # type: ignore[arg-type]


def bits(value: Int) -> int:
    """Return the width of a signed integer that holds every value: 32 if that is proved, else 64."""
    low, high = bounds(value)
    return 32 if low >= -(2**31) and high < 2**31 else 64
