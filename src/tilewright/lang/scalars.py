"""Symbolic integers and conditions as the author sees them.

`Scalar` wraps an index expression.  Unlike the expression itself, it compares symbolically: ``==`` gives a
`Condition`.  It raises an error if Python needs its truth value: tracing would silently keep only one case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, TypeAlias, Union

import numpy as np

from tilewright.argument_checks import is_integer, legal
from tilewright.errors import TraceError, shown
from tilewright.lang.numpy_functions import apply_ufunc, no_numpy_function
from tilewright.lang.source import author_frame, here, instruction_at, origin
from tilewright.lang.tracer import current, inline, located, open_region
from tilewright.symbolic import expr
from tilewright.symbolic.nodes import Cond, Constant, Expr, Int, bounds
from tilewright.symbolic.rebuilding import Guard, symbols

Index: TypeAlias = Union[int, "Scalar"]
legal(
    "Index",
    "an integer, a constant or one that the running kernel knows",
    "integers",
    # Values of other types reach `unwrap`, which raises the error with the fix.
    lambda value: isinstance(value, Expr | Collective | InMemory) or is_integer(value),
)


class InMemory:
    """Base class of tensors: an integer in memory is not a `Scalar` until it is read."""


class Collective:
    """Base class of fragments and numbers, whose arithmetic accepts integers as operands."""

    _of_integer: ClassVar[Callable[[Expr], Any]]
    """Makes a number, in f64, of a symbolic integer."""


# ---------------------------------------------------------------- arithmetic with Python's semantics


FOUND = -(2**62)
"""A symbol with a lower bound below this comes from a variable; sizes and indices have tighter bounds."""


def _difference(left: Int, right: Int) -> Int:
    """``left - right``."""
    return expr.add(left, expr.mul(right, -1))


def _quotient(left: Int, right: Int) -> Int:
    """``left // right`` as in Python: rounded down."""
    if isinstance(right, int) and right < 0:
        return expr.floordiv(expr.mul(left, -1), -right)
    if _is_positive(left, right, "//"):
        return expr.floordiv(left, right)
    above, below = _divisors(right)
    return expr.select(
        expr.less(0, right), expr.floordiv(left, above), expr.floordiv(expr.mul(left, -1), below)
    )


def _remainder(left: Int, right: Int) -> Int:
    """``left % right`` as in Python: with the sign of the divisor."""
    if isinstance(right, int) and right < 0:
        return expr.mul(expr.mod(expr.mul(left, -1), -right), -1)
    if _is_positive(left, right, "%"):
        return expr.mod(left, right)
    above, below = _divisors(right)
    negative = expr.mul(expr.mod(expr.mul(left, -1), below), -1)
    return expr.select(expr.less(0, right), expr.mod(left, above), negative)


def _is_positive(left: Int, right: Int, sign: str) -> bool:
    """Return whether a divisor is assumed positive.

    A divisor that depends on a variable is not.  If the divisor depends only on the launch's sizes, the
    launcher checks it.  If it also depends on indices, for example the length of the last tile, the reference
    reports a divisor that is not positive.

    Raises:
        TraceError: the divisor is never positive.
    """
    low, high = bounds(right)
    if high <= 0 and not _is_of_variables(right):
        raise TraceError(f"division of {left} by {right}; divisors must be positive", here())
    if low >= 0:
        return True
    if _is_of_variables(right):
        return False
    tracer = current()
    if symbols(right) <= tracer.sizes and len(tracer.region_ids) == 1:
        tracer.guards.append(
            Guard(expr.less(0, right), f"`{left} {sign} ({right})`: the divisor must be positive")
        )
    return True


def _is_of_variables(divisor: Int) -> bool:
    """Return whether a divisor may be negative and depends on variables."""
    return bounds(divisor)[0] < 0 and any(sym.low < FOUND for sym in symbols(divisor))


def _divisors(right: Int) -> tuple[Int, Int]:
    """Return two positive divisors: one for a positive divisor, one for a negative divisor.

    Range analysis of quotients assumes positive divisors, so the caller moves the sign to the dividend.  The
    second is 0 if the divisor is 0, which the reference reports.
    """
    return expr.maximum(right, 1), expr.select(expr.less(0, right), 1, expr.mul(right, -1))


