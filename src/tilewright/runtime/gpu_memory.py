"""Our own memory on GPUs: workspaces of kernels, scratch of operations, uploaded tables, arrays."""

from __future__ import annotations

import ctypes
import math
import struct
import threading
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import LEGACY_STREAM, UNTIMED, Driver
from tilewright.runtime.drivers import driver_for, driver_of
from tilewright.runtime.environment import OfProcess
from tilewright.runtime.frameworks import Device, row_major

# ---------------------------------------------------------------- one piece of memory


class DeviceMemory:
    """A piece of device memory, freed when the object is collected.

    Args:
        size_bytes: its size.
        index: the device.
        driver: the device's driver.
    """

    def __init__(self, size_bytes: int, index: int, driver: Driver = CUDA_DRIVER) -> None:
        self.index = index
        self.size_bytes = max(size_bytes, 1)
        self.driver, self._symbols = driver, driver.symbols
        with driver.current(index), driver.any_capture():
            self.address = int(driver.call(self._symbols.allocate, self.size_bytes))
        driver.give_back(self, index, self._symbols.free, self.address)

    def clear(self, stream: int) -> None:
        """Set every byte to 0, in order with ``stream``."""
        with self.driver.current(self.index):
            self.driver.call(self._symbols.fill, self.address, 0, self.size_bytes, stream)

    def fill(self, source: int, size_bytes: int) -> None:
        """Copy bytes from an address of the host to the start of this memory."""
        if size_bytes:
            with self.driver.current(self.index):
                self.driver.call(self._symbols.copy_in, self.address, source, size_bytes)

    def read(self, target: int, size_bytes: int) -> None:
        """Copy the first bytes of this memory to an address of the host, after all work on the device."""
        with self.driver.current(self.index):
            self.driver.synchronize(self.index)
            if size_bytes:
                self.driver.call(self._symbols.copy_out, target, self.address, size_bytes)


# ----------------------------------------------------------------
# Workspaces of a kernel, one set for each stream.
#
# Launches on two streams may run together. A handle does not identify a stream: a stream that is destroyed
# while its work goes on may pass its handle to a new stream, and launches on both may run together too. The
# driver also numbers streams, and gives no number twice.


MOST_SETS = 16
"""Streams for which a launch keeps workspaces; the oldest are freed first, and the driver waits for them."""

_GRAPH = "graph"
"""The key of the graph that is being captured."""
_PER_THREAD = 2
"""The handle of the per-thread default stream."""


class _Own(threading.local):
    """The key of a thread's own stream.  Thread identifiers cannot be keys: they are reused."""

    def __init__(self) -> None:
        self.key = object()


_own = _Own()


class Clears(Enum):
    """When a workspace is cleared, in order with the stream."""

    NEVER = "never"
    ONCE = "when it is allocated: every launch leaves zeros; in a graph, at every replay"
    LAUNCH = "before every launch"


class Workspaces:
    """The workspaces of one launch.

    Args:
        wanted: for each workspace the offset of its address in the argument buffer, its bytes, and when it
            is cleared.
        index: the device.
        driver: the device's driver.
    """

    def __init__(self, wanted: Sequence[tuple[int, int, Clears]], index: int, driver: Driver) -> None:
        self._wanted = tuple(wanted)
        self._index, self._driver = index, driver
        self._sets: dict[Hashable, list[DeviceMemory]] = {}
        self._written: list[DeviceMemory] | None = None

    def prepare(self, buffer: Any, stream: int, captured: bool = False) -> None:
        """Write the addresses of the stream's workspaces, and clear those that must hold zeros, in order.

        A launch that is captured into a graph has its own workspaces; a captured stream has no number to ask
        for.
        """
        with self._driver.current(self._index):
            key = _GRAPH if captured else stream_key(stream, self._driver)
            found = self._sets.get(key)
            if found is None:
                if len(self._sets) >= MOST_SETS:
                    del self._sets[next(iter(self._sets))]
                found = [DeviceMemory(size, self._index, self._driver) for _, size, _ in self._wanted]
                self._clear(found, stream, Clears.ONCE)
                self._sets[key] = found
            written, self._written = self._written, None  # an error below must leave None
            if found is not written:
                for memory, (offset, _, _) in zip(found, self._wanted, strict=True):
                    struct.pack_into("@P", buffer, offset, memory.address)
            self._clear(found, stream, Clears.LAUNCH)
            self._written = found

    def _clear(self, found: Sequence[DeviceMemory], stream: int, when: Clears) -> None:
        for memory, (_, _, clears) in zip(found, self._wanted, strict=True):
            if clears is when:
                memory.clear(stream)


