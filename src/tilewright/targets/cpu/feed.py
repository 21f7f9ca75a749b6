"""Operands of the micro-kernels in shared memory: widened, and laid out as rows of A and panels of B.

A fragment that a copy fills and an MMA reads becomes a shared tensor, because no registers can hold it.  A
shared tensor that an MMA reads gets a new layout if no other operation observes its addresses.  Otherwise it
is copied to a second tensor before the multiply.

Consecutive multiplies of slices of K are merged into one first.  A micro-kernel loads and stores its part of
the accumulator once per call, so a deeper multiply costs less.  Slices in separate tensors that only copies
and these multiplies use become boxes of one tensor.  The order of the additions does not change.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tilewright.dtypes import DType, boolean, holds, i8
from tilewright.ir.builder import make
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Copy, FragmentOp, Mma, Op, Reshape, Shared
from tilewright.ir.types import TensorType, Value
from tilewright.passes.expand_mma import depth_of
from tilewright.passes.relayout import relayout_shared, uses
from tilewright.passes.rewrite import Rewriter, names_of, rewrite_kernel
from tilewright.symbolic.expr import add, expand, floordiv, mod, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.arch import adds_along_k, adds_groups
from tilewright.targets.cpu.linear import panel_view, panels, place_of, row_view
from tilewright.targets.cpu.sequential import whole
from tilewright.views.questions import stride
from tilewright.views.transforms import Merge, Permute, Slice, Tile, Transform, Unmerge
from tilewright.views.view import View

MOST_DEPTH = 256
"""Largest depth of a joined multiply.  Deeper ones gain nothing, and panels leave the first-level cache."""


@dataclass(frozen=True)
class _Group:
    """Multiplies that can become one.

    Args:
        members: the multiplies, in program order.
        at: the member in whose place the joined multiply stands.
    """

    members: tuple[Mma, ...]
    at: Mma

    @property
    def sides(self) -> tuple[tuple[Value, ...], tuple[Value, ...]]:
        """The slices of A and those of B."""
        return tuple(op.a for op in self.members), tuple(op.b for op in self.members)


def join_multiplies(kernel: Kernel, slices: Iterable[str]) -> tuple[Kernel, tuple[str, ...]]:
    """Join multiplies of successive slices of K.

    Args:
        kernel: a kernel with one thread.
        slices: names of shared tensors that only whole copies and multiplies use.

    Returns:
        The kernel, and a note for each joined tensor.
    """
    held = {op.result: op for op in kernel.walk() if isinstance(op, Shared) and op.result.name in set(slices)}
    groups = [group for group in _groups(kernel.body, held) if len(group.members) > 1]
    together = _together(kernel, groups)
    groups = [group for group in groups if all(side in together for side in group.sides)]
    if not groups:
        return kernel, ()
    names = names_of(kernel)
    made: dict[tuple[Value, ...], Shared] = {}
    for side in dict.fromkeys(side for group in groups for side in group.sides):
        first, name = held[side[0]], names.unique(f"{side[0]}_slices")
        shape = (first.view.shape[0], sum(map(depth_of, side)))
        view = View.strided(shape, (shape[1], 1))
        kept: dict[str, Any] = {"dtype": first.dtype, "view": view, "elems": view.elems, "align": first.align}
        made[side] = make(Shared, name, first.location, **kept)
    joined = replace(kernel, body=_joined(kernel.body, groups, made))
    notes = [f"{', '.join(map(str, side))} lie side by side in {op.result}" for side, op in made.items()]
    return rewrite_kernel(joined, _boxes(made)), tuple(notes)


# ---------------------------------------------------------------- finding


def _groups(block: Block, held: Mapping[Value, Shared]) -> Iterator[_Group]:
    """Yield the longest runs of multiplies in each block that can all move to the place of one of them."""
    group: _Group | None = None
    for op in block.ops:
        for region in op.regions:
            yield from _groups(region, held)
        if isinstance(op, Mma) and op.a in held and op.b in held:
            longer: _Group | None = None
            if group is not None:
                first, members = group.members[0], (*group.members, op)
                values = [value for one in members for value in (one.a, one.b)]
                depth = sum(depth_of(one.a) for one in members)
                alike = (op.c, op.mma) == (first.c, first.mma) and len(set(values)) == len(values)
                if alike and depth <= MOST_DEPTH:
                    places = (at for at in members if _can_meet(members, at, block))
                    longer = next((_Group(members, at) for at in places), None)
                if longer is None:
                    yield group
            group = longer or _Group((op,), op)
    if group is not None:
        yield group


def _can_meet(members: Sequence[Mma], at: Mma, block: Block) -> bool:
    """Whether all members can move to the place of the member ``at``."""
    place = place_of(block.ops, at)
    for member in members:
        low, high = sorted((place_of(block.ops, member), place))
        between = [op for op in block.ops[low + 1 : high] if not any(op is other for other in members)]
        named = {value.buffer for op in Block(tuple(between)).walk() for value in op.operands}
        written = {value.buffer for op in Block(tuple(between)).walk() for value in op.written}
        if member.c in named or member.a in written or member.b in written:
            return False
    return True


def _together(kernel: Kernel, groups: Sequence[_Group]) -> list[tuple[Value, ...]]:
    """Return the slices that can share a tensor: defined in one block, and each used once in one group."""
    sides = list(dict.fromkeys(side for group in groups for side in group.sides))
    blocks = [kernel.body, *(region for op in kernel.walk() for region in op.regions)]
    homes = {value: at for at, block in enumerate(blocks) for op in block.ops for value in op.results}
    seen = [value for side in sides for value in side]
    return [
        side for side in sides if len({homes[v] for v in side}) == 1 and all(seen.count(v) == 1 for v in side)
    ]


# ---------------------------------------------------------------- rewriting


def _joined(block: Block, groups: Sequence[_Group], made: Mapping[tuple[Value, ...], Shared]) -> Block:
    """Put one multiply in the place of each group."""
    ops: list[Op] = []
    for op in block.ops:
        group = next((group for group in groups if any(op is member for member in group.members)), None)
        if group is None:
            ops.append(op.with_regions(lambda region: _joined(region, groups, made)))
        elif op is group.at:
            a, b = (made[side].result for side in group.sides)
            ops.append(replace(group.at, a=a, b=b))
    return Block(tuple(ops))


def _boxes(made: Mapping[tuple[Value, ...], Shared]) -> Callable[[Op, Rewriter], tuple[Op, ...] | None]:
    """Return the rewrite that makes each slice a box of the joined tensor, defined before the first slice."""
    wholes = {value.name: (side, op) for side, op in made.items() for value in side}
    defined: set[str] = set()

    def change(op: Op, rewriter: Rewriter) -> tuple[Op, ...] | None:
        if not isinstance(op, Shared) or op.result.name not in wholes:
            return None
        side, whole = wholes[op.result.name]
        start = sum(map(depth_of, side[: [v.name for v in side].index(op.result.name)]))
        box = Slice((None, (start, start + depth_of(op.result))))
        view = make(Reshape, op.result.name, op.location, source=whole.result, transform=box)
        first = whole.result.name not in defined
        defined.add(whole.result.name)
        return (whole, view) if first else (view,)

    return change


# ----------------------------------------------------------------
#
# Coordinates of a buffer that are the rows and the depth of an operand.


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of a view over the whole buffer: its value in the buffer's coordinates, and its extent."""

    value: Int
    extent: int


