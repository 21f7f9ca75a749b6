"""Machine code that nobody holds, and its device; unloaded when the device has been waited for.

Until then its launches may still run, and to wait for them while any thread captures a graph would spoil it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from tilewright.errors import LaunchError

MOST_UNWANTED = 256
"""Pieces of such code; when a device has more, the next that it loads waits for it."""

_Entry = tuple[int, Any, object]
"""A device, the handle of machine code, and what tells it from other code that has that handle later."""


class UnwantedCode:
    """The machine code that nobody holds any more, of one driver."""

    def __init__(self, most: int = MOST_UNWANTED) -> None:
        self.most = most
        self._entries = list[_Entry]()

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, index: int, handle: Any) -> None:
        """Nobody holds the code of a device any more."""
        self._entries.append((index, handle, object()))  # the driver may give a handle to other code later

    def _of(self, index: int) -> list[_Entry]:
        return [entry for entry in list(self._entries) if entry[0] == index]

    def make_room(self, index: int, synchronize: Callable[[int], object]) -> None:
        """Wait for a device of which there is much; that unloads it."""
        if len(self._of(index)) > self.most:
            with contextlib.suppress(LaunchError):  # of a kernel that failed
                synchronize(index)

    def unload_after(self, index: int, wait: Callable[[], object], unload: Callable[[Any], object]) -> None:
        """Wait for all launches on a device, and unload what nobody held before.

        Args:
            index: the device, which is current.
            wait: returns when its launches have ended.
            unload: how the driver lets go of a handle.
        """
        # What is let go while it waits was perhaps launched in the meantime.
        unwanted = self._of(index)
        wait()
        for entry in unwanted:
            with contextlib.suppress(ValueError):  # another thread was faster
                self._entries.remove(entry)
                unload(entry[1])
