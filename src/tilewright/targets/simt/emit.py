"""The text of one thread's program from a lowered kernel, in any dialect; its memory, barriers and roles."""

from __future__ import annotations

import math

from tilewright.arch import Arch
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam
from tilewright.ir.ops import Barrier, Shared, WarpBarrier
from tilewright.ir.types import Memory
from tilewright.passes.pipeline import Passed
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int
from tilewright.targets.rules import EmittedText, RuleTable
from tilewright.targets.simt import arithmetic, atomics, conversion, copies, fragments
from tilewright.targets.simt.dialect import SHARED_MEMORY, THREAD, SimtDialect
from tilewright.targets.simt.emitter import SIMT_RULES, SimtEmitter
from tilewright.targets.statements import (
    COLUMNS,
    Arm,
    Branch,
    Code,
    Printer,
    call,
    code,
    joined,
    named,
    names_in,
    tidy,
    used,
)

RULES = arithmetic, atomics, conversion, copies, fragments
"""Rules that every dialect shares; importing them fills `SIMT_RULES`."""


def emit_text(
    kernel: Kernel, passed: Passed, arch: Arch, rules: RuleTable, dialect: SimtDialect
) -> EmittedText:
    """Return the text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        passed: the kernel after a target's passes, and their notes.
        arch: the architecture.
        rules: the target's rule table.
        dialect: the target's dialect.

    Returns:
        The text, with the lowered kernel.
    """
    lowered, notes = passed
    emitter = SimtEmitter(lowered, rules, dialect, arch)
    entry = emitter.identifier(kernel.name)
    _start(emitter)
    emitter.block(lowered.body)
    body = tidy(emitter.body, {THREAD})
    head, params = _head(emitter, entry)
    pieces = dialect.before(used(body) | names_in(params), emitter.functions)
    chosen_for = [f"// - {note}" for note in notes]
    above = "\n".join([*(f"{piece}\n" for piece in pieces), *chosen_for, *head, ""])
    printer = Printer()
    text = "\n".join([*printer.print(body), "}", ""])
    first = above.count("\n") + 1
    lines = {first + at: op for at, op in printer.about.items()}
    return EmittedText(above + text, entry, lowered, emitter.shared_bytes, notes, lines=lines)


FEW_BLOCKS = 3
"""Blocks of one warp are compiled for all registers if fewer blocks than this fit the shared memory."""


def _head(emitter: SimtEmitter, entry: str) -> tuple[list[str], list[Code]]:
    """Return the signature, up to the opening brace, and its parameters."""
    kernel, dialect = emitter.kernel, emitter.dialect
    alone = any(isinstance(op, Role) and op.registers is not None for op in kernel.walk())
    # Otherwise a compiler saves registers, and spills, so that more blocks run than shared memory allows.
    is_large = FEW_BLOCKS * emitter.shared_bytes > emitter.arch.shared_bytes > 0
    alone |= bool(dialect.bounds_resident) and kernel.threads <= emitter.arch.lanes and is_large
    resident = 1 if alone else kernel.resident
    form = dialect.bounds_resident if resident and dialect.bounds_resident else dialect.bounds
    bounds = form.format(threads=kernel.threads, resident=resident)
    if kernel.cluster:
        shape = [1, 1, 1]
        for member in kernel.cluster:
            shape[member.axis] = member.extent
        bounds += f" {dialect.cluster.format(', '.join(map(str, shape)))}"
    head = dialect.kernel.format(bounds=bounds, entry=entry)
    written = {value.buffer for op in kernel.walk() for value in op.written}
    params: list[Code] = []
    for param in kernel.passed:
        if isinstance(param, SizeParam):
            kind = named("long long" if param.bits == 64 else "int")
            params.append(code("{} {}", kind, emitter.name(param.sym)))
        elif isinstance(param, ScalarParam):
            params.append(code("{} {}", emitter.type(param.value.dtype), emitter.name(param.value)))
        else:
            form = "{}* {}" if param.value in written else "const {}* {}"
            params.append(code(form, emitter.type(param.value.dtype), emitter.name(param.value)))
    kind = named(dialect.tensor_map)
    params += [code(dialect.passed, kind, named(tensor_map.name)) for tensor_map in kernel.tensor_maps]
    if len(head) + len(", ".join(params)) < COLUMNS:
        return [f"{head}{', '.join(params)}) {{"], params
    lines = [head]
    line = "   "
    for at, declared in enumerate(params):
        piece = f" {declared}{',' if at + 1 < len(params) else ') {'}"
        if len(line) + len(piece) > COLUMNS:
            lines.append(line)
            line = "   "
        line += piece
    return [*lines, line], params


def _start(emitter: SimtEmitter) -> None:
    """Declare thread and block indices, and the shared buffer."""
    kernel, dialect, kind = emitter.kernel, emitter.dialect, named("const int")
    emitter.declare(kind, named(THREAD), Code(dialect.thread), optional=True)
    for axis, letter in zip(kernel.grid, "xyz", strict=False):
        extent, found = emitter.spell(axis.extent), Code(dialect.block.format(letter))
        emitter.declare(kind, emitter.name(axis.sym), found, comment=f"of {extent}", optional=True)
    for member in kernel.cluster:
        found = call(dialect.member.format("xyz"[member.axis]))
        emitter.declare(kind, emitter.name(member.sym), found, comment=f"of {member.extent}", optional=True)
    if emitter.shared_bytes:
        align = math.lcm(16, *(op.align for op in kernel.walk() if isinstance(op, Shared)))
        form = dialect.shared.format(name=SHARED_MEMORY, align=align, bytes=emitter.shared_bytes)
        emitter.line(Code(form, (SHARED_MEMORY,)))


