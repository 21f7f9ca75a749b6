"""Random truth values as bits of words, made in short loops.

Ten rounds of a generator are some seventy instructions: unrolled over the registers of a thread, as other
functions are, they would be longer than what a processor keeps of its program, and it would wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd

from tilewright.ir.ops import Elementwise
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, floordiv, mod, mul
from tilewright.symbolic.nodes import Expr, Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.simt.emitter import Scope, SimtEmitter
from tilewright.targets.simt.random_places import FOUR, RandomPlace
from tilewright.targets.simt.thread_values import split_offset, thread_coordinate
from tilewright.targets.statements import Assign, Code, call, code, named
from tilewright.threads.distribution import Distribution
from tilewright.threads.registers import Digit, indexed

WORD = 32
"""Bits of a word."""

AT_ONCE = 2
"""Generations that are written side by side, so that one goes on while another waits for its product."""


def random_mask(emitter: SimtEmitter, op: Elementwise, place: RandomPlace) -> None:
    """``random_at_least`` of a place: the bits of a word in a loop, then the truth values that they are."""
    spread = op.result.fragment.distribution
    width = gcd(spread.size_values, WORD)
    each = FOUR if place.along is not None and width % FOUR == 0 else 1
    shared = "" if each == 1 else f", one generation for {FOUR}"
    emitter.comment(op, f"{op.result.name} = {op.function}({place.index}, ...){shared}")
    emitter.declare_registers(op.result)
    with emitter.indented():
        scope = Scope(emitter)
        lanes = place.lanes and each == FOUR
        pair, lane = _pair_of_lanes(scope, spread) if lanes else (0, 0)
        word = Sym(scope.name("w"), 0, spread.size_values // width - 1)
        turn = Sym(scope.name("j"), 0, width // each - 1)
        bits, i = scope.name("bits"), Sym(scope.name("i"), 0, width - 1)
        thread: Int = emitter.thread(spread.size_threads)
        if lanes:  # that of the even lane, which holds the first of four
            thread = mul(pair, 2)
        register = add(mul(word, width), mul(turn, each), mul(lane, 2))
        at = dict(zip(place.at, _at(spread, thread, register), strict=True))
        start, step = split_offset(substitute(place.index, at), (word, turn), emitter.sizes)
        first = scope.name("first")
        emitter.constant("long long", first, emitter.spell_wide(start))
        index = code("{} + {}", first, emitter.spell_wide(step))
        function = op.function if each == 1 else "four_at_least"
        made = call(function, index, *(_number(emitter, one) for one in op.operands_[1:]))
        with emitter.loops((word,)):
            emitter.declare(named("unsigned"), bits, Code("0"))
            condition = code("{} < {}", named(turn.name), width // each)
            before = f"{emitter.dialect.unroll} {AT_ONCE}"
            with emitter.loop("int", named(turn.name), 0, condition, before=before):
                shift = emitter.spell(mul(turn, each), tight=True)
                emitter.assign(bits, code("(unsigned){} << {}", made, shift), "|=")
            if lanes:
                other = call(emitter.dialect.exchange, *map(Code, emitter.dialect.exchanging), bits, 1)
                emitter.assign(bits, call("between_lanes", bits, other, emitter.spell(lane)))
            to = emitter.spell(add(mul(word, width), i))
            target = code("{}[{}]", emitter.name(op.result), to)
            emitter.one_line((i,), Assign(target, code("{} >> {} & 1", bits, named(i.name))))


def _pair_of_lanes(scope: Scope, spread: Distribution) -> tuple[Int, Int]:
    """Which pair of lanes the thread belongs to, and which of both it is."""
    thread = scope.emitter.thread(spread.size_threads)
    return scope.constant("pair", floordiv(thread, 2)), scope.constant("lane", mod(thread, 2))


def _at(spread: Distribution, thread: Int, register: Int) -> Iterator[Int]:
    """The coordinates of a register of a thread."""
    for dim, first in enumerate(thread_coordinate(spread.threads, spread.rank, thread)):
        steps = [Digit(mode.extent, mode.step if mode.dim == dim else 0) for mode in spread.values]
        yield add(first, indexed(steps, register))


def _number(emitter: SimtEmitter, value: Value | float | Int) -> Code:
    """A key, a counter or a threshold."""
    if isinstance(value, Value):
        return emitter.name(value)
    return emitter.spell_wide(value) if isinstance(value, Expr) else code("{}ull", int(value))
