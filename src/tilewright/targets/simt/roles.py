"""Roles of warps: the branches of one ``if``/``else``, in which threads count from the role's first one."""

from __future__ import annotations

from tilewright.ir.async_ops import Role
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int
from tilewright.targets.simt.dialect import THREAD
from tilewright.targets.simt.emitter import SIMT_RULES, SimtEmitter
from tilewright.targets.statements import Arm, Branch, Code, call, code, joined, named

TID = named(THREAD)


@SIMT_RULES.rule(Role)
def role(emitter: SimtEmitter, op: Role) -> None:
    """A branch of one ``if``/``else``; ``tid`` counts from the role's first thread."""
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
        emitter.roles = before  # roles inside of this one had a branch of their own
    else:
        emitter.roles = Branch([arm])
        emitter.add(emitter.roles)
    emitter.roles_end = end


def _thread_from(emitter: SimtEmitter, start: Int) -> Code:
    """The thread's index, counted from another thread of the block."""
    index = Code(emitter.dialect.thread)
    return index if start == 0 else code("{} - {}", index, emitter.spell(start, tight=True))


def _warps(op: Role) -> str:
    """Which warps execute a role, in words."""
    last = op.first + op.warps - 1
    warps = f"warps {op.first} to {last}" if last > op.first else f"warp {op.first}"
    return warps if op.index is None else f"{warps}, in {op.groups} groups"
