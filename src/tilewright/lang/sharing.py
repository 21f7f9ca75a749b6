"""Distribution of a tile over threads: by a thread layout, or by a thread count and the memory order."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tilewright.errors import LayoutError
from tilewright.ir.types import FragmentType, Memory, TensorType, Value
from tilewright.lang.scalars import as_tuple, unwrap
from tilewright.lang.tracer import current, lanes_recorded_for, recorded_for
from tilewright.layout.layout import Layout
from tilewright.layout.limits import divisor_at_most
from tilewright.symbolic.nodes import Int
from tilewright.threads.banks import coalesced
from tilewright.threads.distribution import Distribution, Mode, blocked
from tilewright.views.questions import contiguous_run, stride
from tilewright.views.view import View

# ---------------------------------------------------------------- thread layouts


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
    if isinstance(threads, Layout):
        given, strides = as_tuple(threads.shape), as_tuple(threads.stride)
        if not all(isinstance(n, int) for n in (*given, *strides)):
            raise LayoutError(f"thread layout {threads} must have one static extent and stride per dimension")
        counts = _positive(given)
        # The dimensions in order of their stride, fastest first.
        order = sorted(range(len(counts)), key=lambda dim: (strides[dim], -dim if counts[dim] == 1 else dim))
        expected = 1
        for dim in order:
            if counts[dim] > 1 and strides[dim] != expected:
                raise LayoutError(
                    f"thread layout {threads} does not number its threads 0 to {math.prod(counts) - 1}: "
                    f"dimension {dim} has stride {strides[dim]}, expected {expected}"
                )
            expected *= counts[dim]
    else:
        counts = _positive(tuple(unwrap(count) for count in as_tuple(threads)))
        order = list(range(len(counts)))
    tile = static_tile(shape)
    kept = _kept(tile, counts, projection)
    check_vector_dim(vector_dim, len(tile))
    for extent, dim in zip(tile, kept, strict=True):
        if extent % counts[dim]:
            nearest = list(counts)
            for length, at in zip(tile, kept, strict=True):
                nearest[at] = divisor_at_most(length, counts[at])
            raise LayoutError(
                f"{counts[dim]} threads cannot share the extent {extent} of dimension {kept.index(dim)} of "
                f"the tile {tuple(tile)} equally",
                f"threads={tuple(nearest)}",
            )
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
        text = f"threads can be laid over a static tile only, not over shape {tuple(shape)}"
        raise LayoutError(text, "a tile of it, .tile(shape, at) with constants in shape")
    return [int(extent) for extent in shape if isinstance(extent, int)]


def check_vector_dim(vector_dim: int | None, rank: int) -> None:
    """Refuse a dimension that a tile of this rank does not have."""
    if vector_dim is not None and not 0 <= vector_dim < rank:
        nearest = min(max(vector_dim, 0), rank - 1)
        raise LayoutError(f"vector_dim={vector_dim} of a tile of rank {rank}", f"vector_dim={nearest}")


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
            f"{len(tile)}",
            nearest,
        )
    return kept


def _positive(counts: tuple[Int, ...]) -> tuple[int, ...]:
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise LayoutError(f"threads {counts}: thread counts are positive integer constants")
    return tuple(count for count in counts if isinstance(count, int))


def share_out(
    sides: Sequence[Value],
    threads: Layout | int | Sequence[int] | None = None,
    projection: Sequence[int | None] | None = None,
    vector_dim: int | None = None,
    access_order: Sequence[int] | None = None,
    vector: int | None = None,
) -> Distribution:
    """Return the map of a tile for a thread layout, or the best map for a number of threads.

    For a number of threads, consecutive threads take consecutive vectors.  The side in global memory
    determines the order.  If both sides are in global memory, the target does, because a store that fills
    only part of a sector costs more than a load.  Vectors are as wide as both sides and the architecture
    allow.

    Args:
        sides: the accessed tensors, all of one shape; the target last.
        threads: number of threads; or a layout or counts, see `thread_map`.  Default: all threads that
            execute the recorded code, those of the role or of the block.
        projection: for a thread layout only.
        vector_dim: the dimension of the vectors; default: the contiguous one, or for a layout the last.
        access_order: for a thread layout only.
        vector: elements per access; default: as many as all sides allow.

    Raises:
        LayoutError: the threads cannot share the tile; the message gives the nearest legal choice.
    """
    number = current().default_threads() if threads is None else _number(threads)
    if number is None:
        assert threads is not None
        return thread_map(_shape(sides[-1]), threads, projection, vector_dim, access_order, vector)
    for name, given in (("projection", projection), ("access_order", access_order)):
        if given is not None:
            said = "no threads=" if threads is None else f"threads={threads}, a number"
            raise LayoutError(
                f"{name}={tuple(given)} for {said}", "a layout of threads, with one count per dimension"
            )
    tensors = [side.type for side in sides if isinstance(side.type, TensorType)]
    if not tensors:
        raise LayoutError(
            f"threads={threads} for fragments, which have their own distribution", "no threads="
        )
    return by_number(tensors, number, vector_dim, vector)


def _number(threads: Layout | int | Sequence[int]) -> int | None:
    """Return the number of threads if the author wrote a number."""
    number = None if isinstance(threads, Layout | Sequence) else unwrap(threads)
    return number if isinstance(number, int) else None


def by_number(
    tensors: Sequence[TensorType], threads: int, vector_dim: int | None = None, vector: int | None = None
) -> Distribution:
    """Return the best map for a number of threads; see `share_out`."""
    # Elements that share a byte move together, so a packed side decides before the side in global memory.
    leading = max(reversed(tensors), key=lambda kind: (kind.dtype.is_packed, kind.memory is Memory.GLOBAL))
    tile = static_tile(leading.shape)
    if not tile:
        raise LayoutError(f"threads={threads} of a single element", "a tile of shape (1,)")
    check_vector_dim(vector_dim, len(tile))
    order = _order(leading.view, vector_dim)
    alike = [kind for kind in tensors if kind.shape == leading.shape]
    widest = max(8 * recorded_for().access_bytes // max(kind.dtype.bits for kind in alike), 1)
    for kind in alike:
        widest = min(widest, max(8 * kind.align // kind.dtype.bits, 1))
        widest = kind.view.vector_width(order[0], widest) if order else 1
    least = max(kind.dtype.per_byte for kind in tensors)  # a thread takes all elements of a byte
    if tile[order[0]] % least:
        raise LayoutError(
            f"a tile of {tuple(tile)} has {tile[order[0]]} elements along dimension {order[0]}, where "
            f"{least} share a byte",
            f"{tile[order[0]] // least * least or least} elements",
        )
    widest = max(widest, least)
    if vector is not None:
        widest = least = _vector(vector, tile[order[0]], order[0])
    steps = (stride(leading.view, dim) for dim in range(len(tile)))
    known = [step if isinstance(step, int) else None for step in steps]
    return coalesced(tile, threads, order, widest, leading.dtype.bytes, known, least, lanes_recorded_for())


def _shape(side: Value) -> tuple[Int, ...]:
    return side.type.shape if isinstance(side.type, TensorType | FragmentType) else ()


def _order(view: View, vector_dim: int | None) -> tuple[int, ...]:
    """Return the dimensions sorted by stride, as far as strides are known."""
    steps = {dim: stride(view, dim) for dim in reversed(range(view.rank)) if dim != vector_dim}
    first = [] if vector_dim is None else [vector_dim]
    if vector_dim is None and 1 not in steps.values():
        # Prefer a dimension with contiguous runs, for example the taps and channels of im2col.
        runs = {dim: contiguous_run(view, dim) for dim in steps}
        first = [dim for dim, run in runs.items() if run != 1][:1]
    rest = [dim for dim in steps if dim not in first]
    return (*first, *sorted(rest, key=lambda dim: _distance(steps[dim])))


def _distance(step: Int | None) -> tuple[int, int]:
    if isinstance(step, int) and step:
        return 0, abs(step)
    return (1, 0) if step != 0 else (2, 0)


def _vector(vector: int, extent: int, dim: int) -> int:
    nearest = math.gcd(extent, max(vector, 1))
    if vector < 1 or extent % vector:
        raise LayoutError(
            f"vectors of {vector} do not divide the extent {extent} of dimension {dim}", f"vector={nearest}"
        )
    return vector
