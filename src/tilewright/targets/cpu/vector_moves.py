"""Copies through vector registers: square blocks, parts of vectors, halves, and fp8 by table lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import numpy as np

from tilewright.dtypes import DType, bf16, boolean, f8e4m3, f8e5m2, f16, f32, f64
from tilewright.symbolic.expr import add, expand, floordiv
from tilewright.symbolic.nodes import TRUE, Int
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.conversions import HALVES, STORAGE
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, SELF, CopySide, CpuEmitter
from tilewright.targets.cpu.loops import Axis, Nest, transposed
from tilewright.targets.statements import Code, call, code

LEAST_LANES, MOST_LANES = 4, 16

XMM_BYTES = 16
"""Bytes of the vectors whose halves one instruction interleaves."""

FEW = 4
"""A part of a block with at most ``1 / FEW`` of its elements is moved element by element."""

MOST_AHEAD_BYTES = 256
"""Longest rows, in bytes, that are prefetched: hardware does not prefetch short rows that are far apart."""


def blocks(
    loops: Nest, sides: tuple[CopySide, CopySide], vector_bytes: int
) -> tuple[tuple[Axis, Axis], int, tuple[Int, Int]] | None:
    """Return the square blocks of a transposing copy; None if both sides are contiguous along one axis.

    Args:
        loops: the loops of the copy.
        sides: source and target.
        vector_bytes: vector width of the processor.

    Returns:
        The contiguous axes of the target and of the source, the side of a block, and the strides of rows of
        the source and of the target.
    """
    size, found = sides[1].dtype.bytes, transposed(loops)
    is_rounded = sides[0].dtype == f32 and sides[1].dtype in HALVES
    if is_rounded:
        size = f32.bytes
    lanes = min(vector_bytes // size, MOST_LANES)
    is_float = {side.dtype for side in sides} <= {f32, *HALVES}
    while found is not None:
        # Blocks divide each extent, or the extent fills more than half of a single block.
        has_ends = is_float and has_parts(f32, lanes)
        extents = (axis.extent for axis in found)
        if all(n % lanes == 0 or (has_ends and lanes // 2 < n < lanes) for n in extents):
            break
        lanes //= 2
    if found is None or loops.conditions != (TRUE, TRUE) or any(axis.scale != 1 for axis in found):
        return None
    from_row, to_row = loops.stride(0, found[0]), loops.stride(1, found[1])
    if from_row is None or to_row is None or lanes < (LEAST_LANES if size >= 4 else MOST_LANES) or size == 2:
        return None
    return found, lanes, (from_row, to_row)


def ask_ahead(
    emitter: CpuEmitter, source: CopySide, offset: Int, axes: tuple[Axis, Axis], lanes: int
) -> None:
    """Write a prefetch of one row of the next row of blocks, for each block that is moved.

    Args:
        emitter: where the text goes.
        source: the source side.
        offset: the offset of an element of the source.
        axes: the axis of its rows, and its contiguous axis.
        lanes: the side of a block.
    """
    along, across = axes
    run = across.extent * source.dtype.bytes
    if source.is_scratch or across.extent != lanes * lanes or run > MOST_AHEAD_BYTES:
        return
    row = add(along.sym, lanes, floordiv(across.sym, lanes))
    start = emitter.spell(expand(substitute(offset, {along.sym: row, across.sym: 0})))
    for line in range(0, run, CACHE_LINE_BYTES):
        at = code("{} + {}", source.name, start)
        emitter.do(
            call("__builtin_prefetch", code("{} + {}", at, line // source.dtype.bytes) if line else at)
        )


def transposition(emitter: CpuEmitter, source: DType, target: DType, lanes: int) -> Code:
    """Return the function that copies a transposed block of ``lanes`` x ``lanes`` elements, or part of one.

    ``target[j * target_step + i] = source[i * source_step + j]`` for ``i < rows`` and ``j < columns``.
    """
    real, stored = STORAGE[target.name], STORAGE[source.name]
    # Compilers have no vectors of truth values, so these are copied as bytes.
    lane, aliases = (real, "") if target != boolean else ("unsigned char", ", may_alias")
    is_rounded = source == f32 and target in HALVES
    width = f32.bytes if is_rounded else target.bytes
    if is_rounded:
        lane = STORAGE[f32.name]
    element = emitter.convert("source[i * source_step + j]", source, target)
    each = f"for (Index i = 0; i < {lanes}; ++i)"
    is_half = source in HALVES and target == f32 and 4 * lanes >= VECTOR_BYTES // 2
    load = "*(const vector*)(source + i * source_step)"
    if is_half:
        load = f"(vector){widening(emitter, source, lanes)}(source + i * source_step)"
    few = ""
    store = "*(vector*)(target + j * target_step) = row[j];"
    if is_rounded:
        store = f"{narrowing(emitter, target, lanes)}(target + j * target_step, row[j]);"
    stores = [f"  UNROLL for (Index j = 0; j < {lanes}; ++j)", f"    {store}"]
    rows = [f"  UNROLL {each} row[i] = {load};"]
    if source != target and not is_half and not is_rounded:
        rows = [
            f"  {real} block[{lanes}][{lanes}];",
            f"  {each}",
            f"    for (Index j = 0; j < {lanes}; ++j) block[i][j] = {element};",
            f"  UNROLL {each} row[i] = *(const vector*)block[i];",
        ]
    elif target in (f32, f64, *HALVES) and lanes * width >= 2 * XMM_BYTES:
        # A larger part of a block is loaded and stored as parts of vectors.
        few = f" && rows * columns <= {lanes * lanes // FEW}"
        if is_half or is_rounded:  # to convert single elements takes longer
            few = f" && rows * columns <= {lanes}"
        if is_half and lanes * width < VECTOR_BYTES:  # pieces of halves are stored, and loaded as a whole
            few, part = f" && (columns < {lanes} || rows <= {lanes // FEW})", load
        else:
            kinds = ("(vector)", "") if is_half else ("", "<vector>")
            part = (
                f"{kinds[0]}{load_part(emitter, source, lanes)}{kinds[1]}(source + i * source_step, columns)"
            )
        rows = [
            f"  if (rows >= {lanes} && columns >= {lanes}) {{",
            f"    UNROLL {each} row[i] = {load};",
            f"  }} else UNROLL {each} {{",
            "    row[i] = vector{};",
            f"    if (i < rows) row[i] = {part};",
            "  }",
        ]
        stored_part = store_part(emitter, target, lanes, is_rounded=is_rounded)
        part = f"{stored_part}(target + j * target_step, row[j], rows);"
        stores = [
            f"  if (rows >= {lanes} && columns >= {lanes}) {{",
            *(f"  {line}" for line in stores),
            f"  }} else UNROLL for (Index j = 0; j < {lanes}; ++j)",
            f"    if (j < columns) {part}",
        ]
    text = f"""\
