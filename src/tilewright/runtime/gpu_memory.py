"""Our own memory on GPUs: workspaces of kernels, scratch of operations, tables of a launch, arrays."""

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
from tilewright.runtime.environment import renew_after_fork
from tilewright.runtime.frameworks import Device

# ---------------------------------------------------------------- one piece of memory


class DeviceMemory:
    """Device memory of our own, freed when no longer used.

    Args:
        size_bytes: how much.
        index: the device.
        driver: of whose GPUs it is one.
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
"""For how many streams a launch keeps workspaces; the oldest are freed first, for which the driver waits."""

_GRAPH = "graph"
"""Stands for the graph that is being captured."""
_PER_THREAD = 2
"""The handle of the default stream that each thread has for itself."""


class _Own(threading.local):
    """What stands for a thread's own stream; a thread's number may be that of one that has ended."""

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
        driver: of whose GPUs it is one.
    """

    def __init__(self, wanted: Sequence[tuple[int, int, Clears]], index: int, driver: Driver) -> None:
        self._wanted = tuple(wanted)
        self._index, self._driver = index, driver
        self._sets: dict[Hashable, list[DeviceMemory]] = {}
        self._written: list[DeviceMemory] | None = None

    def prepare(self, buffer: Any, stream: int, captured: bool = False) -> None:
        """Write the addresses of the stream's set, and clear what must hold zeros, in order with it.

        A launch that goes into a graph has a set of its own; nor may a stream be asked its number meanwhile.
        """
        with self._driver.current(self._index):
            self._prepare(buffer, stream, _GRAPH if captured else stream_key(stream, self._driver))

    def _prepare(self, buffer: Any, stream: int, key: Hashable) -> None:
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= MOST_SETS:
                del self._sets[next(iter(self._sets))]
            found = [DeviceMemory(size, self._index, self._driver) for _, size, _ in self._wanted]
            self._clear(found, stream, Clears.ONCE)
            self._sets[key] = found
        written, self._written = self._written, None  # of an error in between nothing is remembered
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
    """What a stream shares with no other, not even with one that has its handle later."""
    if stream in LEGACY_STREAM:
        return stream
    return _own.key if stream == _PER_THREAD else ("created", driver.stream_number(stream))


# ----------------------------------------------------------------
# Scratch, which one kernel of an operation writes and the next one reads.
#
# On a GPU the memory is kept for the next operation on the same stream, whose kernels come after those of
# this one. Memory that a graph uses is never used again. On the host it is new memory.


UNIT_BYTES = 1 << 21
"""Of what is kept, a multiple, so that operations of about the same size share it."""

MOST_STREAMS = 16
"""For how many streams memory is kept; that of the oldest is freed first."""

ALIGNMENT = 256
"""Bytes; of every address."""


