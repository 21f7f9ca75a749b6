"""The micro-kernels, and the rule of matrix multiplies, which is loops over them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from tilewright.dtypes import DType
from tilewright.ir.ops import Mma
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, mul, negate
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.ahead import Ahead
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.copies import emit_panel
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.linear import Panels, panels
from tilewright.targets.cpu.multiply import Multiply
from tilewright.targets.statements import Code, code, joined


def emit_mma(emitter: CpuEmitter, op: Mma) -> None:
    """A multiply that nothing was gathered with."""
    emit_multiply(emitter, Multiply(op, location=op.location))


def emit_multiply(emitter: CpuEmitter, op: Multiply) -> None:
    """For every micro-tile of the accumulator that is needed: one call of a micro-kernel."""
    mma, extents = op.mma, emitter.extents[op.mma]
    rows, columns, _ = mma.mma.atom.shape
    tile_m, tile_n = mma.c.fragment.shape
    depth = mma.a.tensor.shape[1]
    assert isinstance(depth, int)
    emitter.comment(op, f"{mma.c} {'-=' if mma.negative else '+='} {mma.a} * {mma.b}")
    with emitter.indented():
        m = _panels(emitter, "m", extents.rows, tile_m, rows)
        n = _panels(emitter, "n", extents.columns, tile_n, columns)
        deep = emitter.local("depth")
        emitter.constant("Index", deep, _within(emitter, extents.depth, depth))
        calling = _calling(emitter, op, deep, m, n)
        with emitter.turns(n.at.name, n.count):
            ahead = None
            if op.packing is not None:
                with emitter.indented():
                    emit_panel(emitter, op.packing, n.at, columns)
                ahead = Ahead.of(emitter, op.packing, n.at, columns)
            if ahead is not None:
                ahead.begin(m.count, n.count)
            with emitter.turns(m.at.name, m.count):
                if ahead is not None:
                    ahead.turn(m.at)
                _choose(emitter, calling, (m, n))


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


def _calling(emitter: CpuEmitter, op: Multiply, depth: Code, m: _Extent, n: _Extent) -> _Calling:
    mma = op.mma
    rows, columns, _ = mma.mma.atom.shape
    a, b = (panels(v.tensor.view, unit) for v, unit in ((mma.a, rows), (mma.b, columns)))
    assert a is not None
    assert b is not None
    assert b.row_stride == 1
    if op.packing is not None:
        b = replace(b, base=0, panel_stride=0)
    view = emitter.fragment_view(mma.c.fragment)
    at_c = substitute(view.offset, {view.coords[0]: mul(m.at, rows), view.coords[1]: mul(n.at, columns)})
    into = code("{} + {}", emitter.name(mma.c), emitter.spell(at_c))
    adds = emitter.spell_cond(negate(op.begins))
    lanes = _lanes(emitter, op.mma)
    vectors = columns // lanes
    heights = (rows,) if m.needed is None or rows == 1 else ((rows + 1) // 2, rows)
    widths = (columns,) if n.needed is None or vectors == 1 else ((vectors + 1) // 2 * lanes, columns)
    kernels = [[_micro_kernel(emitter, mma, (high, wide), a, b) for wide in widths] for high in heights]
    arguments = (_at(emitter, mma.a, a, m.at), _at(emitter, mma.b, b, n.at), into, depth, adds)
    return _Calling((heights, widths), kernels, arguments)


def _choose(emitter: CpuEmitter, calling: _Calling, extents: tuple[_Extent, _Extent]) -> None:
    """Call the smallest micro-kernel that does what is needed of this micro-tile."""
    rows, columns = calling.sizes
    for high, found in _smallest(emitter, rows, extents[0]):
        with found:
            for wide, chosen in _smallest(emitter, columns, extents[1]):
                with chosen:
                    emitter.do(code("{}({})", calling.kernels[high][wide], joined(", ", calling.arguments)))


def _smallest(
    emitter: CpuEmitter, sizes: Sequence[int], extent: _Extent
) -> Iterator[tuple[int, AbstractContextManager[None]]]:
    """The number of each size, with the branch in which it is the smallest that is enough."""
    if len(sizes) == 1 or extent.needed is None:
        yield 0, nullcontext()
        return
    left = code("{} - {}", extent.needed, emitter.spell(mul(extent.at, extent.unit), True))
    yield 0, emitter.branch(code("{} <= {}", left, sizes[0]))
    yield 1, emitter.otherwise()


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
