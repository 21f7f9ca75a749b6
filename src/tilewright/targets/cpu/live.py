"""Needed extents of each multiply: rows and columns that reach memory, and nonzero products.

At a ragged edge a tile reaches past its tensor.  Rows and columns of an accumulator that no copy writes are
not computed, and products of two elements past the edge of K are 0.  Elements of operands that no multiply
needs are neither copied nor filled with zeros.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir.fragment_ops import ReduceOp
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Copy, Mma, Op, Redistribute
from tilewright.ir.types import TensorType, Value
from tilewright.symbolic.expr import ceil_div, mul
from tilewright.symbolic.nodes import TRUE, Int
from tilewright.symbolic.rebuilding import symbols
from tilewright.targets.cpu.linear import same_place
from tilewright.targets.cpu.loops import edges


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


def reach(kernel: Kernel) -> dict[tuple[Value, int], Int]:
    """Return, by fragment and dimension, the bound past which no coordinate reaches memory."""
    known = {p.sym for p in kernel.sizes} | {a.sym for a in kernel.grid} | {a.sym for a in kernel.cluster}
    # Families of fragments that exchange elements at equal coordinates.
    families: list[set[Value]] = []
    for op in kernel.walk():
        members = {v for v in (*op.operands, *op.results) if isinstance(v, Value) and v.is_fragment}
        if isinstance(op, Mma):
            members = {op.c}
        if members and not isinstance(op, Redistribute):
            touching = [family for family in families if family & members]
            families = [family for family in families if not family & members]
            families.append(members.union(*touching))
    found: dict[tuple[Value, int], Int] = {}
    for family in families:
        reaching = [limits for op in kernel.walk() if (limits := _reached(op, family)) is not None]
        for dim in (0, 1):
            extents = {
                value.fragment.shape[dim] for value in family if value.fragment.distribution.rank > dim
            }
            if len(extents - {1}) > 1:
                continue  # numbers and the bytes that they share: coordinates of different units
            bounds = {limits.get(dim) for limits in reaching}
            bound = bounds.pop() if len(bounds) == 1 else None
            if bound is not None and symbols(bound) <= known:
                found.update({(value, dim): bound for value in family})
    return found


def _reached(op: Op, family: set[Value]) -> dict[int, Int] | None:
    """The bounds within which an operation uses elements of a family elsewhere; None if it does not."""
    if isinstance(op, Copy) and op.source in family and isinstance(op.target.type, TensorType):
        return edges(op.target.type.view).upper
    if isinstance(op, ReduceOp | Redistribute) and op.source in family:
        return {}
    return {} if isinstance(op, Mma) and not family.isdisjoint((op.a, op.b)) else None


# ---------------------------------------------------------------- depth


def _zero_past(operand: Value, writers: Sequence[Op], before: Sequence[Op]) -> Int | None:
    """The bound in K past which an operand is 0, as its only copy has filled it."""
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
