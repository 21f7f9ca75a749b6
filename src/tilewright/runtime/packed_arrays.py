"""Arrays of elements narrower than a byte: each byte holds several, the first in its lowest bits."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType, u8
from tilewright.errors import LaunchError
from tilewright.packing import narrow, packed_dim
from tilewright.runtime.frameworks import ArrayInfo, ArrayReader


@launches
@dataclass(frozen=True, eq=False)
class Packed:
    """An array of bytes that a kernel sees as an array of narrower elements; made by `packed`.

    Args:
        array: the bytes: an array of u8, of any framework.
        dtype: the element type.
        axis: the dimension along which elements share bytes; None: as the strides say.
    """

    array: Any
    dtype: DType
    axis: int | None = None

    def __repr__(self) -> str:
        shape = getattr(self.array, "shape", None)
        extents = "" if shape is None else f" {tuple(shape)}"
        return f"<{self.dtype} packed in {type(self.array).__name__}{extents}>"


@launches
def packed(array: Any, element: DType | str, axis: int | None = None) -> Packed:
    """View the bytes of an array as 4-bit elements, two in each byte, the first in the low half.

    The dimension along which elements share bytes has twice the extent that it has in bytes.  Nothing is
    copied.  Kernels move such elements, and convert them as they are loaded into a
    fragment of a wider type or stored from one.

    Args:
        array: an array of u8 of any framework, contiguous along a dimension.
        element: `i4` or `f4e2m1`.
        axis: the dimension along which elements share bytes; default: that of stride 1.  If several have
            stride 1, all but one have one byte: the fastest is then the last that has one byte, as in the
            result of `pack` and its transpose, and of a single byte the last.

    Returns:
        What stands for the array in calls of kernels.

    Raises:
        DTypeError: an element type that fills bytes.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(W="N K", Y="N K")
        ... def widen(W, Y):
        ...     tile = tw.fragment(tw.blocked((4, 8), (4, 1)), tw.f32)
        ...     tw.copy(W.tile((4, 8), (0, 0)), tile)
        ...     tw.copy(tile, Y.tile((4, 8), (0, 0)))
        >>> w = tw.pack([[1, -2, 3, -4, 5, -6, 7, -8]] * 4, tw.i4)
        >>> w.shape, hex(w[0, 0])
        ((4, 4), '0xe1')
        >>> y = np.zeros((4, 8), np.float32)
        >>> _ = widen(tw.packed(w, tw.i4), y, target="reference")
        >>> y[0].tolist()
        [1.0, -2.0, 3.0, -4.0, 5.0, -6.0, 7.0, -8.0]
    """
    return Packed(array, narrow(element), axis)


def family(describe: Callable[[Any, int], ArrayInfo], of: Callable[[Any], ArrayReader]) -> ArrayReader:
    """How packed arrays are read: as their bytes are, by the framework that these are of.

    Args:
        describe: of any array.
        of: the family of any array.
    """

    def described(given: Packed, stream: int) -> ArrayInfo:
        return seen_as(describe(given.array, stream), given.dtype, given.axis)

    def located(given: Packed, stream: int) -> tuple[Hashable, int]:
        key, pointer = of(given.array).locate(given.array, stream)
        return (given.dtype, given.axis, key), pointer

    return ArrayReader(
        described,
        located,
        lambda given: of(given.array).watch(given.array),
        lambda given, index: of(given.array).stream(given.array, index),
        one_stream=False,
    )


def seen_as(found: ArrayInfo, kind: DType, axis: int | None = None) -> ArrayInfo:
    """What is known of an array of bytes, as one of narrower elements.

    Args:
        found: the bytes.
        kind: the element type.
        axis: the dimension along which elements share bytes; None: as the strides say.

    Raises:
        LaunchError: it is no array of u8, or contiguous along no dimension, or not along the axis.
    """
    if found.dtype != u8:
        raise LaunchError(
            f"an array of {found.dtype} for packed {kind}; nearest legal choice: its bytes, as an array of u8"
        )
    if 0 in found.shape:  # strides of what holds nothing say nothing
        found = replace(found, strides=row_major(found.shape))
    dim = packed_dim(found.strides, found.shape, in_bytes=True)
    if dim is None:
        raise LaunchError(
            f"strides {found.strides} of the bytes of packed {kind}: they are contiguous along no dimension; "
            "nearest legal choice: np.ascontiguousarray(array)"
        )
    if axis is not None:
        rank = len(found.shape)
        if not -rank <= axis < rank or (found.strides[axis] != 1 and found.shape[axis] > 1):
            raise LaunchError(
                f"axis={axis} of packed {kind}: bytes of shape {found.shape} and strides {found.strides} are "
                f"not contiguous along it; nearest legal choice: axis={dim}"
            )
        dim = axis % rank
    each = kind.per_byte
    shape = tuple(n * each if d == dim else n for d, n in enumerate(found.shape))
    strides = tuple(1 if d == dim else step * each for d, step in enumerate(found.strides))
    return replace(found, shape=shape, strides=strides, dtype=kind)


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of an array whose last dimension is the fastest."""
    return tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def in_bytes(info: ArrayInfo) -> ArrayInfo:
    """What is known of an array, as one of bytes if its elements are packed."""
    if not info.dtype.is_packed:
        return info
    each, dim = info.dtype.per_byte, packed_dim(info.strides, info.shape)
    shape = tuple(n // each if d == dim else n for d, n in enumerate(info.shape))
    # One element is stepped along by nothing: that of another dimension must not look like the fastest.
    steps = [
        max(step, 2 * each) if n == 1 else step for n, step in zip(info.shape, info.strides, strict=True)
    ]
    strides = tuple(1 if d == dim else step // each for d, step in enumerate(steps))
    return replace(info, shape=shape, strides=strides, dtype=u8)
