"""Array arithmetic in types wider than a kernel's, for the evaluation of flows.

Floats up to f32 are held in f64, and f64 in ``numpy.longdouble``.  Components of complex numbers follow the
same rule.  Integers are held in their own type and wrap.  A value of a float type narrower than f32 is always
rounded to that type.  f32 and f64 values are not rounded before they are stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.dtypes import DType, f32, limits
from tilewright.functions.conversions import (
    Array,
    clamped_in,
    keep_fraction,
    narrowed,
    number,
    saturation,
    widen,
)
from tilewright.functions.conversions import rounded as rounded_to
from tilewright.functions.table import COMPARISON, FUNCTIONS, TAKE, looked_up

_IDENTITIES: dict[str, Callable[[DType], float]] = {
    "sum": lambda kind: 0,
    "max": lambda kind: -np.inf if kind.is_float else limits(kind)[0],
    "min": lambda kind: np.inf if kind.is_float else limits(kind)[1],
}
_REDUCTIONS: dict[str, np.ufunc] = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def held(kind: DType) -> np.dtype[Any]:
    """Return the NumPy dtype in which values of a dtype are held.

    Example:
        >>> from tilewright.dtypes import c64, f16, i8
        >>> held(f16), held(c64), held(i8)
        (dtype('float64'), dtype('complex128'), dtype('int8'))
    """
    if not kind.is_float:
        return kind.computed.numpy
    wide = kind.component.bits > 32
    if kind.components > 1:
        return np.dtype(np.clongdouble if wide else np.complex128)
    return np.dtype(np.longdouble if wide else np.float64)


def is_narrow(kind: DType) -> bool:
    """Return whether each new value of a dtype is rounded to it: true of floats narrower than f32."""
    return kind.is_float and kind.component.bits < 32


def smallest(kind: DType) -> float:
    """Return the smallest positive number of a float dtype, or 0 for integers.

    Example:
        >>> from tilewright.dtypes import f16, i8
        >>> smallest(f16) == 2.0**-24, smallest(i8)
        (True, 0.0)
    """
    if not kind.is_float:
        return 0.0
    return float(ml_dtypes.finfo(kind.component.numpy).smallest_subnormal)  # type: ignore[no-untyped-call]


def widened(values: Array, kind: DType) -> Array:
    """Convert the elements of an array to the wide type; exact."""
    return widen(values, kind).astype(held(kind))


def to_dtype(wide: Array, kind: DType) -> Array:
    """Convert computed numbers to values of a dtype."""
    if kind.kind == "bool":
        return np.asarray(wide, np.bool_)
    if is_narrow(kind):
        return widened(rounded_to(wide, kind), kind)
    return np.asarray(wide, held(kind))


def stored(wide: Array, kind: DType, target: DType) -> Array:
    """Convert values of a dtype to elements of an array, rounded once."""
    return narrowed(np.asarray(converted("convert", wide, kind, target)), target)


def literal(value: float, kind: DType) -> Array:
    """Round a plain number to the dtype of the computation that uses it."""
    return argument(value, kind.computed)


def argument(value: float, kind: DType) -> Array:
    """Round a number argument to the dtype of its parameter."""
    if kind.kind == "bool":
        return np.asarray(bool(value))
    return widened(number(value, kind), kind)


def converted(function: str, wide: Array, source: DType, target: DType) -> Array:
    """Apply ``convert``, ``saturate`` or ``bitcast``; discontinuous cases round to the source dtype first."""
    if function == "bitcast":
        return widened(narrowed(wide, source).view(target.numpy), target)
    jumps = source.is_float and not target.is_float
    if jumps and source.component.bits <= 64:
        wide = widened(narrowed(wide, source), source)
    if function == "saturate":
        kind = clamped_in(f32 if is_narrow(source) else source, target)
        if (ends := saturation(kind, target)) is not None:
            low, high = (wide.dtype.type(end) for end in ends)
            wide = np.where(wide > high, high, np.where(wide < low, low, wide))
    if source == target:
        return wide
    narrows = target.component.bits < source.component.bits
    if jumps or (target.is_float and (is_narrow(target) or (narrows and source.is_float))):
        return widened(rounded_to(wide, target), target)
    return np.asarray(rounded_to(wide, target) if not target.is_float else wide, held(target))


def applied(function: str, values: Sequence[Array], made: DType) -> Array:
    """Apply an elementwise function in the wide type."""
    with np.errstate(all="ignore"):
        if function == "select":
            return to_dtype(np.where(values[0], values[1], values[2]), made)
        if function == TAKE:
            table = np.array([entry.item() for entry in values[1:]], values[1].dtype)
            return to_dtype(looked_up(values[0], table), made)
        if function == "fma":
            return to_dtype(values[0] * values[1] + values[2], made)
        meaning = FUNCTIONS[function].meaning
        assert meaning is not None, function
        found = np.asarray(meaning(*np.broadcast_arrays(*values)))
        return found if function in COMPARISON else to_dtype(found, made)


def product(a: Array, b: Array, made: DType) -> Array:
    """Return ``a @ b`` over the last axes: exact products in one wide sum.

    Args:
        a: (..., M, K), of any type.
        b: (..., K, N).
        made: the dtype of the sum.
    """
    with np.errstate(all="ignore"):
        if made.is_float:
            a, b = a.astype(held(made)), b.astype(held(made))
            if a.dtype in (np.float64, np.complex128):
                return to_dtype(np.asarray(np.matmul(a, b)), made)
            # BLAS has no wider types: the product is fastest if both operands are contiguous along K.
            turned = np.ascontiguousarray(b.swapaxes(-1, -2))
            return to_dtype(np.asarray(np.einsum("...mk,...nk->...mn", a, turned)), made)
        # NumPy's integer product is slow. If the sums fit in f64 exactly, use its fast product.
        fits = max(a.dtype.itemsize, b.dtype.itemsize) <= 2 and a.shape[-1] <= 1 << 20
        kind = np.float64 if fits else np.int64
        total = np.matmul(a.astype(kind), b.astype(kind))
        return to_dtype(total.astype(np.int64).astype(made.computed.numpy), made)


def as_tf32(values: Array, kind: DType) -> Array:
    """Round f32 numbers to 10 fraction bits, to nearest, ties away from zero; return others unchanged."""
    return keep_fraction(values, 10).astype(values.dtype) if kind == f32 else values


def scanned(values: Array, axis: int, kind: DType, *, reverse: bool = False) -> Array:
    """Return the prefix sums along an axis, or the sums from each element to the last."""
    with np.errstate(all="ignore"):
        values = np.flip(values, axis) if reverse else values
        found = to_dtype(np.add.accumulate(values, axis=axis, dtype=values.dtype), kind)
        return np.flip(found, axis) if reverse else found


def reduced(combine: str, values: Array, axis: int, kind: DType) -> Array:
    """Reduce an axis by ``"sum"``, ``"max"`` or ``"min"``; an axis of extent 0 gives the neutral element."""
    with np.errstate(all="ignore"):
        first = values.dtype.type(_IDENTITIES[combine](kind))
        found = _REDUCTIONS[combine].reduce(values, axis=axis, initial=first, dtype=values.dtype)
        return to_dtype(np.asarray(found), kind)