// target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns
static void {SELF}({real}* target, Index target_step, const {stored}* source, Index source_step,
    Index rows, Index columns) {{
  typedef {lane} vector
    __attribute__((vector_size({lanes * width}), aligned({width}){aliases}));
  if ((rows < {lanes} || columns < {lanes}){few}) {{
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = {element};
    return;
  }}
  vector row[{lanes}];
{chr(10).join(rows)}
{chr(10).join(_interleaved(lanes) if lanes * width == XMM_BYTES else exchanged(lanes, width))}
{chr(10).join(stores)}
}}"""
    name = f"transpose_{target}" + ("" if source == target else f"_from_{source}")
    return emitter.function(name, text)


def _interleaved(lanes: int) -> list[str]:
    """Transpose by interleaving rows of the upper and the lower half of a block, repeatedly."""
    half = lanes // 2
    low, high = ([at + part for lane in range(half) for at in (lane, lanes + lane)] for part in (0, half))
    lines = [f"  vector next[{lanes}];"]
    source, target = "row", "next"
    for _ in range(lanes.bit_length() - 1):
        lines += [
            f"  UNROLL for (Index i = 0; i < {half}; ++i) {{",
            f"    const vector upper = {source}[i], lower = {source}[i + {half}];",
            f"    {target}[2 * i] = __builtin_shufflevector(upper, lower, {', '.join(map(str, low))});",
            f"    {target}[2 * i + 1] = __builtin_shufflevector(upper, lower, {', '.join(map(str, high))});",
            "  }",
        ]
        source, target = target, source
    if source != "row":
        lines.append(f"  UNROLL for (Index i = 0; i < {lanes}; ++i) row[i] = next[i];")
    return lines


def exchanged(lanes: int, size: int, parts: int = 1) -> list[str]:
    """Return text that transposes a square of elements of ``size`` bytes in registers.

    Each step moves elements inside 128 bits, or moves whole 128 bits, because AVX-512 has fast instructions
    for both.  Smaller elements exchange off-diagonal quarters of 2 x 2, 4 x 4, 8 x 8 ... elements.

    Args:
        lanes: elements of a row, and rows.
        size: bytes of an element.
        parts: lanes of a vector for each element.
    """
    each = XMM_BYTES // size
    is_fast = size >= 4 and lanes >= each
    lines: list[str] = []
    distance = 1
    while distance < lanes:
        low = [lane if not lane & distance else lanes + (lane ^ distance) for lane in range(lanes)]
        high = [lane | distance if not lane & distance else lanes + lane for lane in range(lanes)]
        if is_fast and distance < each:  # half of each 128 bits, alternately from both rows
            places = [(at // each * each, at % each // distance, at % distance) for at in range(lanes)]
            low = [start + turn // 2 * distance + turn % 2 * lanes + rest for start, turn, rest in places]
            high = [at + each // 2 for at in low]
        elif is_fast:  # every other 128 bits, of one row and then of the other
            places = [(at // (lanes // 2), at % (lanes // 2) // each, at % each) for at in range(lanes)]
            low = [row * lanes + 2 * block * each + rest for row, block, rest in places]
            high = [at + each for at in low]
        low, high = ([parts * at + part for at in one for part in range(parts)] for one in (low, high))
        lines += [
            f"  UNROLL for (Index i = 0; i < {lanes}; ++i)",
            f"    if (!(i & {distance})) {{",
            f"      const vector low = row[i], high = row[i + {distance}];",
            f"      row[i] = __builtin_shufflevector(low, high, {', '.join(map(str, low))});",
            f"      row[i + {distance}] = __builtin_shufflevector(low, high, {', '.join(map(str, high))});",
            "    }",
        ]
        distance *= 2
    if is_fast and each == 4:  # the steps inside 128 bits leave rows 1 and 2 of four in the other order
        lines += [
            f"  UNROLL for (Index i = 0; i < {lanes}; i += 4) {{",
            "    const vector second = row[i + 2];",
            "    row[i + 2] = row[i + 1];",
            "    row[i + 1] = second;",
            "  }",
        ]
    return lines


# ---------------------------------------------------------------- parts of vectors
#
# AVX-512 and AVX load and store part of a vector by one instruction.


def _masked(dtype: DType, lanes: int, *, in_registers: bool = False) -> tuple[str, str, str, str]:
    """Return the condition of masks, declarations of ``kept``, and the builtins that load and store.

    Half a vector has a mask in a register of its own with AVX-512, whose stores are faster than those of AVX.
    """
    real, size, letter = STORAGE[dtype.name], dtype.bytes, "s" if dtype.bytes == 4 else "d"
    kind = f"__attribute__((vector_size({lanes * size})))"
    if lanes * size == VECTOR_BYTES or in_registers:
        is_half = lanes * size < VECTOR_BYTES
        mask = "unsigned short" if lanes == 16 else "unsigned char"
        all_kept = (1 << lanes) - 1
        lines = f"""\
  typedef {real} whole {kind};
  const {mask} kept = ({mask})(count < {lanes} ? (1u << (count > 0 ? count : 0)) - 1 : {all_kept}u);"""
        start, end = "from", "to"
        if is_half:  # compilers differ in the type of the address
            start, end = "(const place*)from", "(place*)to"
            kinds = "#if defined(__clang__)\n  typedef whole place;\n#else\n  typedef {} place;\n#endif"
            lines += "\n" + kinds.format(real)
        name = f"__builtin_ia32_{{}}up{letter}{8 * lanes * size}_mask"
        load = f"{name.format('load')}({start}, whole{{}}, kept)"
        store = f"{name.format('store')}({end}, (whole)value, kept)"
        return f"defined(__AVX512{'VL' if is_half else 'F'}__)", lines, load, store
    integer = "int" if size == 4 else "long long"
    lines = f"""\
  typedef {real} whole {kind};
  typedef {integer} bits {kind};
  bits lane;
  UNROLL for (Index l = 0; l < {lanes}; ++l) lane[l] = ({integer})l;
  const bits kept = lane < bits{{}} + ({integer})count;"""
    name = f"__builtin_ia32_mask{{}}p{letter}256"
    load = f"{name.format('load')}((const whole*)from, kept)"
    return "defined(__AVX__)", lines, load, f"{name.format('store')}((whole*)to, kept, (whole)value)"


def has_parts(dtype: DType, lanes: int) -> bool:
    """Whether a processor may load and store part of a vector by one instruction."""
    return dtype in (f32, f64) and lanes * dtype.bytes in (VECTOR_BYTES // 2, VECTOR_BYTES)


def _moved_halves(real: str, lanes: int, to: str, start: str, which: str) -> str:
    """Return the statements that copy the first ``count`` of some halves to another place.

    AVX-512 copies them by one instruction.
    """
    pieces, size = "", lanes
    while size:
        move = f"__builtin_memcpy({to} + l, {start} + l, {size} * sizeof({real}));"
        pieces += f"\n  if (kept & {size}) {{\n    {move}\n    l += {size};\n  }}"
        size //= 2
    text = f"""\
  const Index kept = count < 0 ? 0 : count < {lanes} ? count : {lanes};
  Index l = 0;{pieces}"""
    if lanes < 8:
        return text
    kinds, mask = f"vector_size({2 * lanes})", f"(unsigned {'short' if lanes == 16 else 'char'})kept_bits"
    name = f"__builtin_ia32_{which}dquhi{16 * lanes}_mask"
    if which == "load":
        moved = f"*(halves*){to} = (halves){name}((const place*){start}, whole{{}}, {mask});"
    else:
        moved = f"{name}((place*){to}, (whole)*(const halves*){start}, {mask});"
    return f"""\
