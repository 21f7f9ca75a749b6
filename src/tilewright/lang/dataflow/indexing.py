"""Arrays indexed with spans: loads, stores, and positions of elements."""

from __future__ import annotations

from dataclasses import replace
from math import gcd
from typing import Any, NamedTuple

from tilewright.dataflow.legality import carried_rows, fits, index_misfit, misfit
from tilewright.dataflow.nodes import (
    BATCH,
    STEPS,
    TILE,
    ArrayPart,
    Arrival,
    Axis,
    Departure,
    Node,
    Operand,
    Position,
    Rearrange,
    Rows,
    Span,
    Store,
    numbering,
    walk,
)
from tilewright.dtypes import i32
from tilewright.errors import TraceError, shown
from tilewright.ir.copies import REDUCTIONS
from tilewright.ir.ops import Gather, Reshape
from tilewright.ir.types import Memory
from tilewright.lang.dataflow.recorder import Recorder
from tilewright.lang.dataflow.rows import is_whole
from tilewright.lang.dataflow.tiles import BY_DISTANCE, SpanIndex, Tile, spelled, tile_name
from tilewright.lang.launch import require
from tilewright.lang.scalars import Index, Scalar, unwrap
from tilewright.lang.source import here, result_names
from tilewright.lang.tensors import Tensor
from tilewright.lang.tracer import current, verb
from tilewright.symbolic.expr import add, ceil_div, less_equal, mul, prove
from tilewright.symbolic.rebuilding import symbols
from tilewright.views.transforms import Embed, Merge, Permute, Repeat, Slice, Unmerge

EXPLICIT = "an explicit kernel, with tw.block_index, tw.load and tw.copy"


class IndexedPlace(NamedTuple):
    """A position in an array."""

    operand: Operand
    at: tuple[Span, ...]
    axes: tuple[Axis, ...]


def part(flow: Recorder, tensor: Tensor, index: tuple[Any, ...]) -> Tile:
    """Record the load ``tensor[index]``; None in the index adds an axis."""
    operand, at, axes = _place(flow, tensor, index)
    _check_unstored(flow, operand)
    own = tuple(axis for axis in axes if axis is not None)
    node = flow.make(ArrayPart, operand.dtype, own, operand, at)
    if len(own) < len(axes):
        node = flow.make(Rearrange, operand.dtype, axes, node)
    return Tile(flow, node, {one.home for one in index if isinstance(one, SpanIndex)})


def _check_unstored(flow: Recorder, operand: Operand) -> None:
    """Refuse to read an array after it is stored."""
    for store in (*flow.stores, *(one for loop in flow.loops for one in loop.stores)):
        if store.operand.name == operand.name:
            raise TraceError(
                f"{operand.name} is stored before it is read here",
                here(),
                "keep the stored value in a variable",
            )


def taken(flow: Recorder, table: Tensor, codes: Tile) -> Tile:
    """Record ``table[codes]``, a lookup in a one-dimensional array, as rows that integers in memory choose.

    Raises:
        TraceError: the table has more dimensions, or the codes are no elements of a whole array of integers.
    """
    node = codes.node
    if isinstance(node, Rearrange):
        inner = taken(flow, table, Tile(flow, node.argument, codes.needs)).node
        return Tile(flow, flow.make(Rearrange, inner.dtype, node.axes, inner), codes.needs)
    source, what = operand_of(flow, table), f"take from {table.value}, a table in memory"
    if len(source.shape) != 1:
        raise TraceError(what, here(), "an array of one dimension")
    wrong = "computed codes" if not isinstance(node, ArrayPart) else index_misfit(node.operand)
    names = [source.name, *(one.name for one in source.indices)]
    if not wrong and isinstance(node, ArrayPart) and node.operand.name in names:
        wrong = f"{node.operand.name} has the codes, and is the table"
    if wrong:
        raise TraceError(
            f"{what}: {wrong}",
            here(),
            "codes that are elements of a whole array of integers of 8 bits or more, codes[m, n], or "
            f"numbers as the table, (0.0, 0.5, 1.0); {BY_DISTANCE}",
        )
    assert isinstance(node, ArrayPart), "other codes are refused"
    _check_unstored(flow, source)
    rows = Rows(0, node.operand, padded=True)
    operand = replace(source, shape=node.operand.shape, transforms=(*source.transforms, rows))
    return Tile(flow, flow.make(ArrayPart, operand.dtype, node.axes, operand, node.at), codes.needs)


