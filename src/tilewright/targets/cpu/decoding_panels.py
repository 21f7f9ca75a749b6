"""The rule of operands that are computed as their panels are packed.

Elements come to the thread's own memory first, in the order in which vectors of columns read them; numbers of
the arrays beside them once for all neighbours along K that have them in common.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tilewright.dtypes import f32, i32
from tilewright.ir.ops import Copy
from tilewright.symbolic.expr import add, expand, floordiv, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute
from tilewright.targets.cpu import decoding_text as text
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.copying import Copying
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_text import Form, Spelled
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
        form = form_of(emitter, op, columns)
        held = elements(emitter, op, panel, form)
        if form.way == "words":
            held = _words(emitter, held, form, _extents(op)[1])
        ask_ahead(emitter, op, panel, form)
        parts = Parts.of(emitter, op, panel, form, text.rows)
        with parts.each() as first:
            to = code("{} + {}", emitter.name(op.target.buffer), emitter.spell(mul(first, columns)))
            row = mul(floordiv(first, form.depth), form.pitch)
            parts.call(to, code("{} + {}", held, emitter.spell(row)), first, op.run // form.depth)


def aligned_array(emitter: CpuEmitter, kind: str, wanted: str, elems: int) -> Code:
    """An array of the thread's own."""
    name = emitter.local(wanted)
    emitter.add(Declare(named(f"{ALIGNED} {kind}"), name, None, elems))
    return name


# ---------------------------------------------------------------- elements


def form_of(emitter: CpuEmitter, op: Decoding, columns: int) -> Form:
    """How the elements of a panel lie where they are computed of."""
    lanes = emitter.arch.vector_bytes // f32.bytes
    while columns % lanes:
        lanes //= 2
    if op.packed is None:
        return Form(columns, lanes, op.source.dtype, "plain")
    return Form(columns, lanes, op.packed, "words" if op.dim == 1 else "pairs")


def elements(emitter: CpuEmitter, op: Decoding, panel: Sym, form: Form) -> Code:
    """Where the elements of a panel lie: column by column, if words are made of them, or row by row."""
    side, (columns, depth) = emitter.side(op.source), _extents(op, form)
    row, k = coordinates((columns, depth))
    view = side.view.map((columns, depth), (add(mul(panel, columns), row), k))
    held = aligned_array(emitter, STORAGE[side.dtype.name], "held", columns * depth)
    strides = (depth, 1) if form.way == "words" else (1, columns)
    target = Side(held, side.dtype, View.strided((columns, depth), strides), True)
    with emitter.indented():
        copied = Copying(emitter, replace(side, view=view), target).emit()
    emitter.accesses[op.elements, op.elements.location] = copied
    return held


def ask_ahead(emitter: CpuEmitter, op: Decoding, panel: Sym, form: Form) -> None:
    """Ask for the lines that the same panel takes of the next tile along K, while this one is computed."""
    side, (rows, depth) = emitter.side(op.source), _extents(op, form)
    view, size = side.view, side.dtype.bytes
    steps = [slope(view.offset, coord) for coord in view.coords]
    if None in steps or 1 not in steps:
        return
    across = steps[0] == 1  # whether columns are neighbours
    run, count = (rows, depth) if across else (depth, rows)
    line = Sym(emitter.local("line"), 0, count - 1)
    with emitter.turns(line.name, count):
        for last in range(run - 1, -1, -CACHE_LINE_BYTES // size):
            row, k = (last, line) if across else (line, last)
            place = {view.coords[0]: add(mul(panel, rows), row), view.coords[1]: add(k, depth)}
            at = emitter.spell(expand(substitute(view.offset, place)))
            emitter.do(call("__builtin_prefetch", code("{} + {}", side.name, at)))


def _extents(op: Decoding, form: Form | None = None) -> tuple[int, int]:
    """Columns and depth of a panel's elements, or of the bytes that these share; of the whole tile's."""
    (rows, depth), columns = op.source.tensor.shape, op.target.tensor.shape[0]
    assert isinstance(rows, int)
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    return rows if form is None else form.columns * rows // columns, depth


def _words(emitter: CpuEmitter, held: Code, form: Form, depth: int) -> Code:
    """The rows of words of 4 bytes, transposed."""
    count = depth // i32.bytes
    words = aligned_array(emitter, "int", "words", count * form.columns)
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


@dataclass(frozen=True)
class Parts:
    """The parts of a panel along K for which columns have the same numbers of arrays beside the elements.

    Args:
        emitter: where the text goes.
        op: what is decoded.
        panel: which panel.
        columns: of it.
        arrays: where the numbers of columns go.
        function: what computes a part.
    """

    emitter: CpuEmitter
    op: Decoding
    panel: Sym
    columns: int
    arrays: tuple[Code, ...]
    function: Code

    @staticmethod
    def of(emitter: CpuEmitter, op: Decoding, panel: Sym, form: Form, spelled: Spelled) -> Parts:
        """The parts of a panel, computed by a function that is spelled so."""
        function = _function(emitter, op, form, spelled)
        columns = form.columns
        arrays = (aligned_array(emitter, "float", f"beside{at}", columns) for at in range(len(op.beside)))
        return Parts(emitter, op, panel, columns, tuple(arrays), function)

    @property
    def depth(self) -> int:
        """Of the panel."""
        depth = self.op.target.tensor.shape[1]
        assert isinstance(depth, int)
        return depth

    @contextmanager
    def each(self) -> Iterator[Int]:
        """A loop over the parts; gives the first k of each."""
        count = self.depth // self.op.run
        if count == 1:
            yield 0
            return
        part = Sym(self.emitter.local("part"), 0, count - 1)
        with self.emitter.turns(part.name, count):
            yield mul(part, self.op.run)

    def call(self, to: Code, held: Code, first: Int, rows: int) -> None:
        """Compute a part.

        Args:
            to: where it goes.
            held: where its elements lie.
            first: its first k.
            rows: how many rows of what holds them.
        """
        for copy, array in zip(self.op.beside, self.arrays, strict=True):
            _beside(self.emitter, copy, array, self.panel, first, self.columns)
        self.emitter.do(call(self.function, to, held, *self.arrays, rows))


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


def _function(emitter: CpuEmitter, op: Decoding, form: Form, spelled: Spelled) -> Code:
    """The function that computes a part of a panel."""
    computing = Computing(emitter.convert)
    made = computing.result(op)
    lines = [*computing.lines]
    for dtype in sorted(computing.kept, key=str):
        for name, of in (("near", text.near(dtype)), ("kept", text.kept(dtype))):
            function = emitter.function(f"{name}_{dtype}", of)
            lines = [line.replace(f"{name}_{dtype}<", f"{function}<") for line in lines]
    element = emitter.convert("from[e]", form.kind, f32) if form.way == "plain" else ""
    arrays = len(computing.arrays)
    each = emitter.function("compute_each", spelled(form, lines, made, arrays, element))
    whole = text.decoding(form, len(op.beside), computing.arrays, computing.within, each)
    return emitter.function("compute", whole)
