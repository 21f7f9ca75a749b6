"""Footprints: elements of a buffer that the lanes of a warp touch, and related properties of views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import LARGEST_ACCESS_BYTES, widest_vector
from tilewright.ir.ops import Copy, Gather, Op, PartitionOp, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.passes.memory_instructions import may_be_by_matrices
from tilewright.symbolic.nodes import Cond, Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.threads.banks import ABSENT, SECTOR_BYTES, bank_passes, lanes_together, served_together
from tilewright.threads.distribution import Distribution
from tilewright.views.questions import DimensionRange, unproven_spans
from tilewright.views.transforms import Embed, Pad, PadTo, Slice, Swizzle, Tile, Transform
from tilewright.views.view import View

ROW_BYTES = 128
"""Bytes after which the banks of shared memory repeat."""

MOST_KEPT = 512
"""Most cached footprints in global memory.  Later blocks read the same tiles of an operand again."""

Found = TypeVar("Found")


def lanes_of(which: Array) -> Array:
    """Return the lane of each true entry of an array of shape (lanes, values)."""
    return np.nonzero(which)[0].astype(np.int16)


@dataclass(eq=False)
class WarpFootprint:
    """The elements that a warp touches.

    Args:
        offsets: element offsets; shape (lanes, values).
        valid: which of them exist in the view; shape (lanes, values).
        coordinates: the tile coordinate of each; shape (lanes, values, rank).
    """

    offsets: Array
    valid: Array
    coordinates: Array
    alike: dict[tuple[Any, ...], Any] = field(default_factory=dict)
    """A cache of properties, because many footprints differ only in their first element."""

    @cached_property
    def is_whole(self) -> bool:
        """Whether all elements exist."""
        return bool(self.valid.all())

    @cached_property
    def absent(self) -> Array | None:
        """The elements that do not exist; None if all do."""
        return None if self.is_whole else ~self.valid

    @cached_property
    def accessed(self) -> tuple[Array, Array]:
        """The offsets of existing elements, and the lane of each."""
        if not self.is_whole:
            return self.offsets[self.valid], lanes_of(self.valid)
        lanes, values = self.offsets.shape
        return self.offsets.ravel(), np.repeat(np.arange(lanes, dtype=np.int16), values)

    def elements(self, which: Array) -> tuple[Array, Array]:
        """Return offsets and lanes of some accesses, chosen by truth values of shape (lanes, values)."""
        return self.accessed if which is self.valid else (self.offsets[which], lanes_of(which))

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest offset of existing elements; (0, -1) without elements."""
        at = self.accessed[0]
        return (int(at.min()), int(at.max())) if len(at) else (0, -1)

    def defects(self, vector: int, address: int, dtype: DType) -> list[tuple[str, Array]]:
        """Return defects of accesses of ``vector`` elements: reasons, and the (lane, value) they concern."""
        if vector == 1:
            return []
        size, width = dtype.bytes, vector * dtype.bytes

        def find(address: int) -> list[tuple[str, Array]]:
            lanes, values = self.offsets.shape
            groups = self.offsets.reshape(lanes, values // vector, vector)
            valid = self.valid.reshape(groups.shape)
            some, every = valid.any(axis=-1), valid.all(axis=-1)
            scattered = (groups != groups[..., :1] + np.arange(vector)).any(axis=-1)
            crooked = (address + groups[..., 0] * size) % width != 0
            found = [
                (f"an edge cuts a vector of {vector} elements", some & ~every),
                (f"the {vector} elements of a vector are not contiguous", every & scattered),
                (
                    f"a vector of {width} bytes starts at an address that {width} does not divide",
                    every & crooked,
                ),
            ]
            return [(text, np.repeat(bad, vector, axis=-1)) for text, bad in found if np.count_nonzero(bad)]

        return self._once("defects", find, vector, address, size, width)

    @cached_property
    def repeats(self) -> Array | None:
        """Mask of accesses to an element that the same lane also accesses at another coordinate of the tile.

        If a lane holds a coordinate more than once, these accesses move one value and do not count.  None if
        the mask is empty.
        """
        key = ("repeats", self.offsets.shape, *self._pattern)
        if key not in self.alike:
            lowest = self.offsets.min(initial=0)
            places = np.where(self.valid, self.offsets, lowest - 1 - np.arange(self.offsets.shape[1]))
            order = np.argsort(places, axis=1, kind="stable")
            places = np.take_along_axis(places, order, axis=1)
            lanes, at = np.nonzero(places[:, 1:] == places[:, :-1])
            self.alike[key] = lanes, order[lanes, at], order[lanes, at + 1]
        lanes, one, other = self.alike[key]
        apart = (self.coordinates[lanes, one] != self.coordinates[lanes, other]).any(-1)
        if not apart.any():
            return None
        found = np.zeros(self.offsets.shape, bool)
        found[lanes[apart], other[apart]] = True
        return found

    @cached_property
    def _pattern(self) -> tuple[bytes, bytes]:
        """The offsets relative to the first element, and which elements exist."""
        return (self.offsets - self.bounds[0]).tobytes(), self.valid.tobytes()

    def _once(
        self, what: str, find: Callable[[int], Found], vector: int, address: int, size: int, unit: int
    ) -> Found:
        """Return the result of ``find(address)``, which depends on addresses modulo ``unit``.

        Footprints of one pattern share it if their addresses are equal modulo ``unit``.
        """
        begin = address + self.bounds[0] * size
        if begin < 0:
            return find(address)
        key = (what, vector, size, begin % unit, self.offsets.shape, *self._pattern)
        if key not in self.alike:
            self.alike[key] = find(address)
        known: Found = self.alike[key]
        return known

    def bank_conflicts(self, vector: int, address: int, dtype: DType) -> tuple[int, int, int]:
        """Return the number of requests to shared memory, and the sum and maximum of their conflict degrees.

        A request serves as many neighbouring lanes as fit 128 bytes, at most 32; its degree is the largest
        number of different 4-byte words that it needs from one of the 32 banks.
        """
        size = dtype.bytes

        def find(address: int) -> tuple[int, int, int]:
            lanes = len(self.offsets)
            first = self.offsets[:, ::vector] * size + address
            starts = np.where(self.valid[:, ::vector], first, ABSENT)
            served = served_together(starts.T, lanes_together(vector * size, lanes=lanes), lanes)
            degrees = bank_passes(served, vector * size)
            return int((degrees > 0).sum()), int(degrees.sum()), int(degrees.max(initial=0))

        return self._once("bank conflicts", find, vector, address, size, ROW_BYTES)

    def sectors(self, vector: int, dtype: DType) -> tuple[int, int]:
        """Return the 32-byte sectors that requests to global memory touch, and the fewest possible."""
        size = dtype.bytes

        def find(address: int) -> tuple[int, int]:
            starts = np.where(self.valid, self.offsets, -1)[:, ::vector].T * size + address
            starts.sort(axis=1)
            pieces = np.count_nonzero(_first_of_equals(starts), axis=1)
            fewest = -(-pieces * vector * size // SECTOR_BYTES)
            touched = _first_of_equals(starts // SECTOR_BYTES)
            return int(np.count_nonzero(touched)), int(fewest.sum())

        return self._once("sectors", find, vector, 0, size, SECTOR_BYTES)


def _first_of_equals(ordered: Array) -> Array:
    """Return which entries of each sorted row are neither negative nor equal to the previous one."""
    new = ordered >= 0
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return np.asarray(new)


class Footprints:
    """Computes and caches footprints."""

    def __init__(self, lanes: int, threads: int) -> None:
        self._lanes = lanes
        self._threads = threads
        self._unknowns: dict[Value, tuple[Sym, ...]] = {}
        self._kept: dict[tuple[Any, ...], WarpFootprint | None] = {}
        self._lately: dict[tuple[Any, ...], WarpFootprint | None] = {}
        self._alike: dict[tuple[Any, ...], Any] = {}
        self._boxes: dict[tuple[Any, ...], Array] = {}
        self._writing: dict[tuple[int, Distribution], Array | None] = {}

    def threads(self, warp: int, spread: Distribution) -> slice:
        """Return the threads of a warp that take part in a distribution; may be empty."""
        first = warp * self._lanes
        last = min(first + self._lanes, self._threads, spread.size_threads)
        return slice(first, max(last, first))

    def first_copies(self, warp: int, spread: Distribution) -> Array | None:
        """Return the mask of writing lanes, (lanes, 1): the first of those with equal values; None: all."""
        key = (warp, spread)
        if key not in self._writing:
            threads = self.threads(warp, spread)
            rest = np.arange(threads.start, threads.stop)
            first = np.ones(rest.shape, bool)
            for mode in spread.threads:
                if mode.dim is None:
                    first &= rest % mode.extent == 0
                rest = rest // mode.extent
            self._writing[key] = None if first.all() else first[:, None]
        return self._writing[key]

    def of(
        self, warp: int, value: Value, spread: Distribution, env: Mapping[Sym, int]
    ) -> WarpFootprint | None:
        """Return the elements of a tensor that a warp touches; None if none of its threads takes part."""
        if value not in self._unknowns:
            view = value.tensor.view
            self._unknowns[value] = tuple((symbols(view.offset) | symbols(view.valid)) - set(view.coords))
        key = (value, spread, warp, *(env[sym] for sym in self._unknowns[value]))
        kept = self._kept if value.tensor.memory is Memory.SHARED else self._lately
        if key in kept and not value.tensor.indices:
            return kept[key]
        for known in (self._lately, self._alike):
            if len(known) >= MOST_KEPT:
                known.clear()
        threads, view, made = self.threads(warp, spread), value.tensor.view, None
        if threads.start != threads.stop:
            table = spread.table[threads]
            mapping: dict[Sym, Any] = {
                **env,
                **dict(zip(view.coords, np.moveaxis(table, -1, 0), strict=True)),
            }
            offsets = np.asarray(evaluate(view.offset, mapping), np.int64)
            valid = np.asarray(evaluate(view.valid, mapping), bool)
            made = WarpFootprint(
                _filling(offsets, table.shape[:-1]), _filling(valid, table.shape[:-1]), table, self._alike
            )
        kept[key] = made
        return made

    def box(self, value: Value, env: Mapping[Sym, int]) -> Array:
        """Return the element offset of each coordinate of a tile in shared memory, in the tile's shape."""
        view = value.tensor.view
        free = tuple(symbols(view.offset) - set(view.coords))
        key = (value, *(env[sym] for sym in free))
        if key not in self._boxes or value.tensor.indices:
            shape = [int(evaluate(extent, env)) for extent in view.shape]
            self._boxes[key] = _offsets(view, env, np.indices(shape, sparse=True))
        return self._boxes[key]


def whole(value: Value, env: Mapping[Sym, int]) -> tuple[Array, Array]:
    """Return the element offsets of a whole view, and which elements exist in the view and in its tensor."""
    view = value.tensor.view
    shape = [int(evaluate(extent, env)) for extent in view.shape]
    grids = np.indices(shape, sparse=True)
    mapping: dict[Sym, Any] = {**env, **dict(zip(view.coords, grids, strict=True))}
    exists = np.broadcast_to(np.asarray(evaluate(view.valid, mapping), bool), shape).copy()
    for place, extent in zip(view.base_coordinates, value.array.shape, strict=True):
        at = np.asarray(evaluate(place, mapping))
        exists &= (at >= 0) & (at < evaluate(extent, env))
    return _offsets(value.tensor.view, env, grids), exists


def box_at(
    view: View, at: Sequence[int], shape: Sequence[int], env: Mapping[Sym, int], extents: Sequence[int]
) -> tuple[Array, Array]:
    """Return the element offsets of a box of a tensor, and which elements exist.

    Args:
        view: the view of the tensor.
        at: coordinates of the box's first element; may lie outside, also before the tensor.
        shape: extents of the box.
        env: the value of every symbol.
        extents: the extents of the tensor.
    """
    grids = [start + grid for start, grid in zip(at, np.indices(shape, sparse=True), strict=True)]
    exists = np.ones(shape, bool)
    for grid, extent in zip(grids, extents, strict=True):
        exists &= (grid >= 0) & (grid < extent)
    return _offsets(view, env, grids), exists


def _offsets(view: View, env: Mapping[Sym, int], grids: Sequence[Array]) -> Array:
    mapping: dict[Sym, Any] = {**env, **dict(zip(view.coords, grids, strict=True))}
    shape = np.broadcast_shapes(*(grid.shape for grid in grids))
    return np.broadcast_to(np.asarray(evaluate(view.offset, mapping), np.int64), shape)


def _filling(values: Array, shape: tuple[int, ...]) -> Array:
    return values if values.shape == shape else np.broadcast_to(values, shape)


# ---------------------------------------------------------------- elements that a copy leaves out
# A copy writes a tensor in shared memory through a view that may exclude some of its elements.  A later read
# of these elements returns values of an earlier iteration.


class Leftovers:
    """Finds the elements of a tensor that a view of it cuts off."""

    def __init__(self, kernel: Kernel) -> None:
        self._made: dict[Value, tuple[Value, Transform | None]] = {}
        for op in kernel.walk():
            if isinstance(op, Reshape):
                self._made[op.result] = op.source, op.transform
            elif isinstance(op, PartitionOp):
                self._made[op.result] = op.source, None
        self._coordinates: dict[Value, tuple[Int, ...] | None] = {}

    def left_out(self, value: Value, footprint: WarpFootprint, env: Mapping[Sym, int]) -> Array | None:
        """Return the mask of elements that the view excludes from its tensor, (lanes, values), or None."""
        if footprint.absent is None:
            return None
        absent = footprint.absent.copy()
        if value not in self._coordinates:
            self._coordinates[value] = self._in_root(value)
        found = self._coordinates[value]
        if found is None:
            return None
        places = np.moveaxis(footprint.coordinates, -1, 0)
        mapping: dict[Sym, Any] = {**env, **dict(zip(value.tensor.view.coords, places, strict=True))}
        for at, extent in zip(found, value.buffer.tensor.shape, strict=True):
            place, whole = evaluate(at, mapping), evaluate(extent, env)
            absent &= (place >= 0) & (place < whole)
        return absent

    def _in_root(self, value: Value) -> tuple[Int, ...] | None:
        """Return the coordinates of a view's elements in its tensor; None if they are unknown."""
        chain: list[Transform] = []
        while value in self._made:
            value, transform = self._made[value]
            if transform is not None:
                chain.append(transform)
        if any(isinstance(transform, Swizzle) for transform in chain):
            return None
        if value.root is not None:
            return None  # its rows are chosen in memory
        root = value.tensor.view
        made = []
        for coordinate in root.coords:
            view = View(root.shape, coordinate, root.elems)
            for transform in reversed(chain):
                view = transform.apply(view)
            made.append(view.offset)
        return tuple(made)


# ---------------------------------------------------------------- zeros of a view
# Some views have elements that are 0 by definition: the padding of windows, and rows outside of an array that
# chosen rows name.  They belong to the view.  Elements past the edge of a tile do not.


class ViewZeros:
    """Distinguishes elements past the edge of a tile from zeros of the view that the tile is cut from."""

    def __init__(self, kernel: Kernel) -> None:
        self._made: dict[Value, Op] = {}
        for op in kernel.walk():
            if isinstance(op, Reshape | PartitionOp | Gather):
                self._made[op.result] = op
        self._inside: dict[Value, Cond | None] = {}

    def absent(self, value: Value, footprint: WarpFootprint, env: Mapping[Sym, int]) -> Array | None:
        """Return the mask of the elements past an edge, (lanes, values), or None if no element is."""
        if footprint.absent is None:
            return None
        if value not in self._inside:
            self._inside[value] = self._condition(value)
        condition = self._inside[value]
        if condition is None:
            return footprint.absent
        places = np.moveaxis(footprint.coordinates, -1, 0)
        mapping: dict[Sym, Any] = {**env, **dict(zip(value.tensor.view.coords, places, strict=True))}
        past = footprint.absent & ~np.asarray(evaluate(condition, mapping), bool)
        return past if past.any() else None

    def _condition(self, value: Value) -> Cond | None:
        """Return the condition that an element lies inside the edges; None if the view has no zeros."""
        chain: list[Transform] = []
        while isinstance(op := self._made.get(value), Reshape | PartitionOp):
            if isinstance(op, Reshape):
                if isinstance(op.transform, Embed | Pad):
                    break
                chain.append(op.transform)
            value = op.source
        if op is None or self._is_cut(op):
            return None
        view = View(value.tensor.shape, 0, 1)
        for transform in reversed(chain):
            view = transform.apply(view)
        return view.valid

    def _is_cut(self, op: Op) -> bool:
        """Return whether one of the views that an operation is made from has edges."""
        for made in map(self._made.get, op.operands):
            part = made.transform if isinstance(made, Reshape) else None
            if isinstance(part, Tile | PadTo) or (isinstance(part, Slice) and part.edges):
                return True
            if made is not None and self._is_cut(made):
                return True
        return False


# ---------------------------------------------------------------- vectors and instructions of the whole warp
# With ``ldmatrix`` and ``stmatrix``, each lane addresses a row and moves elements of other lanes.  Each
# target selects the instructions of a copy.  The checker assumes the weakest order of all targets, so that a
# clean kernel is clean on all.
#
# Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
# stmatrix".


class Instructions:
    """Caches the vector width of each access, and whether it may be an instruction of the whole warp.

    Args:
        lanes: threads per warp.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._vectors: dict[tuple[int, Value | None], int] = {}
        self._by_warp: dict[tuple[int, Value], bool] = {}

    def copy_vector(self, op: Copy) -> int:
        """Return the vector width of a copy in elements: its own, or the widest legal one."""
        key = (id(op), None)
        if key not in self._vectors:
            self._vectors[key] = widest_vector(op, op.spread) if op.vector is None else op.vector
        return self._vectors[key]

    def operand_vector(self, op: Op, value: Value, spread: Distribution) -> int:
        """Return the widest vector that reads an operand of a multiply from memory, in elements."""
        key = (id(op), value)
        if key not in self._vectors:
            dim, run = spread.vector()
            widest = min(run & -run, max(LARGEST_ACCESS_BYTES // value.dtype.bytes, 1))
            self._vectors[key] = value.tensor.view.vector_width(dim, widest)
        return self._vectors[key]

    def by_warp(self, op: Op, value: Value, spread: Distribution) -> bool:
        """Return whether a lane may access elements of an operand for other lanes of its warp."""
        key = (id(op), value)
        if key not in self._by_warp:
            self._by_warp[key] = may_be_by_matrices(op, value, spread, self._lanes)
        return self._by_warp[key]


# ---------------------------------------------------------------- slices and tiles beyond their tensor
# A slice past the end of a dimension addresses the next row, or the next stage of a ring.  If it begins at an
# integer from memory or an argument, its elements outside are invalid.  Spans that tracing cannot prove are
# tested at each access through the view.


@dataclass(frozen=True)
class Beyond:
    """A span that leaves its tensor.

    Args:
        op: the operation that made the view.
        dim: the dimension.
        is_masked: whether elements outside are invalid, so that reads return 0 and writes have no effect.
        reason: the broken rule.
    """

    op: Op
    dim: int
    is_masked: bool
    reason: str


class UnprovenSpans:
    """The spans of each view of a kernel that tracing could not prove to stay inside of their tensor."""

    def __init__(self, kernel: Kernel) -> None:
        self._spans: dict[Value, tuple[tuple[Op, DimensionRange], ...]] = {}
        for op in kernel.walk():
            for result in op.results:
                sources = (self._spans.get(source, ()) for source in op.operands)
                if spans := (*(span for known in sources for span in known), *own_spans(op)):
                    self._spans[result] = spans

    def beyond(self, value: Value, env: Mapping[Sym, int]) -> Beyond | None:
        """Return the first span of a view that leaves its tensor, for these values of the symbols."""
        for op, span in self._spans.get(value, ()):
            low, high, extent = (int(evaluate(part, env)) for part in (span.low, span.high, span.extent))
            if low < 0 or max(low, high) > extent:
                here, written = span.shown(low, high), span.shown(span.low, span.high)
                whole = f"{extent} tile{'s' * (extent != 1)}" if span.kind == "tile" else f"{extent}"
                belongs = "these elements belong to other rows or stages"
                what = "it has no element inside the array" if span.is_masked else belongs
                reason = (
                    f"{here} of dimension {span.dim}, whose extent is {whole}"
                    f"{f' (written {written})' * (here != written)}: {what}"
                )
                return Beyond(op, span.dim, span.is_masked, reason)
        return None


def own_spans(op: Op) -> tuple[tuple[Op, DimensionRange], ...]:
    """Return the spans of a view itself.  Tiles past the edge of global memory are legal: they read as 0."""
    part = op.transform if isinstance(op, Reshape) else None
    if isinstance(op, Reshape) and (
        isinstance(part, Slice) or (isinstance(part, Tile) and op.source.tensor.memory is Memory.SHARED)
    ):
        return tuple((op, span) for span in unproven_spans(part, op.source.tensor.view))
    return ()
