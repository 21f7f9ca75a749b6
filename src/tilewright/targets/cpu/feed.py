"""Operands of the micro-kernels in shared memory: widened, and laid out as rows of A and panels of B.

A fragment that a copy fills and an MMA reads becomes a shared tensor, because no registers can hold it.  A
shared tensor that an MMA reads gets a new layout if no other operation observes its addresses.  Otherwise it
is copied to a tensor of its own before the multiply.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from tilewright.dtypes import DType, boolean, holds, i8
from tilewright.ir.builder import make
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy, FragmentOp, Mma, Op, Reshape, Shared
from tilewright.ir.types import TensorType, Value
from tilewright.passes.relayout import relayout_shared, uses
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.symbolic.expr import add, expand, floordiv, mod, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.arch import adds_groups
from tilewright.targets.cpu.join import join_multiplies
from tilewright.targets.cpu.linear import panel_view, panels, row_view
from tilewright.targets.cpu.sequential import whole
from tilewright.threads.distribution import Distribution
from tilewright.views.questions import stride
from tilewright.views.transforms import Merge, Permute, Slice, Tile, Transform, Unmerge
from tilewright.views.view import View

# ----------------------------------------------------------------
#
# Coordinates of an operand's view that are its rows and its depth.


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of a view over the whole buffer: its value in the buffer's coordinates, and its extent."""

    value: Int
    extent: int


@dataclass(frozen=True)
class OperandAxes:
    """The coordinates of a buffer, sorted by what they are for a multiply.

    Args:
        lead: those that choose one of several operands, such as a stage.
        row: row of A or column of B.
        depth: along K.
    """

    lead: tuple[Coordinate, ...]
    row: Coordinate
    depth: Coordinate

    def row_dimension(self, shared: Shared) -> int | None:
        """The buffer's dimension that alone is the row, counted from the end; None if there is no such."""
        coords = shared.view.coords
        found = self.row.value
        return coords.index(found) - len(coords) if isinstance(found, Sym) and found in coords else None


def operand_axes(shared: Shared, operand: Value, using: Iterable[Op]) -> OperandAxes | None:
    """Follow the views from a shared tensor to an operand.

    A box of a dimension counts as the dimension: the operands that a tensor holds side by side lie as one.

    Args:
        shared: defines the tensor.
        operand: a view of it, of rank 2.
        using: the operations that name it, with all of its views.

    Returns:
        None where a view does more than sort, split, join and choose coordinates.
    """
    chain: list[Transform] = []
    made = {op.result: op for op in using if isinstance(op, Reshape)}
    while operand is not shared.result:
        chain.append(made[operand].transform)
        operand = made[operand].source
    axes: list[Coordinate] = []
    for coord, extent in zip(shared.view.coords, shared.view.shape, strict=True):
        if not isinstance(extent, int):
            return None
        axes.append(Coordinate(coord, extent))
    lead: list[Coordinate] = []
    for transform in reversed(chain):
        followed = _follow(transform, axes, lead)
        if followed is None:
            return None
        axes = followed
    return OperandAxes(tuple(lead), axes[0], axes[1]) if len(axes) == 2 else None


def _follow(transform: Transform, axes: list[Coordinate], lead: list[Coordinate]) -> list[Coordinate] | None:
    """The axes after one more view; what it drops goes to ``lead``."""
    match transform:
        case Permute():
            return [axes[dim] for dim in transform.order]
        case Merge():
            end = transform.dim + transform.count
            return [*axes[: transform.dim], _joined(axes[transform.dim : end]), *axes[end:]]
        case Unmerge():
            parts = _split(axes[transform.dim], transform.lengths)
            return None if parts is None else [*axes[: transform.dim], *parts, *axes[transform.dim + 1 :]]
        case Slice():
            kept = [part is None or isinstance(part, tuple) for part in transform.at]
            lead += [axis for axis, keep in zip(axes, kept, strict=True) if not keep]
            return [axis for axis, keep in zip(axes, kept, strict=True) if keep]
        case Tile():
            return axes
        case _:
            return None


def _joined(axes: list[Coordinate]) -> Coordinate:
    whole = axes[0]
    for axis in axes[1:]:
        whole = Coordinate(add(mul(whole.value, axis.extent), axis.value), whole.extent * axis.extent)
    return whole


