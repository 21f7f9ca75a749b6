"""Elementwise functions that are exact or round once: select, extremes, rounding to integers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilewright.dtypes import DType, f32
from tilewright.errors import TraceError, shown
from tilewright.functions.conversions import number as rounded
from tilewright.functions.table import MOST_ENTRIES, TAKE
from tilewright.ir.legality import literal_obstacle
from tilewright.lang.dataflow.tiles import BY_DISTANCE, Tile
from tilewright.lang.fragments import Fragment, Number, Operand, element_type, elementwise, number, of_integer
from tilewright.lang.scalars import Condition, InMemory, Scalar
from tilewright.lang.scalars import maximum as integer_maximum
from tilewright.lang.scalars import minimum as integer_minimum
from tilewright.lang.source import here
from tilewright.lang.tracer import inline, verb

__all__ = ["absolute", "bitcast", "clamp", "floor", "fma", "maximum", "minimum", "round", "take", "where"]


@verb
def floor(x: Fragment | Tile | Number) -> Any:
    """The greatest integer that is not above x, as a float; floats only.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def exponent(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.floor(tw.log2(x)), Y.tile((32,), (0,)))
        >>> y = np.empty(3, np.float32)
        >>> exponent(np.float32([0.75, 8, 1000]), y, target="reference").target
        'reference'
        >>> y.tolist()
        [-1.0, 3.0, 9.0]
    """
    return elementwise("floor", x)


@verb
def round(x: Fragment | Tile | Number) -> Any:  # noqa: A001
    """The nearest integer, as a float, ties to even; floats only.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Q="N", scale=tw.f32)
        ... def quantise(X, Q, scale):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.clamp(tw.round(x / scale), -127, 127).to(tw.i8), Q.tile((32,), (0,)))
        >>> q = np.empty(4, np.int8)
        >>> quantise(np.float32([0.5, 1.5, -2.6, 1e6]), q, 1.0, target="reference").target
        'reference'
        >>> q.tolist()
        [0, 2, -3, 127]
    """
    return elementwise("round", x)


@verb
def clamp(x: Any, low: Any, high: Any) -> Any:
    """``minimum(maximum(x, low), high)``: the number in ``[low, high]`` nearest to x; NaN stays.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def relu6(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.clamp(x, 0, 6), part)
        >>> x = np.float32([-1, 2.5, 7])
        >>> relu6(x, target="reference").target, x.tolist()
        ('reference', [0.0, 2.5, 6.0])
    """
    return minimum(maximum(x, low), high)


@verb
def bitcast(x: Fragment | Tile | Number, dtype: DType | str) -> Any:
    """The number of another dtype that has the same bits.

    Raises:
        DTypeError: the dtypes differ in size, or one of them is not a real type of whole bytes.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def magnitude(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     bits = tw.bitcast(x, tw.u32) & 0x7FFFFFFF
        ...     tw.copy(tw.bitcast(bits, tw.f32), Y.tile((32,), (0,)))
        >>> y = np.empty(2, np.float32)
        >>> magnitude(np.float32([-1.5, 2]), y, target="reference").target, y.tolist()
        ('reference', [1.5, 2.0])
    """
    return elementwise("bitcast", x, dtype=element_type(dtype))


@verb
def absolute(x: Fragment | Tile | Number | Scalar) -> Any:
    """``|x|``; for an extent or an index the result is an integer.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def sizes(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.absolute(x), part)
        >>> x = np.float32([-1.5, 0, 2])
        >>> sizes(x, target="reference").target, x.tolist()
        ('reference', [1.5, 0.0, 2.0])
    """
    if isinstance(x, Scalar):
        return maximum(x, -x)
    return elementwise("abs", x)


@inline
def maximum(x: Any, y: Any) -> Any:
    """The larger of two values, element by element; takes fragments, numbers and integers.

    NaN if either is NaN, as in NumPy.  The larger of two integers, such as extents or indices, is an integer.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N", Y="N")
        ... def relu(X, Y):
        ...     x = tw.load(X.tile((32,), (0,)).partition((32,)))
        ...     tw.copy(tw.maximum(x, 0.0), Y.tile((32,), (0,)))
        >>> y = np.empty(3, np.float32)
        >>> relu(np.float32([-1, np.nan, 2]), y, target="reference").target
        'reference'
        >>> y.tolist()
        [0.0, nan, 2.0]
    """
    return _extreme("max", integer_maximum, max, x, y)


@inline
def minimum(x: Any, y: Any) -> Any:
    """The smaller of two values, element by element, of the types that `maximum` takes; NaN if either is NaN.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def capped(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.minimum(x, 1.0), part)
        >>> x = np.float32([-1, np.nan, 2])
        >>> capped(x, target="reference").target, x.tolist()
        ('reference', [-1.0, nan, 1.0])
    """
    return _extreme("min", integer_minimum, min, x, y)


def _extreme(function: str, of_integers: Any, of_floats: Any, x: Any, y: Any) -> Any:
    kinds = [value for value in (x, y) if isinstance(value, Fragment | Tile | Number)]
    if kinds:
        return elementwise(function, x, y)
    given = [value.item() if isinstance(value, np.generic) else value for value in (x, y)]
    if not any(isinstance(value, float) for value in given):
        return of_integers(*given)
    if not any(isinstance(value, Scalar) for value in given):
        plain = [number(value) for value in given]
        return next((value for value in plain if value != value), of_floats(plain))
    numbers = [of_integer(v.expr) if isinstance(v, Scalar) else v for v in given]
    return elementwise(function, *numbers).to("f32")


@verb
def fma(x: Tile | Operand, y: Tile | Operand, z: Tile | Operand) -> Any:
    """``x * y + z``, rounded once; f32 or f64.

    ``x * y + z`` in operators rounds twice, and no target fuses it; in the example that loses 2**-24.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def square_less_one(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.fma(x, x, -1.0) - (x * x - 1.0), part)
        >>> x = np.float32([1, 1 + 2**-12])
        >>> square_less_one(x, target="reference").target, (x * 2**24).tolist()
        ('reference', [0.0, 1.0])
    """
    return elementwise("fma", x, y, z)


@verb
def where(
    condition: Fragment | Tile | Number | Condition, x: Tile | Operand | bool, y: Tile | Operand | bool
) -> Any:
    """``x`` where the condition holds, else ``y``, element by element; also takes numbers.

    Two plain integers make an integer, i32 if it holds both, else i64; a plain float makes f32.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N")
        ... def leaky(X):
        ...     part = X.tile((32,), (0,)).partition((32,))
        ...     x = tw.load(part)
        ...     tw.copy(tw.where(x > 0, x, 0.125 * x), part)
        >>> x = np.float32([-8, 0, 3])
        >>> leaky(x, target="reference").target, x.tolist()
        ('reference', [-1.0, 0.0, 3.0])
    """
    return elementwise("select", condition, x, y)


@verb
def take(table: Any, codes: Fragment | Tile | Number, dtype: DType | str | None = None) -> Any:
    """``table[codes]``, element by element; 0 for a code outside of the table.

    Args:
        table: 1 to 256 numbers: a tuple, a list, or a NumPy array of one dimension.  They are constants of
            the kernel, rounded to ``dtype``.  In a kernel with `tiles` also an array of one dimension that
            the kernel is given, of any length.
        codes: integers.  Packed numbers of `u4` are looked up as they are unpacked.  For an array as the
            table, they are elements of an array of integers, such as ``codes[m, n]``.
        dtype: the dtype of the result; default: f32, or that of the array.

    Raises:
        TraceError: the table is empty or too long, has more than one dimension, or has entries that are not
            finite, or that the dtype does not hold; codes are not integers, or are computed for an array.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", codes="N K", C="M N")
        ... def linear(A, codes, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ tw.take((-1.0, 0.0, 0.5, 4.0), codes[n, k]).T
        ...         C[m, n] = acc
        >>> a, codes, c = np.float32([[1, 2]]), np.uint8([[3, 0], [2, 4]]), np.empty((1, 2), np.float32)
        >>> linear(a, codes, c, target="reference").target, c.tolist()
        ('reference', [[2.0, 0.5]])

        A table in memory:

        >>> @tw.kernel(table="E", codes="M N", C="M N")
        ... def decode(table, codes, C):
        ...     for m, n in tw.tiles(C):
        ...         C[m, n] = tw.take(table, codes[m, n])
        >>> table, codes = np.float32([-1, 0.5, 4]), np.uint8([[2, 0], [9, 1]])
        >>> c = np.empty((2, 2), np.float32)
        >>> decode(table, codes, c, target="reference").target, c.tolist()
        ('reference', [[4.0, -1.0], [0.0, 0.5]])
    """
    if isinstance(table, InMemory) and isinstance(codes, Tile):
        made = codes.flow.taken(table, codes)
        return made if dtype is None else made.to(dtype)
    kind = f32 if dtype is None else element_type(dtype)
    return elementwise(TAKE, codes, *_entries(table, kind), dtype=kind)


def _entries(table: Any, kind: DType) -> list[float]:
    """Return the entries of a table, rounded to a dtype."""
    near = f"nearest legal choice: a tuple of 1 to {MOST_ENTRIES} finite numbers"
    entries = table.tolist() if isinstance(table, np.ndarray) and table.ndim == 1 else table
    if isinstance(entries, Tile):
        near = f"{near}, or a whole array of one dimension without an index; {BY_DISTANCE}"
    if not isinstance(entries, tuple | list):
        raise TraceError(f"take: the table is {shown(table)}; {near}", here())
    if not 1 <= len(entries) <= MOST_ENTRIES:
        raise TraceError(f"take: a table of {len(entries)} entries; {near}", here())
    found = list[float]()
    for entry in map(number, entries):
        if not math.isfinite(entry):
            raise TraceError(f"take: the table has the entry {entry}; {near}", here())
        if (obstacle := literal_obstacle(kind, entry)) is not None:
            raise TraceError(f"take: {obstacle[0]}", here(), obstacle[1])
        real = kind.is_float and kind.components == 1
        found.append(float(rounded(entry, kind)) if real else int(entry))
    return found
