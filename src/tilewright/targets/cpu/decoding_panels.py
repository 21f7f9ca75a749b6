"""The rule of operands that are computed as their panels are packed.

Elements come to the thread's own memory first, in the order in which vectors of columns read them; numbers of
the arrays beside them once for all neighbours along K that have them in common.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace

from tilewright.dtypes import f32, i32
from tilewright.ir.ops import Copy
from tilewright.symbolic.expr import add, expand, floordiv, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute
from tilewright.targets.cpu import decoding_text as text
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.copying import Copying
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_text import Form
from tilewright.targets.cpu.decoding_values import Computing
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, CpuEmitter, Side
from tilewright.targets.cpu.transpose import transposition
from tilewright.targets.statements import Code, Declare, call, code, named
from tilewright.views.view import View, coordinates

ALIGNED = "__attribute__((aligned(64)))"


def emit_decoded(emitter: CpuEmitter, op: Decoding, panel: Sym, columns: int) -> None:
    """One panel of what is computed; all go to where the first one lies."""
    emitter.comment(op, f"a panel of {op.target} = {op.made}, computed of {op.source}")
    with emitter.indented():
        form = _form(emitter, op, columns)
        held = _elements(emitter, op, panel, form)
        _ask_ahead(emitter, op, panel, form)
        function = _function(emitter, op, form)
        arrays = [_array(emitter, "float", f"beside{at}", columns) for at in range(len(op.beside))]
        depth = _depth(op)
        part = Sym(emitter.local("part"), 0, depth // op.run - 1)
        with emitter.turns(part.name, depth // op.run) if depth > op.run else nullcontext():
            first = mul(part, op.run) if depth > op.run else 0
            for copy, array in zip(op.beside, arrays, strict=True):
                _beside(emitter, copy, array, panel, first, columns)
            to = code("{} + {}", emitter.name(op.target.buffer), emitter.spell(mul(first, columns)))
            row = mul(floordiv(first, form.depth), form.pitch)
            at = code("{} + {}", held, emitter.spell(row))
            emitter.do(call(function, to, at, *arrays, op.run // form.depth))


def _depth(op: Decoding) -> int:
    depth = op.target.tensor.shape[1]
    assert isinstance(depth, int)
    return depth


def _array(emitter: CpuEmitter, kind: str, wanted: str, elems: int) -> Code:
    """An array of the thread's own."""
    name = emitter.local(wanted)
    emitter.add(Declare(named(f"{ALIGNED} {kind}"), name, None, elems))
    return name


# ---------------------------------------------------------------- elements


def _form(emitter: CpuEmitter, op: Decoding, columns: int) -> Form:
    lanes = emitter.arch.vector_bytes // f32.bytes
    while columns % lanes:
        lanes //= 2
    if op.packed is None:
        return Form(columns, lanes, op.source.dtype, "plain")
    return Form(columns, lanes, op.packed, "words" if op.dim == 1 else "pairs")


def _elements(emitter: CpuEmitter, op: Decoding, panel: Sym, form: Form) -> Code:
    """Where the elements of a panel lie, in rows of columns."""
    side, depth, columns = emitter.side(op.source), op.source.tensor.shape[1], _panel_columns(op, form)
    assert isinstance(depth, int)
    row, k = coordinates((columns, depth))
    view = side.view.map((columns, depth), (add(mul(panel, columns), row), k))
    by_rows = form.way == "words"
    held = _array(emitter, STORAGE[side.dtype.name], "held", columns * depth)
    strides = (depth, 1) if by_rows else (1, columns)
    target = Side(held, side.dtype, View.strided((columns, depth), strides), True)
    with emitter.indented():
        copied = Copying(emitter, replace(side, view=view), target).emit()
    emitter.accesses[op.elements, op.elements.location] = copied
    return _words(emitter, held, form, depth) if by_rows else held


