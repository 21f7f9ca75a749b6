"""What launches a complex product again, on arrays that are like those of one that was launched before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tilewright.ops.complex_parts import Parts
from tilewright.ops.launching import LaunchPlan
from tilewright.ops.problem import IMAGINARY
from tilewright.ops.recalled import Place
from tilewright.runtime.aliases import Pair
from tilewright.runtime.arrays import Fresh
from tilewright.runtime.executable import Prepared
from tilewright.runtime.plans import Plan

PARTS = ("a", "a_im", "b", "b_im", "c", "c_im", "out", "out_im")
"""The arrays of a call, one behind the other; of an interleaved one the first stands for both parts."""

_C, _OUT = PARTS.index("c"), PARTS.index("out")


def in_parts(given: Any) -> list[Any]:
    """The two arrays of a pair; of an interleaved array the array itself, and None."""
    return [*given] if isinstance(given, tuple | list) else [given, None]


def are_one(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether the arrays of two complex ones are the same objects, if they are there."""
    return one[0] is not None and one[0] is other[0] and one[1] is other[1]


def result_of(arrays: Sequence[Any]) -> Any:
    """The result, of the arrays of a call."""
    re, im = arrays[_OUT:]
    return re if im is None else (re, im)


def plan_of(
    launched: LaunchPlan,
    prepared: Sequence[Prepared],
    parts: Mapping[str, Parts],
    call: tuple[str, ...],
    fresh: Sequence[Fresh],
) -> Plan:
    """The plan of a product.

    Args:
        launched: its launches.
        prepared: what was launched.
        parts: the complex arrays, by name.
        call: the names of the arrays of its launches.
        fresh: what makes each array of the result; empty where it is given.
    """
    last, names, made = launched.launches[-1], call, launched.arrays
    if not launched.scratch_bytes:
        names, made = tuple(call[place] for place in last.places), last.arrays
    origins = [_origin(name, parts) for name in names]
    again = launched.again(prepared) if launched.scratch_bytes else prepared[-1]
    return replace(
        Plan.of(again, [one.info for one in made], _pairs(names, parts)),
        order=tuple(place for place, _ in origins),
        offsets=tuple(offset for _, offset in origins),
        fresh=tuple((_OUT + at, maker) for at, maker in enumerate(fresh)),
    )


def _origin(name: str, parts: Mapping[str, Parts]) -> Place:
    """In which of a call's arrays a part lies, and how many bytes behind its beginning."""
    whole = name.removesuffix(IMAGINARY)
    same = "out" if parts[whole] is parts["out"] else whole
    end = name[len(whole) :]
    if parts[same].is_planar:
        return Place(PARTS.index(same + end))
    return Place(PARTS.index(same), parts[same].dtype.bytes if end else 0)


def _pairs(names: Sequence[str], parts: Mapping[str, Parts]) -> tuple[Pair, ...]:
    """Which parts must not share memory: those of the result, with what lies in other arrays."""
    lies_in = {name: _origin(name, parts).array for name in names}
    if "c" in parts and are_one(in_parts(parts["c"].given), in_parts(parts["out"].given)):
        lies_in |= {name: at + _OUT - _C for name, at in lies_in.items() if at in (_C, _C + 1)}
    places = {name: names.index(name) for name in lies_in}
    results = [name for name in places if name.removesuffix(IMAGINARY) == "out"]
    others = ((one, other) for one in results for other in places if lies_in[one] != lies_in[other])
    return tuple(Pair(places[one], places[other]) for one, other in others)
