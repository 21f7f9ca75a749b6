"""Rules of copies: plain ones, those that pack panels, paired ones, and reductions into memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.dtypes import DType
from tilewright.ir.kernel import Kernel, Stride
from tilewright.ir.ops import Block, Copy, For, If, Op, Redistribute, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.expr import add, all_of, less, mul
from tilewright.symbolic.nodes import TRUE, Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.cpu.conversions import STORAGE, computes_in
from tilewright.targets.cpu.copying import ZERO, Copying
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_panels import emit_decoded
from tilewright.targets.cpu.emitter import SELF, CopySide, CpuEmitter, literal
from tilewright.targets.cpu.loops import PAIR, coalesced, in_pairs, nest
from tilewright.targets.statements import Code, code, joined
from tilewright.views.transforms import Slice
from tilewright.views.view import View, coordinates

# ----------------------------------------------------------------
#
# Two consecutive copies of arrays that may be interleaved, e.g. the parts of complex numbers.
#
# If they are interleaved, one loop copies both: it reads or writes whole cache lines once, and the compiler
# vectorises it with shuffles.  Only the running kernel knows the addresses; otherwise it makes two copies.


@dataclass(frozen=True)
class Twins(Op):
    """Two copies of equal tiles of two arrays; exists only while text is emitted.

    Args:
        copies: both, in program order.
        steps: the strides of the second array, each with that of the first that it is to equal.
    """

    name = "twins"
    roles: ClassVar = {}
    copies: tuple[Copy, Copy]
    steps: tuple[tuple[Sym, Sym], ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return tuple(value for one in self.copies for value in one.operands)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return tuple(value for one in self.copies for value in one.read)

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return tuple(value for one in self.copies for value in one.written)


def pair(block: Block, kernel: Kernel) -> Block:
    """The block with copies that follow each other as `Twins`, where their arrays may lie side by side."""
    ops: list[Op] = []
    for op in block.ops:
        match op:
            case For():
                ops.append(replace(op, body=pair(op.body, kernel)))
            case If():
                ops.append(replace(op, then=pair(op.then, kernel), otherwise=pair(op.otherwise, kernel)))
            case _:
                ops.append(op)
    return Block(paired(ops, kernel))


def paired(ops: Sequence[Op], kernel: Kernel) -> tuple[Op, ...]:
    """Operations of one block, with two consecutive copies joined into `Twins` if they qualify."""
    found: list[Op] = []
    for op in ops:
        at = len(found)
        while at and isinstance(found[at - 1], Reshape):  # which only names parts of arrays
            at -= 1
        before = found[at - 1] if at else None
        both = _twins(before, op, kernel) if isinstance(before, Copy) and isinstance(op, Copy) else None
        if both is None:
            found.append(op)
        else:
            found[at - 1 :] = [*found[at:], both]
    return tuple(found)


def _twins(first: Copy, second: Copy, kernel: Kernel) -> Twins | None:
    """Two copies as one operation, if they copy the same elements of two arrays, as far as anybody knows."""
    if first.reduction or second.reduction or first.other != second.other:
        return None
    ends = [(first.source, second.source), (first.target, second.target)]
    far = [pair for pair in ends if all(_is_far(value) for value in pair)]
    near = [pair for pair in ends if not any(_is_far(value) for value in pair)]
    if len(far) != 1 or len(near) != 1:
        return None
    (one, other), (inner, beside) = far[0], near[0]
    kinds = (inner.type, inner.dtype) == (beside.type, beside.dtype) and inner.buffer is not beside.buffer
    if one.buffer is other.buffer or one.dtype != other.dtype or not kinds:
        return None
    steps = _steps(kernel, one.buffer, other.buffer)
    left, right = one.tensor.view, other.tensor.view
    as_first = (substitute(right.offset, steps), right.valid)
    if left.shape != right.shape or as_first != (left.offset, left.valid):
        return None
    used = symbols(right.offset)
    return Twins(
        (first, second),
        tuple((name, known) for name, known in steps.items() if name in used),
        location=first.location,
    )


def _is_far(value: Value) -> bool:
    """Whether a value lies in an array, not in the thread's own memory."""
    return value.is_tensor and value.tensor.memory is Memory.GLOBAL


def _steps(kernel: Kernel, first: Value, second: Value) -> Mapping[Sym, Sym]:
    """The strides of one array that only a launch knows, each with that of another array."""
    known = {size.source: size.sym for size in kernel.sizes if isinstance(size.source, Stride)}
    return {
        sym: known[Stride(first.name, source.dim)]
        for source, sym in known.items()
        if source.tensor == second.name and Stride(first.name, source.dim) in known
    }


