"""The CPU target's rule table, and its rules of counters between blocks."""

from __future__ import annotations

from tilewright.ir.fragment_ops import Coordinates, ReduceOp
from tilewright.ir.ops import (
    AsyncCommit,
    AsyncWait,
    Barrier,
    Copy,
    Elementwise,
    Fill,
    FragmentOp,
    Mma,
    Op,
    Redistribute,
    Shared,
    WarpBarrier,
)
from tilewright.ir.packed_ops import AsBytes, Pack, Unpack
from tilewright.ir.signal_ops import Await, Reset, Signal, Ticket
from tilewright.ir.types import Value
from tilewright.targets.cfamily import C_RULES
from tilewright.targets.cpu.copies import Twins, emit_copy, emit_redistribute, emit_twins
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.legality import waits
from tilewright.targets.cpu.micro import emit_mma, emit_multiply
from tilewright.targets.cpu.multiply import Multiply, Pointwise, StoreSums
from tilewright.targets.cpu.pointwise import emit_pack, emit_pointwise, emit_scalar, emit_unpack
from tilewright.targets.cpu.reductions import emit_reduce
from tilewright.targets.cpu.unpacked import emit_store
from tilewright.targets.rules import RuleTable
from tilewright.targets.statements import Code, call, code, named
from tilewright.targets.target import CPU

CPU_RULES = RuleTable(CPU.name, C_RULES)
"""The rules of the CPU target.

Elementwise operations on fragments come as `Pointwise`; only those on the kernel's numbers come alone.
"""

for _engine in ("direct", "matrix", "async"):  # one thread executes every engine's copies at once
    CPU_RULES.rule(Copy, variant=_engine)(emit_copy)
CPU_RULES.rule(Redistribute)(emit_redistribute)
CPU_RULES.rule(Twins)(emit_twins)
CPU_RULES.rule(Mma)(emit_mma)
CPU_RULES.rule(Multiply)(emit_multiply)
CPU_RULES.rule(StoreSums)(emit_store)
CPU_RULES.rule(Pointwise)(emit_pointwise)
CPU_RULES.rule(Elementwise)(emit_scalar)
CPU_RULES.rule(ReduceOp)(emit_reduce)
CPU_RULES.rule(Unpack)(emit_unpack)
CPU_RULES.rule(Pack)(emit_pack)


@CPU_RULES.rule(Shared, FragmentOp, Fill, Coordinates, AsBytes)
@CPU_RULES.rule(Barrier, WarpBarrier, AsyncCommit, AsyncWait)
def _no_text(emitter: CpuEmitter, op: Op) -> None:
    """Write nothing.

    Arrays are declared at the start of the function.  Fills and coordinates come as `Pointwise`.  One thread
    has nothing to wait for.
    """


# ---------------------------------------------------------------- counters between blocks


@CPU_RULES.rule(Signal)
def _signal(emitter: CpuEmitter, op: Signal) -> None:
    emitter.comment(op, f"signal {op.counter}")
    place = _address(emitter, op.counter)
    if op.of is None:
        value = emitter.spell(op.value)
        emitter.do(code("__atomic_fetch_add({}, {}, __ATOMIC_RELEASE)", place, value))
    else:
        emitter.do(call("take_ticket_of", place, emitter.spell(op.of)))


@CPU_RULES.rule(Ticket)
def _ticket(emitter: CpuEmitter, op: Ticket) -> None:
    emitter.comment(op, f"take a ticket of {op.counter}")
    place = _address(emitter, op.counter)
    taken = code("__atomic_fetch_add({}, 1, __ATOMIC_ACQ_REL)", place)
    if op.of is not None:
        taken = call("take_ticket_of", place, emitter.spell(op.of))
    target = code("{}[{}]", emitter.name(op.target.buffer), emitter.spell(op.target.tensor.view.offset))
    emitter.assign(target, taken)


@CPU_RULES.rule(Await)
def _await(emitter: CpuEmitter, op: Await) -> None:
    emitter.comment(op, f"wait until {op.counter} is {emitter.spell(op.value)} or more")
    number = 1 + waits(emitter.kernel).index(op)
    least, board = emitter.spell(op.least), named("board")
    reached = call("await_counter", _address(emitter, op.counter), least, board, number)
    with emitter.branch(code("!{}", reached)):
        emitter.line(Code("return;"))


@CPU_RULES.rule(Reset)
def _reset(emitter: CpuEmitter, op: Reset) -> None:
    emitter.comment(op, f"reset {op.counter} for the next launch")
    emitter.do(code("__atomic_store_n({}, 0u, __ATOMIC_RELAXED)", _address(emitter, op.counter)))


def _address(emitter: CpuEmitter, counter: Value) -> Code:
    return code("{} + {}", emitter.name(counter.buffer), emitter.spell(counter.tensor.view.offset, True))
