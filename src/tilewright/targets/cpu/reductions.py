"""The rule of reductions on one thread, in the lanes of vectors.

A reduction along contiguous elements keeps one total for each lane of a vector, and folds the lanes at the
end, so that its inner loop is an operation on vectors.  A reduction along another dimension has one total for
each contiguous element anyway.
"""

from __future__ import annotations

import math

from tilewright.dtypes import DType, limits
from tilewright.ir.fragment_ops import ReduceOp
from tilewright.targets.cpu.conversions import STORAGE, computes_in
from tilewright.targets.cpu.emitter import SELF, CpuEmitter, literal
from tilewright.targets.cpu.pointwise import sum_of
from tilewright.targets.statements import Assign, Code, Do, Statement, call, code, named
from tilewright.threads.registers import Digit

COMBINE = {
    "sum": "{0} + {1}",
    # A NaN wins against a number.
    "max": "({0} > {1}) | ({0} != {0}) ? {0} : {1}",
    "min": "({0} < {1}) | ({0} != {0}) ? {0} : {1}",
}
"""Combination of two numbers or vectors, by kind."""


def emit_reduce(emitter: CpuEmitter, op: ReduceOp) -> None:
    """Sum up in the source's compute dtype: one total for each result, or for each lane of each result."""
    plan, dtype = op.plan, op.source.dtype
    kind = computes_in(dtype)
    size = plan.result.size_values
    lanes = _lanes(plan.reduced, emitter.arch.vector_bytes // kind.bytes)
    total, at = emitter.local("total"), emitter.local("at")
    emitter.comment(op, f"{op.result} = {op.function} of {op.source} along {op.dim}")
    with emitter.indented():
        start = literal(emitter, _start(op.function, kind), kind)
        emitter.declare(named(STORAGE[kind.name]), total, extent=size * lanes)
        with emitter.turns(at, size * lanes):
            emitter.assign(code("{}[{}]", total, at), start)
        loops = _loops(plan.kept, plan.reduced, lanes)
        names = [emitter.local("e" if not depth else f"e{depth}") for depth in range(len(loops))]
        read = code("{}[{}]", emitter.name(op.source), sum_of(names, [loop[1] for loop in loops]))
        place = code("{}[{}]", total, sum_of(names, [loop[2] for loop in loops]))
        counts = [loop[0] for loop in loops]
        steps = [1] * len(loops)
        vectors = lanes > 1 and dtype == kind and loops[0][1:] == (1, 1)
        if vectors:
            steps[0] = lanes
            real = STORAGE[kind.name]
            text = f"""\
static inline void {SELF}({real}* total, const {real}* source) {{
  {_vector(kind, lanes)}
  const vector a = *(const vector*)total, b = *(const vector*)source;
  *(vector*)total = {COMBINE[op.function].format("a", "b")};
}}"""
            name = emitter.function(f"{op.function}_of_{lanes}_{kind}", text)
            body: Statement = Do(call(name, code("&{}", place), code("&{}", read)))
        else:
            value = emitter.convert(read, dtype, kind)
            body = Assign(place, _combined(emitter, op.function, kind, place, value))
        nest = list(zip(names, counts, steps, strict=True))
        _nested(emitter, nest, body, independent=bool(loops and loops[0][2]) and not vectors)
        _folded(emitter, op, total, size, lanes, kind)


def _lanes(reduced: tuple[Digit, ...], most: int) -> int:
    """Return the number of partial totals of each result: contiguous elements share a vector of totals."""
    run = next((digit.extent for digit in reduced if digit.weight == 1), 1)
    return math.gcd(run, most)


def _loops(kept: tuple[Digit, ...], reduced: tuple[Digit, ...], lanes: int) -> list[tuple[int, int, int]]:
    """The loops, innermost first: iterations, step in the source, step in the totals."""
    found: list[tuple[int, int, int]] = []
    weight = lanes
    for digit in kept:
        found.append((digit.extent, digit.weight, weight))
        weight *= digit.extent
    for digit in reduced:
        if digit.weight == 1 and lanes > 1:
            found += [(lanes, 1, 1), (digit.extent // lanes, lanes, 0)]
        else:
            found.append((digit.extent, digit.weight, 0))
    loops = sorted((loop for loop in found if loop[0] > 1), key=lambda loop: loop[1])
    merged: list[tuple[int, int, int]] = []
    for count, step, along in loops:
        if merged and (merged[-1][1] * merged[-1][0], merged[-1][2] * merged[-1][0]) == (step, along):
            merged[-1] = (merged[-1][0] * count, *merged[-1][1:])
        else:
            merged.append((count, step, along))
    return merged


def _nested(
    emitter: CpuEmitter, loops: list[tuple[Code, int, int]], body: Statement, *, independent: bool
) -> None:
    """Loops around a statement, the first one innermost; ``independent`` if its iterations share no total."""
    if not loops:
        emitter.add(body)
        return
    *inner, (name, count, step) = loops
    with emitter.turns(name, count, step, independent=independent and not inner):
        _nested(emitter, inner, body, independent=independent)


def _folded(emitter: CpuEmitter, op: ReduceOp, total: Code, size: int, lanes: int, kind: DType) -> None:
    """Fold the lanes of each result, halves first; store the result, rounded once."""
    at = emitter.local("at")
    first = code("{}[{}]", total, at)
    if lanes > 1:
        real, half = STORAGE[kind.name], lanes // 2
        combined, steps = COMBINE[op.function].format("a", "b"), []
        while half:
            order = ", ".join(str((lane + half) % lanes) for lane in range(lanes))
            steps.append(
                f"  {{ const vector b = __builtin_shufflevector(a, a, {order}); a = {combined}; }}\n"
            )
            half //= 2
        text = f"""\
static inline {real} {SELF}(const {real}* total) {{
  {_vector(kind, lanes)}
  vector a = *(const vector*)total;
{"".join(steps)}\
  return a[0];
}}"""
        across = emitter.function(f"{op.function}_across_{lanes}_{kind}", text)
        first = call(across, code("{} + {} * {}", total, at, lanes))
    made = emitter.convert(first, kind, op.result.dtype)
    with emitter.turns(at, size):
        emitter.assign(code("{}[{}]", emitter.name(op.result), at), made)


def _combined(emitter: CpuEmitter, function: str, kind: DType, left: Code, right: Code) -> Code:
    if function == "sum":
        return code(COMBINE[function], left, right)
    name = emitter.function(
        f"{function}_or_nan",
        f"static inline {STORAGE[kind.name]} {SELF}({STORAGE[kind.name]} a, {STORAGE[kind.name]} b) "
        f"{{ return {COMBINE[function].format('a', 'b')}; }}",
    )
    return call(name, left, right)


def _vector(kind: DType, lanes: int) -> str:
    attributes = f"vector_size({lanes * kind.bytes}), aligned({kind.bytes})"
    return f"typedef {STORAGE[kind.name]} vector __attribute__(({attributes}));"


def _start(function: str, kind: DType) -> float | int:
    """The neutral element of a reduction."""
    if function == "sum":
        return 0
    if kind.is_float:
        return -math.inf if function == "max" else math.inf
    return limits(kind)[0 if function == "max" else 1]
