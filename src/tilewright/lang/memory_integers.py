"""Integers that the kernel reads from memory."""

from __future__ import annotations

from tilewright.ir.ops import ReadIndex
from tilewright.lang.constants import constant
from tilewright.lang.scalars import Index, Scalar, unwrap
from tilewright.lang.source import here
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, located
from tilewright.lang.verbs import verb


@verb
def index(source: Tensor, low: Index | None = None, stop: Index | None = None, *, multiple: int = 1) -> Index:
    """``n = source``: load an integer from memory, as an index, a loop bound or a condition.

    All threads read the same element at the place of the call, after the barriers and waits before it.  The
    declared range and divisor are known wherever the integer is used (``X.tile((64, 64), (n, 0))`` needs no
    check for n < 0).  The reference reports a value that violates them.

    Args:
        source: one element of a tensor of integers, in global or shared memory: ``sizes[g]``.
        low: smallest legal value; default: the smallest of its dtype.
        stop: one more than the largest legal value; default: as large as its dtype allows.
        multiple: a divisor of the value.

    Raises:
        TraceError: the source has dimensions, or is not of integers.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="M N", sizes="M", Y="M")
        ... def sums(X, sizes, Y):
        ...     row = tw.block_index(X.shape[0])
        ...     one = tw.blocked((1,), (1,))
        ...     total = tw.fragment(one, tw.f32, 0)
        ...     for column in tw.range(tw.index(sizes[row], 0, X.shape[1] + 1)):
        ...         total += tw.load(X[row, column:column + 1], one)
        ...     tw.copy(total, Y[row:row + 1])
        >>> x, y = np.ones((3, 8), np.float32), np.zeros(3, np.float32)
        >>> sums(x, np.array([2, 0, 7], np.int32), y, target="reference").target, y.tolist()
        ('reference', [2.0, 0.0, 7.0])
    """
    tracer = current()
    name = tracer.names(("index",))[0]
    least, end = (None if value is None else unwrap(value) for value in (low, stop))
    divisor = constant("multiple", multiple)
    with located():
        sym = ReadIndex.symbol(name, source.value, least, end, divisor)
    tracer.data.add(sym)
    tracer.builder.append(ReadIndex(sym, source.value, least, end, divisor, location=here()))
    return Scalar(sym)
