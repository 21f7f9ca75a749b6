"""What numbers do: conversions, elementwise functions, and the product of an MMA, on NumPy arrays.

Types narrower than f32 compute in f32 and round once; f64 computes in f64.  Integers wrap.  Conversions of
floats to integers truncate and saturate; NaN becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from tilewright.dtypes import DType, f32
from tilewright.functions.table import FUNCTIONS
from tilewright.ir.elementwise import COMPARISON, CONVERSION, clamped_in, saturation
from tilewright.ir.mma import MmaAtom
from tilewright.packing import patterns

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


@np.errstate(all="ignore")
def widen(values: Array, dtype: DType) -> Array:
    """The values of a ``dtype`` array in the dtype in which it computes; exact."""
    if dtype.name == "c32":
        pair: Array = np.empty(values.shape, np.complex64)
        pair.real, pair.imag = values["re"], values["im"]
        return pair
    return values.astype(dtype.computed.numpy)


def convert(values: Array, source: DType, target: DType) -> Array:
    """``target(values)``, rounded once to nearest even.

    Args:
        values: array of ``source.numpy``.
        source: the dtype of the values.
        target: the dtype to convert to.

    Example:
        >>> from tilewright.dtypes import f16, f32, i8
        >>> convert(np.float32([2049.0, -1.75]), f32, f16).tolist()
        [2048.0, -1.75]
        >>> convert(np.float32([300.0, -1.75, np.nan]), f32, i8).tolist()
        [127, -1, 0]
    """
    if source == target:
        return values
    return _rounded(widen(values, source), target)


@np.errstate(all="ignore")
def _rounded(wide: Array, target: DType) -> Array:
    if target.is_packed:
        return _narrowest(wide, target)
    if target.components == 2:
        if target.name != "c32":
            return wide.astype(target.numpy)
        pair = np.empty(wide.shape, target.numpy)
        pair["re"], pair["im"] = wide.real.astype(np.float16), wide.imag.astype(np.float16)
        return pair
    if np.iscomplexobj(wide):
        wide = wide.real
    if target.kind == "bool":
        return np.asarray(wide != 0)
    if target.is_float:
        # ml_dtypes rounds through f32; an odd last bit there keeps the second rounding from seeing a tie.
        through = target.bits < 32 and target.name != "f16" and wide.dtype.itemsize > 2
        return (_odd_f32(_f64(wide)) if through else wide).astype(target.numpy)
    return _saturated(wide, target.numpy) if wide.dtype.kind == "f" else np.asarray(wide, target.numpy)


def _narrowest(wide: Array, target: DType) -> Array:
    """To a packed dtype: what lies beyond its range becomes its end, and integers wrap."""
    if target.is_float or wide.dtype.kind == "f":
        bits = patterns(_f64(wide), target)
    else:
        bits = (wide.astype(np.int64) & (1 << target.bits) - 1).astype(np.uint8)
    signed = (bits.astype(np.int8) << 4 >> 4).view(np.uint8) if not target.is_float else bits
    return np.asarray(signed).view(target.numbers)


def number(value: float | int, target: DType) -> Array:
    """A plain number as a ``target``, rounded once; a complex one gets the imaginary part 0.

    Example:
        >>> from tilewright.dtypes import c32, f32
        >>> number(1e300, f32).item(), number(2, c32).item()
        (inf, (2.0, 0.0))
    """
    if not target.is_float:
        return np.asarray(value, target.numpy)
    return _rounded(np.asarray(value, np.float64), target)


def _f64(wide: Array) -> Array:
    """Numbers as f64; the last of its 53 bits is set where an integer has more (round to odd)."""
    if wide.dtype not in (np.int64, np.uint64):
        return wide.astype(np.float64)
    size = np.abs(wide).view(np.uint64)
    odd = (size & ~np.uint64(0x7FF)) | (((size & np.uint64(0x7FF)) != 0).astype(np.uint64) << np.uint64(11))
    return np.where(wide < 0, -1.0, 1.0) * np.where(size >> np.uint64(53), odd, size).astype(np.float64)


def _odd_f32(wide: Array) -> Array:
    """f64 to f32, truncated, with the last bit set where anything was lost (round to odd)."""
    near = wide.astype(np.float32)
    bits = near.view(np.uint32)
    away = np.isfinite(near) & (np.abs(near.astype(np.float64)) > np.abs(wide))
    lost = np.isfinite(near) & (near.astype(np.float64) != wide)
    odd: Array = ((bits - away.astype(np.uint32)) | lost.astype(np.uint32)).view(np.float32)
    return odd


def _saturated(wide: Array, target: np.dtype[Any]) -> Array:
    ends = np.iinfo(target)
    inside = np.nan_to_num(wide, nan=0.0, posinf=np.inf, neginf=-np.inf)
    result: Array = np.array(np.clip(inside, float(ends.min), float(ends.max)), target)
    # The largest 64-bit integer is no float: what reaches the next power of two is set by hand.
    result[inside >= float(ends.max)] = ends.max
    return result


def keep_fraction(values: Array, bits: int, rounding: str = "nearest") -> Array:
    """f32 values with ``bits`` fraction bits: rounded to nearest, ties away from zero, or truncated.

    Source: PTX ISA, ``cvt.rna.tf32.f32``.

    Example:
        >>> keep_fraction(np.float32([1 + 2**-11, 1 + 2**-12]), 10).tolist()
        [1.0009765625, 1.0]
        >>> keep_fraction(np.float32([1 + 2**-11, 1 + 2**-10]), 10, "truncate").tolist()
        [1.0, 1.0009765625]
    """
    dropped = 23 - bits
    raw = values.astype(np.float32).view(np.uint32)
    half = np.uint32(1 << (dropped - 1) if rounding == "nearest" else 0)
    rounded = (raw + half) & np.uint32((0xFFFFFFFF << dropped) & 0xFFFFFFFF)
    kept: Array = np.where(np.isfinite(values), rounded, raw).view(np.float32)
    return kept


REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}
"""How a reduction combines two numbers; a maximum or minimum with NaN is NaN."""


def narrowed(wide: Array, target: DType) -> Array:
    """Numbers in the dtype in which ``target`` computes, rounded once to it."""
    return wide if wide.dtype == target.numpy else _rounded(wide, target)


@np.errstate(all="ignore")
def saturated(values: Array, source: DType, target: DType) -> Array:
    """``target(values)`` clamped to its finite range first; NaN stays NaN where the target has one.

    Example:
        >>> from tilewright.dtypes import f8e4m3, f32, i8, i32
        >>> saturated(np.float32([1000.0, -np.inf, 1.0]), f32, f8e4m3).tolist()
        [448.0, -448.0, 1.0]
        >>> saturated(np.int32([300, -300]), i32, i8).tolist()
        [127, -128]
    """
    kind = clamped_in(f32 if source.is_float and source.bits < 32 else source, target)
    ends = saturation(kind, target)
    if ends is None:
        return convert(values, source, target)
    wide = widen(values, source).astype(kind.numpy)
    low, high = (wide.dtype.type(end) for end in ends)
    return _rounded(np.where(wide > high, high, np.where(wide < low, low, wide)), target)


def elementwise(
    function: str, operands: Sequence[Array | float | int], dtypes: Sequence[DType | None], result: DType
) -> Array:
    """``function(operands...)``, computed wide and rounded once to ``result``.

    Args:
        function: a name of `tilewright.functions.table.FUNCTIONS`.
        operands: arrays, or plain numbers.
        dtypes: the dtype of each array; None for a plain number, which takes the computing dtype.
        result: dtype of the result.

    Example:
        >>> from tilewright.dtypes import f16
        >>> elementwise("mul", [np.float16([2.0, 3.0]), 0.5], [f16, None], f16).tolist()
        [1.0, 1.5]
    """
    known = [dtype for dtype in dtypes if dtype is not None]
    if function in CONVERSION:
        value = operands[0]
        if dtypes[0] is None:
            return _rounded(np.asarray(value, _held_by(value)), result)
        if function == "bitcast":
            return np.asarray(value).view(result.numpy)
        change = saturated if function == "saturate" else convert
        return change(np.asarray(value), dtypes[0], result)
    if function == "select":
        condition, *arms = operands
        left, right = (
            convert(np.asarray(arm), dtype, result)
            if dtype is not None
            else _rounded(np.asarray(arm, np.float64), result)
            for arm, dtype in zip(arms, dtypes[1:], strict=True)
        )
        return np.where(np.asarray(condition), left, right)
    meaning = FUNCTIONS[function].meaning
    assert meaning is not None, function
    common = known[0] if known else result
    wide = common.computed.numpy
    with np.errstate(all="ignore"):
        inputs = [
            _plain(value, wide) if dtype is None else widen(np.asarray(value), dtype)
            for value, dtype in zip(operands, dtypes, strict=True)
        ]
        computed = np.asarray(meaning(*inputs))
        if function in COMPARISON:
            return computed
        return computed if computed.dtype == result.numpy else _rounded(computed, result)


def _held_by(value: Any) -> Any:
    """The NumPy dtype that holds a plain number."""
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return np.float64
    return np.int64 if value < 2**63 else np.uint64


def _plain(value: Any, wide: np.dtype[Any]) -> Array:
    """A plain number in the dtype in which others compute, rounded once."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return np.asarray(np.int64(value)).astype(wide)
    return np.asarray(value, wide)


