"""Symbolic integers and conditions as the author sees them.

`Scalar` wraps an index expression.  Unlike the expression itself it compares symbolically (``==`` gives a
`Condition`) and refuses to be used where Python would have to decide: that would silently freeze one case.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn, TypeAlias, Union

import numpy as np

from tilewright.errors import TraceError, shown
from tilewright.kinds import is_integer, legal
from tilewright.lang import exact
from tilewright.lang.numpy_functions import no_numpy_function, operator_of
from tilewright.lang.source import author_frame, here, instruction_at
from tilewright.lang.tracer import located, open_region
from tilewright.lang.verbs import inline
from tilewright.symbolic import expr
from tilewright.symbolic.nodes import Cond, Constant, Expr, Int

Index: TypeAlias = Union[int, "Scalar"]
legal(
    "Index",
    "an integer, a constant or one that the running kernel knows",
    "integers",
    # Values of other types reach `unwrap`, which raises the error with the fix.
    lambda value: isinstance(value, Expr | Collective | InMemory) or is_integer(value),
)


class InMemory:
    """Base of tensors: an integer in memory is not a `Scalar` until it is read."""


class Collective:
    """Base of fragments and numbers, whose own arithmetic accepts integers as operands."""

    _of_integer: ClassVar[Callable[[Expr], Any]]
    """Makes a number, in f64, of a symbolic integer."""


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
        apply = operator_of(ufunc.__name__) if method == "__call__" else None
        if apply is None or not all(isinstance(i, Scalar | np.number) for i in inputs):
            raise no_numpy_function(ufunc.__name__, self)
        return apply(*(i.item() if isinstance(i, np.generic) else i for i in inputs))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise no_numpy_function(function.__name__, self)

    def __add__(self, other: Index) -> Any:
        return _of_two(exact.total, operator.add, self, other)

    def __radd__(self, other: Index) -> Any:
        return _of_two(exact.total, operator.add, other, self)

    def __sub__(self, other: Index) -> Any:
        return _of_two(exact.difference, operator.sub, self, other)

    def __rsub__(self, other: Index) -> Any:
        return _of_two(exact.difference, operator.sub, other, self)

    def __mul__(self, other: Index) -> Any:
        return _of_two(exact.product, operator.mul, self, other)

    def __rmul__(self, other: Index) -> Any:
        return _of_two(exact.product, operator.mul, other, self)

    def __floordiv__(self, other: Index) -> Any:
        return _of_two(exact.quotient, operator.floordiv, self, other)

    def __rfloordiv__(self, other: Index) -> Any:
        return _of_two(exact.quotient, operator.floordiv, other, self)

    def __mod__(self, other: Index) -> Any:
        return _of_two(exact.rest, operator.mod, self, other)

    def __rmod__(self, other: Index) -> Any:
        return _of_two(exact.rest, operator.mod, other, self)

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
                f"{self} ** {other}: an integer has powers of constants that are not negative; nearest legal "
                "choice: the power of a fragment",
                here(),
            )
        return wrap(expr.product(*(self.expr,) * other) if other else 1)

    def __rpow__(self, other: object) -> NoReturn:
        raise TraceError(
            f"{other} ** {self}: the exponent is known only when the kernel runs; nearest legal choice: a "
            "constant exponent, or the power of a fragment",
            here(),
        )

    def __neg__(self) -> Index:
        return wrap(expr.mul(self.expr, -1))

    def __pos__(self) -> Index:
        return self

    def __abs__(self) -> Index:
        return maximum(self, -self)

    def __invert__(self) -> Index:
        return wrap(expr.add(expr.mul(self.expr, -1), -1))

    def __xor__(self, other: Index) -> Any:
        return _of_two(expr.xor, operator.xor, self, other)

    def __rxor__(self, other: Index) -> Any:
        return _of_two(expr.xor, operator.xor, other, self)

    def __lshift__(self, other: int) -> Any:
        return NotImplemented if isinstance(other, Collective) else self * (1 << exact.shift_count(other))

    def __rshift__(self, other: int) -> Any:
        return NotImplemented if isinstance(other, Collective) else self // (1 << exact.shift_count(other))

    def __and__(self, other: object) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        if isinstance(other, int) and other >= 0 and not other & (other + 1):
            return self % (other + 1)
        raise TraceError(
            f"{self} & {other}: integers have the bitwise and of their low bits only; `x & 7` and `x % 8` "
            "give the low 3 bits",
            here(),
        )

    __rand__ = __and__

    def __or__(self, other: object) -> Any:
        if isinstance(other, Collective):
            return NotImplemented
        raise TraceError(
            f"{self} | {other}: integers have no bitwise or; `x + 8` sets a bit that is not set", here()
        )

    __ror__ = __or__

    def __lt__(self, other: Index) -> Condition:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.less(self.expr, unwrap(other)))

    def __le__(self, other: Index) -> Condition:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.less_equal(self.expr, unwrap(other)))

    def __gt__(self, other: Index) -> Condition:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.less(unwrap(other), self.expr))

    def __ge__(self, other: Index) -> Condition:
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.less_equal(unwrap(other), self.expr))

    def __eq__(self, other: object) -> Condition:  # type: ignore[override]
        if isinstance(other, Collective):
            return NotImplemented
        return Condition(expr.equal(self.expr, unwrap(other)))

    def __ne__(self, other: object) -> Condition:  # type: ignore[override]
        return ~(self == other)

    def __hash__(self) -> NoReturn:
        raise _UnhashableError(f"{self} cannot be a key or in a set: its value is not known yet", here())

    def __bool__(self) -> NoReturn:
        raise undecided(f"{self} != 0")

    def __index__(self) -> NoReturn:
        raise TraceError(
            f"{self} is not known while the kernel is traced, but a Python integer is needed here; "
            "use `tw.range` for a loop, or make it a keyword-only constant of the kernel",
            here(),
        )

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


def _of_two(
    function: Callable[[Int, Int], Int], sign: Callable[[Any, Any], Any], left: Any, right: Any
) -> Any:
    """Combine two integers to an integer, or to a number if one of them is a float."""
    if isinstance(left, Collective) or isinstance(right, Collective):
        return NotImplemented
    if isinstance(left, float | np.floating) or isinstance(right, float | np.floating):
        return _number_of(sign, left, right)
    return wrap(function(unwrap(left), unwrap(right)))


def _number_of(sign: Callable[[Any, Any], Any], left: Any, right: Any) -> Any:
    """Combine a kernel integer and a number to a number in f32; computed in f64, rounded once."""
    made = [
        Collective._of_integer(value.expr) if isinstance(value, Scalar) else value for value in (left, right)
    ]
    return sign(*made).to("f32")


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
        text = f"{value!r} lies in memory; nearest legal choice: tw.index(...), which reads an integer there"
        raise TraceError(text, here())
    if isinstance(value, Collective):
        raise TraceError(
            f"{value!r} is no integer; quotients of integers that are integers are `//`, `%` and "
            "`tw.ceil_div`",
            here(),
        )
    raise TraceError(f"{shown(value)} of type {type(value).__name__} is no integer", here())


def unwrap_condition(value: object) -> Cond:
    """Return the condition of a value that the author wrote."""
    if isinstance(value, Condition):
        return value.cond
    if isinstance(value, bool):
        return Constant(value)
    raise TraceError(f"{shown(value)} of type {type(value).__name__} is no condition", here())


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
        return wrap(exact.ceiling(unwrap(extent), unwrap(tile)))


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
