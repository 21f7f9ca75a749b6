"""The CPU target: its rule table, its passes, and freestanding C++ text from a lowered kernel."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tilewright.arch import Arch
from tilewright.ir.fragment_ops import Coordinates, PrefixOp, ReduceOp
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam
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
from tilewright.passes.packed import PACKED
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.quotients import INVERSES
from tilewright.targets.cfamily import C_RULES
from tilewright.targets.cpu.conversions import STORAGE, TYPEDEFS
from tilewright.targets.cpu.copies import Twins, emit_copy, emit_redistribute, emit_twins, pair
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.feed import feed_micro_kernels
from tilewright.targets.cpu.legality import waits
from tilewright.targets.cpu.live import needed, reach, read_of_copies
from tilewright.targets.cpu.micro import emit_mma, emit_multiply
from tilewright.targets.cpu.multiply import Multiply, Pointwise, StoreSums, fuse, gather
from tilewright.targets.cpu.pointwise import (
    emit_pack,
    emit_pointwise,
    emit_prefix,
    emit_reduce,
    emit_scalar,
    emit_unpack,
)
from tilewright.targets.cpu.prelude import MACROS, SNIPPETS, prelude
from tilewright.targets.cpu.sequential import drop_threads
from tilewright.targets.cpu.unpacked import emit_store
from tilewright.targets.rules import EmittedText, RuleTable
from tilewright.targets.statements import Code, Printer, call, code, named, tidy, used
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
CPU_RULES.rule(PrefixOp)(emit_prefix)
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


# ---------------------------------------------------------------- passes, in order


PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "one-thread",
        "One thread does the work of the block; accumulators become micro-tiles; synchronisation is removed.",
        drop_threads,
    ),
    Pass(
        "operands",
        "Operands of matrix products are stored in shared memory, widened, as rows of A and panels of B.",
        lambda kernel, arch: feed_micro_kernels(kernel),
    ),
    INVERSES,
)
"""Emission then fuses neighbouring elementwise operations, and skips work outside of the tensors."""


def lower(kernel: Kernel, arch: Arch | str) -> Passed:
    """Return the lowered kernel, and a note for each choice."""
    return run_passes(kernel, CPU.architecture(arch), PASSES)


# ---------------------------------------------------------------- text


EXPORT = 'extern "C" __attribute__((visibility("default")))'


def emit(kernel: Kernel, arch: Arch | str) -> EmittedText:
    """Return the C++ text of a kernel: one function that takes blocks from a counter; no headers, no library.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel.
    """
    chosen = CPU.architecture(arch)
    lowered, notes = lower(kernel, chosen)
    extents = needed(lowered)
    fused = replace(lowered, body=pair(fuse(gather(lowered, extents)), lowered))
    emitter = CpuEmitter(fused, CPU_RULES, chosen, extents, read_of_copies(lowered, extents), reach(lowered))
    entry = emitter.identifier(kernel.name)
    arguments, block = emitter.names.unique(f"{entry}_arguments"), emitter.names.unique(f"{entry}_block")
    passed = list(_passed(emitter))
    _start(emitter, passed)
    emitter.block(fused.body)
    body = tidy(emitter.body, ())
    functions = [text.replace(SELF, name) for name, text in emitter.functions.items()]
    emitter.call(*sorted(used(body) & SNIPPETS.texts.keys()))
    values = [p.value for p in kernel.params if not isinstance(p, SizeParam)]
    types = sorted({v.dtype.name for v in (*values, *emitter.scratch)} & TYPEDEFS.keys())
    board = enter = leave = given = stop = ""
    if waits(fused):
        board, given = ", long long* board", ", next_block"
        stop = " || __atomic_load_n(next_block + 1, __ATOMIC_RELAXED)"
        enter = "  __atomic_fetch_add(next_block + 2, 1, __ATOMIC_RELAXED);\n"
        leave = "  __atomic_fetch_sub(next_block + 2, 1, __ATOMIC_RELAXED);\n"
    pieces = [
        f"// {kernel.name} for {chosen.name}\n" + "".join(f"// - {note}\n" for note in notes) + "\n" + MACROS,
        prelude((*types, *emitter.calls)),
        "\n".join([f"struct {arguments} {{", *(f"  {kind} {name};" for name, kind, _ in passed), "};"]),
        *functions,
        "\n".join(
            [
                "// One block.",
                f"static void {block}(const {arguments}& given, long long block, char* scratch{board}) {{",
                *Printer().print(body),
                "}",
            ]
        ),
        f"""\
{EXPORT}
void {entry}(const void* arguments, long long* next_block, void* scratch, long long blocks) {{
{enter}  for (;;) {{
    const long long block = __atomic_fetch_add(next_block, 1, __ATOMIC_RELAXED);
    if (block >= blocks{stop}) break;
    {block}(*(const {arguments}*)arguments, block, (char*)scratch{given});
  }}
{leave}}}""",
    ]
    text = "\n\n".join(piece.rstrip("\n") for piece in pieces if piece) + "\n"
    return EmittedText(text, entry, lowered, emitter.scratch_bytes, notes, emitter.accesses)


def _passed(emitter: CpuEmitter) -> Iterator[tuple[Code, str, str]]:
    """Yield the name of each parameter, its type in the packed arguments, and its type in a block."""
    for param in emitter.kernel.params:
        if isinstance(param, SizeParam):
            # In a block sizes have 64 bits, so that products of them do not overflow.
            yield emitter.name(param.sym), "long long" if param.bits == 64 else "int", "const Index"
            continue
        kind, name = STORAGE[param.value.dtype.name], emitter.name(param.value)
        if isinstance(param, ScalarParam):
            yield name, kind, f"const {kind}"
        else:
            written = any(param.value in (v.buffer for v in op.written) for op in emitter.kernel.walk())
            pointer = f"{'' if written else 'const '}{kind}*"
            yield name, pointer, f"{pointer} const"


def _start(emitter: CpuEmitter, passed: Iterable[tuple[Code, str, str]]) -> None:
    """Declare arguments, block indices, and the pointers to tensors and fragments in scratch memory."""
    kernel = emitter.kernel
    for name, _, kind in passed:
        emitter.declare(named(kind), name, code("given.{}", name), optional=True)
    rest = named("block")
    for at, axis in enumerate(kernel.grid):
        extent = emitter.spell(axis.extent, True)
        last = at == len(kernel.grid) - 1
        index = rest if last else code("{} % {}", rest, extent)
        emitter.constant("Index", emitter.name(axis.sym), index)
        rest = code("{} / {}", rest, extent)
    for member in kernel.cluster:
        along = emitter.name(kernel.grid[member.axis].sym)
        emitter.constant("Index", emitter.name(member.sym), code("{} % {}", along, member.extent))
    for value, offset in emitter.scratch.items():
        kind = STORAGE[value.dtype.name]
        start = code(f"({kind}*)({{}} + {offset})", named("scratch"))
        emitter.declare(named(f"{kind}* const"), emitter.name(value), start, optional=True)
