"""The text of micro-kernels, which keep the sums of one or several products in registers over the depth.

On x86, from AVX2 on, products of bytes have instructions that multiply groups along K.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.targets.cpu.arch import adds_groups, holds
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.linear import PanelLayout
from tilewright.targets.cpu.vector_moves import load_part, narrowing, store_part, transposition, widening
from tilewright.targets.statements import Code, code

# Neighbours along K form groups of 4 bytes.  With VNNI a group has four bytes of B with an offset of 128,
# which ``vpdpbusd`` multiplies by four bytes of A; without VNNI ``vpmaddwd`` multiplies pairs of 16-bit
# numbers.  A has rows of contiguous k.  B is packed as a panel, and grouped once for all rows.  The offset
# adds 128 times the sum of a row of A, so each sum starts at minus this product.


LANE_BYTES = 4
"""Bytes of a sum."""


def _vnni(lanes: int) -> str:
    """Return the preprocessor condition of byte dot products for a vector of sums."""
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
    """Return the micro-kernel of bytes; it takes B in groups, and the sums of A's rows.

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


ROWS_AHEAD = 8
"""Prefetch distance in rows of B, if B may be read from its array.

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
        apart: whether an argument is the distance of rows of A, or of its columns if rows are contiguous.
        along: whether both distances are arguments.
        steps: whether an argument is the distance of rows of B.
        narrow: the dtype of B's array, if an argument is its address; a null address means the packed panel.
            Only whole micro-tiles read the array.
        stores: the dtype of the result's array, if arguments are the distance of its rows, and the numbers of
            rows and columns to store.  If it differs from that of the sums, an argument is its address.
        ends: ``"all"``: all columns are loaded and stored.  ``"masks"``: only the first ones are, by masks.
            ``"some"``: all are loaded, and the first ones stored.
    """

    atom: MmaAtom
    lanes: int
    depth: int
    a: PanelLayout
    b: PanelLayout
    terms: tuple[Term, ...] = (Term(0, 0, 0),)
    width: int = 0
    apart: bool = False
    along: bool = False
    steps: bool = False
    narrow: DType | None = None
    stores: DType | None = None
    ends: str = "some"

    @property
    def is_fused(self) -> bool:
        """Whether multiply and add round once, together; sums of integers are exact."""
        return self.atom.c_dtype.computed.is_float

    def names(self, side: str) -> tuple[str, ...]:
        """Return the names of all operands A, all B or all sums C in the text."""
        return tuple(_numbered(side, at) for at in range(1 + max(getattr(term, side) for term in self.terms)))


def lanes_of(arch: Arch, atom: MmaAtom) -> int:
    """Return the number of elements of one vector of a micro-tile."""
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
    micro = code("{}<{},{}>", emitter.function(name, _source(emitter, form)), rows, vectors)
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


