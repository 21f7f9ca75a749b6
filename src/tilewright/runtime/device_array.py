"""An array in GPU memory, for programs that have no framework: copied in, computed on, copied out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import Driver
from tilewright.runtime.drivers import driver_for
from tilewright.runtime.memory import Memory

Array = npt.NDArray[Any]


class DeviceArray:
    """A dense array in the memory of a GPU; other libraries see it through ``__cuda_array_interface__``.

    Args:
        memory: what keeps it alive.
        shape: extents.
        strides: strides in bytes.
        element: element type.
    """

    def __init__(
        self, memory: Memory, shape: tuple[int, ...], strides: tuple[int, ...], element: DType
    ) -> None:
        self.memory = memory
        self.shape = shape
        self.strides = strides
        self.dtype = element.numpy

    @classmethod
    def of(cls, array: Array, index: int = 0, driver: Driver = CUDA_DRIVER) -> DeviceArray:
        """A copy of a NumPy array on a device, in the same order of memory if that is dense."""
        dense = array if array.flags.forc else np.ascontiguousarray(array)
        made = cls(Memory(dense.nbytes, index, driver), dense.shape, dense.strides, dtype(dense.dtype))
        made.memory.fill(dense.ctypes.data, dense.nbytes)
        return made

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], element: DType, index: int = 0, driver: Driver = CUDA_DRIVER
    ) -> DeviceArray:
        """An array of a shape, row by row, that holds anything."""
        strides = _row_by_row(shape, element.bytes)
        return cls(Memory(element.bytes * math.prod(shape), index, driver), shape, strides, element)

    @property
    def T(self) -> DeviceArray:  # noqa: N802
        """The transpose: the same memory with its dimensions reversed."""
        return DeviceArray(self.memory, self.shape[::-1], self.strides[::-1], dtype(self.dtype))

    def reshape(self, *shape: int) -> DeviceArray:
        """The same memory as an array of another shape; it lies row by row, as `empty` makes it.

        Args:
            shape: extents, of as many elements.

        Raises:
            LaunchError: they are of more or fewer elements, or there are gaps between the elements.
        """
        size = self.dtype.itemsize
        if math.prod(shape) != math.prod(self.shape) or self.strides != _row_by_row(self.shape, size):
            raise LaunchError(
                f"an array of shape {self.shape} and strides {self.strides} is not the same memory as one of "
                f"shape {shape}, which has as many elements, row by row without gaps"
            )
        return DeviceArray(self.memory, shape, _row_by_row(shape, size), dtype(self.dtype))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "data": (self.memory.address, False),
        }

    def write(self, array: Array) -> None:
        """Copy a NumPy array of the same shape and element type here; waits for the device."""
        by_stride = sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim])
        dense = np.ascontiguousarray(array.transpose(by_stride))
        self.memory.fill(dense.ctypes.data, dense.nbytes)

    def host(self) -> Array:
        """A copy in host memory; waits for the device."""
        by_stride = sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim])
        dense = np.empty([self.shape[dim] for dim in by_stride], self.dtype)
        self.memory.read(dense.ctypes.data, dense.nbytes)
        return dense.transpose(np.argsort(by_stride))


def _row_by_row(shape: tuple[int, ...], element_bytes: int) -> tuple[int, ...]:
    """Strides in bytes of an array whose last dimension is contiguous."""
    return tuple(element_bytes * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


@launches
def device_put(array: Any, target: str) -> Any:
    """An array in the target's memory: a copy on its GPU, or the array itself.

    Raises:
        ToolchainError: no such device can be reached.

    Example:
        >>> x = np.arange(3)
        >>> device_put(x, "reference") is x
        True
    """
    driver = driver_for(target)
    return array if driver is None else DeviceArray.of(np.asarray(array), 0, driver)


@launches
def device_get(array: Any) -> Any:
    """Copy an array that `device_put` placed to host memory, after the kernels that write to it.

    Example:
        >>> x = device_put(np.arange(3), "reference")
        >>> device_get(x).tolist()
        [0, 1, 2]
    """
    return array.host() if isinstance(array, DeviceArray) else array
