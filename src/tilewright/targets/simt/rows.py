"""Rows that are chosen in memory: a thread reads each integer that places its accesses once.

An offset such as ``X_stride0*I[8*i + row] + col`` names an integer in memory.  What it is at the turns of the
loops over a thread's registers is read before them, into registers of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from tilewright.ir.types import Value
from tilewright.symbolic.expr import all_of
from tilewright.symbolic.nodes import TRUE, And, Cond, Element, Int, Sym, bits
from tilewright.symbolic.rebuilding import elements, split_elements, symbols
from tilewright.targets.simt.emitter import Scope
from tilewright.targets.simt.thread_values import extent, turn
from tilewright.targets.statements import Assign, code, named

ABSENT = "-1"
"""What stands for a row where the index has no element: no row of any tensor."""


def read_rows(scope: Scope, tensor: Value, at: Sequence[Int], loops: Sequence[Sym]) -> Mapping[Element, Int]:
    """Declare the integers in memory that place a thread's accesses to a tensor."""
    if not tensor.tensor.indices:
        return {}
    view = tensor.tensor.view
    offset, valid = view.at(tuple(at)), view.valid_at(tuple(at))
    known = split_elements(valid)[0]
    return {element: _read(scope, element, known, loops) for element in elements((valid, offset))}


def _read(scope: Scope, element: Element, known: Cond, loops: Sequence[Sym]) -> Int:
    """Declare one of them; what of the access is known to exist guards it."""
    emitter = scope.emitter
    turning = [loop for loop in loops if loop in symbols(element.at)]
    others = set(loops) - set(turning)
    parts = known.parts if isinstance(known, And) else (known,)
    guard = all_of(*(part for part in parts if not symbols(part) & others))
    value = emitter.spell(element)
    if guard != TRUE:
        value = code(f"{{}} ? {{}} : {ABSENT}", emitter.spell_cond(guard), value)
    kind = "int" if bits(element) == 32 else "long long"
    low = min(element.low, int(ABSENT))
    if not turning:
        name = scope.name("chosen")
        emitter.constant(kind, name, value)
        return Sym(name, low, element.high)
    name, number = scope.name("chosen"), turn(turning)
    emitter.declare(named(kind), name, extent=math.prod(extent(loop) for loop in turning))
    emitter.one_line(turning, Assign(code("{}[{}]", name, emitter.spell(number)), value))
    return Element(Sym(name), number, low, element.high)
