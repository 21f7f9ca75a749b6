"""Launching a complex product again, on other arrays that are like those of one that was launched before."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tilewright.errors import LaunchError
from tilewright.ops.problem import IMAGINARY
from tilewright.runtime.arrays import LOCATORS, current_stream, locate_new, stream_handle
from tilewright.runtime.executable import Prepared
from tilewright.runtime.frameworks import Device
from tilewright.runtime.fresh import Fresh
from tilewright.runtime.kernel import Bound
from tilewright.runtime.plans import Plan
from tilewright.runtime.scratch import scratch
from tilewright.runtime.strided import Strided

GIVEN = ("a", "b", "c", "out")
"""The complex arrays of a product, in the order in which their addresses are listed."""


@dataclass(frozen=True)
class Located:
    """The complex arrays of a call: all that a launch depends on but where they lie, and the addresses.

    Args:
        key: of all of them.
        arrays: those that are there, each of a pair by itself, by name: ``a``, and ``a_im`` of a pair.
        addresses: likewise.
    """

    key: tuple[Any, ...]
    arrays: Mapping[str, Any]
    addresses: Mapping[str, int]


def located(given: Mapping[str, Any], how: Hashable) -> Located | None:
    """Where the arrays of a call lie; None where they must be looked at.

    Args:
        given: by name; None for those that are not there.
        how: what is asked for besides.
    """
    keys: list[Any] = [how, type(given["a"])]
    arrays, addresses = dict[str, Any](), dict[str, int]()
    try:
        for name in GIVEN:
            one = given.get(name)
            pair = one if isinstance(one, tuple | list) else () if one is None else (one,)
            keys.append(len(pair))
            for end, array in zip(("", IMAGINARY), pair, strict=False):
                key, addresses[name + end] = LOCATORS.get(type(array), locate_new)(array, 0)
                arrays[name + end] = array
                keys += [type(array), key]
        same = [addresses.get("c" + end) == addresses.get("out" + end) for end in ("", IMAGINARY)]
        made = (*keys, *same)
        hash(made)
    except (LaunchError, TypeError, ValueError):  # which is said of what it is
        return None
    return Located(made, arrays, addresses)


class Place(NamedTuple):
    """Where an array of a kernel lies.

    Args:
        name: in which of the caller's arrays; empty: in scratch memory.
        offset: bytes behind its beginning.
    """

    name: str
    offset: int


@dataclass(frozen=True)
class Again:
    """One of the launches of a product, for other arrays.

    Args:
        prepared: the launch.
        places: of its arrays, in order.
    """

    prepared: Prepared
    places: tuple[Place, ...]

    def pointers(self, addresses: Mapping[str, int]) -> list[int]:
        """The addresses of its arrays, of which those of the caller's are given, and of scratch memory."""
        return [addresses[name] + offset for name, offset in self.places]


@dataclass(frozen=True)
class Launch:
    """One of the launches of a product.

    Args:
        prepared: what is launched.
        arguments: arrays, and numbers behind them.
        pointers: the addresses of the arrays.
        given: which of the product's arrays each is; empty of those in scratch memory.
        address: of the scratch memory.
    """

    prepared: Prepared
    arguments: tuple[Any, ...]
    pointers: list[int]
    given: tuple[str, ...]
    address: int

    @staticmethod
    def of(
        kernel: Bound,
        arrays: Sequence[Strided],
        given: Sequence[str],
        numbers: tuple[float, ...],
        target: str,
        address: int,
    ) -> Launch:
        """The launch of a kernel on arrays that are seen with extents of their own."""
        tensors = (parameter.name for parameter in kernel.program.parameters if parameter.kind == "tensor")
        infos = {name: one.info for name, one in zip(tensors, arrays, strict=True)}
        plan, pointers = kernel.planned((*arrays, *numbers), target, infos)
        return Launch(plan.prepared, (*arrays, *numbers), pointers, tuple(given), address)

    def start(self, stream: Any) -> None:
        """Launch it."""
        self.prepared.launch(self.arguments, self.pointers, stream)

    def again(self, origins: Mapping[str, Place]) -> Again:
        """The launch for other arrays, of which it is known where they lie in the caller's."""
        pairs = zip(self.given, self.pointers, strict=True)
        places = (origins[one] if one else Place("", pointer - self.address) for one, pointer in pairs)
        return Again(self.prepared, tuple(places))


@dataclass(frozen=True)
class Known:
    """A product for which `Plans` have a plan: what is launched, and what its arrays are.

    Args:
        launches: in order; the last one is the product.
        size_bytes: of scratch memory.
        device: where the arrays lie.
        given: where the parts of the caller's arrays lie, as the plan has them.
        fresh: what makes each array of the result; empty where it is given.
    """

    launches: tuple[Again, ...]
    size_bytes: int
    device: Device
    given: tuple[Place, ...]
    fresh: tuple[Fresh, ...]

    def launch(self, plan: Plan, found: Located, numbers: Sequence[float], stream: Any) -> Any:
        """Launch it; None, and nothing is done, if that cannot be."""
        arrays, addresses = dict(found.arrays), dict(found.addresses)
        result: Any = None
        if self.fresh:
            made = [one.make() for one in self.fresh]
            for end, array, one in zip(("", IMAGINARY), made, self.fresh, strict=False):
                arrays["out" + end], addresses["out" + end] = array, one.address(array)
                if addresses["out" + end] & 15:  # not as its kernel was told
                    return None
            result = made[0] if len(made) == 1 else tuple(made)
        if not plan.apart([addresses[name] + offset for name, offset in self.given]):
            return None
        if self.size_bytes:
            self._behind(list(arrays.values()), addresses, numbers, stream)
        else:
            (only,) = self.launches
            tensors = (arrays[name] for name, _ in only.places)
            only.prepared.launch((*tensors, *numbers), only.pointers(addresses), stream)
        return True if result is None else result

    def _behind(
        self, arrays: Sequence[Any], addresses: dict[str, int], numbers: Sequence[float], stream: Any
    ) -> None:
        """Launch the product behind what writes scratch memory."""
        handle = current_stream(self.device, arrays) if stream is None else stream_handle(stream)
        own = stream if isinstance(self.device, str) else handle  # on the host there is none
        with scratch(self.size_bytes, self.device, handle) as addresses[""]:
            for one in self.launches:
                pointers = one.pointers(addresses)
                one.prepared.launch((*pointers, *numbers), pointers, own)
