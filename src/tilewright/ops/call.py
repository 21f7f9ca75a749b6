"""A call with everything looked at: its arrays, the result that is made for it, and its launch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DType
from tilewright.namespaces import part
from tilewright.ops.recalled import Done, order_of
from tilewright.runtime.arrays import ArrayInfo, Fresh, describe, fresh
from tilewright.runtime.backends import backend_for
from tilewright.runtime.executable import Backend
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound
from tilewright.runtime.plans import Plan
from tilewright.targets.target import TARGETS

WARN = "tilewright.ops.slow:warn"
"""What says that a product is slow; loaded when the first is launched on a GPU."""


@dataclass
class Call:
    """The arrays of a call, by the names of its arguments.

    Args:
        op: what messages call it.
        names: all arrays that it may have, in the order of those that a plan is launched on again.
        given: those that the caller gave.
        arrays: those that are there.
        infos: what they are.
        fresh: what makes those that were not given, by their places among all.
    """

    op: str
    names: tuple[str, ...]
    given: frozenset[str]
    arrays: dict[str, Any]
    infos: dict[str, ArrayInfo]
    fresh: tuple[tuple[int, Fresh], ...] = ()

    @staticmethod
    def of(op: str, given: Mapping[str, Any], needed: Iterable[str] = ("a", "b")) -> Call:
        """The call with arrays, of which those that are not given are None.

        Args:
            op: what messages call it.
            given: all that there may be, in order.
            needed: which must be given.

        Raises:
            LaunchError: one that is needed, or given, is no array.
        """
        arrays = {name: array for name, array in given.items() if array is not None or name in needed}
        infos = {name: describe(array, f"{op}, argument {name}") for name, array in arrays.items()}
        there = frozenset(name for name, array in given.items() if array is not None)
        return Call(op, tuple(given), there, arrays, infos)

    def backend(self, target: str | None) -> Backend:
        """What serves the arrays."""
        return backend_for(self.op, list(self.infos.items()), target)

    def make(self, name: str, shape: tuple[int, ...], kind: DType) -> None:
        """Make an array that is not given, of the framework of the first one."""
        if name in self.arrays:
            return
        maker = fresh(self.arrays[self.names[0]], shape, kind)
        self.arrays[name] = maker.make()
        self.infos[name] = describe(self.arrays[name])
        self.fresh = (*self.fresh, (self.names.index(name), maker))

    def order(self, kernel: Iterable[str]) -> tuple[int, ...]:
        """Which of the arrays of a call each of a kernel's is; ``out`` stands for what is not read."""
        return order_of(kernel, self.names, self.given & self.arrays.keys())

    def done(self, plan: Plan | None, order: tuple[int, ...]) -> Done:
        """What came of it, where ``out`` is the result.

        Args:
            plan: what launches it again, if anything can.
            order: which of the arrays of a call each of the kernel's is.
        """
        return Done(self.arrays["out"], plan and replace(plan, order=order, fresh=self.fresh))


def planned(
    kernel: Bound, arrays: Sequence[Strided], numbers: Sequence[Any], backend: str
) -> tuple[Plan, tuple[Any, ...], list[int]]:
    """The launch of a kernel on arrays that are seen with extents of their own; its arguments; addresses."""
    tensors = (one.name for one in kernel.program.parameters if one.kind == "tensor")
    infos = {name: one.info for name, one in zip(tensors, arrays, strict=True)}
    arguments = (*arrays, *numbers)
    plan, pointers = kernel.planned(arguments, backend, infos)
    return plan, arguments, pointers


def launch(
    kernel: Bound,
    arrays: Sequence[Strided],
    numbers: Sequence[Any],
    backend: str,
    stream: Any,
    *,
    warns: bool = False,
) -> Plan | None:
    """Launch a kernel; returns what does so again, if anything can.

    Args:
        kernel: the kernel.
        arrays: in its order, as it sees them.
        numbers: behind them.
        backend: the target.
        stream: the caller's.
        warns: whether a product that is far slower than the hardware is to be spoken of.
    """
    plan, arguments, pointers = planned(kernel, arrays, numbers, backend)
    if warns and TARGETS[backend].warps and TARGETS[backend].machine_code:
        part(WARN)(plan.prepared.executable)
    plan.prepared.launch(arguments, pointers, stream)
    # The reference reads the arrays themselves, which are not seen as the caller has them.
    return plan if TARGETS[backend].machine_code else None
