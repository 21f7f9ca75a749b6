"""Floats of 8 bits widened to f32 by tables that processors hold in registers.

Without its sign such a number is one of 128, and of its f32 two bytes tell everything: the others are 0.
AVX-512 VBMI looks 64 bytes up at once, in tables of two registers each: half the time of the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import ExitStack

import numpy as np

from tilewright.dtypes import DType, f8e4m3, f8e5m2, f32
from tilewright.symbolic.nodes import TRUE
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CpuEmitter, Side
from tilewright.targets.cpu.loops import Nest
from tilewright.targets.statements import Code, call, code

TABLED = (f8e4m3, f8e5m2)

ROW, VECTOR_BYTES = 32, 64
"""Elements of a row, of which two are looked up at once; and what a vector has to hold."""


def emit_widened(
    emitter: CpuEmitter, sides: tuple[Side, Side], loops: Nest, limits: Mapping[int, Code], rest: ExitStack
) -> bool:
    """Widen the elements of a copy by tables, where and when these serve; others are left to what follows.

    Args:
        emitter: where the text goes.
        sides: what is read, and what is written.
        loops: over both.
        limits: what bounds the coordinates of dimensions.
        rest: gets the branch in which other elements are copied.

    Returns:
        Whether there are no others.
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
    emitter: CpuEmitter, sides: tuple[Side, Side], loops: Nest, limits: Mapping[int, Code]
) -> tuple[Code, Code | None] | None:
    """The call that widens elements side by side, or rows side by side in the target; and when it may."""
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
    # Where interleaving bytes and words, which stays within 16 bytes, takes each element to its place.
    order = [lanes * part + 4 * lane + at for lane in range(4) for part in range(4) for at in range(4)]
    halves = [(f"high_{n}", f"low_{n}") for n in (0, 1)]
    tables = "\n".join(
        f"  const bytes {name} = *(const bytes*)(table + {128 * at + 64 * n});"
        for n, names in enumerate(halves)
        for at, name in enumerate(names)
    )
    stores = "\n".join(
        f"    to[{at}] = __builtin_shufflevector(words{{}}, {name}, {_spelled(_interleaved(8, at % 2))});"
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
    const words even = (words)__builtin_shufflevector(low, high, {_spelled(_interleaved(16, 0))});
    const words odd = (words)__builtin_shufflevector(low, high, {_spelled(_interleaved(16, 1))});
    words* const to = (words*)(target + {ROW} * i);
{stores}
  }}
#endif
  for (; i < rows; ++i) {{
    INDEPENDENT
    for (Index j = 0; j < {ROW}; ++j) target[{ROW} * i + j] = {element};
  }}
}}"""


def _interleaved(lanes: int, half: int) -> list[int]:
    """The lanes of the first or of the second halves of each 16 bytes of two vectors, in turns."""
    count = lanes * VECTOR_BYTES // 16
    return [
        begin + half * lanes // 2 + lane + vector * count
        for begin in range(0, count, lanes)
        for lane in range(lanes // 2)
        for vector in (0, 1)
    ]


def _spelled(numbers: Iterable[int]) -> str:
    return ", ".join(map(str, numbers))