def store(flow: Recorder, tensor: Tensor, index: tuple[Any, ...], value: Any) -> None:
    """``tensor[index] = value``."""
    operand, at, axes = _place(flow, tensor, index)
    held = flow.known(value)
    carried = set[Span]() if held is None else carried_rows(held)
    whole = {span: flow.rows.tile(span) for span in at if span in flow.rows.spans and span not in carried}
    flow.tiles += tuple(span for span in whole.values() if span not in flow.tiles)
    at = tuple(whole.get(one, one) for one in at)
    axes = tuple(None if one is None else whole.get(one, one) for one in axes)
    part, more = (value.added if isinstance(value, Tile) else None) or (None, None)
    is_added = isinstance(part, ArrayPart) and (part.operand, part.at) == (operand, at)
    if is_added and operand.dtype.name not in REDUCTIONS["add"]:
        kinds = ", ".join(REDUCTIONS["add"])
        raise TraceError(
            f"{operand.name}, an array of {operand.dtype}, is added to, which blocks do atomically",
            here(),
            f"an array of {kinds}",
        )
    value = more if is_added else value
    node = flow.known(value)
    if node is None:
        node = flow.plain(value, operand.dtype)
    if is_added and node.dtype.is_float and not operand.dtype.is_float:
        raise TraceError(
            f"{operand.name}, an array of {operand.dtype}, is added to, and the value is {node.dtype}: each "
            "part of a sum would lose its fraction",
            here(),
            f"an array of {node.dtype}, or a value converted by .to(tw.{operand.dtype})",
        )
    node = flow.rows.fitted(node, axes)
    name, places = operand.name, ", ".join(span.name for span in at)
    along = [span for span in at if span.kind == STEPS and span not in carried]
    loop = flow.loops[0] if len(flow.loops) == 1 else None
    is_of_step = loop is not None and [span.of or span for span in along] == [loop.span]
    if (flow.loops or along) and not is_of_step:
        text = f"{name} is stored inside of a loop over tw.steps, where sums are incomplete"
        near = "store after the loop, or the rows of a step: i = tw.alias(n), and O[i, e] = ..."
        raise TraceError(text, here(), near)
    if loop is not None and loop.turns:
        text = f"{name} is stored in each step of a loop with turns"
        raise TraceError(text, here(), "a loop over one dimension, tw.steps(N)")
    if loop is not None and not {*along} <= {*node.axes}:
        text = f"{name}[{places}] in a step is the same for all rows {along[0].name}"
        raise TraceError(text, here(), f"a value that varies along {along[0].name}")
    if None in axes:
        raise TraceError(f"{name} is stored along a new axis", here(), "only spans")
    # Each element needs one value, from one block.
    cut = numbering(at)
    missing = [s.name for s in flow.tiles if s.kind == BATCH and s not in at and s != cut]
    if missing:
        raise TraceError(
            f"{name} is stored along {places}, so all tiles along {', '.join(missing)} would write the same "
            "elements",
            here(),
            f"{name}[{', '.join([*missing, *(s.name for s in at)])}]",
        )
    overlapping = [
        earlier.at
        for earlier in (*flow.stores, *(loop.stores if loop is not None else ()))
        if earlier.operand.name == name and not _apart(earlier.operand, operand)
    ]
    if overlapping and overlapping != [mirrored_at(flow, operand, at)]:
        text, near = f"{name} is stored twice", "one store of the last value"
        if operand.transforms:
            text, near = (
                f"{text}, by views that may share elements",
                f"views without common elements, or {near}",
            )
        raise TraceError(text, here(), near)
    if not fits(node.axes, axes):
        raise TraceError(
            f"{name}[{places}] = a tile along {spelled(node)}: the tile has axes that the store does not "
            "have",
            here(),
            "the same axes, a reduction over the others, or None for a broadcast axis",
        )
    into = flow.stores if loop is None else loop.stores
    into.append(Store(operand, at, node, is_added, location=here()))


