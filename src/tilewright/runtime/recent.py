"""Bounded caches: values kept in order of use, and the compiled code that this process keeps loaded."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

from tilewright.runtime.executable import Executable, Prepared

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")

_STEPS = 16

clock = itertools.count(1)
"""Counts uses of all kept values; each use gets the next number."""


class Recent(Generic[Key, Kept]):
    """A dictionary of bounded size that drops the least recently used values.

    A look-up with `get` counts as a use.  A look-up with `find` costs as much as one in a dictionary, and
    counts nothing: such values record their uses themselves, and ``used`` reads the record each time that a
    sixteenth of the bound has been kept.  A sixteenth is dropped at once, so the cost of keeping a value does
    not grow with the bound.

    No method waits for a lock: threads, signal handlers and forked children may call any of them at any time.
    Threads that keep values at the same moment may each exceed the bound by one, until the next is kept.

    Args:
        most: most values that are kept.
        used: returns when a value was used last, in ticks of `clock`.
        dropped: called with every value that is dropped for room.

    Example:
        >>> kept = Recent(2)
        >>> kept.keep("a", 1), kept.keep("b", 2), kept.get("a"), kept.keep("c", 3)
        (None, None, 1, None)
        >>> sorted(kept)
        ['a', 'c']
    """

    def __init__(
        self,
        most: int,
        used: Callable[[Kept], int] | None = None,
        dropped: Callable[[Kept], object] = lambda value: None,
    ) -> None:
        self.most = most
        self._used = used
        self._dropped = dropped
        self._step = max(most // _STEPS, 1)
        self._kept = itertools.count(1)
        self._values: dict[Key, Kept] = {}
        self._uses: dict[Key, int] = {}  # last use of each value
        self.find: Callable[[Key], Kept | None] = self._values.get
        """`get` without counting a use, for values that know when they were used."""

    def get(self, key: Key) -> Kept | None:
        """Return the value of a key, or None; counts as a use."""
        found = self._values.get(key)
        if found is not None:
            self._uses[key] = next(clock)
        return found

    def keep(self, key: Key, value: Kept) -> None:
        """Set a key's value, and drop others if there are too many."""
        uses = self._uses
        self._values[key] = value
        uses[key] = next(clock)
        count = next(self._kept)
        is_full = len(self._values) > self.most
        if self._used is not None and (is_full or count % self._step == 0):
            for one, kept in list(self._values.items()):
                uses[one] = max(uses.get(one, 0), self._used(kept))
        if not is_full:
            return
        others = sorted((one for one in list(self._values) if one != key), key=lambda one: uses.get(one, 0))
        for one in others[: len(self._values) - self.most + self._step - 1]:
            dropped = self._values.pop(one, None)
            if dropped is not None:
                self._dropped(dropped)
        self._uses = {one: uses.get(one, 0) for one in list(self._values)}

    def forget(self, unwanted: Callable[[Kept], bool] = lambda value: True) -> None:
        """Drop the values for which ``unwanted`` is true, or all."""
        for key, value in list(self._values.items()):
            if unwanted(value):
                self.drop(key)

    def drop(self, key: Key) -> None:
        """Drop the value of a key, if there is one."""
        self._values.pop(key, None)
        self._uses.pop(key, None)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)


# ---------------------------------------------------------------- compiled code
#
# Bound kernels and plans keep launches, which hold executables, which hold machine code. When there are too
# many executables, the holders of the least recently launched one drop it. A launch that the caller holds
# still works: code is unloaded when its last holder is gone.


MOST_EXECUTABLES = 256
"""Executables that one process keeps, over all kernels, constants and classes of arrays."""


_numbers = itertools.count()


def enter(executable: Executable) -> None:
    """Count a new executable; the least recently used one may be dropped for it."""
    _entered.forget(lambda known: known() is None)
    _entered.keep(next(_numbers), weakref.ref(executable))


def last_launch(launch: Prepared) -> int:
    """Return when a launch was last noticed. Several callers ask, so the answer is kept in the launch."""
    if launch.recent:
        launch.recent, launch.seen = False, next(clock)
    return launch.seen


def last_use(executable: Executable) -> int:
    """Return when any launch of an executable was last noticed."""
    return max(map(last_launch, list(executable.launches)), default=0)


def _used(known: weakref.ref[Executable]) -> int:
    executable = known()
    return 0 if executable is None else last_use(executable)


def _let_go(known: weakref.ref[Executable]) -> None:
    executable = known()
    if executable is not None:
        for holder in list(executable.holders):
            holder.forget(executable)


_entered: Recent[int, weakref.ref[Executable]] = Recent(MOST_EXECUTABLES, _used, _let_go)