#if defined(__AVX512BW__) && defined(__AVX512VL__)
  typedef short whole __attribute__(({kinds}));
  typedef short halves __attribute__(({kinds}, aligned(2), may_alias));
#if defined(__clang__)
  typedef whole place;
#else
  typedef short place;
#endif
  const unsigned kept_bits = (1u << (count < 0 ? 0 : count < {lanes} ? count : {lanes})) - 1;
  {moved}
#else
{text}
#endif"""


def store_part(
    emitter: CpuEmitter, dtype: DType, lanes: int, *, is_rounded: bool = False, in_registers: bool = False
) -> Code:
    """Return the function that stores the first ``count`` elements of a vector.

    Args:
        emitter: where the text goes.
        dtype: the dtype in memory.
        lanes: elements of the vector.
        is_rounded: whether a vector of f32 is rounded to halves.
        in_registers: whether masks lie in registers of their own, which AVX-512 has.
    """
    real, lane = STORAGE[dtype.name], "value[l]" if lanes > 1 else "value"
    text = f"  for (Index l = 0; l < count && l < {lanes}; ++l) to[l] = {lane};"
    if is_rounded:
        text = f"""\
  {real} part[{lanes}];
  {narrowing(emitter, dtype, lanes)}(part, value);
{_moved_halves(real, lanes, "to", "part", "store")}"""
    if has_parts(dtype, lanes):
        when, lines, _, store = _masked(dtype, lanes, in_registers=in_registers)
        text = f"#if {when}\n{lines}\n  {store};\n#else\n{text}\n#endif"
    text = f"""\
// to[l] = value[l] for l < count
template <typename Vector>
static inline void {SELF}({real}* to, Vector value, Index count) {{
{text}
}}"""
    return emitter.function(f"store_{dtype}_part", text)


