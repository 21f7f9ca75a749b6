"""Transposition of square blocks in vector registers."""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.statements import Code


def transposition(emitter: CpuEmitter, source: DType, target: DType, lanes: int) -> Code:
    """The function that copies a transposed block of ``lanes`` x ``lanes`` elements, or part of one.

    ``target[j * target_step + i] = source[i * source_step + j]`` for ``i < rows`` and ``j < columns``.
    """
    real, stored = STORAGE[target.name], STORAGE[source.name]
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
  typedef {real} vector __attribute__((vector_size({lanes * target.bytes}), aligned({target.bytes})));
  if (rows < {lanes} || columns < {lanes}) {{
    for (Index i = 0; i < rows; ++i)
      for (Index j = 0; j < columns; ++j) target[j * target_step + i] = {element};
    return;
  }}
  vector row[{lanes}];
{chr(10).join(rows)}
{chr(10).join(_stages(lanes))}
  UNROLL for (Index j = 0; j < {lanes}; ++j) *(vector*)(target + j * target_step) = row[j];
}}"""
    name = f"transpose_{target}" + ("" if source == target else f"_from_{source}")
    return emitter.function(name, text)


def _stages(lanes: int) -> list[str]:
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
