"""Packed numbers: several numbers per byte, the first in its lowest bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.calls import Calls
from tilewright.dtypes import DType, dtype, limits
from tilewright.errors import DTypeError, shown

NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
"""The sixteen numbers of the format NF4, in the order of their codes.

Source: Dettmers et al., "QLoRA: Efficient Finetuning of Quantized LLMs" (2023), appendix E; bitsandbytes.
"""

Bytes = npt.NDArray[np.uint8]


@Calls(DTypeError)
def pack(numbers: Any, element: DType | str) -> Bytes:
    """Pack numbers into bytes: two 4-bit elements per byte, neighbours along the last dimension.

    Numbers are rounded to nearest, ties to even, and clamped to the range of the type.
    A NaN becomes 0 as an integer, and the largest number as a float.

    Args:
        numbers: an array, or nested sequences; the last extent is even.
        element: `i4`, `u4` or `f4e2m1`.

    Returns:
        An array of u8 with half the last extent.

    Raises:
        DTypeError: the element type is not packed, the values are not numbers, or the last extent is odd.

    Example:
        >>> from tilewright.dtypes import f4e2m1, i4
        >>> pack([0.5, -6.0, 2.4, 100.0], f4e2m1).tolist(), pack([7, -8], i4).tolist()
        ([241, 116], [135])
    """
    kind, given = narrow(element), _array("pack", numbers)
    if (held := dtype(given.dtype)).kind == "bool" or held.components > 1:
        raise DTypeError(f"pack: elements of {held}", "real floats or integers")
    if given.ndim == 0 or given.shape[-1] % kind.per_byte:
        nearest = f"a last extent that is a multiple of {kind.per_byte}"
        raise DTypeError(f"pack: shape {given.shape} fills no bytes", nearest)
    wide = given.astype(np.float64)
    return joined(patterns(wide if kind.is_float else np.rint(wide), kind), kind)


@Calls(DTypeError)
def unpack(array: Any, element: DType | str) -> npt.NDArray[Any]:
    """Unpack 4-bit numbers from bytes into an array of `ml_dtypes`, one number per element.

    Args:
        array: an array of u8 in host memory, of one dimension or more.
        element: `i4`, `u4` or `f4e2m1`.

    Returns:
        An array with twice the last extent.

    Raises:
        DTypeError: the element type is not packed, or the array does not hold bytes.

    Example:
        >>> from tilewright.dtypes import i4
        >>> unpack(pack([7, -8, 0, 1], i4), i4).astype(int).tolist()
        [7, -8, 0, 1]
    """
    kind, held = narrow(element), _array("unpack", array)
    if held.dtype != np.uint8 or held.ndim == 0:
        what = f"an array of {held.dtype}, shape {held.shape}"
        raise DTypeError(f"unpack: {what}", "the bytes that tw.pack gives, of u8")
    return numbers_of(held, kind)


def _array(what: str, given: Any) -> npt.NDArray[Any]:
    """Convert to a NumPy array; refuse a range that no memory holds."""
    try:
        return np.asarray(given)
    except Exception as problem:  # noqa: BLE001 NumPy and a user's type may raise anything
        why = str(problem) or type(problem).__name__
        raise DTypeError(f"{what}: {shown(given)} makes no array ({why})", "a NumPy array") from None


def narrow(element: DType | str) -> DType:
    """Return a packed dtype by name.

    Raises:
        DTypeError: its elements have 8 bits or more.
    """
    try:
        kind = dtype(element)
    except DTypeError as unknown:
        raise DTypeError(f"element: {unknown}") from None
    if not kind.is_packed:
        said = shown(element) if str(element) == str(kind) else f"element={shown(element)}, {kind},"
        raise DTypeError(f"{said} fills bytes by itself", "i4, u4 or f4e2m1")
    return kind


def packed_dim(strides: tuple[int, ...], shape: tuple[int, ...], *, in_bytes: bool = False) -> int | None:
    """Return the dimension of stride 1, along which elements share bytes, or None.

    If several dimensions have stride 1, all but one have an extent of 1.  A dimension of one byte has stride
    1 only if it is the fastest; otherwise its stride is the product of the faster extents.  A packed
    dimension has at least two elements.

    Args:
        strides: the array's strides.
        shape: its extents.
        in_bytes: whether both count bytes, not elements.

    Example:
        >>> packed_dim((1, 1), (1, 5), in_bytes=True), packed_dim((1, 1), (1, 6)), packed_dim((8, 2), (5, 1))
        (0, 1, None)
    """
    found = [dim for dim in reversed(range(len(strides))) if strides[dim] == 1]
    likely = [dim for dim in found if (shape[dim] == 1) == in_bytes]
    return next(iter(likely or found), None)


def numbers_of(held: Bytes, kind: DType) -> npt.NDArray[Any]:
    """Unpack the numbers of bytes along the last dimension."""
    parts = np.stack([held >> kind.bits * i & (1 << kind.bits) - 1 for i in range(kind.per_byte)], axis=-1)
    return parts.reshape(*held.shape[:-1], held.shape[-1] * kind.per_byte).astype(np.uint8).view(kind.numbers)


def joined(parts: Bytes, kind: DType) -> Bytes:
    """Pack bit patterns into bytes along the last dimension."""
    groups = parts.reshape(*parts.shape[:-1], parts.shape[-1] // kind.per_byte, kind.per_byte)
    shifts = kind.bits * np.arange(kind.per_byte, dtype=np.uint8)
    made = np.empty(groups.shape[:-1], np.uint8)  # its strides show the packed dimension, even with one byte
    return np.asarray(np.bitwise_or.reduce(groups << shifts, axis=-1, out=made), np.uint8)


def patterns(wide: npt.NDArray[Any], kind: DType) -> Bytes:
    """Return bit patterns of numbers: floats round to nearest even, integers truncate, all are clamped.

    A NaN becomes the largest float, as by PTX's ``cvt.rn.satfinite.e2m1x2.f32``, and 0 as an integer.
    """
    low, high = limits(kind)
    if not kind.is_float:
        whole = np.trunc(np.clip(np.where(wide != wide, 0, wide), low, high)).astype(np.int8)
        return np.asarray(whole.view(np.uint8) & ((1 << kind.bits) - 1), np.uint8)
    positive = np.arange(1 << kind.bits - 1, dtype=np.uint8).view(kind.numbers).astype(np.float64)
    sizes = np.abs(wide)[..., None]
    middles = (positive[:-1] + positive[1:]) / 2
    below = np.where(np.arange(len(middles)) % 2, sizes < middles, sizes <= middles)
    sign = (np.signbit(wide) & (wide == wide)).astype(np.uint8) << kind.bits - 1
    return np.asarray((~below).sum(axis=-1) | sign, np.uint8)
