"""Operations on whole fragments: MMAs, reductions, redistributions and coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tilewright.dtypes import DType, f64
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, Redistribute, ReduceOp
from tilewright.ir.ops import Mma
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.simt.arithmetic import wrapping, wraps
from tilewright.targets.simt.conversion import cast, converted, widened
from tilewright.targets.simt.emitter import SIMT_RULES, LocalNames, SimtEmitter, element
from tilewright.targets.simt.thread_values import thread_coordinate
from tilewright.targets.statements import Assign, Code, Do, Statement, call, code
from tilewright.threads.distribution import registers
from tilewright.threads.registers import Digit, PrefixStage, indexed, register_digits


@dataclass(frozen=True)
class AtomLoops:
    """The loops over the atoms of a tiled MMA, and the first register of each atom's operands.

    Args:
        loops: the loops with more than one iteration, outermost first.
        a: first register of A.
        b: first register of B.
        c: first register of the accumulator.
    """

    loops: tuple[Sym, ...]
    a: Int
    b: Int
    c: Int


def atom_loops(scope: LocalNames, op: Mma) -> AtomLoops:
    """Return the loops over K, N and M, in this order."""
    repeats_m, repeats_n = op.mma.repeats
    atom = op.mma.atom
    steps = op.a.fragment.shape[1] // atom.shape[2]
    step, j, i = (index(scope, name, n) for name, n in (("step", steps), ("j", repeats_n), ("i", repeats_m)))
    return AtomLoops(
        tuple(loop for loop in (step, j, i) if isinstance(loop, Sym)),
        (step * repeats_m + i) * atom.a.size_values,
        (step * repeats_n + j) * atom.b.size_values,
        (j * repeats_m + i) * atom.c.size_values,
    )


def index(scope: LocalNames, name: str, count: int) -> Int:
    """Return the index of a loop of ``count`` iterations: 0 if there is only one."""
    return Sym(scope.name(name), 0, count - 1) if count > 1 else 0


@SIMT_RULES.rule(Mma)
def mma(emitter: SimtEmitter, op: Mma) -> None:
    """Write the atom's instruction, or multiply-adds if the dialect has none."""
    atom = op.mma.atom
    instruction = emitter.dialect.instruction(atom)
    if instruction is None:
        multiply_add(emitter, op)
        return
    guard = emitter.participants(op.mma.c())
    precision = atom.precision if atom.rounding == "nearest" else None  # others round by themselves
    whole = precision is None
    with emitter.scope(op, f"{op.c} += {op.a} * {op.b}, by {atom}", guard, bare=whole) as scope:
        a, b = (_operand(scope, operand, precision) for operand in (op.a, op.b))
        atoms = atom_loops(scope, op)
        names = ((emitter.name(op.c), atoms.c), (a, atoms.a), (b, atoms.b))
        registers = (code("&{}[{}]", name, emitter.spell(at)) for name, at in names)
        emitter.one_line(atoms.loops, Do(call(emitter.defined(instruction), *registers)))


def _operand(scope: LocalNames, operand: Value, precision: int | None) -> Code:
    """Return the operand's registers, or a rounded copy of them if the atom reads fewer fraction bits."""
    emitter = scope.emitter
    name = emitter.name(operand)
    if precision is None:
        return name
    rounded = scope.name(f"{name}_rounded")
    count = operand.fragment.distribution.size_values
    i = Sym(scope.name("i"), 0, count - 1)
    emitter.declare_array(operand.dtype, rounded, count)
    made = call(emitter.dialect.rounding[precision], element(name, i))
    emitter.one_line((i,), Assign(element(rounded, i), made))
    return rounded


def multiply_add(emitter: SimtEmitter, op: Mma) -> None:
    """``c[x, y] += a[x] * b[y]`` for every atom; products are exact, f32 and f64 sums are rounded once.

    Narrow floats are widened where they are multiplied: the loops are unrolled, so that a compiler widens
    each number once, and chooses when.
    """
    guard = emitter.participants(op.mma.c())
    with emitter.scope(op, f"{op.c} += {op.a} * {op.b}", guard, bare=True) as scope:
        atom = op.mma.atom
        rows, columns = atom.a.size_values, atom.b.size_values
        atoms = atom_loops(scope, op)
        x, y = index(scope, "x", rows), index(scope, "y", columns)
        left, right, total = (
            code("{}[{}]", emitter.name(value), emitter.spell(at))
            for value, at in ((op.a, atoms.a + x), (op.b, atoms.b + y), (op.c, atoms.c + x * columns + y))
        )
        left, right = widened(left, op.a.dtype), widened(right, op.b.dtype)
        inner = tuple(loop for loop in (x, y) if isinstance(loop, Sym))
        emitter.one_line((*atoms.loops, *inner), _sum(total, left, right, op.a.dtype, atom.c_dtype))