def load_part(emitter: CpuEmitter, dtype: DType, lanes: int, *, in_registers: bool = False) -> Code:
    """Return the function that loads the first ``count`` elements of a vector; the others are 0."""
    real = STORAGE[dtype.name]
    if dtype in HALVES:
        text = f"""\
// from[l] in f32 for l < count, else 0
static inline auto {SELF}(const {real}* from, Index count) {{
  {real} part[{lanes}]{{}};
{_moved_halves(real, lanes, "part", "from", "load")}
  return {widening(emitter, dtype, lanes)}(part);
}}"""
        return emitter.function(f"load_{dtype}_part", text)
    text = f"""\
  Vector value{{}};
  for (Index l = 0; l < count && l < {lanes}; ++l) value[l] = from[l];
  return value;"""
    if has_parts(dtype, lanes):
        when, lines, load, _ = _masked(dtype, lanes, in_registers=in_registers)
        text = f"#if {when}\n{lines}\n  return (Vector){load};\n#else\n{text}\n#endif"
    text = f"""\
// from[l] for l < count, else 0
template <typename Vector>
static inline Vector {SELF}(const {real}* from, Index count) {{
{text}
}}"""
    return emitter.function(f"load_{dtype}_part", text)


def run_copy(emitter: CpuEmitter, source: DType, target: DType) -> Code | None:
    """Return the function that copies ``count`` neighbours, or None if the compiler's loop is as good.

    The end of a run is part of a vector, or a whole vector that ends where the run ends.
    """
    size = emitter.arch.vector_bytes
    real, stored = STORAGE[target.name], STORAGE[source.name]
    if size < VECTOR_BYTES // 2:
        return None
    if source == target:
        lanes = size // target.bytes
        if not has_parts(target, lanes):
            return None
        load, store = load_part(emitter, target, lanes), store_part(emitter, target, lanes)
        body = f"""\
  typedef {real} vector __attribute__((vector_size({size}), aligned({target.bytes})));
  Index i = 0;
  for (; i + {lanes} <= count; i += {lanes}) *(vector*)(target + i) = *(const vector*)(source + i);
  if (i < count) {store}(target + i, {load}<vector>(source + i, count - i), count - i);"""
    elif {source, target} < {f32, *HALVES} and f32 in (source, target):
        lines: list[str] = []
        for lanes in (16,) if size == VECTOR_BYTES else (8, 4):
            if source == f32:
                name = narrowing(emitter, target, lanes)
                move = f"{name}(target + {{0}}, *(const vector{lanes}*)(source + {{0}}));"
            else:
                name = widening(emitter, source, lanes)
                move = f"*(vector{lanes}*)(target + {{0}}) = (vector{lanes}){name}(source + {{0}});"
            lines += [
                f"  typedef float vector{lanes} __attribute__((vector_size({4 * lanes}), aligned(4)));",
                f"  if (count >= {lanes}) {{",
                f"    for (; i + {lanes} <= count; i += {lanes}) {move.format('i')}",
                f"    if (i < count) {move.format(f'count - {lanes}')}",
                "    return;",
                "  }",
            ]
        body = "  Index i = 0;\n" + "\n".join(lines)
        if size == VECTOR_BYTES:
            load = load_part(emitter, source, lanes)
            store = store_part(emitter, target, lanes, is_rounded=source == f32)
            start = f"<vector{lanes}>" if source == f32 else ""
            body += f"\n  if (count > 0) {store}(target, {load}{start}(source, count), count);"
        else:  # pieces of halves would be stored, and loaded as a whole
            body += f"\n  for (; i < count; ++i) target[i] = {emitter.convert('source[i]', source, target)};"
    else:
        return None
    text = f"""\
// target[i] = source[i] for i < count
static inline void {SELF}({real}* target, const {stored}* source, Index count) {{
{body}
}}"""
    return emitter.function(f"copy_{source}" + ("" if source == target else f"_to_{target}"), text)


