"""The rules of copies, of those that pack panels, and of two whose elements lie side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tilewright.ir.ops import Copy, Redistribute
from tilewright.symbolic.expr import add, all_of, less, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.atomics import reduction
from tilewright.targets.cpu.copying import ZERO, Copying
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_panels import emit_decoded
from tilewright.targets.cpu.emitter import CpuEmitter, Side
from tilewright.targets.cpu.literals import literal
from tilewright.targets.cpu.loops import PAIR
from tilewright.targets.cpu.twins import Twins, step_of
from tilewright.targets.statements import Code, code, joined
from tilewright.views.transforms import Slice
from tilewright.views.view import View, coordinates


def emit_copy(emitter: CpuEmitter, op: Copy) -> None:
    """``target = source`` where both exist, ``other`` where only the target does; or reductions of these."""
    emitter.comment(op, f"{op.target} = {op.source}")
    _copy(emitter, op, *_sides(emitter, op))


def emit_twins(emitter: CpuEmitter, op: Twins) -> None:
    """Two copies of arrays that may lie side by side, element by element, as parts of complex numbers do."""
    for one in op.copies:
        emitter.comment(one, f"{one.target} = {one.source}")
    _copy_twins(emitter, op, [_sides(emitter, one) for one in op.copies])


def emit_panel(emitter: CpuEmitter, op: Copy | Twins | Decoding, panel: Sym, rows: int) -> None:
    """One panel of a copy that packs panels of so many rows; all go to where the first one lies."""
    if isinstance(op, Decoding):
        emit_decoded(emitter, op, panel, rows)
        return
    if isinstance(op, Copy):
        emitter.comment(op, f"a panel of {op.target} = {op.source}")
        _copy(emitter, op, *_panel(emitter, op, panel, rows))
        return
    for one in op.copies:
        emitter.comment(one, f"a panel of {one.target} = {one.source}")
    _copy_twins(emitter, op, [_panel(emitter, one, panel, rows) for one in op.copies])


def _sides(emitter: CpuEmitter, op: Copy) -> tuple[Side, Side]:
    source, target = emitter.side(op.source), emitter.side(op.target)
    return source, _narrowed(target, emitter.read.get(op, {}))


def _panel(emitter: CpuEmitter, op: Copy, panel: Sym, rows: int) -> tuple[Side, Side]:
    """What is read for a panel, and where it goes."""
    source, target = emitter.side(op.source), emitter.side(op.target)
    depth = op.target.tensor.shape[1]
    row, k = coordinates((rows, depth))
    part = source.view.map((rows, depth), (add(mul(panel, rows), row), k))
    whole = replace(target, view=View.strided((rows, depth), (1, rows)))
    bounds = {dim: bound for dim, bound in emitter.read.get(op, {}).items() if dim == 1}
    return replace(source, view=part), _narrowed(whole, bounds)


def _narrowed(side: Side, bounds: Mapping[int, Int]) -> Side:
    """One side of a copy without what lies past some bounds."""
    view = side.view
    valid = all_of(view.valid, *(less(view.coords[dim], bound) for dim, bound in bounds.items()))
    return replace(side, view=replace(view, valid=valid)) if bounds else side


def _outside(emitter: CpuEmitter, op: Copy) -> Code:
    """What elements outside of the source read as."""
    if op.other == 0:
        return ZERO
    return emitter.convert(literal(emitter, op.other, op.source.dtype), op.source.dtype, op.target.dtype)


def _copy(emitter: CpuEmitter, op: Copy, source: Side, target: Side) -> None:
    outside = _outside(emitter, op)
    with emitter.indented():
        reduce = None if op.reduction is None else reduction(emitter, op.reduction, op.target.dtype)
        emitter.accesses[op, op.location] = Copying(emitter, source, target, outside, reduce).emit()


def _copy_twins(emitter: CpuEmitter, op: Twins, sides: Sequence[tuple[Side, Side]]) -> None:
    """Both copies: in one loop where their arrays turn out to lie side by side, else one after the other."""
    far = 1 if sides[0][0].is_scratch else 0
    found = step_of(sides[0], far)
    # What is read of one array may end before what is read of the other, if the results do.
    alike = sides[0][1 - far].view == sides[1][1 - far].view
    if found is None or not alike:
        for one, (source, target) in zip(op.copies, sides, strict=True):
            _copy(emitter, one, source, target)
        return
    beside = [code("{} == {} + 1", sides[1][far].name, sides[0][far].name)]
    beside += [code("{} == {}", emitter.spell(one), emitter.spell(other)) for one, other in op.steps]
    beside.append(code("{} == {}", emitter.spell(found), PAIR))
    with emitter.branch(joined(" && ", beside)):
        both = [*sides[0]]
        view = both[far].view
        both[far] = replace(both[far], view=replace(view, offset=substitute(view.offset, {found: PAIR})))
        with emitter.indented():
            outside = _outside(emitter, op.copies[0])
            Copying(emitter, both[0], both[1], outside, twin=sides[1][1 - far].name).emit()
    with emitter.otherwise():
        for one, (source, target) in zip(op.copies, sides, strict=True):
            _copy(emitter, one, source, target)
            how = emitter.accesses[one, one.location]
            emitter.accesses[one, one.location] = how._replace(how=f"{how.how}; both parts of a pair at once")


def emit_redistribute(emitter: CpuEmitter, op: Redistribute) -> None:
    """``result[i] = source[start + i]``."""
    source, target = emitter.side(op.source), emitter.side(op.result)
    box = tuple((at, at + extent) for at, extent in zip(op.start, op.distribution.shape, strict=True))
    emitter.comment(op, f"{op.result} = {op.source}[{', '.join(f'{a}:{b}' for a, b in box)}]")
    with emitter.indented():
        part = replace(source, view=Slice(box).apply(source.view))
        Copying(emitter, part, target).emit()
