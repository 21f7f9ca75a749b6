"""Tensor maps for TMA: encoded by the driver once for every address, kept by address."""

from __future__ import annotations

import ctypes
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.errors import LaunchError
from tilewright.ir.kernel import TensorMap
from tilewright.runtime import cuda
from tilewright.runtime.arrays import ArrayInfo
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
        with cuda.AnyCapture():
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
        driver = cuda.driver()
        size, rank = self._map.dtype.bytes, len(self._shape)
        kind = "UINT8" if size == 1 else _FORMATS.get(self._map.dtype.name)
        if kind is None:
            raise LaunchError(f"TMA moves no {self._map.dtype}")
        order = self._map.order
        shape, outer = [self._shape[dim] for dim in order], [self._strides[dim] for dim in order[:-1]]
        if 0 in shape:
            # A map has one element at least. What is reduced over nothing is computed, as of one tile of
            # none: copies of it find zeros here, and stores go nowhere else.
            shape, outer, address = [1] * rank, [16 // size] * (rank - 1), self._nothing.address
        # TMA counts dimensions from the innermost, whose stride is 1 and not named.
        extents = [driver.cuuint64_t(n) for n in reversed(shape)]
        strides = [driver.cuuint64_t(stride * size) for stride in reversed(outer)]
        box = [driver.cuuint32_t(n) for n in (self._map.box[dim] for dim in reversed(order))]
        steps = [driver.cuuint32_t(self._map.steps[dim]) for dim in reversed(order)]

        def choice(group: str, name: str) -> Any:
            return getattr(getattr(driver, f"CUtensorMap{group}"), f"CU_TENSOR_MAP_{name}")

        asked = (
            choice("DataType", f"DATA_TYPE_{kind}"),
            rank,
            address,
            extents,
            strides,
            box,
            steps,
            choice("Interleave", "INTERLEAVE_NONE"),
            choice("Swizzle", "SWIZZLE_128B"),
            choice("L2promotion", "L2_PROMOTION_L2_256B"),
            choice("FloatOOBfill", "FLOAT_OOB_FILL_NONE"),
        )
        with cuda.Current(self._index):
            encoded = cuda.call("cuTensorMapEncodeTiled", *asked)
        return ctypes.string_at(int(encoded.getPtr()), MAP_BYTES)
