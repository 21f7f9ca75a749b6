"""Shortcuts: known short launches on NumPy arrays, called without Python code in between.

A launch that takes a microsecond ends before Python code could read the metadata of its arrays. A shortcut is
a method in compiled code. It reads the metadata from NumPy's objects, finds the launch for them, makes the
output if none is given, and runs all blocks on the caller's thread. It holds the interpreter's lock
meanwhile, so only short launches have a shortcut. For all other calls it returns None, and the caller takes
the ordinary path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.recent import remembers

MOST = 256
"""Launches in one table; a further one starts a new table."""

MOST_ARRAYS = 3


def no_shortcut(*arrays: Any) -> Any:
    """Return None: there are no shortcuts yet."""
    return


class Shortcuts:
    """The shortcuts of one function of arrays; the last array is its output.

    Example:
        >>> shortcuts = Shortcuts()
        >>> shortcuts.call(np.zeros(3), np.zeros(3)) is None
        True
    """

    def __init__(self) -> None:
        self.call: Callable[..., Any] = no_shortcut
        """Takes the arrays, with or without the output; returns the output, or None if it did nothing."""
        self._table: Any = None
        self._refused = False
        remembers(self)

    def keep(self, prepared: Prepared, arrays: Sequence[Any], places: Sequence[int], *, fresh: bool) -> None:
        """Keep a launch that ran on some arrays, if a shortcut can run it.

        Args:
            prepared: the launch.
            arrays: the function's arrays, the output last.
            places: the position of each array among the kernel's arrays.
            fresh: whether a call makes the output instead of taking it.
        """
        if self._refused or not prepared.may_be_inlined or len(arrays) > MOST_ARRAYS:
            return
        if any(type(array) is not np.ndarray for array in arrays):
            return
        launch = prepared.inline()
        if launch is None:
            return
        if self._table is None or self._table.count >= MOST:
            self.forget()
            self._table = launch.table()
            self._refused = self._table is None
        if self._table is not None:
            self._table.add(launch, arrays, places, fresh)
            self.call = self._table.call

    def forget(self, executable: Executable | None = None) -> None:
        """Drop all launches if one of them runs this executable, or in any case without an argument."""
        if self._table is not None and (executable is None or executable in self._table.executables):
            self.call, self._table = no_shortcut, None
