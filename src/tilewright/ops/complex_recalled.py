"""What launches a complex product again, on arrays that are like those of one that was launched before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tilewright.ops.complex_parts import Parts
from tilewright.ops.problem import IMAGINARY
from tilewright.ops.recalled import OWN, Behind, Place, Several
from tilewright.runtime.aliases import Pair
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.executable import Prepared
from tilewright.runtime.fresh import Fresh
from tilewright.runtime.plans import Plan
from tilewright.runtime.strided import Strided

PARTS = ("a", "a_im", "b", "b_im", "c", "c_im", "out", "out_im")
"""The arrays of a call, one behind the other; of an interleaved one the first stands for both parts."""

_C, _OUT = PARTS.index("c"), PARTS.index("out")


class Ordered(NamedTuple):
    """One of the launches of a product.

    Args:
        prepared: the launch.
        given: which of the product's arrays each of its arrays is; empty of those in scratch memory.
        infos: what they are.
        behind: how many bytes behind the beginning of scratch memory each lies.
    """

    prepared: Prepared
    given: tuple[str, ...]
    infos: tuple[ArrayInfo, ...]
    behind: tuple[int, ...]

    def places(self, names: Sequence[str]) -> tuple[Place, ...]:
        """Where its arrays lie: in those of a product that are named, or in scratch memory."""
        pairs = zip(self.given, self.behind, strict=True)
        return tuple(Place(names.index(one)) if one else Place(OWN, offset) for one, offset in pairs)


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
    launches: Sequence[Ordered],
    parts: Mapping[str, Parts],
    arrays: Mapping[str, Strided],
    size_bytes: int,
    fresh: Sequence[Fresh],
) -> Plan:
    """The plan of a product.

    Args:
        launches: in order; the last one is the product.
        parts: the complex arrays, by name.
        arrays: their parts as the product has them, by name.
        size_bytes: of scratch memory.
        fresh: what makes each array of the result; empty where it is given.
    """
    prepared, names, infos, _ = launches[-1]
    if size_bytes:
        names, infos = tuple(arrays), tuple(one.info for one in arrays.values())
        behind = [Behind(one.prepared, one.places(names)) for one in launches]
        prepared = Several(behind, infos[0].device, size_bytes)
    origins = [_origin(name, parts) for name in names]
    return replace(
        Plan.of(prepared, infos, _pairs(names, parts)),
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
