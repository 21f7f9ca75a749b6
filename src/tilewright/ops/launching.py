"""The launches of a call as data: the first ones leave something in scratch memory for the last."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from tilewright.ops.call import planned
from tilewright.ops.recalled import OWN, Behind, Place, Several, stream_on
from tilewright.runtime.executable import Prepared
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.gpu_memory import scratch
from tilewright.runtime.kernel import Bound
from tilewright.targets.target import TARGETS


@dataclass(frozen=True)
class Launch:
    """A kernel with its arguments.

    Args:
        kernel: the kernel.
        arrays: its arrays, as it sees them; pointers into scratch memory are bytes from its start.
        places: for each array its number among the arrays of the call, or `OWN` in scratch memory.
        numbers: its numbers.
    """

    kernel: Bound
    arrays: tuple[Strided, ...]
    places: tuple[int, ...]
    numbers: tuple[complex, ...] = ()

    def prepare(self, start: int, backend: str) -> tuple[Prepared, tuple[Any, ...], list[int]]:
        """What launches it, its arguments, and their addresses.

        Args:
            start: the address of scratch memory.
            backend: the target.
        """
        pairs = zip(self.arrays, self.places, strict=True)
        arrays = [_moved(one, start) if place == OWN else one for one, place in pairs]
        plan, arguments, pointers = planned(self.kernel, arrays, self.numbers, backend)
        return plan.prepared, arguments, pointers

    def again(self, prepared: Prepared) -> Behind:
        """The same on other arrays of the call."""
        pairs = zip(self.arrays, self.places, strict=True)
        places = (Place(at, one.info.pointer if at == OWN else 0) for one, at in pairs)
        return Behind(prepared, tuple(places))

    @property
    def moved_bytes(self) -> int:
        """Bytes that it reads and writes; a repeated element counts once.

        Arrays at one address count once too: one of them stands for those that the call does not have.
        """
        found = dict[tuple[bool, int], int]()
        for one, place in zip(self.arrays, self.places, strict=True):
            info = one.info
            count = prod(n for n, step in zip(info.shape, info.strides, strict=True) if step)
            at = place == OWN, info.pointer
            found[at] = max(found.get(at, 0), count * info.dtype.bits // 8)
        return sum(found.values())


@dataclass(frozen=True)
class Prepass:
    """A launch that writes operands of a product anew.

    Args:
        kernel: the kernel.
        arrays: its arrays, as it sees them; pointers into scratch memory are bytes from its start.
        given: for each array its name among those of the product; "" in scratch memory.
        made: the arrays that it writes, as the product sees them, by name.
    """

    kernel: Bound
    arrays: tuple[Strided, ...]
    given: tuple[str, ...]
    made: Mapping[str, Strided]

    def launch(self, names: Sequence[str]) -> Launch:
        """The launch, for a call whose arrays have some names."""
        places = tuple(names.index(name) if name else OWN for name in self.given)
        return Launch(self.kernel, self.arrays, places)


@dataclass(frozen=True)
class LaunchPlan:
    """The launches of a call, in order; the last one is the product.

    Args:
        launches: the launches.
        arrays: the arrays of the call.
        scratch_bytes: bytes of scratch memory that they share.
        reason: why there are several.
    """

    launches: tuple[Launch, ...]
    arrays: tuple[Strided, ...]
    scratch_bytes: int = 0
    reason: str = "one kernel reads the arrays as they lie"

    @property
    def moved_bytes(self) -> int:
        """Bytes that all launches read and write."""
        return sum(one.moved_bytes for one in self.launches)

    def __str__(self) -> str:
        names = ", then ".join(one.kernel.program.name for one in self.launches)
        return f"{names}: {self.scratch_bytes} bytes of scratch, {self.moved_bytes} moved; {self.reason}"

    def start(self, backend: str, stream: Any) -> tuple[Prepared, ...]:
        """Launch all; returns what was launched.

        Args:
            backend: the target.
            stream: the CUDA stream; None: the framework's current one.
        """
        device = self.arrays[0].info.device
        if not self.scratch_bytes:
            return self._started(0, backend, stream)
        handle, stream = stream_on(device, [one.array for one in self.arrays], stream)
        with scratch(self.scratch_bytes, device, handle) as start:
            return self._started(start, backend, stream)

    def _started(self, start: int, backend: str, stream: Any) -> tuple[Prepared, ...]:
        launches = [one.prepare(start, backend) for one in self.launches]
        for prepared, arguments, pointers in launches:
            prepared.launch(arguments, pointers, stream)
        return tuple(prepared for prepared, _, _ in launches)

    def launched(self, backend: str, stream: Any) -> Several | None:
        """Launch all; returns what does so again, if anything can; the arguments are those of `start`."""
        prepared = self.start(backend, stream)
        # The reference reads arrays, not addresses.
        return self.again(prepared) if TARGETS[backend].machine_code else None

    def again(self, prepared: Sequence[Prepared]) -> Several:
        """What was launched, for other arrays."""
        launches = [one.again(made) for one, made in zip(self.launches, prepared, strict=True)]
        return Several(launches, self.arrays[0].info.device, self.scratch_bytes)


def _moved(one: Strided, start: int) -> Strided:
    """An array in scratch memory, at its address."""
    return Strided(one.array, replace(one.info, pointer=start + one.info.pointer))
