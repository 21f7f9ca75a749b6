"""A launch whose shape is fixed, by any vendor's driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tilewright.errors import LaunchError
from tilewright.runtime.driver import Driver, LoadedFunction
from tilewright.runtime.forks import renew_after_fork

MOST_STARTS = 64
"""For how many streams a launch keeps its call of the driver."""

Start = Callable[[], tuple[Any]]
"""The driver's call with all its arguments in place; returns the status."""

Special = Callable[[Any, Any, tuple[int, ...], Any, int], Start]
"""Makes the call of a launch that is not plain.

Its arguments: the driver's bindings, the kernel, the extents of the grid and of a block with the shared
bytes, the stream, and the address of the arguments' addresses.
"""


class Launch:
    """Argument values are written into one buffer, then the driver is called.

    Args:
        driver: the driver.
        function: the kernel.
        grid: blocks along x, y, z.
        threads: threads per block.
        offsets: byte offset of each argument in the buffer.
        size: bytes of the buffer.
        special: makes the driver's call; default: the plain launch.

    Raises:
        LaunchError: more blocks than a GPU launches.
    """

    def __init__(
        self,
        driver: Driver,
        function: LoadedFunction,
        grid: Sequence[int],
        threads: int,
        offsets: Sequence[int],
        size: int,
        special: Special | None = None,
    ) -> None:
        self._driver, self._special = driver, special
        self._index = function.index
        # Where there is one device, it is current as a rule: asking would cost as much as trying.
        self._alone = driver.device_count() <= 1
        self.buffer = ctypes.create_string_buffer(max(size, 1))
        start = ctypes.addressof(self.buffer)
        self._pointers = (ctypes.c_void_p * max(len(offsets), 1))(*(start + offset for offset in offsets))
        self._arguments = ctypes.addressof(self._pointers)
        for blocks, most, axis in zip(grid, self._limits(threads), "xyz", strict=False):
            if blocks > most:
                raise LaunchError(f"{blocks} blocks along grid axis {axis}; a GPU launches at most {most}")
        x, y, z = (*grid, 1, 1)[:3]
        self._shape = (x, y, z, threads, 1, 1, function.shared_bytes)
        self._handle = function.handle
        self._success = driver.constant(driver.symbols.success)
        self._starts: dict[int, Start] = {}
        renew_after_fork(self)

    def _limits(self, threads: int) -> Sequence[int]:
        """The most blocks along x, y, z."""
        symbols = self._driver.symbols
        x, *others = symbols.target.architecture(self._driver.device(self._index).arch).grid
        return (min(x, symbols.threads_along_x // threads) if symbols.threads_along_x else x, *others)

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
        with self._driver.current(self._index):
            (status,) = start()
            if status != self._success:
                raise self._driver.failure("the launch", status)

    def start_on(self, stream: int) -> Start:
        """The driver's call for a stream with all arguments in place, remembered."""
        if len(self._starts) >= MOST_STARTS:
            self._starts.clear()
        bindings, symbols = self._driver.bindings(), self._driver.symbols
        handle = symbols.stream(bindings, stream)
        if self._special is not None:
            made = self._special(bindings, self._handle, self._shape, handle, self._arguments)
        else:
            plain = getattr(bindings, symbols.launch)
            made = partial(plain, self._handle, *self._shape, handle, self._arguments, 0)
        self._starts[stream] = made
        return made
