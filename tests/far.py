"""Arrays in separate memory: with more than 2**31 elements from first to last, or between guard pages.

Unused pages take no memory: unreserved address space holds arrays whose rows are gigabytes apart.  An array
between guards touches an inaccessible page, so that a load or store past it ends the process.
"""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import tilewright as tw

MAP_NORESERVE = 0x4000
"""Of Linux, which Python has no name for before 3.13."""


def strides(shape: Sequence[int], kind: tw.DType) -> tuple[int, ...]:
    """Return strides in elements; rows begin at multiples of 16 bytes, and the largest index reaches 2**31.

    Args:
        shape: extents, slowest first; the last dimension is contiguous.
        kind: the dtype.
    """
    unit = max(16 // kind.bytes, 1)
    made = [1]
    for extent in reversed(shape[1:]):
        made.insert(0, made[0] * (-(-extent // unit) * unit if len(made) == 1 else extent))
    far = -(-(2**31) // max(shape[0] - 1, 1))
    made[0] = max(made[0], (-(-far // unit) + 1) * unit)
    return tuple(made)


def far(shape: Sequence[int], kind: tw.DType, column: bool = False) -> np.ndarray[Any, Any]:
    """Return an array of a shape with huge strides along its slowest dimension.

    Args:
        shape: extents; one of a single dimension lies as ever.
        kind: the dtype.
        column: whether the last two dimensions lie in memory in the other order.
    """
    order = [*shape[:-2], *reversed(shape[-2:])] if column else list(shape)
    if len(order) < 2 or 0 in order:
        return np.zeros(shape, kind.numpy)
    steps = strides(order, kind)
    reach = 1 + sum((extent - 1) * step for extent, step in zip(order, steps, strict=True))
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE
    memory = np.frombuffer(mmap.mmap(-1, reach * kind.bytes, flags=flags), kind.numpy)
    made = as_strided(memory, order, [step * kind.bytes for step in steps])
    return made.swapaxes(-1, -2) if column else made


def guarded(
    shape: tuple[int, int], kind: np.dtype[Any], *, row_step: int, column: bool = False, at_end: bool = True
) -> np.ndarray[Any, Any]:
    """Return a matrix of ones that ends or begins at a page without access.

    Args:
        shape: rows and columns.
        kind: the dtype.
        row_step: elements from a row to the next, or for columns in memory from a column to the next.
        column: whether the columns are contiguous.
        at_end: whether the page follows the matrix; else it comes before.
    """
    rows, columns = shape[::-1] if column else shape
    reach = max((rows - 1) * row_step + columns, 0) * kind.itemsize
    page = mmap.PAGESIZE
    inner = max(-(-reach // page), 1) * page
    memory = mmap.mmap(-1, inner + 2 * page)
    whole = np.frombuffer(memory, np.uint8)
    for at in (0, page + inner):
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        none = protect(ctypes.c_void_p(whole.ctypes.data + at), ctypes.c_size_t(page), 0)
        assert none == 0, ctypes.get_errno()
    start = page + (inner - reach if at_end else 0)
    flat = whole[start : start + reach].view(kind)
    made = as_strided(flat, (rows, columns), (row_step * kind.itemsize, kind.itemsize))
    made[...] = 1
    return made.T if column else made
