"""Transposition of square blocks in vector registers."""

from __future__ import annotations

from tilewright.dtypes import DType, boolean
from tilewright.symbolic.expr import add, expand, floordiv
from tilewright.symbolic.nodes import TRUE, Int
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, SELF, CpuEmitter, Side
from tilewright.targets.cpu.loops import Axis, Nest, transposed
from tilewright.targets.statements import Code, call, code

LEAST_LANES, MOST_LANES = 4, 16

XMM_BYTES = 16
"""Of vectors whose halves one instruction interleaves."""

MOST_AHEAD_BYTES = 256
"""Of rows that nothing foresees."""


def blocks(
    loops: Nest, sides: tuple[Side, Side], vector_bytes: int
) -> tuple[tuple[Axis, Axis], int, tuple[Int, Int]] | None:
    """How a copy goes by square blocks that are transposed; None unless neighbours lie along two axes.

    Args:
        loops: of the copy.
        sides: what is read, and what is written.
        vector_bytes: of the processor.

    Returns:
        The axes along which neighbours lie in the target and in the source, the side of a block, and how far
        apart rows lie in both.
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


def ask_ahead(emitter: CpuEmitter, source: Side, offset: Int, axes: tuple[Axis, Axis], lanes: int) -> None:
    """In each block of a row of blocks, ask for the lines of one row of those that are transposed next.

    Rows of few lines lie far apart in memory, and nothing in the processor foresees them.

    Args:
        emitter: where the text goes.
        source: what is read.
        offset: of an element of it.
        axes: along its rows, and along what is contiguous in it.
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
    """The function that copies a transposed block of ``lanes`` x ``lanes`` elements, or part of one.

    ``target[j * target_step + i] = source[i * source_step + j]`` for ``i < rows`` and ``j < columns``.
    """
    real, stored = STORAGE[target.name], STORAGE[source.name]
    # Compilers have no vectors of truth values: their bytes are moved.
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
    """Interleave each row of the upper half of a block with one of the lower half, again and again."""
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
    """Exchange the off-diagonal quarters of blocks of 2 x 2, 4 x 4, 8 x 8 ... elements."""
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