def _sum(total: Code, left: Code, right: Code, kind: DType, dtype: DType) -> Statement:
    """Add a product of numbers of ``kind`` to a sum of ``dtype``."""
    if not dtype.is_float:
        return Assign(total, code("{} * {}", left, right), "+=")
    if kind != f64 and dtype == f64:
        return Assign(total, call("fma", cast("double", left), cast("double", right), total))
    if kind == f64 and dtype != f64:  # the product is exact, as the sum's dtype could not hold it
        return Assign(total, cast("float", call("fma", left, right, cast("double", total))))
    return Assign(total, call("fma" if dtype.bits == 64 else "fmaf", left, right, total))


# ----------------------------------------------------------------
#
# Reductions over registers and lanes, redistributions, coordinates.


EXTREME = {"max": "max_or_nan", "min": "min_or_nan"}
"""Functions of the larger and smaller of two numbers."""


@SIMT_RULES.rule(ReduceOp)
def reduce(emitter: SimtEmitter, op: ReduceOp) -> None:
    """Reduce the registers of each thread, then pairs of lanes."""
    plan, source, dtype = op.plan, op.source, op.source.dtype
    kind = dtype.computed
    with emitter.scope(
        op, f"{op.result.name} = {op.function} of {source.name} along {op.dim}", bare=True
    ) as scope:
        emitter.declare_registers(op.result)
        total, i = scope.name("total"), Sym(scope.name("i"), 0, plan.result.size_values - 1)

        def combined(first: Code, second: Code) -> Code:
            if op.function in EXTREME:
                return call(EXTREME[op.function], first, second)
            if wraps(kind):
                return wrapping("+", (first, second), kind, emitter.type(kind))
            return code("{} + {}", first, second)

        def register(j: int | Sym) -> Code:
            at = add(indexed(plan.kept, i), indexed(plan.reduced, j))
            return widened(code("{}[{}]", emitter.name(source), emitter.spell(at)), dtype)

        with emitter.loops((i,)):
            emitter.declare(emitter.type(kind), total, register(0))
            if plan.count == 2:
                emitter.assign(total, combined(total, register(1)))
            elif plan.count > 2:
                j = Sym(scope.name("j"), 1, plan.count - 1)
                emitter.one_line((j,), Assign(total, combined(total, register(j))))
            for apart in [
                digit.weight << bit for digit in plan.lanes for bit in range(digit.extent.bit_length() - 1)
            ]:
                before = map(Code, emitter.dialect.exchanging)
                other = call(emitter.dialect.exchange, *before, total, apart)
                emitter.assign(total, combined(total, other))
            made = converted(total, kind, dtype, emitter.dialect.types)
            emitter.assign(element(emitter.name(op.result), i), made)


@SIMT_RULES.rule(PrefixOp)
def prefix(emitter: SimtEmitter, op: PrefixOp) -> None:
    """Digits of a coordinate, finest first: registers in their order, lanes in pairs.

    ``total`` has the sums of the runs of all finer digits.  A lane of a pair with the higher number adds the
    total of the other one to ``before``.
    """
    plan, source, dtype = op.plan, op.source, op.source.dtype
    kind, of_run = dtype.computed, plan.registers
    count = math.prod(digit.extent for digit in of_run)
    emitter.comment(op, f"{op.result.name} = prefix sums of {source.name} along {op.dim}")
    emitter.declare_registers(op.result)
    scope = LocalNames(emitter)
    with emitter.indented():
        i = index(scope, "i", plan.runs.result.size_values)
        start = indexed(plan.runs.kept, i)
        with emitter.loops((i,) if isinstance(i, Sym) else ()):
            total, sums, k = scope.name("total"), scope.name("sums"), index(scope, "k", count)
            emitter.declare_array(kind, total, count)
            emitter.declare_array(kind, sums, count)
            k_loop = (k,) if isinstance(k, Sym) else ()
            at = add(start, indexed(of_run, k))

            def element_of(value: Value, place: Int) -> Code:
                return code("{}[{}]", emitter.name(value), emitter.spell(place))

            given = widened(element_of(source, at), dtype)
            emitter.one_line(
                k_loop, Assign(element(sums, k), given), Assign(element(total, k), element(sums, k))
            )
            lower, upper = 1, count
            for stage in plan.stages:
                if stage.extent == 1:
                    continue
                upper //= 1 if stage.in_lanes else stage.extent
                across = _across_lanes if stage.in_lanes else _across_registers
                with emitter.indented():
                    across(scope, stage, kind, (total, sums), (upper, lower))
                lower *= 1 if stage.in_lanes else stage.extent
            made: Code = element(sums, k)
            if op.before is not None:
                made = _plus(emitter, kind, widened(element_of(op.before, i), dtype), made)
            made = converted(made, kind, dtype, emitter.dialect.types)
            emitter.one_line(k_loop, Assign(element_of(op.result, at), made))


def _plus(emitter: SimtEmitter, kind: DType, first: Code, second: Code) -> Code:
    """The sum of two numbers; integers wrap."""
    if wraps(kind):
        return wrapping("+", (first, second), kind, emitter.type(kind))
    return code("{} + {}", first, second)


