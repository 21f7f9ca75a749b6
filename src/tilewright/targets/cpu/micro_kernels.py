"""The text of micro-kernels, which keep the sums of one or several products in registers over the depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tilewright.arch import Arch
from tilewright.dtypes import DType, bf16, f16
from tilewright.ir.mma import MmaAtom
from tilewright.targets.cpu.arch import adds_groups, holds
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.linear import PanelLayout
from tilewright.targets.cpu.vector_moves import exchanged
from tilewright.targets.statements import Code, code

# ---------------------------------------------------------------- byte dot products on x86, from AVX2 on
#
# Neighbours along K form groups of 4 bytes.  With VNNI a group has four bytes of B with an offset of 128,
# which ``vpdpbusd`` multiplies by four bytes of A; without VNNI ``vpmaddwd`` multiplies pairs of 16-bit
# numbers.  A has rows of contiguous k.  B is packed as a panel, and grouped once for all rows.  The offset
# adds 128 times the sum of a row of A, so each sum starts at minus this product.


LANE_BYTES = 4
"""Bytes of a sum."""


def group_count(columns: int, depth: int) -> int:
    """Return the number of groups of a panel of B, for the smaller groups of two numbers."""
    return columns * depth // 2


def _vnni(lanes: int) -> str:
    """The preprocessor condition of byte dot products for a vector of sums."""
    if lanes * LANE_BYTES > 32:
        return "defined(__AVX512VNNI__)"
    return "defined(__AVXVNNI__) || (defined(__AVX512VNNI__) && defined(__AVX512VL__))"


def grouping(columns: int, lanes: int) -> str:
    """Return the function that groups a panel of B.

    Args:
        columns: columns of the panel, a multiple of ``lanes``.
        lanes: sums of a vector.
    """
    load = f"__builtin_convertvector(*(const bytes*)(b + (k + {{}}) * {columns} + n), lanes)"
    four = " | ".join(f"(({load.format(at)} & 255) << {8 * at})" for at in range(4))
    two = f"({load.format(0)} & 65535) | ({load.format(1)} << 16)"
    kinds = f"""\
  typedef int lanes __attribute__((vector_size({lanes * LANE_BYTES}), aligned(4)));
  typedef signed char bytes __attribute__((vector_size({lanes}), aligned(1)));"""
    return f"""\
// groups of neighbours along k of a panel b[k][n]; elements past its depth count as 0
static void {SELF}(int* groups, const signed char* b, Index depth) {{
{kinds}
#if {_vnni(lanes)}
  const Index many = 4;
#else
  const Index many = 2;
#endif
  Index k = 0;
  for (; k + many <= depth; k += many)
    UNROLL for (Index n = 0; n < {columns}; n += {lanes}) {{
#if {_vnni(lanes)}
      const lanes found = ({four}) ^ (int)0x80808080;
#else
      const lanes found = {two};
#endif
      *(lanes*)(groups + k / many * {columns} + n) = found;
    }}
  if (k == depth) return;
  for (Index n = 0; n < {columns}; ++n) {{
    unsigned last = 0;
    for (Index i = 0; k + i < depth; ++i) {{
      const int value = b[(k + i) * {columns} + n];
      last |= many == 4 ? (unsigned)((value & 255) ^ 128) << 8 * i : (unsigned)(value & 65535) << 16 * i;
    }}
    groups[k / many * {columns} + n] = (int)last;
  }}
}}"""


def row_sums(pitch: int) -> str:
    """Return the function that adds up the rows of A, which are ``pitch`` bytes apart."""
    return f"""\
