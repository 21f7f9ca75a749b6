"""Symbolic integers and conditions as the author sees them.

`Scalar` wraps an index expression.  Unlike the expression itself it compares symbolically (``==`` gives a
`Condition`) and refuses to be used where Python would have to decide: that would silently freeze one case.
"""

from __future__ import annotations

from typing import Any, NoReturn, TypeAlias, Union

import numpy as np

from tilewright.errors import TraceError
from tilewright.lang.source import author_frame, here, instruction_at
from tilewright.lang.tracer import located, open_region
from tilewright.layout import expr
from tilewright.layout.nodes import Cond, Constant, Expr, Int

Index: TypeAlias = Union[int, "Scalar"]


class Collective:
    """Base of what has arithmetic of its own, in which integers take part: fragments and numbers."""


class _UnhashableError(TraceError, TypeError):
    """What Python expects from an object without a hash, at the author's line."""


class Scalar:
    """An integer that is known only when the kernel runs: a size, a block index, a loop index."""

    __slots__ = ("expr", "region")
    __array_ufunc__ = None

    def __init__(self, value: Expr) -> None:
        self.expr = value
        self.region = open_region()

    def __add__(self, other: Index) -> Index:
        if isinstance(other, Collective):
            return NotImplemented
        return wrap(expr.add(self.expr, unwrap(other)))

    __radd__ = __add__

    def __sub__(self, other: Index) -> Index:
        if isinstance(other, Collective):
            return NotImplemented
        return wrap(expr.add(self.expr, expr.mul(unwrap(other), -1)))

    def __rsub__(self, other: Index) -> Index:
        return wrap(expr.add(unwrap(other), expr.mul(self.expr, -1)))

    def __neg__(self) -> Index:
        return wrap(expr.mul(self.expr, -1))

    def __mul__(self, other: Index) -> Index:
        if isinstance(other, Collective):
            return NotImplemented
        return wrap(expr.mul(self.expr, unwrap(other)))

    __rmul__ = __mul__

    def __floordiv__(self, other: Index) -> Index:
        return _divided(expr.floordiv, self, other)

    def __rfloordiv__(self, other: Index) -> Index:
        return _divided(expr.floordiv, other, self)

    def __mod__(self, other: Index) -> Index:
        return _divided(expr.mod, self, other)

    def __rmod__(self, other: Index) -> Index:
        return _divided(expr.mod, other, self)

    def __xor__(self, other: Index) -> Index:
        return wrap(expr.xor(self.expr, unwrap(other)))

    __rxor__ = __xor__

    def __lshift__(self, other: int) -> Index:
        return self * (1 << _shift(other))

    def __rshift__(self, other: int) -> Index:
        return self // (1 << _shift(other))

    def __truediv__(self, other: object) -> NoReturn:
        raise TraceError(f"{self} / {other}: integers divide with `//`, `%` or `tw.ceil_div`", here())

    __rtruediv__ = __truediv__

    def __and__(self, other: object) -> NoReturn:
        raise TraceError(
            f"{self} & {other}: integers have no bitwise and; `x % 8` gives the low 3 bits", here()
        )

    __rand__ = __and__

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


class Condition:
    """A truth value that is known only when the kernel runs; combine with ``&``, ``|`` and ``~``."""

    __slots__ = ("cond", "region")

    def __init__(self, cond: Cond) -> None:
        self.cond = cond
        self.region = open_region()

    def __and__(self, other: Condition | bool) -> Condition:
        return Condition(expr.all_of(self.cond, unwrap_condition(other)))

    __rand__ = __and__

    def __or__(self, other: Condition | bool) -> Condition:
        return Condition(expr.any_of(self.cond, unwrap_condition(other)))

    __ror__ = __or__

    def __invert__(self) -> Condition:
        return Condition(expr.negate(self.cond))

    def __bool__(self) -> bool:
        if isinstance(self.cond, Constant):
            return self.cond.value
        raise undecided(str(self))

    def __eq__(self, other: object) -> NoReturn:
        raise TraceError(f"`{self}` compared with {other!r}; combine conditions with & | ~", here())

    __ne__ = __eq__
    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return str(self.cond)


def undecided(what: str) -> TraceError:
    """What to raise where Python asks for the truth of something that only the running kernel knows."""
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


def _shift(count: object) -> int:
    if not isinstance(count, int) or count < 0:
        raise TraceError(f"shift by {count}; the count is a constant that is not negative", here())
    return count


def _divided(function: Any, left: Index, right: Index) -> Index:
    divisor = unwrap(right)
    if expr.prove(expr.less(0, divisor)) is not True and isinstance(divisor, int):
        raise TraceError(f"division by {divisor}; divisors must be positive", here())
    return wrap(function(unwrap(left), divisor))


def wrap(value: Int) -> Index:
    """An integer as the author sees it."""
    return Scalar(value) if isinstance(value, Expr) else value


def unwrap(value: object) -> Int:
    """The integer behind what the author wrote.

    Raises:
        TraceError: it is no integer.
    """
    if isinstance(value, Scalar):
        return value.expr
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Expr):
        return value
    raise TraceError(f"{value!r} of type {type(value).__name__} is no integer", here())


def unwrap_condition(value: object) -> Cond:
    """The condition behind what the author wrote."""
    if isinstance(value, Condition):
        return value.cond
    if isinstance(value, bool):
        return Constant(value)
    raise TraceError(f"{value!r} of type {type(value).__name__} is no condition", here())


def as_tuple(value: object) -> tuple[Any, ...]:
    """A tuple, or a tuple of one."""
    return tuple(value) if isinstance(value, tuple | list) else (value,)


def ceil_div(extents: Any, tiles: Any) -> Any:
    """``ceil(extents / tiles)``, for integers or, element by element, for tuples of equal length.

    Example:
        >>> ceil_div((130, 64), (128, 64))
        (2, 1)
    """
    if isinstance(extents, tuple | list):
        if len(extents) != len(as_tuple(tiles)):
            raise TraceError(f"ceil_div of {len(extents)} extents by {len(as_tuple(tiles))} tiles", here())
        return tuple(ceil_div(extent, tile) for extent, tile in zip(extents, tiles, strict=True))
    with located():
        return wrap(expr.ceil_div(unwrap(extents), unwrap(tiles)))


def from_end(what: str, index: Int, count: Int, past: int = 0) -> Int:
    """A place among ``count``; as in Python, a negative constant counts from the end.

    Args:
        what: the place, as messages call it.
        index: the place.
        count: of how many.
        past: 1 for a place that may lie behind the last.

    Raises:
        TraceError: a constant that lies outside of a constant count.
    """
    if isinstance(index, int) and isinstance(count, int) and not -count <= index < count + past:
        raise TraceError(f"{what} is outside [{-count}, {count}{']' if past else ')'}", here())
    return expr.add(count, index) if isinstance(index, int) and index < 0 else index


def spelled_slice(part: slice) -> str:
    """A slice as it is written in brackets."""
    ends = ("" if end is None else str(end) for end in (part.start, part.stop))
    return ":".join(ends) + (f":{part.step}" if part.step is not None else "")


def minimum(left: Index, right: Index) -> Index:
    """The smaller of two integers."""
    return wrap(expr.minimum(unwrap(left), unwrap(right)))


def maximum(left: Index, right: Index) -> Index:
    """The larger of two integers."""
    return wrap(expr.maximum(unwrap(left), unwrap(right)))