_REDUCED: dict[str, np.ufunc] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
}


def reduce_into(elements: Array, at: Array, values: Array, kind: str) -> None:
    """``elements[at[i]] = combine(elements[at[i]], values[i])``, one after the other, each sum rounded.

    Example:
        >>> sums = np.zeros(3, np.float32)
        >>> reduce_into(sums, np.array([1, 1, 2]), np.float32([1, 2, 4]), "add")
        >>> sums.tolist()
        [0.0, 3.0, 4.0]
    """
    with np.errstate(all="ignore"):
        _REDUCED[kind].at(elements, at, values)


def accumulate(atom: MmaAtom, a: Array, b: Array, c: Array, rows: Array, columns: Array) -> Array:
    """``c + (a @ b.T)[rows, columns]``: exact products, one wide sum, one rounding to c's dtype.

    Products of two floats of at most 24 fraction bits are exact in f64, as are all integer products in i64.

    Args:
        atom: the instruction; tells dtypes and the precision of its inputs.
        a: (m, k) of A's dtype.
        b: (n, k) of B's dtype.
        c: accumulators, of any shape.
        rows: the row of every accumulator.
        columns: the column of every accumulator.
    """
    return add_products(atom, multiply(atom, a, b)[rows, columns], c)


def multiply(atom: MmaAtom, a: Array, b: Array) -> Array:
    """``a @ b.T``, exact products in one wide sum: (m, k) by (n, k)."""
    with np.errstate(all="ignore"):
        if atom.precision is not None:
            a, b = (keep_fraction(x, atom.precision, atom.rounding) for x in (a, b))
        if atom.c_dtype.is_float:
            wide: Any = np.complex128 if atom.c_dtype.components == 2 else np.float64
            product: Array = widen(a, atom.a_dtype).astype(wide) @ widen(b, atom.b_dtype).astype(wide).T
            return product
        narrow = atom.a_dtype.bits <= 16 and atom.b_dtype.bits <= 16 and a.shape[1] <= 2**20
        exact: Any = np.float64 if narrow else np.int64
        return np.asarray((a.astype(exact) @ b.astype(exact).T).astype(np.int64))


def add_products(atom: MmaAtom, products: Array, c: Array) -> Array:
    """``c + products``, rounded once to c's dtype."""
    with np.errstate(all="ignore"):
        if atom.c_dtype.is_float:
            return _rounded(products + widen(c, atom.c_dtype).astype(products.dtype), atom.c_dtype)
        total: Array = (products + c.astype(np.int64)).astype(atom.c_dtype.numpy)
        return total
