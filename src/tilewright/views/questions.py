"""Queries on views for lowering: strides, contiguous runs, footprints."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilewright.symbolic.nodes import Int
from tilewright.symbolic.ranges import divisor
from tilewright.symbolic.rebuilding import slope, symbols
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
