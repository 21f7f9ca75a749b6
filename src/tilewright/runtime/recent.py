"""Bounded caches: values kept in order of use, and the compiled code that this process keeps loaded."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from tilewright.runtime.executable import Executable, Prepared

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")

_STEPS = 16

clock = itertools.count(1)
"""Counts uses, of whatever is kept anywhere: each gets the next number."""


class Recent(Generic[Key, Kept]):
    """A dictionary of bounded size, whose least recently used values make room for others.

    A look-up with `get` is a use.  One with `find` costs no more than a look-up in a dictionary: then the
    values say themselves when they were used, and are asked each time a sixteenth of the bound was kept.
    As many are let go at once, so that keeping a value costs the same however many there are.

    No method waits for a lock: threads, signal handlers and forked children may call any of them at any time.
    Threads that keep values at the same moment may each exceed the bound by one, until the next is kept.

    Args:
        most: how many values are kept.
        used: when a value was used last, as a number of `clock`.
        dropped: called with every value that made room.

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
        self._uses: dict[Key, int] = {}  # when each value was used last
        self.find: Callable[[Key], Kept | None] = self._values.get
        """`get` without noting the use, for values that know themselves whether they were used."""

    def get(self, key: Key) -> Kept | None:
        """The value of a key, which is used now; None if there is none."""
        found = self._values.get(key)
        if found is not None:
            self._uses[key] = next(clock)
        return found

    def keep(self, key: Key, value: Kept) -> None:
        """Set a key's value, and let others go if there are too many."""
        self._values[key] = value
        self._uses[key] = next(clock)
        count = next(self._kept)
        if len(self._values) > self.most:
            self._ask()
            self._make_room(key)
        elif count % self._step == 0:
            self._ask()

    def _ask(self) -> None:
        """Note when values were used last."""
        if self._used is not None:
            for key, value in list(self._values.items()):
                self._uses[key] = max(self._uses.get(key, 0), self._used(value))

    def _make_room(self, newest: Key) -> None:
        uses = self._uses
        others = sorted(
            (key for key in list(self._values) if key != newest), key=lambda key: uses.get(key, 0)
        )
        for key in others[: len(self._values) - self.most + self._step - 1]:
            value = self._values.pop(key, None)
            if value is not None:
                self._dropped(value)
        self._uses = {key: uses.get(key, 0) for key in list(self._values)}

    def forget(self, unwanted: Callable[[Kept], bool] = lambda value: True) -> None:
        """Let go of the values that ``unwanted`` says, or of all."""
        for key, value in list(self._values.items()):
            if unwanted(value):
                self.drop(key)

    def drop(self, key: Key) -> None:
        """Let go of one key's value, if there is one."""
        self._values.pop(key, None)
        self._uses.pop(key, None)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)


# ---------------------------------------------------------------- compiled code
#
# Bound kernels and plans remember launches, which hold their executables, which hold the machine code. When
# there are too many executables, everybody forgets the least recently launched one. A launch that the caller
# holds still works: code is unloaded when its last holder is gone.


MOST_EXECUTABLES = 256
"""How many executables are remembered in one process, over all kernels, constants and classes of arrays."""


class Rememberer(Protocol):
    """Whoever keeps executables, or launches of them, for later calls."""

    def forget(self, executable: Executable) -> None:
        """Let go of an executable and of everything that holds it."""


_rememberers: weakref.WeakSet[Rememberer] = weakref.WeakSet()
_numbers = itertools.count()


def remembers(who: Rememberer) -> None:
    """Have ``who`` told what to forget, as long as it lives."""
    _rememberers.add(who)


def enter(executable: Executable) -> None:
    """Count an executable that is remembered from now on; one that was not used for long may go for it."""
    _entered.forget(lambda known: known() is None)
    _entered.keep(next(_numbers), weakref.ref(executable))


def last_launch(launch: Prepared) -> int:
    """When it was launched last, as far as anybody has asked: several ask, so the answer is kept."""
    if launch.recent:
        launch.recent, launch.seen = False, next(clock)
    return launch.seen


def last_use(executable: Executable) -> int:
    """When any launch of it was launched last."""
    return max(map(last_launch, list(executable.launches)), default=0)


def _used(known: weakref.ref[Executable]) -> int:
    executable = known()
    return 0 if executable is None else last_use(executable)


def _let_go(known: weakref.ref[Executable]) -> None:
    executable = known()
    if executable is not None:
        for who in list(_rememberers):
            who.forget(executable)


_entered: Recent[int, weakref.ref[Executable]] = Recent(MOST_EXECUTABLES, _used, _let_go)