// sums[i] = sum of a[i][k] over k < depth
static void {SELF}(int* sums, const signed char* a, Index rows, Index depth) {{
  for (Index i = 0; i < rows; ++i) {{
    int sum = 0;
    for (Index k = 0; k < depth; ++k) sum += a[i * {pitch} + k];
    sums[i] = sum;
  }}
}}"""


def dot_kernel(columns: int, lanes: int, pitch: int, depth: int) -> str:
    """Return the micro-kernel of bytes, whose arguments are groups for B, and also the sums of A's rows.

    Args:
        columns: columns of a micro-tile.
        lanes: sums of a vector.
        pitch: bytes between rows of A.
        depth: the largest depth of the operands.
    """
    kind, prefix = ("v", "") if lanes * LANE_BYTES > 32 else ("x", "DOTS_PREFIX ")
    dot = f'asm({prefix}"vpdpbusd %2, %1, %0" : "+{kind}"(sum[i][j]) : "{kind}"(right[j]), "{kind}"(left));'
    each_row = "UNROLL for (Index i = 0; i < ROWS; ++i)"
    each_vector = "UNROLL for (Index j = 0; j < VECTORS; ++j)"
    return f"""\
// c[i][j] = (adds ? c[i][j] : 0) + sum of a[i][k] * b[k][j] over k, i < ROWS, j < {lanes} * VECTORS
template <int ROWS, int VECTORS>
static void {SELF}(const signed char* a, const int* b, int* c, Index depth, bool adds, const int* sums) {{
  typedef int vector __attribute__((vector_size({lanes * LANE_BYTES}), aligned(4)));
  typedef int word __attribute__((aligned(1)));
  vector sum[ROWS][VECTORS], right[VECTORS];
#if {_vnni(lanes)}
#if defined(__AVXVNNI__)
#define DOTS_PREFIX "%{{vex%}} "
#else
#define DOTS_PREFIX ""
#endif
  const Index groups = (depth + 3) / 4;
  {each_row}
    {each_vector} {{
      sum[i][j] = vector{{}} - 128 * sums[i];
      __builtin_prefetch(c + i * {columns} + j * {lanes});
    }}
  for (Index g = 0; g < groups; ++g) {{
    {each_vector} right[j] = *(const vector*)(b + g * {columns} + j * {lanes});
    {each_row} {{
      const vector left = vector{{}} + *(const word*)(a + i * {pitch} + 4 * g);
      {each_vector} {dot}
    }}
  }}
#else
  (void)sums;  // of no use to products of signed numbers
  const Index groups = (depth + 1) / 2;
  short wide[ROWS][{depth}] __attribute__((aligned(64)));
  for (Index i = 0; i < ROWS; ++i)
    for (Index k = 0; k < 2 * groups; ++k) wide[i][k] = a[i * {pitch} + k];
  {each_row}
    {each_vector} {{
      sum[i][j] = vector{{}};
      __builtin_prefetch(c + i * {columns} + j * {lanes});
    }}
  for (Index g = 0; g < groups; ++g) {{
    {each_vector} right[j] = *(const vector*)(b + g * {columns} + j * {lanes});
    {each_row} {{
      const vector left = vector{{}} + *(const word*)&wide[i][2 * g];
      {each_vector} {{
        vector products;
        asm("vpmaddwd %2, %1, %0" : "={kind}"(products) : "{kind}"(right[j]), "{kind}"(left));
        sum[i][j] += products;
      }}
    }}
  }}
#endif
  {each_row}
    {each_vector} {{
      vector* const to = (vector*)(c + i * {columns} + j * {lanes});
      *to = adds ? *to + sum[i][j] : sum[i][j];
    }}
}}"""


# ---------------------------------------------------------------- few rows
#
# Few rows of A take as long as reading B, so functions of their own read B in the order of its addresses.
# They add the products of an element in the order of K, and so give the same bits as micro-kernels.


CHUNK_BYTES = 8192
"""Sums of a row that stay in the first-level cache while the rows of B are read, in bytes at most."""

PER_STREAM = 4
"""Vector registers for each row of B that is read at the same time."""


def few_rows_kernel(
    arch: Arch, dtype: DType, a: PanelLayout, columns: int, panel: int, *, along_rows: bool
) -> str:
    """Return the text of the function that multiplies few rows by B in its array.

    It reads ``ROWS`` rows of a panel of A, and of B no more than ``columns`` columns and ``depth`` rows.  It
    overwrites ``ROWS`` rows of the sums, in whole panels.

    Args:
        arch: the processor.
        dtype: the dtype of operands and sums.
        a: the layout of A.
        columns: columns of a micro-tile of sums, a multiple of the lanes of a vector.
        panel: elements from a panel of sums to the next.
        along_rows: whether neighbouring columns of B are contiguous; else its rows are.
    """
    size = dtype.bytes
    lanes, most = arch.vector_bytes // size, arch.vector_registers // PER_STREAM
    chunk = CHUNK_BYTES // size // columns * columns
    real = STORAGE[dtype.name]
    at_a = f"a[{a.row_stride} * i + {a.k_stride} * (k + u)]"
    head = f"""\