class _ScratchOfProcess:
    """What is kept in this process; a forked child has nothing on any device."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """None yet."""
        self.idle: dict[Hashable, list[DeviceMemory]] = {}
        self.in_graphs: list[DeviceMemory] = []


_process = renew_after_fork(_ScratchOfProcess())


@contextmanager
def scratch(size_bytes: int, device: Device, stream: int) -> Iterator[int]:
    """Memory for kernels that are launched on a stream within the with block, one behind the other.

    Args:
        size_bytes: how much.
        device: where the arrays lie.
        stream: the handle of the stream; of the host it counts for nothing.

    Yields:
        Its address.
    """
    if isinstance(device, str):
        held = np.empty(size_bytes + ALIGNMENT, np.uint8)
        yield -(-held.ctypes.data // ALIGNMENT) * ALIGNMENT
        return
    driver, index = driver_of(device[0]), device[1]
    if driver.is_capturing(stream):
        memory = DeviceMemory(size_bytes, index, driver)
        _process.in_graphs.append(memory)
        yield memory.address
        return
    if stream in LEGACY_STREAM:  # of which there is one
        key: Hashable = (device, stream)
    else:
        with driver.current(index):
            key = (device, stream_key(stream, driver))
    memory = _taken(key, size_bytes, device)
    yield memory.address
    # In order with the stream: the next operation there comes after this one, whatever it writes.
    _process.idle.setdefault(key, []).append(memory)


def _taken(key: Hashable, size_bytes: int, device: tuple[str, int]) -> DeviceMemory:
    """What was kept for a stream, if it is large enough; of what is too small nothing is kept."""
    try:
        kept = _process.idle.get(key, []).pop()
        if kept.size_bytes >= size_bytes:
            return kept
    except IndexError:
        while len(_process.idle) > MOST_STREAMS:
            _process.idle.pop(next(iter([*_process.idle])), None)  # another thread may have been faster
    return DeviceMemory(-(-size_bytes // UNIT_BYTES) * UNIT_BYTES, device[1], driver_of(device[0]))


# ----------------------------------------------------------------
# Uploads: small tables of the host that a launch reads.
#
# A table is written into memory that the driver copies from in the background, and copied in order with the
# stream to memory of the GPU that no other launch reads; nobody waits. Both pieces are free again when an
# event after the launch has passed. Pieces that a graph uses are never free again: the graph copies them at
# every replay.


LEAST_BYTES = 4096


class _Place:
    """Memory of the host and as much of a GPU, and the event after which they are free again."""

    def __init__(self, size_bytes: int, index: int, driver: Driver) -> None:
        self.size_bytes, symbols = size_bytes, driver.symbols
        self.memory = DeviceMemory(size_bytes, index, driver)
        with driver.current(index), driver.any_capture():
            self.host = int(driver.call(symbols.allocate_host, size_bytes))
            driver.give_back(self, index, symbols.free_host, self.host)
            self.event = driver.call(symbols.create_event, UNTIMED)
            driver.give_back(self, index, symbols.destroy_event, self.event)


class Uploads:
    """Tables on one device.

    Args:
        device: the kind of device, and its number.
    """

    def __init__(self, device: tuple[str, int]) -> None:
        self._driver, self._index = driver_of(device[0]), device[1]
        self._idle: list[_Place] = []
        self._used: list[_Place] = []
        self._in_graphs: list[_Place] = []

    @contextmanager
    def table(self, content: bytes, stream: int) -> Iterator[int]:
        """Copy a table, in order with a stream, for what is launched there within the with block.

        Args:
            content: its bytes.
            stream: the handle.

        Yields:
            Its address on the device.
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
        """A place that nobody uses, large enough."""
        with self._driver.any_capture():
            for place in list(self._used):
                if self._driver.has_passed(place.event) and _removed(self._used, place):
                    self._idle.append(place)
        for place in list(self._idle):
            if place.size_bytes >= size_bytes and _removed(self._idle, place):
                return place
        return _Place(max(LEAST_BYTES, 1 << (size_bytes - 1).bit_length()), self._index, self._driver)


def _removed(places: list[_Place], place: _Place) -> bool:
    """Take a place out of a list; False if another thread was faster."""
    try:
        places.remove(place)
    except ValueError:
        return False
    return True


class _UploadsOfProcess:
    """Those of this process; a forked child has nothing on any device."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """None yet."""
        self.found: dict[tuple[str, int], Uploads] = {}


_uploads = renew_after_fork(_UploadsOfProcess())


def uploads(device: tuple[str, int]) -> Uploads:
    """The tables on a device."""
    return _uploads.found.setdefault(device, Uploads(device))


# ---------------------------------------------------------------- arrays for programs without a framework


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
        self, memory: DeviceMemory, shape: tuple[int, ...], strides: tuple[int, ...], element: DType
    ) -> None:
        self.memory = memory
        self.shape = shape
        self.strides = strides
        self.dtype = element.numpy

    @classmethod
    def of(cls, array: Array, index: int = 0, driver: Driver = CUDA_DRIVER) -> DeviceArray:
        """A copy of a NumPy array on a device, in the same order of memory if that is dense."""
        dense = array if array.flags.forc else np.ascontiguousarray(array)
        made = cls(DeviceMemory(dense.nbytes, index, driver), dense.shape, dense.strides, dtype(dense.dtype))
        made.memory.fill(dense.ctypes.data, dense.nbytes)
        return made

    @classmethod
    def empty(
        cls, shape: tuple[int, ...], element: DType, index: int = 0, driver: Driver = CUDA_DRIVER
    ) -> DeviceArray:
        """An array of a shape, row by row, that holds anything."""
        strides = _row_by_row(shape, element.bytes)
        return cls(DeviceMemory(element.bytes * math.prod(shape), index, driver), shape, strides, element)

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
