"""Tensor maps for TMA: encoded by the driver once for every address, kept by address."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.ir.kernel import TensorMap
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.executable import MAP_BYTES
from tilewright.runtime.memory import Memory
from tilewright.runtime.recent import Recent

KEPT = 64
"""How many addresses are remembered for one map; the least recently used is forgotten first."""

NOTHING_BYTES = 128
"""Of memory in the place of an array without elements; a bulk store writes 16 bytes at least."""

_FORMATS = {"f16": "FLOAT16", "bf16": "BFLOAT16", "f32": "FLOAT32", "f64": "FLOAT64", "i32": "INT32"}


class TensorMaps:
    """The maps of one array shape and one box, by address.

    Args:
        tensor_map: what the kernel asks for.
        info: an array of the shape and strides that the maps are for.
    """

    def __init__(self, tensor_map: TensorMap, info: ArrayInfo) -> None:
        self._map = tensor_map
        self._shape, self._strides = info.shape, info.strides
        self._index = 0 if isinstance(info.device, str) else info.device[1]
        self._encoded: Recent[int, bytes] = Recent(KEPT)

    @cached_property
    def _nothing(self) -> Memory:
        """Zeros in the place of an array without elements."""
        made = Memory(NOTHING_BYTES, self._index)
        zeros = np.zeros(NOTHING_BYTES, np.uint8)
        with CUDA_DRIVER.any_capture():
            made.fill(zeros.ctypes.data, zeros.nbytes)
        return made

    def at(self, address: int) -> bytes:
        """The map of the array at an address."""
        found = self._encoded.get(address)
        if found is None:
            found = self._encode(address)
            self._encoded.keep(address, found)
        return found

    def _encode(self, address: int) -> bytes:
        shape, strides, order = self._shape, self._strides, self._map.order
        if 0 in shape:
            # A map has one element at least. What is reduced over nothing is computed, as of one tile of
            # none: copies of it find zeros here, and stores go nowhere else.
            steps = 16 // self._map.dtype.bytes
            strides = tuple(1 if dim == order[-1] else steps for dim in range(len(shape)))
            shape, address = (1,) * len(shape), self._nothing.address
        return encoded(self._map, shape, strides, address, self._index)


def encoded(
    tensor_map: TensorMap, shape: Sequence[int], strides: Sequence[int], address: int, index: int
) -> bytes:
    """The map of an array that has elements.

    Args:
        tensor_map: what the kernel asks for.
        shape: of the array.
        strides: of the array, in elements.
        address: where it begins.
        index: the device.

    Raises:
        LaunchError: a dtype that TMA does not move.
    """
    driver = CUDA_DRIVER.bindings()
    size, rank = tensor_map.dtype.bytes, len(shape)
    kind = "UINT8" if size == 1 else _FORMATS.get(tensor_map.dtype.name)
    if kind is None:
        raise LaunchError(f"TMA moves no {tensor_map.dtype}")
    order = tensor_map.order
    # TMA counts dimensions from the innermost, whose stride is 1 and not named.
    inwards = [*reversed(order)]
    extents = [driver.cuuint64_t(shape[dim]) for dim in inwards]
    steps_bytes = [driver.cuuint64_t(strides[dim] * size) for dim in inwards[1:]]
    box = [driver.cuuint32_t(tensor_map.box[dim]) for dim in inwards]
    steps = [driver.cuuint32_t(tensor_map.steps[dim]) for dim in inwards]

    data_type, *fixed = _choices(kind, is_swizzled=tensor_map.is_swizzled)
    asked = (data_type, rank, address, extents, steps_bytes, box, steps, *fixed)
    with CUDA_DRIVER.current(index):
        made = CUDA_DRIVER.call("cuTensorMapEncodeTiled", *asked)
    return ctypes.string_at(int(made.getPtr()), MAP_BYTES)


@lru_cache(maxsize=16)
def _choices(kind: str, *, is_swizzled: bool) -> tuple[Any, ...]:
    """What is the same for all maps of a type: the type, how boxes lie, and what lies outside of arrays."""
    driver = CUDA_DRIVER.bindings()
    names = (
        ("DataType", f"DATA_TYPE_{kind}"),
        ("Interleave", "INTERLEAVE_NONE"),
        ("Swizzle", "SWIZZLE_128B" if is_swizzled else "SWIZZLE_NONE"),
        ("L2promotion", "L2_PROMOTION_L2_256B"),
        ("FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
    )
    return tuple(
        getattr(getattr(driver, f"CUtensorMap{group}"), f"CU_TENSOR_MAP_{name}") for group, name in names
    )