// c[i][n] = (adds ? c[i][n] : 0) + sum of a[i][k] * b[k][n] over k, for i < ROWS and n < columns;
// c consists of panels of {columns} columns"""
    arrays = f"const {real}* a, const {real}* b, Index step, {real}* c"
    arguments = f"{arrays},\n    Index columns, Index depth, bool adds"
    kind = f"typedef {real} vector __attribute__((vector_size({lanes * size}), aligned({size})));"
    if along_rows:
        return f"""\
{head}
template <int ROWS>
__attribute__((noinline)) static void {SELF}({arguments}) {{
  {kind}
  constexpr Index CHUNK = {chunk}, LANES = {lanes}, DEEP = {most} / ROWS;
  {real} sums[ROWS][CHUNK] __attribute__((aligned(64)));
  for (Index first = 0; first < columns; first += CHUNK) {{
    const Index count = min_int(columns - first, CHUNK), whole = count / LANES * LANES;
    const Index padded = (count + {columns - 1}) / {columns} * {columns};
    for (Index n = 0; n < padded; n += LANES)
      UNROLL for (Index i = 0; i < ROWS; ++i) *(vector*)(sums[i] + n) = vector{{}};
    for (Index k = 0; k < depth;) {{
      const {real}* const from = b + k * step + first;
      if (k + DEEP <= depth) {{
        for (Index n = 0; n < whole; n += LANES) {{
          vector sum[ROWS];
          UNROLL for (Index i = 0; i < ROWS; ++i) sum[i] = *(const vector*)(sums[i] + n);
          UNROLL for (Index u = 0; u < DEEP; ++u) {{
            const vector right = *(const vector*)(from + u * step + n);
            UNROLL for (Index i = 0; i < ROWS; ++i)
              sum[i] = fused_lanes<1>({at_a} - vector{{}}, right, sum[i]);
          }}
          UNROLL for (Index i = 0; i < ROWS; ++i) *(vector*)(sums[i] + n) = sum[i];
        }}
        for (Index n = whole; n < count; ++n) {{
          asm("" : "+r"(n));  // no vectors of less than LANES elements, which take long to compile
          UNROLL for (Index i = 0; i < ROWS; ++i) {{
            {real} sum = sums[i][n];
            UNROLL for (Index u = 0; u < DEEP; ++u) sum = fused({at_a}, from[u * step + n], sum);
            sums[i][n] = sum;
          }}
        }}
        k += DEEP;
      }}
      else {{
        const Index u = 0;
        UNROLL for (Index i = 0; i < ROWS; ++i) {{
          for (Index n = 0; n < whole; n += LANES) {{
            vector* const sum = (vector*)(sums[i] + n);
            *sum = fused_lanes<1>({at_a} - vector{{}}, *(const vector*)(from + n), *sum);
          }}
          for (Index n = whole; n < count; ++n) {{
            asm("" : "+r"(n));
            sums[i][n] = fused({at_a}, from[n], sums[i][n]);
          }}
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
}}"""
    stages = "\n".join(f"    {line}" for line in exchanged(lanes))
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


# ---------------------------------------------------------------- dot products along K
#
# A sum has a vector of partial sums, each of every LANES-th product.  Columns of B are read in place, widened
# in registers, and multiplied by several rows of A.  A few columns stay in the first-level cache while all
# rows are multiplied by them.


TOGETHER = 4
"""Columns that are multiplied together."""

