"""Footprints: which elements of a buffer the lanes of a warp touch, per value, under a distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.functions.conversions import Array
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.threads.banks import ABSENT, SECTOR_BYTES, bank_passes, lanes_together, served_together
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View


def lanes_of(which: Array) -> Array:
    """The lane of each entry that is true, of an array of shape (lanes, values)."""
    return np.nonzero(which)[0].astype(np.int16)


@dataclass(eq=False)
class Footprint:
    """The elements that a warp touches.

    Args:
        offsets: element offsets; shape (lanes, values).
        valid: which of them exist in the view; shape (lanes, values).
        coordinates: the tile coordinate of each; shape (lanes, values, rank).
    """

    offsets: Array
    valid: Array
    coordinates: Array
    _banks: dict[tuple[int, int, int], tuple[int, int, int]] = field(default_factory=dict)
    _defects: dict[tuple[int, int, int], list[tuple[str, Array]]] = field(default_factory=dict)

    @cached_property
    def accessed(self) -> tuple[Array, Array]:
        """The offsets of what exists, and the lane of each."""
        return self.offsets[self.valid], lanes_of(self.valid)

    @cached_property
    def bounds(self) -> tuple[int, int]:
        """The lowest and the highest offset of what exists; (0, -1) if nothing does."""
        at = self.accessed[0]
        return (int(at.min()), int(at.max())) if len(at) else (0, -1)

    def defects(self, vector: int, address: int, dtype: DType) -> list[tuple[str, Array]]:
        """What is wrong with accesses of ``vector`` elements: reasons, and the (lane, value) they concern."""
        key = (vector, address, dtype.bytes)
        if key not in self._defects:
            self._defects[key] = [] if vector == 1 else self._find_defects(*key)
        return self._defects[key]

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
        return [(text, np.repeat(bad, vector, axis=-1)) for text, bad in found if bad.any()]

    def bank_conflicts(self, vector: int, address: int, dtype: DType) -> tuple[int, int, int]:
        """Requests to shared memory: how many, the sum of their conflict degrees, and the worst.

        A request serves as many neighbouring lanes as fit 128 bytes, at most 32; its degree is the largest
        number of different 4-byte words that it needs from one of the 32 banks.
        """
        key = (vector, address, dtype.bytes)
        if key not in self._banks:
            self._banks[key] = _bank_conflicts(self, *key)
        return self._banks[key]

    def sectors(self, vector: int, dtype: DType) -> tuple[int, int]:
        """32-byte sectors that the requests to global memory touch, and the fewest that could hold them."""
        starts = np.where(self.valid, self.offsets, -1)[:, ::vector].T * dtype.bytes
        starts.sort(axis=1)
        pieces = np.count_nonzero(_first_of_equals(starts), axis=1)
        fewest = -(-pieces * vector * dtype.bytes // SECTOR_BYTES)
        touched = _first_of_equals(starts // SECTOR_BYTES)
        return int(np.count_nonzero(touched)), int(fewest.sum())


def _first_of_equals(ordered: Array) -> Array:
    """Which entries of every sorted row are neither negative nor equal to the one before."""
    new = ordered >= 0
    new[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return np.asarray(new)


def _bank_conflicts(footprint: Footprint, vector: int, address: int, size: int) -> tuple[int, int, int]:
    lanes, values = footprint.offsets.shape
    starts = footprint.offsets.reshape(lanes, values // vector, vector)[..., 0] * size + address
    valid = footprint.valid.reshape(lanes, values // vector, vector)[..., 0]
    together = lanes_together(vector * size, lanes=lanes)
    degrees = bank_passes(served_together(np.where(valid, starts, ABSENT).T, together, lanes), vector * size)
    return int((degrees > 0).sum()), int(degrees.sum()), int(degrees.max(initial=0))


class Footprints:
    """Computes footprints, and keeps those that will be asked for again."""

    def __init__(self, lanes: int, threads: int) -> None:
        self._lanes = lanes
        self._threads = threads
        self._unknowns: dict[Value, tuple[Sym, ...]] = {}
        self._kept: dict[tuple[Any, ...], Footprint | None] = {}
        self._boxes: dict[tuple[Any, ...], Array] = {}
        self._writing: dict[tuple[int, Distribution], Array] = {}

    def threads(self, warp: int, spread: Distribution) -> slice:
        """The threads of a warp that take part in a distribution; may be empty."""
        first = warp * self._lanes
        last = min(first + self._lanes, self._threads, spread.size_threads)
        return slice(first, max(last, first))

    def first_copies(self, warp: int, spread: Distribution) -> Array:
        """Which lanes of a warp write, of shape (lanes, 1): the first of those that hold the same values."""
        key = (warp, spread)
        if key not in self._writing:
            threads = self.threads(warp, spread)
            rest = np.arange(threads.start, threads.stop)
            first = np.ones(rest.shape, bool)
            for mode in spread.threads:
                if mode.dim is None:
                    first &= rest % mode.extent == 0
                rest = rest // mode.extent
            self._writing[key] = first[:, None]
        return self._writing[key]

    def of(self, warp: int, value: Value, spread: Distribution, env: Mapping[Sym, int]) -> Footprint | None:
        """What a warp touches of a tensor; None if none of its threads takes part."""
        if value not in self._unknowns:
            view = value.tensor.view
            free = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
            self._unknowns[value] = tuple(free)
        unknowns = self._unknowns[value]
        key = (value, spread, warp, *(env[sym] for sym in unknowns))
        if key in self._kept:
            return self._kept[key]
        threads = self.threads(warp, spread)
        made = None if threads.start == threads.stop else _compute(value, spread.table[threads], env)
        if value.tensor.memory is Memory.SHARED and not value.tensor.indices:
            self._kept[key] = made
        return made

    def box(self, value: Value, env: Mapping[Sym, int]) -> Array:
        """The element offset of every coordinate of a tile in shared memory; of the tile's shape."""
        view = value.tensor.view
        free = tuple(symbols(view.offset) - set(view.coords))
        key = (value, *(env[sym] for sym in free))
        if key not in self._boxes or value.tensor.indices:
            shape = [int(evaluate(extent, env)) for extent in view.shape]
            self._boxes[key] = _offsets(view, env, np.indices(shape, sparse=True))
        return self._boxes[key]


