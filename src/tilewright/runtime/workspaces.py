"""Workspaces of a kernel on a GPU: one set for each stream, as launches on two streams may run together.

A stream's handle does not say which stream it is: one that is destroyed while its work goes on may give its
handle to a stream created after it, and launches on both may run together too.  The driver also numbers
streams, and no number is given twice.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Hashable, Sequence
from typing import Any

from tilewright.runtime import cuda
from tilewright.runtime.cuda import LEGACY_STREAM
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


class Workspaces:
    """The workspaces of one launch.

    Args:
        wanted: for each workspace the offset of its address in the argument buffer, its bytes, and whether
            it holds zeros at the start of every launch.
        index: the device.
    """

    def __init__(self, wanted: Sequence[tuple[int, int, bool]], index: int) -> None:
        self._wanted = tuple(wanted)
        self._index = index
        self._sets: dict[Hashable, list[Memory]] = {}
        self._written: list[Memory] | None = None

    def prepare(self, buffer: Any, stream: int, captured: bool = False) -> None:
        """Write the addresses of the stream's set, and clear what must hold zeros, in order with it.

        A launch that goes into a graph has a set of its own; nor may a stream be asked its number meanwhile.
        """
        with cuda.Current(self._index):
            self._prepare(buffer, stream, _GRAPH if captured else _key(stream))

    def _prepare(self, buffer: Any, stream: int, key: Hashable) -> None:
        found = self._sets.get(key)
        if found is None:
            if len(self._sets) >= MOST_SETS:
                del self._sets[next(iter(self._sets))]
            found = self._sets[key] = [Memory(size, self._index) for _, size, _ in self._wanted]
        written, self._written = self._written, None  # of an error in between nothing is remembered
        for memory, (offset, _, zeroed) in zip(found, self._wanted, strict=True):
            if found is not written:
                struct.pack_into("@P", buffer, offset, memory.address)
            if zeroed:
                memory.clear(stream)
        self._written = found


def _key(stream: int) -> Hashable:
    """What a stream shares with no other, not even with one that has its handle later."""
    if stream in LEGACY_STREAM:
        return stream
    return _own.key if stream == _PER_THREAD else ("created", cuda.call("cuStreamGetId", stream))
