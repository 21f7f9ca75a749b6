"""Launches that are kept for later calls with the same metadata."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tilewright.runtime.arrays import AliasPair, ArrayInfo, reach
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.recent import Recent, last_launch, remembers

KEPT = 1024
"""Launches that one place keeps. The least recently used is dropped first."""


class Kept(Protocol):
    """A record that launches something."""

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
        """The prepared launches that it holds: one."""
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
        """Forms of whole calls, each with notes of which of its calls are kept."""
        self.find: Callable[[Hashable], KeptType | None] = self._plans.find
        self.keep = self._plans.keep
        self.find_call: Callable[[Hashable], Any] = self._calls.find
        self.keep_call = self._calls.keep
        remembers(self)

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