MANY_REGISTERS = 32
"""Vector registers that hold the sums of `TOGETHER` rows and columns; fewer hold those of half the rows."""

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
"""The sums of `TOGETHER` vectors of four or of two partial sums each."""


def _widened(stored: DType, lanes: int) -> str:
    """The body of a function that loads a vector of f32 from narrower floats."""
    halves = f"typedef {{}} halves __attribute__((vector_size({2 * lanes}), aligned(2)));"
    if stored == bf16:
        return f"""\
  {halves.format("unsigned short")}
  typedef unsigned words __attribute__((vector_size({4 * lanes})));
  return (vector)(__builtin_convertvector(*(const halves*)from, words) << 16);"""
    by_gcc = {
        16: "__builtin_ia32_vcvtph2ps512_mask((eights)*(const halves*)from, vector{}, -1, 4)",
        8: "__builtin_ia32_vcvtph2ps256((eights)*(const halves*)from)",
    }
    plain = f"""\
  vector wide;
  for (Index l = 0; l < {lanes}; ++l) wide[l] = f32_of_{stored}(from[l]);
  return wide;"""
    if stored != f16 or lanes not in by_gcc:
        return plain
    eights = f"typedef short eights __attribute__((vector_size({2 * lanes})));"
    return f"""\
#if defined(__F16C__) && !defined(__clang__)
  {halves.format("short")}
  {eights}
  return (vector){by_gcc[lanes]};
#elif defined(__F16C__)
  {halves.format("_Float16")}
  return __builtin_convertvector(*(const halves*)from, vector);
#else
{plain}
#endif"""


def dots_kernel(
    arch: Arch, dtype: DType, stored: DType, pitch: int, unit: tuple[int, int], steps: tuple[int, int]
) -> str:
    """Return the text of the function of dot products along K, which reads B in its array.

    It reads no more than ``rows`` rows of A, and of B no more than ``columns`` columns, and ``depth``
    elements of both.  Of each row it writes whole groups of `TOGETHER` sums; those past ``columns`` are
    sums of zeros.

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
    wide = ""
    if stored != dtype:
        wide = f"""\
static inline auto {SELF}_wide(const {narrow}* from) {{
  {kind}
{_widened(stored, lanes)}
}}

