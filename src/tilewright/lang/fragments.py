"""The classes `Fragment`, a tile in registers, and `Number`, with their arithmetic."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

import numpy as np

from tilewright.argument_checks import legal
from tilewright.dtypes import DType, dtype, f32, f64, i64
from tilewright.errors import TraceError, shown
from tilewright.functions.table import ACTIVATIONS, CIRCLE, FLOATING
from tilewright.ir.fragment_ops import choice_dtype
from tilewright.ir.mma import TiledMma
from tilewright.ir.ops import Copy, Elementwise, Redistribute
from tilewright.ir.types import Value
from tilewright.lang.numpy_functions import apply_ufunc, no_numpy_function, replacement
from tilewright.lang.scalars import (
    Collective,
    Condition,
    Index,
    Scalar,
    as_tuple,
    from_end,
    spelled_slice,
    undecided,
    unwrap,
)
from tilewright.lang.source import here
from tilewright.lang.tracer import current, inline, located, open_region, verb
from tilewright.symbolic.nodes import And, Cond, Constant, Equal, Expr, Int, Less, Not, Or
from tilewright.threads.distribution import Distribution

_OF_ONE = (row.name for row in (*FLOATING, *CIRCLE, *ACTIVATIONS) if row.arity == 1)
METHODS_ELSEWHERE = frozenset([*_OF_ONE, "relu"]) - {"gelu_tanh"}
"""Functions that other libraries offer as methods of tiles."""

MOST_FACTORS = 64
"""Largest integer exponent that is computed by multiplications in f64."""


BinaryMethod: TypeAlias = Callable[[Any, object], Any]


def _both(function: str) -> tuple[BinaryMethod, BinaryMethod]:
    """Return the methods that record an elementwise function for a binary operator and its reflection."""

    def left(self: Arithmetic, other: object) -> Any:
        return elementwise(function, self, other)

    def right(self: Arithmetic, other: object) -> Any:
        return elementwise(function, other, self)

    return left, right


class Arithmetic(Collective):
    """Operators that record elementwise functions; comparisons give masks for `where`."""

    value: Value

    if not TYPE_CHECKING:  # type checkers find missing attributes themselves

        def __getattr__(self, name: str) -> NoReturn:
            near = f"; nearest: tw.{name}(x)" if name in METHODS_ELSEWHERE else ""
            near = near or ("; tiles of arrays have it: A[m, k].matmul(B[k, n])" if name == "matmul" else "")
            if not near and (instead := replacement(name, type(self).__name__)) is not None:
                near = f"; nearest: {instead}"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{near}")

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **_: Any) -> Any:
        """Accept NumPy numbers as operands; refuse NumPy functions."""
        return apply_ufunc(self, Arithmetic | np.generic, ufunc, method, inputs)

    def __array_function__(self, function: Any, *_: Any) -> NoReturn:
        raise no_numpy_function(function.__name__, self)

    __add__, __radd__ = _both("add")
    __sub__, __rsub__ = _both("sub")
    __mul__, __rmul__ = _both("mul")
    __floordiv__, __rfloordiv__ = _both("floordiv")
    __mod__, __rmod__ = _both("mod")
    __and__, __rand__ = _both("and")
    __or__, __ror__ = _both("or")
    __xor__, __rxor__ = _both("xor")
    __lt__, __gt__ = _both("less")
    __le__, __ge__ = _both("less_equal")
    __rlshift__ = _both("shift_left")[1]
    __rrshift__ = _both("shift_right")[1]

    def __lshift__(self, other: object) -> Any:
        return elementwise("shift_left", self, _count(other))

    def __rshift__(self, other: object) -> Any:
        return elementwise("shift_right", self, _count(other))

    def __eq__(self, other: object) -> Any:
        return elementwise("equal", self, other)

    def __ne__(self, other: object) -> Any:
        return elementwise("not_equal", self, other)

    __hash__ = object.__hash__

    def __neg__(self) -> Any:
        return elementwise("neg", self)

    def __pos__(self) -> Any:
        return elementwise("convert", self, dtype=self.dtype)

    def __abs__(self) -> Any:
        return elementwise("abs", self)

    def __invert__(self) -> Any:
        return elementwise("invert", self)

    def __divmod__(self, other: object) -> tuple[Any, Any]:
        return self // other, self % other

    def __rdivmod__(self, other: object) -> tuple[Any, Any]:
        return other // self, other % self

    def __truediv__(self, other: object) -> Any:
        return self._quotient(self, other)

    def __rtruediv__(self, other: object) -> Any:
        return self._quotient(other, self)

    def __rpow__(self, other: object) -> Any:
        if not self.dtype.is_float:
            two = " or `1 << x`" if other == 2 else ""
            raise _no_power(f"{other} ** {self!r}", f"{other} ** x.to(tw.f32){two}")
        if isinstance(other, int | float) and other == 2:
            return elementwise("exp2", self)
        return elementwise("pow", other, self)

    @staticmethod
    def _quotient(left: Any, right: Any) -> Any:
        """``left / right``; for integers in f32, with only the quotient rounded.

        As in NumPy, the quotient of integers has a fraction.  NumPy gives f64, but kernels nearly always need
        f32.  Operands are converted to f64 first if f32 cannot hold all their values.
        """
        kinds = [value.dtype for value in (left, right) if isinstance(value, Arithmetic)]
        if any(kind.kind not in ("int", "uint") for kind in kinds):
            return elementwise("div", left, right)
        narrow = all(kind.bits <= 16 for kind in kinds) and not isinstance(left, Scalar)
        wide = f32 if narrow and not isinstance(right, Scalar) else f64
        left, right = (v.to(wide) if isinstance(v, Arithmetic) else v for v in (left, right))
        made = elementwise("div", left, right)
        return made if wide is f32 else made.to(f32)

    def __pow__(self, exponent: object) -> Any:
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
            0.5: lambda: elementwise("sqrt", self),
            -0.5: lambda: elementwise("rsqrt", self),
        }
        if isinstance(exponent, int | float) and exponent in known:
            return known[exponent]()
        if kind == f64 and whole and abs(int(exponent)) <= MOST_FACTORS:  # type: ignore[call-overload]
            made = self._multiplied(abs(int(exponent)))  # type: ignore[call-overload]
            return made if exponent >= 0 else 1 / made  # type: ignore[operator]
        return elementwise("pow", self, exponent)

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
            return elementwise("select", self == self, 1, 1).to(self.dtype)
        return +self if made is self else made

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

    @verb
    def to(self, element: DType | str, *, saturate: bool = False) -> Any:
        """The same values in another dtype, rounded once: to nearest even, towards 0 from float to integer.

        Args:
            element: the dtype to convert to.
            saturate: clamp to the finite range of the dtype first, infinities too: f8e4m3 gives 448 for 1000
                instead of NaN, f16 65504 instead of infinity, an i32 of 300 becomes 127 in i8 instead of 44.
                NaN stays NaN.  Floats that become integers are clamped in any case, and NaN becomes 0.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N", Y="N")
            ... def narrow(X, Y):
            ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
            ...     tw.copy(x.to(tw.i8, saturate=True), Y.tile((32,), (0,)))
            >>> x, y = np.array([1.9, -1.9, 300.0, np.nan], np.float32), np.empty(4, np.int8)
            >>> narrow(x, y, target="reference").target, y.tolist()
            ('reference', [1, -1, 127, 0])
        """
        return elementwise("saturate" if saturate else "convert", self, dtype=element_type(element))


def _no_power(what: str, nearest: str) -> TraceError:
    return TraceError(
        f"{what}: an integer has integer powers of constants that are not negative", here(), nearest
    )


def _count(value: object) -> object:
    if isinstance(value, int) and value < 0:
        raise TraceError(f"shift by {value}", here(), f"the other direction, by {-value}")
    return value


@inline.made("a parameter of a kernel that is declared as a number, @tw.kernel(alpha=tw.f32), is one")
class Number(Arithmetic):
    """A floating-point or integer argument of the kernel, or an expression of them; see `kernel`."""

    def __init__(self, value: Value) -> None:
        self.value = value
        self.region = open_region()

    def __bool__(self) -> NoReturn:
        raise undecided(f"number {self.value.name} is not 0")

    def __repr__(self) -> str:
        return self.value.name


def _in_place(sign: str, apply: Callable[[Any, object], Any]) -> Callable[[Fragment, object], Fragment]:
    """Return the method of ``sign=``, which assigns the result of an operator to a fragment."""

    def method(self: Fragment, other: object) -> Fragment:
        made = apply(self, other)
        if made.dtype != self.dtype:
            nearest = "`//=`, or " if sign == "/" else ""
            text = f"`{sign}=` gives {made.dtype}, and {self!r} cannot change its dtype"
            raise TraceError(text, here(), f"{nearest}`y = {self.value.name} {sign} ...`")
        return self.assign(made)

    return method


@inline.made("tw.load(tensor) in a kernel gives one")
class Fragment(Arithmetic):
    """A tile in registers, distributed over threads.  Arithmetic gives new fragments with the same map.

    Made by `load`, `fragment` and `accumulator`; a function that takes one says so:

    >>> import tilewright as tw
    >>> def relu(x: tw.Fragment) -> tw.Fragment:
    ...     return tw.maximum(x, 0)
    """

    def __init__(self, value: Value, mma: TiledMma | None = None) -> None:
        self.value = value
        self.mma = mma
        self.region = open_region()

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the tile.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     x = tw.load(X.tile((8, 8), (0, 0)).partition((8, 4)))
            ...     print(x.shape)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            (8, 8)
        """
        return self.value.fragment.shape

    @property
    def distribution(self) -> Distribution:
        """The map from threads and registers to coordinates.

        Example:
            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="M N")
            ... def look(X):
            ...     x = tw.load(X.tile((8, 8), (0, 0)).partition((8, 4)))
            ...     print(x.distribution)
            >>> _ = look(np.ones((3, 4), np.float32), target="reference")
            threads (8 along 0 by 1, 4 along 1 by 2), values (2 along 1 by 1)
        """
        return self.value.fragment.distribution

    def __bool__(self) -> NoReturn:
        raise TraceError(
            f"fragment {self.value.name} has {self.shape} values, Python cannot decide on its truth; "
            "use `tw.where(mask, x, y)` to choose element by element, `tw.maximum` and `tw.minimum`, and "
            "&, | and ~ in place of and, or and not",
            here(),
        )

    def __getitem__(self, index: Any) -> Fragment:
        """The part of the tile in a box, e.g. ``acc[:, 64:128]``; every thread keeps its own values.

        Raises:
            TraceError: the box is not inside the tile, or needs different values in different threads.
        """
        parts = [*as_tuple(index)]
        parts += [slice(None)] * (len(self.shape) - len(parts))
        if len(parts) > len(self.shape):
            raise TraceError(f"{len(parts)} indices for a fragment of rank {len(self.shape)}", here())
        start, shape = [], []
        for part, extent in zip(parts, self.shape, strict=True):
            if not isinstance(part, slice) or part.step not in (None, 1):
                raise TraceError(
                    f"index {shown(part)} of a fragment; it takes ranges, e.g. x[:, 0:64]", here()
                )
            if any(isinstance(end, Scalar) for end in (part.start, part.stop)):
                rule = "its registers are chosen when the kernel is compiled; use `for i in tw.unroll(n)`"
                text = f"{part} of a fragment must be numbers, because {rule}"
                raise TraceError(text, here())
            what = f"slice {spelled_slice(part)}"
            first, last = (
                default if end is None else from_end(what, unwrap(end), extent, past=1)
                for end, default in ((part.start, 0), (part.stop, extent))
            )
            assert isinstance(first, int), "a constant"
            assert isinstance(last, int), "a constant"
            start.append(first)
            shape.append(last - first)
        with located():
            spread = self.distribution.slice(tuple(start), tuple(shape))
        attributes: dict[str, Any] = {"start": tuple(start), "distribution": spread}
        return Fragment(current().define(Redistribute, "part", source=self.value, **attributes))

    __iadd__ = _in_place("+", operator.add)
    __isub__ = _in_place("-", operator.sub)
    __imul__ = _in_place("*", operator.mul)
    __itruediv__ = _in_place("/", operator.truediv)
    __ifloordiv__ = _in_place("//", operator.floordiv)
    __imod__ = _in_place("%", operator.mod)
    __ipow__ = _in_place("**", operator.pow)
    __iand__ = _in_place("&", operator.and_)
    __ior__ = _in_place("|", operator.or_)
    __ixor__ = _in_place("^", operator.xor)
    __ilshift__ = _in_place("<<", operator.lshift)
    __irshift__ = _in_place(">>", operator.rshift)

    @verb
    def assign(self, other: Fragment) -> Fragment:
        """Overwrite the contents with those of another fragment with the same map; converts the dtype.

        Args:
            other: a fragment of the same shape and distribution.

        Returns:
            The fragment that was overwritten.

        Raises:
            TraceError: the argument is not a fragment; `fill` sets all elements to a number.

        Example:
            A fragment keeps its name through a loop, so a new value is put into it:

            >>> import numpy as np
            >>> import tilewright as tw
            >>> @tw.kernel(X="N")
            ... def powers(X):
            ...     part = X.tile((32,), (0,)).partition((32,))
            ...     x = tw.load(part)
            ...     for _ in tw.range(3):
            ...         x.assign(x * 2)
            ...     tw.copy(x, part)
            >>> x = np.array([1.0, 3.0])
            >>> powers(x, target="reference").target, x.tolist()
            ('reference', [8.0, 24.0])
        """
        if not isinstance(other, Fragment):
            raise TraceError(
                f"assign takes a fragment, not {shown(other)}; `tw.fill` sets all to a number", here()
            )
        current().emit(Copy, source=other.value, target=self.value)
        return self

    def __repr__(self) -> str:
        return f"{self.value.name}: {self.value.type!r}"


