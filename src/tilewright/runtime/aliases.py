"""Arrays of a launch that share memory, and which of them a dataflow kernel allows.

A kernel stores one tile of a result while it computes other tiles. A result must therefore share no memory
with the operands of a product, with an array that is indexed along rows or columns alone, or with another
result. An array that is read element by element above the product may be the result itself: the thread that
stores an element has read it before, and no other thread reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewright.dataflow.nodes import ArrayPart, Flow, Store, walk
from tilewright.runtime.arrays import ArrayInfo, overlap, sharing


@dataclass(frozen=True, slots=True)
class AliasPair:
    """Two arrays of a launch that must not share memory.

    Args:
        stored: position of the stored array among the arrays.
        other: position of the array that is read, or also stored.
        in_place: whether both may begin at one address; they are then one array, element for element.
    """

    stored: int
    other: int
    in_place: bool = False


def pairs_of(flow: Flow | None, arrays: Mapping[str, ArrayInfo]) -> tuple[AliasPair, ...]:
    """Return the pairs of arrays that must not share memory.

    Args:
        flow: the dataflow kernel; None for an explicit kernel, whose author is responsible.
        arrays: its arrays, by parameter, in order.
    """
    if flow is None:
        return ()
    places = {name: place for place, name in enumerate(arrays)}
    multiplied = {id(node) for one in flow.sums for side in (one.a, one.b) for node in walk(side)}
    stored = [store.operand.name for store in flow.stores]
    read: dict[str, list[ArrayPart]] = {}
    tiles = {*flow.tiles}
    if flow.grouped is not None and flow.grouped.groups is not None:
        tiles.discard(flow.grouped.groups.index)  # each row belongs to one group
    for node in flow.walk():
        if isinstance(node, ArrayPart):
            read.setdefault(node.operand.name, []).append(node)
    made = []
    for at, store in enumerate(flow.stores):
        own = arrays[store.operand.name]
        for name in (name for name in read if name not in stored):
            # At one address, each element is read where it is stored, and nowhere else.
            other = arrays[name]
            in_place = own.dtype == other.dtype and all(
                id(part) not in multiplied
                and tiles == {*store.at} == {*part.at}
                and store.operand.transforms == part.operand.transforms
                and _steps(store, own) == _steps(part, other)
                for part in read[name]
            )
            made.append(AliasPair(places[store.operand.name], places[name], in_place))
        made += [AliasPair(places[store.operand.name], places[name]) for name in stored[at + 1 :]]
    return tuple(made)


def _steps(part: ArrayPart | Store, info: ArrayInfo) -> object:
    """Return extent and stride of each span whose extent is not 1; of each dimension, through a view."""
    if part.operand.transforms:
        return info.shape, info.strides
    found = zip(part.at, info.shape, info.strides, strict=True)
    return {span: (extent, stride) for span, extent, stride in found if extent != 1}


def is_same(one: ArrayInfo, other: ArrayInfo) -> bool:
    """Return whether two arrays are the same elements; strides of dimensions of extent 1 do not matter.

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
    """Refuse results that share memory with an array that is read elsewhere, or with each other.

    Args:
        flow: the dataflow kernel; nothing is refused for an explicit kernel (None).
        arrays: its arrays, by parameter, in order.

    Raises:
        LaunchError: two arrays share memory, or interleave in a way that is too intricate to tell.
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
            f"the kernel stores both, and the order of their tiles would decide which values remain in {name}"
            if name in results
            else f"elements of {name} would be overwritten before they are read"
        )
        raise sharing(f"kernel {flow.name}: {result} and {name}", why, result)
