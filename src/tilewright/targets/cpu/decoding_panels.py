"""The rule that decodes a panel, and the text of its functions.

Elements are first copied into the thread's own memory, in the order in which vectors of columns read them.
A side array is read once for all neighbours along K that share its value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from tilewright.dtypes import DType, bf16, f4e2m1, f16, f32, i32
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
# columns; other elements are stored unchanged.  A 4-bit code becomes a float as the upper bits of its
# fraction.


PER_WORD = 8
"""Numbers of 4 bits in a word."""

FRACTION, SIGN = 23, 31
"""Lowest exponent bit, and sign bit, of an f32."""


def near(dtype: DType) -> str:
    """Return the function that rounds f32 to a format's precision, for 0 and results in the normal range.

    It adds and subtracts 1.5 times a power of two whose last bit is the last bit to keep.
    """
    more = (FRACTION + 1 - DIGITS[dtype] << FRACTION) + (1 << FRACTION - 1)
    return f"""\
// x rounded to {dtype}, if that is neither subnormal nor infinite.
template <typename vector, typename bits> static inline vector {SELF}(vector x) {{
  const vector more = (vector)(((bits)x & 0x7f800000u) + 0x{more:x}u);
  return (x + more) - more;
}}"""


KEPT = {
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
"""The functions that round any f32 to a format."""


@dataclass(frozen=True)
class PanelForm:
    """Storage of the elements from which a panel is computed.

    Args:
        columns: columns of the panel.
        lanes: columns of a vector.
        kind: the dtype of the elements.
        grouping: ``"words"`` of `PER_WORD` neighbours along K, ``"pairs"`` of neighbouring columns in a byte,
            or ``"plain"``.
    """

    columns: int
    lanes: int
    kind: DType
    grouping: str

    @property
    def storage(self) -> str:
        """The C++ type of a storage unit."""
        return {"words": "unsigned", "pairs": "unsigned char"}.get(self.grouping, STORAGE[self.kind.name])

    @property
    def depth(self) -> int:
        """Elements along K in one stored row."""
        return PER_WORD if self.grouping == "words" else 1

    @property
    def pitch(self) -> int:
        """Storage units in one stored row."""
        return self.columns // self.kind.per_byte if self.grouping == "pairs" else self.columns

    def values(self) -> list[float]:
        """Return the floats that stand for the 16 codes, with their offset."""
        found = numbers_of(np.arange(16, dtype=np.uint8), self.kind)[::2].astype(np.float64)
        return [float(value) + offset_of(self.kind) for value in found]


Spelled: TypeAlias = Callable[[PanelForm, Sequence[str], str, int, str], str]
"""A function that returns the C++ text which computes elements of an operand; arguments as for `rows`."""


def rows(form: PanelForm, lines: Sequence[str], made: str, arrays: int, element: str) -> str:
    """Return the function that computes rows of elements.

    Args:
        form: the storage of the elements.
        lines: the statements that compute with the elements ``raw`` and columns' numbers ``of_column0``.
        made: the expression of the operand.
        arrays: the number of arrays over columns.
        element: the plain element ``from[e]`` as f32.
    """
    columns, before = form.columns, ""
    if form.grouping == "plain":  # one long loop converts the elements, in the operand's place
        before = f"""\
  INDEPENDENT
  for (Index e = 0; e < rows * {form.columns}; ++e) to[e] = {element};
"""
    names = [f"of_column{at}" for at in range(arrays)]
    given = "".join(f", const float* of_{at}" for at in range(arrays))
    held = "".join(
        f"    const vector {name} = *(const vector*)(of_{at} + j);\n" for at, name in enumerate(names)
    )
    body = "\n".join(f"        {line}" for line in (_raw(form), *lines))
    read = "".join(f"      {line}\n" for line in _row(form))
    place = f"({form.depth} * k + i)" if form.depth > 1 else "k"
    return f"""\
