"""The legality rules of roles, bulk copies and asynchronous MMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.arch import BULK, REFERENCE
from tilewright.errors import Violation
from tilewright.ir.async_ops import MmaAsync, Role
from tilewright.ir.copies import Copy
from tilewright.ir.mma import REGISTERS
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.ranges import bounds, divisor
from tilewright.symbolic.rebuilding import elements, evaluate, substitute, symbols
from tilewright.views.questions import strides
from tilewright.views.view import View

SPAN_BYTES = BULK.span_bytes
"""The swizzle that bulk copies and asynchronous MMA share: 8 rows of 128 bytes, 16-byte chunks exchanged."""


TMA_DTYPES = ("f16", "bf16", "f32", "f64", "i32")
"""Types of more than 8 bits that TMA copies."""


@dataclass(frozen=True)
class SwizzledRows:
    """How a tile lies in shared memory: panels of 128-byte rows under the 128-byte swizzle.

    Args:
        along: the dimension along which a row of 128 bytes runs; the other one counts the rows.
        elems: elements from one panel to the next; 0 if there is one.
    """

    along: int
    elems: int


def swizzled_rows(view: View, element_bytes: int) -> SwizzledRows | None:
    """The panels that a view consists of, from a 1024-byte boundary on; None if it has no such form.

    With ``row``, ``column`` the coordinates across and along the rows of ``width`` elements, element
    (row, column) must lie at byte ``128*row + (column % width * bytes ^ 16*(row % 8))`` of panel
    ``column // width``.
    """
    if view.rank != 2 or not view.is_static or elements(view.offset):
        return None
    base = substitute(view.offset, dict.fromkeys(view.coords, 0))
    if divisor(base) * element_bytes % (8 * SPAN_BYTES):
        return None
    outer: dict[Sym, int] = dict.fromkeys(symbols(base), 0)
    extents = [int(extent) for extent in view.shape if isinstance(extent, int)]
    at = np.ogrid[: extents[0], : extents[1]]
    found = evaluate(view.offset, {**dict(zip(view.coords, at, strict=True)), **outer})
    found = (found - evaluate(base, outer)) * element_bytes
    width = SPAN_BYTES // element_bytes
    for along in (1, 0):
        row, column = at[1 - along], at[along]
        second = [0, 0]
        second[along] = width
        panel = int(found[tuple(second)]) if extents[along] > width else 0
        swizzled = (column % width * element_bytes) ^ (16 * (row % 8))
        if (
            panel % (8 * SPAN_BYTES) == 0
            and (found == column // width * panel + SPAN_BYTES * row + swizzled).all()
        ):
            return SwizzledRows(along, panel // element_bytes)
    return None


def is_swizzled_128(view: View, element_bytes: int) -> bool:
    """Whether a view is one panel of whole rows: what a bulk copy takes."""
    whole = view.rank == 2 and view.shape[1] == SPAN_BYTES // element_bytes
    return whole and swizzled_rows(view, element_bytes) == SwizzledRows(1, 0)


def verify_role(op: Role) -> Iterator[Violation]:
    """The rules of `Role`."""
    if op.count < 1 or op.first < 0:
        yield op.violation("role", f"{op.count} warps from warp {op.first}", "at least one warp")
    if op.registers is None:
        return
    unit, (least, most), warps = REFERENCE.register_unit, REFERENCE.role_registers, REFERENCE.role_warps
    if op.registers % unit or not least <= op.registers <= most:
        nearest = min(max(round(op.registers / unit) * unit, least), most)
        legal = f"a multiple of {unit} from {least} to {most}"
        yield op.violation("registers", f"{op.registers} registers; {legal}", str(nearest))
    if op.first % warps or op.count % warps:
        yield op.violation(
            "registers",
            f"registers are set for whole warpgroups, not for {op.count} warps from warp {op.first}",
            f"roles of {warps} warps each",
        )


def verify_tma(op: Copy) -> Iterator[Violation]:
    """The rules of bulk copies, between a tensor in global and a tile in shared memory."""
    tensor, tile = (op.source, op.target) if op.verb == "tma_load" else (op.target, op.source)
    if not tensor.is_tensor or tensor.tensor.memory is not Memory.GLOBAL or tensor.root is not None:
        yield op.violation("tma", f"{tensor} is no tensor parameter of the kernel", "the parameter itself")
        return
    if not tile.is_tensor or tile.tensor.memory is not Memory.SHARED:
        yield op.violation("tma", f"{tile} does not lie in shared memory", "a tw.shared tensor")
        return
    view, kind = tensor.tensor.view, tensor.dtype
    if kind != tile.dtype:
        yield op.violation(
            "dtype", f"{tensor} is {kind}, {tile} is {tile.dtype}; TMA converts nothing", str(kind)
        )
    if kind.bytes > 1 and kind.name not in TMA_DTYPES:
        yield op.violation("dtype", f"TMA moves no {kind}", f"{', '.join(TMA_DTYPES)}, or types of 8 bits")
    if len(op.at) != view.rank:
        yield op.violation("tma", f"{len(op.at)} coordinates for {tensor} of rank {view.rank}")
        return
    yield from _verify_box(op, tensor, tile)
    unit = BULK.unit_bytes // kind.bytes
    yield from _verify_start(op, tensor, unit)
    if op.verb == "tma_store":
        yield from _verify_rows(op, tensor, unit)
    found = strides(view)
    if view.rank > 1 and found is not None and View.strided(view.shape, found) == view:
        *outer, inner = found
        if inner != 1:
            yield op.violation("tma", f"the last dimension of {tensor} has stride {inner}", "a unit stride")
        for dim, stride in enumerate(outer):
            if stride == 0:
                yield op.violation("tma", f"stride 0 of dimension {dim} of {tensor}", "tw.copy")
            elif divisor(stride) % unit:
                yield op.violation(
                    "tma",
                    f"stride {stride} of dimension {dim} of {tensor} is a multiple of {divisor(stride)} "
                    f"{kind}, not of {BULK.unit_bytes} bytes",
                    f"pad the rows to a multiple of {unit} elements, or use tw.copy",
                )
    if (align := tensor.tensor.align) < BULK.unit_bytes:
        text = f"{tensor} is aligned to {align} bytes; TMA needs {BULK.unit_bytes}"
        yield op.violation("alignment", text)


def _verify_start(op: Copy, tensor: Value, unit: int) -> Iterator[Violation]:
    """Where a box may begin: elsewhere an H200 stopped with an illegal instruction."""
    *_, last = op.at
    if divisor(last) % unit:
        yield op.violation(
            "tma",
            f"the box begins at {last} along the last dimension of {tensor}, which is no known multiple of "
            f"{unit} {tensor.dtype}, {BULK.unit_bytes} bytes",
            f"a multiple of {unit}, or tw.copy",
        )
    for dim, start in enumerate(op.at) if op.verb == "tma_store" else ():
        if bounds(start)[1] < 0:  # what only the launch knows is found by the reference
            yield op.violation(
                "tma",
                f"a store by TMA begins at {start} along dimension {dim} of {tensor}, before its first "
                "element",
                "a start of 0 or more, or tw.copy",
            )


def _verify_rows(op: Copy, tensor: Value, unit: int) -> Iterator[Violation]:
    """Where the rows of what is stored may end: an H200 stored whole units of 16 bytes.

    What lies between a row's last element and the end of its unit was overwritten.  Loads are cut exactly.
    """
    extent = tensor.tensor.view.shape[-1]
    if divisor(extent) % unit:
        last = tensor.tensor.view.rank - 1
        yield op.violation(
            "tma",
            f"dimension {last} of {tensor} has {extent} elements, a multiple of {divisor(extent)} "
            f"{tensor.dtype}, not of 16 bytes: a store by TMA writes whole units of 16 bytes, and would "
            "overwrite what follows each row",
            f"tw.copy from shared memory, or an extent that is a multiple of {unit}",
        )


def _verify_box(op: Copy, tensor: Value, tile: Value) -> Iterator[Violation]:
    view = tile.tensor.view
    rank = tensor.tensor.view.rank
    if rank == 1:
        what = f"{tensor} has 1 dimension; TMA copies boxes of rows, of tensors of 2 to {BULK.rank}"
        yield op.violation("tma", what, "pass it with a first dimension of 1, or use tw.copy")
        return
    if view.rank > rank:
        yield op.violation("tma", f"box of rank {view.rank} for {tensor} of rank {rank}", "a box of rank 2")
        return
    if rank > BULK.rank:
        most = f"{BULK.rank} dimensions"
        yield op.violation("tma", f"{tensor} has {rank} dimensions; TMA copies of at most {most}", most)
        return
    for dim, extent in enumerate(view.shape):
        if not isinstance(extent, int) or extent > BULK.extent:
            text = f"the box has extent {extent} in dimension {dim}; at most {BULK.extent}"
            yield op.violation("tma", text, str(BULK.extent))
    if not is_swizzled_128(view, tile.dtype.bytes):
        columns = SPAN_BYTES // tile.dtype.bytes
        yield op.violation(
            "tma",
            f"{tile} of shape {view.shape} is not laid out in rows of 128 bytes under the 128-byte swizzle",
            f"tw.shared((..., rows, {columns}), {tile.dtype}, swizzle=128)",
        )


def verify_mma_async(op: MmaAsync) -> Iterator[Violation]:
    """The rules of `MmaAsync`."""
    m, n, _ = op.mma.tile
    atom = op.mma.atom
    if not atom.asynchronous:
        text = f"{atom}, of {atom.lanes} lanes, multiplies at once, not in the background"
        yield op.violation("mma_async", text, "tw.mma, or an atom of tw.atoms.wgmma")
        return
    for label, value, dtype in (("A", op.a, atom.a_dtype), ("B", op.b, atom.b_dtype)):
        if value.dtype != dtype:
            yield op.violation(
                "dtype", f"{atom} takes {label} of {dtype}, {value} is {value.dtype}", str(dtype)
            )
    if not op.a.is_fragment or REGISTERS not in atom.a_places:
        yield from _verify_operand(op, "A", op.a, m, atom.shape[0])
    elif op.a.fragment.distribution != op.mma.a(op.a.fragment.shape[1]):
        yield op.violation("distribution", f"fragment {op.a} is not distributed as operand A of {atom}")
    yield from _verify_operand(op, "B", op.b, n, atom.shape[1])
    if not op.c.is_fragment or op.c.fragment.distribution != op.mma.c():
        yield op.violation("distribution", f"{op.c} is not distributed as the accumulator of {atom}")
    elif op.c.dtype != atom.c_dtype:
        yield op.violation("dtype", f"{atom} accumulates in {atom.c_dtype}, {op.c} is {op.c.dtype}")


def _verify_operand(op: MmaAsync, label: str, value: Value, rows: int, unit: int) -> Iterator[Violation]:
    """The rules of an operand in shared memory: its rows, of which an instruction takes ``unit``."""
    kind, depth = value.type, op.mma.atom.shape[2]
    own = isinstance(kind, TensorType) and kind.memory is Memory.SHARED and kind.block is None
    if not isinstance(kind, TensorType) or not own:
        text = f"{label} = {value} does not lie in the block's own shared memory"
        yield op.violation("mma operand", text, "tw.shared")
        return
    width = SPAN_BYTES // kind.dtype.bytes
    if len(kind.shape) != 2 or kind.shape[0] != rows or not isinstance(kind.shape[1], int):
        yield op.violation("mma shape", f"{label} = {value} has shape {kind.shape}", f"({rows}, {width})")
        return
    lies = swizzled_rows(kind.view, kind.dtype.bytes)
    if kind.shape[1] % depth:
        nearest = -(-kind.shape[1] // depth) * depth
        yield op.violation("mma shape", f"{label} = {value} has depth {kind.shape[1]}", f"{nearest}")
    elif lies is None:
        yield op.violation(
            "mma operand",
            f"{label} = {value} is not laid out in rows of 128 bytes under the 128-byte swizzle",
            f"tw.shared((..., {rows}, {width}), {kind.dtype}, swizzle=128)",
        )
    elif lies.along == 0 and "mn" not in op.mma.atom.majors:
        yield op.violation(
            "mma operand",
            f"{label} = {value} runs along {'MN'[label == 'B']} in shared memory; {op.mma.atom} takes "
            "operands that run along K",
            f"a shared tensor of rows of {width} along K, into which the transpose is copied",
        )
    elif lies.along == 0 and unit < rows and unit % width:
        yield op.violation(
            "mma operand",
            f"{label} = {value} runs along {'MN'[label == 'B']} in rows of {width}, of which {op.mma.atom} "
            f"takes {unit} at a time",
            f"an atom of {-(-unit // width) * width}",
        )
