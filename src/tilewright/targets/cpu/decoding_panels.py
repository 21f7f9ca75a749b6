"""The rule that decodes a panel, and the text of its functions.

Elements are first copied into memory of the thread, in the order in which vectors of columns read them.  A
side array is read once for all neighbours along K that share its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tilewright.dtypes import DType, bf16, f4e2m1, f16, f32, i32
from tilewright.ir.ops import Copy
from tilewright.packing import numbers_of
from tilewright.symbolic.expr import add, expand, floordiv, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.copying import Copying
from tilewright.targets.cpu.decoding import DIGITS, Computing, Decoding, offset_of
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, SELF, CopySide, CpuEmitter
from tilewright.targets.cpu.vector_moves import transposition
from tilewright.targets.statements import Code, Declare, call, code, named
from tilewright.views.view import View, coordinates

# ----------------------------------------------------------------
#
# Functions that compute a panel: vectors of columns, one k at a time.
#
# Elements of 4 bits are stored as words of 8 neighbours along K, or as bytes of two neighbours along the
# columns; other elements are stored unchanged.  A 4-bit code goes into the upper bits of a fraction, which
# turns it into a float.


PER_WORD = 8
"""Numbers of 4 bits in a word."""

FRACTION, SIGN = 23, 31
"""Bit positions of an f32's exponent and sign."""


def near(dtype: DType) -> str:
    """Rounds f32 to the precision of a format: where nothing overflows, nor is subnormal but 0.

    The addend is 1.5 times a power of two, whose last bit is the last bit to keep.
    """
    more = (FRACTION + 1 - DIGITS[dtype] << FRACTION) + (1 << FRACTION - 1)
    return f"""\
// x rounded to {dtype}, if that is neither subnormal nor infinite.
template <typename vector, typename bits> static inline vector {SELF}(vector x) {{
  const vector more = (vector)(((bits)x & 0x7f800000u) + 0x{more:x}u);
  return (x + more) - more;
}}"""


def kept(dtype: DType) -> str:
    """The function that rounds any f32 to a format."""
    return _KEPT[dtype]


_KEPT = {
    f16: f"""\
// x rounded to f16.
template <typename vector, typename bits> static inline vector {SELF}(vector x) {{
  const bits exponent = (bits)x & 0x7f800000u, small = (bits)(exponent < 0x38800000u);
  const vector more = (vector)(((small & 0x38800000u) | (~small & exponent)) + 0x6c00000u);
  const bits size = (bits)x & 0x7fffffffu, sign = (bits)x & 0x80000000u, near = (bits)((x + more) - more);
  const bits infinite = (bits)(size - 0x477ff000u <= 0x7f800000u - 0x477ff000u);  // from 65520 on
  return (vector)((infinite & (sign | 0x7f800000u)) | (~infinite & near));
}}""",
    bf16: f"""\
// x rounded to bf16.
template <typename vector, typename bits> static inline vector {SELF}(vector x) {{
  const bits of = (bits)x, nan = (bits)((of & 0x7fffffffu) > 0x7f800000u);
  const bits rounded = (of + 0x7fffu + (of >> 16 & 1u)) & 0xffff0000u;
  return (vector)((nan & ((of & 0x80000000u) | 0x7fc00000u)) | (~nan & rounded));
}}""",
}


@dataclass(frozen=True)
class PanelForm:
    """Storage of the elements from which a panel is computed.

    Args:
        columns: of the panel.
        lanes: columns of a vector.
        kind: the dtype of the elements.
        way: ``"words"`` of `PER_WORD` neighbours along K, ``"pairs"`` of neighbours along the columns in a
            byte, or ``"plain"``.
    """

    columns: int
    lanes: int
    kind: DType
    way: str

    @property
    def storage(self) -> str:
        """The type of what holds them."""
        return {"words": "unsigned", "pairs": "unsigned char"}.get(self.way, STORAGE[self.kind.name])

    @property
    def depth(self) -> int:
        """Elements along K in one stored row."""
        return PER_WORD if self.way == "words" else 1

    @property
    def pitch(self) -> int:
        """Storage units in one stored row."""
        return self.columns // self.kind.per_byte if self.way == "pairs" else self.columns

    def values(self) -> list[float]:
        """The numbers that codes of 4 bits are taken for."""
        found = numbers_of(np.arange(16, dtype=np.uint8), self.kind)[::2].astype(np.float64)
        return [float(value) + offset_of(self.kind) for value in found]


Spelled: TypeAlias = Callable[[PanelForm, Sequence[str], str, int, str], str]
"""A function that computes an operand of elements, as `rows` spells it."""


