"""The rule of matrix multiplies on a CPU: loops over calls of micro-kernels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from tilewright.dtypes import f32
from tilewright.ir.ops import Copy, Mma
from tilewright.ir.types import Value
from tilewright.passes.expand_mma import depth_of
from tilewright.symbolic.expr import add, mul, negate
from tilewright.symbolic.nodes import FALSE, Cond, Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.targets.cpu.arch import PANELS_TOGETHER, SHALLOW, adds_along_k, adds_groups, has_masks
from tilewright.targets.cpu.copies import Ahead, Twins, emit_copy, emit_panel, emit_twins, paired
from tilewright.targets.cpu.decoding import Decoding
from tilewright.targets.cpu.decoding_dots import MOST_ROWS, dots_of
from tilewright.targets.cpu.emitter import CpuEmitter
from tilewright.targets.cpu.few_rows import TOGETHER, dots_kernel, few_pairs_kernel, few_rows_kernel
from tilewright.targets.cpu.linear import PanelLayout, distinct, panels, same_place
from tilewright.targets.cpu.loops import PAIR
from tilewright.targets.cpu.micro_kernels import (
    SHALLOW_ROWS,
    KernelForm,
    Term,
    grouping,
    lanes_of,
    micro_kernel,
    part_kernel,
    row_sums,
    shallow_kernel,
    vectors_at_once,
)
from tilewright.targets.cpu.multiply import Multiply, panel_elems
from tilewright.targets.cpu.unpacked import (
    ACROSS_ROWS,
    ALONG_ROWS,
    LateRows,
    Panel,
    PanelExtent,
    ResultArray,
    RowPanels,
    StoredPlace,
    Unpacked,
)
from tilewright.targets.cpu.vector_moves import load_part
from tilewright.targets.statements import Code, Declare, call, code, joined, named
from tilewright.views.view import View

# ---------------------------------------------------------------- the rule


def emit_mma(emitter: CpuEmitter, op: Mma) -> None:
    """Write a multiply that was not joined with others."""
    emit_multiply(emitter, Multiply((op,), (FALSE,), location=op.location))


def emit_multiply(emitter: CpuEmitter, op: Multiply) -> None:
    """Call a micro-kernel for each product of each needed micro-tile of the accumulators."""
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
        array, result = Unpacked.of(emitter, op), None
        if op.store is not None:
            result = ResultArray.of(emitter, op.store)
        with _unless_shallow(emitter, op, (m, n), deep, array, result):
            _multiply_panels(emitter, op, (m, n), deep, array, result)


@contextmanager
def _unless_shallow(
    emitter: CpuEmitter,
    op: Multiply,
    extents: tuple[PanelExtent, PanelExtent],
    depth: Code,
    array: Unpacked | None,
    result: ResultArray | None,
) -> Iterator[None]:
    """Write a branch that multiplies arrays with few steps along K; the with block writes the ``else``."""
    product, (m, n) = op.products[0], extents
    arrays, needed = Unpacked.of_rows(emitter, op), emitter.extents[op.products[0]]
    if array is None or result is None or len(arrays) != 1:
        yield
        return
    (left,), sums, wide = arrays, product.c.dtype, product.c.fragment.shape
    are_plain = not array.is_converted and result.dtype == sums
    if not are_plain or (left.bound, array.bound) != (needed.rows, needed.columns):
        yield
        return
    rows, columns = (
        Code(str(extent)) if one.needed is None else one.needed
        for one, extent in zip((m, n), wide, strict=True)
    )
    is_shallow, lanes = emitter.local("is_shallow"), emitter.arch.vector_bytes // sums.bytes
    fits = code(
        "{} >= {} && {} > {} && {} <= {}", rows, max(SHALLOW_ROWS), columns, lanes // 2, depth, SHALLOW
    )
    when = code("{} && {}", emitter.spell_cond(result.when), fits)
    emitter.constant("bool", is_shallow, array.if_deep(emitter, depth, when))
    with emitter.branch(is_shallow):
        far = array.k_step if array.is_along_rows else array.line_step
        steps = [emitter.spell(step) for step in (left.line_step, left.k_step, far, result.row_step)]
        into, adds = result.address(emitter, 0, 0), emitter.spell_cond(negate(op.begins[0]))
        a, b = left.address(emitter), array.address(emitter)
        given = [a, steps[0], steps[1], b, steps[2], into, steps[3], rows, columns, depth, adds]
        has_halves, room = has_masks(emitter.arch, emitter.arch.vector_bytes), 0
        if not array.is_along_rows:
            room = panel_elems(op)
            given.append(emitter.name(product.b.buffer))
        emitter.do(call(shallow_kernel(emitter, sums, has_halves=has_halves, room=room), *given))
    with emitter.otherwise():
        yield


def _multiply_panels(
    emitter: CpuEmitter,
    op: Multiply,
    extents: tuple[PanelExtent, PanelExtent],
    deep: Code,
    array: Unpacked | None,
    result: ResultArray | None,
) -> None:
    """Write the loops over panels of B, and over panels of A."""
    first, (m, n) = op.products[0], extents
    columns = first.mma.atom.shape[1]
    rows_of_a = RowPanels.of(emitter, op, m, n)
    late = LateRows.of(emitter, op, m, n, deep) if rows_of_a is None else None
    if rows_of_a is None:
        with nullcontext() if late is None else emitter.branch(code("!{}", late.when)):
            for filling in paired(op.rows, emitter.kernel):
                if isinstance(filling, Twins):
                    emit_twins(emitter, filling)
                else:
                    assert isinstance(filling, Copy)
                    emit_copy(emitter, filling)
    if array is not None and _in_dots(emitter, op, m, n, deep, array):
        return
    if array is not None and array.bound != emitter.extents[first].columns:
        array = None
    if array is not None and array.is_converted and not array.is_along_rows:
        array = None
    is_read = array is not None and array.is_along_rows
    masks = n.needed is not None and has_masks(emitter.arch, columns * first.c.dtype.bytes)
    place = None if result is None else StoredPlace.of(emitter, result, columns, masks=masks)
    panel = None
    if is_read and array is not None:
        has_parts = masks and place is not None and not array.is_converted
        panel = Panel.of(emitter, array, columns, m, deep, masks=has_parts)
    # One call for all products if registers hold their sums, else one call for each product.
    arrays = InArrays(rows_of_a, panel, place, late)
    whole = _calling(emitter, op, range(len(op.products)), deep, m, n, arrays)
    rows_only = InArrays(rows_of_a, late=late)
    each = (_calling(emitter, op, [at], deep, m, n, rows_only) for at in range(len(op.products)))
    callings = [calling for calling in ((whole,) if whole else each) if calling is not None]
    grouped = callings[0].grouped
    if grouped is not None:
        grouped.begin(emitter, m.count, deep)
    with (
        _unless_few_plain(emitter, op, m, n, deep, array),
        _unless_few_pairs(emitter, op, m, n, deep) if whole else nullcontext(),
        _some_rows(emitter, m, deep, panel, place) as some,
        emitter.turns(n.at.name, n.count),
        _unless_few(emitter, op, m, n),
    ):
        packed = emitter.name(first.b.buffer)
        with (
            nullcontext()
            if array is None or panel is None
            else panel.unless_in_place(emitter, array, packed, (n.at, columns))
        ):
            for packing in paired(op.packing, emitter.kernel):
                assert isinstance(packing, Copy | Twins | Decoding)
                with emitter.indented():
                    emit_panel(emitter, packing, n.at, columns)
        copies = (copy for copy in paired(op.packing, emitter.kernel) if isinstance(copy, Copy | Twins))
        aheads = [Ahead.of(emitter, copy, n.at, columns) for copy in copies]
        if grouped is not None:
            grouped.turn(emitter, deep)
        asking = [ahead for ahead in aheads if ahead is not None]
        for number, ahead in enumerate(asking):
            following = code("{} + 1 < {}", named(n.at.name), n.count)
            if panel is not None:
                following = code("!{} && {}", panel.in_place, following)
            ahead.begin(m.count, following, deep, str(number or ""))
        with emitter.loop("Index", named(m.at.name), *some):
            for ahead in asking:
                ahead.turn(m.at)
            if rows_of_a is not None:
                rows_of_a.turn(emitter, m.at)
            if late is not None:
                late.turn(emitter, m.at)
            if place is not None:
                place.turn(emitter, callings[0].sums or Code("0"), (m, n))
            _choose(emitter, callings, (m, n))


@contextmanager
def _some_rows(
    emitter: CpuEmitter, m: PanelExtent, depth: Code, panel: Panel | None, place: StoredPlace | None
) -> Iterator[tuple[Code | int, Code]]:
    """Yield the start and the condition of the loop over panels of A; divide it into groups, if that pays.

    Sums are then stored in runs along a few rows of the result, instead of down all rows for each panel of B.
    """
    at = named(m.at.name)
    if panel is None or place is None:
        yield 0, code("{} < {}", at, m.count)
        return
    first, some = emitter.local("first_rows"), emitter.local("some_rows")
    is_shallow = code("{} && {} && {} <= {}", panel.pays, place.in_result, depth, SHALLOW)
    emitter.constant("Index", some, code("{} ? {} : {}", is_shallow, PANELS_TOGETHER, m.count))
    with emitter.loop("Index", first, 0, code("{} < {}", first, m.count), some):
        yield first, code("{} < {}", at, emitter.within(code("{} + {}", first, some), m.count))


def _unless_few_plain(
    emitter: CpuEmitter, op: Multiply, m: PanelExtent, n: PanelExtent, depth: Code, array: Unpacked | None
) -> AbstractContextManager[None]:
    """Write branches that multiply few rows by the array of B; the with block writes the ``else``."""
    if array is None:
        return nullcontext()
    product = op.products[0]
    rows, columns, _ = product.mma.atom.shape
    a, view = _panels_of(product.a, rows), emitter.fragment_view(product.c.fragment)
    between = _step(view, 1, columns)
    if between is None:
        return nullcontext()
    along, dtype = array.is_along_rows, product.mma.atom.c_dtype
    if array.is_converted:
        emitter.convert("x", array.dtype, dtype)
    kernel = few_rows_kernel(emitter, dtype, array.dtype, a, columns, between, along_rows=along)
    high, wide = product.c.fragment.shape
    needed = high if m.needed is None else m.needed, Code(str(wide)) if n.needed is None else n.needed
    operands = _start(emitter, product.a, a, 0), _sums(emitter, product.c, (rows, columns), 0, 0)
    adds = emitter.spell_cond(negate(op.begins[0]))
    return array.unless_few(emitter, kernel, rows, needed, operands, depth, adds)


@contextmanager
def _unless_few_pairs(
    emitter: CpuEmitter, op: Multiply, m: PanelExtent, n: PanelExtent, depth: Code
) -> Iterator[None]:
    """Write branches that multiply few rows by two interleaved B; the with block writes the ``else``."""
    arrays, atom = Unpacked.of_pairs(emitter, op), op.products[0].mma.atom
    rows, columns, _ = atom.shape
    a, b, c = (distinct(values) for values in zip(*((p.a, p.b, p.c) for p in op.products), strict=True))
    view = emitter.fragment_view(c[0].fragment)
    between, lanes = _step(view, 1, columns), emitter.arch.vector_bytes // atom.c_dtype.bytes
    are_two = len(arrays) == len(a) == len(b) == len(c) == 2
    if not are_two or m.needed is None or between is None or columns % lanes or lanes < 2:
        yield
        return
    first, second = arrays
    steps = [emitter.spell(step, True) for one in arrays for step in (one.line_step, one.k_step)]
    line, k_step = steps[:2]
    are_neighbours = code("{} == {} + 1", second.address(emitter), first.address(emitter))
    are_pairs = emitter.local("are_pairs")
    alike = code("{} == {} && {} == {}", line, steps[2], k_step, steps[3])
    emitter.constant("bool", are_pairs, code("{} && {}", are_neighbours, alike))
    part = load_part(emitter, atom.c_dtype, lanes)
    emitter.call("fused", "fused_lanes", "min_int")
    wide = Code(str(c[0].fragment.shape[1])) if n.needed is None else n.needed
    starts = [_start(emitter, value, _panels_of(value, rows), 0) for value in a]
    sums = [_sums(emitter, value, (rows, columns), 0, 0) for value in c]
    adds = [emitter.spell_cond(negate(begins)) for begins in _begins(op, range(len(op.products)), c)]
    with ExitStack() as more:
        for along, able in ((False, ACROSS_ROWS), (True, ALONG_ROWS)):
            near, far = (line, k_step) if along else (k_step, line)
            kernel = few_pairs_kernel(
                emitter.arch, atom.c_dtype, _panels_of(a[0], rows), columns, between, _terms(op.products),
                along_rows=along, part=part,
            )  # fmt: skip
            name = "multiply_pairs_along_columns" if along else "multiply_pairs_along_k"
            function = emitter.function(name, kernel)
            given = joined(", ", (*starts, first.address(emitter), far, *sums, wide, depth, *adds))
            for height in dict.fromkeys(min(height, rows) for height in able):
                is_low = code("{} <= {} && {} && {} == {}", m.needed, height, are_pairs, near, PAIR)
                with emitter.branch(is_low):
                    emitter.do(code("{}<{}>({})", function, height, given))
                more.enter_context(emitter.otherwise())
        yield


def _in_dots(
    emitter: CpuEmitter, op: Multiply, m: PanelExtent, n: PanelExtent, depth: Code, array: Unpacked
) -> bool:
    """Multiply by dot products along K, if the atom allows it and columns of B are contiguous along K."""
    product = op.products[0]
    rows, columns, _ = product.mma.atom.shape
    a, view = _panels_of(product.a, rows), emitter.fragment_view(product.c.fragment)
    steps = [_step(view, dim, unit) for dim, unit in enumerate((rows, columns))]
    fits = a.k_stride == 1 and a.panel_stride == rows * a.row_stride and columns % TOGETHER == 0
    if not adds_along_k(product.mma.atom) or array.k_step != 1 or not fits or None in steps:
        return False
    if array.deepest is not None:
        return False
    emitter.call("fused", "fused_lanes", "min_int")
    if array.is_converted:
        emitter.convert("x", array.dtype, product.mma.atom.c_dtype)
    sizes = (rows, columns), (steps[0] or 0, steps[1] or 0)
    kernel = dots_kernel(emitter.arch, product.mma.atom.c_dtype, array.dtype, a.row_stride, *sizes)
    function = emitter.function("multiply_dots", kernel)
    tile_m, tile_n = product.c.fragment.shape
    high = Code(str(tile_m)) if m.needed is None else m.needed
    wide = Code(str(tile_n)) if n.needed is None else n.needed
    start, sums = _start(emitter, product.a, a, 0), _sums(emitter, product.c, (rows, columns), 0, 0)
    step, adds = emitter.spell(array.line_step), emitter.spell_cond(negate(op.begins[0]))
    if n.needed is None and array.bound is not None:  # sums of columns past the array are sums of zeros
        wide = emitter.local("columns")
        emitter.constant("Index", wide, emitter.within(emitter.spell(array.bound), tile_n))
        is_cut = code("!({}) && {} < {}", adds, wide, tile_n)
        with emitter.branch(is_cut), emitter.turns("e", tile_m * tile_n):
            emitter.assign(code("{}[e]", emitter.name(product.c)), Code("0"))
    in_order = array.in_order(emitter, depth)
    emitter.do(call(function, start, array.address(emitter), step, sums, high, wide, depth, adds, in_order))
    return True


def _step(view: View, dim: int, unit: int) -> int | None:
    """Return the elements from a micro-tile of sums to the next; None if the distances differ."""
    extent, other = view.shape[dim], {view.coords[1 - dim]: 0}
    assert isinstance(extent, int)
    places = [substitute(view.offset, {view.coords[dim]: at, **other}) for at in range(0, extent, unit)]
    between = places[1] if len(places) > 1 else 0
    is_even = isinstance(between, int) and places == [between * at for at in range(len(places))]
    return between if is_even and isinstance(between, int) else None


@contextmanager
def _unless_few(emitter: CpuEmitter, op: Multiply, m: PanelExtent, n: PanelExtent) -> Iterator[None]:
    """Write a branch that multiplies few rows by codes, not panels; the with block writes the ``else``."""
    (product, *others), atom = op.products, op.products[0].mma.atom
    rows, columns, _ = atom.shape
    a, found = _panels_of(product.a, rows), None
    is_plain = not others and not product.negative and atom.precision is None and atom.c_dtype == f32
    if is_plain and len(op.packing) == 1 and rows >= MOST_ROWS:
        (decoding,) = op.packing
        if isinstance(decoding, Decoding):
            found = dots_of(emitter, decoding, columns, a.row_stride, a.k_stride)
    if found is None or m.needed is None:
        yield
        return
    with emitter.branch(code("{} <= {}", m.needed, MOST_ROWS)):
        start, sums = _start(emitter, product.a, a, 0), _sums(emitter, product.c, (rows, columns), 0, n.at)
        found.emit(emitter, n.at, m.needed, start, sums, emitter.spell_cond(negate(op.begins[0])))
    with emitter.otherwise():
        yield


# ---------------------------------------------------------------- needed extents


def _panels(emitter: CpuEmitter, side: str, needed: Int | None, extent: int, unit: int) -> PanelExtent:
    at = Sym(emitter.local(f"{side}_panel"), 0, extent // unit - 1)
    if needed is None:
        return PanelExtent(at, unit, None, Code(str(extent // unit)))
    most, count = emitter.local(f"{side}_needed"), emitter.local(f"{side}_panels")
    emitter.constant("Index", most, _within(emitter, needed, extent))
    emitter.constant("Index", count, code("({} + {}) / {}", most, unit - 1, unit))
    return PanelExtent(at, unit, most, count)


def _within(emitter: CpuEmitter, needed: Int | None, extent: int) -> Code:
    if needed is None:
        return Code(str(extent))
    return emitter.within(emitter.spell(needed), extent)


# ---------------------------------------------------------------- calls


QUARTERS = 4
"""Number of heights of micro-kernels, in addition to 1: at most a quarter of a micro-tile is wasted."""


@dataclass(frozen=True)
class _Calling:
    """The calls of a micro-kernel for a micro-tile or part of it.

    Args:
        sizes: heights and widths of the parts.
        kernels: the function for each height and width.
        arguments: the arguments of every call.
        grouped: the regrouped operands of a byte product.
        sums: the address of the sums in their fragment, if they may be stored elsewhere.
    """

    sizes: tuple[tuple[int, ...], tuple[int, ...]]
    kernels: Sequence[Sequence[Code]]
    arguments: tuple[Code, ...]
    grouped: _Grouped | None = None
    sums: Code | None = None


class InArrays(NamedTuple):
    """The operands that micro-kernels read from the caller's arrays, and the sums that they store there.

    Args:
        rows: panels of A.
        panel: a panel of B.
        place: the place of the sums.
        late: panels of A that are filled one after the other.
    """

    rows: RowPanels | None = None
    panel: Panel | None = None
    place: StoredPlace | None = None
    late: LateRows | None = None


NO_ARRAYS = InArrays()


@dataclass(frozen=True)
class _Grouped:
    """Operands regrouped for instructions that multiply several neighbours along K.

    Args:
        groups: the array for the groups of a panel of B, and its length.
        panel: the address of the panel.
        grouping: the function that makes the groups.
        sums: the array for the sums of A's rows, and its length.
        rows: the address of A, and the rows of a panel.
        summing: the function that adds up the rows.
    """

    groups: tuple[Code, int]
    panel: Code
    grouping: Code
    sums: tuple[Code, int]
    rows: tuple[Code, int]
    summing: Code

    def begin(self, emitter: CpuEmitter, panels: Code, depth: Code) -> None:
        """Declare the arrays, and add up the rows of A."""
        for kind, (name, extent) in (("int", self.sums), ("int", self.groups)):
            emitter.add(Declare(named(f"__attribute__((aligned(64))) {kind}"), name, None, extent))
        start, unit = self.rows
        emitter.do(call(self.summing, self.sums[0], start, code("{} * {}", panels, unit), depth))

    def turn(self, emitter: CpuEmitter, depth: Code) -> None:
        """Make the groups of a panel of B."""
        emitter.do(call(self.grouping, self.groups[0], self.panel, depth))


def _calling(
    emitter: CpuEmitter,
    op: Multiply,
    which: Sequence[int],
    depth: Code,
    m: PanelExtent,
    n: PanelExtent,
    arrays: InArrays = NO_ARRAYS,
) -> _Calling | None:
    """Return the calls for some products; None if several products share no sum or fit no micro-kernel.

    A sum starts at 0 if it does for the first product that is added to it.
    """
    products = [op.products[at] for at in which]
    atom = products[0].mma.atom
    rows, columns, _ = atom.shape
    a, b, c = (distinct(values) for values in zip(*((one.a, one.b, one.c) for one in products), strict=True))
    terms = _terms(products)
    lanes = lanes_of(emitter.arch, atom)
    vectors = columns // lanes
    heights: tuple[int, ...] = (rows,)
    if m.needed is not None:
        parts = (-(-rows * part // QUARTERS) for part in range(1, QUARTERS + 1))
        heights = tuple(dict.fromkeys((1, *parts)))
    widths = (columns,) if n.needed is None or vectors == 1 else ((vectors + 1) // 2 * lanes, columns)
    of_a, of_b = ([_panels_of(value, unit) for value in side] for side, unit in ((a, rows), (b, columns)))
    width = 0
    if len(terms) > 1:
        width = vectors_at_once(emitter.arch, rows, [wide // lanes for wide in widths], terms)
        alike = all(len({(one.row_stride, one.k_stride) for one in side}) == 1 for side in (of_a, of_b))
        is_narrow = atom.c_dtype != atom.c_dtype.computed
        if len(terms) == len(c) or not (width and alike) or is_narrow:
            return None
    rows_of_a, panel, place, late = arrays
    form = KernelForm(
        atom, lanes, depth_of(products[0].a), of_a[0], of_b[0], terms, width % vectors,
        apart=rows_of_a is not None,
        along=rows_of_a is not None and len(rows_of_a.steps) > 1,
        steps=panel is not None,
        narrow=None if panel is None or panel.narrow is None else panel.dtype,
        stores=None if place is None else place.result.dtype,
    )  # fmt: skip
    if place is not None and place.masks:
        # Parts have fewer heights, because each height takes time to compile.
        widths, last, tall = (
            (columns - 1, columns),
            replace(form, ends="all"),
            sorted({1, -(-rows // 2), rows}),
        )
        wholes = [micro_kernel(emitter, last, (high, columns)) for high in heights]
        parts_of = [part_kernel(emitter, form, next(one for one in tall if one >= high)) for high in heights]
        kernels = [[*pair] for pair in zip(parts_of, wholes, strict=True)]
    else:
        kernels = [[micro_kernel(emitter, form, (high, wide)) for wide in widths] for high in heights]
    at = m.at if late is None else late.slot
    at_a = [_start(emitter, value, one, at) for value, one in zip(a, of_a, strict=True)]
    packed = [next(op.is_packed(one) for one in products if same_place(one.b, value)) for value in b]
    at_b = [
        _start(emitter, value, replace(one, base=0, panel_stride=0) if there else one, n.at)
        for value, one, there in zip(b, of_b, packed, strict=True)
    ]
    if rows_of_a is not None:
        at_a = [*map(rows_of_a.address_of, a), *rows_of_a.steps]
    if panel is not None:
        at_b = [panel.address] if panel.narrow is None else [*at_b, panel.narrow]
        at_b.append(panel.step)
    into = [_sums(emitter, value, (rows, columns), m.at, n.at) for value in c]
    adds = [emitter.spell_cond(negate(one)) for one in _begins(op, which, c)]
    if place is not None:
        (sums,), into = into, [*place.arguments]
        return _Calling((heights, widths), kernels, (*at_a, *at_b, *into, depth, *adds), sums=sums)
    if not adds_groups(atom):
        return _Calling((heights, widths), kernels, (*at_a, *at_b, *into, depth, *adds))
    (product,) = products
    grouped = _Grouped(
        (emitter.local("groups"), columns * depth_of(product.a) // 2),  # as many as groups of two need
        at_b[0],
        emitter.function("group_panel", grouping(columns, lanes)),
        (emitter.local("row_sums"), product.c.fragment.shape[0]),
        (code("{} + {}", emitter.name(product.a.buffer), emitter.spell(of_a[0].base)), rows),
        emitter.function("sum_rows", row_sums(of_a[0].row_stride)),
    )
    sums = code("{} + {}", grouped.sums[0], emitter.spell(mul(m.at, rows)))
    arguments = (*at_a, grouped.groups[0], *into, depth, *adds, sums)
    return _Calling((heights, widths), kernels, arguments, grouped)


def _terms(products: Sequence[Mma]) -> tuple[Term, ...]:
    """Return the products of one step along K."""

    def index(found: Sequence[Value], value: Value) -> int:
        return next(at for at, other in enumerate(found) if same_place(value, other))

    a, b, c = (distinct(values) for values in zip(*((one.a, one.b, one.c) for one in products), strict=True))
    return tuple(Term(index(a, one.a), index(b, one.b), index(c, one.c), one.negative) for one in products)


def _begins(op: Multiply, which: Sequence[int], sums: Sequence[Value]) -> list[Cond]:
    """Return the condition under which each sum starts at 0, for some of the products."""
    return [next(op.begins[at] for at in which if op.products[at].c is value) for value in sums]


def _panels_of(operand: Value, unit: int) -> PanelLayout:
    """Return the layout of an operand, chosen by the lowering."""
    found = panels(operand.tensor.view, unit)
    assert found is not None
    return found


def _sums(emitter: CpuEmitter, acc: Value, unit: tuple[int, int], m: Int, n: Int) -> Code:
    """Return the address of the sums of a micro-tile."""
    view = emitter.fragment_view(acc.fragment)
    at = {view.coords[0]: mul(m, unit[0]), view.coords[1]: mul(n, unit[1])}
    return code("{} + {}", emitter.name(acc), emitter.spell(substitute(view.offset, at)))


def _choose(
    emitter: CpuEmitter, callings: Sequence[_Calling], extents: tuple[PanelExtent, PanelExtent]
) -> None:
    """Call the smallest micro-kernels that cover the needed part of this micro-tile."""
    rows, columns = callings[0].sizes
    for high, found in _smallest(emitter, rows, extents[0]):
        with found:
            for wide, chosen in _smallest(emitter, columns, extents[1]):
                with chosen:
                    for calling in callings:
                        kernel = calling.kernels[high][wide]
                        emitter.do(code("{}({})", kernel, joined(", ", calling.arguments)))


def _smallest(
    emitter: CpuEmitter, sizes: Sequence[int], extent: PanelExtent
) -> Iterator[tuple[int, AbstractContextManager[None]]]:
    """Yield the index of each size, and the branch in which it is the smallest sufficient size."""
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


def _start(emitter: CpuEmitter, operand: Value, found: PanelLayout, panel: Int) -> Code:
    """Return the address of a panel of an operand."""
    start = add(found.base, mul(panel, found.panel_stride))
    return code("{} + {}", emitter.name(operand.buffer), emitter.spell(start))
