"""Arrays of elements narrower than a byte. Each byte holds several, the first in its lowest bits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType, u8
from tilewright.errors import LaunchError
from tilewright.packing import narrow, packed_dim
from tilewright.runtime.frameworks import ArrayInfo, row_major


@launches
@dataclass(frozen=True, eq=False)
class Packed:
    """An array of bytes that a kernel takes as an array of narrower elements; made by `packed`.

    Args:
        array: the bytes: an array of u8, of any framework.
        dtype: the element type.
        axis: the dimension along which elements share bytes; None: the contiguous dimension.
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

    The dimension along which elements share bytes has twice its extent in bytes.  Nothing is copied.  Kernels
    move packed elements, and convert them when they load them into a fragment of a wider type, or store them
    from one.

    Args:
        array: an array of u8 of any framework, contiguous along a dimension.
        element: `i4`, `u4` or `f4e2m1`.
        axis: the dimension along which elements share bytes; default: the dimension of stride 1.  If several
            have stride 1, the last of those with extent 1, as in the result of `pack` and its transpose.

    Returns:
        A view to pass to kernels.

    Raises:
        DTypeError: the element type has 8 bits or more.

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


def seen_as(found: ArrayInfo, kind: DType, axis: int | None = None) -> ArrayInfo:
    """Return the metadata of an array of bytes, viewed as narrower elements.

    Args:
        found: the bytes.
        kind: the element type.
        axis: the dimension along which elements share bytes; None: the contiguous dimension.

    Raises:
        LaunchError: it is no array of u8, or not contiguous along the axis.
    """
    if found.dtype != u8:
        raise LaunchError(f"an array of {found.dtype} for packed {kind}", "its bytes, as an array of u8")
    if 0 in found.shape:  # the strides of an empty array mean nothing
        last = axis if axis is not None and -len(found.shape) <= axis < len(found.shape) else -1
        counts = [max(extent, 2) for extent in found.shape]  # no other stride is 1
        counts.append(counts.pop(last))
        *steps, one = row_major(tuple(counts))
        steps.insert(last % len(counts), one)
        found = replace(found, strides=tuple(steps))
    dim = packed_dim(found.strides, found.shape, in_bytes=True)
    if dim is None:
        raise LaunchError(
            f"strides {found.strides} of the bytes of packed {kind}: they are contiguous along no dimension",
            "np.ascontiguousarray(array)",
        )
    if axis is not None:
        rank = len(found.shape)
        if not -rank <= axis < rank or (found.strides[axis] != 1 and found.shape[axis] > 1):
            rule = f"bytes of shape {found.shape} and strides {found.strides} are not contiguous along it"
            text = f"axis={axis} of packed {kind}: {rule}"
            raise LaunchError(text, f"axis={dim}")
        dim = axis % rank
    each = kind.per_byte
    shape = tuple(n * each if d == dim else n for d, n in enumerate(found.shape))
    strides = tuple(1 if d == dim else step * each for d, step in enumerate(found.strides))
    return replace(found, shape=shape, strides=strides, dtype=kind)


def in_bytes(info: ArrayInfo) -> ArrayInfo:
    """Return the metadata of an array; of its bytes if its elements are packed."""
    if not info.dtype.is_packed:
        return info
    each, dim = info.dtype.per_byte, packed_dim(info.strides, info.shape)
    shape = tuple(n // each if d == dim else n for d, n in enumerate(info.shape))
    # The stride of a dimension with one element is not used; it must not look like the packed dimension.
    steps = [
        max(step, 2 * each) if n == 1 else step for n, step in zip(info.shape, info.strides, strict=True)
    ]
    strides = tuple(1 if d == dim else step // each for d, step in enumerate(steps))
    return replace(info, shape=shape, strides=strides, dtype=u8)
