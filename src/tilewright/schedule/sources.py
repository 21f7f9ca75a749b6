"""The operands of an explicit kernel: where their tiles lie, and how they are decoded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from tilewright.dataflow.nodes import TILE, ArrayPart, Integer, Literal, Map, Node, NumberParam, Operand, Span
from tilewright.functions.table import CONVERSION
from tilewright.lang.fragments import Fragment, elementwise
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Index, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.schedule.bulk_views import against_row, anywhere, aside
from tilewright.schedule.epilogue.values import Views
from tilewright.schedule.factors import Factor, matrix, plain, run_along, without_repeats
from tilewright.schedule.form import Form, array
from tilewright.schedule.lists import ListTiles
from tilewright.schedule.operand_metadata import OperandMetadata, Spot
from tilewright.schedule.partition import DataParallel, Persistent, Shares, Work
from tilewright.schedule.rings import OperandSource, Pairs
from tilewright.schedule.scaled_sums import Columns, ScaleSource, beside_tiles
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.expr import equal, mod, prove
from tilewright.views.transforms import Slice

# ---------------------------------------------------------------- values computed again


def replay(node: Node, leaf: Callable[[Node], Any], made: dict[Node, Any] | None = None) -> Any:
    """The value, by the functions that it is made of; each value that it is made of is computed once.

    Args:
        node: the value.
        leaf: gives what is no function of other values: parts of arrays, sums, numbers of the launch.
        made: the values that are computed already; grows.
    """
    made = {} if made is None else made
    node = plain(node)  # the same elements, which are known by their rows and k
    if isinstance(node, Literal):
        return node.value
    if not isinstance(node, Map):
        return leaf(node)
    given = [plain(argument) for argument in node.given]
    for argument in given:
        if argument not in made:
            made[argument] = replay(argument, leaf, made)
    values = [made[argument] for argument in given]
    return elementwise(node.function, *values, dtype=node.dtype if node.function in CONVERSION else None)


Tiles: TypeAlias = DataParallel | Persistent | ListTiles
"""A partition: the tiles that a block computes."""


MOST_STREAMED = 1 << 28
"""Bytes of a matrix that is read once and leaves the second-level cache first, at most.

