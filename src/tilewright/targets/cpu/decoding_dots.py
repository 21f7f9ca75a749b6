"""Few rows times packed weights: each code is looked up in a table of its group's 16 weights.

A vector holds the table of one group and column, so that one AVX-512 instruction looks up 16 neighbours along
K.  They are multiplied by 16 numbers of A.  Nothing is transposed, or written to a panel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tilewright.dtypes import f32
from tilewright.symbolic.expr import floordiv
from tilewright.symbolic.nodes import Sym
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_panels import (
    PanelForm,
    PanelParts,
    aligned_array,
    ask_ahead,
    elements,
    form_of,
    header,
)
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.vector_moves import exchanged
from tilewright.targets.statements import Code, code, joined

MOST_ROWS = 4
"""Most rows of A that are multiplied by looked-up weights; more rows are multiplied by panels."""

CODES, CODE_BITS = 16, 4
"""Values of a 4-bit code, and its bits.  A vector of `VECTOR_BYTES` holds as many f32."""

VECTOR_BYTES = 64

PER_LOAD = 8
"""Bytes that hold the codes of a vector."""


@dataclass(frozen=True)
class Dots:
    """A multiply of few rows by weights that are looked up in tables.

    Args:
        op: the decoding.
        columns: columns of a panel.
        a: elements between rows of A.
    """

    op: Decoding
    columns: int
    a: int

    def emit(self, emitter: CpuEmitter, panel: Sym, needed: Code, a: Code, c: Code, adds: Code) -> None:
        """Write the multiply by one panel.

        Args:
            emitter: where the text goes.
            panel: the index of the panel.
            needed: the number of rows.
            a: the address of A.
            c: the address of the panel's sums.
            adds: whether to add to the sums instead of overwriting them.
        """
        op, form = self.op, form_of(emitter, self.op, self.columns)
        emitter.comment(op, f"few rows by {op.made}, looked up by {op.source}")
        with emitter.indented():
            held = elements(emitter, op, panel, form)
            ask_ahead(emitter, op, panel, form)
            tables = aligned_array(emitter, "float", "tables", CODES * self.columns)
            parts = PanelParts.of(emitter, op, panel, form, _tables)
            sums = aligned_array(emitter, "float", "sums", MOST_ROWS * CODES * self.columns)
            emitter.call("fused_lanes")
            kernel = emitter.function("multiply_looked_up", _text(self, op.run, parts.depth // 2))
            with parts.each() as first:
                parts.call(tables, code("(const unsigned*){}", held), first, self.columns)
                from_a, from_b = emitter.spell(first), emitter.spell(floordiv(first, 2))
                given = (sums, code("{} + {}", a, from_a), code("{} + {}", held, from_b), tables)
                later = Code("false") if first == 0 else code("{} > 0", from_a)
                _of_each_size(emitter, kernel, needed, (*given, later))
            total = " + ".join(f"row[{lane}]" for lane in range(CODES))
            stages = "\n".join(f"    {line}" for line in exchanged(CODES, f32.bytes))
            text = f"""\
// c[i][n] = (adds ? c[i][n] : 0) + all lanes of sums[i][n]
template <int ROWS>
static void {SELF}(float* c, const float* sums, bool adds) {{
{header(CODES)}  for (Index n = 0; n < ROWS * {self.columns}; n += {CODES}) {{
    vector row[{CODES}];
    UNROLL for (Index l = 0; l < {CODES}; ++l) row[l] = *(const vector*)(sums + {CODES} * (n + l));
{stages}
    const vector total = {total};
    vector* const to = (vector*)(c + n);
    *to = adds ? *to + total : total;
  }}
}}"""
            _of_each_size(emitter, emitter.function("add_lanes", text), needed, (c, sums, adds))


def _of_each_size(emitter: CpuEmitter, function: Code, needed: Code, given: Sequence[Code]) -> None:
    """Write a branch for each number of rows that calls the function's instance for it."""
    for rows in range(1, MOST_ROWS + 1):
        with emitter.branch(code("{} == {}", needed, rows)):
            emitter.do(code("{}<{}>({})", function, rows, joined(", ", given)))


