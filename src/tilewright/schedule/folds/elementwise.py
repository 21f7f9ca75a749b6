"""Elementwise flows: an element of a result depends on the elements of arrays with the same indices.

A block computes a tile of the results.  Its threads load each array once, by vectors along the columns of the
tile, compute, and store.  The schedule's MMA atom multiplies nothing: its accumulator layout only says which
lane has which elements.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, log2, prod
from typing import Any

from tilewright.arch import Arch
from tilewright.dataflow.nodes import ArrayPart, Operand, Span, Store, walk
from tilewright.dtypes import DType, f32
from tilewright.lang import operations as tw
from tilewright.lang.control import otherwise, when
from tilewright.lang.fragments import Fragment
from tilewright.lang.scalars import unwrap
from tilewright.lang.specs import TensorSpec
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.layout.layout import Layout
from tilewright.schedule.facts import Reasons
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.form import FoldForm
from tilewright.schedule.folds.group_choice import not_taken
from tilewright.schedule.folds.operands import StepPlace
from tilewright.schedule.folds.values import TileValues, tile_of
from tilewright.schedule.form import spec_of
from tilewright.schedule.provenance import made_by
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.nodes import divisor
from tilewright.targets.atoms import fma
from tilewright.threads.distribution import Distribution, blocked

FIELDS = ("atom", "tile", "warps", "swap_ab")
"""Fields of `Schedule` that apply to elementwise flows; the others keep their default."""

VECTOR_BYTES, BANK_BYTES = 16, 4
"""Bytes of the widest access of a thread, and of a bank of shared memory."""

WARPS, VECTORS, ELEMENTS = 4, 16, 32
"""Most warps of a block, and most accesses and elements of a thread.  More of them hide more latency."""

BLOCKS = 4
"""Blocks per multiprocessor; a thread gets several accesses only if at least this many blocks remain."""

SIDE = 64
"""Columns of a tile if some matrices are contiguous along its rows, and others along its columns."""

SHARING_THREADS = 512
"""Threads of a block that share a row: at 128 registers each they fill a multiprocessor's registers, and a
compiler gives no thread more, so that one of these blocks always runs on each."""

CPU_ELEMENTS, CPU_COLUMNS = 4096, 1024
"""Elements of a CPU's tile, also of a row that it reduces at once; and columns of its tile."""

CPU_VECTOR = 16
"""Neighbouring columns that a CPU computes together."""


KEPT_ELEMENTS = 128
"""Most elements of all arrays of a row that a lane keeps in registers until the row is stored."""

ROW_WARPS, ROW_ELEMENTS = 8, (16, 32, 64)
"""Most warps that share a row, and least, best and most elements of a lane.

On an H200 softmax and RMSNorm of 2048 to 16384 columns of bf16 have 0.89 to 0.98 of the rate of a copy with 8
warps at most.  With 16 warps rows of 16384 columns have 0.67 to 0.82 of it, because fewer blocks overlap.
"""

LANES_OF_COLUMNS, LANES_OF_SECTOR = 8, 2
"""Lanes along rows if arrays are contiguous along rows: with 16 bytes each they load a line of 128 bytes, or
at least a sector of 32 bytes."""


# ---------------------------------------------------------------- legality


