"""Rules of elementwise operations, of packed numbers, and of reductions on one thread.

A reduction along contiguous elements keeps one total for each lane of a vector, and folds the lanes at the
end, so that its inner loop is an operation on vectors.  A reduction along another dimension has one total for
each contiguous element anyway.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from tilewright.dtypes import DType, f32, i64, limits, u32, u64
from tilewright.functions.conversions import clamped_in, saturation
from tilewright.functions.table import COMPARISON, CONVERSION, TAKE
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, ReduceOp
from tilewright.ir.ops import Copy, Elementwise, Fill, FragmentOp, Op
from tilewright.ir.packed_ops import Pack, Unpack
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, ceil_div, mul
from tilewright.symbolic.nodes import Expr, Int
from tilewright.targets.cpu import functions
from tilewright.targets.cpu.conversions import STORAGE, computes_in
from tilewright.targets.cpu.emitter import SELF, CpuEmitter, literal
from tilewright.targets.cpu.linear import linear
from tilewright.targets.cpu.multiply import Pointwise, made_by
from tilewright.targets.statements import Assign, Code, Do, Statement, call, code, joined, named, names_in
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import Digit, broadcast
from tilewright.views.view import coordinates

# ----------------------------------------------------------------
#
# Loops over the elements of a fragment, with broadcast operands and coordinates.


class Loops:
    """Loops over the elements of a fragment: one if all operands have the same map, else one for each mode.

    Args:
        emitter: where the text goes.
        op: the elementwise operations.
    """

    def __init__(self, emitter: CpuEmitter, op: Pointwise) -> None:
        self.emitter = emitter
        self.spread = op.distribution
        self.first: dict[Value, int] = {}
        spread = op.distribution
        self.steps: dict[Distribution | int | Value, list[int]] = {spread: _weights(spread)}
        for one in op.ops:
            if (target := made_by(one)).is_tensor:
                found = linear(target.tensor.view)
                assert found is not None, "only such tensors are filled here"
                self.first[target], steps = found
                self.steps[target] = [
                    0 if mode.dim is None else steps[mode.dim] * mode.step for mode in spread.values
                ]
            for value in one.read:
                if value.is_fragment:
                    self.steps.setdefault(value.fragment.distribution, self._broadcast(value))
            if isinstance(one, Coordinates):
                along = [mode.step if mode.dim == one.dim else 0 for mode in spread.values]
                self.steps.setdefault(one.dim, along)
        # Join loops that continue each other on every side; none continues one that may end early.
        limits = self._limited([value for one in op.ops if (value := made_by(one)).is_fragment])
        kept: list[int] = []  # the modes that are loops
        counts: list[int] = []
        ends: dict[int, Code] = {}
        for at, mode in enumerate(spread.values):
            count, limit, last = mode.extent, limits.get(at), len(kept) - 1
            if count == 1:
                continue
            if (
                kept
                and last not in ends
                and all(steps[at] == steps[kept[-1]] * counts[-1] for steps in self.steps.values())
            ):
                if limit is not None:
                    ends[last] = code("{} * {}", counts[-1], limit)
                counts[-1] *= count
            else:
                if limit is not None:
                    ends[len(kept)] = limit
                kept.append(at)
                counts.append(count)
        self.counts: list[Code | int] = [ends.get(at, count) for at, count in enumerate(counts)]
        self.steps = {side: [steps[at] for at in kept] for side, steps in self.steps.items()}
        self.names = [emitter.local("e" if not depth else f"e{depth}") for depth in range(len(counts))]
        # Elements that all iterations of the innermost loop read are read once before it: compilers do not
        # vectorise a truth value that every iteration reads.
        self._held: dict[Value, Code] = {}
        self._repeated = [
            value
            for one in op.ops
            for value in one.read
            if value.is_fragment and self.steps.get(value.fragment.distribution, [])[:1] == [0]
        ]

    def _broadcast(self, value: Value) -> list[int]:
        digits = broadcast(self.spread, value.fragment.distribution)
        assert digits is not None, "verified"
        if digits == (Digit(self.spread.size_values, 1),):
            return _weights(self.spread)
        return [digit.weight for digit in digits]

    def _limited(self, made: Sequence[Value]) -> dict[int, Code]:
        """Return the needed iterations of the outermost loop of each dimension, by mode."""
        found: dict[int, Code] = {}
        for dim in range(self.spread.rank):
            bounds = {self.emitter.reach.get((value, dim)) for value in made}
            modes = [(mode.step, at) for at, mode in enumerate(self.spread.values) if mode.dim == dim]
            if len(bounds) == 1 and (bound := bounds.pop()) is not None and modes:
                step, at = max(modes)
                needed = self.emitter.spell(ceil_div(bound, step))
                found[at] = self.emitter.within(needed, self.spread.values[at].extent)
        return found

    @contextmanager
    def open(self) -> Iterator[None]:
        """Write the heads of the loops, the slowest first; the innermost one is independent."""
        with ExitStack() as stack:
            if self._repeated and len(self.counts) == 1:  # another loop may hold the same element
                stack.enter_context(self.emitter.indented())
            for depth in reversed(range(len(self.counts))):
                for value in dict.fromkeys(self._repeated) if depth == 0 else ():
                    held = self.emitter.local(f"{self.emitter.name(value)}_all")
                    self.emitter.constant(STORAGE[value.dtype.name], held, self.element(value))
                    self._held[value] = held
                name, is_inner = self.names[depth], depth == 0
                stack.enter_context(self.emitter.turns(name, self.counts[depth], independent=is_inner))
            if not self.counts:
                stack.enter_context(self.emitter.indented())
            yield

    def element(self, value: Value) -> Code:
        """Return the element of a fragment in this iteration."""
        if value in self._held:
            return self._held[value]
        if value.is_tensor:
            place = self.index(value)
            place = code("{} + {}", self.first[value], place) if self.first[value] else place
            return code("{}[{}]", self.emitter.name(value.buffer), place)
        return code("{}[{}]", self.emitter.name(value), self.index(value.fragment.distribution))

    def index(self, side: Distribution | int | Value) -> Code:
        """Return the index into a fragment of a distribution, or a tensor, or a dimension's coordinate."""
        return sum_of(self.names, self.steps.get(side, self.steps[self.spread]))


