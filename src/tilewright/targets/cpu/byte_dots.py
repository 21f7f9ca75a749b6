"""The text of products of bytes on x86, from AVX2 on, whose instructions multiply groups along K."""

from __future__ import annotations

from tilewright.targets.cpu.emitter import SELF

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