@dataclass(frozen=True)
class OperandAxes:
    """The coordinates of a buffer by their meaning for a multiply.

    Args:
        lead: the coordinates that choose one of several operands, such as a stage.
        row: the row of A, or the column of B.
        depth: the coordinate along K.
    """

    lead: tuple[Coordinate, ...]
    row: Coordinate
    depth: Coordinate

    def row_dimension(self, shared: Shared) -> int | None:
        """Return the buffer's dimension that equals the row, counted from the end; None if none does."""
        coords = shared.view.coords
        found = self.row.value
        return coords.index(found) - len(coords) if isinstance(found, Sym) and found in coords else None


def operand_axes(shared: Shared, operand: Value, using: Iterable[Op]) -> OperandAxes | None:
    """Follow the views from a shared tensor to an operand.

    A box of a dimension counts as the whole dimension: operands that are boxes of one tensor share a layout.

    Args:
        shared: defines the tensor.
        operand: a view of the tensor, of rank 2.
        using: the operations that name the tensor, with all of its views.

    Returns:
        None if a view does more than permute, split, merge and slice coordinates.
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
        match transform:
            case Permute():
                axes = [axes[dim] for dim in transform.order]
            case Merge():
                first, end = transform.dim, transform.dim + transform.count
                merged = axes[first]
                for axis in axes[first + 1 : end]:
                    value = add(mul(merged.value, axis.extent), axis.value)
                    merged = Coordinate(value, merged.extent * axis.extent)
                axes[first:end] = [merged]
            case Unmerge():
                parts = _split(axes[transform.dim], transform.lengths)
                if parts is None:
                    return None
                axes[transform.dim : transform.dim + 1] = parts
            case Slice():
                kept = [part is None or isinstance(part, tuple) for part in transform.at]
                lead += [axis for axis, keep in zip(axes, kept, strict=True) if not keep]
                axes = [axis for axis, keep in zip(axes, kept, strict=True) if keep]
            case Tile():
                pass
            case _:
                return None
    return OperandAxes(tuple(lead), axes[0], axes[1]) if len(axes) == 2 else None


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
# Rows at a distance of a power of two share few cache sets; one more cache line per row avoids that.
CROWDED_BYTES = 512


def feed_micro_kernels(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Give every operand of every `Mma` the dtype and layout that micro-kernels read.

    Returns:
        The kernel, and a note for each tensor that changed.
    """
    kernel, placed = _place(kernel)
    kernel, joined = join_multiplies(kernel, placed)
    kernel, widened = _widen(kernel)
    kernel, moved = relayout_shared(kernel, _layout)
    kernel, packed = _pack(kernel)
    kernel = _turn(kernel)
    notes = (f"{name} has the layout in which its products read it" for name in placed)
    return kernel, (*notes, *joined, *widened, *moved, *packed)