def _ask_ahead(emitter: CpuEmitter, op: Decoding, panel: Sym, form: Form) -> None:
    """Ask for the lines that the same panel takes of the next tile along K, while this one is computed."""
    side, (_, depth) = emitter.side(op.source), op.source.tensor.shape
    view, size = side.view, side.dtype.bytes
    steps = [slope(view.offset, coord) for coord in view.coords]
    if None in steps or 1 not in steps or not isinstance(depth, int):
        return
    rows = _panel_columns(op, form)
    across = steps[0] == 1  # whether columns are neighbours
    run, count = (rows, depth) if across else (depth, rows)
    line = Sym(emitter.local("line"), 0, count - 1)
    with emitter.turns(line.name, count):
        for last in range(run - 1, -1, -CACHE_LINE_BYTES // size):
            row, k = (last, line) if across else (line, last)
            place = {view.coords[0]: add(mul(panel, rows), row), view.coords[1]: add(k, depth)}
            at = substitute(view.offset, place)
            emitter.do(call("__builtin_prefetch", code("{} + {}", side.name, emitter.spell(expand(at)))))


def _panel_columns(op: Decoding, form: Form) -> int:
    """Columns of a panel, or their bytes where columns share these."""
    rows, columns = op.source.tensor.shape[0], op.target.tensor.shape[0]
    assert isinstance(rows, int)
    assert isinstance(columns, int)
    return form.columns * rows // columns


def _words(emitter: CpuEmitter, held: Code, form: Form, depth: int) -> Code:
    """The rows of words of 4 bytes, transposed."""
    count = depth // i32.bytes
    words = _array(emitter, "int", "words", count * form.columns)
    side = next(side for side in (form.lanes, 8, 4, 2, 1) if count % side == form.columns % side == 0)
    function = transposition(emitter, i32, i32, side)
    row, column = Sym(emitter.local("row"), 0, form.columns), Sym(emitter.local("column"), 0, count)
    with (
        emitter.turns(row.name, form.columns, side),
        emitter.turns(column.name, count, side),
    ):
        to = code("{} + {}", words, emitter.spell(add(mul(column, form.columns), row)))
        at = code("(const int*){} + {}", held, emitter.spell(add(mul(row, count), column)))
        emitter.do(call(function, to, form.columns, at, count, side, side))
    return code("(const unsigned*){}", words)


# ---------------------------------------------------------------- what is computed


def _beside(emitter: CpuEmitter, copy: Copy, array: Code, panel: Sym, first: Int, columns: int) -> None:
    """The numbers of an array that belong to the columns of a panel, at one k."""
    side = emitter.side(copy.source)
    (row,) = coordinates((columns,))
    whole = (add(mul(panel, columns), row), first)
    place = [0 if extent == 1 else at for extent, at in zip(side.view.shape, whole, strict=True)]
    target = Side(array, f32, View.strided((columns,), (1,)), True)
    with emitter.indented():
        copied = Copying(emitter, replace(side, view=side.view.map((columns,), place)), target).emit()
    emitter.accesses[copy, copy.location] = copied


def _function(emitter: CpuEmitter, op: Decoding, form: Form) -> Code:
    """The function that computes a part of a panel."""
    computing = Computing(emitter.convert)
    made = computing.result(op)
    lines = [*computing.lines]
    for dtype in sorted(computing.kept, key=str):
        for name, of in (("near", text.near(dtype)), ("kept", text.kept(dtype))):
            function = emitter.function(f"{name}_{dtype}", of)
            lines = [line.replace(f"{name}_{dtype}<", f"{function}<") for line in lines]
    element = emitter.convert("row[l]", form.kind, f32) if form.way == "plain" else ""
    arrays = len(computing.arrays)
    each = emitter.function("compute_rows", text.rows(form, lines, made, arrays, element))
    whole = text.decoding(form, len(op.beside), computing.arrays, computing.within, each)
    return emitter.function("compute_panel", whole)
