"""Launches one behind the other, of which the first leave something in scratch memory for the last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from tilewright.ops.call import planned
from tilewright.ops.recalled import OWN, Behind, Place, Several
from tilewright.runtime.arrays import current_stream, stream_handle
from tilewright.runtime.executable import Prepared
from tilewright.runtime.kernel import Bound
from tilewright.runtime.scratch import scratch
from tilewright.runtime.strided import Strided
from tilewright.targets.target import TARGETS


@dataclass(frozen=True)
class Step:
    """One of the launches of a product."""

    prepared: Prepared
    arguments: tuple[Any, ...]
    pointers: list[int]

    @staticmethod
    def of(kernel: Bound, arrays: Sequence[Strided], numbers: tuple[complex, ...], backend: str) -> Step:
        """The launch of a kernel on arrays that are seen with extents of their own."""
        plan, arguments, pointers = planned(kernel, arrays, numbers, backend)
        return Step(plan.prepared, arguments, pointers)

    def behind(self, lies_in: Sequence[int], start: int) -> Behind:
        """The same on other arrays.

        Args:
            lies_in: which of the arrays of a call each of its arrays is, or `OWN`.
            start: the address of scratch memory.
        """
        pairs = zip(lies_in, self.pointers, strict=True)
        places = (Place(at, pointer - start) if at == OWN else Place(at) for at, pointer in pairs)
        return Behind(self.prepared, tuple(places))


Placed: TypeAlias = tuple[Step, Sequence[int]]
"""A launch, and which of the arrays of a call each of its arrays is, or `OWN`."""


def launched(
    steps: Callable[[int], Iterable[Placed]],
    size_bytes: int,
    arrays: Sequence[Strided],
    backend: str,
    stream: Any,
) -> Several | None:
    """Launch all; returns what does so again, if anything can.

    Args:
        steps: what is launched, in order, for an address of scratch memory.
        size_bytes: of scratch memory.
        arrays: those of the call.
        backend: the target.
        stream: the CUDA stream; None: the framework's current one.
    """
    device, given = arrays[0].info.device, [one.array for one in arrays]
    handle = current_stream(device, given) if stream is None else stream_handle(stream)
    with scratch(size_bytes, device, handle) as start:
        launches = [*steps(start)]
        own = stream if isinstance(device, str) else handle  # on the host there is none
        for step, _ in launches:
            step.prepared.launch(step.arguments, step.pointers, own)
    if not TARGETS[backend].machine_code:  # which reads arrays, not addresses
        return None
    return Several([step.behind(lies_in, start) for step, lies_in in launches], device, size_bytes)