# ---------------------------------------------------------------- halves
#
# GCC makes no vector code of conversions from and to `_Float16`.


def widened(stored: DType, lanes: int) -> str:
    """Return the body of a function that loads a ``vector`` of f32 from halves."""
    halves = f"typedef {{}} halves __attribute__((vector_size({2 * lanes}), aligned(2), may_alias));"
    if stored == bf16:
        bits = f"""\
  {halves.format("unsigned short")}
  typedef unsigned words __attribute__((vector_size({4 * lanes})));
  return (vector)(__builtin_convertvector(*(const halves*)from, words) << 16);"""
        by_width = {
            16: ("__AVX512F__", "__builtin_ia32_pmovzxwd512_mask((eights)*(const halves*)from, words{}, -1)"),
            8: ("__AVX2__", "__builtin_ia32_pmovzxwd256((eights)*(const halves*)from)"),
        }
        if lanes not in by_width:
            return bits
        # GCC 12 widens both halves of the vector apart.
        feature, wide = by_width[lanes]
        return f"""\
#if defined({feature}) && !defined(__clang__)
  {halves.format("short")}
  typedef short eights __attribute__((vector_size({2 * lanes})));
  typedef int words __attribute__((vector_size({4 * lanes})));
  return (vector)({wide} << 16);
#else
{bits}
#endif"""
    by_gcc = {
        16: "__builtin_ia32_vcvtph2ps512_mask((eights)*(const halves*)from, vector{}, -1, 4)",
        8: "__builtin_ia32_vcvtph2ps256((eights)*(const halves*)from)",
        4: "__builtin_ia32_vcvtph2ps(eights{from4[0], from4[1], from4[2], from4[3]})",
    }
    plain = f"""\
  vector wide;
  for (Index l = 0; l < {lanes}; ++l) wide[l] = f32_of_{stored}(from[l]);
  return wide;"""
    if stored != f16 or lanes not in by_gcc:
        return plain
    eights = f"typedef short eights __attribute__((vector_size({max(2 * lanes, 16)})));"
    if lanes == 4:  # the instruction takes the lower half of a vector
        eights += "\n  const halves from4 = *(const halves*)from;"
    feature = "__AVX512F__" if lanes == 16 else "__F16C__"
    return f"""\
#if defined({feature}) && !defined(__clang__)
  {halves.format("short")}
  {eights}
  return (vector){by_gcc[lanes]};
#elif defined(__F16C__) && defined(__clang__)
  {halves.format("_Float16")}
  return __builtin_convertvector(*(const halves*)from, vector);
#else
{plain}
#endif"""


