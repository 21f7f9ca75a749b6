"""Workspaces with poison before every launch, and counters that must be 0 after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import Clears, DeviceMemory, Workspaces

POISON = 0xFF
"""Bytes that are NaN in every float dtype."""


class Watched:
    """The workspaces of a test's launches."""

    def __init__(self) -> None:
        self.poisoned: list[DeviceMemory] = []
        self.reset: list[DeviceMemory] = []

    def add(self, memory: DeviceMemory, clears: Clears) -> None:
        """Remember a workspace that is used."""
        found = self.reset if clears is Clears.ONCE else self.poisoned
        if not any(memory is known for known in found):
            found.append(memory)

    def check(self) -> None:
        """Fail if memory that every launch must leave as zeros is not 0."""
        for memory in self.reset:
            left = np.empty(memory.size_bytes, np.uint8)
            memory.read(left.ctypes.data, left.nbytes)
            if left.any():
                pytest.fail(f"{np.count_nonzero(left)} of {left.size} bytes that are reset are not zero")


@contextmanager
def poisoned(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Poison workspaces: never cleared ones before each launch, those cleared once before the clearing."""
    made, clear = Watched(), Workspaces._clear

    def cleared(self: Workspaces, found: Sequence[DeviceMemory], stream: int, when: Clears) -> None:
        for memory, (_, _, clears) in zip(found, self._wanted, strict=True):
            # A launch clears what it must; what is never cleared is written by this one alone.
            if clears is when or (when is Clears.LAUNCH and clears is Clears.NEVER):
                CUDA_DRIVER.call("cuMemsetD8Async", memory.address, POISON, memory.size_bytes, stream)
                made.add(memory, clears)
        clear(self, found, stream, when)

    monkeypatch.setattr(Workspaces, "_clear", cleared)
    yield made
    made.check()
