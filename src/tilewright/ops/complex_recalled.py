"""Launching a complex product again, on other arrays that are like those of one that was launched before."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.errors import LaunchError
from tilewright.ops.problem import IMAGINARY
from tilewright.runtime.arrays import LOCATORS, locate_new
from tilewright.runtime.fresh import Fresh
from tilewright.runtime.plans import Plan

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


@dataclass(frozen=True)
class Known:
    """Of a product of one launch, for which `Plans` have a plan: what its arrays are.

    Args:
        places: for each array of the kernel, which of the arrays it lies in, and how many bytes behind its
            beginning.
        fresh: what makes each array of the result; empty where it is given.
    """

    places: tuple[tuple[str, int], ...]
    fresh: tuple[Fresh, ...]

    def apart(self, plan: Plan, *, in_place: bool) -> Plan:
        """The plan, whose pairs are those that must not share memory, wherever arrays lie.

        Args:
            plan: as the kernel has it, for which both parts of a complex array are any two arrays.
            in_place: whether what is added is the result itself.
        """
        same = {"c": "out", "c" + IMAGINARY: "out" + IMAGINARY} if in_place else {}
        lies_in = [same.get(name, name) for name, _ in self.places]
        return replace(plan, pairs=tuple(p for p in plan.pairs if lies_in[p.stored] != lies_in[p.other]))

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
        pointers = [addresses[name] + offset for name, offset in self.places]
        if not plan.apart(pointers):
            return None
        tensors = (arrays[name] for name, _ in self.places)
        plan.prepared.launch((*tensors, *numbers), pointers, stream)
        return True if result is None else result