def rows(form: PanelForm, lines: Sequence[str], made: str, arrays: int, element: str) -> str:
    """The function that computes a number of rows of elements.

    Args:
        form: how elements lie.
        lines: what is computed of ``raw``, the elements, and ``of_column0``, what belongs to columns.
        made: the operand.
        arrays: how many arrays there are that belong to columns.
        element: spells a plain element as f32, of ``from`` at ``e``.
    """
    columns = form.columns
    names = [f"of_column{at}" for at in range(arrays)]
    given = "".join(f", const float* of_{at}" for at in range(arrays))
    held = "".join(
        f"    const vector {name} = *(const vector*)(of_{at} + j);\n" for at, name in enumerate(names)
    )
    body = "\n".join(f"        {line}" for line in (*_raw(form), *lines))
    read = "".join(f"      {line}\n" for line in _row(form))
    place = f"({form.depth} * k + i)" if form.depth > 1 else "k"
    return f"""\
// to[k][n] for {columns} columns: what is computed of elements, and of what belongs to each column.
template <bool SIMPLE>
static void {SELF}(float* to, const {form.storage}* from{given}, Index rows) {{
{header(form.lanes)}{_before(form, element)}  for (Index j = 0; j < {columns}; j += {form.lanes}) {{
{held}    for (Index k = 0; k < rows; ++k) {{
{read}      UNROLL for (Index i = 0; i < {form.depth}; ++i) {{
{body}
        *(vector*)(to + {place} * {columns} + j) = {made};
      }}
    }}
  }}
}}"""


def header(lanes: int) -> str:
    """The types that lines name."""
    kind = f"__attribute__((vector_size({4 * lanes}), aligned(4)))"
    return f"  typedef float vector {kind};\n  typedef unsigned bits {kind};\n"


def _before(form: PanelForm, element: str) -> str:
    """The text before the loops: one long loop converts plain elements, in the operand's place."""
    if form.way != "plain":
        return ""
    return f"""\
  INDEPENDENT
  for (Index e = 0; e < rows * {form.columns}; ++e) to[e] = {element};
"""


def _row(form: PanelForm) -> list[str]:
    """The lines that read a row: words from which codes of 4 bits are taken."""
    flipped = " ^ 0x88888888u" if form.kind.kind == "int" and form.kind.is_packed else ""
    if form.way == "words":
        return [f"const bits word = *(const bits*)(from + k * {form.pitch} + j){flipped};"]
    if form.way == "plain":
        return []
    lanes, bits = range(form.lanes), form.kind.bits
    shifts = ", ".join(str(bits * (lane % PER_WORD)) for lane in lanes)
    size, copied = form.lanes * bits // 8, "both"
    lines = ["unsigned long long codes = 0;"]
    lines += [f"__builtin_memcpy(&codes, from + k * {form.pitch} + j / {form.kind.per_byte}, {size});"]
    if form.lanes > PER_WORD:
        copied = f"__builtin_shufflevector(both, both, {', '.join(str(lane // PER_WORD) for lane in lanes)})"
        lines += [f"typedef unsigned long long words __attribute__((vector_size({4 * form.lanes})));"]
        lines += ["const bits both = (bits)(words{} + codes);"]
    else:
        lines += ["const bits both = bits{} + (unsigned)codes;"]
    return [*lines, f"const bits word = ({copied} >> (bits){{{shifts}}}){flipped};"]


def _raw(form: PanelForm) -> list[str]:
    """The lines that give ``raw``."""
    if form.way == "plain":
        return [f"const vector raw = *(const vector*)(to + k * {form.columns} + j);"]
    if form.kind == f4e2m1:
        sign, size = _moved(SIGN - 3), _moved(FRACTION - 1)
        up = "__builtin_bit_cast(float, 253u << 23)"
        return [f"const vector raw = (vector)(({sign} & 0x80000000u) | ({size} & 0x1c00000u)) * {up};"]
    return [f"const vector raw = (vector)(({_moved(FRACTION - 4)} & 0x780000u) | 0x41800000u);"]


def _moved(to: int) -> str:
    """A word whose code number ``i`` begins at some bit."""
    return f"({to} >= 4 * i ? word << ({to} - 4 * i & 31) : word >> (4 * i - {to} & 31))"


def decoding(
    form: PanelForm,
    loaded: int,
    arrays: Sequence[str],
    within: Mapping[int, tuple[float, float]],
    each: Code,
) -> str:
    """The function that computes a part of a panel, in which a column has one number of each array.

    Args:
        form: how elements lie.
        loaded: how many arrays there are.
        arrays: expressions of a column's side numbers, ``loaded0[n]`` and so on.
        within: between what sizes some of that is, or 0, where products are rounded by additions.
        each: the function of `rows`.
    """
    given = "".join(f", const float* loaded{at}" for at in range(loaded))
    names = [f"of_column{at}" for at in range(len(arrays))]
    lines = [f"float {', '.join(f'{name}[{form.columns}]' for name in names)};"]
    lines += [f"for (Index n = 0; n < {form.columns}; ++n) {{"]
    lines += [f"  {name}[n] = {text};" for name, text in zip(names, arrays, strict=True)]
    lines += ["}"]
    if within:
        lines += ["int simple = 1;", f"for (Index n = 0; n < {form.columns}; ++n) {{"]
        for at, (least, most) in within.items():
            lines += [f"  const float size{at} = __builtin_fabsf({names[at]}[n]);"]
            lines += [f"  simple &= (size{at} == 0) | ((size{at} >= {least}f) & (size{at} <= {most}f));"]
        lines += ["}"]
    passed = "".join(f", {name}" for name in names)
    found = [f"{each}<{way}>(to, from{passed}, rows);" for way in ("true", "false")]
    lines += [f"if (simple) {found[0]}", f"else {found[1]}"] if within else [found[1]]
    body = "\n".join(f"  {line}" for line in lines)
    return f"""\
// The same with {loaded} numbers of each column, of arrays beside the elements.
static void {SELF}(float* to, const {form.storage}* from{given}, Index rows) {{
{body}
}}"""