On an H200 products of few rows gain 2 to 4 us by that if the matrix has 32 to 117 MB, and lose as much if it
has 470 MB.
"""

PAIR_BYTES = 16
"""Bytes of a pair that is copied as one: those that a copy in the background moves at most."""


def sources_of(
    form: Form, schedule: Schedule, arguments: dict[str, Any], partition: Tiles
) -> tuple[OperandSource, ...]:
    """All operands, those along M first.

    Args:
        form: what is computed, as the schedule multiplies it.
        schedule: how.
        arguments: the kernel's, by name.
        partition: which tiles a block computes.
    """
    rows, columns, _ = schedule.mma.tile
    first = Work((0,) * len(form.batch), 0, 0, 0, 0, 0, 0)
    made = []
    for side, factor in [*((0, one) for one in form.rows_m), *((1, one) for one in form.rows_n)]:
        view = partial(_view, form, factor, arguments=arguments, partition=partition)
        beside = _beside(form, factor, arguments, partition, first)
        made.append(
            OperandSource(
                factor,
                view(factor.part),
                factor.matrix(array(arguments, factor.part.operand), form.places(first)),
                side,
                columns if side else rows,
                _decode(form, factor, arguments, beside),
                is_cut=not factor.keeps_zero or not _ends_with_groups(form, factor),
                readers=0 if schedule.staging != "tma" else _readers(form, partition, factor, side),
                scales=_scales(form, schedule, factor, view, first),
                beside=beside,
                pairs=_pairs(form, schedule, factor, arguments, partition),
            )
        )
    return tuple(made)


def _scales(
    form: Form,
    schedule: Schedule,
    factor: Factor,
    view: Callable[[ArrayPart], Callable[[Work], Tensor]],
    first: Work,
) -> ScaleSource | None:
    """The scales of an operand."""
    if (scale := factor.scale) is None:
        return None
    if (part := beside_tiles(schedule, form, factor)) is not None:
        columns = Columns(view(part), view(part)(first))
        with aside():
            tile = columns.sample.tile((schedule.tile[0], 1), (anywhere("row"), anywhere()))
            reasons = against_row(tile)
        if not reasons:
            return ScaleSource(view(scale.part), scale, columns)
    return ScaleSource(view(scale.part), scale)


def _pairs(
    form: Form, schedule: Schedule, factor: Factor, arguments: dict[str, Any], partition: Tiles
) -> Pairs | None:
    """The array of pairs of 16 bytes that an operand is one number of, if the other is an operand too."""
    in_order = schedule.k1 == (0, 0) and schedule.dealt == ((0, 0), (0, 0))
    if not schedule.copies_in_background or schedule.atom.asynchronous or not in_order:
        return None
    if (
        not factor.is_plain
        or 2 * factor.dtype.bytes != PAIR_BYTES
        or isinstance(partition, Shares | ListTiles)
    ):
        return None
    side = [one.part for one in (form.rows_m if factor.row == form.m else form.rows_n)]
    found = _pair_of(factor.part)
    if found is None:
        return None
    whole, which = found
    first = side.index(factor.part) - which
    if [_pair_of(part) for part in side[max(first, 0) : first + 2]] != [(whole, 0), (whole, 1)]:
        return None
    along, number = factor.part.at, Span("number", 2, TILE)
    wanted = [span for span in along if span in (factor.row, factor.depth)]

    def view(work: Work) -> Tensor:
        places = form.places(work, whole=True)
        return matrix(array(arguments, whole), (*along, number), [*wanted, number], places)

    return Pairs(view, wanted[-1] == factor.row, which)


def _pair_of(part: ArrayPart) -> tuple[Operand, int] | None:
    """The array whose elements are pairs, and which number of each a part is; None if it is none."""
    last = part.operand.transforms[-1] if part.operand.transforms else None
    if not isinstance(last, Slice) or last.at[-1] not in (0, 1):
        return None
    both = Slice((*last.at[:-1], (0, 2)))
    whole = replace(part.operand, transforms=(*part.operand.transforms[:-1], both))
    return whole, 0 if last.at[-1] == 0 else 1


def _ends_with_groups(form: Form, factor: Factor) -> bool:
    """Whether K ends where groups along it do, so that nothing beside an operand is of what lies past it."""
    known = {guard.condition for guard in form.flow.requirements}
    runs = {run_along(part, factor.depth) for part in factor.beside} - {None}
    wholes = (equal(mod(factor.depth.extent, run), 0) for run in runs if run is not None)
    return all(prove(whole) is True or whole in known for whole in wholes)


def _view(
    form: Form, factor: Factor, part: ArrayPart, arguments: dict[str, Any], partition: Tiles
) -> Callable[[Work], Tensor]:
    """An array of an operand for a tile of the result: its rows and k, or those of both that it has."""
    wanted = [span for span in (factor.row, factor.depth) if span in part.at]
    along = "rows" if factor.row == form.m else "columns"

    def view(work: Work) -> Tensor:
        whole = matrix(array(arguments, part.operand), part.at, wanted, form.places(work, whole=True))
        if not isinstance(partition, Shares) or factor.row not in part.at:
            return whole
        return partition.of(whole, **{along: 0})

    return view


def _beside(
    form: Form, factor: Factor, arguments: dict[str, Any], partition: Tiles, first: Work
) -> OperandMetadata:
    """The arrays beside an operand."""

    def of(part: ArrayPart) -> Callable[[Work], Tensor]:
        return _view(form, factor, part, arguments, partition)

    in_groups = [part for part in factor.beside if (run_along(part, factor.depth) or 1) > 1]
    return OperandMetadata(
        factor,
        tuple((part, of(part)) for part in factor.beside),
        tuple((part, of(without_repeats(part))) for part in in_groups),
        first,
    )


def _decode(
    form: Form, factor: Factor, arguments: dict[str, Any], beside: OperandMetadata
) -> Callable[[Fragment, Spot], Any] | None:
    """The function that decodes an operand; None if its elements are multiplied as they are."""
    if factor.is_plain:
        return None

    views = Views(form, arguments)

    def decode(held: Fragment, spot: Spot) -> Any:
        def leaf(node: Node) -> Any:
            if isinstance(node, Integer):
                return views.number(node)
            if isinstance(node, NumberParam):
                return arguments[node.name]
            return held if beside.is_held(node) else beside.elements(node, held, spot)

        return replay(factor.view, leaf)

    return decode


def _readers(form: Form, partition: Tiles, factor: Factor, side: int) -> Index:
    """How many blocks, or clusters, load each element of a matrix: one for each tile of the result beside it.

    0 where that is another number, of batches, groups and views; and of a matrix that is so large that most
    of it pushes only its own elements out of the second-level cache, which then does best by itself.
    """
    operand = factor.part.operand
    if isinstance(partition, ListTiles) or operand.transforms or form.batch or form.flow.grouped is not None:
        return 0
    problem = partition.problem
    rows, beside = (problem.n, partition.tiles_m) if side else (problem.m, partition.tiles_n)
    size = maximum(rows * problem.k, 1) * operand.dtype.bytes
    readers = derived(beside * minimum(MOST_STREAMED // size, 1))
    return readers  # noqa: RET504 the kernel's parameter is named after it
