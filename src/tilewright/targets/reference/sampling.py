"""Which blocks of a grid are equal up to their place, and which of them stand for the others.

Two blocks are equal if everything that decides their control flow and their predicates is: bounds of loops,
conditions, where edges cut their tiles.  What cannot be separated from the place makes blocks different.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import Arrive, Peer, Wait
from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import For, Gather, If, Let, ReadIndex, Reshape, SetVariable, Variable
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import add, all_of, expand, less, mul
from tilewright.symbolic.nodes import Add, And, Int, Less, Not, Or, Sym
from tilewright.symbolic.ranges import bounds
from tilewright.symbolic.rebuilding import evaluate, substitute, symbols
from tilewright.targets.reference.extents import own_spans


def block_symbols(kernel: Kernel, indices: Array) -> dict[Sym, Array]:
    """What many blocks know of themselves: for each symbol of the grid its values, one per row of indices."""
    found = {axis.sym: indices[:, at] for at, axis in enumerate(kernel.grid)}
    return found | {member.sym: indices[:, member.axis] % member.extent for member in kernel.cluster}


def all_blocks(extents: Sequence[int]) -> Array:
    """Every block index as a row, x fastest."""
    grids = np.indices(tuple(reversed(extents))).reshape(len(extents), -1)
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
    blocks = all_blocks(extents)
    known = block_symbols(kernel, blocks)
    columns = [np.zeros(len(blocks), np.int64)]
    lets = named(kernel)
    for what in _decisive(kernel):
        columns += _traits(substitute(what, lets), known, env)
    for places in _places(kernel):
        columns += _apart([substitute(place, lets) for place in places], known, env)
    _, classes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return blocks[sorted(set(_chosen(blocks, classes.reshape(-1), extents)))]


def _chosen(blocks: Array, classes: Array, extents: Sequence[int]) -> Iterator[int]:
    steps = [int(np.prod(extents[:axis], dtype=np.int64)) for axis in range(len(extents))]
    _, first = np.unique(classes, return_index=True)
    last = len(classes) - 1 - np.unique(classes[::-1], return_index=True)[1]
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        yield low
        yield high
        for axis, step in enumerate(steps):
            if blocks[low, axis] + 1 < extents[axis] and classes[low + step] == classes[low]:
                yield low + step


def _varies(kernel: Kernel, op: Variable | SetVariable) -> bool:
    """Whether a mutable integer may differ between blocks."""
    value = op.initial if isinstance(op, Variable) else op.value
    places = {axis.sym for axis in kernel.grid} | {member.sym for member in kernel.cluster}
    lets = named(kernel)
    return bool(symbols(substitute(value, lets)) & places)


def named(kernel: Kernel) -> dict[Sym, Int]:
    """What a kernel's named integers stand for (`tw.let`), in terms of what has no name."""
    found: dict[Sym, Int] = {}
    for op in kernel.walk():
        if isinstance(op, Let):
            found[op.result] = substitute(op.value, found)
    return found


def _decisive(kernel: Kernel) -> Iterator[Any]:
    """Integers and conditions that decide what a block does, and what it finds to be there."""
    seen: set[Value] = set()
    for op in kernel.walk():
        match op:
            case For():
                yield from (op.start, op.stop)
            case If():
                yield op.condition
            case Peer():
                yield op.block
            case Arrive():
                yield from (part for part in (op.stage, op.block) if part is not None)
            case Wait():
                yield from (op.stage, op.parity)
            case Copy(engine="bulk", completion="barrier"):
                yield op.stage
            case Reshape():
                for _, span in own_spans(op):
                    yield all_of(less(-1, span.low), less(add(span.high, -1), span.extent))
        for value in op.operands:
            if isinstance(value.type, TensorType) and value not in seen:
                seen.add(value)
                yield value.type.view.valid
                if value.type.memory is Memory.SHARED:
                    yield value.type.view.offset


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


def _apart(places: Sequence[Int], known: Mapping[Sym, Array], env: Mapping[Sym, int]) -> list[Array]:
    """How far apart a block's accesses to one array lie, as far as that depends on the block.

    A block that writes and reads one element is not equal to one whose reads and writes lie apart.
    """
    own = []
    for place in places:
        shift = _own(expand(substitute(place, env)), known, env)
        if shift is None:
            return [known[sym] for each in places for sym in symbols(each) & known.keys()]
        own.append(shift[0])
    return [shift - own[0] for shift in own[1:]]


def _traits(what: Any, known: Mapping[Sym, Array], env: Mapping[Sym, int]) -> list[Array]:
    """Columns of numbers that are equal for blocks which an integer or condition does not tell apart."""
    if not symbols(what) & known.keys():
        return []
    if symbols(what) <= known.keys() | env.keys():
        column = np.asarray(evaluate(what, {**env, **known}), np.int64)
        return [np.broadcast_to(column, next(iter(known.values())).shape)]
    match what:
        case And() | Or():
            return [column for part in what.parts for column in _traits(part, known, env)]
        case Not():
            return _traits(what.part, known, env)
        case Less():
            gap = expand(add(what.right, mul(what.left, -1), -1))
            return _clipped(gap, known, env)
    return [known[sym] for sym in symbols(what) & known.keys()]


def _clipped(gap: Int, known: Mapping[Sym, Array], env: Mapping[Sym, int]) -> list[Array]:
    """What a block adds to ``gap``, as far as it matters for the sign of the whole."""
    parts = _own(gap, known, env)
    if parts is None:
        return [known[sym] for sym in symbols(gap) & known.keys()]
    own, rest = parts
    low, high = _range(rest, env)
    if low == -np.inf or high == np.inf:
        return [own]
    return [np.clip(own, -int(high) - 1, -int(low))]


def _own(total: Int, known: Mapping[Sym, Array], env: Mapping[Sym, int]) -> tuple[Array, Int] | None:
    """What each block adds to a sum, and the rest of the sum; None if they cannot be separated."""
    terms = total.terms if isinstance(total, Add) else ((total, 1),)
    constant = total.constant if isinstance(total, Add) else 0
    own: Any = np.full(len(next(iter(known.values()))), constant, np.int64)
    rest: Int = 0
    for term, times in terms:
        if symbols(term) <= known.keys() | env.keys():
            own = own + times * np.asarray(evaluate(term, {**env, **known}))
        elif symbols(term) & known.keys():
            return None
        else:
            rest = add(rest, mul(term, times))
    return own, rest


def _range(value: Int, env: Mapping[Sym, int]) -> tuple[float, float]:
    """The range of an integer over loops and coordinates, for these sizes."""
    fixed: dict[Sym, Int] = {}
    for sym in symbols(value):
        stop = None if sym.stop is None else substitute(sym.stop, env)
        if sym not in env and isinstance(stop, int):
            fixed[sym] = Sym(sym.name, sym.low, max(stop - 1, sym.low), sym.divisor)
    return bounds(substitute(value, {**env, **fixed}))