def sum_of(names: Sequence[Code], steps: Sequence[int]) -> Code:
    """Return ``name * step + ...`` with the largest step first."""
    parts = [n if s == 1 else code("{} * {}", n, s) for n, s in zip(names, steps, strict=True) if s]
    return joined(" + ", reversed(parts)) if parts else Code("0")


def _weights(spread: Distribution) -> list[int]:
    found, weight = [], 1
    for mode in spread.values:
        found.append(weight)
        weight *= mode.extent
    return found


# ---------------------------------------------------------------- rules


def emit_pointwise(emitter: CpuEmitter, op: Pointwise) -> None:
    """Write one loop over the elements; values that only it uses stay in registers."""
    for one in op.ops:
        emitter.comment(one, describe(one))
    loops = Loops(emitter, op)
    with loops.open():
        present: dict[Value, Code] = {}
        for at, one in enumerate(op.ops):
            target = made_by(one)
            text = _value(emitter, one, present, loops)
            if target.is_tensor:
                emitter.assign(loops.element(target), text)
                continue
            again = f"_{at}" if target in present else ""
            present[target] = emitter.local(f"{emitter.name(target)}_e{again}")
            emitter.constant(STORAGE[target.dtype.name], present[target], text)
        for value in op.stored:
            if value.is_fragment:
                emitter.assign(loops.element(value), present[value])


def emit_scalar(emitter: CpuEmitter, op: Elementwise) -> None:
    """Write a function of the kernel's numbers, computed once."""
    emitter.comment(op, describe(op))
    kind = STORAGE[op.result.dtype.name]
    emitter.constant(kind, emitter.name(op.result), _value(emitter, op, {}, None))