Operand: TypeAlias = Fragment | Number | float | Index
legal("Operand", "a fragment or a number", "operands", lambda value: True)  # `operand` raises the error

LOGICAL = ("and", "or", "xor", "equal", "not_equal", "select")
"""Functions that accept truth values and conditions of the kernel as operands."""


def elementwise(function: str, *operands: object, dtype: DType | None = None) -> Any:
    """Record an elementwise function of fragments and numbers, or of tiles."""
    flow = current().flow
    if flow is not None and (made := flow.map(function, operands, dtype)) is not None:
        return made
    values: tuple[Any, ...] = operands
    if function in LOGICAL:
        values = tuple(of_condition(o.cond) if isinstance(o, Condition) else o for o in values)
    values = tuple(
        bool(o) if function in LOGICAL and isinstance(o, bool | np.bool_) else operand(o) for o in values
    )
    kind = choice_dtype(function, values) if dtype is None else dtype
    result = current().define(Elementwise, function, function=function, operands_=values, dtype=kind)
    return Fragment(result) if result.is_fragment else Number(result)


def of_integer(value: Expr, dtype: DType = f64) -> Number:
    """Convert a symbolic integer to a number."""
    result = current().define(Elementwise, "number", function="convert", operands_=(value,), dtype=dtype)
    return Number(result)