BinaryMethod: TypeAlias = Callable[[Any, Any], Any]


def _both(
    function: Callable[[Int, Int], Int], sign: Callable[[Any, Any], Any]
) -> tuple[BinaryMethod, BinaryMethod]:
    """Return the methods of a binary operator and of its reflection.

    They combine two integers to an integer, or to a number if one of them is a float.
    """

    def combined(left: Any, right: Any) -> Any:
        if isinstance(left, Collective) or isinstance(right, Collective):
            return NotImplemented
        if isinstance(left, float | np.floating) or isinstance(right, float | np.floating):
            return _number_of(sign, left, right)
        return wrap(function(unwrap(left), unwrap(right)))

    return combined, lambda self, other: combined(other, self)


def _compared(compare: Callable[[Int, Int], Cond]) -> Callable[[Any, Any], Condition]:
    """Return the method of a comparison."""

    def method(self: Scalar, other: Index) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(compare(self.expr, unwrap(other)))

    return method


def _number_of(sign: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Apply an operator to a kernel integer and a number: compute in f64, and round once to f32."""
    made = [
        Collective._of_integer(value.expr) if isinstance(value, Scalar) else value for value in (left, right)
    ]
    return sign(*made).to("f32")


def _shift_count(count: object) -> int:
    """Return the number of bits by which an integer is shifted.

    Raises:
        TraceError: the number is not a constant, or is negative.
    """
    if not isinstance(count, int) or not 0 <= count < 64:
        raise TraceError(f"shift by {shown(count)}; the count is a constant, from 0 to 63", here())
    return count


# ---------------------------------------------------------------- integers and conditions


class _UnhashableError(TraceError, TypeError):
    """The error that Python expects from an unhashable object, with the author's line."""


@inline.made("an index of tw.range, a block's index or an extent of an array is one, in a kernel")
class Scalar:
    """An integer known only when the kernel runs: a size, a block's or a loop's index; see `range`."""

    __slots__ = ("expr", "region")

    def __init__(self, value: Expr) -> None:
        self.expr = value
        self.region = open_region()

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Accept NumPy numbers as operands; refuse NumPy functions."""
        return apply_ufunc(self, Scalar | np.number, ufunc, method, inputs)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise no_numpy_function(function.__name__, self)

    __add__, __radd__ = _both(expr.add, operator.add)
    __sub__, __rsub__ = _both(_difference, operator.sub)
    __mul__, __rmul__ = _both(expr.mul, operator.mul)
    __floordiv__, __rfloordiv__ = _both(_quotient, operator.floordiv)
    __mod__, __rmod__ = _both(_remainder, operator.mod)
    __xor__, __rxor__ = _both(expr.xor, operator.xor)
    __lt__ = _compared(expr.less)
    __le__ = _compared(expr.less_equal)
    __gt__ = _compared(lambda left, right: expr.less(right, left))
    __ge__ = _compared(lambda left, right: expr.less_equal(right, left))
    __eq__ = _compared(expr.equal)  # type: ignore[assignment]

    def __divmod__(self, other: Index) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: Index) -> tuple[Any, Any]:
        return other // self, other % self

    def __truediv__(self, other: Any) -> Any:
        return NotImplemented if isinstance(other, Collective) else _number_of(operator.truediv, self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _number_of(operator.truediv, other, self)

    def __pow__(self, other: Any) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        if not isinstance(other, int) or other < 0:
            raise TraceError(
                f"{shown(self)} ** {shown(other)}: an integer has powers of constants that are not negative",
                here(),
                "the power of a fragment",
            )
        return wrap(expr.product(*(self.expr,) * other) if other else 1)

    def __rpow__(self, other: object) -> NoReturn:
        text = f"{shown(other)} ** {shown(self)}: the exponent is known only when the kernel runs"
        raise TraceError(text, here(), "a constant exponent, or the power of a fragment")

    def __neg__(self) -> Index:
        return wrap(expr.mul(self.expr, -1))

    def __pos__(self) -> Index:
        return self

    def __abs__(self) -> Index:
        return maximum(self, -self)

    def __invert__(self) -> Index:
        return wrap(expr.add(expr.mul(self.expr, -1), -1))

    def __lshift__(self, other: int) -> Any:
        return NotImplemented if isinstance(other, Collective) else self * (1 << _shift_count(other))

    def __rshift__(self, other: int) -> Any:
        return NotImplemented if isinstance(other, Collective) else self // (1 << _shift_count(other))

    def __and__(self, other: object) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        if isinstance(other, int) and other >= 0 and not other & (other + 1):
            return self % (other + 1)
        rule = "`x & 7` and `x % 8` give the low 3 bits"
        text = f"{shown(self)} & {shown(other)}: integers have the bitwise and of their low bits only; {rule}"
        raise TraceError(text, here())

    __rand__ = __and__

    def __or__(self, other: object) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        rule = "`x + 8` sets a bit that is not set"
        text = f"{shown(self)} | {shown(other)}: integers have no bitwise or; {rule}"
        raise TraceError(text, here())

    __ror__ = __or__

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return ~(self == other)

    def __hash__(self) -> NoReturn:
        raise _UnhashableError(f"{self} cannot be a key or in a set: its value is not known yet", here())

    def __bool__(self) -> NoReturn:
        raise undecided(f"{self} != 0")

    def __index__(self) -> NoReturn:
        near = "use `tw.range` for a loop, or make it a keyword-only constant of the kernel"
        text = f"{self} is not known while the kernel is traced, but a Python integer is needed here; {near}"
        raise TraceError(text, here())

    __int__ = __index__

    def __repr__(self) -> str:
        return str(self.expr)


@inline.made("a comparison of integers in a kernel, i < n, gives one")
class Condition:
    """A truth value that is known only when the kernel runs; combine with ``&``, ``|`` and ``~``.

    Made by comparing a `Scalar`; see `when`.
    """

    __slots__ = ("cond", "region")

    def __init__(self, cond: Cond) -> None:
        self.cond = cond
        self.region = open_region()

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise no_numpy_function(function.__name__, self)

    def __and__(self, other: Condition | bool) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.all_of(self.cond, unwrap_condition(other)))

    __rand__ = __and__

    def __or__(self, other: Condition | bool) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.any_of(self.cond, unwrap_condition(other)))

    __ror__ = __or__

    def __invert__(self) -> Condition:
        return Condition(expr.negate(self.cond))

    def __bool__(self) -> bool:
        if isinstance(self.cond, Constant):
            return self.cond.value
        raise undecided(str(self))

    def __eq__(self, other: object) -> NoReturn:
        raise TraceError(f"`{self}` compared with {shown(other)}; combine conditions with & | ~", here())

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(self.cond)


def undecided(what: str) -> TraceError:
    """Return the error for the truth value of a condition that only the running kernel knows."""
    asked = instruction_at(author_frame()).opname
    advice = "use `with tw.when(condition):` for a branch, and &, | and ~ in place of and, or and not"
    if asked == "CONTAINS_OP":
        advice = "`in` compares one by one; write the comparisons, joined by |"
    elif asked.startswith("CALL"):
        advice = (
            "min and max are `tw.minimum` and `tw.maximum` here; for a branch use `with tw.when(condition):`"
        )
    return TraceError(
        f"whether {what} is known only when the kernel runs, Python cannot decide on it; {advice}", here()
    )


def wrap(value: Int) -> Index:
    """Wrap an integer for the author."""
    return Scalar(value) if isinstance(value, Expr) else value


def unwrap(value: object) -> Int:
    """Return the integer of a value that the author wrote.

    Raises:
        TraceError: the value is not an integer.
    """
    if isinstance(value, Scalar):
        return value.expr
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Expr):
        return value
    if isinstance(value, InMemory):
        raise TraceError(f"{value!r} is in memory", here(), "tw.index(...), which loads it as an integer")
    if isinstance(value, Collective):
        rule = "quotients of integers that are integers are `//`, `%` and `tw.ceil_div`"
        text = f"{value!r} is not an integer; {rule}"
        raise TraceError(text, here())
    raise TraceError(f"{shown(value)} of type {type(value).__name__} is not an integer", here())


def unwrap_condition(value: object) -> Cond:
    """Return the condition of a value that the author wrote."""
    if isinstance(value, Condition):
        return value.cond
    if isinstance(value, bool):
        return Constant(value)
    raise TraceError(f"{shown(value)} of type {type(value).__name__} is not a condition", here())


def as_tuple(value: object) -> tuple[Any, ...]:
    """Return a tuple, or wrap a single value in one."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


@inline
def ceil_div(extents: Any, tiles: Any) -> Any:
    """``ceil(extents / tiles)``, for integers or, element by element, for tuples of equal length.

    Example:
        >>> ceil_div((130, 64), (128, 64))
        (2, 1)
    """
    if isinstance(extents, tuple | list):
        if len(extents) != len(as_tuple(tiles)):
            raise TraceError(f"ceil_div of {len(extents)} extents by {len(as_tuple(tiles))} tiles", here())
        return tuple(_ceil_div(extent, tile) for extent, tile in zip(extents, as_tuple(tiles), strict=True))
    return _ceil_div(extents, tiles)


def _ceil_div(extent: Any, tile: Any) -> Index:
    with located():
        left, right = unwrap(extent), unwrap(tile)
        if not _is_of_variables(right):
            return wrap(expr.ceil_div(left, right))
        return wrap(expr.mul(_quotient(expr.mul(left, -1), right), -1))


def from_end(what: str, index: Int, count: Int, past: int = 0) -> Int:
    """Return an index below ``count``; as in Python, a negative constant counts from the end.

    Args:
        what: the name of the index in messages.
        index: the index.
        count: the number of elements.
        past: 1 if the index may be one past the last element.

    Raises:
        TraceError: a constant index lies outside a constant count.
    """
    if isinstance(index, int) and isinstance(count, int) and not -count <= index < count + past:
        if origin() is not None:  # no branch of the schedule reaches it; `Tensor` hides it
            return index
        raise TraceError(f"{what} is outside [{-count}, {count}{']' if past else ')'}", here())
    return expr.add(count, index) if isinstance(index, int) and index < 0 else index


def spelled_slice(part: slice) -> str:
    """Return the text of a slice in brackets."""
    ends = ("" if end is None else str(end) for end in (part.start, part.stop))
    return ":".join(ends) + (f":{part.step}" if part.step is not None else "")


@inline
def minimum(left: Index, right: Index) -> Index:
    """Return the smaller of two integers."""
    return wrap(expr.minimum(unwrap(left), unwrap(right)))


@inline
def maximum(left: Index, right: Index) -> Index:
    """Return the larger of two integers."""
    return wrap(expr.maximum(unwrap(left), unwrap(right)))


# ---------------------------------------------------------------- integers that are known while tracing


def ints(values: Index | Sequence[Index]) -> tuple[Int, ...]:
    """Unwrap one or several integers that the author wrote."""
    return tuple(unwrap(value) for value in as_tuple(values))


def static(what: str, values: int | Sequence[int]) -> tuple[int, ...]:
    """Return integers that must be known while the kernel is traced.

    Raises:
        TraceError: one of them is symbolic.
    """
    found = ints(values)
    if not all(isinstance(value, int) for value in found):
        near = "make it a keyword-only constant of the kernel"
        text = f"{what} {found} must be known while the kernel is traced; {near}"
        raise TraceError(text, here())
    return tuple(value for value in found if isinstance(value, int))


def constant(what: str, value: int) -> int:
    """Return an integer that must be known while the kernel is traced; see `static`."""
    return static(what, value)[0]


def project(what: str, values: Sequence[Any], projection: Sequence[int | None] | None) -> Sequence[Any]:
    """Return the values whose entry in a projection is not None; all values without a projection.

    Raises:
        TraceError: the projection has a different length.
    """
    if projection is None:
        return values
    if len(projection) != len(values):
        raise TraceError(f"projection {tuple(projection)} for a {what} of {len(values)} entries", here())
    return [value for value, keep in zip(values, projection, strict=True) if keep is not None]
