"""Shortcuts: small launches on NumPy's arrays that are known already, called with no Python in between.

A launch that takes a microsecond is over before Python has looked at the metadata of its arrays.  A shortcut
is a method in compiled code that reads the metadata where NumPy keeps it, finds the launch for exactly these,
makes the output if none is given, and runs all blocks on the caller's thread while it holds the interpreter's
lock; so only launches that are short have one.  For everything else it answers None, and the ordinary way is
taken.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.recent import remembers

MOST = 256
"""How many launches have a shortcut in one place; when there are more, all of them begin anew."""

MOST_ARRAYS = 3


def no_shortcut(*arrays: Any) -> Any:
    """What is called while there are no shortcuts."""
    return


class Shortcuts:
    """The shortcuts of one function of arrays, the last of which is its output.

    Example:
        >>> shortcuts = Shortcuts()
        >>> shortcuts.call(np.zeros(3), np.zeros(3)) is None
        True
    """

    def __init__(self) -> None:
        self.call: Callable[..., Any] = no_shortcut
        """Takes the arrays, with the output or without; gives the output, or None if it has done nothing."""
        self._table: Any = None
        self._refused = False
        remembers(self)

    def keep(self, prepared: Prepared, arrays: Sequence[Any], places: Sequence[int], *, fresh: bool) -> None:
        """Remember a launch that ran on some arrays, if a shortcut can run it.

        Args:
            prepared: the launch.
            arrays: the function's arrays, the output last.
            places: for each of them, which of the kernel's arrays it is.
            fresh: whether the output was made for the call, and is to be made for the next one too.
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
        """Let go of all launches if one of them is of an executable; without one, in any case."""
        if self._table is not None and (executable is None or executable in self._table.executables):
            self.call, self._table = no_shortcut, None
