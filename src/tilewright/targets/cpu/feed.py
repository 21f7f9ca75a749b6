"""Feeding the micro-kernels: operands in shared memory, widened, as rows of A and panels of B.

A shared tensor that a matrix multiply reads is re-laid out where nobody observes its addresses.  What
cannot be re-laid out, and every operand in a fragment, is copied to a tensor of its own before the multiply.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.dtypes import DType
from tilewright.ir.builder import make
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy, Mma, Op, Shared
from tilewright.ir.types import TensorType, Value
from tilewright.layout.view import View
from tilewright.passes.relayout import relayout_shared, uses
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.targets.cpu.linear import panel_view, panels, row_view, stride
from tilewright.targets.cpu.sequential import compute_dtype, whole

CACHE_LINE_BYTES = 64
# Rows whose distance is a power of two meet in few sets of the cache; one more line sets them apart.
CROWDED_BYTES = 512


def feed_micro_kernels(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Every operand of every `Mma` in the dtype and layout that micro-kernels read.

    Returns:
        The kernel, and a note for each tensor that changed.
    """
    kernel, widened = _widen(kernel)
    kernel, moved = relayout_shared(kernel, _layout)
    kernel, packed = _pack(kernel)
    return kernel, (*widened, *moved, *packed)


# ---------------------------------------------------------------- widening


def _multiplies(using: Iterable[Op]) -> list[Mma]:
    return [op for op in using if isinstance(op, Mma)]


def _widened_dtype(kernel: Kernel, op: Shared) -> DType | None:
    """The wider dtype that a shared tensor may hold its elements in: nothing else is ever written to it."""
    using = uses(kernel, op)
    wanted = {compute_dtype(mma) for mma in _multiplies(using)}
    if len(wanted) != 1 or wanted == {op.dtype}:
        return None
    written = [o for o in using if isinstance(o, Copy) and o.target.buffer is op.result]
    return wanted.pop() if all(copy.source.dtype == op.dtype for copy in written) else None


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
    shape = tuple(extent for extent in op.view.shape if isinstance(extent, int))
    wanted = {
        _operand_layout(shape, op.dtype, mma, is_a, _runs_along_rows(op.result, using))
        for mma in _multiplies(using)
        for is_a, operand in ((True, mma.a), (False, mma.b))
        if operand.buffer is op.result
    }
    return wanted.pop() if len(wanted) == 1 else None


def _operand_layout(
    shape: tuple[int, ...], dtype: DType, mma: Mma, is_a: bool, along_rows: bool
) -> View | None:
    rows, columns, _ = mma.mma.atom.shape
    operand = mma.a if is_a else mma.b
    if len(shape) < 2 or operand.tensor.shape != shape[-2:]:
        return None
    if is_a and not along_rows:
        return row_view(shape, _pitch(shape[-1], dtype))
    return panel_view(shape, rows if is_a else columns)


def _pitch(depth: int, dtype: DType) -> int:
    """The distance of two rows."""
    if depth * dtype.bytes % CROWDED_BYTES:
        return depth
    return depth + CACHE_LINE_BYTES // dtype.bytes


def _runs_along_rows(shared: Value, using: tuple[Op, ...]) -> bool:
    """Whether what is copied into a tensor is contiguous along its rows, not along k."""
    sources = [op.source for op in using if isinstance(op, Copy) and op.target.buffer is shared]
    views = [value.type.view for value in sources if isinstance(value.type, TensorType)]
    return bool(views) and all(view.rank >= 2 and stride(view.offset, view.coords[-2]) == 1 for view in views)


# ---------------------------------------------------------------- packing


def fits(value: Value, unit: int, dtype: DType, contiguous: bool) -> bool:
    """Whether a micro-kernel can read an operand where it lies."""
    if not isinstance(value.type, TensorType) or value.dtype != dtype:
        return False
    found = panels(value.type.view, unit)
    return found is not None and (found.row_stride == 1 or not contiguous)


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
            if not fits(value, unit, compute_dtype(op), contiguous):
                operands[-1] = _packed(op, value, unit, rewriter, ops)
                notes.append(f"{value} is packed into {operands[-1]} before it is multiplied")
        return (*ops, replace(op, a=operands[0], b=operands[1])) if ops else None

    return rewrite_kernel(kernel, change), tuple(notes)


def _packed(op: Mma, value: Value, unit: int, rewriter: Rewriter, ops: list[Op]) -> Value:
    kind = value.type
    shape = kind.shape if isinstance(kind, TensorType) else value.fragment.shape
    extents = tuple(extent for extent in shape if isinstance(extent, int))
    view = panel_view(extents, unit)
    name = f"{value.buffer.name}_panels"
    elems = extents[0] * extents[1]
    shared = rewriter.define(
        Shared, name, op.location, dtype=compute_dtype(op), view=view, elems=elems, align=128
    )
    spread = None if value.is_fragment else whole(extents)
    ops += [shared, Copy(value, shared.result, spread, location=op.location)]
    return shared.result