def widening(emitter: CpuEmitter, stored: DType, lanes: int) -> Code:
    """Return the function that loads a vector of f32 from halves."""
    emitter.convert("x", stored, f32)
    text = f"""\
static inline auto {SELF}(const {STORAGE[stored.name]}* from) {{
  typedef float vector __attribute__((vector_size({4 * lanes})));
{widened(stored, lanes)}
}}"""
    return emitter.function(f"load_{lanes}_{stored}", text)


def narrowing(emitter: CpuEmitter, stored: DType, lanes: int) -> Code:
    """Return the function that rounds a vector of f32 to halves, and stores them."""
    emitter.convert("x", f32, stored)
    lane = "value[l]" if lanes > 1 else "value"
    plain = f"  for (Index l = 0; l < {lanes}; ++l) to[l] = {stored}_of_f32({lane});"
    halves = f"typedef {{}} halves __attribute__((vector_size({2 * lanes}), aligned(2), may_alias));"
    whole = f"typedef float whole __attribute__((vector_size({4 * lanes})));"
    body = plain
    if stored == bf16 and lanes > 1:
        body = f"""\
  {halves.format("unsigned short")}
  typedef unsigned words __attribute__((vector_size({4 * lanes})));
  const words bits = (words)value, high = bits >> 16, is_nan = (words)(value != value);
  const words rounded = (bits + 0x7fff + (high & 1)) >> 16, nan = (high & 0x8000) | 0x7fc0;
  *(halves*)to = __builtin_convertvector((rounded & ~is_nan) | (nan & is_nan), halves);"""
    elif lanes in _NARROWED:
        feature = "__AVX512F__" if lanes == 16 else "__F16C__"
        body = f"""\
#if defined({feature}) && !defined(__clang__)
  {halves.format("short")}
  typedef short eights __attribute__((vector_size({max(2 * lanes, 16)})));
  {whole}
  {_NARROWED[lanes]};
#elif defined(__F16C__) && defined(__clang__)
  {halves.format("_Float16")}
  {whole}
  *(halves*)to = __builtin_convertvector((whole)value, halves);
#else
{plain}
#endif"""
    text = f"""\
template <typename Vector>
static inline void {SELF}({STORAGE[stored.name]}* to, Vector value) {{
{body}
}}"""
    return emitter.function(f"store_{lanes}_as_{stored}", text)


