"""Memory of our own on a GPU."""

from __future__ import annotations

from tilewright.runtime import cuda


class Memory:
    """Device memory of our own, freed when no longer used."""

    def __init__(self, size_bytes: int, index: int) -> None:
        self.index = index
        self.size_bytes = max(size_bytes, 1)
        with cuda.Current(index), cuda.AnyCapture():
            self.address = int(cuda.call("cuMemAlloc", self.size_bytes))
        cuda.give_back(self, index, "cuMemFree", self.address)

    def clear(self, stream: int) -> None:
        """Set every byte to 0, in order with ``stream``."""
        with cuda.Current(self.index):
            cuda.call("cuMemsetD8Async", self.address, 0, self.size_bytes, stream)

    def fill(self, source: int, size_bytes: int) -> None:
        """Copy bytes from an address of the host to the start of this memory."""
        if size_bytes:
            with cuda.Current(self.index):
                cuda.call("cuMemcpyHtoD", self.address, source, size_bytes)

    def read(self, target: int, size_bytes: int) -> None:
        """Copy the first bytes of this memory to an address of the host, after all work on the device."""
        with cuda.Current(self.index):
            cuda.synchronize(self.index)
            if size_bytes:
                cuda.call("cuMemcpyDtoH", target, self.address, size_bytes)
