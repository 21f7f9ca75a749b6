"""Footprints: the elements of a buffer that the lanes of a warp touch, and related properties of views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import LARGEST_ACCESS_BYTES, widest_vector
from tilewright.ir.ops import Copy, Op, PartitionOp, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.passes.memory_instructions import may_be_by_matrices
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.threads.banks import ABSENT, SECTOR_BYTES, bank_passes, lanes_together, served_together
from tilewright.threads.distribution import Distribution
from tilewright.views.questions import DimensionRange, unproven_spans
from tilewright.views.transforms import Slice, Swizzle, Tile, Transform
from tilewright.views.view import View

ROW_BYTES = 128
"""Bytes after which the banks of shared memory repeat."""

MOST_KEPT = 512
"""Number of cached footprints in global memory: later blocks use the same tiles of an operand again."""


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
        """The lowest and the highest offset of existing elements; (0, -1) if there are none."""
        at = self.accessed[0]
        return (int(at.min()), int(at.max())) if len(at) else (0, -1)

    def defects(self, vector: int, address: int, dtype: DType) -> list[tuple[str, Array]]:
        """Return defects of accesses of ``vector`` elements: reasons, and the (lane, value) they concern."""
        if vector == 1:
            return []
        size = dtype.bytes
        found: list[tuple[str, Array]] = self._once(self._find_defects, vector, address, size, vector * size)
        return found

    @cached_property
    def repeats(self) -> Array | None:
        """Which accesses of a lane touch an element that it also touches at another coordinate of the tile.

        A coordinate that a lane holds more than once is one value, so its accesses are not among them.  None
        if no access is.
        """
        key = ("repeats", self.offsets.shape, *self._pattern)
        if key not in self.alike:
            self.alike[key] = self._find_same_offsets()
        lanes, one, other = self.alike[key]
        apart = (self.coordinates[lanes, one] != self.coordinates[lanes, other]).any(-1)
        if not apart.any():
            return None
        found = np.zeros(self.offsets.shape, bool)
        found[lanes[apart], other[apart]] = True
        return found

    def _find_same_offsets(self) -> tuple[Array, Array, Array]:
        """Return lanes, and two values of each lane at one offset."""
        lowest = self.offsets.min(initial=0)
        places = np.where(self.valid, self.offsets, lowest - 1 - np.arange(self.offsets.shape[1]))
        order = np.argsort(places, axis=1, kind="stable")
        places = np.take_along_axis(places, order, axis=1)
        lanes, at = np.nonzero(places[:, 1:] == places[:, :-1])
        return lanes, order[lanes, at], order[lanes, at + 1]

    @cached_property
    def _pattern(self) -> tuple[bytes, bytes]:
        """The offsets relative to the first element, and which elements exist."""
        return (self.offsets - self.bounds[0]).tobytes(), self.valid.tobytes()

    def _once(self, find: Any, vector: int, address: int, size: int, unit: int) -> Any:
        """Return the result of ``find(vector, address, size)``, which depends on addresses modulo ``unit``.

        Footprints of one pattern share it if their addresses are equal modulo ``unit``.
        """
        begin = address + self.bounds[0] * size
        if begin < 0:
            return find(vector, address, size)
        key = (find.__name__, vector, size, begin % unit, self.offsets.shape, *self._pattern)
        if key not in self.alike:
            self.alike[key] = find(vector, address, size)
        return self.alike[key]

    def _find_defects(self, vector: int, address: int, size: int) -> list[tuple[str, Array]]:
        lanes, values = self.offsets.shape
        groups = self.offsets.reshape(lanes, values // vector, vector)
        valid = self.valid.reshape(groups.shape)
        some, every = valid.any(axis=-1), valid.all(axis=-1)
        scattered = (groups != groups[..., :1] + np.arange(vector)).any(axis=-1)
        width = vector * size
        crooked = (address + groups[..., 0] * size) % width != 0
        found = [
            (f"an edge cuts a vector of {vector} elements", some & ~every),
            (f"the {vector} elements of a vector are not neighbours", every & scattered),
            (f"a vector of {width} bytes starts at an address that {width} does not divide", every & crooked),
        ]
        return [(text, np.repeat(bad, vector, axis=-1)) for text, bad in found if np.count_nonzero(bad)]

    def bank_conflicts(self, vector: int, address: int, dtype: DType) -> tuple[int, int, int]:
        """Return the number of requests to shared memory, and the sum and maximum of their conflict degrees.

        A request serves as many neighbouring lanes as fit 128 bytes, at most 32; its degree is the largest
        number of different 4-byte words that it needs from one of the 32 banks.
        """
        made: tuple[int, int, int] = self._once(self._bank_conflicts, vector, address, dtype.bytes, ROW_BYTES)
        return made

    def sectors(self, vector: int, dtype: DType) -> tuple[int, int]:
        """Return the 32-byte sectors that requests to global memory touch, and the fewest possible."""
        made: tuple[int, int] = self._once(self._sectors, vector, 0, dtype.bytes, SECTOR_BYTES)
        return made

    def _sectors(self, vector: int, address: int, size: int) -> tuple[int, int]:
        starts = np.where(self.valid, self.offsets, -1)[:, ::vector].T * size + address
        starts.sort(axis=1)
        pieces = np.count_nonzero(_first_of_equals(starts), axis=1)
        fewest = -(-pieces * vector * size // SECTOR_BYTES)
        touched = _first_of_equals(starts // SECTOR_BYTES)
        return int(np.count_nonzero(touched)), int(fewest.sum())

    def _bank_conflicts(self, vector: int, address: int, size: int) -> tuple[int, int, int]:
        lanes, values = self.offsets.shape
        starts = self.offsets.reshape(lanes, values // vector, vector)[..., 0] * size + address
        valid = self.valid.reshape(lanes, values // vector, vector)[..., 0]
        served = served_together(
            np.where(valid, starts, ABSENT).T, lanes_together(vector * size, lanes=lanes), lanes
        )
        degrees = bank_passes(served, vector * size)
        return int((degrees > 0).sum()), int(degrees.sum()), int(degrees.max(initial=0))


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
        """Return which lanes of a warp write, of shape (lanes, 1): the first of those with the same values.

        None: all.
        """
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
            free = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
            self._unknowns[value] = tuple(free)
        unknowns = self._unknowns[value]
        key = (value, spread, warp, *(env[sym] for sym in unknowns))
        kept = self._kept if value.tensor.memory is Memory.SHARED else self._lately
        if key in kept and not value.tensor.indices:
            return kept[key]
        for known in (self._lately, self._alike):
            if len(known) >= MOST_KEPT:
                known.clear()
        threads = self.threads(warp, spread)
        made = None
        if threads.start != threads.stop:
            made = WarpFootprint(*_compute(value, spread.table[threads], env), self._alike)
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


def _compute(value: Value, table: Array, env: Mapping[Sym, int]) -> tuple[Array, Array, Array]:
    view = value.tensor.view
    mapping: dict[Sym, Any] = dict(env)
    mapping.update(zip(view.coords, np.moveaxis(table, -1, 0), strict=True))
    shape = table.shape[:-1]
    offsets = _filling(np.asarray(evaluate(view.offset, mapping), np.int64), shape)
    valid = _filling(np.asarray(evaluate(view.valid, mapping), bool), shape)
    return offsets, valid, table


def _filling(values: Array, shape: tuple[int, ...]) -> Array:
    return values if values.shape == shape else np.broadcast_to(values, shape)


# ---------------------------------------------------------------- elements that a copy leaves out
# A view may cut off elements of the tensor in shared memory that a copy writes through it.  What is read
# there later was written in an earlier iteration.  Elements outside of the tensor have no place in it.


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
        """Return which elements of a footprint are invalid although the tensor has them: (lanes, values).

        None: none are.
        """
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
        """Return the coordinates in the tensor of a view's elements; None if they are unknown."""
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


