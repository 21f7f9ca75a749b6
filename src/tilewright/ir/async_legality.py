"""The legality rules of roles, bulk copies and asynchronous MMA."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.errors import Violation
from tilewright.ir.async_ops import MmaAsync, Role
from tilewright.ir.mma import REGISTERS
from tilewright.ir.ops import Mma
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.nodes import Sym, divisor
from tilewright.symbolic.rebuilding import elements, evaluate, substitute, symbols
from tilewright.views.boxes import ROW_BYTES
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
        yield op.violation(
            "registers",
            f"registers are set for whole warpgroups, not for {op.count} warps from warp {op.first}",
            f"roles of {warps} warps each",
        )


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
            f"{label} = {value} runs along {'MN'[label == 'B']} in rows of {width}; {op.mma.atom} takes "
            f"{unit} of them at a time",
            f"an atom of {-(-unit // width) * width}",
        )
