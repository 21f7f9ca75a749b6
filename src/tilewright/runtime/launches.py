"""A launch whose shape is fixed, by any vendor's driver."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from tilewright.errors import LaunchError
from tilewright.runtime.driver import LoadedFunction
from tilewright.runtime.forks import renew_after_fork

MOST_STARTS = 64
"""For how many streams a launch keeps its call of the driver."""


class Launch(ABC):
    """Argument values are written into one buffer, then the driver is called.

    Args:
        function: the kernel.
        grid: blocks along x, y, z.
        threads: threads per block.
        limits: the most blocks along x, y, z.
        offsets: byte offset of each argument in the buffer.
        size: bytes of the buffer.
        success: the driver's status of a call that it did.
        alone: whether a launch is tried before the device is made current, as where there is one device.

    Raises:
        LaunchError: more blocks than a GPU launches.
    """

    def __init__(
        self,
        function: LoadedFunction,
        grid: Sequence[int],
        threads: int,
        limits: Sequence[int],
        offsets: Sequence[int],
        size: int,
        *,
        success: Any,
        alone: bool,
    ) -> None:
        self._index = function.index
        self._alone = alone
        self.buffer = ctypes.create_string_buffer(max(size, 1))
        start = ctypes.addressof(self.buffer)
        self._pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(start + offset for offset in offsets))
        self._arguments = ctypes.addressof(self._pointers)
        for blocks, most, axis in zip(grid, limits, "xyz", strict=False):
            if blocks > most:
                raise LaunchError(f"{blocks} blocks along grid axis {axis}; a GPU launches at most {most}")
        x, y, z = (*grid, 1, 1)[:3]
        self._shape = (x, y, z, threads, 1, 1, function.shared_bytes)
        self._handle = function.handle
        self._success = success
        self._starts: dict[int, Callable[[], tuple[Any]]] = {}
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child: the next launch asks for the driver, which says that it cannot be used."""
        self._starts.clear()

    def run(self, stream: int) -> None:
        """Launch with what the buffer holds; the driver copies it before the call returns."""
        start = self._starts.get(stream) or self.start_on(stream)
        if self._alone:
            (status,) = start()
            if status is self._success:
                return
        with self.current():
            (status,) = start()
            if status != self._success:
                raise self.failed(status)

    def start_on(self, stream: int) -> Callable[[], tuple[Any]]:
        """The driver's call for a stream with all arguments in place, remembered."""
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        made = self._starts[stream] = self.call_on(stream)
        return made

    @abstractmethod
    def call_on(self, stream: int) -> Callable[[], tuple[Any]]:
        """The driver's call for a stream."""

    @abstractmethod
    def current(self) -> AbstractContextManager[None]:
        """While it is entered, the device is current."""

    @abstractmethod
    def failed(self, status: Any) -> LaunchError:
        """The error for a status of the driver."""
