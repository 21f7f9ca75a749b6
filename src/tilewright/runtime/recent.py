"""Values that are kept while they are used: at most so many, and those not used for the longest go first."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

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