_NARROWED = {
    16: "*(halves*)to = (halves)__builtin_ia32_vcvtps2ph512_mask((whole)value, 0, eights{}, -1)",
    8: "*(halves*)to = (halves)__builtin_ia32_vcvtps2ph256((whole)value, 0)",
    4: "const eights made = (eights)__builtin_ia32_vcvtps2ph((whole)value, 0);\n"
    "  __builtin_memcpy(to, &made, 8)",
}
"""Statements for GCC that round vectors of f32 to f16, to nearest even, by the number of lanes."""


# ---------------------------------------------------------------- fp8 widened to f32 by tables in registers
#
# Without its sign an fp8 number has 128 values, and its f32 has two bytes that are not 0.  AVX-512 VBMI
# looks up 64 bytes in a table of two registers, in half the time of the arithmetic.


TABLED = (f8e4m3, f8e5m2)

ROW, VECTOR_BYTES = 32, 64
"""Elements of a row, and bytes of a vector, which holds two rows."""


def emit_widened(
    emitter: CpuEmitter,
    sides: tuple[CopySide, CopySide],
    loops: Nest,
    limits: Mapping[int, Code],
    rest: ExitStack,
) -> bool:
    """Widen the elements of a copy by tables, if possible; the caller copies the other elements.

    Args:
        emitter: where the text goes.
        sides: source and target.
        loops: the loops over both sides.
        limits: run-time bounds of coordinates, by dimension.
        rest: gets the branch that copies the other elements.

    Returns:
        Whether all elements are widened.
    """
    found = _call(emitter, sides, loops, limits)
    if found is None:
        return False
    widened, whole = found
    if whole is None:
        emitter.do(widened)
        return True
    with emitter.branch(whole):
        emitter.do(widened)
    rest.enter_context(emitter.otherwise())
    return False


