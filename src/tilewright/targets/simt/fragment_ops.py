"""Whole tiles in registers: reductions over registers and lanes, other maps, coordinates."""

from __future__ import annotations

from tilewright.ir.fragment_ops import Coordinates, Redistribute, Reduce
from tilewright.symbolic.expr import add
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets.simt.arithmetic import wrapping, wraps
from tilewright.targets.simt.conversion import compute_dtype, converted, widened
from tilewright.targets.simt.emitter import SIMT_RULES, Scope, SimtEmitter
from tilewright.targets.simt.thread_values import thread_coordinate
from tilewright.threads.distribution import registers
from tilewright.threads.registers import Digit, indexed, register_digits

COMBINE = {"sum": "{0} + {1}", "max": "max_or_nan({0}, {1})", "min": "min_or_nan({0}, {1})"}
"""How two numbers become one."""


@SIMT_RULES.rule(Reduce)
def reduce(emitter: SimtEmitter, op: Reduce) -> None:
    """Each thread its own registers, then lanes in pairs."""
    plan, source, dtype = op.plan, op.source, op.source.dtype
    kind = compute_dtype(dtype)
    with emitter.scope(
        op, f"{op.result.name} = {op.function} of {source.name} along {op.dim}", bare=True
    ) as scope:
        emitter.line(f"{emitter.registers(op.result)};")
        total, i = scope.name("total"), Sym(scope.name("i"), 0, plan.result.size_values - 1)

        def combined(first: str, second: str) -> str:
            if op.function == "sum" and wraps(kind):
                return wrapping("+", (first, second), kind, emitter.type(kind))
            return COMBINE[op.function].format(first, second)

        def register(j: int | Sym) -> str:
            at = add(indexed(plan.kept, i), indexed(plan.reduced, j))
            return widened(f"{emitter.name(source)}[{emitter.spell(at)}]", dtype)

        with emitter.loops((i,)):
            emitter.line(f"{emitter.type(kind)} {total} = {register(0)};")
            if plan.count == 2:
                emitter.line(f"{total} = {combined(total, register(1))};")
            elif plan.count > 2:
                j = Sym(scope.name("j"), 1, plan.count - 1)
                emitter.line(emitter.dialect.unroll)
                head = f"for (int {j.name} = 1; {j.name} < {plan.count}; ++{j.name})"
                statement = f"{total} = {combined(total, register(j))};"
                if emitter.fits(f"{head} {statement}"):
                    emitter.line(f"{head} {statement}")
                else:
                    with emitter.indented(head):
                        emitter.line(statement)
            for apart in _distances(plan.lanes):
                other = f"__shfl_xor_sync(0xffffffff, {total}, {apart})"
                emitter.line(f"{total} = {combined(total, other)};")
            made = converted(total, kind, dtype, emitter.dialect.types)
            emitter.line(f"{emitter.name(op.result)}[{i.name}] = {made};")


def _distances(lanes: tuple[Digit, ...]) -> list[int]:
    """How far the lanes lie apart that exchange values, one exchange after the other."""
    return [digit.weight << bit for digit in lanes for bit in range(digit.extent.bit_length() - 1)]


@SIMT_RULES.rule(Redistribute)
def redistribute(emitter: SimtEmitter, op: Redistribute) -> None:
    """Registers under other numbers: in a loop where these follow its index digit by digit, or one by one."""
    held, name, source = op.source.fragment.distribution, emitter.name(op.result), emitter.name(op.source)
    box = zip(op.start, op.distribution.shape, strict=True)
    part = ", ".join(f"{emitter.spell(at)}:{emitter.spell(add(at, n))}" for at, n in box)
    emitter.comment(op, f"{op.result.name} = {op.source.name}[{part}]")
    emitter.line(f"{emitter.registers(op.result)};")
    if (found := register_digits(held, op.distribution, op.start)) is not None:
        i = Sym(emitter.local("i"), 0, op.distribution.size_values - 1)
        at = emitter.spell(add(found[0], indexed(found[1], i)))
        emitter.one_line((i,), f"{name}[{i.name}] = {source}[{at}];")
        return
    chosen = registers(held, op.distribution, [int(evaluate(at, {})) for at in op.start])
    assert chosen is not None, "the verifier refuses what threads do not hold"
    for register, where in enumerate(chosen):
        emitter.line(f"{name}[{register}] = {source}[{where}];")


@SIMT_RULES.rule(Coordinates)
def coordinates(emitter: SimtEmitter, op: Coordinates) -> None:
    """Where the thread starts, and how far each register lies from there."""
    spread, name = op.distribution, emitter.name(op.result)
    emitter.comment(op, f"{op.result.name} = coordinates along {op.dim}")
    emitter.line(f"{emitter.registers(op.result)};")
    scope = Scope(emitter)
    start = thread_coordinate(spread.threads, spread.rank, emitter.thread(spread.size_threads))[op.dim]
    i = Sym(scope.name("i"), 0, spread.size_values - 1)
    steps = [Digit(mode.extent, mode.step if mode.dim == op.dim else 0) for mode in spread.values]
    emitter.one_line((i,), f"{name}[{i.name}] = {emitter.spell(add(start, indexed(steps, i)))};")
