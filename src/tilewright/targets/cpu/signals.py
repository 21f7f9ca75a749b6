"""Counters between blocks on the CPU, where a block may wait for blocks of lower numbers only.

Threads draw blocks in order, so all blocks of lower numbers have begun, and those with the lowest number wait
for nobody.  A wait for a higher one may never end: if all threads that run blocks wait for some seconds, the
launch stops, and says at which line.
"""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import Violation
from tilewright.ir.deadlocks import first_wait
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op
from tilewright.ir.signal_ops import Await, Reset, Signal, Ticket
from tilewright.ir.types import Value
from tilewright.symbolic.nodes import Int
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.spelling import CPU_RULES
from tilewright.targets.statements import Code, call, code, named

ORDER = "blocks run in order, and on a CPU a block may wait only for blocks of lower numbers"


@CPU_RULES.rule(Signal)
def _signal(emitter: CpuEmitter, op: Signal) -> None:
    emitter.comment(op, f"signal {op.counter}")
    place = _address(emitter, op.counter)
    if op.of is None:
        value = emitter.spell(op.value)
        emitter.do(code("__atomic_fetch_add({}, {}, __ATOMIC_RELEASE)", place, value))
    else:
        emitter.do(_take(emitter, place, op.of))


@CPU_RULES.rule(Ticket)
def _ticket(emitter: CpuEmitter, op: Ticket) -> None:
    emitter.comment(op, f"take a ticket of {op.counter}")
    place = _address(emitter, op.counter)
    taken = code("__atomic_fetch_add({}, 1, __ATOMIC_ACQ_REL)", place)
    if op.of is not None:
        taken = _take(emitter, place, op.of)
    target = code("{}[{}]", emitter.name(op.target.buffer), emitter.spell(op.target.tensor.view.offset))
    emitter.assign(target, taken)


def _take(emitter: CpuEmitter, place: Code, of: Int) -> Code:
    return call("take_ticket_of", place, emitter.spell(of))


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


def waits(kernel: Kernel) -> list[Await]:
    """The waits of a kernel, in program order."""
    return [op for op in kernel.walk() if isinstance(op, Await)]


def violations(kernel: Kernel) -> Iterator[Violation]:
    """A wait that certainly never ends: of the first block, which has none before it."""
    op = first_wait(kernel)
    if op is not None:
        text = f"the first block waits until {op.counter} is {op.value}; {ORDER}"
        yield op.violation("counter", text, "a wait for 0 in the first block, or a GPU")


def why_stuck(kernel: Kernel, number: int) -> str:
    """What to say of a launch whose wait of this number did not end."""
    op: Op = waits(kernel)[number - 1]
    where = "" if op.location is None else f"\n{op.location.excerpt()}"
    return (
        f"kernel {kernel.name}: all threads that run blocks waited, and none can go on; {ORDER}: "
        f"nearest legal choice: number the blocks so that each waits for those before it{where}"
    )
