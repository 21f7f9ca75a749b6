"""Memory of our own on a GPU."""

from __future__ import annotations

from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import Driver


class Memory:
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