def part_kernel(emitter: CpuEmitter, form: KernelForm, rows: int) -> Code:
    """Add the micro-kernel for the first columns of a micro-tile, which loads no others; return its name.

    It multiplies one vector of columns after the other, and the last ones as half a vector if they fit.
    """
    whole, half = (replace(form, lanes=form.lanes // part, ends="masks") for part in (1, 2))
    names = [micro_kernel(emitter, one, (rows, one.lanes)) for one in (whole, half)]
    parameters, given = _parameters(form), []
    for parameter in parameters:
        name = parameter.split()[-1]
        moved = {
            "b": "b + n",
            "c": "c + n",
            "halves": "halves ? halves + n : halves",
            "narrow": "nullptr",
            "columns": "columns - n",
        }
        given.append(moved.get(name, name))
    text = f"""\
// {names[0].partition("<")[0]} for the first columns of a micro-tile
template <int ROWS>
static void {SELF}({", ".join(parameters)}) {{
  for (Index n = 0; n < columns; n += {form.lanes})
    if (columns - n > {half.lanes}) {names[0].replace(f"<{rows},", "<ROWS,")}({", ".join(given)});
    else {names[1].replace(f"<{rows},", "<ROWS,")}({", ".join(given)});
}}"""
    return code("{}<{}>", emitter.function(f"multiply_part_{form.atom.c_dtype.computed}", text), rows)


SHALLOW_ROWS, SHALLOW_BYTES = (3, 6), 1 << 17
"""Rows of the result that are stored together if products have few steps along K: for the last rows, and for
the others; and most bytes of B by which all rows of A are multiplied before the next columns: a quarter of a
second-level cache or less.

Measured on a Zen 4, one thread of f64, before and with 16, 32, 64, 128 and 256 KiB: 500 x 1000 x 3 185 us,
then 113, 109, 109, 110, 110; 1500 x 700 x 24 1.57 ms, then 1.46, 1.21, 1.12, 1.14, 1.12; 500 x 2000 x 48 2.17
ms, then 2.74, 2.41, 2.07, 2.07, 1.99.  12 rows of two vectors took 1 to 10 % longer than 6 rows of four.
"""


def shallow_kernel(emitter: CpuEmitter, dtype: DType, *, has_halves: bool, room: int = 0) -> Code:
    """Add the function that multiplies arrays with few steps along K; return its name.

    It stores sums in runs along few rows of the result.  It adds the products of an element in the order of
    K, as micro-kernels do.  The result needs at least as many rows as are stored together (`SHALLOW_ROWS`).

    Args:
        emitter: where functions go.
        dtype: the dtype of the operands and of the result.
        has_halves: whether the last columns may be half a vector.
        room: elements of the last argument, memory for parts of B, whose columns are contiguous along K; 0 if
            its rows are contiguous.
    """
    real, size, registers = STORAGE[dtype.name], dtype.bytes, emitter.arch.vector_registers
    lanes, (low, most) = emitter.arch.vector_bytes // size, SHALLOW_ROWS
    many = next((n for n in (4, 2) if (most + 1) * n + 1 <= registers), 1)
    emitter.call("fused", "fused_lanes", "min_int", "max_int")
    operands = (
        f"const {real}* a, Index apart, Index along, const {real}* b, Index step, {real}* c, Index pitch"
    )
    each_row = "UNROLL for (Index i = 0; i < ROWS; ++i)"
    functions, calls = "", []
    for wide, vectors in ((lanes, many), (lanes, 0), *([(lanes // 2, 0)] if has_halves else [])):
        name = f"{SELF}_of_{vectors}_vectors" if vectors else f"{SELF}_of_{wide}_lanes"
        load, store = "*(const vector*)({})", "*(vector*)({}) = {}"
        if not vectors:
            load = f"{load_part(emitter, dtype, wide, in_registers=has_halves)}<vector>({{}}, columns)"
            store = f"{store_part(emitter, dtype, wide, in_registers=has_halves)}({{}}, {{}}, columns)"
        offset = f" + {wide} * j" if vectors else ""
        to, each_vector = f"c + i * pitch{offset}", f"UNROLL for (Index j = 0; j < {vectors or 1}; ++j)"
        functions += f"""\
template <int ROWS>
static inline __attribute__((always_inline)) void {name}({operands},
    Index stored, Index{"" if vectors else " columns"}, Index depth, bool adds) {{
  typedef {real} vector __attribute__((vector_size({wide * size}), aligned({size})));
  vector sum[ROWS][{vectors or 1}], right[{vectors or 1}];
  {each_row}
    {each_vector} sum[i][j] = vector{{}};
  for (Index k = 0; k < depth; ++k, a += along, b += step) {{
    {each_vector} right[j] = {load.format(f"b{offset}")};
    {each_row} {{
      const vector left = a[i * apart] - vector{{}};
      {each_vector} sum[i][j] = fused_lanes<1>(left, right[j], sum[i][j]);
    }}
  }}
  {each_row}
    if (i >= stored)
      {each_vector} {{
        if (adds) sum[i][j] += {load.format(to)};
        {store.format(to, "sum[i][j]")};
      }}
}}

"""
        given = "(a, apart, along, b + n, step, c + n, pitch, stored, columns - n, depth, adds);"
        calls.append(f"{name}<ROWS>{given}")
    whole, part, *halves = calls
    least, wide_step = lanes // 2 if halves else 0, many * lanes
    other = f"\n    else {halves[0]}" if halves else ""
    given = "from, apart, along, b + n, step, to, pitch, i - first, wide, depth, adds"
    text = f"""\
{functions}template <int ROWS>
static inline __attribute__((always_inline)) void {SELF}_rows({operands},
    Index stored, Index columns, Index depth, bool adds) {{
  Index n = 0;
  for (; n + {wide_step} <= columns; n += {wide_step})
    {whole}
  for (; n < columns; n += {lanes})
    if (columns - n > {least}) {part}{other}
}}

// c[i][n] = (adds ? c[i][n] : 0) + sum of a[i][k] * b[k][n] over k, for i < rows and n < columns
__attribute__((noinline)) static void {SELF}({operands},
    Index rows, Index columns, Index depth, bool adds) {{
  const Index part = max_int({SHALLOW_BYTES // size // wide_step} / max_int(depth, 1), 1) * {wide_step};
  for (Index n = 0; n < columns; n += part) {{
    const Index wide = min_int(columns - n, part);
    for (Index i = 0; i < rows;) {{
      // Some of the last rows may be computed twice, but each is stored once.
      const Index high = rows - i <= {low} ? {low} : {most}, first = min_int(i, rows - high);
      const {real}* const from = a + first * apart;
      {real}* const to = c + first * pitch + n;
      if (high == {low}) {SELF}_rows<{low}>({given});
      else {SELF}_rows<{most}>({given});
      i = first + high;
    }}
  }}
}}"""
    function = emitter.function(f"multiply_shallow_{dtype}", text)
    if not room:
        return function
    turned, given = transposition(emitter, dtype, dtype, lanes), "c + n, pitch, rows, wide, depth, adds"
    text = f"""\
// {function} of columns that are contiguous along k, which are copied to memory for {room} elements
static void {SELF}({operands},
    Index rows, Index columns, Index depth, bool adds, {real}* memory) {{
  const Index most = {room // lanes} / max_int(depth, 1), needed = (columns + {lanes - 1}) / {lanes};
  const Index part = {lanes} * min_int(most, needed);
  for (Index n = 0; n < columns; n += part) {{
    const Index wide = min_int(columns - n, part);
    for (Index j = 0; j < wide; j += {lanes})
      for (Index k = 0; k < depth; k += {lanes})
        {turned}(memory + k * part + j, part, b + (n + j) * step + k, step, min_int(wide - j, {lanes}),
            min_int(depth - k, {lanes}));
    {function}(a, apart, along, memory, part, {given});
  }}
}}"""
    return emitter.function(f"multiply_shallow_{dtype}_along_k", text)


def _parameters(form: KernelForm) -> list[str]:
    """Return the parameters of a micro-kernel."""
    compute = form.atom.c_dtype.computed
    real = STORAGE[compute.name]
    a, b, c = (form.names(side) for side in "abc")
    parameters = [f"const {real}* {one}" for one in a] + (["Index apart"] if form.apart else [])
    parameters += ["Index along"] if form.along else []
    parameters += [f"const {real}* {one}" for one in b]
    if form.narrow is not None:
        named = "" if form.ends == "masks" else " narrow"
        parameters += [f"const {STORAGE[form.narrow.name]}*{named}"]
    parameters += ["Index step"] if form.steps else []
    parameters += [f"{real}* {one}" for one in c]
    if form.stores is not None:
        parameters += [] if form.stores == compute else [f"{STORAGE[form.stores.name]}* halves"]
        parameters += ["Index pitch", "Index rows", "Index" if form.ends == "all" else "Index columns"]
    return [*parameters, "Index depth", *(f"bool {_numbered('adds', at)}" for at in range(len(c)))]


def _source(emitter: CpuEmitter, form: KernelForm) -> str:
    """Return the text of a micro-kernel, which broadcasts the rows of A from memory."""
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
    parameters = _parameters(form)
    is_rounded = form.stores is not None and form.stores != compute
    wide = form.width or "VECTORS"
    at = "j" if not form.width else "(first + j)"
    each_row = "UNROLL for (Index i = 0; i < ROWS; ++i)"
    each_vector = f"UNROLL for (Index j = 0; j < {wide}; ++j)"
    is_pitched = form.stores is not None and not is_rounded
    at_c = f"{'i * pitch' if is_pitched else _index('i', atom.shape[1])} + {_index(at, lanes)}"
    arrays = [f"{one}[ROWS][{wide}]" for one in sums] + [f"{one}[{wide}]" for one in rights]
    lines = [f"vector {', '.join(arrays)};"]
    lines += [each_row, f"  {each_vector} {{"]
    for one, place in zip(sums, c, strict=True):
        lines += [f"    {one}[i][j] = vector{{}};", f"    __builtin_prefetch({place} + {at_c});"]
    following, a_of_k = "", a
    if form.apart:  # a step of an address, so that no compiler keeps more addresses than registers hold
        step = "along" if form.along else "1" if form.a.k_stride == 1 else "apart"
        following = "".join(f", {one} += {step}" for one in a)
        if form.width:  # each iteration over `first` begins with the first products
            turning = tuple(f"{one}_k" for one in a)
            pairs = zip(turning, a, strict=True)
            lines[:0] = [f"const {real} {', '.join(f'*{one} = {first}' for one, first in pairs)};"]
            following = "".join(f", {one} += {step}" for one in turning)
            a_of_k = turning
    lines.append("  }")
    row_of_b = "k * step" if form.steps and form.narrow is None else _index("k", form.b.k_stride)
    at_b = f"{row_of_b} + {_index(at, lanes)}"
    first = f"for (Index k = 0; k < depth; ++k{following}) {{"
    loads = [first]
    for one, place in zip(rights, b, strict=True):
        load = f"*(const vector*)({place} + {at_b})"
        if form.ends == "masks":
            part = load_part(emitter, compute, lanes, in_registers=True)
            load = f"{part}<vector>({place} + {at_b}, columns - {_index(at, lanes)})"
        value = _narrowed(emitter, atom, load, "bits, vector")
        loads.append(f"  {each_vector} {one}[j] = {value};")
        if form.steps and form.narrow is None:
            later = at_b.replace("k *", f"(k + {ROWS_AHEAD}) *")
            loads.append(f"  {each_vector} __builtin_prefetch({place} + {later});")
    added_up: list[str] = []
    at_a = f"{_index('i', form.a.row_stride)} + {_index('k', form.a.k_stride)}"
    if form.apart:
        at_a = "i * apart" if form.along or form.a.k_stride == 1 else "i"
    for number, place in enumerate(a_of_k):
        value = _narrowed(emitter, atom, f"{place}[{at_a}]", "int, float")
        if form.is_fused and lanes > 1:
            added_up += [f"  {each_row} {{", f"    const vector left = {value} - vector{{}};"]
        else:
            added_up += [f"  {each_row} {{", f"    const {real} left = {value};"]
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
                added_up.append(f"    {each_vector} {added};")
        added_up.append("  }")
    if form.narrow is not None and form.ends != "masks":
        wider = f"(vector){widening(emitter, form.narrow, lanes)}"
        whole = atom.shape[1] // lanes
        lines += [
            f"if (VECTORS == {whole} && narrow) {{",
            f"  {first}",
            f"    {each_vector} {rights[0]}[j] = {wider}(narrow + k * step + {_index(at, lanes)});",
            f"    __builtin_prefetch(narrow + (k + {ROWS_AHEAD}) * step);",
            *_deeper(added_up),
            "  }",
            "} else {",
            *_deeper([*loads, *added_up, "}"]),
            "}",
        ]
    else:
        lines += [*loads, *added_up, "}"]
    for one, place, adding in zip(sums, c, adds, strict=True):
        there = f"*({{}}vector*)({place} + {at_c})"
        if is_pitched:
            # Add the stored sums to the only sum; see `_part_stores`.
            loader = load_part(emitter, atom.c_dtype.computed, lanes, in_registers=form.ends == "masks")
            whole_row = f"sum[i][j] += *(const vector*)({place} + {at_c});"
            part_row = f"sum[i][j] += {loader}<vector>({place} + {at_c}, columns - {_index('j', lanes)});"
            lines += [f"if ({adding}) {{", *_deeper(_in_parts(form, whole_row, part_row)), "}"]
            continue
        lines += [f"if ({adding}) {{", f"  {each_row}"]
        lines += [f"    {each_vector} {one}[i][j] += {there.format('const ')};", "}"]
    if is_rounded and form.stores is not None:
        place = f"halves + i * pitch + {_index(at, lanes)}"
        lines += [
            "if (halves) {",
            *_deeper(_part_stores(emitter, form, form.stores, place)),
            "  return;",
            "}",
        ]
    for one, place in zip(sums, c, strict=True):
        if is_pitched:
            lines += _part_stores(emitter, form, compute, f"{place} + {at_c}")
        else:
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


def _part_stores(emitter: CpuEmitter, form: KernelForm, dtype: DType, place: str) -> list[str]:
    """Return the statements that store the first ``rows`` rows and ``columns`` columns of the only sum.

    Args:
        emitter: where functions go.
        form: the micro-kernel.
        dtype: the dtype that is stored.
        place: the address of the first element of a vector.
    """
    is_rounded = dtype != form.atom.c_dtype.computed
    whole = f"*(vector*)({place}) = sum[i][j];"
    if is_rounded:
        whole = f"{narrowing(emitter, dtype, form.lanes)}({place}, sum[i][j]);"
    part = store_part(emitter, dtype, form.lanes, is_rounded=is_rounded, in_registers=form.ends == "masks")
    left = f"columns - {_index('j', form.lanes)}"
    return _in_parts(form, whole, f"{part}({place}, sum[i][j], {left});")


def _in_parts(form: KernelForm, whole: str, part: str) -> list[str]:
    """Return the statements that move the needed rows of the only sum as whole vectors, or in parts."""
    rows = ["  UNROLL for (Index i = 0; i < ROWS; ++i)", "    if (i < rows)"]
    each = "      UNROLL for (Index j = 0; j < VECTORS; ++j)"
    if form.ends != "some":
        return [line[2:] for line in (*rows, f"{each} {whole if form.ends == 'all' else part}")]
    return [
        f"if (columns >= {_index('VECTORS', form.lanes)}) {{",
        *rows,
        f"{each} {whole}",
        "} else {",
        *rows,
        f"{each} {part}",
        "}",
    ]


def _narrowed(emitter: CpuEmitter, atom: MmaAtom, value: str, kinds: str) -> str:
    """Return an operand's text, rounded to the precision of the author's atom."""
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
