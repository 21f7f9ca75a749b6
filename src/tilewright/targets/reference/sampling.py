"""Which blocks of a grid are equal up to their place, and which of them stand for the others."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Gather, ReadIndex, SetVariable, Variable
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.reference.rows import Rows, classes, masks, named


def block_symbols(kernel: Kernel, indices: Array) -> dict[Sym, Array]:
    """What many blocks know of themselves: for each symbol of the grid its values, one per row of indices."""
    found = {axis.sym: indices[:, at] for at, axis in enumerate(kernel.grid)}
    return found | {member.sym: indices[:, member.axis] % member.extent for member in kernel.cluster}


def fixed_symbols(kernel: Kernel) -> set[Sym]:
    """What a block knows before it begins: the kernel's sizes, and its own place."""
    sizes = {param.sym for param in kernel.sizes}
    return sizes | {axis.sym for axis in kernel.grid} | {member.sym for member in kernel.cluster}


def all_blocks(extents: Sequence[int]) -> Array:
    """Every block index as a row, x fastest."""
    grids = np.indices(tuple(reversed(extents))).reshape(len(extents), math.prod(extents))
    return np.ascontiguousarray(grids[::-1].T)


def representatives(kernel: Kernel, env: Mapping[Sym, int], extents: Sequence[int]) -> Array | None:
    """Blocks that stand for all: of each class of equal blocks the first, its neighbours, and the last.

    Returns:
        Rows of block indices in the order of the grid; None if blocks cannot be told to be equal.
    """
    if any(isinstance(op, Variable | SetVariable) and _varies(kernel, op) for op in kernel.walk()):
        return None
    if any(isinstance(op, ReadIndex | Gather) for op in kernel.walk()):
        return None  # blocks of one place in their grids may find different integers
    if not extents:
        return np.zeros((1, 0), np.int64)  # one block
    blocks = all_blocks(extents)
    try:
        rows = Rows(kernel.body, block_symbols(kernel, blocks), env, named(kernel), masks(kernel))
        columns = [*rows.columns(), *(column for places in _places(kernel) for column in rows.apart(places))]
    except ZeroDivisionError:  # which a run finds, and where
        return None
    return blocks[sorted(set(_chosen(blocks, classes(columns, len(blocks)), extents)))]


def _chosen(blocks: Array, alike: Array, extents: Sequence[int]) -> Iterator[int]:
    steps = [int(np.prod(extents[:axis], dtype=np.int64)) for axis in range(len(extents))]
    _, first = np.unique(alike, return_index=True)
    last = len(alike) - 1 - np.unique(alike[::-1], return_index=True)[1]
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        yield low
        yield high
        for axis, step in enumerate(steps):
            if blocks[low, axis] + 1 < extents[axis] and alike[low + step] == alike[low]:
                yield low + step


def _varies(kernel: Kernel, op: Variable | SetVariable) -> bool:
    """Whether a mutable integer may differ between blocks."""
    value = op.initial if isinstance(op, Variable) else op.value
    places = {axis.sym for axis in kernel.grid} | {member.sym for member in kernel.cluster}
    lets = named(kernel)
    return bool(symbols(substitute(value, lets)) & places)


def _places(kernel: Kernel) -> Iterable[list[Int]]:
    """For each array that is written, the offsets of all views that it is accessed through."""
    found: dict[Value, list[Int]] = {}
    written = {value.buffer for op in kernel.walk() for value in op.written}
    seen: set[Value] = set()
    for op in kernel.walk():
        for value in (*op.read, *op.written):
            if value.is_fragment or value.buffer not in written:
                continue
            if value.tensor.memory is not Memory.GLOBAL:
                continue
            view = value.tensor.view
            if value not in seen:
                seen.add(value)
                found.setdefault(value.buffer, []).append(view.offset)
    return found.values()
