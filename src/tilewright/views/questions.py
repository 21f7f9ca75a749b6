"""Queries on views for lowering: strides, contiguous runs, footprints, spans of slices and tiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilewright.symbolic.expr import add, ceil_div, less_equal, prove
from tilewright.symbolic.nodes import Int, divisor
from tilewright.symbolic.rebuilding import slope, symbols
from tilewright.views.transforms import Slice, Tile, slice_span
from tilewright.views.view import View, neighbours


def stride(view: View, dim: int) -> Int | None:
    """``offset(i + 1) - offset(i)`` along ``dim``, if it is the same at every coordinate, else None.

    Example:
        >>> from tilewright.views.transforms import Merge
        >>> view = View.strided((4, 8), (16, 1))
        >>> stride(view, 0), stride(Merge(0, 2).apply(view), 0)
        (16, None)
    """
    step = slope(view.offset, view.coords[dim])
    return None if step is None or symbols(step) & set(view.coords) else step


def strides(view: View) -> tuple[Int, ...] | None:
    """Return the stride along each dimension, or None if one dimension has no constant stride.

    Example:
        >>> strides(View.strided((4, 8), (16, 1)))
        (16, 1)
    """
    found = [stride(view, dim) for dim in range(view.rank)]
    known = tuple(step for step in found if step is not None)
    return known if len(known) == view.rank else None


def contiguous_run(view: View, dim: int) -> Int:
    """The largest known n that divides the extent of ``dim`` so that aligned groups of n are contiguous.

    Unlike `View.vector_width` this ignores alignment and validity.

    Example:
        >>> from tilewright.views.transforms import Swizzle, Unmerge
        >>> view = View.strided((8, 64), (64, 1))
        >>> contiguous_run(view, 1), contiguous_run(Swizzle(3, 3, 3).apply(view), 1), contiguous_run(view, 0)
        (64, 8, 1)
    """
    if stride(view, dim) == 1:
        return view.shape[dim]
    known = divisor(view.shape[dim])
    for width in sorted((n for n in range(2, known + 1) if known % n == 0), reverse=True):
        _, lane, start = neighbours(view, dim, width)
        if lane not in symbols(start):
            return width
    return 1


class Footprint(NamedTuple):
    """First and last buffer offset of a view, and two coordinates that share an element, if any do."""

    first: int
    last: int
    twice: tuple[tuple[int, ...], tuple[int, ...]] | None


MOST_COORDINATES = 1 << 24
"""Largest view, in elements, whose footprint is computed by enumeration."""


@lru_cache(maxsize=1024)
def footprint(view: View) -> Footprint | None:
    """Return the footprint of a view by enumeration; None if it is not static, is empty, or is too large.

    Example:
        >>> footprint(View.strided((4, 8), (4, 1)))
        Footprint(first=0, last=19, twice=((0, 4), (1, 0)))
        >>> footprint(View.strided((4, 8), (1, 4))).twice is None
        True
    """
    shape = tuple(extent for extent in view.shape if isinstance(extent, int) and extent > 0)
    unknown = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
    if len(shape) != view.rank or unknown or math.prod(shape) > MOST_COORDINATES:
        return None
    index = np.indices(shape, sparse=True)
    exists = np.broadcast_to(view.valid_at(index), shape)
    reached = np.broadcast_to(view.at(index), shape)[exists]
    if not reached.size:
        return None
    first, last = int(reached.min()), int(reached.max())
    order = np.argsort(reached, kind="stable")
    repeated = order[1:][np.diff(reached[order]) == 0]
    if not repeated.size:
        return Footprint(first, last, None)
    again = repeated.min()
    places = np.argwhere(exists)[[np.flatnonzero(reached == reached[again])[0], again]].tolist()
    return Footprint(first, last, (tuple(places[0]), tuple(places[1])))


# ---------------------------------------------------------------- spans


@dataclass(frozen=True, slots=True)
class DimensionRange:
    """The range that a view takes of one dimension of its parent; it must lie in ``[0, extent)``.

    Args:
        dim: the dimension.
        low: first index.
        high: end of the range, excluded.
        extent: extent of the dimension; for tiles, the number of tiles.
        kind: ``"index"``, ``"slice"`` or ``"tile"``.
        is_masked: whether elements outside are invalid; otherwise they are other elements of the buffer.
    """

    dim: int
    low: Int
    high: Int
    extent: Int
    kind: str
    is_masked: bool

    @property
    def is_proven(self) -> bool:
        """Whether the span lies in the dimension for all values of the symbols."""
        return prove(less_equal(0, self.low)) is True and prove(less_equal(self.high, self.extent)) is True

    def shown(self, low: object, high: object) -> str:
        """Return the span as an author writes it, with these ends."""
        return f"{self.kind} {low}:{high}" if self.kind == "slice" else f"{self.kind} {low}"


def unproven_spans(transform: Slice | Tile, view: View) -> tuple[DimensionRange, ...]:
    """Return the spans of a transform that are not proven to lie in a view.

    Example:
        >>> from tilewright.symbolic.nodes import Sym
        >>> view = View.strided((8, 4), (4, 1))
        >>> unproven_spans(Slice((Sym("r"), (0, 4))), view)
        (DimensionRange(dim=0, low=r, high=r + 1, extent=8, kind='index', is_masked=False),)
        >>> unproven_spans(Tile((4, 4), (Sym("r", 0, 1), 0)), view)
        ()
    """
    made = []
    if isinstance(transform, Slice):
        for dim, (part, extent) in enumerate(zip(transform.at, view.shape, strict=True)):
            kind = "slice" if part is None or isinstance(part, tuple) else "index"
            span = slice_span(part, extent)
            made.append(DimensionRange(dim, *span, extent, kind, dim in transform.edges))
    else:
        for dim, (length, at, extent) in enumerate(
            zip(transform.shape, transform.at, view.shape, strict=True)
        ):
            if length is not None and at is not None:
                tiles = ceil_div(extent, length)
                made.append(DimensionRange(dim, at, add(at, 1), tiles, "tile", True))
    return tuple(span for span in made if not span.is_proven)
