"""How the numbers of a kernel are held and computed with: as their dtypes say, unless another `Numbers` does.

`tilewright.targets.reference.residues.Residues` is one: there every float is an integer modulo a prime.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array, convert, narrowed, number, widen
from tilewright.ir.mma import MmaAtom
from tilewright.targets.reference import numerics


def poison(dtype: DType, shape: int | tuple[int, ...]) -> Array:
    """An array of what uninitialised memory holds: NaN, or a conspicuous integer.

    Example:
        >>> from tilewright.dtypes import f32, i8
        >>> poison(f32, 2).tolist(), poison(i8, 2).tolist()
        ([nan, nan], [-91, -91])
    """
    if dtype.kind == "bool":
        return np.ones(shape, np.bool_)
    array = np.empty(shape, dtype.numpy)
    array.reshape(-1).view(np.uint8)[:] = 0xFF if dtype.is_float else 0xA5
    return array


class Numbers:
    """What numbers are and do on a machine; functions as `numerics` and `conversions` have them."""

    in_bytes = True
    """Whether numbers are bytes, so that tensors that lie in the same ones hold each other's."""

    def storage(self, dtype: DType) -> np.dtype[Any]:
        """What NumPy's arrays of them are of."""
        return dtype.numpy

    def poison(self, dtype: DType, shape: int | tuple[int, ...]) -> Array:
        """What uninitialised memory holds."""
        return poison(dtype, shape)

    def number(self, value: float | int, dtype: DType) -> Array:
        """A plain number as one of a dtype."""
        return number(value, dtype)

    def scalar(self, value: Array, dtype: DType) -> Array:
        """A number that a launch is given, which is one of its dtype."""
        return value

    def convert(self, values: Array, source: DType, target: DType) -> Array:
        """Numbers of a dtype as those of another one."""
        return convert(values, source, target)

    def elementwise(
        self, function: str, operands: Sequence[Any], dtypes: Sequence[DType | None], result: DType
    ) -> Array:
        """A function of each element."""
        return numerics.elementwise(function, operands, dtypes, result)

    def multiply_add(self, atom: MmaAtom, a: Array, b: Array, c: Array, negative: bool = False) -> Array:
        """``c + a @ b.T``, or minus that product, as an MMA adds it."""
        return numerics.multiply_add(atom, a, b, c, negative)

    def reduce_into(self, dtype: DType, elements: Array, at: Array, values: Array, kind: str) -> None:
        """Combine elements of memory with values, one after the other."""
        numerics.reduce_into(elements, at, values, kind)

    def widen(self, values: Array, dtype: DType) -> Array:
        """Numbers as those of the dtype in which they are reduced."""
        return widen(values, dtype)

    def narrowed(self, values: Array, dtype: DType) -> Array:
        """What `widen` has widened."""
        return narrowed(values, dtype)

    def combine(self, function: str, dtype: DType) -> Callable[[Array, Array], Array]:
        """How a reduction combines two numbers."""
        return numerics.REDUCTIONS[function]


NUMBERS = Numbers()
"""Those of dtypes."""