def reasons(schedule: Schedule, form: FoldForm, arch: Arch) -> Reasons:
    """Every reason to refuse a schedule of an elementwise flow."""
    subject, atom = form.subject, schedule.atom
    name = form.flow.stores[0].operand.name
    yield from not_taken(schedule, FIELDS, f"for {name}, which has no product", subject)
    if schedule.swap_ab and (len(form.columns) != 1 or form.m.extent == 1 or form.m.groups is not None):
        why = "groups" if form.m.groups is not None else "one tiled dimension"
        yield "swap_ab", f"swap_ab=True with {why}", "swap_ab=False", subject
    lanes = arch.lanes, *arch.other_lanes
    near = f"tw.atoms.fma(tw.f32, lanes=(1, {arch.lanes}))"
    if atom.instruction != "fma":
        yield "atom", f"{atom} for {name}, which has no product", near, subject
    elif atom.lanes not in lanes:
        yield "atom", f"{atom} with {atom.lanes} lanes; {arch.name} has {arch.lanes}", near, subject
    units = (atom.shape[0] * schedule.warps[0], atom.shape[1] * schedule.warps[1], 1)
    if any(side == 0 or side % unit for side, unit in zip(schedule.tile[:2], units, strict=False)) or (
        schedule.tile[2] != 1
    ):
        nearest = (*(max(-(-s // u), 1) * u for s, u in zip(schedule.tile[:2], units, strict=False)), 1)
        text = f"{schedule.tile} is no multiple of {units[:2]}, and a depth of 1"
        yield "tile", text, f"tile={nearest}", subject
    elif form.m.extent == 1 and schedule.tile[0] > 1:  # threads of several rows would store the same elements
        text = f"{schedule.tile} for one tiled dimension, which is a single row"
        yield "tile", text, f"tile=(1, {prod(schedule.tile)}, 1), and lanes along columns alone", subject


# ---------------------------------------------------------------- the choice


@dataclass(frozen=True)
class ArrayAccess:
    """An access of a flow to an array.

    Args:
        at: the span that indexes each dimension of the array.
        unit: the span along which the array is contiguous, or None.
        full: elements of the widest access of a thread.
        aligned: elements of the widest access that the array's alignment allows.
        dtype: the dtype of the array.
    """

    at: tuple[Span, ...]
    unit: Span | None
    full: int
    aligned: int
    dtype: DType


def accesses(form: FoldForm, specs: Mapping[str, TensorSpec]) -> list[ArrayAccess]:
    """The accesses of a flow: each pair of an array and its spans once.

    Args:
        form: the form.
        specs: the classes of the arrays, by name.
    """
    found = []
    for operand, at in places_of(form):
        spec, bits = spec_of(form.flow, operand, specs), operand.dtype.bits
        steps = (step * bits // 8 for dim, step in enumerate(spec.stride_divisors) if dim != spec.unit_dim)
        aligned = max(gcd(VECTOR_BYTES, spec.align, *steps) * 8 // bits, 1)
        unit = None if spec.unit_dim is None else at[spec.unit_dim]
        found.append(ArrayAccess(at, unit, VECTOR_BYTES * 8 // bits, aligned, operand.dtype))
    return found


def places_of(form: FoldForm) -> list[tuple[Operand, tuple[Span, ...]]]:
    """The arrays that a flow reads or stores, each with the spans that index it, once."""
    nodes = (*form.flow.walk(), *form.inside())
    parts = [(one.operand, one.at) for one in nodes if isinstance(one, ArrayPart)]
    return [*dict.fromkeys((*parts, *((store.operand, store.at) for store in form.flow.stores)))]


def proposals(
    form: FoldForm,
    specs: Mapping[str, TensorSpec],
    shapes: Mapping[str, tuple[int, ...]],
    arch: Arch,
    processors: int = 0,
) -> Iterator[Schedule]:
    """The schedule of an elementwise flow.

    The columns are the dimension along which more matrices are contiguous.  If all arrays are aligned, a lane
    has enough neighbouring elements for the widest access to the array with the narrowest elements.  If some
    matrices are contiguous along rows, both sides of a tile are long enough for whole lines of memory.

    Args:
        form: the form.
        specs: the classes of the arrays.
        shapes: extents of the arrays.
        arch: the machine.
        processors: its processors; 0: unknown.
    """
    found = accesses(form, specs)
    matrices = [one for one in found if {form.m, *form.columns} <= {*one.at}]
    by_rows, by_columns = (sum(one.unit in spans for one in matrices) for spans in ((form.m,), form.columns))
    swap = form.m.groups is None and by_rows > by_columns
    form = form.turned if swap else form
    extents = form.extents(shapes)
    rows = max(extents[form.m], 1)
    columns = max((extents[span] for span in form.columns), default=1) or 1
    own = [one for one in found if one.unit in form.columns]
    wide = min(
        (max((one.full for one in own), default=1), *(one.aligned for one in own if one.aligned < one.full))
    )
    wide = min(wide, _power(columns))
    if arch.vector_registers:
        wide = min(CPU_VECTOR, _power(columns))
        width = -(-min(columns, CPU_COLUMNS if rows > 1 else CPU_ELEMENTS) // wide) * wide
        tile = min(_power(rows), max(CPU_ELEMENTS // width, 1)), width, 1
        yield Schedule(fma(f32, lanes=(1, 1), each=(1, wide)), tile, swap_ab=swap)
        return
    across = min(_power(-(-columns // wide)), arch.lanes) if rows > 1 else arch.lanes
    turned = {one.dtype for one in matrices if one.unit == form.m}
    crossed = bool(turned)
    if crossed:
        across = min(across, max(SIDE // wide, 1))
    down = arch.lanes // across
    least = -(-columns // (across * wide))
    warps_across = min(_power(least), WARPS) if rows <= down else 1
    warps_down = min(_power(-(-rows // down)), WARPS // warps_across)
    unit = down * warps_down, across * wide * warps_across
    blocks = prod(extents[span] for span in form.batch) * -(-rows // unit[0]) * -(-columns // unit[1])
    most = min(VECTORS, max(ELEMENTS // wide, 1))
    each = min(_power(max(blocks // (BLOCKS * max(processors, 1)), 1)), most)
    each = most if crossed else each
    # Bytes of scratch memory for a row of arrays that are contiguous along the rows of a tile: arrays of one
    # dtype share it, and accesses along rows need the most padding.
    kinds = [one for one in turned if one.bits >= 8]
    row_bytes = sum((unit[1] + max(BANK_BYTES // one.bytes, 1)) * one.bytes for one in kinds)
    while 0 < arch.shared_bytes < unit[0] * each * row_bytes and (each > 1 or warps_down > 1):
        each, warps_down = (each // 2, warps_down) if each > 1 else (each, warps_down // 2)
        unit = down * warps_down, unit[1]
    high = min(each, _power(-(-rows // unit[0])))
    tile = unit[0] * high, unit[1] * (each // high), 1
    warps = warps_down, warps_across
    yield Schedule(fma(f32, lanes=(down, across), each=(1, wide)), tile, warps, swap_ab=swap)


def reducing(
    form: FoldForm,
    specs: Mapping[str, TensorSpec],
    extents: Mapping[Span, int],
    arch: Arch,
    processors: int = 0,
) -> Iterator[Schedule]:
    """The schedule of a loop without products.  Loads limit its speed.

    If arrays are contiguous along the loop, a warp loads a row, and each lane neighbouring elements of it.
    If they are contiguous along the rows, as for sums of columns, lanes load neighbouring rows.  Few lanes
    then share the elements of a step, because each step reduces across them.  A step needs few registers of a
    lane, unless it keeps the whole row to store it, as a softmax does.

    Args:
        form: the form.
        specs: the classes of the arrays.
        extents: extents of all spans.
        arch: the machine.
        processors: its processors; 0: unknown.
    """
    m, n = form.m, form.n
    found = [one for one in accesses(form, specs) if n in one.at]
    most_loads = [one for one in found if m in one.at] or found  # a vector along the loop takes few loads
    turned = sum(one.unit == m for one in most_loads) > sum(one.unit == n for one in most_loads)
    own = [one for one in found if one.unit == (m if turned else n)]
    wide = max((one.full for one in own), default=1)
    wide = min((wide, *(one.aligned for one in own if one.aligned < one.full)))
    rows, run = max(extents[m], 1), max(extents[n], 1)
    if arch.vector_registers:
        wide, each = min(CPU_VECTOR, _power(rows if turned else run)), max(CPU_ELEMENTS // CPU_COLUMNS, 1)
        if turned:
            tile = -(-min(rows, CPU_COLUMNS) // wide) * wide, min(each, _power(run)), 1
        else:
            tile = min(each, _power(rows)), -(-min(run, CPU_ELEMENTS) // wide) * wide, 1
        yield Schedule(fma(f32, lanes=(1, 1), each=(wide, 1) if turned else (1, wide)), tile)
        return
    elements = elements_of_lane(form)
    if turned:
        wide = min(wide, _power(rows))
        down = min(LANES_OF_COLUMNS, _power(-(-rows // wide)))
        warps = min(WARPS, _power(-(-rows // (wide * down))))
        batches = prod(extents[span] for span in form.batch)
        while form.passing and batches * -(-rows // (wide * down * warps)) < processors:
            # One block makes both passes over a column.  Narrower tiles, of whole sectors, make more blocks.
            if down > LANES_OF_SECTOR:
                down //= 2
            elif warps > 1:
                warps //= 2
            else:
                break
        across = arch.lanes // down
        each = min(VECTORS, elements // wide, _power(-(-run // across)))
        atom = fma(f32, lanes=(down, across), each=(wide, 1))
        yield Schedule(atom, (wide * down * warps, across * each, 1), (warps, 1))
        return
    wide = min(wide, _power(run))
    if form.fold.results and (shared := _shared_row(form, extents, arch, wide, processors)):
        yield shared
    if form.passing and not form.fold.results and run > arch.lanes * ELEMENTS:
        yield _row_of_warps(form, extents, arch, wide, processors)
        return
    across = min(_power(-(-run // wide)), arch.lanes)
    down, least = arch.lanes // across, _power(-(-run // (across * wide)))
    each = min(least, VECTORS, max(elements // wide, 1))
    blocks = prod(extents[span] for span in form.batch) * -(-rows // (down * WARPS))
    high = min(max(elements // (wide * each), 1), _power(max(blocks // (BLOCKS * max(processors, 1)), 1)))
    warps = min(WARPS, _power(-(-rows // down)))
    atom = fma(f32, lanes=(down, across), each=(1, wide))
    yield Schedule(atom, (down * warps * high, across * wide * each, 1), (warps, 1))


def elements_of_lane(form: FoldForm) -> int:
    """Elements of a lane in a step of a loop without products, at most.

    If the steps store results, elements of two registers count twice, and those of reverse rows do, because
    each has an address.
    """
    if not form.fold.results:
        return ELEMENTS
    widest = max(cell.dtype.computed.bytes for fold in form.folds for cell in fold.cells)
    is_reverse = any(operand.transforms for operand, _ in places_of(form))
    return ELEMENTS // (2 if widest > f32.bytes else 1) // (2 if is_reverse else 1)


def _row_of_warps(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, wide: int, processors: int
) -> Schedule:
    """The schedule of long rows that are reduced, then stored: warps share a row, and keep it in registers.

    The warps have as few elements past the end of a row as possible.  A row that does not fit their registers
    is read again, a tile after the other.  If there are fewer rows than processors, more warps share each.

    Args:
        form: the form.
        extents: extents of the spans.
        arch: the machine.
        wide: neighbours that a lane loads at once.
        processors: its processors; 0: unknown.
    """
    rows, run = prod(extents[span] for span in (*form.batch, form.m)), extents[form.n]
    is_few = rows <= processors
    least, best, most = (elements // 2 if is_few else elements for elements in ROW_ELEMENTS)
    spans = {form.m, form.n}
    read = {one for store in form.passing for one in walk(store.value) if isinstance(one, ArrayPart)}
    kept = sum(max(one.dtype.bytes // f32.bytes, 1) for one in read if spans <= {*one.axes})
    most = min(most, max(KEPT_ELEMENTS // max(kept, 1), wide))
    unit = arch.lanes * wide
    counts = [1 << at for at in range((ROW_WARPS * (2 if is_few else 1)).bit_length())]
    whole = [(warps, -(-run // (unit * warps))) for warps in counts]
    fit = [one for one in whole if one[1] * wide <= most]
    roomy = [one for one in fit if one[1] * wide >= least] or fit[:1]
    if roomy:
        return _across(arch, wide, *min(roomy, key=lambda one: (prod(one), abs(log2(one[1] * wide / best)))))
    each = max(min(best, most) // wide, 1)
    if is_few:  # one step of each block, if the blocks of all rows run at once
        enough = -(-rows * run // (processors * unit * counts[-1]))
        each = enough if enough * wide <= most else each
    return _across(arch, wide, counts[-1], each)


def _across(arch: Arch, wide: int, warps: int, each: int) -> Schedule:
    """A schedule in which the warps of a block share a row, with ``each`` accesses of each lane."""
    atom = fma(f32, lanes=(1, arch.lanes), each=(1, wide))
    return Schedule(atom, (1, arch.lanes * wide * warps * each, 1), (1, warps))


def _shared_row(
    form: FoldForm, extents: Mapping[Span, int], arch: Arch, wide: int, processors: int
) -> Schedule | None:
    """The schedule of few long rows whose steps store: the warps of a block share a row; None for other rows.

    A step is as long as lets each processor have a block, so that blocks exchange few states.

    Args:
        form: the form.
        extents: extents of the spans.
        arch: the machine.
        wide: neighbours that a lane loads at once.
        processors: its processors; 0: unknown.
    """
    rows, run = prod(extents[span] for span in (*form.batch, form.m)), extents[form.n]
    warps, unit = SHARING_THREADS // arch.lanes, SHARING_THREADS * wide
    most = max(elements_of_lane(form) // len(form.fold.cells) // wide, 1)
    if run <= unit * most // warps or 2 * rows >= max(processors, 1) * warps:
        return None
    each = min(-(-rows * run // (max(processors, 1) * unit)), -(-run // unit), most)
    return _across(arch, wide, warps, each)


def _power(number: int) -> int:
    """The least power of two that is not smaller."""
    return 1 << (max(number, 1) - 1).bit_length()


# ---------------------------------------------------------------- the block


class ElementwiseBlock(FoldBlock):
    """The work of one block of an elementwise flow; see `FoldBlock`."""

    def __init__(self, form: FoldForm, schedule: Schedule, arguments: dict[str, Any]) -> None:
        super().__init__(form.turned if schedule.swap_ab else form, schedule, arguments)
        self.turned: dict[DType, Tensor] = {}
        """Shared memory through which tiles of a dtype pass: each exchange ends with a barrier."""

    def run(self) -> None:
        """Write the kernel.

        If the rows are aligned, but their length is no multiple of the widest access, the block tests whether
        its tile is the last of the row.  All other tiles use wide accesses.
        """
        cut = self._whole_tiles()
        if not cut:
            self._store_all(self.place)
            return
        [column] = self.form.columns
        for operand, at in places_of(self.form):  # both branches have the same shared memory
            unit = self.place.array(operand).value.tensor.view.unit_dim
            if unit is not None and at[unit] == self.form.m and column in at:  # it lies along the rows
                self.scratch_of(operand.dtype)
        with made_by("tile"):
            inside = self.at[column] < self.place.integer(column.extent) // self.length(column)
        with when(inside):
            self._store_all(ViewPlace(self, cut))
        with otherwise():
            self._store_all(self.place)

    def _whole_tiles(self) -> dict[str, Tensor]:
        """Views of the arrays without their last column tile; empty if this makes no access wider."""
        form, wide = self.form, self.schedule.atom.c.values[0].extent
        if len(form.columns) != 1 or self.schedule.atom.lanes == 1:
            return {}
        [column], unit = form.columns, self.length(form.columns[0])
        if divisor(unwrap(self.place.integer(column.extent))) % wide == 0:
            return {}
        found: dict[str, Tensor] = {}
        for operand, at in places_of(form):
            if column in at and not operand.transforms:
                array = self.arguments[operand.name]
                ends = (
                    array.shape[dim] // unit * unit if span == column else None for dim, span in enumerate(at)
                )
                found[operand.name] = array[tuple(slice(0, end) for end in ends)]
        return found

    def _store_all(self, place: StepPlace) -> None:
        """Compute the results of the tile, and store them."""
        values = TurnedValues(self, place)
        stored = {store.operand.name for store in self.form.flow.stores}
        for node in self.form.flow.walk():
            if isinstance(node, ArrayPart) and node.operand.name in stored:
                values.value(node)  # read it before a store overwrites it
        for store in self.form.flow.stores:
            self.store_one(store, values)

    def put(self, made: Fragment, target: Tensor, store: Store) -> None:
        """Store a result, through shared memory if it is contiguous along the rows."""
        if (spread := self.along_rows(target)) is not None:
            made = redistribute(made, spread, scratch=self.scratch_of(made.dtype))
        super().put(made, target, store)

    def along_rows(self, tile: Tensor) -> Distribution | None:
        """The map to threads for a tile that is contiguous along its rows; None for other tiles.

        Args:
            tile: a tile of an array.
        """
        (rows, columns), bits = (int(extent) for extent in tile.shape), tile.dtype.bits
        if self.schedule.atom.lanes == 1 or tile.value.tensor.view.unit_dim != 0 or columns == 1 or bits < 8:
            return None
        down = gcd(max(rows * bits // (8 * VECTOR_BYTES), 1), self.threads)
        across = self.threads // down
        if rows % down or columns % across:
            return None
        return blocked((rows, columns), (down, across), vector_dim=0)

    def scratch_of(self, dtype: DType) -> Tensor:
        """Shared memory for tiles of a dtype, padded so that their rows begin in different banks."""
        if dtype not in self.turned:
            rows, columns = self.schedule.tile[:2]
            layout = Layout((rows, columns), (columns + max(BANK_BYTES // dtype.bytes, 1), 1))
            self.turned[dtype] = tw.shared((rows, columns), dtype, layout=layout, name="turned")
        return self.turned[dtype]


class TurnedValues(TileValues):
    """The values of a tile; arrays that are contiguous along its rows are loaded through shared memory.

    Args:
        block: the block.
        place: the tile.
    """

    def __init__(self, block: ElementwiseBlock, place: StepPlace) -> None:
        super().__init__(place, {})
        self.block = block

    def _loaded(self, part: ArrayPart) -> Fragment:
        axes = self.place.ordered(part.axes)
        tile = tile_of(self.place, part.operand, part.at, axes)
        if (spread := self.block.along_rows(tile)) is None:
            return super()._loaded(part)
        loaded = tw.load(tile, spread, name=f"r{part.operand.name}")
        return redistribute(loaded, self.place.spread(axes), scratch=self.block.scratch_of(part.dtype))


class ViewPlace(StepPlace):
    """The tile of a block in views of arrays.

    Args:
        block: the block.
        views: the views, by the name of the array; arrays without a view are accessed directly.
    """

    def __init__(self, block: FoldBlock, views: Mapping[str, Tensor]) -> None:
        super().__init__(block)
        self.views = views

    def array(self, operand: Operand) -> Tensor:
        """An array of the kernel, or its view."""
        view = None if operand.transforms else self.views.get(operand.name)
        return super().array(operand) if view is None else view