def mirrored_at(flow: Recorder, operand: Operand, at: tuple[Span, ...]) -> tuple[Span, ...] | None:
    """Return a store's spans with rows and columns exchanged; None unless the array is whole and square."""
    inner = [span for span in flow.tiles if span.kind == TILE]
    if (
        len(inner) != 2
        or operand.transforms
        or any(span.groups for span in flow.tiles)
        or not {*inner} <= {*at}
    ):
        return None
    if not flow.tracer.are_equal(inner[0].extent, inner[1].extent):
        return None
    other = dict(zip(inner, reversed(inner), strict=True))
    return tuple(other.get(span, span) for span in at)


def _apart(one: Operand, other: Operand) -> bool:
    """Return whether two views of an array have no element in common.

    Slices of the same view have an integer index that differs, or boxes that do not overlap, or slices of a
    dimension have steps that never meet.
    """
    steps = zip(_steps(one), _steps(other), strict=False)
    if any(a and b and (a[1] - b[1]) % gcd(a[0], b[0]) for a, b in steps):
        return True
    for first, second in zip(one.transforms, other.transforms, strict=False):
        match first, second:
            case Slice(at=mine), Slice(at=yours) if first != second:
                return any(_beyond(a, b) or _beyond(b, a) for a, b in zip(mine, yours, strict=True))
            case Slice() | Merge() | Unmerge() | Permute(), _ if first == second:
                continue  # each element of these views is another element of the array
        break
    return False


def _beyond(part: Any, other: Any) -> bool:
    """Return whether one part of a slice is known to begin where another ends, or after that."""
    first = part[0] if isinstance(part, tuple) else part
    last = other[1] if isinstance(other, tuple) else other if other is None else add(other, 1)
    return first is not None and last is not None and prove(less_equal(last, first)) is True


def _steps(operand: Operand) -> list[tuple[int, int] | None]:
    """Return the (step, first element) of a view along each dimension; None or a missing entry if unknown."""
    found: list[tuple[int, int] | None] = [(1, 0)] * len(operand.shape)
    for transform in operand.transforms:
        match transform:
            case Slice(at=at) if all(isinstance(part, tuple) for part in at):
                moved = [(dim, 1, part[0]) for dim, part in enumerate(at) if isinstance(part, tuple)]
            case Embed(dim=dim, strides=(int(step),), offset=offset):
                moved = [(dim, step, mul(-1, offset))]
            case _:
                return []
        for dim, step, first in moved:
            if (before := found[dim]) is not None:
                found[dim] = None
                if isinstance(first, int) and first >= 0:
                    found[dim] = before[0] * step, before[1] + before[0] * first
    return found