"""
    value = "from[j][u]" if stored == dtype else f"f32_of_{stored}(from[j][u])"
    heights = "\n".join(
        f"      {'else ' if height < most else ''}if (rows - i >= {height}) {{\n"
        f"        {SELF}_rows<{height}>(a + {pitch} * i, b + n * step, step, c, i, n, count, depth, adds);\n"
        f"        i += {height};\n      }}"
        for height in (4, 2, 1)
        if height <= most
    )
    each_row, each_column = (f"UNROLL for (Index {at} = 0; {at} < {{}}; ++{at})" for at in "ij")
    each_row, each_column = each_row.format("ROWS"), each_column.format(TOGETHER)
    return f"""\
{wide}// sums of rows {{row}} to {{row + ROWS - 1}} and columns {{first}} to {{first + columns - 1}}
template <int ROWS>
__attribute__((noinline)) static void {SELF}_rows(const {real}* a, const {narrow}* b, Index step, {real}* c,
    Index row, Index first, Index columns, Index depth, bool adds) {{
  {kind}
  typedef {real} few __attribute__((vector_size(16), aligned({size}), may_alias));
  typedef {integer} bits __attribute__((vector_size({lanes * size})));
  constexpr Index LANES = {lanes}, FEW = {few};
  bits lane;
  for (Index l = 0; l < LANES; ++l) lane[l] = ({integer})l;
  // The last products are those of the last vector that were not added before.
  const Index rest = depth < LANES ? 0 : depth % LANES;
  const bits kept = lane >= bits{{}} + ({integer})(LANES - rest);
  for (Index n = 0; n < columns; n += {TOGETHER}) {{
    const {narrow}* from[{TOGETHER}];  // past the last column the last one again
    {each_column} from[j] = b + min_int(n + j, columns - 1) * step;
    vector sum[ROWS][{TOGETHER}] __attribute__((aligned(64))), left[ROWS];
    {each_row} {each_column} sum[i][j] = vector{{}};
    Index k = 0;
    for (; k + LANES <= depth; k += LANES) {{
      {each_row} left[i] = *(const vector*)(a + {pitch} * i + k);
      {each_column} {{
        const vector right = {load.format("k")};
        {each_row} sum[i][j] = fused_lanes<1>(left[i], right, sum[i][j]);
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
    {each_row} {{
      few part[{TOGETHER}];
      {each_column} {{
        const few* const pieces = (const few*)&sum[i][j];
        part[j] = pieces[0];
        UNROLL for (Index l = 1; l < LANES / FEW; ++l) part[j] += pieces[l];
      }}
{_ADDED_UP[few]}
      for (Index u = k; u < depth; ++u)
        {each_column} {{
          few* const to = total + j / FEW;
          (*to)[j % FEW] = fused(a[{pitch} * i + u], {value}, (*to)[j % FEW]);
        }}
      for (Index j = columns - n; j < {TOGETHER}; ++j) total[j / FEW][j % FEW] = 0;
      {real}* const to = c + (row + i) / {unit[0]} * {steps[0]} + (row + i) % {unit[0]} * {unit[1]}
        + (first + n) / {unit[1]} * {steps[1]} + (first + n) % {unit[1]};
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
    Index depth, bool adds) {{
  const bool once = rows == 1 || rows == 2 || rows == {most};
  const Index part = once ? columns : {TOGETHER};
  for (Index n = 0; n < columns; n += part) {{
    const Index count = min_int(columns - n, part);
    for (Index i = 0; i < rows;) {{
{heights}
    }}
  }}
}}"""


# ---------------------------------------------------------------- micro-kernels


ROWS_AHEAD = 8
"""Rows of B that are prefetched ahead, if B may be read from its array.

Measured on a Zen 4 with 2048 x 2048 f32: 12 rows of A take 2.2 ms with 8, 3.0 with 16, and 5.3 without.
"""


class Term(NamedTuple):
    """One product: the indices of its operands and of its sum, and whether it is subtracted."""

    a: int
    b: int
    c: int
    negative: bool = False


@dataclass(frozen=True)
class KernelForm:
    """The products of a micro-kernel, and the layout of their operands.

    Args:
        atom: the micro-tile.
        lanes: elements of one vector.
        depth: depth of the operands.
        a: the layout of the rows of each A.
        b: the layout of the panels of each B.
        terms: the products, in the order of the text.
        width: vectors of each sum that are in registers at the same time; 0 for all.
        steps: whether an argument says how far rows of B are apart.
    """

    atom: MmaAtom
    lanes: int
    depth: int
    a: PanelLayout
    b: PanelLayout
    terms: tuple[Term, ...] = (Term(0, 0, 0),)
    width: int = 0
    steps: bool = False

    @property
    def is_fused(self) -> bool:
        """Whether multiply and add round once, together; sums of integers are exact."""
        return self.atom.c_dtype.computed.is_float

    def names(self, side: str) -> tuple[str, ...]:
        """The names of all operands A, all B or all sums C in the text."""
        return tuple(_numbered(side, at) for at in range(1 + max(getattr(term, side) for term in self.terms)))


def lanes_of(arch: Arch, atom: MmaAtom) -> int:
    """Return the elements of one vector of a micro-tile."""
    lanes = arch.vector_bytes // atom.c_dtype.computed.bytes
    while atom.shape[1] % lanes:
        lanes //= 2
    return lanes


def vectors_at_once(arch: Arch, rows: int, widths: Sequence[int], terms: Sequence[Term]) -> int:
    """Return how many vectors of each sum fit the registers together with the operands; 0 if none fit.

    Args:
        arch: the processor.
        rows: rows of the micro-tile.
        widths: widths of the parts of the micro-tile, in vectors.
        terms: the products.

    Example:
        >>> from tilewright.arch import PROCESSORS
        >>> complex_terms = [Term(0, 0, 0), Term(1, 1, 0, True), Term(0, 1, 1), Term(1, 0, 1)]
        >>> vectors_at_once(PROCESSORS["x86-64-v3"], 6, (1, 2), complex_terms)
        1
        >>> vectors_at_once(PROCESSORS["x86-64-v3"], 8, (1, 2), complex_terms)
        0
        >>> vectors_at_once(PROCESSORS["x86-64-v4"], 4, (1, 2), complex_terms)
        2
    """
    b, c = (1 + max(getattr(term, side) for term in terms) for side in ("b", "c"))
    fitting = (
        width
        for width in range(max(widths), 0, -1)
        if not any(wide % min(width, wide) for wide in widths) and holds(arch, rows, width, b, c)
    )
    return next(fitting, 0)


def micro_kernel(emitter: CpuEmitter, form: KernelForm, size: tuple[int, int]) -> Code:
    """Add the micro-kernel for the first rows and columns of a micro-tile; return its name."""
    atom = form.atom
    pitch, acc = atom.shape[1], atom.c_dtype
    compute = acc.computed
    rows, vectors = size[0], size[1] // form.lanes
    if adds_groups(atom):
        text = dot_kernel(pitch, form.lanes, form.a.row_stride, form.depth)
        return code("{}<{},{}>", emitter.function("multiply_bytes", text), rows, vectors)
    name = f"multiply_{compute}"
    if atom.precision is not None:
        name += f"_{'keeping' if atom.rounding == 'nearest' else 'cut_to'}_{atom.precision}_bits"
    if len(form.terms) > 1:
        name += f"_{len(form.terms)}_times"
    elif form.terms[0].negative:
        name += "_subtracting"
    function = emitter.function(name, _source(emitter, form))
    micro = code("{}<{},{}>", function, rows, vectors)
    if acc == compute:
        return micro
    # The accumulator is stored in a narrower dtype: widen it before, and round it after.
    real, stored, elems = STORAGE[compute.name], STORAGE[acc.name], rows * pitch
    widened, rounded = emitter.convert("c[e]", acc, compute), emitter.convert("wide[e]", compute, acc)
    text = f"""\
static void {SELF}(const {real}* a, const {real}* b, {stored}* c, Index depth, bool adds) {{
  {real} wide[{elems}];
  for (Index e = 0; e < {elems}; ++e) wide[e] = adds ? {widened} : 0;
  {micro}(a, b, wide, depth, adds);
  for (Index e = 0; e < {elems}; ++e) c[e] = {rounded};
}}"""
    subtracting = "_subtracting" if form.terms[0].negative else ""
    return emitter.function(f"multiply_{rows}x{size[1]}_into_{acc}{subtracting}", text)


def _source(emitter: CpuEmitter, form: KernelForm) -> str:
    """The text of a micro-kernel, which broadcasts the rows of A from memory."""
    atom, lanes = form.atom, form.lanes
    compute = atom.c_dtype.computed
    real, size = STORAGE[compute.name], compute.bytes
    kind = f" __attribute__((vector_size({lanes * size}), aligned({size})))" if lanes > 1 else ""
    bits = f"\n  typedef int bits{kind};" if atom.precision is not None else ""
    a, b, c = (form.names(side) for side in "abc")
    sums, rights, adds = (
        tuple(_numbered(name, at) for at in range(len(many)))
        for name, many in (("sum", c), ("right", b), ("adds", c))
    )
    parameters = [f"const {real}* {one}" for one in (*a, *b)] + (["Index step"] if form.steps else [])
    parameters += [f"{real}* {one}" for one in c]
    parameters += ["Index depth", *(f"bool {one}" for one in adds)]
    wide = form.width or "VECTORS"
    at = "j" if not form.width else "(first + j)"
    each_row = "UNROLL for (Index i = 0; i < ROWS; ++i)"
    each_vector = f"UNROLL for (Index j = 0; j < {wide}; ++j)"
    at_c = f"{_index('i', atom.shape[1])} + {_index(at, lanes)}"
    arrays = [f"{one}[ROWS][{wide}]" for one in sums] + [f"{one}[{wide}]" for one in rights]
    lines = [f"vector {', '.join(arrays)};"]
    lines += [each_row, f"  {each_vector} {{"]
    for one, place in zip(sums, c, strict=True):
        lines += [f"    {one}[i][j] = vector{{}};", f"    __builtin_prefetch({place} + {at_c});"]
    lines += ["  }", "for (Index k = 0; k < depth; ++k) {"]
    row_of_b = "k * step" if form.steps else _index("k", form.b.k_stride)
    at_b = f"{row_of_b} + {_index(at, lanes)}"
    for one, place in zip(rights, b, strict=True):
        value = _narrowed(emitter, atom, f"*(const vector*)({place} + {at_b})", "bits, vector")
        lines.append(f"  {each_vector} {one}[j] = {value};")
        if form.steps:
            following = at_b.replace("k *", f"(k + {ROWS_AHEAD}) *")
            lines.append(f"  {each_vector} __builtin_prefetch({place} + {following});")
    at_a = f"{_index('i', form.a.row_stride)} + {_index('k', form.a.k_stride)}"
    for number, place in enumerate(a):
        value = _narrowed(emitter, atom, f"{place}[{at_a}]", "int, float")
        if form.is_fused and lanes > 1:
            lines += [f"  {each_row} {{", f"    const vector left = {value} - vector{{}};"]
        else:
            lines += [f"  {each_row} {{", f"    const {real} left = {value};"]
        for term in form.terms:
            if term.a == number:
                into, right = f"{sums[term.c]}[i][j]", f"{rights[term.b]}[j]"
                sign, added = "-" if term.negative else "", ""
                if not form.is_fused:
                    added = f"{into} {sign or '+'}= left * {right}"
                elif lanes == 1:
                    emitter.call("fused")
                    added = f"{into} = fused(left, {sign}{right}, {into})"
                else:
                    emitter.call("fused_lanes")
                    added = f"{into} = fused_lanes<{sign}1>(left, {right}, {into})"
                lines.append(f"    {each_vector} {added};")
        lines.append("  }")
    lines.append("}")
    for one, place, adding in zip(sums, c, adds, strict=True):
        there = f"*({{}}vector*)({place} + {at_c})"
        lines += [f"if ({adding}) {{", f"  {each_row}"]
        lines += [f"    {each_vector} {one}[i][j] += {there.format('const ')};", "}"]
    for one, place in zip(sums, c, strict=True):
        lines += [each_row, f"  {each_vector} *(vector*)({place} + {at_c}) = {one}[i][j];"]
    if form.width:
        lines = [f"for (Index first = 0; first < VECTORS; first += {form.width}) {{", *_deeper(lines), "}"]
    body = "\n".join(_deeper(lines))
    formulas = []
    for number, (place, adding) in enumerate(zip(c, adds, strict=True)):
        products = "".join(
            f" {'-' if one.negative else '+'} {a[one.a]}[i][k] * {b[one.b]}[k][j]"
            for one in form.terms
            if one.c == number
        )
        added = f"+ sum of ({products[1:].removeprefix('+ ')})"
        if len(form.terms) == 1:
            added = f"{products[1]} sum of {products[3:]}"
        formulas.append(f"// {place}[i][j] = ({adding} ? {place}[i][j] : 0) {added} over k")
    formula = "\n".join(formulas)
    return f"""\
{formula}, for i < ROWS and j < {lanes} * VECTORS
template <int ROWS, int VECTORS>
__attribute__((noinline)) static void {SELF}({", ".join(parameters)}) {{
  typedef {real} vector{kind};{bits}
{body}
}}"""


def _narrowed(emitter: CpuEmitter, atom: MmaAtom, value: str, kinds: str) -> str:
    """An operand with the precision of the author's atom."""
    if atom.precision is None:
        return value
    narrowed = "keep" if atom.rounding == "nearest" else "cut"
    emitter.call(narrowed)
    return f"{narrowed}<{kinds}>({value}, {23 - atom.precision})"


def _numbered(name: str, number: int) -> str:
    return f"{name}{number or ''}"


def _deeper(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


def _index(name: str, step: int) -> str:
    return name if step == 1 else f"{name} * {step}"
