"""Storage and arithmetic of numbers.  `Numbers` follows the dtypes.

`tilewright.targets.reference.residues.Residues` is another `Numbers`, in which a float is an integer modulo a
prime.  Types narrower than f32 compute in f32 and round once; f64 computes in f64.  Integers wrap.
Conversions of floats to integers truncate and saturate; NaN becomes 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import (
    Array,
    convert,
    keep_fraction,
    narrowed,
    number,
    rounded,
    saturated,
    widen,
)
from tilewright.functions.table import COMPARISON, CONVERSION, FUNCTIONS, TAKE, looked_up
from tilewright.ir.mma import MmaAtom

REDUCTIONS: dict[str, Callable[[Array, Array], Array]] = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
}
"""The function that combines two numbers in a reduction; a maximum or minimum with NaN is NaN."""


def _held_by(value: Any) -> Any:
    """Return the NumPy dtype that holds a plain number."""
    if not isinstance(value, int) or not -(2**63) <= value < 2**64:
        return np.float64
    return np.int64 if value < 2**63 else np.uint64


def _plain(value: Any, wide: np.dtype[Any]) -> Array:
    """Return a Python number in ``wide``, the computing dtype of the other operands, rounded once."""
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


MOST_PRODUCTS = 1 << 18
"""Products per call of the BLAS library.  For more, OpenBLAS starts threads that cost more than they save."""


def _product(a: Array, b: Array) -> Array:
    """``a @ b.T``, some columns at a time."""
    columns = max(1, MOST_PRODUCTS // max(1, a.size))
    parts = [a @ b[first : first + columns].T for first in range(0, max(len(b), 1), columns)]
    return np.concatenate(parts, axis=1)


class Numbers:
    """The arithmetic of the dtypes; subclasses replace it."""

    in_bytes = True
    """Whether numbers are stored as the bytes of their dtype, so that tensors can share bytes."""

    def storage(self, dtype: DType) -> np.dtype[Any]:
        """Return the NumPy dtype that stores a dtype."""
        return dtype.numpy

    def poison(self, dtype: DType, shape: int | tuple[int, ...]) -> Array:
        """Return an array of poison, the contents of uninitialised memory: NaN, or a conspicuous integer.

        Example:
            >>> from tilewright.dtypes import f32, i8
            >>> NUMBERS.poison(f32, 2).tolist(), NUMBERS.poison(i8, 2).tolist()
            ([nan, nan], [-91, -91])
        """
        if dtype.kind == "bool":
            return np.ones(shape, np.bool_)
        array = np.empty(shape, dtype.numpy)
        array.reshape(-1).view(np.uint8)[:] = 0xFF if dtype.is_float else 0xA5
        return array

    def number(self, value: float | int, dtype: DType) -> Array:
        """Return a plain number in a dtype."""
        return number(value, dtype)

    def scalar(self, value: Array, dtype: DType) -> Array:
        """Return a number that the caller passed in its dtype."""
        return value

    def convert(self, values: Array, source: DType, target: DType) -> Array:
        """Convert numbers from one dtype to another."""
        return convert(values, source, target)

    def elementwise(
        self, function: str, operands: Sequence[Any], dtypes: Sequence[DType | None], result: DType
    ) -> Array:
        """``function(operands...)``, computed wide and rounded once to ``result``.

        Args:
            function: a name of `tilewright.functions.table.FUNCTIONS`.
            operands: arrays, or plain numbers.
            dtypes: the dtype of each array; None for a plain number, which takes the computing dtype.
            result: dtype of the result.

        Example:
            >>> from tilewright.dtypes import f16
            >>> NUMBERS.elementwise("mul", [np.float16([2.0, 3.0]), 0.5], [f16, None], f16).tolist()
            [1.0, 1.5]
        """
        known = [dtype for dtype in dtypes if dtype is not None]
        if function in CONVERSION:
            value = operands[0]
            if dtypes[0] is None:
                return rounded(np.asarray(value, _held_by(value)), result)
            if function == "bitcast":
                return np.asarray(value).view(result.numpy)
            change = saturated if function == "saturate" else convert
            return change(np.asarray(value), dtypes[0], result)
        if function == "select":
            condition, *arms = operands
            left, right = (
                convert(np.asarray(arm), dtype, result)
                if dtype is not None
                else rounded(np.asarray(arm, _held_by(arm)), result)
                for arm, dtype in zip(arms, dtypes[1:], strict=True)
            )
            return np.where(np.asarray(condition), left, right)
        if function == TAKE:
            codes, *entries = operands
            table = np.stack([number(entry, result) for entry in entries])
            return looked_up(np.asarray(codes), table)
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
            return computed if computed.dtype == result.numpy else rounded(computed, result)

    def multiply_add(self, atom: MmaAtom, a: Array, b: Array, c: Array, negative: bool = False) -> Array:
        """``c + a @ b.T``, or ``c - a @ b.T``, with the rounding of the atom.

        If the atom has `sums`, addends are truncated as on the hardware, one group of products after the
        other.  Otherwise exact products are added in one sum, which is rounded once: products of two floats
        of at most 24 fraction bits are exact in f64, and all integer products are exact in i64.

        Args:
            atom: the instruction.
            a: (m, k) of A's dtype.
            b: (n, k) of B's dtype.
            c: (m, n) of C's dtype.
            negative: whether products are subtracted; of floats.
        """
        with np.errstate(all="ignore"):
            if atom.precision is not None:
                a, b = (keep_fraction(x, atom.precision, atom.rounding) for x in (a, b))
            if not atom.c_dtype.is_float:
                narrow = atom.a_dtype.bits <= 16 and atom.b_dtype.bits <= 16 and a.shape[1] <= 2**20
                exact: Any = np.float64 if narrow else np.int64
                products = _product(a.astype(exact), b.astype(exact)).astype(np.int64)
                return (products + c.astype(np.int64)).astype(atom.c_dtype.numpy)
            wide: Any = np.complex128 if atom.c_dtype.components == 2 else np.float64
            left, right = widen(a, atom.a_dtype).astype(wide), widen(b, atom.b_dtype).astype(wide)
            left = -left if negative else left
            if atom.sums is not None:
                return atom.sums.add(left, right, c, (atom.a_dtype, atom.b_dtype, atom.c_dtype))
            return rounded(_product(left, right) + widen(c, atom.c_dtype).astype(wide), atom.c_dtype)

    def reduce_into(self, dtype: DType, elements: Array, at: Array, values: Array, kind: str) -> None:
        """``elements[at[i]] = combine(elements[at[i]], values[i])``, one after the other, each sum rounded.

        Example:
            >>> from tilewright.dtypes import f32
            >>> sums = np.zeros(3, np.float32)
            >>> NUMBERS.reduce_into(f32, sums, np.array([1, 1, 2]), np.float32([1, 2, 4]), "add")
            >>> sums.tolist()
            [0.0, 3.0, 4.0]
        """
        with np.errstate(all="ignore"):
            _REDUCED[kind].at(elements, at, values)

    def widen(self, values: Array, dtype: DType) -> Array:
        """Convert numbers to the dtype in which they are reduced."""
        return widen(values, dtype)

    def narrowed(self, values: Array, dtype: DType) -> Array:
        """Convert widened numbers back to their dtype."""
        return narrowed(values, dtype)

    def combine(self, function: str, dtype: DType) -> Callable[[Array, Array], Array]:
        """Return the function that combines two numbers in a reduction."""
        return REDUCTIONS[function]


NUMBERS = Numbers()
"""The arithmetic of the dtypes."""