def _call(
    emitter: CpuEmitter, sides: tuple[CopySide, CopySide], loops: Nest, limits: Mapping[int, Code]
) -> tuple[Code, Code | None] | None:
    """Return the call that widens elements or rows that are contiguous in the target, and its condition."""
    (source, target), axes = sides, loops.axes
    if source.dtype not in TABLED or target.dtype != f32 or emitter.arch.vector_bytes != VECTOR_BYTES:
        return None
    if loops.conditions != (TRUE, TRUE) or not axes or len(axes) > 2 or any(axis.outer for axis in axes):
        return None
    *outer, inner = axes
    if inner.scale != 1 or {loops.stride(side, inner) for side in (0, 1)} != {1}:
        return None
    rows, step, whole = Code(str(inner.extent // ROW)), Code(str(ROW)), limits.get(inner.dim)
    if outer:
        (across,) = outer
        apart = loops.stride(0, across)
        if inner.extent != ROW or across.scale != 1 or loops.stride(1, across) != ROW or apart is None:
            return None
        rows, step = limits.get(across.dim, Code(str(across.extent))), emitter.spell(apart)
    elif inner.extent % ROW:
        return None
    first = {axis.sym: 0 for axis in axes}
    to, at = (
        code("{} + {}", side.name, emitter.spell(substitute(loops.offsets[number], first)))
        for number, side in ((1, target), (0, source))
    )
    made = call(emitter.function(f"widen_{source.dtype}", _text(emitter, source.dtype)), to, at, step, rows)
    return made, None if whole is None else code("{} == {}", whole, inner.extent)


def _text(emitter: CpuEmitter, kind: DType) -> str:
    """Return the function that widens rows."""
    stored, lanes = STORAGE[kind.name], VECTOR_BYTES // 4
    # The order from which interleaving bytes and words, within 16 bytes each, restores the order of elements.
    order = [lanes * part + 4 * lane + at for lane in range(4) for part in range(4) for at in range(4)]
    halves = [(f"high_{n}", f"low_{n}") for n in (0, 1)]
    tables = "\n".join(
        f"  const bytes {name} = *(const bytes*)(table + {128 * at + 64 * n});"
        for n, names in enumerate(halves)
        for at, name in enumerate(names)
    )
    stores = "\n".join(
        f"    to[{at}] = __builtin_shufflevector(words{{}}, {name}, {_spelled(_alternating(8, at % 2))});"
        for at, name in enumerate(("even", "even", "odd", "odd"))
    )
    numbers = np.arange(128, dtype=np.uint8).view(kind.numpy).astype(np.float32).view(np.uint32)
    element = emitter.convert("source[i * step + j]", kind, f32)
    table = _spelled(int(bits) >> shift & 255 for shift in (24, 16) for bits in numbers)
    return f"""\
// target[{ROW} * i + j] = source[i * step + j] for i < rows and j < {ROW}
static void {SELF}(float* target, const {stored}* source, Index step, Index rows) {{
  Index i = 0;
#if defined(__AVX512VBMI__)
  typedef unsigned char row __attribute__((vector_size({ROW}), aligned(1)));
  typedef unsigned char bytes __attribute__((vector_size({VECTOR_BYTES}), aligned(1)));
  typedef unsigned short words __attribute__((vector_size({VECTOR_BYTES}), aligned(4)));
  // Of each number without its sign: the first byte of its f32, and the second.
  static const unsigned char table[256] = {{{table}}};
{tables}
  for (; i + 2 <= rows; i += 2) {{
    const row first = *(const row*)(source + i * step), second = *(const row*)(source + (i + 1) * step);
    const bytes x = __builtin_shufflevector(first, second, {_spelled(order)});
    bytes high = x, low = x;
    asm("vpermi2b %2, %1, %0" : "+v"(high) : "v"(high_0), "v"(high_1));
    asm("vpermi2b %2, %1, %0" : "+v"(low) : "v"(low_0), "v"(low_1));
    high |= x & 128;
    const words even = (words)__builtin_shufflevector(low, high, {_spelled(_alternating(16, 0))});
    const words odd = (words)__builtin_shufflevector(low, high, {_spelled(_alternating(16, 1))});
    words* const to = (words*)(target + {ROW} * i);
{stores}
  }}
#endif
  for (; i < rows; ++i) {{
    INDEPENDENT
    for (Index j = 0; j < {ROW}; ++j) target[{ROW} * i + j] = {element};
  }}
}}"""


def _alternating(lanes: int, half: int) -> list[int]:
    """Return the lanes of one half of each 16 bytes, alternately from two vectors."""
    count = lanes * VECTOR_BYTES // 16
    return [
        begin + half * lanes // 2 + lane + vector * count
        for begin in range(0, count, lanes)
        for lane in range(lanes // 2)
        for vector in (0, 1)
    ]


def _spelled(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