def describe(op: Op) -> str:
    """Return an elementwise operation in words."""
    match op:
        case Elementwise():
            operands = ", ".join(str(operand) for operand in op.operands_)
            dtype = f", {op.dtype}" if op.dtype is not None else ""
            return f"{op.result} = {op.function}({operands}{dtype})"
        case Coordinates():
            return f"{op.result} = coordinates along {op.dim}"
        case Fill():
            return f"{op.target} = {op.value}"
        case FragmentOp():
            return f"{op.result} = {op.fill}"
        case _:
            return f"{op.written[0]} = {op.read[0]}"


def _value(emitter: CpuEmitter, op: Op, present: dict[Value, Code], loops: Loops | None) -> Code:
    """Return C++ for the result of an elementwise operation."""
    match op:
        case FragmentOp():
            return literal(emitter, 0 if op.fill is None else op.fill, op.dtype)
        case Fill():
            if not isinstance(op.value, Value):
                return literal(emitter, op.value, op.target.dtype)
            return emitter.convert(emitter.name(op.value), op.value.dtype, op.target.dtype)
        case Copy():
            read = _element(emitter, op.source, present, loops)
            return emitter.convert(read, op.source.dtype, op.target.dtype)
        case Coordinates():
            assert loops is not None
            return code("(int)({})", loops.index(op.dim))
        case Elementwise():
            return _function(emitter, op, present, loops)
        case _:
            raise TypeError(f"{op.name} is no operation on single elements")


def _element(emitter: CpuEmitter, value: Value, present: dict[Value, Code], loops: Loops | None) -> Code:
    if value in present:
        return present[value]
    return loops.element(value) if loops is not None and value.is_fragment else emitter.name(value)


def _function(emitter: CpuEmitter, op: Elementwise, present: dict[Value, Code], loops: Loops | None) -> Code:
    def operand(value: Value | float | Int, dtype: DType) -> Code:
        if isinstance(value, Value):
            return emitter.convert(_element(emitter, value, present, loops), value.dtype, dtype)
        if isinstance(value, Expr):
            text = emitter.spell(value)
            if dtype.is_float and computes_in(dtype) != dtype:  # the storage type is a struct or an integer
                return emitter.convert(code(f"({STORAGE['i64']})({{}})", text), i64, dtype)
            return code(f"({STORAGE[dtype.name]})({{}})", text)
        return literal(emitter, value, dtype)

    result = op.result.dtype
    if op.function == "saturate" and isinstance(source := op.operands_[0], Value):
        kind = clamped_in(computes_in(source.dtype), result)
        if (ends := saturation(kind, result)) is not None:
            low, high = (literal(emitter, end, kind) for end in ends)
            clamped = call("clamp", operand(source, kind), low, high, of=[named(STORAGE[kind.name])])
            return emitter.convert(clamped, kind, result)
    if op.function == "bitcast" and isinstance(source := op.operands_[0], Value):
        held = _element(emitter, source, present, loops)
        return code("__builtin_bit_cast({}, {})", named(STORAGE[result.name]), held)
    if op.function in CONVERSION:
        return operand(op.operands_[0], result)
    if op.function == "select":
        condition, left, right = op.operands_
        asked = condition if isinstance(condition, Value) else None
        test = Code(str(int(bool(condition))))
        if asked is not None:
            test = _element(emitter, asked, present, loops)
        if asked is not None and computes_in(asked.dtype) != asked.dtype:
            test = operand(asked, f32)
        return code("{} ? {} : {}", test, operand(left, result), operand(right, result))
    if op.function == TAKE:
        [codes] = op.read
        real, wide = computes_in(result), u64 if codes.dtype.bits > 32 else u32
        entries = ", ".join(literal(emitter, one, real) for one in op.table)
        made = f"""static inline {STORAGE[real.name]} {SELF}({STORAGE[wide.name]} code) {{
  static const {STORAGE[real.name]} table[{len(op.table)}] = {{{entries}}};
  return code < {len(op.table)} ? table[code] : 0;
}}"""
        found = call(emitter.function("take", made), _element(emitter, codes, present, loops))
        return emitter.convert(found, real, result)
    known = [value.dtype for value in op.operands_ if isinstance(value, Value)]
    wide = computes_in(known[0] if known else result)
    operands = [operand(value, wide) for value in op.operands_]
    text, needs = functions.spell(op.function, wide, operands)
    spelled = Code(text, names_in(operands) | {*needs})
    if op.function in COMPARISON:
        return spelled
    if result.is_float:
        return emitter.convert(spelled, wide, result)
    return code(f"({STORAGE[result.name]})({{}})", spelled)


