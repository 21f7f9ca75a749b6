"""Whole tiles in registers: reductions over registers and lanes, other maps, coordinates."""

from __future__ import annotations

from tilewright.ir.fragment_ops import Coordinates, Redistribute, ReduceOp
from tilewright.symbolic.expr import add
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.simt.arithmetic import wrapping, wraps
from tilewright.targets.simt.conversion import converted, widened
from tilewright.targets.simt.emitter import SIMT_RULES, Scope, SimtEmitter, element
from tilewright.targets.simt.thread_values import thread_coordinate
from tilewright.targets.statements import Assign, Code, call, code
from tilewright.threads.distribution import registers
from tilewright.threads.registers import Digit, indexed, register_digits

EXTREME = {"max": "max_or_nan", "min": "min_or_nan"}
"""What takes the larger or smaller of two numbers."""


@SIMT_RULES.rule(ReduceOp)
def reduce(emitter: SimtEmitter, op: ReduceOp) -> None:
    """Each thread its own registers, then lanes in pairs."""
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
            for apart in _distances(plan.lanes):
                before = map(Code, emitter.dialect.exchanging)
                other = call(emitter.dialect.exchange, *before, total, apart)
                emitter.assign(total, combined(total, other))
            made = converted(total, kind, dtype, emitter.dialect.types)
            emitter.assign(element(emitter.name(op.result), i), made)


def _distances(lanes: tuple[Digit, ...]) -> list[int]:
    """How far the lanes lie apart that exchange values, one exchange after the other."""
    return [digit.weight << bit for digit in lanes for bit in range(digit.extent.bit_length() - 1)]


@SIMT_RULES.rule(Redistribute)
def redistribute(emitter: SimtEmitter, op: Redistribute) -> None:
    """Registers under other numbers: in a loop where these follow its index digit by digit, or one by one."""
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
    """Where the thread starts, and how far each register lies from there."""
    spread, name = op.distribution, emitter.name(op.result)
    emitter.comment(op, f"{op.result.name} = coordinates along {op.dim}")
    emitter.declare_registers(op.result)
    scope = Scope(emitter)
    start = thread_coordinate(spread.threads, spread.rank, emitter.thread(spread.size_threads))[op.dim]
    i = Sym(scope.name("i"), 0, spread.size_values - 1)
    steps = [Digit(mode.extent, mode.step if mode.dim == op.dim else 0) for mode in spread.values]
    emitter.one_line((i,), Assign(element(name, i), emitter.spell(add(start, indexed(steps, i)))))