# ---------------------------------------------------------------- the rule


ALIGNED = "__attribute__((aligned(64)))"


def emit_decoded(emitter: CpuEmitter, op: Decoding, panel: Sym, columns: int) -> None:
    """One panel of the operand; every panel is stored in the place of the first."""
    emitter.comment(op, f"a panel of {op.target} = {op.made}, computed of {op.source}")
    with emitter.indented():
        form = form_of(emitter, op, columns)
        held = elements(emitter, op, panel, form)
        if form.way == "words":
            held = _words(emitter, held, form, _extents(op)[1])
        ask_ahead(emitter, op, panel, form)
        parts = PanelParts.of(emitter, op, panel, form, rows)
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


def form_of(emitter: CpuEmitter, op: Decoding, columns: int) -> PanelForm:
    """Storage of a panel's elements for the computation."""
    lanes = emitter.arch.vector_bytes // f32.bytes
    while columns % lanes:
        lanes //= 2
    if op.packed is None:
        return PanelForm(columns, lanes, op.source.dtype, "plain")
    return PanelForm(columns, lanes, op.packed, "words" if op.dim == 1 else "pairs")


def elements(emitter: CpuEmitter, op: Decoding, panel: Sym, form: PanelForm) -> Code:
    """Place of a panel's elements: column by column if they become words, else row by row."""
    side, (columns, depth) = emitter.side(op.source), _extents(op, form)
    row, k = coordinates((columns, depth))
    view = side.view.map((columns, depth), (add(mul(panel, columns), row), k))
    held = aligned_array(emitter, STORAGE[side.dtype.name], "held", columns * depth)
    strides = (depth, 1) if form.way == "words" else (1, columns)
    target = CopySide(held, side.dtype, View.strided((columns, depth), strides), True)
    with emitter.indented():
        copied = Copying(emitter, replace(side, view=view), target).emit()
    emitter.accesses[op.elements, op.elements.location] = copied
    return held


def ask_ahead(emitter: CpuEmitter, op: Decoding, panel: Sym, form: PanelForm) -> None:
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


def _extents(op: Decoding, form: PanelForm | None = None) -> tuple[int, int]:
    """Columns and depth of a panel's elements, or of the bytes that these share; of the whole tile's."""
    (rows, depth), columns = op.source.tensor.shape, op.target.tensor.shape[0]
    assert isinstance(rows, int)
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    return rows if form is None else form.columns * rows // columns, depth


def _words(emitter: CpuEmitter, held: Code, form: PanelForm, depth: int) -> Code:
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


# ---------------------------------------------------------------- computation


@dataclass(frozen=True)
class PanelParts:
    """Parts of a panel along K in which each column has one number of every side array.

    Args:
        emitter: where the text goes.
        op: the decoding.
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
    def of(emitter: CpuEmitter, op: Decoding, panel: Sym, form: PanelForm, spelled: Spelled) -> PanelParts:
        """The parts of a panel, computed by a function that is spelled so."""
        function = _function(emitter, op, form, spelled)
        columns = form.columns
        arrays = (aligned_array(emitter, "float", f"beside{at}", columns) for at in range(len(op.beside)))
        return PanelParts(emitter, op, panel, columns, tuple(arrays), function)

    @property
    def depth(self) -> int:
        """Depth of the panel."""
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
    target = CopySide(array, f32, View.strided((columns,), (1,)), True)
    with emitter.indented():
        copied = Copying(emitter, replace(side, view=side.view.map((columns,), place)), target).emit()
    emitter.accesses[copy, copy.location] = copied


def _function(emitter: CpuEmitter, op: Decoding, form: PanelForm, spelled: Spelled) -> Code:
    """The function that computes a part of a panel."""
    computing = Computing(emitter.convert)
    made = computing.result(op)
    lines = [*computing.lines]
    for dtype in sorted(computing.kept, key=str):
        for name, of in (("near", near(dtype)), ("kept", kept(dtype))):
            function = emitter.function(f"{name}_{dtype}", of)
            lines = [line.replace(f"{name}_{dtype}<", f"{function}<") for line in lines]
    element = emitter.convert("from[e]", form.kind, f32) if form.way == "plain" else ""
    arrays = len(computing.arrays)
    each = emitter.function("compute_each", spelled(form, lines, made, arrays, element))
    whole = decoding(form, len(op.beside), computing.arrays, computing.within, each)
    return emitter.function("compute", whole)
