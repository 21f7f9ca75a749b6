"""Operators of fragments and numbers: the elementwise function that each Python operator records."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from tilewright.dtypes import DType, f32, f64
from tilewright.errors import TraceError
from tilewright.ir.types import Value
from tilewright.lang.numpy_functions import no_numpy_function, operator_of
from tilewright.lang.scalars import Collective, Scalar
from tilewright.lang.source import here

MOST_FACTORS = 64
"""Largest integer exponent that is computed by multiplications in f64."""


class Arithmetic(Collective):
    """Operators that record elementwise functions; comparisons give masks for `where`."""

    value: Value

    @staticmethod
    @abstractmethod
    def _record(function: str, *operands: object, dtype: DType | None = None) -> Any:
        """Record an elementwise function; return a fragment or a number."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Accept NumPy numbers as operands; refuse NumPy functions."""
        apply = operator_of(ufunc.__name__) if method == "__call__" else None
        if apply is None or not all(isinstance(i, Arithmetic | np.generic) for i in inputs):
            raise no_numpy_function(ufunc.__name__, self)
        return apply(*(i.item() if isinstance(i, np.generic) else i for i in inputs))

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise no_numpy_function(function.__name__, self)

    # ---------------------------------------------------------------- arithmetic

    def __add__(self, other: object) -> Any:
        return self._record("add", self, other)

    def __radd__(self, other: object) -> Any:
        return self._record("add", other, self)

    def __sub__(self, other: object) -> Any:
        return self._record("sub", self, other)

    def __rsub__(self, other: object) -> Any:
        return self._record("sub", other, self)

    def __mul__(self, other: object) -> Any:
        return self._record("mul", self, other)

    def __rmul__(self, other: object) -> Any:
        return self._record("mul", other, self)

    def __truediv__(self, other: object) -> Any:
        return self._quotient(self, other)

    def __rtruediv__(self, other: object) -> Any:
        return self._quotient(other, self)

    def __floordiv__(self, other: object) -> Any:
        return self._record("floordiv", self, other)

    def __rfloordiv__(self, other: object) -> Any:
        return self._record("floordiv", other, self)

    def __mod__(self, other: object) -> Any:
        return self._record("mod", self, other)

    def __rmod__(self, other: object) -> Any:
        return self._record("mod", other, self)

    def __divmod__(self, other: object) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[Any, Any]:
        return other // self, other % self

    def __pow__(self, other: object) -> Any:
        return self._power(other)

    def __rpow__(self, other: object) -> Any:
        if not self.dtype.is_float:
            two = " or `1 << x`" if other == 2 else ""
            raise _no_power(f"{other} ** {self!r}", f"{other} ** x.to(tw.f32){two}")
        if isinstance(other, int | float) and other == 2:
            return self._record("exp2", self)
        return self._record("pow", other, self)

    def __neg__(self) -> Any:
        return self._record("neg", self)

    def __pos__(self) -> Any:
        return self._record("convert", self, dtype=self.dtype)

    def __abs__(self) -> Any:
        return self._record("abs", self)

    @classmethod
    def _quotient(cls, left: Any, right: Any) -> Any:
        """``left / right``; for integers in f32, with only the quotient rounded.

        As in NumPy, the quotient of integers has a fraction.  NumPy gives f64, but kernels nearly always need
        f32.  Operands are converted to f64 first if f32 cannot hold all their values.
        """
        kinds = [value.dtype for value in (left, right) if isinstance(value, Arithmetic)]
        if any(kind.kind not in ("int", "uint") for kind in kinds):
            return cls._record("div", left, right)
        narrow = all(kind.bits <= 16 for kind in kinds) and not isinstance(left, Scalar)
        wide = f32 if narrow and not isinstance(right, Scalar) else f64
        left, right = (v.to(wide) if isinstance(v, Arithmetic) else v for v in (left, right))
        made = cls._record("div", left, right)
        return made if wide is f32 else made.to(f32)

    def _power(self, exponent: object) -> Any:
        kind = self.dtype
        if isinstance(exponent, np.generic):
            exponent = exponent.item()
        whole = isinstance(exponent, int | float) and float(exponent).is_integer()
        if not kind.is_float:
            if isinstance(exponent, int) and not isinstance(exponent, bool) and exponent >= 0:
                return self._multiplied(exponent)
            raise _no_power(f"{self!r} ** {exponent}", f"x.to(tw.f32) ** {exponent}")
        known: dict[Any, Callable[[], Any]] = {
            1: lambda: +self,
            2: lambda: self * self,
            -1: lambda: 1 / self,
            0.5: lambda: self._record("sqrt", self),
            -0.5: lambda: self._record("rsqrt", self),
        }
        if isinstance(exponent, int | float) and exponent in known:
            return known[exponent]()
        if kind == f64 and whole and abs(int(exponent)) <= MOST_FACTORS:  # type: ignore[call-overload]
            made = self._multiplied(abs(int(exponent)))  # type: ignore[call-overload]
            return made if exponent >= 0 else 1 / made  # type: ignore[operator]
        return self._record("pow", self, exponent)

    def _multiplied(self, count: int) -> Any:
        """Return a power by repeated squaring."""
        made: Any = None
        square: Any = self
        while count:
            if count & 1:
                made = square if made is None else made * square
            count >>= 1
            if count:
                square = square * square
        if made is None:
            return self._record("select", self == self, 1, 1).to(self.dtype)
        return +self if made is self else made

    # ---------------------------------------------------------------- bits and truth values

    def __and__(self, other: object) -> Any:
        return self._record("and", self, other)

    def __rand__(self, other: object) -> Any:
        return self._record("and", other, self)

    def __or__(self, other: object) -> Any:
        return self._record("or", self, other)

    def __ror__(self, other: object) -> Any:
        return self._record("or", other, self)

    def __xor__(self, other: object) -> Any:
        return self._record("xor", self, other)

    def __rxor__(self, other: object) -> Any:
        return self._record("xor", other, self)

    def __invert__(self) -> Any:
        return self._record("invert", self)

    def __lshift__(self, other: object) -> Any:
        return self._record("shift_left", self, _count(other))

    def __rlshift__(self, other: object) -> Any:
        return self._record("shift_left", other, self)

    def __rshift__(self, other: object) -> Any:
        return self._record("shift_right", self, _count(other))

    def __rrshift__(self, other: object) -> Any:
        return self._record("shift_right", other, self)

    # ---------------------------------------------------------------- comparisons

    def __lt__(self, other: object) -> Any:
        return self._record("less", self, other)

    def __le__(self, other: object) -> Any:
        return self._record("less_equal", self, other)

    def __gt__(self, other: object) -> Any:
        return self._record("less", other, self)

    def __ge__(self, other: object) -> Any:
        return self._record("less_equal", other, self)

    def __eq__(self, other: object) -> Any:
        return self._record("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return self._record("not_equal", self, other)

    __hash__ = object.__hash__

    # ---------------------------------------------------------------- dtypes

    @property
    def dtype(self) -> DType:
        """Its dtype.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     x = tw.load(X.tile((8, 8), (0, 0)).partition((8, 4)))
            ...     print(x.dtype, (x > 0).dtype, x.to(tw.f16).dtype)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            f32 boolean f16
        """
        return self.value.dtype

    @abstractmethod
    def to(self, element: DType | str, *, saturate: bool = False) -> Any:
        """The same values in another dtype."""


def _no_power(what: str, nearest: str) -> TraceError:
    return TraceError(
        f"{what}: an integer has integer powers of constants that are not negative; nearest legal choice: "
        f"{nearest}",
        here(),
    )


def _count(value: object) -> object:
    if isinstance(value, int) and value < 0:
        raise TraceError(f"shift by {value}; nearest legal choice: the other direction, by {-value}", here())
    return value
