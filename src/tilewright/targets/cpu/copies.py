"""Rules of copies: plain copies, copies that pack panels, paired copies, and reductions into memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace

from tilewright.dtypes import DType
from tilewright.ir.kernel import Kernel, Stride
from tilewright.ir.ops import Block, Copy, Op, Redistribute, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.expr import add, all_of, expand, less, mul
from tilewright.symbolic.nodes import TRUE, Int, Sym
from tilewright.symbolic.rebuilding import slope, substitute, symbols
from tilewright.targets.cpu.conversions import STORAGE, computes_in
from tilewright.targets.cpu.copying import ZERO, Copying
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_panels import emit_decoded
from tilewright.targets.cpu.emitter import CACHE_LINE_BYTES, SELF, CopySide, CpuEmitter, literal
from tilewright.targets.cpu.loops import PAIR, blocks_of_pairs, coalesced, in_pairs, nest
from tilewright.targets.cpu.multiply import CompoundOp
from tilewright.targets.statements import Code, call, code, joined, named
from tilewright.views.transforms import Slice
from tilewright.views.view import View, coordinates

# ----------------------------------------------------------------
#
# Two consecutive copies of arrays that may be interleaved, e.g. the parts of complex numbers.
#
# If they are interleaved, one loop copies both: it reads or writes whole cache lines once, and the compiler
# vectorises it with shuffles.  Addresses are known only at run time: the text tests them, and makes two
# separate copies if the arrays are not interleaved.


@dataclass(frozen=True)
class Twins(CompoundOp):
    """Two copies of equal tiles of two arrays whose elements may be interleaved in memory.

    Args:
        copies: both, in program order.
        steps: pairs of strides, of the second array and of the first, that must be equal.
    """

    name = "twins"
    copies: tuple[Copy, Copy]
    steps: tuple[tuple[Sym, Sym], ...]

    @property
    def parts(self) -> tuple[Op, ...]:
        """The copies."""
        return self.copies


def pair(block: Block, kernel: Kernel) -> Block:
    """Return the block with two consecutive copies as `Twins`, if their arrays may be interleaved."""
    ops = [op.with_regions(lambda region: pair(region, kernel)) for op in block.ops]
    return Block(paired(ops, kernel))


def paired(ops: Sequence[Op], kernel: Kernel) -> tuple[Op, ...]:
    """Return the operations of one block, with two consecutive copies joined into `Twins` if they qualify."""
    found: list[Op] = []
    for op in ops:
        at = len(found)
        while at and isinstance(found[at - 1], Reshape):  # a view only names part of an array
            at -= 1
        before = found[at - 1] if at else None
        both = _twins(before, op, kernel) if isinstance(before, Copy) and isinstance(op, Copy) else None
        if both is None:
            found.append(op)
        else:
            found[at - 1 :] = [*found[at:], both]
    return tuple(found)


def _twins(first: Copy, second: Copy, kernel: Kernel) -> Twins | None:
    """Join two copies, unless they are known to copy different elements of their arrays."""
    if first.reduction or second.reduction or first.other != second.other:
        return None

    def is_far(value: Value) -> bool:
        return value.is_tensor and value.tensor.memory is Memory.GLOBAL

    ends = [(first.source, second.source), (first.target, second.target)]
    far = [pair for pair in ends if all(map(is_far, pair))]
    near = [pair for pair in ends if not any(map(is_far, pair))]
    if len(far) != 1 or len(near) != 1:
        return None
    (one, other), (mine, its) = far[0], near[0]
    kinds = (mine.type, mine.dtype) == (its.type, its.dtype) and mine.buffer is not its.buffer
    if one.buffer is other.buffer or one.dtype != other.dtype or not kinds:
        return None
    # The launcher passes the strides of both arrays: replace those of the second by those of the first.
    known = {size.source: size.sym for size in kernel.sizes if isinstance(size.source, Stride)}
    steps = {
        sym: known[Stride(one.buffer.name, source.dim)]
        for source, sym in known.items()
        if source.tensor == other.buffer.name and Stride(one.buffer.name, source.dim) in known
    }
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


def steps_of(emitter: CpuEmitter, sides: tuple[CopySide, CopySide], far: int) -> list[Sym]:
    """Return the strides that may be `PAIR`, which only the launch knows.

    The first one is that of the innermost loop; the list is empty if the stride is known before the launch.
    The others are those of loops along which pairs are transposed in registers.

    Args:
        emitter: where the text goes.
        sides: source and target.
        far: index of the side that is not in the thread's own memory.
    """
    views = coalesced((sides[0].view, sides[1].view))
    shape = [extent for extent in views[1].shape if isinstance(extent, int)]
    loops = nest(shape, views, (TRUE, TRUE), str, far)
    found = in_pairs(loops)
    if found is None:
        return []
    made = [found[0]]
    for axis in loops.axes[:-1]:
        step = loops.stride(far, axis)
        if isinstance(step, Sym) and step not in made:
            offsets = tuple(expand(substitute(offset, {step: PAIR})) for offset in loops.offsets)
            sizes = emitter.arch.vector_bytes, PAIR * sides[far].dtype.bytes
            if blocks_of_pairs(replace(loops, offsets=offsets), far, *sizes):
                made.append(step)
    return made


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
"""The C++ expression of the new value, by kind of reduction; NaN stays NaN."""


def reduction(emitter: CpuEmitter, kind: str, dtype: DType) -> Code:
    """Return the name of the C++ function ``(address, value)`` that reduces ``value`` into an element."""
    stored = STORAGE[dtype.name]
    if not dtype.is_float and kind in ("add", "and", "or"):
        body = f"  __atomic_fetch_{kind}(to, given, __ATOMIC_RELAXED);"
    else:
        wide, bits = computes_in(dtype), _BITS[dtype.bits]
        old = emitter.convert(f"__builtin_bit_cast({stored}, seen)", dtype, wide)
        made = emitter.convert(f"({STORAGE[wide.name]})({_COMBINED[kind]})", wide, dtype)
        body = f"""\
  typedef {bits} __attribute__((may_alias)) Word;
  constexpr int RELAXED = __ATOMIC_RELAXED;
  const {STORAGE[wide.name]} x = {emitter.convert("given", dtype, wide)};
  {bits} seen = __atomic_load_n((Word*)to, RELAXED), made;
  do {{
    const {STORAGE[wide.name]} old = {old};
    made = __builtin_bit_cast({bits}, {made});
  }} while (!__atomic_compare_exchange_n((Word*)to, &seen, made, false, RELAXED, RELAXED));"""
    text = f"static inline void {SELF}({stored}* to, {stored} given) {{\n{body}\n}}"
    return emitter.function(f"reduce_{kind}_{dtype}", text)


# ----------------------------------------------------------------
#
# Prefetching the next panel during a multiply.
#
# The source rows of a panel are far apart, so hardware does not prefetch them.  A micro-kernel takes
# thousands of cycles and leaves memory idle.  So each one prefetches some cache lines of the next panel.


UNROLLED = 4
"""Most cache lines of a row that are prefetched by single statements; more are prefetched in a loop."""


@dataclass
class Ahead:
    """The prefetch of the next panel.

    Args:
        emitter: where the text goes.
        source: the pointer.
        start: the offset of row ``row`` of the next panel; rows follow the dimension without unit stride.
        row: the variable of rows.
        rows: the number of rows.
        run: contiguous elements in each row.
        step: elements of a cache line.
        panel: the panel that is multiplied.
        is_across: whether rows follow k.
        when: the condition under which rows are contiguous; None if they always are.
    """

    emitter: CpuEmitter
    source: Code
    start: Int
    row: Sym
    rows: int
    run: int
    step: int
    panel: Sym
    is_across: bool
    when: Code | None = None
    share: Code = field(init=False)
    most: Code = field(init=False)
    depth: Code = field(init=False)

    @staticmethod
    def of(emitter: CpuEmitter, op: Copy | Twins, panel: Sym, columns: int) -> Ahead | None:
        """Return the prefetch for a copy; None if strides vary, or if the source is in the cache anyway.

        Complex numbers may be interleaved: the text finds out.  Hardware prefetches those that are contiguous
        along K.
        """
        copy = op.copies[0] if isinstance(op, Twins) else op
        kind = copy.source.tensor
        depth = copy.target.tensor.shape[1]
        if kind.memory is not Memory.GLOBAL or not isinstance(depth, int):
            return None
        column, k = kind.view.coords
        steps, offset, when, each = (
            [slope(kind.view.offset, sym) for sym in (column, k)],
            kind.view.offset,
            None,
            1,
        )
        if isinstance(op, Twins) and isinstance(steps[0], Sym):
            when, each = code("{} == {}", emitter.spell(steps[0]), PAIR), PAIR
            offset, steps[0] = substitute(offset, {steps[0]: PAIR}), 1
        if None in steps or 1 not in steps:
            return None
        row = Sym(emitter.local("row"), 0, depth - 1)
        first = mul(add(panel, 1), columns)
        across = steps[0] == 1  # whether columns are contiguous, so that rows follow k
        at = {column: first if across else add(first, row), k: row if across else 0}
        rows, run = (depth, each * columns) if across else (columns, depth)
        step, name = max(CACHE_LINE_BYTES // kind.dtype.bytes, 1), emitter.name(copy.source.buffer)
        return Ahead(emitter, name, expand(substitute(offset, at)), row, rows, run, step, panel, across, when)

    def begin(self, turns: Code, following: Code, depth: Code, number: str = "") -> None:
        """Divide the rows to prefetch among the iterations over panels of A.

        Args:
            turns: the number of iterations.
            following: whether there is a next panel to prefetch.
            depth: the needed depth of the panel.
            number: a suffix for unique names of variables.
        """
        self.share, self.most = self.emitter.local(f"share{number}"), self.emitter.local(f"ahead{number}")
        self.depth = depth
        rows = depth if self.is_across else self.rows
        if self.when is not None:
            following = code("{} && {}", following, self.when)
        self.emitter.constant("Index", self.most, code("{} ? {} : 0", following, rows))
        self.emitter.constant("Index", self.share, code("({} + {} - 1) / {}", self.most, turns, turns))

    def turn(self, at: Sym) -> None:
        """Prefetch the rows of one iteration."""
        index = named(at.name)
        row = named(self.row.name)
        end = self.emitter.within(code("({} + 1) * {}", index, self.share), self.most)
        with self.emitter.loop("Index", row, code("{} * {}", index, self.share), code("{} < {}", row, end)):
            place = code("{} + {}", self.source, self.emitter.spell(self.start))
            if self.run <= UNROLLED * self.step:
                # If a row begins inside a cache line, the panel before has prefetched this line.
                for last in reversed(range(self.run - 1, -1, -self.step)):
                    self.emitter.do(
                        call("__builtin_prefetch", code("{} + {}", place, last) if last else place)
                    )
                return
            each = self.emitter.local("line")
            with self.emitter.turns(each, self.run if self.is_across else self.depth, self.step):
                self.emitter.do(call("__builtin_prefetch", code("{} + {}", place, each)))


# ---------------------------------------------------------------- rules


def emit_copy(emitter: CpuEmitter, op: Copy) -> None:
    """Write ``target = source``, with ``other`` outside of the source, or a reduction into the target."""
    emitter.comment(op, f"{op.target} = {op.source}")
    _copy(emitter, op, *_sides(emitter, op))


def emit_twins(emitter: CpuEmitter, op: Twins) -> None:
    """Write two copies of arrays that may be interleaved, as the parts of complex numbers are."""
    for one in op.copies:
        emitter.comment(one, f"{one.target} = {one.source}")
    _copy_twins(emitter, op, [_sides(emitter, one) for one in op.copies])


def emit_panel(
    emitter: CpuEmitter, op: Copy | Twins | Decoding, panel: Sym, rows: int, place: Int | None = None
) -> None:
    """Write the copy that packs one panel.

    Args:
        emitter: the emitter.
        op: the copy.
        panel: number of the panel.
        rows: rows of a panel.
        place: index of the panel in the target; None: every panel overwrites the previous one.
    """
    if isinstance(op, Decoding):
        emit_decoded(emitter, op, panel, rows)
        return
    copies = op.copies if isinstance(op, Twins) else (op,)
    for one in copies:
        emitter.comment(one, f"a panel of {one.target} = {one.source}")
    sides = [_sides(emitter, one, (panel, rows), place) for one in copies]
    if isinstance(op, Twins):
        _copy_twins(emitter, op, sides)
    else:
        _copy(emitter, op, *sides[0])


def _sides(
    emitter: CpuEmitter, op: Copy, panel: tuple[Sym, int] | None = None, place: Int | None = None
) -> tuple[CopySide, CopySide]:
    """Return the source and the target of a copy, or of one panel, without elements that no multiply reads.

    The place is the index of the panel in the target; without one the target holds a single panel.
    """
    source, target = emitter.side(op.source), emitter.side(op.target)
    bounds = emitter.read.get(op, {})
    if panel is not None:
        number, rows = panel
        depth = op.target.tensor.shape[1]
        row, k = coordinates((rows, depth))
        source = replace(source, view=source.view.map((rows, depth), (add(mul(number, rows), row), k)))
        into = View.strided((rows, depth), (1, rows))
        if place is not None:
            into = target.view.map((rows, depth), (add(mul(place, rows), row), k))
        target = replace(target, view=into)
        bounds = {dim: bound for dim, bound in bounds.items() if dim == 1}
    if bounds:
        view = target.view
        valid = all_of(view.valid, *(less(view.coords[dim], bound) for dim, bound in bounds.items()))
        target = replace(target, view=replace(view, valid=valid))
    return source, target


def _outside(emitter: CpuEmitter, op: Copy) -> Code:
    """Return the value of elements outside of the source."""
    if op.other == 0:
        return ZERO
    return emitter.convert(literal(emitter, op.other, op.source.dtype), op.source.dtype, op.target.dtype)


def _copy(emitter: CpuEmitter, op: Copy, source: CopySide, target: CopySide) -> None:
    outside = _outside(emitter, op)
    with emitter.indented():
        reduce = None if op.reduction is None else reduction(emitter, op.reduction, op.target.dtype)
        emitter.accesses[op, op.location] = Copying(emitter, source, target, outside, reduce).emit()


def _copy_twins(emitter: CpuEmitter, op: Twins, sides: Sequence[tuple[CopySide, CopySide]]) -> None:
    """Write both copies: as one for interleaved arrays, else one after the other."""
    far = 1 if sides[0][0].is_scratch else 0
    # The tile of one array may end before that of the other.
    alike = sides[0][1 - far].view == sides[1][1 - far].view
    steps = steps_of(emitter, sides[0], far) if alike else []
    interleaved = [code("{} == {} + 1", sides[1][far].name, sides[0][far].name)]
    interleaved += [code("{} == {}", emitter.spell(one), emitter.spell(other)) for one, other in op.steps]
    with ExitStack() as stack:
        for step in steps:
            known = [*interleaved, code("{} == {}", emitter.spell(step), PAIR)]
            with emitter.branch(joined(" && ", known)):
                both = [*sides[0]]
                view = both[far].view
                both[far] = replace(
                    both[far], view=replace(view, offset=substitute(view.offset, {step: PAIR}))
                )
                with emitter.indented():
                    outside = _outside(emitter, op.copies[0])
                    Copying(emitter, both[0], both[1], outside, twin=sides[1][1 - far].name).emit()
            stack.enter_context(emitter.otherwise())
        for one, (source, target) in zip(op.copies, sides, strict=True):
            _copy(emitter, one, source, target)
            if steps:
                how = emitter.accesses[one, one.location]
                emitter.accesses[one, one.location] = how._replace(
                    how=f"{how.how}; both parts of a pair at once"
                )


def emit_redistribute(emitter: CpuEmitter, op: Redistribute) -> None:
    """Write ``result[i] = source[start + i]``."""
    source, target = emitter.side(op.source), emitter.side(op.result)
    box = tuple((at, at + extent) for at, extent in zip(op.start, op.distribution.shape, strict=True))
    emitter.comment(op, f"{op.result} = {op.source}[{', '.join(f'{a}:{b}' for a, b in box)}]")
    with emitter.indented():
        Copying(emitter, replace(source, view=Slice(box).apply(source.view)), target).emit()
