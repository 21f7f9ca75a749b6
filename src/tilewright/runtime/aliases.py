"""Arrays of a launch that share memory: where a dataflow kernel is right all the same, and where not.

A tile of the result is stored while others are being computed.  What is stored must therefore share no memory
with what others still read: with the operands of a product, with what is taken along rows or columns alone,
with another result.  An array that is read above the product may be the result itself, element for element:
whoever stores an element has read it before, and nobody else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.dataflow.nodes import ArrayPart, Flow, Span, Store, walk
from tilewright.runtime.arrays import ArrayInfo, overlap, sharing


@dataclass(frozen=True, slots=True)
class AliasPair:
    """Two arrays of a launch that must not share memory.

    Args:
        stored: the place among the arrays of the one that is stored.
        other: of the one that is read, or stored too.
        in_place: whether they may begin at one address, for then they are one array, element for element.
    """

    stored: int
    other: int
    in_place: bool = False


def pairs_of(flow: Flow | None, arrays: Mapping[str, ArrayInfo]) -> tuple[AliasPair, ...]:
    """Which arrays of a kernel must not share memory.

    Args:
        flow: what it computes; None of an explicit kernel, whose author answers for it.
        arrays: what its arrays are, by parameter, in order.
    """
    if flow is None:
        return ()
    places = {name: place for place, name in enumerate(arrays)}
    multiplied = {id(node) for one in flow.sums for side in (one.a, one.b) for node in walk(side)}
    stored = [store.operand.name for store in flow.stores]
    read: dict[str, list[ArrayPart]] = {}
    for node in flow.walk():
        if isinstance(node, ArrayPart):
            read.setdefault(node.operand.name, []).append(node)
    made = []
    for at, store in enumerate(flow.stores):
        own = arrays[store.operand.name]
        for name in (name for name in read if name not in stored):
            in_place = all(
                id(part) not in multiplied and _is_one(flow, (store, own), (part, arrays[name]))
                for part in read[name]
            )
            made.append(AliasPair(places[store.operand.name], places[name], in_place))
        made += [AliasPair(places[store.operand.name], places[name]) for name in stored[at + 1 :]]
    return tuple(made)


def _is_one(flow: Flow, one: tuple[Store, ArrayInfo], other: tuple[ArrayPart, ArrayInfo]) -> bool:
    """Whether arrays at one address are read element for element where they are stored, by nobody else."""
    (store, stored), (part, read) = one, other
    if store.operand.transforms or part.operand.transforms or stored.dtype != read.dtype:
        return False
    if not {*flow.tiles} == {*store.at} == {*part.at}:
        return False
    return _steps(store.at, stored) == _steps(part.at, read)


def _steps(at: Sequence[Span], info: ArrayInfo) -> dict[Span, tuple[int, int]]:
    """Extent and stride along each span that is stepped along."""
    found = zip(at, info.shape, info.strides, strict=True)
    return {span: (extent, stride) for span, extent, stride in found if extent != 1}


def is_same(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Whether two arrays are one, element for element; strides of dimensions of extent 1 count for nothing.

    Example:
        >>> import numpy as np
        >>> from tilewright.runtime.arrays import describe
        >>> x = np.zeros((1, 4), np.float32)
        >>> is_same(describe(x), describe(x[0])), is_same(describe(x), describe(x[:, ::-1]))
        (True, False)
    """
    found = [
        [step for step in zip(info.shape, info.strides, strict=True) if step[0] != 1] for info in (one, other)
    ]
    return (one.pointer, one.dtype) == (other.pointer, other.dtype) and found[0] == found[1]


def check_apart(flow: Flow | None, arrays: Mapping[str, ArrayInfo]) -> None:
    """Refuse results that share memory with what is read elsewhere, or with each other.

    Args:
        flow: what the kernel computes; of an explicit kernel None, and nothing is refused.
        arrays: what its arrays are, by parameter, in order.

    Raises:
        LaunchError: they do, or interleave in too intricate a way to tell.
    """
    if flow is None:
        return
    names, infos = list(arrays), list(arrays.values())
    results = {store.operand.name for store in flow.stores}
    for pair in pairs_of(flow, arrays):
        stored, other = infos[pair.stored], infos[pair.other]
        if (pair.in_place and stored.pointer == other.pointer) or not overlap(stored, other):
            continue
        result, name = names[pair.stored], names[pair.other]
        why = (
            f"both are stored, and the order of their tiles decides what remains of {name}"
            if name in results
            else f"elements of {name} would be overwritten before they are read"
        )
        raise sharing(f"kernel {flow.name}: {result} and {name}", why, result)
