"""The operands of an explicit kernel: their tiles in memory, and how they are decoded."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tilewright.dataflow.nodes import (
    TILE,
    ArrayPart,
    Integer,
    Literal,
    Map,
    Node,
    NumberParam,
    Position,
    Span,
)
from tilewright.dtypes import i32
from tilewright.functions.table import ASKED
from tilewright.lang.fragments import Fragment, elementwise, of_integer
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Index, Scalar, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import coordinates
from tilewright.schedule.bulk_views import against_row, anywhere, aside
from tilewright.schedule.epilogue.values import Views
from tilewright.schedule.factors import Factor, matrix, pair_of, plain, run_along, without_repeats
from tilewright.schedule.form import Form, array, extent_of
from tilewright.schedule.operand_metadata import OperandMetadata, Spot
from tilewright.schedule.partition import Partition
from tilewright.schedule.rings import OperandSource, Pairs
from tilewright.schedule.scaled_sums import Columns, ScaleSource, beside_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.work import Work
from tilewright.symbolic.expr import equal, mod, prove

# ---------------------------------------------------------------- values computed again


def replay(node: Node, leaf: Callable[[Node], Any], made: dict[Node, Any] | None = None) -> Any:
    """Compute a value by the functions of the graph, each intermediate value once.

    Args:
        node: the value.
        leaf: returns values that are not functions of others: parts of arrays, sums, numbers of the launch.
        made: known values; the function adds to it.
    """
    made = {} if made is None else made
    node = plain(node)  # the same elements: rows and k identify them, not the order of axes
    if isinstance(node, Literal):
        return node.value
    if not isinstance(node, Map):
        return leaf(node)
    given = [plain(argument) for argument in node.given]
    for argument in given:
        if argument not in made:
            made[argument] = replay(argument, leaf, made)
    values = [made[argument] for argument in given]
    return elementwise(node.function, *values, dtype=node.dtype if node.function in ASKED else None)


MOST_STREAMED = 1 << 28
"""Largest matrix in bytes that leaves the second-level cache first if it is read once.

On an H200, products of few rows gain 2 to 4 us by this if the matrix has 32 to 117 MB, and lose as much if it
has 470 MB.
"""

PAIR_BYTES = (8, 16)
"""Bytes of a pair that one asynchronous copy moves: the wider sizes of ``cp.async``."""


def sources_of(
    form: Form, schedule: Schedule, arguments: dict[str, Any], partition: Partition
) -> tuple[OperandSource, ...]:
    """All operands, those along M first.

    Args:
        form: the form, as the schedule multiplies it.
        schedule: the schedule.
        arguments: the kernel's arguments, by name.
        partition: the tiles of a block.
    """
    rows, columns, _ = schedule.mma.tile
    sizes = {form.m: rows, form.n: columns}
    first = Work((0,) * len(form.batch), 0, 0, 0, 0, 0, 0)
    made, known = [], {guard.condition for guard in form.flow.requirements}
    for side, factor in [*((0, one) for one in form.rows_m), *((1, one) for one in form.rows_n)]:
        view = partial(_view, form, schedule, factor, arguments=arguments, partition=partition)
        beside = _beside(form, schedule, factor, arguments, partition, first)
        scales = None
        if factor.scale is not None:
            held: Columns | None = None
            if (part := beside_tiles(schedule, form, factor)) is not None:
                held = Columns(view(part), view(part)(first))
                with aside():
                    tile = held.sample.tile((schedule.tile[0], 1), (anywhere("row"), anywhere()))
                    held = None if against_row(tile) else held
            scales = ScaleSource(view(factor.scale.part), factor.scale, held)
        # If K is a whole number of groups of each side array, none of their elements is past the edge of K.
        runs = {run_along(part, factor.depth) for part in factor.beside} - {None}
        wholes = (equal(mod(factor.depth.extent, run), 0) for run in runs if run is not None)
        ends_with_groups = all(prove(whole) is True or whole in known for whole in wholes)
        made.append(
            OperandSource(
                factor,
                view(factor.part),
                factor.matrix(array(arguments, factor.part.operand), form.places(first)),
                side,
                sizes.get(factor.row, schedule.width),
                _decode(form, factor, arguments, partition, beside),
                is_cut=not factor.keeps_zero or not ends_with_groups,
                readers=0 if not schedule.by_bulk else _readers(form, arguments, partition, factor, side),
                scales=scales,
                beside=beside,
                pairs=_pairs(form, schedule, factor, arguments, partition),
                is_inner=factor.row not in sizes,
            )
        )
    return tuple(made)


def _pairs(
    form: Form, schedule: Schedule, factor: Factor, arguments: dict[str, Any], partition: Partition
) -> Pairs | None:
    """The array of pairs that contains an operand, if another operand has the other numbers."""
    in_order = schedule.k1 == (0, 0) and schedule.dealt == ((0, 0), (0, 0))
    if not schedule.copies_in_background or schedule.atom.asynchronous or not in_order:
        return None
    if not factor.is_plain or 2 * factor.dtype.bytes not in PAIR_BYTES or partition.cuts_arrays:
        return None
    if len({one.span for one in form.flow.sums}) > 1:  # loops share the memory of single numbers
        return None
    side = [one.part for one in (form.rows_m if factor.row == form.m else form.rows_n)]
    found = pair_of(factor.part)
    if found is None:
        return None
    whole, which = found
    first = side.index(factor.part) - which
    if [pair_of(part) for part in side[max(first, 0) : first + 2]] != [(whole, 0), (whole, 1)]:
        return None
    along, number = factor.part.at, Span("number", 2, TILE)
    wanted = [span for span in along if span in (factor.row, factor.depth)]

    def view(work: Work) -> Tensor:
        places = form.places(work, whole=(form.m, form.n))
        return matrix(array(arguments, whole), (*along, number), [*wanted, number], places)

    return Pairs(view, wanted[-1] == factor.row, which)


def _view(
    form: Form,
    schedule: Schedule,
    factor: Factor,
    part: ArrayPart,
    arguments: dict[str, Any],
    partition: Partition,
) -> Callable[[Work], Tensor]:
    """Return a function: a tile of the result -> an operand's array over (rows, K), rows or K."""
    wanted = [span for span in (factor.row, factor.depth) if span in part.at]
    along = "rows" if factor.row == form.m else "columns"
    # Threads load 0 for k after the tile's group; boxes of bulk copies may reach into the next group.
    beyond = (form.m, form.n, *(form.depths if schedule.by_bulk else ()))

    def view(work: Work) -> Tensor:
        whole = matrix(array(arguments, part.operand), part.at, wanted, form.places(work, beyond))
        is_cut = factor.row in part.at and factor.row in (form.m, form.n)
        return partition.part_of(whole, **{along: 0}) if is_cut else whole

    return view


