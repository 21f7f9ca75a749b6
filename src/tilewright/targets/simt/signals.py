"""Signals between blocks: one thread counts, one warp waits; the functions are the dialect's.

A barrier before the signal, an operation of its own, makes the first thread speak for all: what they did
happens before the barrier, and that before the release (causality is transitive).  The barrier after a wait
does the same the other way.
"""

from __future__ import annotations

from tilewright.ir.signal_ops import Await, Reset, Signal, Ticket
from tilewright.ir.types import Value
from tilewright.symbolic.expr import equal, less
from tilewright.symbolic.nodes import TRUE, Int
from tilewright.targets.simt.copies import when
from tilewright.targets.simt.emitter import SIMT_RULES, SimtEmitter
from tilewright.targets.statements import Assign, Code, Do, Statement, call, code


@SIMT_RULES.rule(Signal)
def signal(emitter: SimtEmitter, op: Signal) -> None:
    """A release by the first thread."""
    emitter.comment(op, f"signal {op.counter}{_of(emitter, op.of)}")
    place = counter_address(emitter, op.counter)
    if op.of is None:
        _by(emitter, 1, Do(call("signal_counter", place, emitter.spell(op.value))))
    else:
        _by(emitter, 1, Do(call("signal_counter_of", place, emitter.spell(op.of))))


@SIMT_RULES.rule(Ticket)
def ticket(emitter: SimtEmitter, op: Ticket) -> None:
    """A release and acquire by the first thread, which writes what it got to shared memory."""
    emitter.comment(op, f"take a ticket of {op.counter}{_of(emitter, op.of)}")
    place = counter_address(emitter, op.counter)
    taken = call("take_ticket", place)
    if op.of is not None:
        taken = call("take_ticket_of", place, emitter.spell(op.of))
    target = code("{}[{}]", emitter.name(op.target.buffer), emitter.spell(op.target.tensor.view.offset))
    _by(emitter, 1, Assign(target, taken))


@SIMT_RULES.rule(Await)
def wait(emitter: SimtEmitter, op: Await) -> None:
    """Acquires by the first warp, until the counter is there."""
    emitter.comment(op, f"wait until {op.counter} is {emitter.spell(op.value)} or more")
    place = counter_address(emitter, op.counter)
    _by(emitter, emitter.kernel.lanes, Do(call("await_counter", place, emitter.spell(op.least))))


@SIMT_RULES.rule(Reset)
def reset(emitter: SimtEmitter, op: Reset) -> None:
    """A store by the first thread."""
    emitter.comment(op, f"reset {op.counter} for the next launch")
    _by(emitter, 1, Do(call("reset_counter", counter_address(emitter, op.counter))))


def _of(emitter: SimtEmitter, of: Int | None) -> str:
    return "" if of is None else f", the last of {emitter.spell(of)} resets it"


def counter_address(emitter: SimtEmitter, counter: Value) -> Code:
    """Where a counter lies."""
    return emitter.plus(emitter.name(counter.buffer), counter.tensor.view.offset)


def _by(emitter: SimtEmitter, threads: int, statement: Statement) -> None:
    """A statement of the role's first threads."""
    group = emitter.group_threads
    thread = emitter.thread(group)
    guard = TRUE if group <= threads else equal(thread, 0) if threads == 1 else less(thread, threads)
    emitter.add(when(None if guard == TRUE else emitter.spell_cond(guard), statement))
