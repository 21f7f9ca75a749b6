"""The micro-kernels, and the rule of matrix multiplies, which is a loop over them."""

from __future__ import annotations

from tilewright.dtypes import DType
from tilewright.ir.ops import Mma
from tilewright.ir.types import Value
from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.conversions import STORAGE
from tilewright.targets.cpu.emitter import SELF, CpuEmitter
from tilewright.targets.cpu.linear import Panels, panels
from tilewright.targets.statements import Code, call, code


def emit_mma(emitter: CpuEmitter, op: Mma) -> None:
    """For every micro-tile of the accumulator that is needed: one call of the micro-kernel."""
    rows, columns, _ = op.mma.atom.shape
    compute = op.mma.atom.c_dtype.computed
    a, b = (panels(v.tensor.view, unit) for v, unit in ((op.a, rows), (op.b, columns)))
    assert a is not None
    assert b is not None
    assert b.row_stride == 1
    extents = emitter.extents[op]
    tile_m, tile_n = op.c.fragment.shape
    depth = op.a.tensor.shape[1]
    assert isinstance(depth, int)
    micro = _micro_kernel(emitter, op, compute, a, b)
    emitter.comment(op, f"{op.c} += {op.a} * {op.b}")
    with emitter.indented():
        names = [emitter.local(wanted) for wanted in ("m_panels", "n_panels", "depth", "m_panel", "n_panel")]
        counts = (
            _count(emitter, extents.rows, tile_m, rows),
            _count(emitter, extents.columns, tile_n, columns),
            _count(emitter, extents.depth, depth, 1),
        )
        for name, count in zip(names, counts, strict=False):
            emitter.constant("Index", name, count)
        m_panels, n_panels, deep, at_m, at_n = names
        m, n = Sym(at_m, 0, tile_m // rows - 1), Sym(at_n, 0, tile_n // columns - 1)
        view = emitter.fragment_view(op.c.fragment)
        at_c = substitute(view.offset, {view.coords[0]: mul(m, rows), view.coords[1]: mul(n, columns)})
        at_a, at_b = _at(emitter, op.a, a, m), _at(emitter, op.b, b, n)
        into = code("{} + {}", emitter.name(op.c), emitter.spell(at_c))
        with emitter.turns(at_n, n_panels), emitter.turns(at_m, m_panels):
            emitter.do(call(micro, at_a, at_b, into, deep))


def _at(emitter: CpuEmitter, operand: Value, found: Panels, panel: Sym) -> Code:
    start = add(found.base, mul(panel, found.panel_stride))
    return code("{} + {}", emitter.name(operand.buffer), emitter.spell(start))


def _count(emitter: CpuEmitter, needed: Int | None, extent: int, unit: int) -> Code:
    """How many panels of ``unit`` there are in what is needed of an extent."""
    if needed is None:
        return Code(str(extent // unit))
    most = emitter.within(emitter.spell(needed), extent)
    return most if unit == 1 else code("({} + {}) / {}", most, unit - 1, unit)


def _micro_kernel(emitter: CpuEmitter, op: Mma, compute: DType, a: Panels, b: Panels) -> Code:
    rows, columns, _ = op.mma.atom.shape
    precision, acc = op.mma.atom.precision, op.mma.atom.c_dtype
    narrowed = "keep" if op.mma.atom.rounding == "nearest" else "cut"
    name = f"multiply_{rows}x{columns}_{compute}"
    if precision is not None:
        name += f"_{'keeping' if narrowed == 'keep' else 'cut_to'}_{precision}_bits"
    lanes = emitter.arch.vector_bytes // compute.bytes
    while columns % lanes:
        lanes //= 2
    name = emitter.function(name, _source(emitter, rows, columns, lanes, compute, a, b, precision, narrowed))
    if acc == compute:
        return name
    return emitter.function(f"{name}_into_{acc}", _converting(emitter, name, rows * columns, compute, acc))


def _source(
    emitter: CpuEmitter,
    rows: int,
    columns: int,
    lanes: int,
    compute: DType,
    a: Panels,
    b: Panels,
    precision: int | None,
    narrowed: str,
) -> str:
    """Accumulators in registers over the whole depth; the rows of A are broadcast from memory."""
    real, size, vectors = STORAGE[compute.name], compute.bytes, columns // lanes
    kind = f" __attribute__((vector_size({lanes * size}), aligned({size})))" if lanes > 1 else ""
    at_a = f"{_index('i', a.row_stride)} + {_index('k', a.k_stride)}"
    at_b = f"{_index('k', b.k_stride)} + {_index('j', lanes)}"
    at_c = f"{_index('i', columns)} + {_index('j', lanes)}"
    left, right, bits = f"a[{at_a}]", f"*(const vector*)(b + {at_b})", ""
    if precision is not None:
        emitter.call(narrowed)
        bits = f"\n  typedef int bits{kind};"
        left = f"{narrowed}<int, float>({left}, {23 - precision})"
        right = f"{narrowed}<bits, vector>({right}, {23 - precision})"
    each_row = f"UNROLL for (Index i = 0; i < {rows}; ++i)"
    each_vector = f"UNROLL for (Index j = 0; j < {vectors}; ++j)"
    return f"""\
// c[{rows}][{columns}] += a[{rows}][depth] * b[depth][{columns}], where a[i][k] lies at {at_a}
CONTRACTED static void {SELF}(const {real}* a, const {real}* b, {real}* c, Index depth) {{
  CONTRACT
  typedef {real} vector{kind};{bits}
  vector sum[{rows}][{vectors}], right[{vectors}];
  {each_row}
    {each_vector} sum[i][j] = *(const vector*)(c + {at_c});
  for (Index k = 0; k < depth; ++k) {{
    {each_vector} right[j] = {right};
    {each_row} {{
      const {real} left = {left};
      {each_vector} sum[i][j] += left * right[j];
    }}
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
static void {SELF}(const {real}* a, const {real}* b, {stored}* c, Index depth) {{
  {real} wide[{elems}];
  for (Index e = 0; e < {elems}; ++e) wide[e] = {widened};
  {inner}(a, b, wide, depth);
  for (Index e = 0; e < {elems}; ++e) c[e] = {rounded};
}}"""