def of_condition(cond: Cond) -> Any:
    """Convert a symbolic condition to a truth value that combines with masks of fragments."""

    def number_(value: Int) -> Any:
        return of_integer(value, i64) if isinstance(value, Expr) else value

    match cond:
        case Less():
            return elementwise("less", number_(cond.left), number_(cond.right))
        case Equal():
            return elementwise("equal", number_(cond.left), number_(cond.right))
        case Not():
            return elementwise("invert", of_condition(cond.part))
        case And() | Or():
            parts = [of_condition(part) for part in cond.parts]
            return reduce(operator.and_ if isinstance(cond, And) else operator.or_, parts)
        case _:
            return isinstance(cond, Constant) and cond.value


Collective._of_integer = staticmethod(of_integer)


def element_type(element: DType | str) -> DType:
    """Return the dtype that the author named."""
    with located():
        return dtype(element)


def operand(value: Any) -> Any:
    """Convert an operand of an elementwise function: a value, a plain number, or a symbolic integer."""
    if isinstance(value, Fragment | Number):
        return value.value
    return unwrap(value) if isinstance(value, Scalar) else number(value)


def number(value: Any) -> float | int:
    """Return a plain number that the author wrote.

    Raises:
        TraceError: the value is not a plain number.
    """
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, Scalar):
        raise TraceError(
            f"the integer {value} is known only when the kernel runs; a number is needed here", here()
        )
    kind = type(value).__name__
    hint = "; bring it to registers with `tw.load`" if kind == "Tensor" else ""
    raise TraceError(f"{shown(value)} of type {kind} is not an operand of fragment arithmetic{hint}", here())
