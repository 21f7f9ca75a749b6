"""Copies that reduce into memory: each element, or word of elements, in one indivisible step.

A dialect says which functions there are; of those that a copy's vectors fill, the widest is taken.
"""

from __future__ import annotations

from tilewright.ir.copies import Copy
from tilewright.symbolic.expr import add
from tilewright.symbolic.nodes import Int, Sym
from tilewright.targets.dialect import Atomic
from tilewright.targets.simt.conversion import converted
from tilewright.targets.simt.copies import access, copy, in_turn, plan, title, when
from tilewright.targets.simt.emitter import SIMT_RULES, Scope, SimtEmitter, element
from tilewright.targets.statements import Assign, Code, Do, call, code


@SIMT_RULES.rule(Copy, variant="direct")
def copy_or_reduce(emitter: SimtEmitter, op: Copy) -> None:
    """A copy by loads and stores, or by reductions in place of the stores."""
    if op.reduction is None:
        copy(emitter, op)
    else:
        reduce(emitter, op)


def choose(emitter: SimtEmitter, op: Copy) -> Atomic:
    """The function that reduces the most elements at once."""
    known = emitter.dialect.atomics[str(op.reduction), op.target.dtype.name]
    most, memory = op.vector or 1, op.target.tensor.memory.value
    if memory == "shared" and emitter.kernel.cluster:
        memory = "cluster"
    able = [one for one in known if one.memory == memory and one.feature in ("", *emitter.arch.features)]
    fits = [one for one in able if one.width <= most]
    return max(fits, key=lambda one: one.width)


def reduce(emitter: SimtEmitter, op: Copy) -> None:
    """``target = combine(target, source)`` from registers, or from memory through registers."""
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


def _value(scope: Scope, op: Copy, name: Code, first: Int, width: int, *, is_word: bool) -> Code:
    """What is reduced: an element, or the address of several, converted to the target's dtype."""
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
