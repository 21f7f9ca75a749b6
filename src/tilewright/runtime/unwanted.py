"""Machine code that nobody holds, and its device; unloaded when the device has been waited for.

Until then its launches may still run, and to wait for them while any thread captures a graph would spoil it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

Unwanted = tuple[int, Any, object]
"""A device, the handle of machine code, and what tells it from other code that has that handle later."""


def of_device(unwanted: Sequence[Unwanted], index: int) -> list[Unwanted]:
    """Those of one device."""
    return [entry for entry in list(unwanted) if entry[0] == index]


def unload(unwanted: list[Unwanted], some: Sequence[Unwanted], how: Callable[[Any], object]) -> None:
    """Unload some of them, whose launches have ended."""
    for entry in some:
        with contextlib.suppress(ValueError):  # another thread was faster
            unwanted.remove(entry)
            how(entry[1])
