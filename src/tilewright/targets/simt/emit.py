"""From a lowered kernel to the text of one thread's program, in any dialect."""

from __future__ import annotations

import math

from tilewright.arch import Arch
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel, ScalarParam, SizeParam, passed_params
from tilewright.ir.ops import Shared
from tilewright.passes.pipeline import Passed
from tilewright.targets.listing import Listing
from tilewright.targets.rules import RuleTable
from tilewright.targets.simt import (
    arithmetic,
    blocks,
    copies,
    fragment_ops,
    mma,
    packed,
    reductions,
    roles,
    signals,
)
from tilewright.targets.simt.dialect import SHARED_MEMORY, THREAD, SimtDialect
from tilewright.targets.simt.emitter import SimtEmitter
from tilewright.targets.statements import COLUMNS, Code, Printer, call, code, named, names_in, used
from tilewright.targets.tidy import tidy

RULES = arithmetic, blocks, copies, fragment_ops, mma, packed, reductions, roles, signals
"""Rules that every dialect shares; importing them adds them to their table."""


def emit_text(kernel: Kernel, passed: Passed, arch: Arch, rules: RuleTable, dialect: SimtDialect) -> Listing:
    """The text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        passed: the kernel after a target's passes, and the notes of these.
        arch: the architecture.
        rules: the target's table.
        dialect: its spelling.

    Returns:
        The text, with the lowered kernel that it spells.
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
    return Listing(above + text, entry, lowered, emitter.shared_bytes, notes, lines=lines)


def _head(emitter: SimtEmitter, entry: str) -> tuple[list[str], list[Code]]:
    """The signature, up to the opening brace, and its parameters."""
    kernel, dialect = emitter.kernel, emitter.dialect
    alone = any(isinstance(op, Role) and op.registers is not None for op in kernel.walk())
    bounds = (dialect.bounds_alone if alone else dialect.bounds).format(threads=kernel.threads)
    if kernel.cluster:
        shape = [1, 1, 1]
        for member in kernel.cluster:
            shape[member.axis] = member.extent
        bounds += f" {dialect.cluster.format(', '.join(map(str, shape)))}"
    head = dialect.kernel.format(bounds=bounds, entry=entry)
    params = _params(emitter)
    if len(head) + len(", ".join(params)) < COLUMNS:
        return [f"{head}{', '.join(params)}) {{"], params
    lines = [head]
    line = "   "
    for at, param in enumerate(params):
        piece = f" {param}{',' if at + 1 < len(params) else ') {'}"
        if len(line) + len(piece) > COLUMNS:
            lines.append(line)
            line = "   "
        line += piece
    return [*lines, line], params


def _params(emitter: SimtEmitter) -> list[Code]:
    kernel = emitter.kernel
    written = {value.buffer for op in kernel.walk() for value in op.written}
    found = []
    for param in passed_params(kernel):
        if isinstance(param, SizeParam):
            kind = named("long long" if param.bits == 64 else "int")
            found.append(code("{} {}", kind, emitter.name(param.sym)))
        elif isinstance(param, ScalarParam):
            found.append(code("{} {}", emitter.type(param.value.dtype), emitter.name(param.value)))
        else:
            form = "{}* {}" if param.value in written else "const {}* {}"
            found.append(code(form, emitter.type(param.value.dtype), emitter.name(param.value)))
    kind, form = named(emitter.dialect.tensor_map), emitter.dialect.passed
    maps = (code(form, kind, named(made.name)) for made in kernel.tensor_maps)
    return [*found, *maps]


def _start(emitter: SimtEmitter) -> None:
    """Thread and block indices, and the shared buffer."""
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