def _place(flow: Recorder, tensor: Tensor, index: tuple[Any, ...]) -> IndexedPlace:
    """Return the array, the spans of its dimensions, and the axes of the part."""
    if any(isinstance(one, slice) and not is_whole(one) for one in index):  # whole rows of a view
        cut = (one if isinstance(one, slice) or one is Ellipsis else slice(None) for one in index)
        tensor = tensor[tuple(part for part, one in zip(cut, index, strict=True) if one is not None)]
        index = tuple(slice(None) if isinstance(one, slice) else one for one in index)
    index = flow.rows.completed(tensor, index)
    for one in index:
        _check_index(tensor, one)
    given = [one for one in index if one is not None]
    rank = len(tensor.shape)
    if len(given) != rank:
        raise TraceError(
            f"{tensor.value} has {rank} dimensions and {len(given)} indices", here(), "one span for each"
        )
    if any(not isinstance(one, SpanIndex | Tile) for one in given):
        tensor = tensor[tuple(slice(None) if isinstance(one, SpanIndex | Tile) else one for one in given)]
        index = tuple(one for one in index if one is None or isinstance(one, SpanIndex | Tile))
    dims = [one for one in index if one is not None]
    rows = {dim: _integers(tensor, one) for dim, one in enumerate(dims) if isinstance(one, Tile)}
    places = list[Any]()  # a tile of integers stands for the span along which it varies
    for one in index:
        if isinstance(one, Tile):
            assert isinstance(one.node, ArrayPart), "other tiles are refused"
            [home], [span] = one.needs, one.node.at
            one = SpanIndex(span, home)
        places.append(one)
    index = tuple(places)
    # Repeat elements along dimensions with a shared index, as in ``scale[m, k // 128]``.
    for dim, one in enumerate(one for one in index if one is not None):
        if one.shared == 1:
            continue
        extent, wanted = tensor.value.tensor.shape[dim], ceil_div(one.span.extent, one.shared)
        if not flow.tracer.are_equal(wanted, extent):
            said = f"{tensor.value.name}.shape[{dim}] == tw.ceil_div({one.span.extent}, {one.shared})"
            raise TraceError(
                f"{one} runs over {wanted}, and dimension {dim} of {tensor.value} has {extent}",
                here(),
                f"tw.require({said}, ...) before the loop",
            )
        tensor = tensor._view(Repeat(dim, one.shared, one.span.extent), "view")
    spans = [one.span for one in index if one is not None]
    shape = tensor.value.tensor.shape
    extents = [rows[dim].shape[0] if dim in rows else extent for dim, extent in enumerate(shape)]
    for dim, (span, extent) in enumerate(zip(spans, extents, strict=True)):
        if dim in rows:
            continue
        if not flow.tracer.are_equal(span.extent, extent):
            raise TraceError(
                f"{span.name} runs over {span.extent}, and dimension {dim} of {tensor.value} has {extent}",
                here(),
                f"a span over {extent}, one name for both dimensions in @tw.kernel, or "
                f"tw.require({span.extent} == {extent}, ...) before the loop, with sizes taken from .shape",
            )
    if len(set(spans)) < len(spans):
        raise TraceError(f"{tensor.value} is indexed twice with one span", here(), EXPLICIT)
    axes = tuple(None if one is None else one.span for one in index if one is None or one.span.kind != BATCH)
    operand = operand_of(flow, tensor)
    # Views that repeat elements stay last; they repeat along other dimensions.
    count = sum(isinstance(one, Repeat) for one in operand.transforms)
    before, repeats = operand.transforms[: len(operand.transforms) - count], operand.transforms[-count:]
    chosen = tuple(Rows(dim, integers) for dim, integers in rows.items())
    made = (*before, *chosen, *(repeats if count else ()))
    operand = replace(operand, shape=tuple(extents), transforms=made)
    names = [one.name for one in operand.indices]
    if len({operand.name, *names}) <= len(names):
        raise TraceError(
            f"rows of {tensor.value} are chosen by {' and '.join(names)}",
            here(),
            "another array of integers for each dimension",
        )
    return IndexedPlace(operand, tuple(spans), axes)


def _integers(tensor: Tensor, tile: Tile) -> Operand:
    """Return the integer array that a tile used as an index was loaded from."""
    node = tile.node
    if not isinstance(node, ArrayPart):
        raise TraceError(
            f"{tensor.value} is indexed with a computed tile; integers that choose rows lie in memory",
            here(),
            "an array of the computed integers, A[rows[m], k]",
        )
    wrong = index_misfit(node.operand)
    if len(node.operand.shape) != 1:
        wrong = f"rows are chosen by {node.operand.name}, of rank {len(node.operand.shape)}"
    if wrong:
        raise TraceError(
            f"{tensor.value}: {wrong}",
            here(),
            "a whole array of i32 or i64 with one dimension, A[rows[m], k]",
        )
    return node.operand