def _each(emitter: SimtEmitter, at: Int, statement: Statement) -> None:
    """A statement for all turns of an index, or for the only one."""
    emitter.one_line((at,) if isinstance(at, Sym) else (), statement)


def _across_registers(
    scope: LocalNames, stage: PrefixStage, kind: DType, names: tuple[Code, Code], sizes: tuple[int, int]
) -> None:
    """Add the totals of the runs before to those of a thread, whose numbers are in neighbouring registers."""
    emitter, (total, sums), (upper, lower) = scope.emitter, names, sizes
    before, own, a = scope.name("before"), scope.name("own"), index(scope, "a", upper)
    first, e = mul(a, stage.extent), Sym(scope.name("e"), 1, stage.extent - 1)
    with emitter.loops((a,) if isinstance(a, Sym) else ()):
        emitter.declare(emitter.type(kind), before, code("{}[{}]", total, emitter.spell(first)))
        with emitter.loops((e,)):
            one, d = add(first, e), index(scope, "d", lower)
            emitter.declare(emitter.type(kind), own, code("{}[{}]", total, emitter.spell(one)))
            place = code("{}[{}]", sums, emitter.spell(add(mul(one, lower), d)))
            _each(emitter, d, Assign(place, _plus(emitter, kind, before, place)))
            emitter.assign(before, _plus(emitter, kind, before, own))
        emitter.assign(code("{}[{}]", total, emitter.spell(a)), before)


def _across_lanes(
    scope: LocalNames, stage: PrefixStage, kind: DType, names: tuple[Code, Code], sizes: tuple[int, int]
) -> None:
    """Add the totals of the lanes before; all lanes then have the total of all of them."""
    emitter, (total, sums), (upper, lower) = scope.emitter, names, sizes
    before, other = scope.name("before"), scope.name("other")
    a, thread = index(scope, "a", upper), emitter.spell(emitter.thread(emitter.group_threads))
    loops = (a,) if isinstance(a, Sym) else ()
    own, start = (code("{}[{}]", name, emitter.spell(a)) for name in (total, before))
    emitter.declare_array(kind, before, upper)
    for bit in range(stage.extent.bit_length() - 1):
        apart = stage.weight << bit
        with emitter.loops(loops) if loops else emitter.indented():
            made = call(emitter.dialect.exchange, *map(Code, emitter.dialect.exchanging), own, apart)
            emitter.declare(emitter.type(kind), other, made)
            more = _plus(emitter, kind, start, other) if bit else other
            emitter.assign(start, code("({} & {}) != 0 ? {} : {}", thread, apart, more, start if bit else 0))
            emitter.assign(own, _plus(emitter, kind, own, other))
    d = index(scope, "d", lower)
    place = code("{}[{}]", sums, emitter.spell(add(mul(a, lower), d)))
    with emitter.loops(loops):
        _each(emitter, d, Assign(place, _plus(emitter, kind, start, place)))


@SIMT_RULES.rule(Redistribute)
def redistribute(emitter: SimtEmitter, op: Redistribute) -> None:
    """Copy registers to new indices: in a loop if old indices are sums of its digits, else one by one."""
    held, name, source = op.source.fragment.distribution, emitter.name(op.result), emitter.name(op.source)
    box = zip(op.start, op.distribution.shape, strict=True)
    part = ", ".join(f"{emitter.spell(at)}:{emitter.spell(add(at, n))}" for at, n in box)
    emitter.comment(op, f"{op.result.name} = {op.source}[{part}]")
    emitter.declare_registers(op.result)
    if (found := register_digits(held, op.distribution, op.start)) is not None:
        i = Sym(emitter.local("i"), 0, op.distribution.size_values - 1)
        at = emitter.spell(add(found[0], indexed(found[1], i)))
        emitter.one_line((i,), Assign(element(name, i), code("{}[{}]", source, at)))
        return
    chosen = registers(held, op.distribution, [int(evaluate(at, {})) for at in op.start])
    assert chosen is not None, "the verifier refuses what threads do not hold"
    for register, where in enumerate(chosen):
        emitter.assign(element(name, register), element(source, where))


@SIMT_RULES.rule(Coordinates)
def coordinates(emitter: SimtEmitter, op: Coordinates) -> None:
    """Write the thread's start plus the offset of each register."""
    spread, name = op.distribution, emitter.name(op.result)
    emitter.comment(op, f"{op.result.name} = coordinates along {op.dim}")
    emitter.declare_registers(op.result)
    scope = LocalNames(emitter)
    start = thread_coordinate(spread.threads, spread.rank, emitter.thread(spread.size_threads))[op.dim]
    i = Sym(scope.name("i"), 0, spread.size_values - 1)
    steps = [Digit(mode.extent, mode.step if mode.dim == op.dim else 0) for mode in spread.values]
    emitter.one_line((i,), Assign(element(name, i), emitter.spell(add(start, indexed(steps, i)))))
