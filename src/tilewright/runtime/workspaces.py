"""Workspaces of a kernel on a GPU: one set for each stream, as launches on two streams may run together.

A stream's handle does not say which stream it is: one that is destroyed while its work goes on may give its
handle to a stream created after it, and launches on both may run together too.  The driver also numbers
streams, and no number is given twice.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Hashable, Sequence
from enum import Enum
from typing import Any

from tilewright.runtime.driver import LEGACY_STREAM, Driver
from tilewright.runtime.memory import Memory

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
        self._sets: dict[Hashable, list[Memory]] = {}
        self._written: list[Memory] | None = None

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
            found = [Memory(size, self._index, self._driver) for _, size, _ in self._wanted]
            self._clear(found, stream, Clears.ONCE)
            self._sets[key] = found
        written, self._written = self._written, None  # of an error in between nothing is remembered
        if found is not written:
            for memory, (offset, _, _) in zip(found, self._wanted, strict=True):
                struct.pack_into("@P", buffer, offset, memory.address)
        self._clear(found, stream, Clears.LAUNCH)
        self._written = found

    def _clear(self, found: Sequence[Memory], stream: int, when: Clears) -> None:
        for memory, (_, _, clears) in zip(found, self._wanted, strict=True):
            if clears is when:
                memory.clear(stream)


def stream_key(stream: int, driver: Driver) -> Hashable:
    """What a stream shares with no other, not even with one that has its handle later."""
    if stream in LEGACY_STREAM:
        return stream
    return _own.key if stream == _PER_THREAD else ("created", driver.stream_number(stream))
