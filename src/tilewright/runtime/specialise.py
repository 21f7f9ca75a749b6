"""From the caller's array to the class of arrays that one compiled kernel serves."""

from __future__ import annotations

import math

from tilewright.errors import LaunchError
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.arrays import ArrayInfo

MAX_EXTENT = 2**31 - 1

_EXTENT_DIVISOR = 256
_STRIDE_DIVISOR = 16
_ALIGN_BYTES = 16


def spec_of(info: ArrayInfo, name: str = "array") -> TensorSpec:
    """The class that an array belongs to.

    Args:
        info: the array.
        name: what messages call it.

    Raises:
        LaunchError: an extent is 2**31 or more.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe
        >>> spec_of(describe(np.empty((130, 96), np.float16))).stride_divisors
        (16, 1)
    """
    _check_extents(info, name)
    unit, empty = _unit_dim(info), 0 in info.shape
    return TensorSpec(
        dtype=info.dtype,
        rank=len(info.shape),
        unit_dim=unit,
        extent_divisors=tuple(math.gcd(extent, _EXTENT_DIVISOR) for extent in info.shape),
        stride_divisors=tuple(
            1 if dim == unit else math.gcd(0 if empty else stride, _STRIDE_DIVISOR)
            for dim, stride in enumerate(info.strides)
        ),
        align=math.gcd(0 if empty else info.pointer, _ALIGN_BYTES),
        wide=_reach(info) > MAX_EXTENT,
    )


def check_fits(spec: TensorSpec, info: ArrayInfo, name: str = "array") -> None:
    """Check that a kernel made for a class of arrays may run on this one.

    Args:
        spec: the class.
        info: the array.
        name: what messages call it.

    Raises:
        LaunchError: the array is not of the class; names what is needed.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe
        >>> check_fits(spec_of(describe(np.empty((64, 64)))), describe(np.empty((65, 64))), "A")
        Traceback (most recent call last):
        tilewright.errors.LaunchError: A: extent 65 of dimension 0 must be a multiple of 64
    """
    if info.dtype != spec.dtype:
        raise LaunchError(f"{name}: elements are {info.dtype}, must be {spec.dtype}")
    if len(info.shape) != spec.rank:
        raise LaunchError(f"{name}: has {len(info.shape)} dimensions {info.shape}, must have {spec.rank}")
    _check_extents(info, name)
    empty = 0 in info.shape
    for dim, (extent, stride) in enumerate(zip(info.shape, info.strides, strict=True)):
        factor = spec.extent_divisors[dim]
        if extent % factor:
            raise LaunchError(f"{name}: extent {extent} of dimension {dim} must be a multiple of {factor}")
        if empty:
            continue  # whose strides are of no consequence
        if dim == spec.unit_dim and stride != 1:
            raise LaunchError(f"{name}: stride {stride} of dimension {dim} must be 1")
        factor = spec.stride_divisors[dim]
        if stride % factor:
            raise LaunchError(f"{name}: stride {stride} of dimension {dim} must be a multiple of {factor}")
    if not empty and info.pointer % spec.align:
        raise LaunchError(f"{name}: address {info.pointer:#x} must be a multiple of {spec.align} bytes")
    if _reach(info) > MAX_EXTENT and not spec.wide:
        raise LaunchError(
            f"{name}: shape {info.shape} with strides {info.strides} reaches past element {MAX_EXTENT}; "
            "the kernel was made for 32-bit offsets"
        )


def _check_extents(info: ArrayInfo, name: str) -> None:
    for dim, extent in enumerate(info.shape):
        if extent > MAX_EXTENT:
            raise LaunchError(f"{name}: extent {extent} of dimension {dim} must be at most {MAX_EXTENT}")


def _unit_dim(info: ArrayInfo) -> int | None:
    """The last dimension of stride 1 that is stepped along; the last of stride 1 if none is.

    An array without elements has no strides worth the name: it counts as packed, the last dimension fastest.
    """
    if 0 in info.shape:
        return len(info.shape) - 1
    units = [dim for dim, stride in enumerate(info.strides) if stride == 1]
    stepped = [dim for dim in units if info.shape[dim] > 1]
    found = stepped or units
    return found[-1] if found else None


def _reach(info: ArrayInfo) -> int:
    """The largest number that addressing the array takes: an element's offset, or a stride, taken or not."""
    steps = zip(info.shape, info.strides, strict=True)
    last = 0 if 0 in info.shape else sum((extent - 1) * stride for extent, stride in steps)
    return max((last, *info.strides))
