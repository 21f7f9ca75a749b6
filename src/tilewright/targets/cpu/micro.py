"""The micro-kernels, and the rule of matrix multiplies, which is loops over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.ir.ops import Mma
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, mul, negate
from tilewright.symbolic.nodes import FALSE, Cond, Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.ahead import Ahead
from tilewright.targets.cpu.arch import adds_groups
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.copies import emit_panel
from tilewright.targets.cpu.dots import group_count, grouping, micro_kernel, row_sums
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.linear import Panels, panels
from tilewright.targets.cpu.multiply import Multiply
from tilewright.targets.cpu.sequential import depth_of
from tilewright.targets.statements import Code, Declare, call, code, joined, named


def emit_mma(emitter: CpuEmitter, op: Mma) -> None:
    """A multiply that nothing was gathered with."""
    emit_multiply(emitter, Multiply((op,), (FALSE,), location=op.location))


def emit_multiply(emitter: CpuEmitter, op: Multiply) -> None:
    """For every micro-tile of the accumulators that is needed: a call of a micro-kernel for each product."""
    first, extents = op.products[0], emitter.extents[op.products[0]]
    rows, columns, _ = first.mma.atom.shape
    tile_m, tile_n = first.c.fragment.shape
    for one in op.products:
        emitter.comment(one, f"{one.c} {'-=' if one.negative else '+='} {one.a} * {one.b}")
    with emitter.indented():
        m = _panels(emitter, "m", extents.rows, tile_m, rows)
        n = _panels(emitter, "n", extents.columns, tile_n, columns)
        deep = emitter.local("depth")
        emitter.constant("Index", deep, _within(emitter, extents.depth, depth_of(first.a)))
        callings = [
            _calling(emitter, op, one, begins, deep, m, n)
            for one, begins in zip(op.products, op.begins, strict=True)
        ]
        grouped = callings[0].grouped
        if grouped is not None:
            grouped.begin(emitter, m.count, deep)
        with emitter.turns(n.at.name, n.count):
            aheads = []
            for packing in op.packing:
                with emitter.indented():
                    emit_panel(emitter, packing, n.at, columns)
                aheads.append(Ahead.of(emitter, packing, n.at, columns))
            if grouped is not None:
                grouped.turn(emitter, deep)
            asking = [ahead for ahead in aheads if ahead is not None]
            for number, ahead in enumerate(asking):
                ahead.begin(m.count, n.count, str(number or ""))
            with emitter.turns(m.at.name, m.count):
                for ahead in asking:
                    ahead.turn(m.at)
                _choose(emitter, callings, (m, n))


# ---------------------------------------------------------------- what is needed


@dataclass(frozen=True)
class _Extent:
    """Rows or columns of an accumulator, in panels.

    Args:
        at: the panel that a loop has come to.
        unit: how many a panel has.
        needed: how many are needed; None for all.
        count: how many panels those are.
    """

    at: Sym
    unit: int
    needed: Code | None
    count: Code


def _panels(emitter: CpuEmitter, side: str, needed: Int | None, extent: int, unit: int) -> _Extent:
    at = Sym(emitter.local(f"{side}_panel"), 0, extent // unit - 1)
    if needed is None:
        return _Extent(at, unit, None, Code(str(extent // unit)))
    most, count = emitter.local(f"{side}_needed"), emitter.local(f"{side}_panels")
    emitter.constant("Index", most, _within(emitter, needed, extent))
    emitter.constant("Index", count, code("({} + {}) / {}", most, unit - 1, unit))
    return _Extent(at, unit, most, count)


def _within(emitter: CpuEmitter, needed: Int | None, extent: int) -> Code:
    if needed is None:
        return Code(str(extent))
    return emitter.within(emitter.spell(needed), extent)


# ---------------------------------------------------------------- calls


@dataclass(frozen=True)
class _Calling:
    """The call of a micro-kernel for any part of a micro-tile: the sizes of parts, and the call for one."""

    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    kernels: Sequence[Sequence[Code]]
    arguments: tuple[Code, ...]
    grouped: _Grouped | None = None


@dataclass(frozen=True)
class _Grouped:
    """What is made of operands whose neighbours along K are multiplied at once.

    Args:
        groups: the array of the groups of a panel of B, and how long it is.
        panel: where the panel lies that they are made of.
        grouping: the function that makes them.
        sums: the array of the sums of A's rows, and how long it is.
        rows: where A begins, and the rows of a panel.
        summing: the function that adds them up.
    """

    groups: tuple[Code, int]
    panel: Code
    grouping: Code
    sums: tuple[Code, int]
    rows: tuple[Code, int]
    summing: Code

    def begin(self, emitter: CpuEmitter, panels: Code, depth: Code) -> None:
        """Before the panels of B: the sums of A's rows."""
        for kind, (name, extent) in (("int", self.sums), ("int", self.groups)):
            emitter.add(Declare(named(f"__attribute__((aligned(64))) {kind}"), name, None, extent))
        start, unit = self.rows
        emitter.do(call(self.summing, self.sums[0], start, code("{} * {}", panels, unit), depth))

    def turn(self, emitter: CpuEmitter, depth: Code) -> None:
        """Of a panel of B that is there: its groups."""
        emitter.do(call(self.grouping, self.groups[0], self.panel, depth))


