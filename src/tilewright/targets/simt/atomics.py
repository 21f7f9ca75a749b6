"""Copies that reduce into memory atomically, and counters between blocks.

The dialect lists its functions.  A copy uses the widest one that its vectors fill.
"""

from __future__ import annotations

from tilewright.ir.copies import Copy
from tilewright.ir.signal_ops import Await, Reset, Signal, Ticket
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, equal, less
from tilewright.symbolic.nodes import TRUE, Int, Sym
from tilewright.targets.dialect import AtomicFunction
from tilewright.targets.simt.conversion import converted
from tilewright.targets.simt.copies import access, copy, in_turn, plan, title, when
from tilewright.targets.simt.emitter import SIMT_RULES, LocalNames, SimtEmitter, element
from tilewright.targets.statements import Assign, Code, Do, Statement, call, code


@SIMT_RULES.rule(Copy, variant="direct")
def copy_or_reduce(emitter: SimtEmitter, op: Copy) -> None:
    """Write a copy by loads and stores, or by loads and reductions."""
    if op.reduction is None:
        copy(emitter, op)
    else:
        reduce(emitter, op)


def choose(emitter: SimtEmitter, op: Copy) -> AtomicFunction:
    """Return the function that reduces the most elements at once."""
    known = emitter.dialect.atomics[str(op.reduction), op.target.dtype.name]
    most, memory = op.vector or 1, op.target.tensor.memory.value
    if memory == "shared" and emitter.kernel.cluster:
        memory = "cluster"
    able = [one for one in known if one.memory == memory and one.feature in ("", *emitter.arch.features)]
    return max((one for one in able if one.width <= most), key=lambda one: one.width)


def reduce(emitter: SimtEmitter, op: Copy) -> None:
    """Write ``target = combine(target, source)`` from registers, or from memory through registers."""
    atomic = choose(emitter, op)
    text = f"{title(op, atomic.width)}, by {op.reduction}"
    with emitter.scope(op, text, emitter.participants(op.spread, once=True)) as scope:
        path, at = plan(scope, op.spread, atomic.width)
        source = None
        if not op.source.is_fragment:
            source = access(
                scope, "from", op.source, at, path.loops, atomic.width, const=True, other=op.other
            )
        target = access(scope, "to", op.target, at, path.loops, atomic.width, const=False)
        with emitter.loops(in_turn(target, path.loops, emitter.dialect)):
            name, first = emitter.name(op.source), path.register
            if source is not None:
                name, first = scope.name("moved"), 0
                emitter.declare(code("const {}", source.word), name, source.load(emitter))
                if atomic.width > 1:
                    name = code("((const {}*)&{})", emitter.type(op.source.dtype), name)
            value = _value(scope, op, name, first, atomic.width, is_word=source is not None)
            reduced = Do(call(atomic.function, target.address(emitter), value))
            emitter.add(when(target.condition(emitter), reduced))


def _value(scope: LocalNames, op: Copy, name: Code, first: Int, width: int, *, is_word: bool) -> Code:
    """Return the reduced element, or the address of several, converted to the target's dtype."""
    emitter, types = scope.emitter, scope.emitter.dialect.types
    if width == 1:
        held = name if is_word else code("{}[{}]", name, emitter.spell(first))
        return converted(held, op.source.dtype, op.target.dtype, types)
    if op.source.dtype == op.target.dtype:
        return emitter.plus(name, first)
    packed, e = scope.name("packed"), Sym(scope.name("e"), 0, width - 1)
    emitter.declare_array(op.target.dtype, packed, width)
    held = code("{}[{}]", name, emitter.spell(add(first, e)))
    value = converted(held, op.source.dtype, op.target.dtype, types)
    emitter.one_line((e,), Assign(element(packed, e), value))
    return packed


# ----------------------------------------------------------------
#
# Counters between blocks: one thread counts, one warp waits.
#
# A barrier before the signal, an operation of its own, lets the first thread act for all.  What the threads
# did happens before the barrier, and the barrier happens before the release (causality is transitive).  The
# barrier after a wait does the same in the other direction.


@SIMT_RULES.rule(Signal)
def signal(emitter: SimtEmitter, op: Signal) -> None:
    """Write an increment with release semantics by the first thread."""
    emitter.comment(op, f"signal {op.counter}{_of(emitter, op.of)}")
    place = counter_address(emitter, op.counter)
    function, value = ("signal_counter", op.value) if op.of is None else ("signal_counter_of", op.of)
    _by(emitter, 1, Do(call(_scoped(function, op.scope), place, emitter.spell(value))))


@SIMT_RULES.rule(Ticket)
def ticket(emitter: SimtEmitter, op: Ticket) -> None:
    """Write an acquire-release increment by the first thread, which stores the ticket in shared memory."""
    emitter.comment(op, f"take a ticket of {op.counter}{_of(emitter, op.of)}")
    place = counter_address(emitter, op.counter)
    taken = call("take_ticket", place)
    if op.of is not None:
        taken = call("take_ticket_of", place, emitter.spell(op.of))
    target = code("{}[{}]", emitter.name(op.target.buffer), emitter.spell(op.target.tensor.view.offset))
    _by(emitter, 1, Assign(target, taken))


@SIMT_RULES.rule(Await)
def wait(emitter: SimtEmitter, op: Await) -> None:
    """Write a loop of acquire loads by the first warp, until the counter reaches the value."""
    emitter.comment(op, f"wait until {op.counter} is {emitter.spell(op.value)} or more")
    place = counter_address(emitter, op.counter)
    function = _scoped("await_counter", op.scope)
    _by(emitter, emitter.kernel.lanes, Do(call(function, place, emitter.spell(op.least))))
    emitter.has_waited = True


@SIMT_RULES.rule(Reset)
def reset(emitter: SimtEmitter, op: Reset) -> None:
    """Write a store by the first thread."""
    emitter.comment(op, f"reset {op.counter} for the next launch")
    _by(emitter, 1, Do(call("reset_counter", counter_address(emitter, op.counter))))


def _scoped(function: str, scope: str) -> str:
    """Return the function of a scope; that of the GPU has no suffix."""
    return function if scope == "gpu" else f"{function}_{scope}"


def _of(emitter: SimtEmitter, of: Int | None) -> str:
    return "" if of is None else f", the last of {emitter.spell(of)} resets it"


def counter_address(emitter: SimtEmitter, counter: Value) -> Code:
    """Return the address of a counter."""
    return emitter.plus(emitter.name(counter.buffer), counter.tensor.view.offset)


def _by(emitter: SimtEmitter, threads: int, statement: Statement) -> None:
    """Add a statement that only the role's first ``threads`` threads execute."""
    group = emitter.group_threads
    thread = emitter.thread(group)
    guard = TRUE if group <= threads else equal(thread, 0) if threads == 1 else less(thread, threads)
    emitter.add(when(None if guard == TRUE else emitter.spell_cond(guard), statement))
