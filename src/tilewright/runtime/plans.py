"""Launches that are kept for later calls with the same metadata, and shortcuts to the shortest of them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from tilewright.runtime.arrays import AliasPair, ArrayInfo, reach
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.recent import Recent, last_launch

KEPT = 1024
"""Launches that one place keeps. The least recently used is dropped first."""


class Kept(Protocol):
    """A record that holds prepared launches."""

    @property
    def prepared_launches(self) -> tuple[Prepared, ...]:
        """The prepared launches that it holds."""


KeptType = TypeVar("KeptType", bound=Kept)


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch of one kernel for arguments of one exact shape.

    Args:
        prepared: the launch.
        reaches: bytes from each array's address to its lowest element and to the end of its highest.
        pairs: pairs of arrays that must not share memory.
    """

    prepared: Prepared
    reaches: tuple[tuple[int, int], ...]
    pairs: tuple[AliasPair, ...] = ()

    @staticmethod
    def of(prepared: Prepared, arrays: Iterable[ArrayInfo], pairs: tuple[AliasPair, ...] = ()) -> Plan:
        """Make the plan of a launch on arrays like these."""
        return Plan(prepared, tuple(reach(info) for info in arrays), pairs)

    @property
    def prepared_launches(self) -> tuple[Prepared, ...]:
        """The prepared launches; there is one."""
        return (self.prepared,)

    def apart(self, pointers: Sequence[int]) -> bool:
        """Return whether the address ranges of arrays that must not share memory are disjoint.

        False is no proof of sharing: arrays that interleave may still be apart.
        """
        for pair in self.pairs:
            stored, other = pointers[pair.stored], pointers[pair.other]
            if pair.in_place and stored == other:
                continue
            (low, high), (lowest, highest) = self.reaches[pair.stored], self.reaches[pair.other]
            if stored + low < other + highest and other + lowest < stored + high:
                return False
        return True


class Plans(Generic[KeptType]):
    """Launches by the metadata that they were made for; safe to use from several threads.

    Whole calls, which `tilewright.ops.replay` finds by all their arguments, have a table of their own.
    """

    def __init__(self) -> None:
        def last(kept: Kept) -> int:
            return max(map(last_launch, kept.prepared_launches))

        self._plans: Recent[Hashable, KeptType] = Recent(KEPT, last)
        self._calls: Recent[Hashable, Any] = Recent(KEPT, last)
        self.forms: dict[Hashable, Any] = {}
        """Forms of whole calls, each with notes on the calls that are kept."""
        self.names: Sequence[str] = ()
        """The argument of each array of a call."""
        self.find: Callable[[Hashable], KeptType | None] = self._plans.find
        self.find_call: Callable[[Hashable], Any] = self._calls.find

    def keep(self, key: Hashable, kept: KeptType) -> None:
        """Keep a record."""
        self._hold(kept)
        self._plans.keep(key, kept)

    def keep_call(self, key: Hashable, kept: Any) -> None:
        """Keep a whole call."""
        self._hold(kept)
        self._calls.keep(key, kept)

    def _hold(self, kept: Kept) -> None:
        for launch in kept.prepared_launches:
            launch.executable.holders.add(self)

    def forget(self, executable: Executable | None = None) -> None:
        """Drop the records that launch an executable, or all records."""

        def is_gone(kept: Kept) -> bool:
            return executable is None or any(one.executable is executable for one in kept.prepared_launches)

        self._plans.forget(is_gone)
        self._calls.forget(is_gone)
        if executable is None:
            self.forms.clear()

    def __len__(self) -> int:
        return len(self._plans)


class LaunchRecord(threading.local):
    """The launches that a thread records while it runs a function, to repeat them later.

    A recorded launch is the `Replay` of a call with the call's arrays and numbers; or the prepared launch of
    a kernel, its arguments, and the places of stored arrays that must share no memory with others; or None
    for a call that was planned anew, which makes the recording useless.
    """

    launches: list[Any] | None = None
    """The launches so far; None: nothing is recorded."""

    made: list[Any] | None = None
    """Arrays that the function made for results, without contents."""


RECORDING = LaunchRecord()


# ---------------------------------------------------------------- shortcuts
#
# A launch that takes a microsecond ends before Python code could read the metadata of its arrays. A shortcut
# is a method in compiled code. It reads the metadata from NumPy's objects, finds the launch for them, makes
# the output if none is given, and runs all blocks on the caller's thread. A long launch releases the
# interpreter's lock meanwhile. For all other calls the method returns None, and the caller takes the
# ordinary path.

MOST_SHORTCUTS = 256
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
        self.said: dict[tuple[str, ...], dict[tuple[str, ...], Shortcuts]] = {}
        """The shortcuts of calls that also pass texts: by the names of arguments, and by the texts."""
        self._table: Any = None
        self._refused = False

    def keep(
        self,
        prepared: Prepared,
        arrays: Sequence[Any],
        addresses: Sequence[tuple[int, int]],
        numbers: Sequence[Any] = (),
        *,
        fresh: bool,
    ) -> None:
        """Keep a launch that ran on some arrays, if a shortcut can run it.

        Args:
            prepared: the launch.
            arrays: the function's arrays, the output last.
            addresses: for each of the kernel's arrays the array that it lies in, and its offset in bytes.
            numbers: the kernel's scalar arguments, the same in all calls.
            fresh: whether a call makes the output instead of taking it.
        """
        if self._refused or not prepared.may_be_inlined or len(arrays) > MOST_ARRAYS:
            return
        if any(type(array) is not np.ndarray for array in arrays):
            return
        launch = prepared.inline(numbers)
        if launch is None:
            return
        table = self._table  # another thread may drop it meanwhile
        if table is None or table.count >= MOST_SHORTCUTS:
            self.forget()
            table = launch.table()
            self._refused = table is None
        if table is not None:
            prepared.executable.holders.add(self)
            table.add(launch, arrays, addresses, fresh)
            self.call, self._table = table.call, table

    def forget(self, executable: Executable | None = None) -> None:
        """Drop all launches if one of them runs this executable, or in any case without an argument."""
        if self._table is not None and (executable is None or executable in self._table.executables):
            self.call, self._table = no_shortcut, None
        if executable is None:
            self.said.clear()
