"""Needed extents of each multiply: rows and columns that reach memory, and nonzero products.

At a ragged edge a tile reaches past its tensor.  Rows and columns of an accumulator that no copy writes are
not computed, and products of two elements past the edge of K are 0.  Elements of operands that no multiply
needs are neither copied nor filled with zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.fragment_ops import PrefixOp, ReduceOp
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Copy, Let, Mma, Op, Redistribute, Reshape, Shared
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import ceil_div, mul
from tilewright.symbolic.nodes import TRUE, Int
from tilewright.symbolic.rebuilding import symbols
from tilewright.targets.cpu.linear import same_place
from tilewright.targets.cpu.loops import edges

MATRIX = 2
"""Dimensions of an operand."""


@dataclass(frozen=True)
class NeededExtents:
    """Needed rows, columns and products of a multiply; None for all."""

    rows: Int | None = None
    columns: Int | None = None
    depth: Int | None = None


def needed(kernel: Kernel) -> Mapping[Op, NeededExtents]:
    """Return the needed extents of each multiply."""
    limits = reach(kernel)
    writers: defaultdict[Value, list[Op]] = defaultdict(list)
    for op in kernel.walk():
        for value in op.written:
            writers[value.buffer].append(op)
    found: dict[Op, NeededExtents] = {}
    for op, before in _multiplies(kernel.body, ()):
        # Products are 0 past the edge of K if that is the same for both operands.
        ends = {_zero_past(operand, writers[operand.buffer], before) for operand in (op.a, op.b)}
        depth = ends.pop() if len(ends) == 1 else None
        found[op] = NeededExtents(limits.get((op.c, 0)), limits.get((op.c, 1)), depth)
    return found


def read_of_copies(kernel: Kernel, extents: Mapping[Op, NeededExtents]) -> Mapping[Op, Mapping[int, Int]]:
    """Return, for copies that only feed multiplies, the bounds past which no multiply reads the target.

    Rows and columns are rounded up to whole micro-tiles.  If multiplies differ, there are no bounds.

    Args:
        kernel: the lowered kernel.
        extents: the result of `needed`.

    Returns:
        For each such copy, the bounds by dimension.
    """
    users: defaultdict[Value, list[Op]] = defaultdict(list)
    for op in kernel.walk():
        for value in op.read:
            users[value.buffer].append(op)
    found: dict[Op, Mapping[int, Int]] = {}
    for op in kernel.walk():
        if isinstance(op, Copy) and op.reduction is None and op.target.is_tensor:
            using = users[op.target.buffer]
            bounds = [_read(op.target, mma, extents[mma]) for mma in using if isinstance(mma, Mma)]
            if bounds and len(bounds) == len(using) and all(one == bounds[0] for one in bounds):
                found[op] = bounds[0]
    return found


def _read(target: Value, mma: Mma, extents: NeededExtents) -> dict[int, Int]:
    rows, columns, _ = mma.mma.atom.shape
    for operand, across, unit in ((mma.a, extents.rows, rows), (mma.b, extents.columns, columns)):
        if same_place(operand, target):
            bounds = {} if across is None else {0: mul(ceil_div(across, unit), unit)}
            return bounds if extents.depth is None else {**bounds, 1: extents.depth}
    return {}


def _multiplies(block: Block, before: Sequence[Op]) -> Iterator[tuple[Mma, tuple[Op, ...]]]:
    """Yield every multiply with the operations that always run before it."""
    done = list(before)
    for op in block.ops:
        if isinstance(op, Mma):
            yield op, tuple(done)
        for region in op.regions:
            yield from _multiplies(region, done)
        done.append(op)


# ---------------------------------------------------------------- rows and columns


Axis = tuple[Value, int]
"""A dimension of a fragment, or of an operand in shared memory."""


def reach(kernel: Kernel) -> dict[Axis, Int]:
    """Return, by fragment and dimension, the bound past which no coordinate reaches memory.

    An operation connects dimensions if an element of its result depends on elements of equal coordinates
    alone.  Connected dimensions have a bound if every element that leaves them is inside of this bound.
    Reductions, and products along K, need all coordinates.
    """
    known = {p.sym for p in kernel.sizes} | {a.sym for a in kernel.grid} | {a.sym for a in kernel.cluster}
    for op in kernel.body.ops:  # integers of the block, which come first
        if not isinstance(op, Let):
            break
        known.add(op.result)
    operands = _operands(kernel)
    families: list[set[Axis]] = []
    ends: defaultdict[Axis, set[Int | None]] = defaultdict(set)
    for op in kernel.walk():
        connected, leaving = _dimensions(op, operands)
        for members in connected:
            touching = [family for family in families if family & members]
            families = [family for family in families if not family & members]
            families.append(members.union(*touching))
        for axis, bound in leaving:
            ends[axis].add(bound)
    found: dict[Axis, Int] = {}
    for family in families:
        bounds = {bound for axis in family for bound in ends[axis]}
        bound = bounds.pop() if len(bounds) == 1 else None
        if bound is not None and symbols(bound) <= known:
            found.update({axis: bound for axis in family if axis[0].is_fragment})
    return found


def _operands(kernel: Kernel) -> set[Value]:
    """Return the shared tensors that only copies and multiplies use, all through equal views."""
    users: defaultdict[Value, list[tuple[Op, Value]]] = defaultdict(list)
    for op in kernel.walk():
        for value in () if isinstance(op, Shared | Reshape) else op.operands:
            if value.is_tensor and value.tensor.memory is Memory.SHARED:
                users[value.buffer].append((op, value))
    return {
        buffer
        for buffer, uses in users.items()
        if uses[0][1].tensor.view.rank == MATRIX
        and all(isinstance(op, Copy | Mma) and same_place(value, uses[0][1]) for op, value in uses)
    }


def _dimensions(op: Op, operands: set[Value]) -> tuple[list[set[Axis]], list[tuple[Axis, Int | None]]]:
    """Return the dimensions that an operation connects, and those that elements leave, with bounds."""

    def axes(value: Value) -> list[Axis]:
        if value.is_fragment:
            return [(value, dim) for dim in range(value.fragment.distribution.rank)]
        return [(value.buffer, dim) for dim in range(MATRIX)] if value.buffer in operands else []

    match op:
        case Reshape():  # the operations that use the view connect dimensions
            return [], []
        case Mma():
            a, b, (row, column) = axes(op.a), axes(op.b), axes(op.c)
            return [{row, *a[:1]}, {column, *b[:1]}], [(axis, None) for axis in (*a[1:], *b[1:])]
        case ReduceOp():
            pairs = zip(axes(op.source), axes(op.result), strict=True)
            return [{*pair} for dim, pair in enumerate(pairs) if dim != op.dim], [((op.source, op.dim), None)]
        case PrefixOp():
            pairs = zip(axes(op.source), axes(op.result), strict=True)
            starts = [] if op.before is None else axes(op.before)
            unbound: list[tuple[Axis, Int | None]] = [
                ((op.source, op.dim), None),
                *((axis, None) for axis in starts),
            ]
            return [{*pair} for dim, pair in enumerate(pairs) if dim != op.dim], unbound
        case Redistribute():
            return [], [(axis, None) for axis in axes(op.source)]
        case Copy() if not (axes(op.source) and axes(op.target)):
            upper = edges(op.target.tensor.view).upper if op.target.is_tensor else {}
            return [], [(axis, upper.get(axis[1])) for axis in axes(op.source)]
    connected: list[set[Axis]] = []
    leaving: list[tuple[Axis, Int | None]] = []
    values = [v for v in (*op.operands, *op.results) if isinstance(v, Value)]
    for dim in range(max((len(axes(value)) for value in values), default=0)):
        kinds = {
            axes(v)[dim]: v.fragment if v.is_fragment else v.tensor for v in values if len(axes(v)) > dim
        }
        met = {axis: kind.shape[dim] for axis, kind in kinds.items()}
        most = {extent for extent in met.values() if extent != 1} or {1}
        if len(most) == 1:
            connected.append({axis for axis, extent in met.items() if extent in most})
        # A broadcast dimension bounds nothing, nor do coordinates in other units (packed numbers and bytes).
        leaving += [(axis, None) for axis, extent in met.items() if len(most) > 1 or extent not in most]
    return connected, leaving


# ---------------------------------------------------------------- depth


def _zero_past(operand: Value, writers: Sequence[Op], before: Sequence[Op]) -> Int | None:
    """Return the bound in K past which an operand is 0, because its only copy fills it with zeros there."""
    if len(writers) != 1 or not any(op is writers[0] for op in before):
        return None
    copy = writers[0]
    if (
        not isinstance(copy, Copy)
        or copy.other != 0
        or not same_place(copy.target, operand)
        or operand.tensor.view.valid != TRUE
    ):
        return None
    source = copy.source.type
    return edges(source.view).upper.get(1) if isinstance(source, TensorType) else None
