"""Copies through vector registers: transposition of square blocks, and fp8 widened by table lookup."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import numpy as np

from tilewright.dtypes import DType, boolean, f8e4m3, f8e5m2, f32
from tilewright.symbolic.expr import add, expand, floordiv
from tilewright.symbolic.nodes import TRUE, Int
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, SELF, CopySide, CpuEmitter
from tilewright.targets.cpu.loops import Axis, Nest, transposed
from tilewright.targets.statements import Code, call, code

LEAST_LANES, MOST_LANES = 4, 16

XMM_BYTES = 16
"""Bytes of the vectors whose halves one instruction interleaves."""

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
    lanes = min(vector_bytes // size, MOST_LANES)
    while found is not None and any(axis.extent % lanes for axis in found):
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
    """While a block is moved, prefetch one row of the next row of blocks.

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
    element = emitter.convert("source[i * source_step + j]", source, target)
    each = f"for (Index i = 0; i < {lanes}; ++i)"
    if source == target:
        rows = [f"  UNROLL {each}", "    row[i] = *(const vector*)(source + i * source_step);"]
    else:
        rows = [
            f"  {real} block[{lanes}][{lanes}];",
            f"  {each}",
            f"    for (Index j = 0; j < {lanes}; ++j) block[i][j] = {element};",
            f"  UNROLL {each} row[i] = *(const vector*)block[i];",
        ]
    text = f"""\
// target[j * target_step + i] = source[i * source_step + j] for i < rows, j < columns
static void {SELF}({real}* target, Index target_step, const {stored}* source, Index source_step,
    Index rows, Index columns) {{
  typedef {lane} vector
    __attribute__((vector_size({lanes * target.bytes}), aligned({target.bytes}){aliases}));
  if (rows < {lanes} || columns < {lanes}) {{
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = {element};
    return;
  }}
  vector row[{lanes}];
{chr(10).join(rows)}
{chr(10).join(_interleaved(lanes) if lanes * target.bytes == XMM_BYTES else exchanged(lanes))}
  UNROLL for (Index j = 0; j < {lanes}; ++j) *(vector*)(target + j * target_step) = row[j];
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


def exchanged(lanes: int) -> list[str]:
    """Return text that transposes by exchanging off-diagonal quarters of 2 x 2, 4 x 4, 8 x 8 ... elements."""
    lines: list[str] = []
    distance = 1
    while distance < lanes:
        low = [lane if not lane & distance else lanes + (lane ^ distance) for lane in range(lanes)]
        high = [lane | distance if not lane & distance else lanes + lane for lane in range(lanes)]
        lines += [
            f"  UNROLL for (Index i = 0; i < {lanes}; ++i)",
            f"    if (!(i & {distance})) {{",
            f"      const vector low = row[i], high = row[i + {distance}];",
            f"      row[i] = __builtin_shufflevector(low, high, {', '.join(map(str, low))});",
            f"      row[i + {distance}] = __builtin_shufflevector(low, high, {', '.join(map(str, high))});",
            "    }",
        ]
        distance *= 2
    return lines


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
    """The call that widens contiguous elements, or rows that are contiguous in the target; its condition."""
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
    """The function that widens rows."""
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
    """The lanes of the first or the second half of each 16 bytes, of two vectors in turn."""
    count = lanes * VECTOR_BYTES // 16
    return [
        begin + half * lanes // 2 + lane + vector * count
        for begin in range(0, count, lanes)
        for lane in range(lanes // 2)
        for vector in (0, 1)
    ]


def _spelled(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