def _calling(
    emitter: CpuEmitter, op: Multiply, mma: Mma, begins: Cond, depth: Code, m: _Extent, n: _Extent
) -> _Calling:
    """The calls for one of the products, whose accumulator counts as 0 at some time."""
    rows, columns, _ = mma.mma.atom.shape
    a, b = (panels(v.tensor.view, unit) for v, unit in ((mma.a, rows), (mma.b, columns)))
    assert a is not None
    assert b is not None
    assert b.row_stride == 1
    if op.is_packed(mma):
        b = replace(b, base=0, panel_stride=0)
    view = emitter.fragment_view(mma.c.fragment)
    at_c = substitute(view.offset, {view.coords[0]: mul(m.at, rows), view.coords[1]: mul(n.at, columns)})
    into = code("{} + {}", emitter.name(mma.c), emitter.spell(at_c))
    adds = emitter.spell_cond(negate(begins))
    lanes = _lanes(emitter, mma)
    vectors = columns // lanes
    heights = (rows,) if m.needed is None else tuple(dict.fromkeys((1, (rows + 1) // 2, rows)))
    widths = (columns,) if n.needed is None or vectors == 1 else ((vectors + 1) // 2 * lanes, columns)
    kernels = [[_micro_kernel(emitter, mma, (high, wide), a, b) for wide in widths] for high in heights]
    at_a, at_b = _at(emitter, mma.a, a, m.at), _at(emitter, mma.b, b, n.at)
    if not adds_groups(mma.mma.atom):
        return _Calling((heights, widths), kernels, (at_a, at_b, into, depth, adds))
    grouped = _grouped(emitter, mma, lanes, a, at_b)
    sums = code("{} + {}", grouped.sums[0], emitter.spell(mul(m.at, rows)))
    arguments = (at_a, grouped.groups[0], into, depth, adds, sums)
    return _Calling((heights, widths), kernels, arguments, grouped)


def _grouped(emitter: CpuEmitter, mma: Mma, lanes: int, a: Panels, panel: Code) -> _Grouped:
    """What is made of the operands of a multiply of bytes, and where."""
    (rows, columns, _), depth = mma.mma.atom.shape, depth_of(mma.a)
    return _Grouped(
        (emitter.local("groups"), group_count(columns, depth)),
        panel,
        emitter.function("group_panel", grouping(columns, lanes)),
        (emitter.local("row_sums"), mma.c.fragment.shape[0]),
        (code("{} + {}", emitter.name(mma.a.buffer), emitter.spell(a.base)), rows),
        emitter.function("sum_rows", row_sums(a.row_stride)),
    )


def _choose(emitter: CpuEmitter, callings: Sequence[_Calling], extents: tuple[_Extent, _Extent]) -> None:
    """Call the smallest micro-kernels that do what is needed of this micro-tile."""
    rows, columns = callings[0].sizes
    for high, found in _smallest(emitter, rows, extents[0]):
        with found:
            for wide, chosen in _smallest(emitter, columns, extents[1]):
                with chosen:
                    for calling in callings:
                        kernel = calling.kernels[high][wide]
                        emitter.do(code("{}({})", kernel, joined(", ", calling.arguments)))


def _smallest(
    emitter: CpuEmitter, sizes: Sequence[int], extent: _Extent
) -> Iterator[tuple[int, AbstractContextManager[None]]]:
    """The number of each size, with the branch in which it is the smallest that is enough."""
    if len(sizes) == 1 or extent.needed is None:
        yield 0, nullcontext()
        return
    left = code("{} - {}", extent.needed, emitter.spell(mul(extent.at, extent.unit), True))
    with ExitStack() as larger:
        for number, size in enumerate(sizes[:-1]):
            if number:
                larger.enter_context(emitter.otherwise())
            yield number, emitter.branch(code("{} <= {}", left, size))
        yield len(sizes) - 1, emitter.otherwise()


def _at(emitter: CpuEmitter, operand: Value, found: Panels, panel: Sym) -> Code:
    start = add(found.base, mul(panel, found.panel_stride))
    return code("{} + {}", emitter.name(operand.buffer), emitter.spell(start))


# ---------------------------------------------------------------- micro-kernels


def _lanes(emitter: CpuEmitter, op: Mma) -> int:
    """Elements of one vector."""
    lanes = emitter.arch.vector_bytes // op.mma.atom.c_dtype.computed.bytes
    while op.mma.atom.shape[1] % lanes:
        lanes //= 2
    return lanes


def _micro_kernel(emitter: CpuEmitter, op: Mma, size: tuple[int, int], a: Panels, b: Panels) -> Code:
    """The micro-kernel for the first rows and columns of a micro-tile."""
    pitch, lanes = op.mma.atom.shape[1], _lanes(emitter, op)
    acc = op.mma.atom.c_dtype
    compute = acc.computed
    rows, vectors = size[0], size[1] // lanes
    if adds_groups(op.mma.atom):
        of_bytes = micro_kernel(pitch, lanes, a.row_stride, depth_of(op.a))
        function = emitter.function("multiply_bytes", of_bytes)
        return code("{}<{},{}>", function, rows, vectors)
    precision, rounding = op.mma.atom.precision, op.mma.atom.rounding
    name = f"multiply_{compute}"
    if precision is not None:
        name += f"_{'keeping' if rounding == 'nearest' else 'cut_to'}_{precision}_bits"
    if op.negative:
        name += "_subtracting"
    function = emitter.function(name, _source(emitter, op, pitch, lanes, (a, b)))
    micro = code("{}<{},{}>", function, rows, vectors)
    if acc == compute:
        return micro
    name = f"multiply_{rows}x{size[1]}_into_{acc}{'_subtracting' if op.negative else ''}"
    return emitter.function(name, _converting(emitter, micro, rows * pitch, compute, acc))


def _source(emitter: CpuEmitter, op: Mma, pitch: int, lanes: int, operands: tuple[Panels, Panels]) -> str:
    """Sums in registers over the whole depth; the rows of A are broadcast from memory."""
    a, b = operands
    atom = op.mma.atom
    compute, precision = atom.c_dtype.computed, atom.precision
    real, size = STORAGE[compute.name], compute.bytes
    kind = f" __attribute__((vector_size({lanes * size}), aligned({size})))" if lanes > 1 else ""
    at_a = f"{_index('i', a.row_stride)} + {_index('k', a.k_stride)}"
    at_b = f"{_index('k', b.k_stride)} + {_index('j', lanes)}"
    at_c = f"{_index('i', pitch)} + {_index('j', lanes)}"
    sign = "-" if op.negative else "+"
    value = f"(adds ? c[i][j] : 0) {sign} sum of a[i][k] * b[k][j] over k"
    left, right, bits = f"a[{at_a}]", f"*(const vector*)(b + {at_b})", ""
    if precision is not None:
        narrowed = "keep" if atom.rounding == "nearest" else "cut"
        emitter.call(narrowed)
        bits = f"\n  typedef int bits{kind};"
        left = f"{narrowed}<int, float>({left}, {23 - precision})"
        right = f"{narrowed}<bits, vector>({right}, {23 - precision})"
    each_row, each_vector = (
        f"UNROLL for (Index {index} = 0; {index} < {count}; ++{index})"
        for index, count in (("i", "ROWS"), ("j", "VECTORS"))
    )
    return f"""\
// c[i][j] = {value}, for i < ROWS and j < {lanes} * VECTORS
template <int ROWS, int VECTORS>
CONTRACTED static void {SELF}(const {real}* a, const {real}* b, {real}* c, Index depth, bool adds) {{
  CONTRACT
  typedef {real} vector{kind};{bits}
  vector sum[ROWS][VECTORS], right[VECTORS];
  {each_row}
    {each_vector} {{
      sum[i][j] = vector{{}};
      __builtin_prefetch(c + {at_c});
    }}
  for (Index k = 0; k < depth; ++k) {{
    {each_vector} right[j] = {right};
    {each_row} {{
      const {real} left = {left};
      {each_vector} sum[i][j] {sign}= left * right[j];
    }}
  }}
  if (adds) {{
    {each_row}
      {each_vector} sum[i][j] += *(const vector*)(c + {at_c});
  }}
  {each_row}
    {each_vector} *(vector*)(c + {at_c}) = sum[i][j];
}}"""


def _index(name: str, step: int) -> str:
    return name if step == 1 else f"{name} * {step}"


def _converting(emitter: CpuEmitter, inner: str, elems: int, compute: DType, acc: DType) -> str:
    """The micro-kernel on an accumulator that is stored in a narrower type."""
    real, stored = STORAGE[compute.name], STORAGE[acc.name]
    widened, rounded = emitter.convert("c[e]", acc, compute), emitter.convert("wide[e]", compute, acc)
    return f"""\
static void {SELF}(const {real}* a, const {real}* b, {stored}* c, Index depth, bool adds) {{
  {real} wide[{elems}];
  for (Index e = 0; e < {elems}; ++e) wide[e] = adds ? {widened} : 0;
  {inner}(a, b, wide, depth, adds);
  for (Index e = 0; e < {elems}; ++e) c[e] = {rounded};
}}"""
