"""Replay: a call like an earlier one launches the same kernels on its own arrays, and plans nothing."""

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
"""The place of the result among the arrays of most calls: ``a``, ``b``, ``out``, and then others."""

SCRATCH = "tilewright.runtime.gpu_memory:scratch"
"""Allocates scratch memory. Imported when the first launches need it."""

IN_SCRATCH = -1
"""The place of an array that lies in scratch memory."""


Located: TypeAlias = tuple[Any, Any]
"""The key and the address of an array, as `locate` gives them; of an absent array None and None."""


class ReplayedLaunch(NamedTuple):
    """One launch of a record.

    Args:
        prepared: the launch.
        places: for each array of the kernel its number among the arrays of the call, or `IN_SCRATCH`.
        offsets: bytes from these addresses to the arrays; empty if all are 0.
        pick: the values at these places.
    """

    prepared: Prepared
    places: tuple[int, ...]
    offsets: tuple[int, ...]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]

    @classmethod
    def of(cls, prepared: Prepared, places: tuple[int, ...], offsets: tuple[int, ...]) -> ReplayedLaunch:
        """A launch, whose values are picked by one call into C."""
        pick = itemgetter(*places) if len(places) > 1 else lambda values: (values[places[0]],)
        return cls(prepared, places, offsets if any(offsets) else (), pick)


class Clear(NamedTuple):
    """Two arrays of a call that must not share memory.

    Args:
        stored: the number of the array that is stored.
        low: bytes from its address to its lowest element.
        high: bytes from its address to the end of its highest element.
        other: the number of the other array.
        other_low: the same of the other array.
        other_high: likewise.
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
        launches: in order.
        clear: the given arrays that must not share memory.
        fresh: makes the results that are not given, by their numbers among the arrays of the call.
        device: where the arrays lie.
        scratch_bytes: bytes of scratch memory that the launches share.
        numbers: the numbers of the kernels; empty if each call gives them.
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
        """Launch on other arrays; None, and nothing is done, if that cannot be.

        Args:
            arrays: those of the call; None for one that is not given.
            at: their addresses.
            numbers: the numbers of the kernels, if the record does not have them.
            stream: the caller's.

        Returns:
            The arrays of the call, with those that were made for it.
        """
        if self.fresh:
            arrays, at = [*arrays], [*at]
            for place, maker in self.fresh:
                arrays[place] = made = maker.make()
                at[place] = address = maker.address(made)
                if address & 15:  # the kernels were compiled for multiples of 16
                    return None
        # Arrays that interleave may be apart all the same; the long way finds out.
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
            # A kernel takes as many of the numbers as it has.
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
    """A call that was launched.

    Args:
        result: what it returns.
        record: replays it on arrays of the same metadata; None if nothing can.
    """

    result: Any
    record: Replay | None


def stream_on(device: Device, arrays: Sequence[Any], stream: Any) -> tuple[int, Any]:
    """The handle of the stream that a call runs on, and the stream that each of its launches is given.

    A host has no streams: the handle is 0, and the launch refuses the caller's stream.

    Args:
        device: where the arrays lie.
        arrays: those of the call; None for one that is not given.
        stream: the caller's; None: the framework's current one.

    Raises:
        LaunchError: the caller's is no stream.
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
    """The result of a call, which is replayed if one like it is known, and planned otherwise.

    Args:
        plans: the launches of the operation that are known.
        arrays: those of the call; the framework of the first makes new ones. None for one that is not given.
        words: what a plan depends on besides arrays; None if each call is planned.
        numbers: the numbers of the kernel, if the plan does not have them.
        stream: the caller's.
        first: checks everything, plans, and launches; takes the keys and addresses that were read, if any.
        picked: the result, of the arrays of the call.
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
        except (LaunchError, TypeError, ValueError):  # no array, or no hash: `first` says which
            key = known = None
        if known is not None:
            found = known.run(arrays, at, numbers, stream)
            if found is not None:
                return picked(found)
    result, record = first([*zip(keys[2:], at, strict=True)] if key is not None else ())
    if key is not None and record is not None:
        plans.keep(key, record)
    return result
