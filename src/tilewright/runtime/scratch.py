"""Memory for what one operation hands from one of its kernels to the next, in order with a stream.

On a GPU it is kept for the next operation on the same stream, whose kernels come after those of this one;
what goes into a graph is never used again.  On the host it is new memory.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager

import numpy as np

from tilewright.runtime.driver import LEGACY_STREAM
from tilewright.runtime.drivers import driver_of
from tilewright.runtime.forks import renew_after_fork
from tilewright.runtime.frameworks import Device
from tilewright.runtime.memory import Memory
from tilewright.runtime.workspaces import stream_key

UNIT_BYTES = 1 << 21
"""Of what is kept, a multiple, so that operations of about the same size share it."""

MOST_STREAMS = 16
"""For how many streams memory is kept; that of the oldest is freed first."""

ALIGNMENT = 256
"""Bytes; of every address."""


class _OfProcess:
    """What is kept in this process; a forked child has nothing on any device."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        """None yet."""
        self.idle: dict[Hashable, list[Memory]] = {}
        self.in_graphs: list[Memory] = []


_process = renew_after_fork(_OfProcess())


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
        memory = Memory(size_bytes, index, driver)
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


def _taken(key: Hashable, size_bytes: int, device: tuple[str, int]) -> Memory:
    """What was kept for a stream, if it is large enough; of what is too small nothing is kept."""
    try:
        kept = _process.idle.get(key, []).pop()
        if kept.size_bytes >= size_bytes:
            return kept
    except IndexError:
        while len(_process.idle) > MOST_STREAMS:
            _process.idle.pop(next(iter([*_process.idle])), None)  # another thread may have been faster
    return Memory(-(-size_bytes // UNIT_BYTES) * UNIT_BYTES, device[1], driver_of(device[0]))
