"""The text of the functions that compute a panel of an operand: vectors of columns, one k after the other.

Elements of 4 bits lie as words of 8 neighbours along K, or as bytes of two neighbours along the columns;
others lie as they are.  A code of 4 bits is put into the upper bits of a fraction, which makes it a float.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from tilewright.dtypes import DType, bf16, f4e2m1, f16
from tilewright.packing import numbers_of
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.decoding_values import DIGITS, offset_of
from tilewright.targets.cpu.emitter import SELF
from tilewright.targets.statements import Code

PER_WORD = 8
"""Numbers of 4 bits in a word."""

FRACTION, SIGN = 23, 31
"""Where in a f32 its exponent begins, and its sign."""


def near(dtype: DType) -> str:
    """Rounds f32 to the precision of a format: where nothing overflows, nor is subnormal but 0.

    What is added is 1.5 times a power of two, whose last bit is the unit of what is kept.
    """
    more = (FRACTION + 1 - DIGITS[dtype] << FRACTION) + (1 << FRACTION - 1)
    return f"""\
// x rounded to {dtype}, if that is neither subnormal nor infinite.
template <typename vector, typename bits> static inline vector {SELF}(vector x) {{
  const vector more = (vector)(((bits)x & 0x7f800000u) + 0x{more:x}u);
  return (x + more) - more;
}}"""


def kept(dtype: DType) -> str:
    """Rounds f32 to a format, whatever it is."""
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
class Form:
    """How elements lie from which a panel is computed.

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
        """How many k belong to a row of what holds them."""
        return PER_WORD if self.way == "words" else 1

    @property
    def pitch(self) -> int:
        """How many of what holds them are a row."""
        return self.columns // self.kind.per_byte if self.way == "pairs" else self.columns

    def values(self) -> list[float]:
        """The numbers that codes of 4 bits are taken for."""
        found = numbers_of(np.arange(16, dtype=np.uint8), self.kind)[::2].astype(np.float64)
        return [float(value) + offset_of(self.kind) for value in found]


Spelled: TypeAlias = Callable[[Form, Sequence[str], str, int, str], str]
"""A function that computes an operand of elements, as `rows` spells it."""


def rows(form: Form, lines: Sequence[str], made: str, arrays: int, element: str) -> str:
    """The function that computes so many rows of what holds elements.

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


def _before(form: Form, element: str) -> str:
    """What comes before the loops: plain elements are converted in one long loop, where the operand goes."""
    if form.way != "plain":
        return ""
    return f"""\
  INDEPENDENT
  for (Index e = 0; e < rows * {form.columns}; ++e) to[e] = {element};
"""


def _row(form: Form) -> list[str]:
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


def _raw(form: Form) -> list[str]:
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
    form: Form,
    loaded: int,
    arrays: Sequence[str],
    within: Mapping[int, tuple[float, float]],
    each: Code,
) -> str:
    """The function that computes a part of a panel, in which a column has one number of each array.

    Args:
        form: how elements lie.
        loaded: how many arrays there are.
        arrays: what is computed of a column's numbers, ``loaded0[n]`` and so on.
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
