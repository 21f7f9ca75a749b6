"""Conversion of the author's thread layouts to distributions of a tile."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import LayoutError
from tilewright.lang.scalars import as_tuple, unwrap
from tilewright.layout.counts import divisor_at_most
from tilewright.layout.layout import Layout
from tilewright.symbolic.nodes import Int
from tilewright.threads.distribution import Distribution, Mode, blocked


def thread_map(
    shape: Sequence[Int],
    threads: Layout | int | Sequence[int],
    projection: Sequence[int | None] | None = None,
    vector_dim: int | None = None,
    access_order: Sequence[int] | None = None,
    vector: int | None = None,
) -> Distribution:
    """Return the distribution of a tile over a thread layout, one contiguous chunk per thread.

    Args:
        shape: extents of the tile.
        threads: a thread layout, or counts, which are short for the compact layout `Layout(counts)`.
        projection: the thread dimensions that run along the tile's; see `Tensor.partition`.
        vector_dim: the dimension of a thread's consecutive values; default: the last.
        access_order: see `blocked`.
        vector: see `blocked`.

    Raises:
        LayoutError: extents are symbolic, the threads do not divide the tile, or the thread layout is not a
            bijection onto 0..T-1.
    """
    counts, order = _thread_counts(threads)
    tile = static_tile(shape)
    kept = _kept(tile, counts, projection)
    check_vector_dim(vector_dim, len(tile))
    for extent, dim in zip(tile, kept, strict=True):
        if extent % counts[dim]:
            raise LayoutError(_indivisible(tile, counts, kept, extent, dim))
    base = blocked(
        tile,
        [counts[dim] for dim in kept],
        [kept.index(dim) for dim in order if dim in kept],
        vector_dim,
        access_order,
        vector,
    )
    modes = iter(base.threads)
    spread = tuple(next(modes) if dim in kept else Mode(counts[dim], None, 0) for dim in order)
    return Distribution(base.shape, spread, base.values)


def static_tile(shape: Sequence[Int]) -> list[int]:
    """Return the extents of a tile, which must be static for a distribution.

    Raises:
        LayoutError: an extent is symbolic.
    """
    if not all(isinstance(extent, int) for extent in shape):
        raise LayoutError(
            f"threads can be laid over a static tile only, not over shape {tuple(shape)}; "
            "nearest legal choice: a tile of it, .tile(shape, at) with constants in shape"
        )
    return [int(extent) for extent in shape if isinstance(extent, int)]


def check_vector_dim(vector_dim: int | None, rank: int) -> None:
    """Refuse a dimension that a tile of this rank does not have."""
    if vector_dim is not None and not 0 <= vector_dim < rank:
        nearest = min(max(vector_dim, 0), rank - 1)
        raise LayoutError(
            f"vector_dim={vector_dim} of a tile of rank {rank}; nearest legal choice: vector_dim={nearest}"
        )


def _kept(tile: Sequence[int], counts: Sequence[int], projection: Sequence[int | None] | None) -> list[int]:
    """Return the thread dimensions that run along the tile's dimensions."""
    if projection is not None and len(projection) != len(counts):
        raise LayoutError(f"projection {tuple(projection)} for threads {tuple(counts)} of another rank")
    kept = [dim for dim, keep in enumerate(projection or (1,) * len(counts)) if keep is not None]
    if len(kept) != len(tile):
        ones = "one 1 per dimension of the tile and None for the others"
        nearest = f"projection with {ones}" if len(counts) > len(tile) else f"{len(tile)} thread counts"
        raise LayoutError(
            f"threads {tuple(counts)} run along {len(kept)} dimensions, the tile {tuple(tile)} has "
            f"{len(tile)}; nearest legal choice: {nearest}"
        )
    return kept


def _indivisible(tile: list[int], counts: tuple[int, ...], kept: list[int], extent: int, dim: int) -> str:
    nearest = list(counts)
    for length, at in zip(tile, kept, strict=True):
        nearest[at] = divisor_at_most(length, counts[at])
    return (
        f"{counts[dim]} threads cannot share the extent {extent} of dimension {kept.index(dim)} of the tile "
        f"{tuple(tile)} equally; nearest legal choice: threads={tuple(nearest)}"
    )


def _thread_counts(threads: Layout | int | Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
    """Return thread counts per dimension, and the dimensions in order of their stride, fastest first."""
    if not isinstance(threads, Layout):
        counts = tuple(unwrap(count) for count in as_tuple(threads))
        return _positive(counts), list(range(len(counts)))
    counts, strides = as_tuple(threads.shape), as_tuple(threads.stride)
    if not all(isinstance(n, int) for n in (*counts, *strides)):
        raise LayoutError(f"thread layout {threads} must have one static extent and stride per dimension")
    shape = _positive(counts)
    order = sorted(range(len(shape)), key=lambda dim: (strides[dim], -dim if shape[dim] == 1 else dim))
    expected = 1
    for dim in order:
        if shape[dim] > 1 and strides[dim] != expected:
            raise LayoutError(
                f"thread layout {threads} does not number its threads 0 to {math.prod(shape) - 1}: dimension "
                f"{dim} has stride {strides[dim]}, expected {expected}"
            )
        expected *= shape[dim]
    return shape, order


def _positive(counts: tuple[Int, ...]) -> tuple[int, ...]:
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise LayoutError(f"threads {counts}: thread counts are positive integer constants")
    return tuple(count for count in counts if isinstance(count, int))
