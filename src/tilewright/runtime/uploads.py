"""Small tables of the host that a launch on a GPU reads: copied in order with its stream, without waiting.

A table is written into memory that the driver copies from in the background, and copied to memory of the GPU
that no other launch reads.  Both are used again when an event behind the launch has come to pass.  What goes
into a graph is never used again: the graph copies it at every replay.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from tilewright.runtime.driver import UNTIMED, Driver
from tilewright.runtime.drivers import driver_of
from tilewright.runtime.forks import renew_after_fork
from tilewright.runtime.memory import Memory

LEAST_BYTES = 4096


class _Place:
    """Memory of the host and as much of a GPU, and the event after which they are free again."""

    def __init__(self, size_bytes: int, index: int, driver: Driver) -> None:
        self.size_bytes, symbols = size_bytes, driver.symbols
        self.memory = Memory(size_bytes, index, driver)
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


class _OfProcess:
    """Those of this process; a forked child has nothing on any device."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """None yet."""
        self.found: dict[tuple[str, int], Uploads] = {}


_process = renew_after_fork(_OfProcess())


def uploads(device: tuple[str, int]) -> Uploads:
    """The tables on a device."""
    return _process.found.setdefault(device, Uploads(device))
