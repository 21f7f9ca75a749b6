"""Legality rules of roles, asynchronous MMA and bulk copies.

A bulk copy needs a box that a tensor map can describe, and a tile in shared memory with the same layout.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tilewright.arch import BULK, REFERENCE
from tilewright.errors import Violation
from tilewright.ir.async_ops import MmaAsync, Role
from tilewright.ir.copies import MAP_WORDS, Copy, is_bulk
from tilewright.ir.kernel import Kernel, TensorMap
from tilewright.ir.mma import REGISTERS
from tilewright.ir.op import Op
from tilewright.ir.ops import Mma
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.nodes import Sym, bounds, divisor
from tilewright.symbolic.rebuilding import elements, evaluate, substitute, symbols
from tilewright.views.boxes import ROW_BYTES, Box, NoBox, find_box, swizzled_order
from tilewright.views.questions import stride
from tilewright.views.view import View


@dataclass(frozen=True)
class SwizzledRows:
    """Shared-memory layout of a tile: panels of 128-byte rows with the 128-byte swizzle.

    Args:
        along: the dimension along a row of 128 bytes; the other dimension counts the rows.
        elems: elements from one panel to the next; 0 for a single panel.
    """

    along: int
    elems: int


def swizzled_rows(view: View, element_bytes: int) -> SwizzledRows | None:
    """Return the panels of a view, starting at a 1024-byte boundary; None if it does not have this form.

    With ``row``, ``column`` the coordinates across and along the rows of ``width`` elements, element
    (row, column) must lie at byte ``128*row + (column % width * bytes ^ 16*(row % 8))`` of panel
    ``column // width``.
    """
    if view.rank != 2 or not view.is_static or elements(view.offset):
        return None
    base = substitute(view.offset, dict.fromkeys(view.coords, 0))
    if divisor(base) * element_bytes % (8 * ROW_BYTES):
        return None
    outer: dict[Sym, int] = dict.fromkeys(symbols(base), 0)
    extents = [int(extent) for extent in view.shape if isinstance(extent, int)]
    at = np.ogrid[: extents[0], : extents[1]]
    found = evaluate(view.offset, {**dict(zip(view.coords, at, strict=True)), **outer})
    found = (found - evaluate(base, outer)) * element_bytes
    width = ROW_BYTES // element_bytes
    for along in (1, 0):
        row, column = at[1 - along], at[along]
        second = [0, 0]
        second[along] = width
        panel = int(found[tuple(second)]) if extents[along] > width else 0
        swizzled = (column % width * element_bytes) ^ (16 * (row % 8))
        if (
            panel % (8 * ROW_BYTES) == 0
            and (found == column // width * panel + ROW_BYTES * row + swizzled).all()
        ):
            return SwizzledRows(along, panel // element_bytes)
    return None


def verify_role(op: Role) -> Iterator[Violation]:
    """Yield violations of the rules of `Role`."""
    if op.count < 1 or op.first < 0:
        yield op.violation("role", f"{op.count} warps from warp {op.first}", "at least one warp")
    if op.groups < 1:
        yield op.violation("role", f"{op.groups} groups", "at least one group")
    if op.registers is None:
        return
    unit, (least, most), warps = REFERENCE.register_unit, REFERENCE.role_registers, REFERENCE.role_warps
    if op.registers % unit or not least <= op.registers <= most:
        nearest = min(max(round(op.registers / unit) * unit, least), most)
        legal = f"a multiple of {unit} from {least} to {most}"
        yield op.violation("registers", f"{op.registers} registers; {legal}", str(nearest))
    if op.first % warps or op.count % warps:
        text = f"registers are set for whole warpgroups, not for {op.count} warps from warp {op.first}"
        yield op.violation("registers", text, f"roles of {warps} warps each")


def verify_mma_async(op: MmaAsync | Mma) -> Iterator[Violation]:
    """Yield violations of the rules of `MmaAsync`."""
    m, n, _ = op.mma.tile
    atom = op.mma.atom
    if not atom.asynchronous:
        text = f"{atom} of {atom.lanes} lanes is synchronous"
        yield op.violation("mma_async", text, "tw.mma, or an atom of tw.atoms.wgmma")
        return
    yield from verify_kinds(op)
    if not op.a.is_fragment or REGISTERS not in atom.a_places:
        yield from _verify_operand(op, "A", op.a, m, atom.shape[0])
    elif op.a.fragment.distribution != op.mma.a(op.a.fragment.shape[1]):
        yield op.violation("distribution", f"fragment {op.a} is not distributed as operand A of {atom}")
    yield from _verify_operand(op, "B", op.b, n, atom.shape[1])


def verify_kinds(op: MmaAsync | Mma) -> Iterator[Violation]:
    """Check the dtypes of a multiply, the map of its accumulator, and the sign of the products."""
    mma, atom = op.mma, op.mma.atom
    if op.negative and not atom.c_dtype.is_float:
        # Subtraction negates an operand, and its negative may not exist.
        text = f"negative=True: products of {atom.a_dtype}, whose lowest number has no negative"
        yield op.violation("mma sign", text, "an accumulator of its own, which is subtracted at the end")
    for label, value, dtype in (("A", op.a, atom.a_dtype), ("B", op.b, atom.b_dtype)):
        if value.dtype != dtype:
            text = f"{atom} takes {label} of {dtype}, {value} is {value.dtype}"
            yield op.violation("dtype", text, f"{value} of {dtype}, or an atom for {value.dtype}")
    if not op.c.is_fragment or op.c.fragment.distribution != mma.c():
        text = f"{op.c} is not distributed as the {mma.tile[:2]} accumulator of {atom} with warps {mma.warps}"
        nearest = "tw.accumulator(mma), with the same mma"
        yield op.violation("distribution", f"{text} and repeats {mma.repeats}", nearest)
    elif op.c.dtype != atom.c_dtype:
        text = f"{atom} accumulates in {atom.c_dtype}, {op.c} is {op.c.dtype}"
        yield op.violation("dtype", text, "tw.accumulator(mma)")


def _verify_operand(
    op: MmaAsync | Mma, label: str, value: Value, rows: int, unit: int
) -> Iterator[Violation]:
    """Yield violations of an operand in shared memory; one instruction takes ``unit`` of its rows."""
    kind, depth = value.type, op.mma.atom.shape[2]
    own = isinstance(kind, TensorType) and kind.memory is Memory.SHARED and kind.block is None
    if not isinstance(kind, TensorType) or not own:
        text = f"{label} = {value} does not lie in the block's own shared memory"
        yield op.violation("mma operand", text, "tw.shared")
        return
    width = ROW_BYTES // kind.dtype.bytes
    if len(kind.shape) != 2 or kind.shape[0] != rows or not isinstance(kind.shape[1], int):
        yield op.violation("mma shape", f"{label} = {value} has shape {kind.shape}", f"({rows}, {width})")
        return
    lies = swizzled_rows(kind.view, kind.dtype.bytes)
    if kind.shape[1] % depth:
        nearest = -(-kind.shape[1] // depth) * depth
        yield op.violation("mma shape", f"{label} = {value} has depth {kind.shape[1]}", f"{nearest}")
    elif lies is None:
        text = f"{label} = {value} is not laid out in rows of 128 bytes under the 128-byte swizzle"
        near = f"tw.shared((..., {rows}, {width}), {kind.dtype}, swizzle=128)"
        yield op.violation("mma operand", text, near)
    elif lies.along == 0 and "mn" not in op.mma.atom.majors:
        yield op.violation(
            "mma operand",
            f"{label} = {value} runs along {'MN'[label == 'B']} in shared memory; {op.mma.atom} takes "
            "operands that run along K",
            f"a shared tensor of rows of {width} along K, into which the transpose is copied",
        )
    elif lies.along == 0 and unit < rows and unit % width:
        rule = f"{op.mma.atom} takes {unit} of them at a time"
        text = f"{label} = {value} runs along {'MN'[label == 'B']} in rows of {width}; {rule}"
        yield op.violation("mma operand", text, f"an atom of {-(-unit // width) * width}")


TMA_DTYPES = ("f16", "bf16", "f32", "f64", "i32")
"""Dtypes of more than 8 bits that bulk copies can move."""

BULK_REDUCTIONS = {
    "add": ("f32", "f16", "bf16", "i32"),
    **dict.fromkeys(("min", "max", "and", "or"), ("i32",)),
}
"""Dtypes of each reduction by bulk copies."""

MOST_STEP = 8
"""Largest step between two elements of a box in one dimension."""

UNIT_BYTES = BULK.unit_bytes
"""Bytes that divide the strides and starts of boxes. A store writes whole units of this size."""


def box_of(op: Copy) -> Box | NoBox:
    """Return the box in global memory that a bulk copy transfers, or the reason why it is not a box."""
    tensor, tile = op.ends
    order = swizzled_order(tile.tensor.view, tile.dtype.bytes)
    if order is not None:
        return find_box(tensor.tensor.view, tensor.array.shape, order)
    view, size = tile.tensor.view, tile.dtype.bytes
    # Loads also take one contiguous row that starts at a multiple of `ROW_BYTES`.
    long = [dim for dim, extent in enumerate(view.shape) if extent != 1]
    begins = substitute(view.offset, dict.fromkeys(view.coords, 0))
    is_row = len(long) == 1 and stride(view, long[0]) == 1 and divisor(begins) * size % ROW_BYTES == 0
    if is_row and tile is op.target:
        row = (*(dim for dim in range(view.rank) if dim not in long), *long)
        found = find_box(tensor.tensor.view, tensor.array.shape, row)
        return replace(found, is_swizzled=False) if isinstance(found, Box) else found
    text = f"{tile} of shape {view.shape} is not laid out in rows of 128 bytes under the 128-byte swizzle"
    return NoBox(text, f"tw.shared((..., rows, {ROW_BYTES // size}), {tile.dtype}, swizzle=128)")


def known_box(op: Copy) -> Box:
    """Return the box of a legal bulk copy."""
    box = box_of(op)
    assert isinstance(box, Box), "the verifier refuses others"
    return box


def verify_bulk_copy(op: Copy) -> Iterator[Violation]:
    """Yield violations of the rules of bulk copies."""
    tensor, tile = op.ends
    if not tensor.is_tensor or tensor.tensor.memory is not Memory.GLOBAL:
        yield op.violation(
            "tma", f"{tensor} does not lie in global memory", "a tensor parameter, or a view of one"
        )
        return
    if not tile.is_tensor or tile.tensor.memory is not Memory.SHARED:
        yield op.violation("tma", f"{tile} does not lie in shared memory", "a tw.shared tensor")
        return
    kind = tensor.dtype
    if kind != tile.dtype:
        text = f"{tensor} is {kind}, {tile} is {tile.dtype}; TMA converts nothing"
        yield op.violation("dtype", text, str(kind))
    if kind.bytes > 1 and kind.name not in TMA_DTYPES:
        yield op.violation(
            "dtype", f"TMA does not support {kind}", f"{', '.join(TMA_DTYPES)}, or types of 8 bits"
        )
    if op.other != 0:
        yield op.violation("other", f"TMA reads 0 outside of {tensor}, not {op.other}", "tw.copy")
    if tensor.tensor.shape != tile.tensor.shape:
        text = f"copy between {tensor} of shape {tensor.tensor.shape} and {tile} of shape {tile.tensor.shape}"
        yield op.violation("shape", text, f"a tile of shape {tile.tensor.shape} of {tensor.buffer}")
        return
    known = BULK_REDUCTIONS.get(op.reduction or "", ())
    if op.reduction in BULK_REDUCTIONS and kind.name not in known:
        text = f"TMA has no {op.reduction!r} of {kind}; it has that of {', '.join(known)}"
        yield op.violation("reduction", text, f"{known[0]}, or tw.copy(..., reduction={op.reduction!r})")
    array, rank = tensor.buffer, tensor.array.rank
    if rank == 1:
        what = f"{array} has 1 dimension; TMA copies boxes of rows, of tensors of 2 to {BULK.rank}"
        yield op.violation("tma", what, "pass it with a first dimension of 1, or use tw.copy")
    elif rank > BULK.rank:
        most = f"{BULK.rank} dimensions"
        yield op.violation("tma", f"{array} has {rank} dimensions; TMA copies of at most {most}", most)
    if array.tensor.align < UNIT_BYTES:
        text = f"{array} is aligned to {array.tensor.align} bytes; TMA needs {UNIT_BYTES}"
        yield op.violation("alignment", text)
    first = tensor.array.at((0,) * rank)
    if divisor(first) * array.dtype.bytes % UNIT_BYTES:
        text = f"the array of {tensor} begins at element {first} of {array}, which is no known multiple of"
        yield op.violation("alignment", f"{text} {UNIT_BYTES} bytes")
    box = box_of(op)
    if isinstance(box, NoBox):
        yield op.violation("tma", box.reason.replace("{tensor}", str(array)), box.nearest)
        return
    yield from _verify_box(op, tensor, box)
    if op.way == ("shared", "global"):
        yield from _verify_store(op, tensor, box)


def _verify_box(op: Copy, tensor: Value, box: Box) -> Iterator[Violation]:
    """Check the sides of a box, its start, and the strides of the array."""
    array, kind = tensor.buffer, tensor.dtype
    row, columns, unit = box.sides[box.inner], ROW_BYTES // kind.bytes, UNIT_BYTES // kind.bytes
    if not box.is_swizzled:
        if row % unit:
            text = f"a row of {row} elements of {array}; bulk copies move multiples of {UNIT_BYTES} bytes"
            yield op.violation("tma", text, f"a row of {-(-row // unit) * unit} elements")
    elif row != columns:
        # With the 128-byte swizzle, hardware starts a new row of shared memory for every row of a box.
        text = f"rows of the tile are pieces of {row} elements of dimension {box.inner} of {array}"
        nearest = f"rows of {columns} elements of that dimension, {ROW_BYTES} bytes, or tw.copy"
        yield op.violation("tma", text, nearest)
    for dim, (side, step, span) in enumerate(zip(box.sides, box.steps, box.spans, strict=True)):
        if step > 1 and (dim == box.inner or step > MOST_STEP or op.way[0] == "shared"):
            text = f"the box takes one of every {step} elements of dimension {dim} of {array}"
            nearest = f"steps of up to {MOST_STEP} along other dimensions than the contiguous one, in loads"
            yield op.violation("tma", text, f"{nearest}; or tw.copy")
        elif span > BULK.extent:
            text = f"the box spans {span} elements of dimension {dim} of {array}; at most {BULK.extent}"
            yield op.violation("tma", text, f"tiles of {BULK.extent // step} of its {side}")
    start = box.starts[box.inner]
    if divisor(start) % unit:  # an H200 stops with an illegal instruction
        yield op.violation(
            "tma",
            f"the box begins at {start} along dimension {box.inner} of {array}, which is no known multiple "
            f"of {unit} {array.dtype}, {UNIT_BYTES} bytes",
            f"a multiple of {unit}, or tw.copy",
        )
    for dim in reversed(box.order):
        pitch = stride(tensor.array, dim)
        assert pitch is not None, "arrays have strides"
        if dim == box.inner and pitch != 1:
            text = f"rows of the tile lie along dimension {dim} of {array}, which has stride {pitch}"
            yield op.violation("tma", text, "rows along the dimension of unit stride, or tw.copy")
            return
        elif dim != box.inner and pitch == 0:
            yield op.violation("tma", f"stride 0 of dimension {dim} of {array}", "tw.copy")
        elif dim != box.inner and bounds(pitch)[0] < 0:
            text = f"stride {pitch} of dimension {dim} of {array} may be negative; TMA steps upwards only"
            yield op.violation("tma", text, "tw.copy, or an array whose strides are positive")
        elif dim != box.inner and divisor(pitch) % unit:
            yield op.violation(
                "tma",
                f"stride {pitch} of dimension {dim} of {array} is a multiple of {divisor(pitch)} {kind}, not "
                f"of {UNIT_BYTES} bytes",
                f"pad the rows to a multiple of {unit} elements, or use tw.copy",
            )


def _verify_store(op: Copy, tensor: Value, box: Box) -> Iterator[Violation]:
    """Check the start and end of stored rows: an H200 stores whole units of 16 bytes.

    Measured: bytes between a row's last element and the end of its unit are overwritten, and a box that
    starts before the tensor stops the GPU.  Loads are clipped exactly.
    """
    array = tensor.buffer
    if elements(box.starts):  # gathered rows are unknown before the launch
        text = f"gathered rows may lie anywhere in {array}, and a store by TMA must not begin before it"
        yield op.violation("tma", text, "tw.index(...) of one of them, or tw.copy")
    unit, extent = UNIT_BYTES // array.dtype.bytes, tensor.array.shape[box.inner]
    for dim, start in enumerate(box.starts):
        if bounds(start)[1] < 0:  # the reference reports starts known only at launch
            text = (
                f"a store by TMA begins at {start} along dimension {dim} of {array}, before its first element"
            )
            yield op.violation("tma", text, "a start of 0 or more, or tw.copy")
    if divisor(extent) % unit:
        yield op.violation(
            "tma",
            f"dimension {box.inner} of {array} has {extent} elements, a multiple of {divisor(extent)} "
            f"{array.dtype}, not of {UNIT_BYTES} bytes: a store by TMA writes whole units of {UNIT_BYTES} "
            "bytes, and would overwrite the bytes after each row",
            f"tw.copy from shared memory, or an extent that is a multiple of {unit}",
        )


def by_maps(ops: Iterable[Op]) -> Iterator[Copy]:
    """Yield the bulk copies that use tensor maps in memory."""
    for op in ops:
        if is_bulk(op) and op.ends[0].is_tensor and op.ends[0].tensor.map is not None:
            yield op


def verify_maps(ops: Iterable[Op]) -> Iterator[Violation]:
    """Check that a tensor map in memory serves boxes of one form, with contiguous elements."""
    forms: dict[tuple[str, int], Box] = {}
    for op in by_maps(ops):
        held, box = op.ends[0].tensor.map, box_of(op)
        if held is None or not isinstance(box, Box):
            continue
        known = forms.setdefault((held.table.buffer.name, held.column), box)
        if (known.spans, known.order, known.is_swizzled) != (box.spans, box.order, box.is_swizzled):
            text = f"boxes that span {known.spans} and {box.spans} elements by one tensor map"
            yield op.violation("tensor map", text, "a map for each, in columns of its own")
        if set(box.steps) != {1}:
            text = f"a box that takes one of {max(box.steps)} elements, by a tensor map in memory"
            yield op.violation("tensor map", text, "neighbouring elements")


# Tensor maps in memory: the maps that the launcher writes, and their encoding for the reference.


class WantedMap(NamedTuple):
    """A tensor map that the launcher writes into every row of a table.

    Args:
        table: the kernel's parameter.
        column: the first column of the map.
        form: the form of the boxes; its tensor is the buffer that contains the array.
    """

    table: str
    column: int
    form: TensorMap


def wanted_maps(kernel: Kernel) -> tuple[WantedMap, ...]:
    """Return the maps that the launcher writes into tables before it launches a legal kernel."""
    found: dict[tuple[str, int], WantedMap] = {}
    for op in by_maps(kernel.walk()):
        source = op.ends[0]
        assert source.tensor.map is not None, "by_maps gives no other copies"
        name, column = source.tensor.map.table.buffer.name, source.tensor.map.column
        box = known_box(op)
        of = source.buffer.name
        form = TensorMap(f"{of}_map", of, box.spans, source.dtype, box.order, box.steps, box.is_swizzled)
        found.setdefault((name, column), WantedMap(name, column, form))
    return tuple(found.values())


def in_plain_numbers(
    start: int, extents: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> tuple[int, ...]:
    """Return the map of an array in the encoding of the reference, which has no driver to encode it.

    The map holds the offset of the array in its buffer, its extents, its strides and the spans of the box, in
    elements and in the order of the dimensions, followed by zeros.

    Example:
        >>> in_plain_numbers(3, (8, 40), (64, 1), (8, 32))
        (3, 8, 40, 64, 1, 8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    """
    words = (start, *extents, *strides, *box)
    return words + (0,) * (MAP_WORDS - len(words))
