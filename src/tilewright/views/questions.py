"""What lowering asks of a view beyond its vector width: strides, runs, alignment, bulk copies."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tilewright.arch import BULK
from tilewright.symbolic.expr import add, expand, less, mul, prove
from tilewright.symbolic.nodes import And, Cond, Int, Less, Sym
from tilewright.symbolic.ranges import divisor
from tilewright.symbolic.rebuilding import slope, substitute, symbols
from tilewright.views.view import View, neighbours

TMA_RANK = BULK.rank
TMA_STRIDE_BYTES = BULK.unit_bytes


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
    """The stride along each dimension; None if one of them has none.

    Example:
        >>> strides(View.strided((4, 8), (16, 1)))
        (16, 1)
    """
    found = [stride(view, dim) for dim in range(view.rank)]
    known = tuple(step for step in found if step is not None)
    return known if len(known) == view.rank else None


def contiguous_run(view: View, dim: int) -> Int:
    """The largest known n that divides the extent of ``dim`` so that aligned groups of n are contiguous.

    Unlike `View.vector_width` this asks nothing of alignment and validity.

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


def alignment(view: View, element_bytes: int, base: int = 256) -> int:
    """The largest known power of two that divides the address of the first element, in bytes.

    Args:
        view: the view.
        element_bytes: size of an element.
        base: alignment of the buffer, in bytes; a power of two.

    Example:
        >>> from tilewright.views.transforms import Slice
        >>> rows = Slice(((3, None), None)).apply(View.strided((8, 40), (40, 1)))
        >>> alignment(rows, element_bytes=2)
        16
    """
    first = substitute(view.offset, dict.fromkeys(view.coords, 0))
    address = math.gcd(divisor(first) * element_bytes, base)
    return address & -address


class Footprint(NamedTuple):
    """The elements of its buffer that a view reaches: the first, the last, and two coordinates of one."""

    first: int
    last: int
    twice: tuple[tuple[int, ...], tuple[int, ...]] | None


MOST_COORDINATES = 1 << 24
"""Of a view whose elements are counted one by one."""


@lru_cache(maxsize=1024)
def footprint(view: View) -> Footprint | None:
    """What a view reaches, element by element; None if it is not static, empty, or too large to be counted.

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


class TmaDims(NamedTuple):
    """The dimensions that a tensor memory access carries, innermost first, and why not the others."""

    dims: tuple[int, ...]
    reason: str


def tma_dims(view: View, element_bytes: int) -> TmaDims:
    """Which dimensions a tensor memory access (TMA) can carry: strided boxes, cut at edges of the tensor.

    The innermost dimension needs stride 1, all others strides of a multiple of 16 bytes; a predicate may only
    compare one coordinate with an edge, for then what lies outside reads as 0 by itself.  Dimensions of
    extent 1 need not be carried.

    Args:
        view: of a tensor in global memory.
        element_bytes: size of an element.

    Source:
        PTX ISA, "Tensors": strides and bounds of tensor maps.

    Example:
        >>> from tilewright.symbolic.expr import Sym
        >>> M, K = Sym("M", 1), Sym("K", 8, divisor=8)
        >>> tma_dims(View.strided((M, K), (K, 1)), element_bytes=2)
        TmaDims(dims=(1, 0), reason='')
        >>> tma_dims(View.strided((M, K), (K, 1)), element_bytes=1)
        TmaDims(dims=(1,), reason='the stride K of dimension 0 is no known multiple of 16 bytes')
    """
    wanted = [dim for dim in range(view.rank) if view.shape[dim] != 1]
    inner = next((dim for dim in reversed(wanted) if stride(view, dim) == 1), None)
    if inner is None:
        return TmaDims((), "no dimension has stride 1")
    carried: list[int] = []
    reasons: list[str] = []
    for dim in [inner, *(dim for dim in reversed(wanted) if dim != inner)]:
        reason = _tma_obstacle(view, dim, dim == inner, element_bytes)
        if not reason and len(carried) == TMA_RANK:
            reason = f"dimension {dim} would be the sixth; the most is {TMA_RANK}"
        if reason:
            reasons.append(reason)
        else:
            carried.append(dim)
    if inner not in carried:
        return TmaDims((), reasons[0])
    return TmaDims(tuple(carried), "; ".join(reasons))


def _tma_obstacle(view: View, dim: int, innermost: bool, element_bytes: int) -> str:
    step = stride(view, dim)
    if step is None:
        return f"dimension {dim} is not strided: offset {view.offset}"
    if not innermost:
        if prove(less(0, step)) is not True:
            return f"the stride {step} of dimension {dim} is not known to be positive"
        if divisor(step) * element_bytes % TMA_STRIDE_BYTES:
            return f"the stride {step} of dimension {dim} is no known multiple of {TMA_STRIDE_BYTES} bytes"
    for part in view.valid.parts if isinstance(view.valid, And) else (view.valid,):
        if view.coords[dim] in symbols(part) and not _is_edge(view, part, view.coords[dim]):
            return f"the predicate {part} is no edge of dimension {dim} alone"
    return ""


def _is_edge(view: View, part: Cond, index: Sym) -> bool:
    """Whether a condition is ``index + a < b`` or ``b <= index + a`` with a and b free of coordinates."""
    if not isinstance(part, Less):
        return False
    gap = expand(add(part.right, mul(part.left, -1)))
    return any(not symbols(add(gap, mul(index, sign))) & set(view.coords) for sign in (1, -1))
