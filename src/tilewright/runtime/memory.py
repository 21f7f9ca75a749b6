"""Memory of our own on a GPU."""

from __future__ import annotations

from tilewright.runtime import cuda
from tilewright.runtime.driver import Driver


class Memory:
    """Device memory of our own, freed when no longer used.

    Args:
        size_bytes: how much.
        index: the device.
        driver: of whose GPUs it is one.
    """

    def __init__(self, size_bytes: int, index: int, driver: Driver = cuda) -> None:
        self.index = index
        self.size_bytes = max(size_bytes, 1)
        self.driver, self._names = driver, driver.NAMES
        with driver.Current(index), driver.AnyCapture():
            self.address = int(driver.call(self._names.allocate, self.size_bytes))
        driver.give_back(self, index, self._names.free, self.address)

    def clear(self, stream: int) -> None:
        """Set every byte to 0, in order with ``stream``."""
        with self.driver.Current(self.index):
            self.driver.call(self._names.fill, self.address, 0, self.size_bytes, stream)

    def fill(self, source: int, size_bytes: int) -> None:
        """Copy bytes from an address of the host to the start of this memory."""
        if size_bytes:
            with self.driver.Current(self.index):
                self.driver.call(self._names.copy_in, self.address, source, size_bytes)

    def read(self, target: int, size_bytes: int) -> None:
        """Copy the first bytes of this memory to an address of the host, after all work on the device."""
        with self.driver.Current(self.index):
            self.driver.synchronize(self.index)
            if size_bytes:
                self.driver.call(self._names.copy_out, target, self.address, size_bytes)