// to[k][n] for {columns} columns, computed from the elements and the numbers of each column.
template <bool SIMPLE>
static void {SELF}(float* to, const {form.storage}* from{given}, Index rows) {{
{header(form.lanes)}{before}  for (Index j = 0; j < {columns}; j += {form.lanes}) {{
{held}    for (Index k = 0; k < rows; ++k) {{
{read}      UNROLL for (Index i = 0; i < {form.depth}; ++i) {{
{body}
        *(vector*)(to + {place} * {columns} + j) = {made};
      }}
    }}
  }}
}}"""


def header(lanes: int) -> str:
    """Return the declarations of the vector types."""
    kind = f"__attribute__((vector_size({4 * lanes}), aligned(4)))"
    return f"  typedef float vector {kind};\n  typedef unsigned bits {kind};\n"


def _row(form: PanelForm) -> list[str]:
    """Return the lines that read a row of words of 4-bit codes."""
    flipped = " ^ 0x88888888u" if form.kind.kind == "int" and form.kind.is_packed else ""
    if form.grouping == "words":
        return [f"const bits word = *(const bits*)(from + k * {form.pitch} + j){flipped};"]
    if form.grouping == "plain":
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


def _raw(form: PanelForm) -> str:
    """Return the declaration of ``raw``."""
    if form.grouping == "plain":
        return f"const vector raw = *(const vector*)(to + k * {form.columns} + j);"

    def moved(to: int) -> str:
        """Return the word, shifted so that code number ``i`` begins at bit ``to``."""
        return f"({to} >= 4 * i ? word << ({to} - 4 * i & 31) : word >> (4 * i - {to} & 31))"

    if form.kind == f4e2m1:
        sign, size = moved(SIGN - 3), moved(FRACTION - 1)
        up = "__builtin_bit_cast(float, 253u << 23)"
        return f"const vector raw = (vector)(({sign} & 0x80000000u) | ({size} & 0x1c00000u)) * {up};"
    return f"const vector raw = (vector)(({moved(FRACTION - 4)} & 0x780000u) | 0x41800000u);"


def decoding(
    form: PanelForm, loaded: int, arrays: Sequence[str], within: Mapping[int, tuple[float, float]], each: Code
) -> str:
    """Return the function that computes a part of a panel, in which each column has one number of each array.

    Args:
        form: the storage of the elements.
        loaded: the number of side arrays.
        arrays: for each array over columns, the expression of a column's number, e.g. ``loaded0[n]``.
        within: by array, the range of magnitudes in which the short rounding is right for all products.
        each: the function of `rows`.
    """
    given = "".join(f", const float* loaded{at}" for at in range(loaded))
    names = [f"of_column{at}" for at in range(len(arrays))]
    lines = [f"float {', '.join(f'{name}[{form.columns}]' for name in names)};"] if names else []
    lines += [f"for (Index n = 0; n < {form.columns}; ++n) {{"] if names else []
    lines += [f"  {name}[n] = {text};" for name, text in zip(names, arrays, strict=True)]
    lines += ["}"] if names else []
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
// The same, from {loaded} side arrays with a number for each column.
static void {SELF}(float* to, const {form.storage}* from{given}, Index rows) {{
{body}
}}"""


# ---------------------------------------------------------------- the rule


ALIGNED = "__attribute__((aligned(64)))"