# ---------------------------------------------------------------- vectors and instructions of the whole warp
# By ``ldmatrix`` and ``stmatrix`` each lane names a row and moves elements of other lanes.  A target decides
# how a copy is done.  The checker assumes what any target may do, so that a clean kernel is clean on all.
#
# Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
# stmatrix".


class Vectors:
    """Caches the vector width of each access, in elements."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Value | None], int] = {}

    def of_copy(self, op: Copy) -> int:
        """Return the vector width of a copy: its own, or the widest legal one."""
        key = (id(op), None)
        if key not in self._known:
            self._known[key] = widest_vector(op, op.spread) if op.vector is None else op.vector
        return self._known[key]

    def of_operand(self, op: Op, value: Value, spread: Distribution) -> int:
        """Return the widest vector that reads an operand of a multiply from memory.

        Args:
            op: the multiply.
            value: the operand.
            spread: its distribution.
        """
        key = (id(op), value)
        if key not in self._known:
            dim, run = spread.vector()
            widest = min(run & -run, max(LARGEST_ACCESS_BYTES // value.dtype.bytes, 1))
            self._known[key] = value.tensor.view.vector_width(dim, widest)
        return self._known[key]


class Engines:
    """Caches for each access whether it may be an instruction of the whole warp.

    Args:
        lanes: threads per warp.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._known: dict[tuple[int, Value], bool] = {}

    def by_warp(self, op: Op, value: Value, spread: Distribution) -> bool:
        """Return whether the lanes of a warp may access a tensor together, each for the others.

        Args:
            op: the operation.
            value: the tensor, one of its operands.
            spread: its distribution.
        """
        key = (id(op), value)
        if key not in self._known:
            self._known[key] = may_be_by_matrices(op, value, spread, self._lanes)
        return self._known[key]


# ---------------------------------------------------------------- slices and tiles beyond their tensor
# A slice past the end of a dimension addresses the next row, or the next stage of a ring.  If it begins at an
# integer from memory or an argument, its elements outside are invalid.  What tracing cannot prove is tested
# here whenever an operation accesses memory through the view.


@dataclass(frozen=True)
class Beyond:
    """A span that leaves its tensor.

    Args:
        op: the operation that made the view.
        dim: the dimension.
        is_masked: whether elements outside are invalid: nothing is accessed, and 0 is read.
        reason: what is wrong.
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
                what = (
                    "no element of it exists"
                    if span.is_masked
                    else "what lies there belongs to other rows or stages"
                )
                reason = (
                    f"{here} of dimension {span.dim}, whose extent is {whole}"
                    f"{f' (written {written})' * (here != written)}: {what}"
                )
                return Beyond(op, span.dim, span.is_masked, reason)
        return None


def own_spans(op: Op) -> tuple[tuple[Op, DimensionRange], ...]:
    """Return the spans of a view itself.  Tiles past the edge of global memory are legal: they read as 0."""
    if not isinstance(op, Reshape):
        return ()
    match op.transform:
        case Slice() as part:
            return tuple((op, span) for span in unproven_spans(part, op.source.tensor.view))
        case Tile() as part if op.source.tensor.memory is Memory.SHARED:
            return tuple((op, span) for span in unproven_spans(part, op.source.tensor.view))
        case _:
            return ()