def step_of(sides: tuple[CopySide, CopySide], far: int) -> Sym | None:
    """The stride along the innermost loop of a copy, which only the running kernel knows; None: it is known.

    Args:
        sides: source and target.
        far: which of them is not in the thread's own memory.
    """
    views = coalesced((sides[0].view, sides[1].view))
    shape = [extent for extent in views[1].shape if isinstance(extent, int)]
    found = in_pairs(nest(shape, views, (TRUE, TRUE), str, far))
    return None if found is None else found[0]


# ----------------------------------------------------------------
#
# Reductions into global memory: one function per kind and element type.
#
# Integers use atomic instructions.  Floats use a compare-and-swap loop.


_BITS = {8: "unsigned char", 16: "unsigned short", 32: "unsigned", 64: "unsigned long long"}

_COMBINED = {
    "add": "old + x",
    "min": "x < old || x != x ? x : old",
    "max": "x > old || x != x ? x : old",
}
"""The new value of each kind; NaN stays."""


def reduction(emitter: CpuEmitter, kind: str, dtype: DType) -> Code:
    """The name of the function ``(address, value)`` that reduces an element."""
    stored = STORAGE[dtype.name]
    if not dtype.is_float and kind in ("add", "and", "or"):
        body = f"  __atomic_fetch_{kind}(to, given, __ATOMIC_RELAXED);"
    else:
        body = _exchanged(emitter, kind, dtype)
    text = f"static inline void {SELF}({stored}* to, {stored} given) {{\n{body}\n}}"
    return emitter.function(f"reduce_{kind}_{dtype}", text)


def _exchanged(emitter: CpuEmitter, kind: str, dtype: DType) -> str:
    stored, wide, bits = STORAGE[dtype.name], computes_in(dtype), _BITS[dtype.bits]
    old = emitter.convert(f"__builtin_bit_cast({stored}, seen)", dtype, wide)
    made = emitter.convert(f"({STORAGE[wide.name]})({_COMBINED[kind]})", wide, dtype)
    return f"""\
  typedef {bits} __attribute__((may_alias)) Word;
  constexpr int RELAXED = __ATOMIC_RELAXED;
  const {STORAGE[wide.name]} x = {emitter.convert("given", dtype, wide)};
  {bits} seen = __atomic_load_n((Word*)to, RELAXED), made;
  do {{
    const {STORAGE[wide.name]} old = {old};
    made = __builtin_bit_cast({bits}, {made});
  }} while (!__atomic_compare_exchange_n((Word*)to, &seen, made, false, RELAXED, RELAXED));"""


# ---------------------------------------------------------------- rules


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
    """One panel of a packing copy; every panel is stored in the place of the first."""
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


def _sides(emitter: CpuEmitter, op: Copy) -> tuple[CopySide, CopySide]:
    source, target = emitter.side(op.source), emitter.side(op.target)
    return source, _narrowed(target, emitter.read.get(op, {}))


def _panel(emitter: CpuEmitter, op: Copy, panel: Sym, rows: int) -> tuple[CopySide, CopySide]:
    """The source of a panel, and its place."""
    source, target = emitter.side(op.source), emitter.side(op.target)
    depth = op.target.tensor.shape[1]
    row, k = coordinates((rows, depth))
    part = source.view.map((rows, depth), (add(mul(panel, rows), row), k))
    whole = replace(target, view=View.strided((rows, depth), (1, rows)))
    bounds = {dim: bound for dim, bound in emitter.read.get(op, {}).items() if dim == 1}
    return replace(source, view=part), _narrowed(whole, bounds)


def _narrowed(side: CopySide, bounds: Mapping[int, Int]) -> CopySide:
    """One side of a copy without what lies past some bounds."""
    view = side.view
    valid = all_of(view.valid, *(less(view.coords[dim], bound) for dim, bound in bounds.items()))
    return replace(side, view=replace(view, valid=valid)) if bounds else side


def _outside(emitter: CpuEmitter, op: Copy) -> Code:
    """The value of elements outside the source."""
    if op.other == 0:
        return ZERO
    return emitter.convert(literal(emitter, op.other, op.source.dtype), op.source.dtype, op.target.dtype)


def _copy(emitter: CpuEmitter, op: Copy, source: CopySide, target: CopySide) -> None:
    outside = _outside(emitter, op)
    with emitter.indented():
        reduce = None if op.reduction is None else reduction(emitter, op.reduction, op.target.dtype)
        emitter.accesses[op, op.location] = Copying(emitter, source, target, outside, reduce).emit()


def _copy_twins(emitter: CpuEmitter, op: Twins, sides: Sequence[tuple[CopySide, CopySide]]) -> None:
    """Both copies: in one loop where their arrays turn out to lie side by side, else one after the other."""
    far = 1 if sides[0][0].is_scratch else 0
    found = step_of(sides[0], far)
    # One array's tile may end before the other's, if their results do.
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