# ---------------------------------------------------------------- fragments


def _place(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Make operands in fragments shared tensors, so that copies fill what multiplies read.

    These are the fragments that only copies fill and only multiplies read.

    Returns:
        The kernel, and their names.
    """
    found = {op.result.name: op for op in kernel.walk() if isinstance(op, FragmentOp) and op.fill is None}
    multiplied: set[str] = set()
    for op in kernel.walk():
        fine = {op.target} if isinstance(op, Copy) and op.source.dtype == op.target.dtype else set()
        if isinstance(op, Mma):
            fine = {op.a, op.b} - {op.c}
            multiplied.update(value.name for value in fine)
        for value in set(op.operands) - fine:
            found.pop(value.name, None)
    chosen = {name: op for name, op in found.items() if name in multiplied}

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if isinstance(op, FragmentOp) and op.result.name in chosen:
            shape = op.distribution.shape
            view = View.strided(shape, (shape[1], 1))
            name = op.result.name
            return (make(Shared, name, op.location, dtype=op.dtype, view=view, elems=view.elems, align=128),)
        if isinstance(op, Copy) and op.target.name in chosen:
            kind, shape = op.source.type, chosen[op.target.name].distribution.shape
            has_none = isinstance(kind, TensorType) and kind.distribution is None
            return (replace(op, distribution=whole(shape) if has_none else None),)
        return None

    return (rewrite_kernel(kernel, change) if chosen else kernel), tuple(chosen)


# ---------------------------------------------------------------- widening


def _multiplies(using: Iterable[Op]) -> list[Mma]:
    return [op for op in using if isinstance(op, Mma)]


def _widen(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Store operands in the dtype that multiplies read, if no element was rounded when it was written."""
    chosen: dict[str, DType] = {}
    for shared in kernel.walk():
        if isinstance(shared, Shared):
            using = uses(kernel, shared)
            wanted = {mma.mma.atom.a_dtype for mma in _multiplies(using)}
            written = [o for o in using if isinstance(o, Copy) and o.target.buffer is shared.result]
            kinds = {copy.source.dtype for copy in written} - {boolean}  # every dtype represents 0 and 1
            is_exact = all(holds(shared.dtype, kind) for kind in kinds)
            if is_exact and len(wanted) == 1 and wanted != {shared.dtype}:
                chosen[shared.result.name] = wanted.pop()

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Shared) or op.result.name not in chosen:
            return None
        name, wider = op.result.name, chosen[op.result.name]
        return (make(Shared, name, op.location, dtype=wider, view=op.view, elems=op.elems, align=op.align),)

    notes = tuple(f"{name} holds its elements as {wider}, exactly" for name, wider in chosen.items())
    return (rewrite_kernel(kernel, change) if chosen else kernel), notes


