"""The text of functions that multiply few rows by B in its array: in the order of K, or as dot products."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.linear import PanelLayout
from tilewright.targets.cpu.micro_kernels import Term
from tilewright.targets.cpu.vector_moves import VECTOR_BYTES, exchanged, has_parts, load_part, widened
from tilewright.targets.statements import Code

# ---------------------------------------------------------------- in the order of K
#
# Few rows of A take as long as reading B, so functions of their own read B in the order of its addresses.
# They add the products of an element in the order of K, and so give the same bits as micro-kernels.


CHUNK_BYTES = 8192
"""Most bytes of sums of a row, which stay in the first-level cache while the rows of B are read."""

PER_STREAM = 2
"""Vector registers for each row of B that is read at the same time.

Measured on a Zen 4 (32 registers) with 1 x 1141 x 1724 f32: 103 us with 2, 129 with 4, 154 with 1.
"""

IN_ORDER = 4
"""Bytes per column of the rows of B that are read together if B is read in order: one row of f32, or two
rows of 16-bit floats.

Measured on a Zen 4 with attention of four rows to 32,768 keys of f16, 128 columns: 12.0 ms by one row, 9.6 by
two.
"""

AHEAD_BYTES = 4096
"""Prefetch distance in bytes if rows of B are read in order.

Measured on a Zen 5 with attention of four rows to 32,768 keys: f32 12.7 to 13.5 ms without, 11.4 with; 16-bit
floats 3 to 8 % less; one row the same.
"""

WAY_BYTES, NEAR_BYTES, CROWDED = 4096, 32, 4
"""Bytes of a way of the first-level cache; distance in bytes from a multiple of that below which the lines
of neighbouring rows of B share sets; and most rows of B that are read at the same time at such a distance.

Measured on a Zen 4 with f32, 16 rows and 4: 45 and 74 GB/s at 16 bytes from a multiple, 77 and 77 at 32,
and 92 and 79 at 64.
"""


def few_rows_kernel(
    emitter: CpuEmitter,
    dtype: DType,
    stored: DType,
    a: PanelLayout,
    columns: int,
    panel: int,
    *,
    along_rows: bool,
) -> str:
    """Return the text of the function that multiplies few rows by B in its array.

    It reads ``ROWS`` rows of a panel of A, and of B no more than ``columns`` columns and ``depth`` rows.  It
    overwrites ``ROWS`` rows of the sums, in whole panels.  If rows are contiguous, the last argument is
    whether they are read one after the other.

    Args:
        emitter: where functions go.
        dtype: the dtype of A and the sums.
        stored: the dtype of B in memory; another one only if neighbouring columns are contiguous.
        a: the layout of A.
        columns: columns of a micro-tile of sums, a multiple of the lanes of a vector.
        panel: elements from a panel of sums to the next.
        along_rows: whether neighbouring columns of B are contiguous; else its rows are.
    """
    size, arch = dtype.bytes, emitter.arch
    lanes, most = arch.vector_bytes // size, arch.vector_registers // PER_STREAM
    chunk = CHUNK_BYTES // size // columns * columns
    real = STORAGE[dtype.name]
    at_a = f"a[{a.row_stride} * i + {a.k_stride} * (k + u)]"
    head = f"""\