def dots_of(emitter: CpuEmitter, op: Decoding, columns: int, row_stride: int, k_stride: int) -> Dots | None:
    """Return the multiply of few rows without panels, or None if the operands do not allow it.

    Args:
        emitter: the emitter of the text.
        op: the decoding.
        columns: columns of a panel.
        row_stride: elements between rows of A.
        k_stride: elements between neighbours along K in A.
    """
    form = form_of(emitter, op, columns)
    fits = emitter.arch.vector_bytes == VECTOR_BYTES and columns % CODES == op.run % CODES == 0
    return Dots(op, columns, row_stride) if fits and form.grouping == "words" and k_stride == 1 else None


def _tables(form: PanelForm, lines: Sequence[str], made: str, arrays: int, element: str) -> str:
    """Return the function that computes the table of weights of each column."""
    given = "".join(f", const float* of_{at}" for at in range(arrays))
    held = "".join(f"    const vector of_column{at} = vector{{}} + of_{at}[n];\n" for at in range(arrays))
    body = "\n".join(f"    {line}" for line in lines)
    numbers = ", ".join(f"{value}f" for value in form.values())
    return f"""\
// to[{CODES} * n + code]: the value of a code, given the numbers of a column.
template <bool SIMPLE>
static void {SELF}(float* to, const {form.storage}*{given}, Index columns) {{
{header(CODES)}  const vector raw = {{{numbers}}};
  for (Index n = 0; n < columns; ++n) {{
{held}{body}
    *(vector*)(to + {CODES} * n) = {made};
  }}
}}"""


def _text(dots: Dots, run: int, pitch: int) -> str:
    """Return the micro-kernel: sums along K, in the order of the codes of two words."""
    steps = run // CODES
    shifts = ", ".join(str(CODE_BITS * (lane // 2)) for lane in range(CODES))
    order = ", ".join(str(lane // 2 + lane % 2 * CODES // 2) for lane in range(CODES))
    return f"""\
// sums[i][n][lane] = (adds ? sums[i][n][lane] : 0) + sum of a[i][k] * tables[n][code of n at k] over {run} k
template <int ROWS>
__attribute__((noinline)) static void {SELF}(float* sums, const float* a, const unsigned char* from,
    const float* tables, bool adds) {{
{header(CODES)}  typedef unsigned long long words __attribute__((vector_size({VECTOR_BYTES})));
  const bits shifts = {{{shifts}}};
  vector left[ROWS][{steps}];
  UNROLL for (Index i = 0; i < ROWS; ++i) {{
    UNROLL for (Index t = 0; t < {steps}; ++t) {{
      const vector x = *(const vector*)(a + {dots.a} * i + {CODES} * t);
      left[i][t] = __builtin_shufflevector(x, x, {order});
    }}
  }}
  for (Index n = 0; n < {dots.columns}; ++n) {{
    vector* const to = (vector*)(sums + {CODES} * n);
    const vector table = *(const vector*)(tables + {CODES} * n);
    vector sum[ROWS];
    UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = adds ? to[{dots.columns} * i] : vector{{}};
    UNROLL for (Index t = 0; t < {steps}; ++t) {{
      unsigned long long codes;
      __builtin_memcpy(&codes, from + {pitch} * n + {PER_LOAD} * t, {PER_LOAD});
      const bits index = (bits)(words{{}} + codes) >> shifts;
      vector x;
#if defined(__AVX512F__)
      asm("vpermps %2, %1, %0" : "=v"(x) : "v"(index), "v"(table));
#else
      for (Index l = 0; l < {CODES}; ++l) x[l] = table[index[l] & {CODES - 1}];
#endif
      UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = fused_lanes<1>(left[i][t], x, sum[i]);
    }}
    UNROLL for (Index i = 0; i < ROWS; ++i) to[{dots.columns} * i] = sum[i];
  }}
}}"""