def stream_key(stream: int, driver: Driver) -> Hashable:
    """Return a key of a stream. A later stream that reuses the handle gets another key."""
    if stream in LEGACY_STREAM:
        return stream
    return _own.key if stream == _PER_THREAD else ("created", driver.stream_number(stream))


# ----------------------------------------------------------------
# Scratch memory, which one kernel of an operation writes and the next one reads.
#
# On a GPU we keep the memory for the next operation on the same stream, whose kernels run after those of this
# one. Memory in a graph is never used again. On the host every operation allocates.


UNIT_BYTES = 1 << 21
"""Granularity of scratch memory, so that operations of about the same size share it."""

MOST_STREAMS = 16
"""Streams for which scratch memory is kept; that of the oldest is freed first."""

ALIGNMENT = 256
"""Alignment of scratch memory in bytes."""


_idle: OfProcess[dict[Hashable, list[DeviceMemory]]] = OfProcess(dict)
_in_graphs: OfProcess[list[DeviceMemory]] = OfProcess(list)


@contextmanager
def scratch(size_bytes: int, device: Device, stream: int) -> Iterator[int]:
    """Yield the address of memory for kernels that are launched on a stream inside the ``with`` block.

    Args:
        size_bytes: the size.
        device: the device of the arrays.
        stream: the handle of the stream; ignored on the host.
    """
    if isinstance(device, str):
        held = np.empty(size_bytes + ALIGNMENT, np.uint8)
        yield -(-held.ctypes.data // ALIGNMENT) * ALIGNMENT
        return
    driver, index = driver_of(device[0]), device[1]
    if driver.is_capturing(stream):
        memory = DeviceMemory(size_bytes, index, driver)
        _in_graphs.held.append(memory)
        yield memory.address
        return
    if stream in LEGACY_STREAM:  # the common case needs no current device
        key: Hashable = (device, stream)
    else:
        with driver.current(index):
            key = (device, stream_key(stream, driver))
    memory = _taken(key, size_bytes, device)
    yield memory.address
    # The next operation on the stream runs after this one, so it may write the memory.
    _idle.held.setdefault(key, []).append(memory)


def _taken(key: Hashable, size_bytes: int, device: tuple[str, int]) -> DeviceMemory:
    """Return kept memory of a stream if it is large enough; free it if it is too small, and allocate."""
    try:
        kept = _idle.held.get(key, []).pop()
        if kept.size_bytes >= size_bytes:
            return kept
    except IndexError:
        while len(_idle.held) > MOST_STREAMS:
            _idle.held.pop(next(iter([*_idle.held])), None)  # another thread may have been faster
    return DeviceMemory(-(-size_bytes // UNIT_BYTES) * UNIT_BYTES, device[1], driver_of(device[0]))


# ----------------------------------------------------------------
# Uploads: small tables of the host that a launch reads.
#
# We write a table into pinned host memory. The driver copies it, in order with the stream, to GPU memory that
# no other launch reads, and nobody waits. Both pieces are free again when an event after the launch has
# completed. Pieces in a graph are never free again, because the graph copies them at every replay.


LEAST_BYTES = 4096


class _Place:
    """Pinned host memory and GPU memory of one size, and the event after which both are free again."""

    def __init__(self, size_bytes: int, index: int, driver: Driver) -> None:
        self.size_bytes, symbols = size_bytes, driver.symbols
        self.memory = DeviceMemory(size_bytes, index, driver)
        with driver.current(index), driver.any_capture():
            self.host = int(driver.call(symbols.allocate_host, size_bytes))
            driver.give_back(self, index, symbols.free_host, self.host)
            self.event = driver.call(symbols.create_event, UNTIMED)
            driver.give_back(self, index, symbols.destroy_event, self.event)


class Uploads:
    """The uploaded tables of one device.

    Args:
        device: the kind of device and its index.
    """

    def __init__(self, device: tuple[str, int]) -> None:
        self._driver, self._index = driver_of(device[0]), device[1]
        self._idle: list[_Place] = []
        self._used: list[_Place] = []
        self._in_graphs: list[_Place] = []

    @contextmanager
    def table(self, content: bytes, stream: int) -> Iterator[int]:
        """Copy a table in order with a stream, and yield its address for launches inside the ``with`` block.

        Args:
            content: the table's bytes.
            stream: the handle of the stream.
        """
        driver, symbols = self._driver, self._driver.symbols
        captured = driver.is_capturing(stream)
        with driver.current(self._index):
            place = self._taken(len(content))
            ctypes.memmove(place.host, content, len(content))
            driver.call(symbols.copy_in_order, place.memory.address, place.host, len(content), stream)
        if captured:
            self._in_graphs.append(place)
        yield place.memory.address
        if not captured:
            with driver.current(self._index):
                driver.call(symbols.record, place.event, stream)
            self._used.append(place)

    def _taken(self, size_bytes: int) -> _Place:
        """Return a free place that is large enough."""
        with self._driver.any_capture():
            for place in list(self._used):
                if self._driver.has_passed(place.event) and _removed(self._used, place):
                    self._idle.append(place)
        for place in list(self._idle):
            if place.size_bytes >= size_bytes and _removed(self._idle, place):
                return place
        return _Place(max(LEAST_BYTES, 1 << (size_bytes - 1).bit_length()), self._index, self._driver)


def _removed(places: list[_Place], place: _Place) -> bool:
    """Remove a place from a list; return False if another thread was faster."""
    try:
        places.remove(place)
    except ValueError:
        return False
    return True


_uploads: OfProcess[dict[tuple[str, int], Uploads]] = OfProcess(dict)
"""The uploads of this process, by device."""


def uploads(device: tuple[str, int]) -> Uploads:
    """Return the uploads of a device."""
    return _uploads.held.setdefault(device, Uploads(device))


# ---------------------------------------------------------------- arrays for programs without a framework


Array = npt.NDArray[Any]


class DeviceArray:
    """A dense array on a GPU; other libraries read it through ``__cuda_array_interface__``.

    Args:
        memory: its memory.
        shape: extents.
        strides: strides in bytes.
        element: element type.
    """

    def __init__(
        self, memory: DeviceMemory, shape: tuple[int, ...], strides: tuple[int, ...], element: DType
    ) -> None:
        self.memory = memory
        self.shape = shape
        self.strides = strides
        self.dtype = element.numpy

    @classmethod
    def of(cls, array: Array, index: int = 0, driver: Driver = CUDA_DRIVER) -> DeviceArray:
        """Copy a NumPy array to a device; a dense array keeps its order in memory."""
        dense = array if array.flags.forc else np.ascontiguousarray(array)
        made = cls(DeviceMemory(dense.nbytes, index, driver), dense.shape, dense.strides, dtype(dense.dtype))
        made.memory.fill(dense.ctypes.data, dense.nbytes)
        return made

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], element: DType, index: int = 0, driver: Driver = CUDA_DRIVER
    ) -> DeviceArray:
        """Make an uninitialised row-major array."""
        strides = row_major(shape, element.bytes)
        return cls(DeviceMemory(element.bytes * math.prod(shape), index, driver), shape, strides, element)

    @property
    def T(self) -> DeviceArray:  # noqa: N802
        """The transpose: the same memory with its dimensions reversed."""
        return DeviceArray(self.memory, self.shape[::-1], self.strides[::-1], dtype(self.dtype))

    def reshape(self, *shape: int) -> DeviceArray:
        """View a row-major array with another shape.

        Args:
            shape: extents with the same number of elements.

        Raises:
            LaunchError: the number of elements differs, or the array is not row-major.
        """
        size = self.dtype.itemsize
        if math.prod(shape) != math.prod(self.shape) or self.strides != row_major(self.shape, size):
            raise LaunchError(
                f"an array of shape {self.shape} and strides {self.strides} cannot be viewed with shape "
                f"{shape}: that needs a row-major array with the same number of elements"
            )
        return DeviceArray(self.memory, shape, row_major(shape, size), dtype(self.dtype))

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
        """Copy a NumPy array of the same shape and element type here; wait for the device."""
        by_stride = sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim])
        dense = np.ascontiguousarray(array.transpose(by_stride))
        self.memory.fill(dense.ctypes.data, dense.nbytes)

    def host(self) -> Array:
        """Copy the array to host memory; wait for the device."""
        by_stride = sorted(range(len(self.shape)), key=lambda dim: -self.strides[dim])
        dense = np.empty([self.shape[dim] for dim in by_stride], self.dtype)
        self.memory.read(dense.ctypes.data, dense.nbytes)
        return dense.transpose(np.argsort(by_stride))


@launches
def device_put(array: Any, target: str) -> Any:
    """Return an array in the target's memory: a copy on its GPU, or the array itself.

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