# ---------------------------------------------------------------- layouts


def _layout(op: Shared, using: tuple[Op, ...]) -> View | None:
    """Return the layout in which all multiplies read a shared tensor; None if they differ or none reads."""
    sources = [one.source for one in using if isinstance(one, Copy) and one.target.buffer is op.result]
    views = [value.type.view for value in sources if isinstance(value.type, TensorType)]
    wanted = {
        _operand_layout(op, mma, is_a, using, views)
        for mma in _multiplies(using)
        for is_a, operand in ((True, mma.a), (False, mma.b))
        if operand.buffer is op.result
    }
    return wanted.pop() if len(wanted) == 1 else None


def _operand_layout(
    op: Shared, mma: Mma, is_a: bool, using: tuple[Op, ...], sources: Sequence[View]
) -> View | None:
    """Return an operand's layout; A becomes panels if its sources are contiguous along M, else rows."""
    rows, columns, _ = mma.mma.atom.shape
    axes = operand_axes(op, mma.a if is_a else mma.b, using)
    if axes is None:
        return None
    ordered = (*axes.lead, axes.row, axes.depth)
    shape, depth = tuple(axis.extent for axis in ordered), axes.depth.extent
    row = axes.row_dimension(op)
    along_rows = (
        row is not None
        and bool(sources)
        and all(view.rank >= -row and stride(view, row) == 1 for view in sources)
    )
    needs_rows = adds_groups(mma.mma.atom) or adds_along_k(mma.mma.atom)
    if is_a and (needs_rows or not along_rows):
        is_crowded = depth * op.dtype.bytes % CROWDED_BYTES == 0
        target = row_view(shape, depth + CACHE_LINE_BYTES // op.dtype.bytes if is_crowded else depth)
    elif axes.row.extent % (rows if is_a else columns):
        return None
    else:
        target = panel_view(shape, rows if is_a else columns)
    # Express the offset in the tensor's own coordinates.
    old = dict(zip(target.coords, (axis.value for axis in ordered), strict=True))
    offset = expand(substitute(target.offset, old))
    return op.view if offset == op.view.offset else View(op.view.shape, offset, target.elems)


# ---------------------------------------------------------------- packing


def fits(value: Value, unit: int, dtype: DType, contiguous: bool) -> bool:
    """Whether a micro-kernel can read an operand without packing."""
    if not isinstance(value.type, TensorType) or value.dtype != dtype:
        return False
    found = panels(value.type.view, unit)
    if found is None or (contiguous and found.row_stride != 1):
        return False
    return contiguous or dtype != i8 or found.k_stride == 1


def _pack(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Copy operands whose layout does not fit to tensors that do, before the multiply."""
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


# ---------------------------------------------------------------- coordinates of copies


def _turn(kernel: Kernel) -> Kernel:
    """Transpose copies whose targets multiplies read transposed, so that they can copy panel by panel."""
    transpose = Permute((1, 0))
    operands: defaultdict[Value, set[View]] = defaultdict(set)
    for op in kernel.walk():
        for operand in (op.a, op.b) if isinstance(op, Mma) else ():
            operands[operand.buffer].add(operand.tensor.view)

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Copy) or not (op.source.is_tensor and op.target.is_tensor):
            return None
        view = op.target.tensor.view
        if view.rank != len(transpose.order) or operands.get(op.target.buffer) != {transpose.apply(view)}:
            return None
        source, target = (
            rewriter.define(Reshape, f"{value.name}_turned", op.location, source=value, transform=transpose)
            for value in (op.source, op.target)
        )
        shape = target.result.tensor.shape
        extents = tuple(extent for extent in shape if isinstance(extent, int))
        turned = replace(op, source=source.result, target=target.result, distribution=whole(extents))
        return source, target, turned

    return rewrite_kernel(kernel, change)
