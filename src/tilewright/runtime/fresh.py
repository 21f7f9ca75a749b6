"""New arrays of the caller's framework, on the device of one of its arrays, made as fast as it makes any."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, methodcaller
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import LaunchError
from tilewright.runtime.arrays import locate

_TORCH = {
    "bf16": "bfloat16",
    "c32": "complex32",
    "c64": "complex64",
    "c128": "complex128",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "f8e4m3": "float8_e4m3fn",
    "f8e4m3fnuz": "float8_e4m3fnuz",
    "f8e5m2": "float8_e5m2",
    "f8e5m2fnuz": "float8_e5m2fnuz",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "u8": "uint8",
}


@dataclass(frozen=True, slots=True)
class Fresh:
    """Makes uninitialised arrays of one shape, row by row.

    Args:
        make: makes one.
        address: of one that was made.
    """

    make: Callable[[], Any]
    address: Callable[[Any], int]


def fresh(like: Any, shape: tuple[int, ...], dtype: DType) -> Fresh:
    """What makes arrays of a shape in the framework and on the device of another array.

    Args:
        like: the other array.
        shape: extents.
        dtype: element type.

    Raises:
        LaunchError: the framework makes no arrays that can be written, or none of the dtype.

    Example:
        >>> from tilewright.dtypes import f16
        >>> made = fresh(np.zeros(3), (4, 2), f16).make()
        >>> made.shape, made.dtype
        ((4, 2), dtype('float16'))
    """
    if isinstance(like, np.ndarray):
        return Fresh(partial(np.empty, shape, dtype.numpy), _located)
    library: Any = sys.modules.get(type(like).__module__.partition(".")[0])
    name = getattr(library, "__name__", "")
    if name == "torch":
        if dtype.name not in _TORCH:
            raise LaunchError(f"PyTorch has no tensors of {dtype}; pass out=, or another out_dtype=")
        strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        # Of all that makes a tensor this looks at its arguments in the shortest time.
        none = library.empty(0, dtype=getattr(library, _TORCH[dtype.name]), device=like.device)
        return Fresh(partial(none.new_empty_strided, shape, strides), methodcaller("data_ptr"))
    if name == "tilewright":
        where = like.memory.index, like.memory.driver
        return Fresh(partial(type(like).empty, shape, dtype, *where), attrgetter("memory.address"))
    if name == "cupy":
        return Fresh(partial(library.empty, shape, dtype.numpy), attrgetter("data.ptr"))
    raise LaunchError(f"cannot make an output for {type(like).__name__}; pass out=")


def _located(array: Any) -> int:
    return locate(array)[1]
