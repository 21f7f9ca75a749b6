"""Integers and truth values as `matmul` takes them: NumPy's dtypes of results, and in what is multiplied.

Sums wrap, so that only the lowest bits of operands and sums matter, as many as the result has: an operand of
as many bits is multiplied as it lies in memory, signed or not, and a narrower one is extended first.  Two
operands of 8 bits are multiplied as i8, for which there are matrix instructions, if their result has 8 bits,
or if i8 holds both.  A truth value is 0 or 1, and the sum of products of two is not 0 if any is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from tilewright.dtypes import DType, boolean, f16, f32, f64, i8, i32, u8, u32, u64
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import DTypeError
from tilewright.ops.results import ResultWanted, agreed, check_added, read_arrays
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided

BYTES = (i8, u8, boolean)
"""Operands of 8 bits."""

FLOATS = (f16, f32, f64)
"""Results of integers besides integers, if they hold all integers of the result that NumPy gives."""


class Whole(NamedTuple):
    """A product of integers.

    Args:
        multiplied: dtype in which operands are multiplied.
        result: dtype of the result.
    """

    multiplied: DType
    result: DType

    def read(self, dtype: DType, *, on_gpu: bool) -> DType:
        """The dtype as which the kernel reads an operand.

        A kernel that reads truth values converts each byte to 0 or 1.  On a GPU matrix instructions take the
        bytes of i8 as they are: a conversion would keep operands out of shared memory.

        Args:
            dtype: of the operand, any integer or truth values.
            on_gpu: whether a GPU multiplies.
        """
        if dtype == boolean and not (on_gpu and self.multiplied == i8):
            return dtype
        is_read = dtype.bits == self.multiplied.bits and not self.multiplied.is_float
        return self.multiplied if is_read else dtype

    def seen(self, given: Strided, *, on_gpu: bool) -> Strided:
        """An operand with the dtype as which the kernel reads it.

        Args:
            given: the operand.
            on_gpu: whether a GPU multiplies.
        """
        return Strided(given.array, replace(given.info, dtype=self.read(given.info.dtype, on_gpu=on_gpu)))


def natural_dtype(a: DType, b: DType) -> DType:
    """The dtype of a product of integers: NumPy's, but i32 in place of i8.

    Args:
        a: dtype of the operand on the left.
        b: dtype of the operand on the right.

    Example:
        >>> from tilewright.dtypes import i16, i64
        >>> natural_dtype(i8, u8), natural_dtype(boolean, boolean), natural_dtype(i8, i8)
        (i16, boolean, i32)
        >>> natural_dtype(u32, i16), natural_dtype(u64, i64)
        (i64, f64)
    """
    made = dtype_named(np.result_type(a.numpy, b.numpy))
    return i32 if made == i8 else made


def whole_product(infos: Mapping[str, ArrayInfo], wanted: ResultWanted) -> Whole | None:
    """How integers are multiplied that are not all of i8; None if an operand is no integer.

    Args:
        infos: the arrays, by the names of the arguments of `matmul`.
        wanted: the other arguments.

    Raises:
        DTypeError: a result that does not hold the product, or an argument that changes sums which wrap.
    """
    a, b = infos["a"].dtype, infos["b"].dtype
    if a == b == i8 or any(one.kind not in ("int", "uint", "bool") or one.is_packed for one in (a, b)):
        return None
    natural = natural_dtype(a, b)
    asked = None if wanted.out_dtype is None else dtype_named(wanted.out_dtype)
    made = agreed(asked, infos["out"].dtype if "out" in infos else None, natural)
    what = "out" if "out" in infos else "out_dtype"
    is_known = made in FLOATS or (made.kind in ("int", "uint", "bool") and not made.is_packed)
    if not is_known or not np.can_cast(natural.numpy, made.numpy, "safe"):
        raise DTypeError(
            f"matmul: {what} is {made}, and the product of {a} and {b} is {natural}, which {made} does not "
            f"hold; nearest legal choice: {natural}"
        )
    check_added(infos, "matmul", natural)
    changed = read_arrays(infos, wanted)
    changed += ["alpha"] if wanted.alpha not in (0, 1) else []
    changed += ["activation"] if wanted.activation is not None else []
    if changed:
        raise DTypeError(
            f"matmul: {', '.join(changed)} with operands of {a} and {b}, whose sums wrap; nearest legal "
            f"choice: operands of f64, or the product alone"
        )
    return Whole(_multiplied_dtype(a, b, made), made)


def _multiplied_dtype(a: DType, b: DType, made: DType) -> DType:
    """The dtype in which operands are multiplied; see the top of this file."""
    if made.is_float:
        return made
    if a in BYTES and b in BYTES and (made.bits == u8.bits or (made == i32 and u8 not in (a, b))):
        return i8
    return u32 if made.bits <= u32.bits else u64
