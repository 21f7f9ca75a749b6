"""What is remembered of launches: the one for arguments of an exact shape, and how far its arrays reach."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass

from tilewright.runtime.aliases import Pair
from tilewright.runtime.arrays import ArrayInfo, Fresh, reach
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.recent import Recent, last_launch, remembers

KEPT = 1024
"""How many plans are remembered in one place; the least recently used is forgotten first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch for arguments of one exact shape.

    Args:
        prepared: the launch.
        reaches: bytes from each array's address to its lowest element and to behind its highest, in order.
        pairs: which of them must not share memory.
        order: which of the arrays of a call that is launched by it each array is.
        offsets: bytes from each of these to where the array begins; empty: none.
        fresh: what makes those arrays of the call that are not given, by their places there.
        numbers: what the kernel is given behind its arrays; empty if each call says it.
    """

    prepared: Prepared
    reaches: tuple[tuple[int, int], ...]
    pairs: tuple[Pair, ...] = ()
    order: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    fresh: tuple[tuple[int, Fresh], ...] = ()
    numbers: tuple[float | int, ...] = ()

    @staticmethod
    def of(prepared: Prepared, arrays: Iterable[ArrayInfo], pairs: tuple[Pair, ...] = ()) -> Plan:
        """The plan of a launch on arrays like these."""
        return Plan(prepared, tuple(reach(info) for info in arrays), pairs)

    def apart(self, pointers: Sequence[int]) -> bool:
        """Whether all arrays that must not share memory lie clear of each other, at these addresses.

        Arrays that interleave may be apart all the same, which takes longer to find out.
        """
        for pair in self.pairs:
            stored, other = pointers[pair.stored], pointers[pair.other]
            if pair.in_place and stored == other:
                continue
            (low, high), (lowest, highest) = self.reaches[pair.stored], self.reaches[pair.other]
            if stored + low < other + highest and other + lowest < stored + high:
                return False
        return True


class Plans:
    """Plans by the metadata that they were made for; safe to use from several threads."""

    def __init__(self) -> None:
        self._plans: Recent[Hashable, Plan] = Recent(KEPT, _used)
        self.find: Callable[[Hashable], Plan | None] = self._plans.find
        self.keep = self._plans.keep
        remembers(self)

    def forget(self, executable: Executable | None = None) -> None:
        """Let go of the plans that launch an executable, or of all."""
        self._plans.forget(lambda plan: executable in (None, plan.prepared.executable))

    def __len__(self) -> int:
        return len(self._plans)


def _used(plan: Plan) -> int:
    return last_launch(plan.prepared)
