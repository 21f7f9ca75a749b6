"""Real and imaginary parts side by side, moved as one number of both their bits.

A result that is stored so takes one store, in whole rows where bulk copies store, and not one for each part,
of which every other number is left out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.lang.exact_functions import bitcast
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.frameworks import Strided

MOVED = {"f16": dtypes.i32, "f32": dtypes.f64}
"""As what a pair of parts is moved: types of its size that bulk copies know."""

BITS = {"f16": (dtypes.i16, dtypes.i32), "f32": (dtypes.i32, dtypes.i64)}
"""The integers of as many bits as a part, and as a pair, has."""


def are_paired(re: ArrayInfo, im: ArrayInfo) -> bool:
    """Whether both parts lie side by side, each pair at a multiple of its size, and are moved as one.

    Args:
        re: the real parts.
        im: the imaginary parts.
    """
    return re.dtype.name in MOVED and are_together(re, im)


def are_together(re: ArrayInfo, im: ArrayInfo) -> bool:
    """Whether both parts lie side by side, each pair at a multiple of its size.

    Args:
        re: the real parts.
        im: the imaginary parts.
    """
    steps = zip(re.shape, re.strides, im.strides, strict=True)
    beside = all(one == other and one % 2 == 0 for extent, one, other in steps if extent > 1)
    size = re.dtype.bytes
    return beside and im.pointer == re.pointer + size and re.pointer % (2 * size) == 0


def as_pairs(re: Strided, dtype: DType | None = None) -> Strided:
    """Both parts as one array.

    Args:
        re: the real parts, beside which the imaginary ones lie.
        dtype: as what they are seen; default: as `MOVED` has it.
    """
    strides = tuple(step // 2 for step in re.info.strides)
    return Strided(re.array, replace(re.info, strides=strides, dtype=dtype or MOVED[re.info.dtype.name]))


def with_both(re: Strided) -> Strided:
    """Both parts as one array of numbers, along a last dimension of two.

    Args:
        re: the real parts, beside which the imaginary ones lie.
    """
    info = replace(re.info, shape=(*re.info.shape, 2), strides=(*re.info.strides, 1))
    return Strided(re.array, info)


def paired(re: Any, im: Any, part: DType) -> Any:
    """Both parts, rounded to a dtype, as they are moved."""
    narrow, wide = BITS[part.name]
    low, high = (bitcast(one.to(part), narrow).to(wide) for one in (re, im))
    both = (low & ((1 << part.bits) - 1)) | (high << part.bits)
    return bitcast(both, MOVED[part.name]) if MOVED[part.name] != wide else both


def parted(pair: Any, part: DType) -> tuple[Any, Any]:
    """Both parts of a dtype, of what is moved."""
    narrow, wide = BITS[part.name]
    both = bitcast(pair, wide) if MOVED[part.name] != wide else pair
    low, high = both.to(narrow), (both >> part.bits).to(narrow)
    return bitcast(low, part), bitcast(high, part)
