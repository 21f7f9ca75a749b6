"""Values that are kept while they are used: at most so many, and those not used for the longest go first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Kept = TypeVar("Kept")


class Recent(Generic[Key, Kept]):
    """A dictionary of bounded size.

    Every value has a mark that says whether it was used since it was last looked at.  When room is needed,
    the oldest value goes if it has no mark; otherwise it loses the mark and counts as the youngest.  This is
    the second-chance approximation of "least recently used"; a use costs no more than setting the mark.

    No method waits for a lock: threads, signal handlers and forked children may call any of them at any time.
    Threads that keep values at the same moment may each exceed the bound by one until the next is kept.

    Args:
        most: how many values are kept.
        used: whether a value was used since it was asked last, for values that `find` looks up.
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
        used: Callable[[Kept], bool] = lambda value: False,
        dropped: Callable[[Kept], object] = lambda value: None,
    ) -> None:
        self.most = most
        self._used = used
        self._dropped = dropped
        self._values: dict[Key, Kept] = {}
        self._marked: set[Key] = set()
        self._order: deque[Key] = deque()  # oldest first; a key that has left `_values` is passed over
        self.find: Callable[[Key], Kept | None] = self._values.get
        """`get` without the mark, for values that are marked by being used."""

    def get(self, key: Key) -> Kept | None:
        """The value of a key, which counts as used now; None if there is none."""
        found = self._values.get(key)
        if found is not None:
            self._marked.add(key)
        return found

    def keep(self, key: Key, value: Kept) -> None:
        """Set a key's value, and let others go if there are too many."""
        if key not in self._values:
            self._order.append(key)
        self._values[key] = value
        while len(self._values) > self.most:
            try:
                oldest = self._order.popleft()
            except IndexError:  # other threads have made room
                return
            self._judge(oldest)

    def _judge(self, key: Key) -> None:
        """Let the oldest value go, or count it as the youngest."""
        value = self._values.get(key)
        if value is None:
            return
        used = self._used(value)
        if key in self._marked or used:
            self._marked.discard(key)
            self._order.append(key)
        elif self._values.pop(key, None) is not None:
            self._dropped(value)

    def forget(self, unwanted: Callable[[Kept], bool] = lambda value: True) -> None:
        """Let go of the values that ``unwanted`` says, or of all."""
        for key, value in list(self._values.items()):
            if unwanted(value):
                self._values.pop(key, None)
                self._marked.discard(key)
        self._order = deque(self._values)

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._values))

    def __len__(self) -> int:
        return len(self._values)
