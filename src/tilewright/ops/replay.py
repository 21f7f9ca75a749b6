"""Replays of calls: a call like an earlier one launches the same kernels on its own arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import add, itemgetter
from typing import Any, NamedTuple, TypeAlias

from tilewright.errors import LaunchError
from tilewright.namespaces import part
from tilewright.runtime.arrays import LOCATORS, Fresh, current_stream, locate_new, stream_handle
from tilewright.runtime.executable import Prepared
from tilewright.runtime.frameworks import Device
from tilewright.runtime.plans import Plans

OUT = 2
"""Index of the result among the arrays of most calls: ``a``, ``b``, ``out``, and then others."""

SCRATCH = "tilewright.runtime.gpu_memory:scratch"
"""Allocates scratch memory. Imported when the first launches need it."""

IN_SCRATCH = -1
"""Index of the address of scratch memory, which follows those of the arrays."""


Located: TypeAlias = tuple[Any, Any]
"""Key and address of an array, as `locate` returns them; None and None for an absent array."""


class ReplayedLaunch(NamedTuple):
    """One launch of a record.

    Args:
        prepared: the launch.
        places: for each array of the kernel its index among the arrays of the call, or `IN_SCRATCH`.
        offsets: bytes to add to the addresses of these arrays; empty if all are 0.
        pick: selects the values at ``places``.
    """

    prepared: Prepared
    places: tuple[int, ...]
    offsets: tuple[int, ...]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]

    @classmethod
    def of(cls, prepared: Prepared, places: tuple[int, ...], offsets: tuple[int, ...]) -> ReplayedLaunch:
        """Make a launch that selects its values by one call into C."""
        pick = itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)
        return cls(prepared, places, offsets if any(offsets) else (), pick)


class Clear(NamedTuple):
    """Two arrays of a call that must not share memory.

    Args:
        stored: index of the array that the kernels write.
        low: bytes from its address to its lowest element.
        high: bytes from its address to the end of its highest element.
        other: index of the other array.
        other_low: ``low`` of the other array.
        other_high: ``high`` of the other array.
        in_place: whether both may be one array, element for element.
    """

    stored: int
    low: int
    high: int
    other: int
    other_low: int
    other_high: int
    in_place: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """The launches of a call, for other arrays of the same metadata.

    Args:
        launches: the launches, in order.
        clear: pairs of the caller's arrays that must not share memory.
        fresh: allocates the results that the caller did not pass, with their indices.
        device: the device of the arrays.
        scratch_bytes: bytes of scratch memory that the launches share.
        numbers: scalar arguments of the kernels; empty if each call passes them.
    """

    launches: tuple[ReplayedLaunch, ...]
    clear: tuple[Clear, ...]
    fresh: tuple[tuple[int, Fresh], ...]
    device: Device
    scratch_bytes: int = 0
    numbers: tuple[float | int, ...] = ()

    @property
    def prepared_launches(self) -> tuple[Prepared, ...]:
        """The prepared launches, in order."""
        return tuple(one.prepared for one in self.launches)

    def run(
        self, arrays: Sequence[Any], at: Sequence[Any], numbers: tuple[Any, ...], stream: Any
    ) -> Sequence[Any] | None:
        """Launch on other arrays, or return None without a launch if the call needs a new plan.

        Args:
            arrays: the arrays of the call; None for an absent one.
            at: their addresses.
            numbers: scalar arguments of the kernels, unless the record has them.
            stream: the caller's stream.

        Returns:
            The arrays of the call, with those allocated for it.
        """
        if self.fresh:
            arrays, at = [*arrays], [*at]
            for place, maker in self.fresh:
                arrays[place] = made = maker.make()
                at[place] = address = maker.address(made)
                if address & 15:  # the kernels were compiled for multiples of 16
                    return None
        # Interleaved arrays may share no element all the same; a new plan checks them exactly.
        for stored, low, high, other, other_low, other_high, in_place in self.clear:
            mine, theirs = at[stored], at[other]
            shares = mine + low < theirs + other_high and theirs + other_low < mine + high
            if shares and not (in_place and mine == theirs):
                return None
        numbers = self.numbers or numbers
        pointers: Sequence[int]
        if len(self.launches) == 1:
            prepared, _, offsets, pick = self.launches[0]
            pointers = pick(at)
            if offsets:
                pointers = [*map(add, pointers, offsets)]
            # A kernel ignores numbers beyond its parameters.
            prepared.launch((*pick(arrays), *numbers), pointers, stream)
            return arrays
        handle, stream = stream_on(self.device, arrays, stream)
        with part(SCRATCH)(self.scratch_bytes or 1, self.device, handle) as start:
            addresses = (*at, start)  # `IN_SCRATCH` is the last one
            for prepared, _, offsets, pick in self.launches:
                pointers = pick(addresses)
                if offsets:
                    pointers = [*map(add, pointers, offsets)]
                prepared.launch((*pointers, *numbers), pointers, stream)
        return arrays


class Done(NamedTuple):
    """The outcome of a launched call.

    Args:
        result: the value that the call returns.
        record: replays it on arrays of the same metadata; None if the target has no replays.
    """

    result: Any
    record: Replay | None


def stream_on(device: Device, arrays: Sequence[Any], stream: Any) -> tuple[int, Any]:
    """Return the handle of a call's stream, and the stream argument of its launches.

    A host has no streams: the handle is 0, and the launch refuses the caller's stream.

    Args:
        device: the device of the arrays.
        arrays: the arrays of the call; None for an absent one.
        stream: the caller's stream; None: the framework's current stream.

    Raises:
        LaunchError: ``stream`` is not a stream.
    """
    if isinstance(device, str):
        return 0, stream
    there = [one for one in arrays if one is not None]
    handle = current_stream(device, there) if stream is None else stream_handle(stream)
    return handle, handle


def called(
    plans: Plans[Replay],
    arrays: Sequence[Any],
    words: tuple[Any, ...] | None,
    numbers: tuple[Any, ...],
    stream: Any,
    first: Callable[[Sequence[Located]], Done],
    picked: Callable[[Sequence[Any]], Any] = itemgetter(OUT),
) -> Any:
    """Replay an earlier call of the same kind, or plan a new one; return the result.

    Args:
        plans: the recorded launches of the operation.
        arrays: the arrays of the call; None for an absent one. The framework of the first allocates results.
        words: the arguments that a plan depends on besides arrays; None: plan each call anew.
        numbers: scalar arguments of the kernel, unless the plan has them.
        stream: the caller's stream.
        first: checks, plans and launches a new call; takes the arrays' keys and addresses, or nothing.
        picked: selects the result among the arrays of the call.
    """
    key: tuple[Any, ...] | None = None
    keys: list[Any] = [type(arrays[0]), words]
    at = list[Any]()
    if words is not None:
        try:
            for array in arrays:
                if array is None:
                    keys.append(None)
                    at.append(None)
                else:
                    exact, address = LOCATORS.get(type(array), locate_new)(array, 0)
                    keys.append(exact)
                    at.append(address)
            key = tuple(keys)
            known = plans.find(key)
        except (
            LaunchError,
            TypeError,
            ValueError,
        ):  # no array, or no hash: `first` raises the error
            key = known = None
        if known is not None:
            found = known.run(arrays, at, numbers, stream)
            if found is not None:
                return picked(found)
    result, record = first([*zip(keys[2:], at, strict=True)] if key is not None else ())
    if key is not None and record is not None:
        plans.keep(key, record)
    return result