def _check_index(tensor: Tensor, one: Any) -> None:
    if isinstance(one, SpanIndex):
        one.check()
    elif isinstance(one, Tensor):
        raise TraceError(
            f"{tensor.value} is indexed with a whole array, {one.value}",
            here(),
            f"its integers along a span, such as {tensor.value}[{one.value}[m], ...]",
        )
    elif (
        one is not None
        and not isinstance(one, Tile)
        and (isinstance(one, bool) or not isinstance(one, int | Scalar))
    ):
        raise TraceError(
            f"{tensor.value} is indexed with {shown(one)}",
            here(),
            "spans of tw.tiles and tw.steps, integers, and None for a new axis",
        )


def operand_of(flow: Recorder, tensor: Tensor) -> Operand:
    """Return the array of a tensor, with the transforms of its view."""
    transforms: list[Any] = []
    value = tensor.value
    while isinstance(made := flow.tracer.builder.defining(value), Reshape | Gather):
        if isinstance(made, Reshape):
            transforms.insert(0, made.transform)
            if isinstance(made.transform, Slice):
                needed = made.transform.requirements(made.source.tensor.shape, str(made.source))
                known = flow.tracer.guards
                known += [g for g in needed if symbols(g.condition) <= flow.tracer.sizes and g not in known]
        else:
            index = operand_of(flow, Tensor(made.index))
            if wrong := index_misfit(index):
                raise TraceError(f"{tensor.value}: {wrong}", here(), "a whole array")
            transforms.insert(0, Rows(made.dim, index, made.padded))
        value = made.source
    if made is not None or value.tensor.memory is not Memory.GLOBAL:
        raise TraceError(
            f"{tensor.value} is neither an array of the kernel nor a view of one", here(), EXPLICIT
        )
    return Operand(value.name, value.dtype, tensor.value.tensor.shape, tuple(transforms))


def check_in_place(flow: Recorder) -> None:
    """Require that elements of a stored array are read only at the same index as the store.

    Raises:
        TraceError: another block may already have stored the elements.
    """
    stores = {store.operand.name: store for store in flow.stores}
    twice = {name for name in stores if sum(store.operand.name == name for store in flow.stores) > 1}
    values = [node for store in flow.stores for node in walk(store.value) if isinstance(node, ArrayPart)]
    places: list[ArrayPart | Store] = [*values, *flow.stores]
    for place in places:
        for index in place.operand.indices:
            if index.name in stores:
                raise TraceError(
                    f"{index.name} is stored, and chooses rows of {place.operand.name}",
                    place.location,
                    f"store to another array than {index.name}",
                )
    seen: set[int] = set()
    for node in (node for store in flow.stores for node in walk(store.value, seen)):
        if not isinstance(node, ArrayPart) or node.operand.name not in stores:
            continue
        store = stores[node.operand.name]
        if store.added:
            raise TraceError(
                f"{_spelled(store)} += a value that {_spelled(node)} enters: the order of the tiles would "
                "decide what it holds",
                node.location,
                "read another array",
            )
        if store.operand.name in twice or (node.operand, node.at) != (store.operand, store.at):
            at, read, name = _spelled(store), _spelled(node), store.operand.name
            near = "pass each view of the array as its own argument" if at == read else f"read {at}"
            if any(span in flow.rows.spans for span in node.at):
                near = f"index {name} with a span of tw.tiles({name}) for each dimension"
            raise TraceError(
                f"{read} is read and {at} is stored: the order of the tiles would decide which elements are "
                "stored before they are read",
                node.location,
                f"{near}, or store to another array",
            )
        known = {*store.at, numbering(store.at)}
        if missing := [span.name for span in flow.tiles if span not in known]:
            at = _spelled(store)
            raise TraceError(
                f"{at} is read and stored, and the tiles along {' and '.join(missing)} read the same "
                "elements: the order of the tiles would decide which of them read the stored values",
                node.location,
                "store to another array",
            )