def _beside(
    form: Form,
    schedule: Schedule,
    factor: Factor,
    arguments: dict[str, Any],
    partition: Partition,
    first: Work,
) -> OperandMetadata:
    """The side arrays of an operand."""

    def of(part: ArrayPart) -> Callable[[Work], Tensor]:
        return _view(form, schedule, factor, part, arguments, partition)

    in_groups = [part for part in factor.beside if (run_along(part, factor.depth) or 1) > 1]
    return OperandMetadata(
        factor,
        tuple((part, of(part)) for part in factor.beside),
        tuple((part, of(without_repeats(part))) for part in in_groups),
        first,
    )


def _decode(
    form: Form, factor: Factor, arguments: dict[str, Any], partition: Partition, beside: OperandMetadata
) -> Callable[[Fragment, Spot], Any] | None:
    """The function that decodes an operand; None if it is plain."""
    if factor.is_plain:
        return None

    dim = 0 if factor.row == form.m else 1

    def position(span: Span, held: Fragment, spot: Spot) -> Any:
        """The index of each row, or of each k, in the whole dimension; of a batch the index of its item."""
        rows, depth = held.shape
        if span == factor.depth:
            cut = spot.work.cuts[2]
            return coordinates(held, 1) + (spot.step * depth + (0 if cut is None else cut.start))
        if span != factor.row:
            at = spot.work.batch[form.batch.index(span)]
            return of_integer(at.expr, i32) if isinstance(at, Scalar) else at
        cut = spot.work.cuts[dim]
        begin = spot.row * rows + partition.begins[dim] + (0 if cut is None else cut.start)
        return coordinates(held, 0) + begin

    def decode(held: Fragment, spot: Spot) -> Any:
        def leaf(node: Node) -> Any:
            if isinstance(node, Position):
                return position(node.span, held, spot)
            return held if beside.is_held(node) else beside.elements(node, held, spot)

        return with_numbers(form, arguments, factor.view, leaf)

    return decode


def with_numbers(
    form: Form, arguments: dict[str, Any], node: Node, leaf: Callable[[Node], Any] = lambda node: None
) -> Any:
    """Compute a value by the functions of the graph from numbers of the launch and other leaves.

    Args:
        form: the form of the computation.
        arguments: the kernel's arguments, by name.
        node: the value.
        leaf: returns the leaves that are no numbers.
    """
    views = Views(form, arguments, Partition())

    def known(node: Node) -> Any:
        if isinstance(node, Integer):
            return views.number(node)
        return arguments[node.name] if isinstance(node, NumberParam) else leaf(node)

    return replay(node, known)


def _readers(form: Form, arguments: dict[str, Any], partition: Partition, factor: Factor, side: int) -> Index:
    """Number of blocks, or clusters, that load each element of a matrix: one for each tile of the other side.

    0 if this count does not hold, as with batches, groups and views.  Also 0 for a very large matrix: it
    mostly evicts its own elements from the second-level cache, and the cache's own policy is best.
    """
    operand = factor.part.operand
    problem = partition.problem
    if problem is None or operand.transforms or form.batch or form.flow.grouped is not None:
        return 0
    if factor.row not in (form.m, form.n):  # all tiles of the result read an operand of an inner product
        return 0
    rows, beside = (problem.n, partition.tiles_m) if side else (problem.m, partition.tiles_n)
    size = maximum(rows * extent_of(form, arguments, factor.depth), 1) * operand.dtype.bytes
    readers = derived(beside * minimum(MOST_STREAMED // size, 1))
    return readers  # noqa: RET504 the kernel's parameter is named after it