// c[i][n] = (adds ? c[i][n] : 0) + sum of a[i][k] * b[k][n] over k, for i < ROWS and n < columns;
// c consists of panels of {columns} columns"""
    narrow = STORAGE[stored.name]
    arrays = f"const {real}* a, const {narrow}* b, Index step, {real}* c"
    arguments = f"{arrays},\n    Index columns, Index depth, bool adds"
    kind = f"typedef {real} vector __attribute__((vector_size({lanes * size}), aligned({size})));"
    if along_rows:
        load, value, wide = "*(const vector*)({})", "{}", ""
        if stored != dtype:
            load, value, wide = f"(vector){SELF}_wide({{}})", f"f32_of_{stored}({{}})", _wide(stored, lanes)
        given, parameters = "a, b, step, c, columns, depth, adds", f"{arguments}, bool in_order"
        last_deep = f"""\
        for (Index n = whole; n < count; ++n) {{
          asm("" : "+r"(n));  // no vectors of less than LANES elements, which take long to compile
          UNROLL for (Index i = 0; i < ROWS; ++i) {{
            {real} sum = sums[i][n];
            UNROLL for (Index u = 0; u < DEEP; ++u)
              sum = fused({at_a}, {value.format("from[u * step + n]")}, sum);
            sums[i][n] = sum;
          }}
        }}"""
        last_one = f"""\
          for (Index n = whole; n < count; ++n) {{
            asm("" : "+r"(n));
            sums[i][n] = fused({at_a}, {value.format("from[n]")}, sums[i][n]);
          }}"""
        if has_parts(dtype, lanes) and (stored == dtype or lanes * size == VECTOR_BYTES):
            part = f"{load_part(emitter, dtype, lanes)}<vector>({{}}, count - whole)"
            if stored != dtype:
                part = f"(vector){load_part(emitter, stored, lanes)}({{}}, count - whole)"
            last_deep = f"""\
        if (whole < count) {{
          vector sum[ROWS];
          UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = *(const vector*)(sums[i] + whole);
          UNROLL for (Index u = 0; u < DEEP; ++u) {{
            const vector right = {part.format("from + u * step + whole")};
            UNROLL for (Index i = 0; i < ROWS; ++i)
              sum[i] = fused_lanes<1>({at_a} - vector{{}}, right, sum[i]);
          }}
          UNROLL for (Index i = 0; i < ROWS; ++i) *(vector*)(sums[i] + whole) = sum[i];
        }}"""
            last_one = f"""\
          if (whole < count) {{
            vector* const sum = (vector*)(sums[i] + whole);
            const vector right = {part.format("from + whole")};
            *sum = fused_lanes<1>({at_a} - vector{{}}, right, *sum);
          }}"""
        return f"""\
{wide}{head}
template <int ROWS, int DEEP, bool AHEAD>
__attribute__((noinline)) static void {SELF}_by({arguments}) {{
  {kind}
  constexpr Index CHUNK = {chunk}, LANES = {lanes};
  {real} sums[ROWS][CHUNK] __attribute__((aligned(64)));
  for (Index first = 0; first < columns; first += CHUNK) {{
    const Index count = min_int(columns - first, CHUNK), whole = count / LANES * LANES;
    const Index padded = (count + {columns - 1}) / {columns} * {columns};
    for (Index n = 0; n < padded; n += LANES)
      UNROLL for (Index i = 0; i < ROWS; ++i) *(vector*)(sums[i] + n) = vector{{}};
    for (Index k = 0; k < depth;) {{
      const {narrow}* const from = b + k * step + first;
      if (k + DEEP <= depth) {{
        for (Index n = 0; n < whole; n += LANES) {{
          vector sum[ROWS];
          UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = *(const vector*)(sums[i] + n);
          UNROLL for (Index u = 0; u < DEEP; ++u) {{
            const vector right = {load.format("from + u * step + n")};
            if (AHEAD) __builtin_prefetch(from + u * step + n + {AHEAD_BYTES // stored.bytes});
            UNROLL for (Index i = 0; i < ROWS; ++i)
              sum[i] = fused_lanes<1>({at_a} - vector{{}}, right, sum[i]);
          }}
          UNROLL for (Index i = 0; i < ROWS; ++i) *(vector*)(sums[i] + n) = sum[i];
        }}
{last_deep}
        k += DEEP;
      }}
      else {{
        const Index u = 0;
        UNROLL for (Index i = 0; i < ROWS; ++i) {{
          for (Index n = 0; n < whole; n += LANES) {{
            vector* const sum = (vector*)(sums[i] + n);
            const vector right = {load.format("from + n")};
            *sum = fused_lanes<1>({at_a} - vector{{}}, right, *sum);
          }}
{last_one}
        }}
        ++k;
      }}
    }}
    for (Index n = 0; n < padded; n += {columns})
      UNROLL for (Index i = 0; i < ROWS; ++i) {{
        {real}* const to = c + (first + n) / {columns} * {panel} + {columns} * i;
        UNROLL for (Index j = 0; j < {columns}; j += LANES) {{
          const vector sum = *(const vector*)(sums[i] + n + j);
          *(vector*)(to + j) = adds ? *(const vector*)(to + j) + sum : sum;
        }}
      }}
  }}
}}

template <int ROWS>
static void {SELF}({parameters}) {{
  constexpr int DEEP = {most} / ROWS;
  if (in_order) return {SELF}_by<ROWS, {max(IN_ORDER // stored.bytes, 1)}, true>({given});
  const Index beside = step * Index(sizeof(*b)) & {WAY_BYTES - 1};  // bytes from a multiple
  if (min_int(beside, {WAY_BYTES} - beside) < {NEAR_BYTES})
    return {SELF}_by<ROWS, (DEEP < {CROWDED} ? DEEP : {CROWDED}), false>({given});
  {SELF}_by<ROWS, DEEP, false>({given});
}}"""
    stages = "\n".join(f"    {line}" for line in exchanged(lanes, size))
    return f"""\
{head}
template <int ROWS>
__attribute__((noinline)) static void {SELF}({arguments}) {{
  {kind}
  constexpr Index LANES = {lanes};
  for (Index n = 0; n < columns; n += LANES) {{
    const {real}* from[LANES];  // past the last column: the last one again, for sums that nothing reads
    for (Index j = 0; j < LANES; ++j) from[j] = b + min_int(n + j, columns - 1) * step;
    vector sum[ROWS];
    UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = vector{{}};
    Index k = 0;
    for (; k + LANES <= depth; k += LANES) {{
      vector row[LANES];
      UNROLL for (Index j = 0; j < LANES; ++j) row[j] = *(const vector*)(from[j] + k);
{stages}
      UNROLL for (Index u = 0; u < LANES; ++u)
        UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = fused_lanes<1>({at_a} - vector{{}}, row[u], sum[i]);
    }}
    for (; k < depth; ++k) {{
      const Index u = 0;
      vector row;
      UNROLL for (Index j = 0; j < LANES; ++j) row[j] = from[j][k];
      UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = fused_lanes<1>({at_a} - vector{{}}, row, sum[i]);
    }}
    UNROLL for (Index i = 0; i < ROWS; ++i) {{
      vector* const to = (vector*)(c + n / {columns} * {panel} + {columns} * i + n % {columns});
      *to = adds ? *to + sum[i] : sum[i];
    }}
  }}
}}"""