def _spelled(place: ArrayPart | Store) -> str:
    """Return the place of a load or a store as an author writes it."""
    chosen = {one.dim: one.index.name for one in place.operand.transforms if isinstance(one, Rows)}
    names = (
        f"{chosen[dim]}[{span.name}]" if dim in chosen else span.name for dim, span in enumerate(place.at)
    )
    return f"{place.operand.name}[{', '.join(names)}]"


def new_axes(tile: Tile, node: Node, index: tuple[Any, ...]) -> tuple[Axis, ...]:
    """Return the axes of ``tile[:, None]``.

    Raises:
        TraceError: the index has anything but whole axes and new axes.
    """
    left = list(node.axes)
    made: list[Axis] = []
    for one in index:
        if one is None:
            made.append(None)
        elif isinstance(one, slice) and one == slice(None) and left:
            made.append(left.pop(0))
        else:
            raise TraceError(
                f"{tile_name(tile)} is indexed with {shown(one)}: a tile cannot be sliced",
                here(),
                "`:` for each axis and None for a new one, e.g. x[:, None]",
            )
    return (*made, *left)


# ---------------------------------------------------------------- positions of elements


@verb
def positions(span: Any, axis: int = -1) -> Tile:
    """``y[i] = i``: for each element of a span, its index in the whole dimension, in i32.

    Values computed from it depend on the position of an element, and not on the shape of tiles.

    Args:
        span: a variable of the loop over `tiles`, or over `steps`.  Along groups of rows it counts from the
            first row of the array, not from that of the group.  For a whole row, which has no variable, a
            tile instead.
        axis: the axis of a tile; a negative number counts from the last.

    Raises:
        TraceError: the argument is no span, or the tile has no such axis.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N")
        ... def lower(A, B, C):
        ...     for m, n in tw.tiles(C):
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = tw.where(tw.positions(n) <= tw.positions(m)[:, None], acc, 0)
        >>> a, c = np.ones((3, 2), np.float32), np.empty((3, 3), np.float32)
        >>> lower(a, a.T, c, target="reference").target, c.tolist()
        ('reference', [[2.0, 0.0, 0.0], [2.0, 2.0, 0.0], [2.0, 2.0, 2.0]])
    """
    flow: Any = current().flow
    if isinstance(span, Tile):
        axes = span.node.axes
        along = axes[axis] if -len(axes) <= axis < len(axes) else None
        if along is None:
            raise TraceError(
                f"positions of axis {axis} of {tile_name(span)}, which has the axes {spelled(span.node)}",
                here(),
                "an axis with a span",
            )
        return Tile(flow, flow.make(Position, i32, (along,), along), span.needs)
    if not isinstance(span, SpanIndex) or flow is None or span.shared != 1:
        raise TraceError(f"positions of {shown(span)}", here(), "m, or n, of `for m, n in tw.tiles(C)`")
    span.check()
    own = () if span.span.kind == BATCH else (span.span,)
    return Tile(flow, flow.make(Position, i32, own, span.span), {span.home})


