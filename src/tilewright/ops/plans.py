"""What `matmul` remembers: for each problem's exact metadata, the launch that solves it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tilewright.runtime.arrays import ArrayInfo, end
from tilewright.runtime.executable import Executable, Prepared
from tilewright.runtime.loaded import last_launch, remembers
from tilewright.runtime.recent import Recent

KEPT = 1024
"""How many plans are remembered; the least recently used is forgotten first."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A launch for operands and an output of one exact shape.

    Args:
        prepared: the launch.
        reaches: bytes from the first to behind the last element of a, b and out.
    """

    prepared: Prepared
    reaches: tuple[int, int, int]

    def apart(self, a: int, b: int, out: int) -> bool:
        """Whether the output at address ``out`` lies clear of operands at ``a`` and ``b``."""
        of_a, of_b, of_out = self.reaches
        end = out + of_out
        return (end <= a or a + of_a <= out) and (end <= b or b + of_b <= out)


class Plans:
    """Plans by the metadata that they were made for; safe to use from several threads."""

    def __init__(self) -> None:
        self._plans: Recent[Hashable, Plan] = Recent(KEPT, _used)
        self.find: Callable[[Hashable], Plan | None] = self._plans.find
        self.keep = self._plans.keep
        remembers(self)

    def forget(self, executable: Executable) -> None:
        """Let go of the plans that launch an executable."""
        self._plans.forget(lambda plan: plan.prepared.executable is executable)

    def __len__(self) -> int:
        return len(self._plans)


def _used(plan: Plan) -> int:
    return last_launch(plan.prepared)


def plan(prepared: Prepared, *arrays: ArrayInfo) -> Plan:
    """The plan of a launch on arrays like these: a, b and out."""
    a, b, out = (end(info) - info.pointer for info in arrays)
    return Plan(prepared, (a, b, out))