def _split(axis: Coordinate, lengths: tuple[Int, ...]) -> list[Coordinate] | None:
    parts: list[Coordinate] = []
    rest = axis.value
    for length in reversed(lengths[1:]):
        if not isinstance(length, int):
            return None
        parts.append(Coordinate(mod(rest, length), length))
        rest = floordiv(rest, length)
    inner = math.prod(part.extent for part in parts)
    return None if axis.extent % inner else [Coordinate(rest, axis.extent // inner), *reversed(parts)]


# ---------------------------------------------------------------- the pass


CACHE_LINE_BYTES = 64
# Rows whose distance is a power of two meet in few sets of the cache; one more line sets them apart.
CROWDED_BYTES = 512


def feed_micro_kernels(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Every operand of every `Mma` in the dtype and layout that micro-kernels read.

    Returns:
        The kernel, and a note for each tensor that changed.
    """
    chosen = _only_multiplied(kernel)
    kernel, placed = _place(kernel, chosen)
    kernel, joined = join_multiplies(kernel, chosen)
    kernel, widened = _widen(kernel)
    kernel, moved = relayout_shared(kernel, _layout)
    kernel, packed = _pack(kernel)
    return kernel, (*placed, *joined, *widened, *moved, *packed)


# ---------------------------------------------------------------- fragments


def _only_multiplied(kernel: Kernel) -> dict[str, FragmentOp]:
    """The fragments that are filled by copies alone and read by multiplies alone, by name."""
    found = {op.result.name: op for op in kernel.walk() if isinstance(op, FragmentOp) and op.fill is None}
    multiplied: set[str] = set()
    for op in kernel.walk():
        fine = {op.target} if isinstance(op, Copy) and op.source.dtype == op.target.dtype else set()
        if isinstance(op, Mma):
            fine = {op.a, op.b} - {op.c}
            multiplied.update(value.name for value in fine)
        for value in set(op.operands) - fine:
            found.pop(value.name, None)
    return {name: op for name, op in found.items() if name in multiplied}


def _place(kernel: Kernel, chosen: Mapping[str, FragmentOp]) -> tuple[Kernel, tuple[str, ...]]:
    """Operands in fragments become shared tensors: what fills them writes what multiplies read."""

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if isinstance(op, FragmentOp) and op.result.name in chosen:
            shape = op.distribution.shape
            view = View.strided(shape, (shape[1], 1))
            name = op.result.name
            return (make(Shared, name, op.location, dtype=op.dtype, view=view, elems=view.elems, align=128),)
        if isinstance(op, Copy) and op.target.name in chosen:
            return (replace(op, distribution=_spread(op.source, chosen[op.target.name].distribution.shape)),)
        return None

    notes = tuple(f"{name} lies as its multiplies read it" for name in chosen)
    return (rewrite_kernel(kernel, change) if chosen else kernel), notes


def _spread(source: Value, shape: tuple[int, ...]) -> Distribution | None:
    """The distribution that a copy of a source needs; None if the source has its own."""
    kind = source.type
    return whole(shape) if isinstance(kind, TensorType) and kind.distribution is None else None


# ---------------------------------------------------------------- widening


def _multiplies(using: Iterable[Op]) -> list[Mma]:
    return [op for op in using if isinstance(op, Mma)]


def _widened_dtype(kernel: Kernel, op: Shared) -> DType | None:
    """The wider dtype that a shared tensor may hold its elements in: none was rounded when it was written."""
    using = uses(kernel, op)
    wanted = {mma.mma.atom.a_dtype for mma in _multiplies(using)}
    if len(wanted) != 1 or wanted == {op.dtype}:
        return None
    written = [o for o in using if isinstance(o, Copy) and o.target.buffer is op.result]
    kinds = {copy.source.dtype for copy in written} - {boolean}  # every number holds 0 and 1
    return wanted.pop() if all(holds(op.dtype, kind) for kind in kinds) else None


def _widen(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    chosen = {
        op.result.name: wider
        for op in kernel.walk()
        if isinstance(op, Shared) and (wider := _widened_dtype(kernel, op)) is not None
    }

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Shared) or op.result.name not in chosen:
            return None
        name, wider = op.result.name, chosen[op.result.name]
        return (make(Shared, name, op.location, dtype=wider, view=op.view, elems=op.elems, align=op.align),)

    notes = tuple(f"{name} holds its elements as {wider}, exactly" for name, wider in chosen.items())
    return (rewrite_kernel(kernel, change) if chosen else kernel), notes


# ---------------------------------------------------------------- layouts


def _layout(op: Shared, using: tuple[Op, ...]) -> View | None:
    """The layout that the multiplies using a shared tensor want; None if they want none or disagree."""
    wanted = {
        _operand_layout(op, mma, is_a, using)
        for mma in _multiplies(using)
        for is_a, operand in ((True, mma.a), (False, mma.b))
        if operand.buffer is op.result
    }
    return wanted.pop() if len(wanted) == 1 else None


def _operand_layout(op: Shared, mma: Mma, is_a: bool, using: tuple[Op, ...]) -> View | None:
    rows, columns, _ = mma.mma.atom.shape
    axes = operand_axes(op, mma.a if is_a else mma.b, using)
    if axes is None:
        return None
    ordered = (*axes.lead, axes.row, axes.depth)
    shape, depth = tuple(axis.extent for axis in ordered), axes.depth.extent
    if is_a and (adds_groups(mma.mma.atom) or not _runs_along_rows(op.result, axes.row_dimension(op), using)):
        target = row_view(shape, _pitch(depth, op.dtype))
    elif axes.row.extent % (rows if is_a else columns):
        return None
    else:
        target = panel_view(shape, rows if is_a else columns)
    # From the order that multiplies want back to the tensor's own coordinates.
    old = dict(zip(target.coords, (axis.value for axis in ordered), strict=True))
    offset = expand(substitute(target.offset, old))
    return op.view if offset == op.view.offset else View(op.view.shape, offset, target.elems)


def _pitch(depth: int, dtype: DType) -> int:
    """The distance of two rows."""
    if depth * dtype.bytes % CROWDED_BYTES:
        return depth
    return depth + CACHE_LINE_BYTES // dtype.bytes


def _runs_along_rows(shared: Value, row: int | None, using: tuple[Op, ...]) -> bool:
    """Whether a tensor's sources are contiguous along its rows, not along k.

    Args:
        shared: the tensor.
        row: the dimension of its rows, from the end.
        using: the operations that name it.
    """
    sources = [op.source for op in using if isinstance(op, Copy) and op.target.buffer is shared]
    views = [value.type.view for value in sources if isinstance(value.type, TensorType)]
    if row is None or not views:
        return False
    return all(view.rank >= -row and stride(view, row) == 1 for view in views)


# ---------------------------------------------------------------- packing


def fits(value: Value, unit: int, dtype: DType, contiguous: bool) -> bool:
    """Whether a micro-kernel can read an operand where it lies."""
    if not isinstance(value.type, TensorType) or value.dtype != dtype:
        return False
    found = panels(value.type.view, unit)
    if found is None or (contiguous and found.row_stride != 1):
        return False
    return contiguous or dtype != i8 or found.k_stride == 1


def _pack(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    notes: list[str] = []

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Mma):
            return None
        ops: list[Op] = []
        rows, columns, _ = op.mma.atom.shape
        operands = []
        for value, unit, contiguous in ((op.a, rows, False), (op.b, columns, True)):
            operands.append(value)
            if not fits(value, unit, op.mma.atom.a_dtype, contiguous):
                by_rows = adds_groups(op.mma.atom) and not contiguous
                operands[-1] = _packed(op, value, unit, rewriter, ops, by_rows=by_rows)
                notes.append(f"{value} is packed into {operands[-1]} before it is multiplied")
        return (*ops, replace(op, a=operands[0], b=operands[1])) if ops else None

    return rewrite_kernel(kernel, change), tuple(notes)


def _packed(op: Mma, value: Value, unit: int, rewriter: Rewriter, ops: list[Op], *, by_rows: bool) -> Value:
    kind = value.type
    shape = kind.shape if isinstance(kind, TensorType) else value.fragment.shape
    extents = tuple(extent for extent in shape if isinstance(extent, int))
    view = row_view(extents, extents[1]) if by_rows else panel_view(extents, unit)
    name = f"{value.buffer.name}_panels"
    elems = extents[0] * extents[1]
    shared = rewriter.define(
        Shared, name, op.location, dtype=op.mma.atom.a_dtype, view=view, elems=elems, align=128
    )
    spread = None if value.is_fragment else whole(extents)
    ops += [shared, Copy(value, shared.result, spread, location=op.location)]
    return shared.result
