"""An array with its strides and the memory between its elements, accessible to a target."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds

from tilewright.dtypes import dtype
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.targets.target import CUDA

ALIGNMENT = 256
"""Alignment of memory on a device; the bytes from there up to an array are carried along."""


class Placed:
    """An array on a target: the same strides, address modulo 16, and bytes between elements.

    Args:
        array: of any strides.
        target: the target.
    """

    def __init__(self, array: np.ndarray[Any, Any], target: str) -> None:
        self.array, self.there = array, array
        if target != CUDA.name:
            return
        low, high = byte_bounds(array)
        self._before = low % 16
        self._bytes = (ctypes.c_uint8 * max(high - low, 1)).from_address(low)
        whole = np.full(self._before + len(self._bytes), 0x7B, np.uint8)
        whole[self._before :] = np.frombuffer(self._bytes, np.uint8)
        self._whole, self._buffer = whole, DeviceArray.of(whole)
        self._start = self._before + array.__array_interface__["data"][0] - low
        memory = self._buffer.memory
        place = {"address": memory.address + self._start, "index": memory.index, "driver": memory.driver}
        at = SimpleNamespace(**place, keeps=memory)
        self.there = DeviceArray(at, array.shape, array.strides, dtype(array.dtype))  # type: ignore[assignment,arg-type]

    def fetched(self) -> np.ndarray[Any, Any]:
        """Return the array's contents; raise if anything between its elements was written."""
        if self.there is self.array:
            return self.array
        now = self._buffer.host()
        made = self._view(now).copy()
        self._view(self._whole)[...] = made
        if not np.array_equal(self._whole, now):
            raise AssertionError("memory between the elements of the result was written")
        return made

    def _view(self, held: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.ndarray(self.array.shape, self.array.dtype, held.data, self._start, self.array.strides)
