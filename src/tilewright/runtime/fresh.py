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

from tilewright.dtypes import IN_TORCH, DType
from tilewright.errors import LaunchError
from tilewright.runtime.arrays import locate

_LARGE_BYTES = 64 << 20
"""Bytes from which an array may not fit into memory."""


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
        LaunchError: the framework makes no arrays that can be written, or none of the dtype, or there is not
            enough memory for one.

    Example:
        >>> from tilewright.dtypes import f16
        >>> made = fresh(np.zeros(3), (4, 2), f16).make()
        >>> made.shape, made.dtype
        ((4, 2), dtype('float16'))
    """
    if isinstance(like, np.ndarray):
        _require_memory(shape, dtype)
        return Fresh(partial(np.empty, shape, dtype.numpy), _located)
    library: Any = sys.modules.get(type(like).__module__.partition(".")[0])
    name = getattr(library, "__name__", "")
    if name == "torch":
        element = None if dtype.is_packed else getattr(library, IN_TORCH[dtype.name], None)
        if element is None:
            raise LaunchError(f"PyTorch has no tensors of {dtype}; pass out=, or another out_dtype=")
        strides = tuple(math.prod(shape[dim + 1 :]) for dim in range(len(shape)))
        # Of all that makes a tensor this looks at its arguments in the shortest time.
        none = library.empty(0, dtype=element, device=like.device)
        return Fresh(partial(none.new_empty_strided, shape, strides), methodcaller("data_ptr"))
    if name == "tilewright":
        where = like.memory.index, like.memory.driver
        return Fresh(partial(type(like).empty, shape, dtype, *where), attrgetter("memory.address"))
    if name == "cupy":
        return Fresh(partial(library.empty, shape, dtype.numpy), attrgetter("data.ptr"))
    raise LaunchError(f"cannot make an output for {type(like).__name__}; pass out=")


def _require_memory(shape: tuple[int, ...], dtype: DType) -> None:
    """Refuse an array of NumPy that does not fit into memory.  A broadcast operand can ask for any extent.

    Raises:
        LaunchError: the system does not give that much memory.
    """
    if math.prod(shape) * dtype.bytes < _LARGE_BYTES:
        return
    try:
        np.empty(shape, dtype.numpy)  # pages that nobody touches take no memory
    except (MemoryError, ValueError):
        size = math.prod(shape) * dtype.bytes / (1 << 30)
        raise LaunchError(
            f"the result, {' x '.join(map(str, shape))} of {dtype}, takes {size:.1f} GiB, and there is not "
            "that much memory; nearest: fewer rows at once, or out= that is mapped to a file (np.memmap)"
        ) from None


def _located(array: Any) -> int:
    return locate(array)[1]