# ---------------------------------------------------------------- pairs, in the order of K
#
# The parts of complex numbers are neighbours in memory.  Vectors of pairs are divided into vectors of first
# and of second parts in registers, and each sum adds its products in the order of the micro-kernels.


def few_pairs_kernel(
    arch: Arch,
    dtype: DType,
    a: PanelLayout,
    columns: int,
    panel: int,
    terms: Sequence[Term],
    *,
    along_rows: bool,
    part: Code,
) -> str:
    """Return the text of the function that multiplies few rows by two B whose elements are neighbours.

    It reads ``ROWS`` rows of a panel of each A, and no more than ``columns`` pairs and ``depth`` rows of B.
    It overwrites ``ROWS`` rows of the sums, in whole panels.

    Args:
        arch: the processor.
        dtype: the dtype of all arrays.
        a: the layout of each A.
        columns: columns of a micro-tile of sums, a multiple of the lanes of a vector.
        panel: elements from a panel of sums to the next.
        terms: the products of one step along K, in the order of the micro-kernels.
        along_rows: whether neighbouring columns of B are neighbouring pairs; else its rows are.
        part: the function that loads a part of a vector.
    """
    size = dtype.bytes
    lanes, real = arch.vector_bytes // size, STORAGE[dtype.name]
    kind = f"typedef {real} vector __attribute__((vector_size({lanes * size}), aligned({size})));"
    head = f"""\
// c[i][n] and c1[i][n] = what they are if adds, else 0, plus the products of a, a1 and pairs of b over k,
// for i < ROWS and n < columns; they consist of panels of {columns} columns"""
    arguments = (
        f"const {real}* a, const {real}* a1, const {real}* b, Index step, {real}* c, {real}* c1,\n"
        "    Index columns, Index depth, bool adds, bool adds1"
    )
    at_a, each_row = f"{a.row_stride} * i + {a.k_stride} * (k + u)", "UNROLL for (Index i = 0; i < ROWS; ++i)"

    def multiplied(indent: int, *rights: str) -> str:
        lines = [f"{each_row} {{"]
        lines += [f"  const vector left{at} = a{at or ''}[{at_a}] - vector{{}};" for at in (0, 1)]
        for one in sorted(terms, key=lambda term: term.a):
            sign, into = "-" if one.negative else "", f"sum[{one.c}][i]"
            lines.append(f"  {into} = fused_lanes<{sign}1>(left{one.a}, {rights[one.b]}, {into});")
        return "\n".join(" " * indent + line for line in [*lines, "}"])

    stored = """\
UNROLL for (Index i = 0; i < ROWS; ++i) {{
        vector* const to = (vector*)(c + {at});
        vector* const to1 = (vector*)(c1 + {at});
        *to = adds ? *to + {sum} : {sum};
        *to1 = adds1 ? *to1 + {sum1} : {sum1};
      }}"""
    at_c = f"{{}} / {columns} * {panel} + {columns} * i + {{}} % {columns}"
    if along_rows:
        chunk = CHUNK_BYTES // size // columns * columns
        deep = max(arch.vector_registers // PER_STREAM // 2, 1)
        even, odd = (", ".join(str(lane) for lane in range(first, 2 * lanes, 2)) for first in (0, 1))
        sums = stored.format(
            at=at_c.format("(first + n)", "n"), sum="*(const vector*)(sums[0][i] + n)",
            sum1="*(const vector*)(sums[1][i] + n)",
        )  # fmt: skip
        return f"""\
{head}
template <int ROWS, int DEEP, bool IS_PART>
static inline __attribute__((always_inline)) void {SELF}_pairs(const {real}* a, const {real}* a1,
    const {real}* b, Index step, {real} (*sums)[ROWS][{chunk}], Index k, Index count) {{
  {kind}
  vector sum[2][ROWS];
  UNROLL for (Index p = 0; p < 2; ++p)
    {each_row} sum[p][i] = *(const vector*)sums[p][i];
  UNROLL for (Index u = 0; u < DEEP; ++u) {{
    const {real}* const from = b + u * step;
    const vector low = IS_PART ? {part}<vector>(from, 2 * count) : *(const vector*)from;
    const vector high = IS_PART ? {part}<vector>(from + {lanes}, 2 * count - {lanes})
      : *(const vector*)(from + {lanes});
    const vector right = __builtin_shufflevector(low, high, {even});
    const vector right1 = __builtin_shufflevector(low, high, {odd});
{multiplied(4, "right", "right1")}
  }}
  UNROLL for (Index p = 0; p < 2; ++p)
    {each_row} *(vector*)sums[p][i] = sum[p][i];
}}

template <int ROWS>
__attribute__((noinline)) static void {SELF}({arguments}) {{
  {kind}
  constexpr Index CHUNK = {chunk}, LANES = {lanes}, DEEP = {deep} / ROWS;
  {real} sums[2][ROWS][CHUNK] __attribute__((aligned(64)));
  typedef {real} (*Chunks)[ROWS][CHUNK];
  for (Index first = 0; first < columns; first += CHUNK) {{
    const Index count = min_int(columns - first, CHUNK);
    const Index padded = (count + {columns - 1}) / {columns} * {columns};
    UNROLL for (Index p = 0; p < 2; ++p)
      {each_row}
        for (Index n = 0; n < padded; n += LANES) *(vector*)(sums[p][i] + n) = vector{{}};
    for (Index k = 0; k < depth;) {{
      const bool is_deep = k + DEEP <= depth;
      for (Index n = 0; n < count; n += LANES) {{
        const {real}* const from = b + k * step + 2 * (first + n);
        const Chunks at = (Chunks)(&sums[0][0][n]);
        if (n + LANES > count) {{
          for (Index u = 0; u < (is_deep ? DEEP : 1); ++u)
            {SELF}_pairs<ROWS, 1, true>(a, a1, from + u * step, step, at, k + u, count - n);
        }}
        else if (is_deep) {SELF}_pairs<ROWS, DEEP, false>(a, a1, from, step, at, k, LANES);
        else {SELF}_pairs<ROWS, 1, false>(a, a1, from, step, at, k, LANES);
      }}
      k += is_deep ? DEEP : 1;
    }}
    for (Index n = 0; n < padded; n += LANES) {{
      {sums}
    }}
  }}
}}"""
    stages = "\n".join(f"    {line}" for line in exchanged(lanes, size))
    sums = stored.format(at=at_c.format("n", "n"), sum="sum[0][i]", sum1="sum[1][i]")
    return f"""\
{head}
template <int ROWS>
__attribute__((noinline)) static void {SELF}({arguments}) {{
  {kind}
  constexpr Index LANES = {lanes}, PAIRS = LANES / 2;
  for (Index n = 0; n < columns; n += LANES) {{
    const {real}* from[LANES];  // past the last column: the last one again, for sums that nothing reads
    for (Index j = 0; j < LANES; ++j) from[j] = b + min_int(n + j, columns - 1) * step;
    vector sum[2][ROWS];
    {each_row} sum[0][i] = sum[1][i] = vector{{}};
    Index k = 0;
    for (; k + PAIRS <= depth; k += PAIRS) {{
      vector row[LANES];
      UNROLL for (Index j = 0; j < LANES; ++j) row[j] = *(const vector*)(from[j] + 2 * k);
{stages}
      UNROLL for (Index u = 0; u < PAIRS; ++u)
{multiplied(8, "row[2 * u]", "row[2 * u + 1]")}
    }}
    for (; k < depth; ++k) {{
      const Index u = 0;
      vector right, right1;
      UNROLL for (Index j = 0; j < LANES; ++j) {{
        right[j] = from[j][2 * k];
        right1[j] = from[j][2 * k + 1];
      }}
{multiplied(6, "right", "right1")}
    }}
    {sums.replace(chr(10) + "  ", chr(10))}
  }}
}}"""


# ---------------------------------------------------------------- dot products along K
#
# A sum has a vector of partial sums, each of every LANES-th product.  Columns of B are read in place, widened
# in registers, and multiplied by several rows of A.  A few columns stay in the first-level cache while all
# rows are multiplied by them.


TOGETHER = 4
"""Columns that are multiplied together."""

MANY_REGISTERS = 32
"""Vector registers from which `TOGETHER` rows are multiplied together; with fewer, half as many rows are."""

_ADDED_UP = {
    4: """\
      const few left_two = __builtin_shufflevector(part[0], part[1], 0, 4, 1, 5)
        + __builtin_shufflevector(part[0], part[1], 2, 6, 3, 7);
      const few right_two = __builtin_shufflevector(part[2], part[3], 0, 4, 1, 5)
        + __builtin_shufflevector(part[2], part[3], 2, 6, 3, 7);
      few total[1] = {__builtin_shufflevector(left_two, right_two, 0, 1, 4, 5)
        + __builtin_shufflevector(left_two, right_two, 2, 3, 6, 7)};""",
    2: """\
      few total[2];
      UNROLL for (Index j = 0; j < 2; ++j)
        total[j] = __builtin_shufflevector(part[2 * j], part[2 * j + 1], 0, 2)
          + __builtin_shufflevector(part[2 * j], part[2 * j + 1], 1, 3);""",
}
"""C++ that adds up `TOGETHER` vectors of partial sums, by the number of partial sums in a vector."""


def _wide(stored: DType, lanes: int) -> str:
    """Return the function that loads a vector of f32 from halves."""
    return f"""\
static inline auto {SELF}_wide(const {STORAGE[stored.name]}* from) {{
  typedef float vector __attribute__((vector_size({4 * lanes})));
{widened(stored, lanes)}
}}

"""


def dots_kernel(
    arch: Arch, dtype: DType, stored: DType, pitch: int, unit: tuple[int, int], steps: tuple[int, int]
) -> str:
    """Return the text of the function of dot products along K, which reads B in its array.

    It reads no more than ``rows`` rows of A, and of B no more than ``columns`` columns, and ``depth``
    elements of both.  Of each row it writes whole groups of `TOGETHER` sums; those past ``columns`` are
    sums of zeros.  The last argument is whether columns are read one after the other.

    Args:
        arch: the processor.
        dtype: the dtype of A and the sums.
        stored: the dtype of B in memory.
        pitch: elements between rows of A.
        unit: rows and columns of a micro-tile of sums; its columns are a multiple of `TOGETHER`.
        steps: elements from a micro-tile of sums to the next along the rows, and along the columns.
    """
    size = dtype.bytes
    lanes, few, real, narrow = (
        arch.vector_bytes // size,
        16 // size,
        STORAGE[dtype.name],
        STORAGE[stored.name],
    )
    most = TOGETHER if arch.vector_registers >= MANY_REGISTERS else TOGETHER // 2
    integer = "long long" if size == 8 else "int"
    load = f"{SELF}_wide(from[j] + {{}})" if stored != dtype else "*(const vector*)(from[j] + {})"
    kind = f"typedef {real} vector __attribute__((vector_size({lanes * size}), aligned({size}), may_alias));"
    wide = "" if stored == dtype else _wide(stored, lanes)
    value = "from[g + j][u]" if stored == dtype else f"f32_of_{stored}(from[g + j][u])"
    by_one = TOGETHER if most == TOGETHER else 2 * TOGETHER  # columns that one row is multiplied by
    given = f"(a + {pitch} * i, b + n * step, step, c, i, n, count, depth, adds, in_order)"
    heights = "\n".join(
        f"      {'else ' if height < most else ''}if (rows - i >= {height}) {{\n"
        f"        {SELF}_rows<{height}, {by_one if height == 1 else TOGETHER}>{given};\n"
        f"        i += {height};\n      }}"
        for height in (4, 2, 1)
        if height <= most
    )
    each_row, each_column, each_of_few = (
        f"UNROLL for (Index {at} = 0; {at} < {end}; ++{at})"
        for at, end in (("i", "ROWS"), ("j", "WIDE"), ("j", TOGETHER))
    )
    return f"""\
{wide}// sums of rows {{row}} to {{row + ROWS - 1}} and columns {{first}} to {{first + columns - 1}}
template <int ROWS, int WIDE>
__attribute__((noinline)) static void {SELF}_rows(const {real}* a, const {narrow}* b, Index step, {real}* c,
    Index row, Index first, Index columns, Index depth, bool adds, bool in_order) {{
  {kind}
  typedef {real} few __attribute__((vector_size(16), aligned({size}), may_alias));
  typedef {integer} bits __attribute__((vector_size({lanes * size})));
  constexpr Index LANES = {lanes}, FEW = {few};
  bits lane;
  for (Index l = 0; l < LANES; ++l) lane[l] = ({integer})l;
  // The last products are those of the last vector that were not added before.
  const Index rest = depth < LANES ? 0 : depth % LANES;
  const bits kept = lane >= bits{{}} + ({integer})(LANES - rest);
  for (Index n = 0; n < columns; n += WIDE) {{
    const {narrow}* from[WIDE];  // past the last column the last one again
    {each_column} from[j] = b + min_int(n + j, columns - 1) * step;
    vector sum[ROWS][WIDE] __attribute__((aligned(64))), left[ROWS];
    {each_row} {each_column} sum[i][j] = vector{{}};
    Index k = 0;
    if (in_order) {{
      {each_column}
        for (k = 0; k + LANES <= depth; k += LANES) {{
          const vector right = {load.format("k")};
          {each_row} sum[i][j] = fused_lanes<1>(*(const vector*)(a + {pitch} * i + k), right, sum[i][j]);
        }}
    }}
    else {{
      for (; k + LANES <= depth; k += LANES) {{
        {each_row} left[i] = *(const vector*)(a + {pitch} * i + k);
        {each_column} {{
          const vector right = {load.format("k")};
          {each_row} sum[i][j] = fused_lanes<1>(left[i], right, sum[i][j]);
        }}
      }}
    }}
    if (rest) {{
      k = depth - LANES;
      {each_row} left[i] = (vector)((bits)*(const vector*)(a + {pitch} * i + k) & kept);
      {each_column} {{
        const vector right = (vector)((bits){load.format("k")} & kept);
        {each_row} sum[i][j] = fused_lanes<1>(left[i], right, sum[i][j]);
      }}
      k = depth;
    }}
    {each_row} UNROLL for (Index g = 0; g < WIDE; g += {TOGETHER}) {{
      if (n + g >= columns) break;
      few part[{TOGETHER}];
      {each_of_few} {{
        const few* const pieces = (const few*)&sum[i][g + j];
        part[j] = pieces[0];
        UNROLL for (Index l = 1; l < LANES / FEW; ++l) part[j] += pieces[l];
      }}
{_ADDED_UP[few]}
      for (Index u = k; u < depth; ++u)
        {each_of_few} {{
          few* const to = total + j / FEW;
          (*to)[j % FEW] = fused(a[{pitch} * i + u], {value}, (*to)[j % FEW]);
        }}
      for (Index j = columns - n - g; j < {TOGETHER}; ++j) total[j / FEW][j % FEW] = 0;
      {real}* const to = c + (row + i) / {unit[0]} * {steps[0]} + (row + i) % {unit[0]} * {unit[1]}
        + (first + n + g) / {unit[1]} * {steps[1]} + (first + n + g) % {unit[1]};
      UNROLL for (Index j = 0; j < {TOGETHER} / FEW; ++j) {{
        few* const at = (few*)(to + FEW * j);
        *at = adds ? *at + total[j] : total[j];
      }}
    }}
  }}
}}

// c[i][n] = (adds ? c[i][n] : 0) + sum of a[i][k] * b[n][k] over k, for i < rows and n < columns,
// in any order; c consists of micro-tiles of {unit[0]} x {unit[1]}
static void {SELF}(const {real}* a, const {narrow}* b, Index step, {real}* c, Index rows, Index columns,
    Index depth, bool adds, bool in_order) {{
  const bool once = rows == 1 || rows == 2 || rows == {most};
  const Index part = once ? columns : {TOGETHER};
  for (Index n = 0; n < columns; n += part) {{
    const Index count = min_int(columns - n, part);
    for (Index i = 0; i < rows;) {{
{heights}
    }}
  }}
}}"""