# ----------------------------------------------------------------
#
# Packing and unpacking: bytes that hold several numbers, the first in the lowest bits.


def emit_unpack(emitter: CpuEmitter, op: Unpack) -> None:
    """Write the numbers of each byte to their elements."""
    kind, mask = op.packed, (1 << op.packed.bits) - 1
    with ExitStack() as loops:
        at, numbers = _loops_over_bytes(emitter, loops, op, op.source)
        byte = _fragment_element(emitter, op.source, at)
        for part, number in enumerate(numbers):
            found = code("({} >> {} & {})", byte, kind.bits * part, mask)
            made = emitter.convert(found, kind, op.target.dtype)
            emitter.assign(_fragment_element(emitter, op.target, number), made)


def emit_pack(emitter: CpuEmitter, op: Pack) -> None:
    """Write each byte from its numbers."""
    kind, mask = op.packed, (1 << op.packed.bits) - 1
    with ExitStack() as loops:
        at, numbers = _loops_over_bytes(emitter, loops, op, op.target)
        parts = []
        for part, number in enumerate(numbers):
            made = emitter.convert(_fragment_element(emitter, op.source, number), op.source.dtype, kind)
            parts.append(code("({} & {}) << {}", made, mask, kind.bits * part))
        emitter.assign(_fragment_element(emitter, op.target, at), joined(" | ", parts))


def _loops_over_bytes(
    emitter: CpuEmitter, loops: ExitStack, op: Unpack | Pack, held: Value
) -> tuple[tuple[Int, ...], list[tuple[Int, ...]]]:
    """Open loops over the bytes of a tile; return the coordinates of a byte, and those of its numbers."""
    emitter.comment(op, f"{op.source} -> {op.target}, {op.packed.per_byte} numbers in each byte")
    shape = held.fragment.shape
    at = coordinates(shape, "b")
    for i, extent in zip(at, shape, strict=True):
        loops.enter_context(emitter.turns(named(i.name), extent))
    each = op.packed.per_byte
    numbers = [
        tuple(add(mul(i, each), part) if dim == op.dim else i for dim, i in enumerate(at))
        for part in range(each)
    ]
    return at, numbers


def _fragment_element(emitter: CpuEmitter, fragment: Value, at: Sequence[Int]) -> Code:
    return code(
        "{}[{}]",
        emitter.name(fragment),
        emitter.spell(emitter.fragment_view(fragment.fragment).at(tuple(at))),
    )


COMBINE = {
    "sum": "{0} + {1}",
    # A NaN wins against a number.
    "max": "({0} > {1}) | ({0} != {0}) ? {0} : {1}",
    "min": "({0} < {1}) | ({0} != {0}) ? {0} : {1}",
}
"""Combination of two numbers or vectors, by kind."""


def emit_reduce(emitter: CpuEmitter, op: ReduceOp) -> None:
    """Reduce in the source's compute dtype: one total for each result, or for each lane of each result."""
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