def emit_decoded(emitter: CpuEmitter, op: Decoding, panel: Sym, columns: int) -> None:
    """Write one panel of the operand; every panel overwrites the previous one."""
    emitter.comment(op, f"a panel of {op.target} = {op.made}, computed of {op.source}")
    with emitter.indented():
        form = form_of(emitter, op, columns)
        held = elements(emitter, op, panel, form)
        if form.grouping == "words":
            held = _words(emitter, held, form, _extents(op)[1])
        ask_ahead(emitter, op, panel, form)
        parts = PanelParts.of(emitter, op, panel, form, rows)
        with parts.each() as first:
            to = code("{} + {}", emitter.name(op.target.buffer), emitter.spell(mul(first, columns)))
            row = mul(floordiv(first, form.depth), form.pitch)
            parts.call(to, code("{} + {}", held, emitter.spell(row)), first, op.run // form.depth)


def aligned_array(emitter: CpuEmitter, kind: str, wanted: str, elems: int) -> Code:
    """Declare an array on the thread's stack; return its name."""
    name = emitter.local(wanted)
    emitter.add(Declare(named(f"{ALIGNED} {kind}"), name, None, elems))
    return name


# ---------------------------------------------------------------- elements


def form_of(emitter: CpuEmitter, op: Decoding, columns: int) -> PanelForm:
    """Return the storage of a panel's elements for the computation."""
    lanes = emitter.arch.vector_bytes // f32.bytes
    while columns % lanes:
        lanes //= 2
    if op.packed is None:
        return PanelForm(columns, lanes, op.source.dtype, "plain")
    return PanelForm(columns, lanes, op.packed, "words" if op.dim == 1 else "pairs")


def elements(emitter: CpuEmitter, op: Decoding, panel: Sym, form: PanelForm) -> Code:
    """Copy a panel's elements, column by column if they become words, else row by row; return the array."""
    side, (columns, depth) = emitter.side(op.source), _extents(op, form)
    row, k = coordinates((columns, depth))
    view = side.view.map((columns, depth), (add(mul(panel, columns), row), k))
    held = aligned_array(emitter, STORAGE[side.dtype.name], "held", columns * depth)
    strides = (depth, 1) if form.grouping == "words" else (1, columns)
    target = CopySide(held, side.dtype, View.strided((columns, depth), strides), True)
    with emitter.indented():
        copied = Copying(emitter, replace(side, view=view), target).emit()
    emitter.accesses[op.elements, op.elements.location] = copied
    return held


def ask_ahead(emitter: CpuEmitter, op: Decoding, panel: Sym, form: PanelForm) -> None:
    """Prefetch the cache lines of the same panel in the next tile along K."""
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
    """Return columns and depth of a panel, in elements or shared bytes; without a form, of the tile."""
    (rows, depth), columns = op.source.tensor.shape, op.target.tensor.shape[0]
    assert isinstance(rows, int)
    assert isinstance(depth, int)
    assert isinstance(columns, int)
    return rows if form is None else form.columns * rows // columns, depth


def _words(emitter: CpuEmitter, held: Code, form: PanelForm, depth: int) -> Code:
    """Transpose the elements as words of 4 bytes; return the array."""
    count = depth // i32.bytes
    words = aligned_array(emitter, "int", "words", count * form.columns)
    side = next(side for side in (form.lanes, 8, 4, 2, 1) if count % side == form.columns % side == 0)
    function = transposition(emitter, i32, i32, side)
    row, column = Sym(emitter.local("row"), 0, form.columns), Sym(emitter.local("column"), 0, count)
    with emitter.turns(row.name, form.columns, side), emitter.turns(column.name, count, side):
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
        panel: the index of the panel.
        columns: columns of the panel.
        arrays: the arrays for the columns' numbers.
        function: the function that computes a part.
    """

    emitter: CpuEmitter
    op: Decoding
    panel: Sym
    columns: int
    arrays: tuple[Code, ...]
    function: Code

    @staticmethod
    def of(emitter: CpuEmitter, op: Decoding, panel: Sym, form: PanelForm, spelled: Spelled) -> PanelParts:
        """Return the parts of a panel, with the text of their function."""
        function = _function(emitter, op, form, spelled)
        columns = form.columns
        arrays = (aligned_array(emitter, "float", f"side{at}", columns) for at in range(len(op.sides)))
        return PanelParts(emitter, op, panel, columns, tuple(arrays), function)

    @property
    def depth(self) -> int:
        """Depth of the panel."""
        depth = self.op.target.tensor.shape[1]
        assert isinstance(depth, int)
        return depth

    @contextmanager
    def each(self) -> Iterator[Int]:
        """Write a loop over the parts; yield the first k of each."""
        count = self.depth // self.op.run
        if count == 1:
            yield 0
            return
        part = Sym(self.emitter.local("part"), 0, count - 1)
        with self.emitter.turns(part.name, count):
            yield mul(part, self.op.run)

    def call(self, to: Code, held: Code, first: Int, rows: int) -> None:
        """Write the computation of a part.

        Args:
            to: the address of the result.
            held: the address of the elements.
            first: the first k of the part.
            rows: the number of stored rows of elements.
        """
        emitter, columns = self.emitter, self.columns
        for copy, array in zip(self.op.sides, self.arrays, strict=True):
            # Read the numbers of the panel's columns at one k.
            side = emitter.side(copy.source)
            (row,) = coordinates((columns,))
            whole = (add(mul(self.panel, columns), row), first)
            place = [0 if extent == 1 else at for extent, at in zip(side.view.shape, whole, strict=True)]
            target = CopySide(array, f32, View.strided((columns,), (1,)), True)
            with emitter.indented():
                copied = Copying(emitter, replace(side, view=side.view.map((columns,), place)), target).emit()
            emitter.accesses[copy, copy.location] = copied
        emitter.do(call(self.function, to, held, *self.arrays, rows))


def _function(emitter: CpuEmitter, op: Decoding, form: PanelForm, spelled: Spelled) -> Code:
    """Return the function that computes a part of a panel."""
    computing = Computing(emitter.convert)
    made = computing.result(op)
    lines = [*computing.lines]
    for dtype in sorted(computing.kept, key=str):
        for name, of in (("near", near(dtype)), ("kept", KEPT[dtype])):
            function = emitter.function(f"{name}_{dtype}", of)
            lines = [line.replace(f"{name}_{dtype}<", f"{function}<") for line in lines]
    element = emitter.convert("from[e]", form.kind, f32) if form.grouping == "plain" else ""
    arrays = len(computing.arrays)
    each = emitter.function("compute_each", spelled(form, lines, made, arrays, element))
    whole = decoding(form, len(op.sides), computing.arrays, computing.within, each)
    return emitter.function("compute", whole)