# ---------------------------------------------------------------- shared memory and barriers


@SIMT_RULES.rule(Shared)
def shared(emitter: SimtEmitter, op: Shared) -> None:
    """Declare a pointer into the block's shared buffer."""
    shape = "x".join(str(extent) for extent in op.view.shape)
    emitter.comment(op, f"{op.result.name}: {op.dtype} {shape}")
    kind, offset = emitter.type(op.dtype), emitter.shared_offsets[op.result]
    place = code("({} + {})" if offset else "{}", named(SHARED_MEMORY), offset)
    emitter.declare(code("{}* const", kind), emitter.name(op.result), code("({}*){}", kind, place))


@SIMT_RULES.rule(Barrier)
def barrier(emitter: SimtEmitter, op: Barrier) -> None:
    """Write a barrier: all threads of the block wait, and their accesses to memory are ordered."""
    emitter.comment(op, "barrier")
    meet(emitter)


def meet(emitter: SimtEmitter) -> None:
    """Write a barrier of all threads of the block.

    After a wait for a counter it orders global memory, too: only the first warp waited, and another block,
    GPU or copy engine wrote what all warps read now.
    """
    dialect, waited = emitter.dialect, emitter.has_waited
    emitter.has_waited = False
    shared_alone = dialect.barrier_of_shared and not waited and not reads_what_it_writes(emitter.kernel)
    emitter.do(call(dialect.barrier_of_shared if shared_alone else dialect.barrier))


@SIMT_RULES.rule(WarpBarrier)
def warp_barrier(emitter: SimtEmitter, op: WarpBarrier) -> None:
    """Write a barrier of the lanes of each warp."""
    emitter.comment(op, "barrier of each warp")
    emitter.has_waited = False
    emitter.do(call(emitter.dialect.warp_barrier))


def reads_what_it_writes(kernel: Kernel) -> bool:
    """Return whether a kernel reads an array in global memory that it also writes."""
    ops = list(kernel.walk())
    read, written = (
        {value.buffer for values in each for value in values if value.is_tensor}
        for each in ([op.read for op in ops], [op.written for op in ops])
    )
    return any(value.tensor.memory is Memory.GLOBAL for value in read & written)


# ---------------------------------------------------------------- roles


TID = named(THREAD)


@SIMT_RULES.rule(Role)
def role(emitter: SimtEmitter, op: Role) -> None:
    """Write a branch of one ``if``/``else``; ``tid`` counts from the role's first thread."""
    lanes, dialect = emitter.kernel.lanes, emitter.dialect
    first, count = op.first * lanes, op.count * lanes
    end = first + op.warps * lanes
    outer = emitter.group_first, emitter.group_threads
    last = end == emitter.group_threads
    before = emitter.body[-1] if emitter.body else None
    follows = first > 0 and before is emitter.roles and first >= emitter.roles_end
    who = call(dialect.uniform, TID) if dialect.asks_whole_warps else TID
    below = code("{} < {}", who, end)
    condition: Code | None = below
    if follows and last:
        condition = None
    elif first > 0 and not follows:
        above = code("{} >= {}", who, first)
        condition = above if last else joined(" && ", (above, below))
    arm = Arm(condition, [], emitter.place(op) + _warps(op))
    with emitter.into(arm.body):
        if op.registers is not None:
            way = "up" if op.registers * emitter.kernel.threads > emitter.arch.registers else "down"
            emitter.do(call(f"set_registers_{way}", of=[op.registers]))
        start = add(outer[0], first)
        if op.index is not None:
            group = code("({}) / {}" if start != 0 else "{} / {}", _thread_from(emitter, start), count)
            emitter.constant("int", emitter.name(op.index), call(dialect.uniform, group))
            start = add(start, mul(op.index, count))
        emitter.group_first, emitter.group_threads = start, count
        if first or op.index is not None:
            emitter.constant("int", TID, _thread_from(emitter, start))
        emitter.block(op.body)
    emitter.group_first, emitter.group_threads = outer
    if follows and isinstance(before, Branch):
        before.arms.append(arm)
        emitter.roles = before  # roles inside this one have their own branch
    else:
        emitter.roles = Branch([arm])
        emitter.add(emitter.roles)
    emitter.roles_end = end


def _thread_from(emitter: SimtEmitter, start: Int) -> Code:
    """Return the thread's index, counted from another thread of the block."""
    index = Code(emitter.dialect.thread)
    return index if start == 0 else code("{} - {}", index, emitter.spell(start, tight=True))


def _warps(op: Role) -> str:
    """Return the warps of a role, in words."""
    last = op.first + op.warps - 1
    warps = f"warps {op.first} to {last}" if last > op.first else f"warp {op.first}"
    return warps if op.index is None else f"{warps}, in {op.groups} groups"