def emit_prefix(emitter: CpuEmitter, op: PrefixOp) -> None:
    """Sum up along the runs, in the source's compute dtype; neighbours that belong to other runs together."""
    plan, source, kind = op.plan, op.source, computes_in(op.source.dtype)
    kept, inner = plan.runs.kept, plan.registers
    starts, unit = list[int](), 1  # registers of `before`, by digit
    for digit in kept:
        starts.append(unit)
        unit *= digit.extent
    emitter.comment(op, f"{op.result} = prefix sums of {source} along {op.dim}")
    apart = next((n for n, digit in enumerate(kept) if digit.weight == 1 and digit.extent > 1), None)
    width = 1 if apart is None else kept[apart].extent
    lanes = _lanes(inner[:1], emitter.arch.vector_bytes // kind.bytes) if source.dtype == kind else 1
    with emitter.indented(), ExitStack() as nest:
        total, at, outer = (
            emitter.local("total"),
            emitter.local("at"),
            [n for n in range(len(kept)) if n != apart],
        )
        emitter.declare(named(STORAGE[kind.name]), total, extent=width)
        names, steps, firsts = list[Code](), list[int](), list[int]()
        for n in outer:
            names.append(emitter.local("e" if not names else f"e{len(names)}"))
            steps.append(kept[n].weight)
            firsts.append(starts[n])
            nest.enter_context(emitter.turns(names[-1], kept[n].extent))
        unit = 0 if apart is None else starts[apart]
        with emitter.turns(at, width):
            first: Code = literal(emitter, 0, kind)
            if op.before is not None:
                place = code("{}[{}]", emitter.name(op.before), sum_of([*names, at], [*firsts, unit]))
                first = emitter.convert(place, op.before.dtype, kind)
            emitter.assign(code("{}[{}]", total, at), first)
        for digit in reversed(inner[1:] if lanes > 1 else inner):
            if digit.extent > 1:
                names.append(emitter.local("e" if not names else f"e{len(names)}"))
                steps.append(digit.weight)
                nest.enter_context(emitter.turns(names[-1], digit.extent))
        if lanes > 1:
            begin = sum_of(names, steps)
            given = (code("{} + {}", emitter.name(value), begin) for value in (op.result, source))
            emitter.assign(
                code("{}[0]", total),
                call(_prefix_function(emitter, kind, lanes), *given, inner[0].extent, code("{}[0]", total)),
            )
            return
        with emitter.turns(at, width, independent=True):
            place = sum_of([*names, at], [*steps, 1])
            value = emitter.convert(code("{}[{}]", emitter.name(source), place), source.dtype, kind)
            emitter.assign(code("{}[{}]", total, at), code("{}[{}] + {}", total, at, value))
            made = emitter.convert(code("{}[{}]", total, at), kind, op.result.dtype)
            emitter.assign(code("{}[{}]", emitter.name(op.result), place), made)


def _prefix_function(emitter: CpuEmitter, kind: DType, lanes: int) -> Code:
    """Prefix sums of neighbours from a number on; returns the last one.  A vector has log2(lanes) steps."""
    real, steps, apart = STORAGE[kind.name], list[str](), 1
    while apart < lanes:
        order = ", ".join(str(lane - apart + lanes if lane >= apart else 0) for lane in range(lanes))
        steps.append(f"    a += __builtin_shufflevector(zero, a, {order});\n")
        apart *= 2
    last = ", ".join([str(lanes - 1)] * lanes)
    return emitter.function(
        f"prefix_sums_by_{lanes}_{kind}",
        f"""\
static inline {real} {SELF}({real}* to, const {real}* from, Index count, {real} before) {{
  {_vector(kind, lanes)}
  const vector zero = {{}};
  vector start = zero + before;
  for (Index i = 0; i < count; i += {lanes}) {{
    vector a = *(const vector*)(from + i);
{"".join(steps)}\
    *(vector*)(to + i) = start + a;
    start += __builtin_shufflevector(a, a, {last});
  }}
  return start[0];
}}""",
    )


def _lanes(reduced: tuple[Digit, ...], most: int) -> int:
    """Return the number of partial totals of each result: contiguous elements share a vector of totals."""
    return math.gcd(next((digit.extent for digit in reduced if digit.weight == 1), 1), most)


def _loops(kept: tuple[Digit, ...], reduced: tuple[Digit, ...], lanes: int) -> list[tuple[int, int, int]]:
    """Return the loops, innermost first: iterations, step in the source, step in the totals."""
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
    """Write loops around a statement, the first one innermost; ``independent`` iterations share no total."""
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
    """Return the neutral element of a reduction."""
    if function == "sum":
        return 0
    if kind.is_float:
        return -math.inf if function == "max" else math.inf
    return limits(kind)[0 if function == "max" else 1]
