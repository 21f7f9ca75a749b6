"""Arrays with more than 2**31 elements between the first and the last, of which little memory is there.

Pages that nobody touches take no memory: an address space that nobody reserves holds arrays whose rows lie
gigabytes apart.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

import tilewright as tw

MAP_NORESERVE = 0x4000
"""Of Linux, which Python has no name for before 3.13."""


def strides(shape: Sequence[int], kind: tw.DType) -> tuple[int, ...]:
    """Strides in elements, rows at multiples of 16 bytes, of which the largest takes an index to 2**31.

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
    """An array of a shape whose slowest dimension is stepped along in huge strides.

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