def whole(value: Value, env: Mapping[Sym, int]) -> tuple[Array, Array]:
    """All of a view: element offsets, and which elements exist, in the view and in the tensor behind it."""
    view = value.tensor.view
    shape = [int(evaluate(extent, env)) for extent in view.shape]
    grids = np.indices(shape, sparse=True)
    mapping: dict[Sym, Any] = {**env, **dict(zip(view.coords, grids, strict=True))}
    exists = np.broadcast_to(np.asarray(evaluate(view.valid, mapping), bool), shape).copy()
    for place, extent in zip(view.behind, value.array.shape, strict=True):
        at = np.asarray(evaluate(place, mapping))
        exists &= (at >= 0) & (at < evaluate(extent, env))
    return _offsets(value.tensor.view, env, grids), exists


def box_at(
    view: View, at: Sequence[int], shape: Sequence[int], env: Mapping[Sym, int], extents: Sequence[int]
) -> tuple[Array, Array]:
    """A box of a tensor: element offsets, and which elements exist.

    Args:
        view: of the tensor.
        at: coordinates of the box's first element; may lie outside, also before the tensor.
        shape: extents of the box.
        env: the value of every symbol.
        extents: up to where elements exist.
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


def _compute(value: Value, table: Array, env: Mapping[Sym, int]) -> Footprint:
    view = value.tensor.view
    mapping: dict[Sym, Any] = dict(env)
    mapping.update(zip(view.coords, np.moveaxis(table, -1, 0), strict=True))
    shape = table.shape[:-1]
    offsets = _filling(np.asarray(evaluate(view.offset, mapping), np.int64), shape)
    valid = _filling(np.asarray(evaluate(view.valid, mapping), bool), shape)
    return Footprint(offsets, valid, table)


def _filling(values: Array, shape: tuple[int, ...]) -> Array:
    return values if values.shape == shape else np.broadcast_to(values, shape)