@verb
def arrives(array: Tensor, counters: Tensor, value: Index, *, first: Index = 0) -> None:
    """Declare that shards of an array arrive while the kernel runs: each tile waits for the shards it loads.

    ``array`` consists of ``R = counters.shape[0]`` shards: equal runs of ``ceil(array.shape[0] / R)`` indices
    of its first dimension, the last ones shorter or empty.  Shard ``r`` is there once ``counters[r]`` is
    ``value`` or more.  A tile whose rows lie in several shards waits for each of them.  The waits have the
    scope of the system.  The tiles of shard ``first`` are computed first, then those of the shards that
    follow it, in a circle.

    Args:
        array: an operand of a product, or an array that is read after the loop, such as a part of a sum; a
            variable of `tiles` indexes its first dimension.
        counters: an array of u32 that only counts up, with a counter for each shard.
        value: the value to wait for: 1 or more, and a larger one in each call.
        first: the shard that is there already, for instance the number of the rank.

    Raises:
        TraceError: the call is outside of a loop over `tiles`, the array or the counters are views or have
            other dtypes or dimensions, the array is not read in the way described above, or the value is a
            constant that no counter has: less than 1, or more than 2^32 - 1.
        LaunchError: the value is less than 1 or more than 2^32 - 1, or there are no counters.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="M K", B="K N", C="M N", READY="R", rank=int, epoch=int)
        ... def all_gather_matmul(A, B, C, READY, rank, epoch):
        ...     for m, n in tw.tiles(C):
        ...         tw.arrives(A, READY, epoch, first=rank)
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[1]):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        >>> shards = np.ones((2, 3, 4), np.float32)
        >>> a, ready = np.zeros((6, 4), np.float32), np.zeros(2, np.uint32)
        >>> b, c = np.ones((4, 5), np.float32), np.zeros((6, 5), np.float32)
        >>> a[:3] = shards[0]  # the shard of rank 0; a copy engine brings that of rank 1
        >>> report = tw.testing.ranks([
        ...     [tw.testing.post(ready[:1], 1), tw.testing.launch(all_gather_matmul, a, b, c, ready, 0, 1)],
        ...     [tw.testing.send(shards[1], a[3:], ready[1:], 1)],
        ... ])
        >>> report.is_clean, bool((c == 4).all())
        (True, True)
    """
    flow = _flow_of("tw.arrives", "tw.await_")
    bounds = unwrap(value), unwrap(first)
    made = Arrival(operand_of(flow, array), operand_of(flow, counters), *bounds, location=here())
    if made.operand in [one.operand for one in flow.arrivals]:
        name = made.operand.name
        raise TraceError(f"{name} arrives twice", here(), "one call of tw.arrives")
    flow.arrivals.append(_fit("tw.arrives", made))
    what = f"tw.arrives({made.operand.name}, {made.counters.name}, ...)"
    if isinstance(made.value, int) and not 1 <= made.value < 1 << 32:
        raise TraceError(
            f"{what} waits for {made.value}; counters of shards are u32 that begin with 0 and count up",
            here(),
            min(max(made.value, 1), (1 << 32) - 1),
        )
    require(value >= 1, f"{what}: the value to wait for must be 1 or more, because counters begin with 0")
    require(value < 1 << 32, f"{what}: the value to wait for must be less than 2^32: counters are u32")
    require(counters.shape[0] >= 1, f"{what}: {made.counters.name} must have 1 or more counters")


@verb
def leaves(array: Tensor, counters: Tensor, *, first: Index = 0) -> None:
    """``counters[p] += 1`` once all tiles of ``array[p]`` are stored, for other ranks that wait for it.

    ``array`` lies in the memory of other ranks: ``array[p]`` in that of rank ``p``, and ``counters[p]`` too.
    Both may have any strides.  The increment is a release of the scope of the system, so a rank that has
    waited for the counter sees all elements.  The tiles of shard ``first`` are computed first, then those of
    the shards that follow it, in a circle.

    Args:
        array: the stored array; its first dimension is a batch of `tiles`.
        counters: an array of u32 with a counter for each index of that dimension.
        first: the shard whose tiles come first, for instance that of the next rank: ``rank + 1``.

    Raises:
        TraceError: the call is outside of a loop over `tiles` or the second one, the array or the counters
            are views or have other dtypes or dimensions, there are more or fewer counters than shards, or the
            array is not stored as described above.
        LaunchError: the shards have no elements.  No tile would count them.

    Example:
        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(A="P S K", B="K N", PARTS="P S N", SENT="P", rank=int)
        ... def matmul_scatter(A, B, PARTS, SENT, rank):
        ...     for p, m, n in tw.tiles(PARTS):
        ...         tw.leaves(PARTS, SENT, first=rank + 1)
        ...         acc = tw.zeros()
        ...         for k in tw.steps(A.shape[2]):
        ...             acc += A[p, m, k] @ B[k, n]
        ...         PARTS[p, m, n] = acc
        >>> a, b = np.ones((2, 3, 4), np.float32), np.ones((4, 5), np.float32)
        >>> parts, sent = np.zeros((2, 2, 3, 5), np.float32), np.zeros((2, 2), np.uint32)
        >>> _ = matmul_scatter(a, b, parts[:, 1], sent[:, 1], 1, target="reference")  # as rank 1
        >>> sent.tolist(), bool((parts[:, 1] == 4).all())
        ([[0, 1], [0, 1]], True)
    """
    flow = _flow_of("tw.leaves", "tw.signal")
    if flow.departure is not None:
        name = flow.departure.operand.name
        raise TraceError(f"{name} leaves already", here(), "one call of tw.leaves")
    arrays = operand_of(flow, array), operand_of(flow, counters)
    made = flow.departure = _fit("tw.leaves", Departure(*arrays, unwrap(first), location=here()))
    shards, (count,) = made.operand.shape[0], made.counters.shape
    if not flow.tracer.are_equal(shards, count):
        raise TraceError(
            f"{made.operand.name} has {shards} shards, and {made.counters.name} has {count} counters",
            here(),
            "one name for both dimensions in @tw.kernel, or tw.require that they are equal",
        )
    for dim in range(1, len(made.operand.shape)):
        text = "must be 1 or more: no tile counts a shard without elements; nearest legal choice: tw.signal"
        require(array.shape[dim] >= 1, f"tw.leaves: {made.operand.name}.shape[{dim}] {text}")


