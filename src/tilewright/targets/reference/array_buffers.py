"""The memory of the caller's arrays, from their lowest elements on, whichever way their dimensions run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.types import Value
from tilewright.packing import packed_dim
from tilewright.passes.rewrite import Rewriter
from tilewright.symbolic.expr import add
from tilewright.targets.reference.findings import strided_element
from tilewright.targets.reference.memory import Buffer, History
from tilewright.targets.reference.numbers import NUMBERS, Numbers


def array_buffer(
    owner: Value, array: Array, is_written: bool, check: bool, numbers: Numbers = NUMBERS
) -> Buffer:
    """The memory of a caller's array, in place, in address order.

    Raises:
        LaunchError: wrong dtype, fractional strides, or a read-only array that is written.
    """
    want = numbers.storage(owner.dtype)
    if array.dtype != want:
        raise LaunchError(f"{owner} is an array of {array.dtype}; the kernel takes {owner.dtype}")
    if is_written and not array.flags.writeable:
        raise LaunchError(f"{owner} is read-only and the kernel writes it")
    strides, rest = zip(*(divmod(s, want.itemsize) for s in array.strides), strict=True) or ((), ())
    if any(rest):
        raise LaunchError(
            f"{owner} has strides of {array.strides} bytes; they must be multiples of {want.itemsize}"
        )
    upwards: Any = (*(slice(None, None, -1 if step < 0 else 1) for step in strides), ...)
    rising = array[upwards]
    steps = tuple(abs(step) for step in strides)
    span = 0 if array.size == 0 else 1 + sum((n - 1) * s for n, s in zip(array.shape, steps, strict=True))
    # As bytes of no meaning: NumPy's array interface has no name for every dtype.
    raw = rising.view(f"V{want.itemsize}")
    spread = np.lib.stride_tricks.as_strided(raw, (span,), (want.itemsize,), writeable=array.flags.writeable)
    flat = spread.view(want)
    exists = None
    if span > array.size:
        exists = np.zeros(span, bool)
        np.lib.stride_tricks.as_strided(exists, array.shape, steps)[...] = True
    address = rising.__array_interface__["data"][0]
    locate = partial(_element, array.shape, strides)
    history = History.blank(span) if check else None
    return Buffer(owner, flat, address, True, locate, exists, history, numbers=numbers)


def _element(shape: Sequence[int], strides: Sequence[int], number: int) -> tuple[int, ...] | None:
    """The coordinate of an element by its number in address order; None if the array has none there."""
    found = strided_element(shape, [abs(step) for step in strides], number)
    if found is None:
        return None
    every = zip(shape, strides, found, strict=True)
    return tuple(extent - 1 - at if step < 0 else at for extent, step, at in every)


def in_elements(dtype: DType, array: Array) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Extents and strides of an array in elements, of which its bytes may hold several.

    Example:
        >>> from tilewright.dtypes import i4
        >>> in_elements(i4, np.zeros((3, 5), np.uint8))
        ((3, 10), (10, 1))
    """
    each, strides = dtype.per_byte, tuple(stride // array.itemsize for stride in array.strides)
    dim = packed_dim(strides, array.shape, in_bytes=True) if each > 1 else None
    shape = tuple(n * each if d == dim else n for d, n in enumerate(array.shape))
    return shape, tuple(step if d == dim else step * each for d, step in enumerate(strides))


def from_lowest(kernel: Kernel, arrays: Mapping[str, Array]) -> Kernel:
    """The kernel with offsets that count from the lowest element of each array, not from its first.

    They are the same unless a stride is negative; a buffer has no elements before its own first one.
    """
    rewriter = Rewriter(kernel, lambda op, rewriter: None)
    for old in kernel.tensors:
        before = _before_first(old.dtype, arrays[old.name]) if old.name in arrays else 0
        if before:
            view = replace(old.tensor.view, offset=add(old.tensor.view.offset, before))
            rewriter.values[old] = Value(old.name, replace(old.tensor, view=view))
    if not rewriter.values:
        return kernel
    params = (
        replace(p, value=rewriter.rebuild(p.value)) if isinstance(p, TensorParam) else p
        for p in kernel.params
    )
    return replace(kernel, params=tuple(params), body=rewriter.block(kernel.body))


def _before_first(dtype: DType, array: Array) -> int:
    """How many elements lie from the lowest one of an array to that of coordinate 0."""
    shape, strides = in_elements(dtype, array)
    return sum((n - 1) * -step for n, step in zip(shape, strides, strict=True) if step < 0 and array.size)