def _flow_of(call: str, explicit: str) -> Any:
    """Return the recorder of the loop over tiles that is open."""
    flow: Any = current().flow
    if flow is None or not flow.home.is_open:
        near = f"its first line, or {explicit} in an explicit kernel"
        raise TraceError(f"{call} belongs in a loop over tiles", here(), near)
    return flow


def _fit(call: str, made: Any) -> Any:
    """Return the arrival or departure of an array's shards; raise an error if it is invalid."""
    if wrong := misfit(made):
        near = "whole arrays, as in READY='R' of dtype u32"
        raise TraceError(f"{call}: {wrong}", here(), near)
    return made


@verb
def alias(span: Any) -> SpanIndex:
    """``i = tw.alias(n)``: a second span over a step, so that a tile has its elements as rows and as columns.

    In a loop over ``n``, ``Q[i] @ K[n].T`` has a score for each pair of elements of the step.  A step may
    compute results from the state and store them as rows, ``O[i, e] = ...``.  The results must not depend on
    the length of a step.  After the loop you can store the state, ``last[:, e] = total``.

    Args:
        span: the variable of the loop over `steps`.

    Raises:
        TraceError: the argument is another span.

    Example:
        Sums of all elements so far:

        >>> import numpy as np
        >>> import tilewright as tw
        >>> @tw.kernel(X="N E", Y="N E", one="N D")
        ... def cumulative(X, Y, one):
        ...     for e in tw.tiles(X.shape[1]):
        ...         total = tw.zeros((one.shape[1], e), tw.f32)
        ...         for n in tw.steps(X.shape[0]):
        ...             i = tw.alias(n)
        ...             before = tw.where(tw.positions(n) <= tw.positions(i)[:, None], one[i] @ one[n].T, 0)
        ...             Y[i, e] = before @ X[n, e] + one[i] @ total
        ...             total.assign(total + one[n].T @ X[n, e])
        >>> x, y, one = (np.ones(shape, np.float32) for shape in ((90, 8), (90, 8), (90, 1)))
        >>> cumulative(x, y, one, target="reference").target, y[:, 0].tolist() == [*range(1, 91)]
        ('reference', True)
    """
    flow: Any = current().flow
    is_step = isinstance(span, SpanIndex) and flow is not None and span.shared == 1
    if not is_step or not any(loop.span == span.span for loop in flow.loops):
        raise TraceError(
            f"alias of {shown(span)}", here(), "n, of `for n in tw.steps(N)`, inside of the loop"
        )
    names = result_names()[0]
    name = flow.tracer.name(names[0] if len(names) == 1 else f"{span.span.name}_rows")
    return SpanIndex(Span(name, span.span.extent, STEPS, None, span.span), span.home)
