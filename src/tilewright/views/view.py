"""Views: from the coordinates of a tensor to an offset in a buffer and a validity predicate.

A `View` is the pair of functions

    offset(i0, i1, ...)   element offset in the buffer
    valid(i0, i1, ...)    whether the element exists; reads of others give 0, writes are dropped

over the coordinates of ``shape``, both as symbolic expressions.  Every transform (in
`tilewright.views.transforms`) makes a new view by writing the old coordinates in terms of the new ones;
views are never changed in place.  A pure layout is a view that is always valid.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.layout.layout import Drawable
from tilewright.layout.limits import check_rank
from tilewright.symbolic.expr import add, all_of, expand, floordiv, mod, mul
from tilewright.symbolic.nodes import TRUE, And, Cond, Int, Less, Not, Or, Place, Sym, bounds, divisor
from tilewright.symbolic.rebuilding import elements, evaluate, substitute, symbols

if TYPE_CHECKING:
    from tilewright.layout.layout import Layout


def coordinate(dim: int, extent: Int, prefix: str = "i") -> Sym:
    """The canonical coordinate of dimension ``dim``: a symbol in ``[0, extent)``."""
    if isinstance(extent, int):
        return Sym(f"{prefix}{dim}", 0, max(extent - 1, 0))
    high = bounds(extent)[1]
    return Sym(f"{prefix}{dim}", 0, None if high == float("inf") else int(high) - 1, stop=extent)


def coordinates(shape: Sequence[Int], prefix: str = "i") -> tuple[Sym, ...]:
    """The canonical coordinates of a shape."""
    return tuple(coordinate(dim, extent, prefix) for dim, extent in enumerate(shape))


@layouts
@dataclass(frozen=True, slots=True, repr=False)
class View(Drawable):
    """A map from coordinates to buffer offsets, with a validity predicate.

    Args:
        shape: extent of each dimension, static or symbolic.
        offset: element offset, over ``coordinates(shape)``.
        elems: number of elements the offsets may reach: the cosize of the buffer.
        valid: whether the element at a coordinate exists.
        index: the coordinates in the base tensor, written in this view's; None: they are the same.

    Example:
        >>> view = View.strided((4, 8), (8, 1))
        >>> view.at((2, 3)), view.vector_width(1)
        (19, 8)
    """

    shape: tuple[Int, ...]
    offset: Int
    elems: Int
    valid: Cond = TRUE
    index: tuple[Int, ...] | None = None

    @staticmethod
    @layouts
    def strided(shape: Sequence[Int], strides: Sequence[Int]) -> View:
        """The view with one stride per dimension.

        Raises:
            LayoutError: shape and strides differ in rank.
        """
        if len(shape) != len(strides):
            raise LayoutError(
                f"shape {tuple(shape)} has rank {len(shape)}, strides {tuple(strides)} {len(strides)}"
            )
        index = coordinates(shape)
        offset = add(0, *(mul(i, stride) for i, stride in zip(index, strides, strict=True)))
        last = add(1, *(mul(add(n, -1), stride) for n, stride in zip(shape, strides, strict=True)))
        return View(tuple(shape), offset, expand(last))

    @staticmethod
    def row_major(shape: Sequence[Int]) -> View:
        """The view of a packed buffer whose last dimension is contiguous."""
        strides: list[Int] = [1]
        for extent in shape[:0:-1]:
            strides.insert(0, mul(strides[0], extent))
        return View.strided(shape, strides[: len(shape)])

    @staticmethod
    @layouts
    def of(layout: Layout) -> View:
        """The view of a layout; nested modes become single dimensions.

        Example:
            >>> from tilewright.layout.layout import Layout
            >>> View.of(Layout(((2, 4), 3), ((1, 6), 2))).at((5, 1))
            15
        """
        shape = tuple(mode.size for mode in layout.modes)
        return View(shape, layout(*coordinates(shape)), layout.cosize)

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def unit_dim(self) -> int | None:
        """The last dimension whose neighbours are adjacent in memory, or None.

        Example:
            >>> View.strided((4, 8), (8, 1)).unit_dim, View.strided((4, 8), (8, 2)).unit_dim
            (1, None)
        """
        for dim in reversed(range(self.rank)):
            step = [add(i, 1) if d == dim else i for d, i in enumerate(self.coords)]
            if expand(add(self.map(self.shape, step).offset, mul(self.offset, -1))) == 1:
                return dim
        return None

    def run_dim(self, width: int) -> int | None:
        """Return a dimension in which aligned groups of ``width`` neighbours are adjacent in memory.

        This is `unit_dim` if it exists.  Merged dimensions may have adjacent groups without a `unit_dim`.

        Example:
            >>> from tilewright.views.transforms import Merge
            >>> heads = Merge(0, 2).apply(View.strided((3, 64, 5), (1000, 1, 64)))
            >>> heads.unit_dim, heads.run_dim(64), heads.run_dim(128)
            (None, 0, None)
        """
        unit = self.unit_dim
        for dim in reversed(range(self.rank)) if unit is None else ():
            if divisor(self.shape[dim]) % width == 0:
                _, lane, start = neighbours(self, dim, width)
                if lane not in symbols(start):
                    return dim
        return unit

    @property
    def coords(self) -> tuple[Sym, ...]:
        """The coordinates that ``offset`` and ``valid`` are written in."""
        return coordinates(self.shape)

    @property
    def is_static(self) -> bool:
        """Whether every extent is a plain integer."""
        return all(isinstance(extent, int) for extent in self.shape)

    @property
    def base_coordinates(self) -> tuple[Int, ...]:
        """The coordinates in the base tensor as expressions over this view's coordinates."""
        return self.coords if self.index is None else self.index

    @layouts
    def map(self, shape: Sequence[Int], old: Sequence[Int], valid: Cond = TRUE) -> View:
        """Return the view over ``shape`` whose elements are this view's elements at coordinates ``old``.

        Args:
            shape: the new extents.
            old: this view's coordinates, written over ``coordinates(shape)``.
            valid: an additional predicate over the new coordinates.
        """
        check_rank("old coordinates", old, self.rank)
        # The symbols of old and new coordinates share names, so substitute through all at once.
        mapping = dict(zip(self.coords, old, strict=True))
        both = all_of(substitute(self.valid, mapping), valid)
        base = tuple(substitute(i, mapping) for i in self.base_coordinates)
        index = None if base == coordinates(shape) else base
        return View(tuple(shape), substitute(self.offset, mapping), self.elems, both, index)

    @layouts
    def at(self, index: Sequence[Place]) -> Any:
        """The offset at a coordinate; integers, expressions, or NumPy arrays."""
        return self._evaluate(self.offset, index)

    @layouts
    def valid_at(self, index: Sequence[Place]) -> Any:
        """Whether the element at a coordinate exists; a truth value, a condition, or a NumPy array."""
        return self._evaluate(self.valid, index)

    def _evaluate(self, what: Int | Cond, index: Sequence[Any]) -> Any:
        if len(index) != self.rank:
            raise LayoutError(f"{len(index)} coordinates {tuple(index)} for a view of rank {self.rank}")
        mapping = dict(zip(self.coords, index, strict=True))
        is_known = symbols(what) <= mapping.keys() and not elements(what)
        if is_known and not any(symbols(i) for i in index):
            return evaluate(what, mapping)
        return substitute(what, mapping)

    @layouts
    def vector_width(self, dim: int, limit: int = 16) -> int:
        """The largest legal vector along ``dim``: a power of two up to ``limit``, in elements.

        A width V is legal if every aligned group of V neighbours along ``dim`` is contiguous in the buffer,
        starts at a multiple of V, and exists as a whole or not at all.
        """
        width = 1
        while width * 2 <= limit and self.vector_obstacle(dim, width * 2) == "":
            width *= 2
        return width

    @layouts
    def vector_obstacle(self, dim: int, width: int) -> str:
        """Return why a vector of ``width`` elements along ``dim`` is illegal; empty if it is legal.

        Raises:
            LayoutError: the dimension does not exist, or the width is less than 1.
        """
        if not 0 <= dim < self.rank or width < 1:
            rule = f"the width is at least 1, and dimensions are 0 to {self.rank - 1}"
            text = f"vectors of {width} along dimension {dim} of a view of rank {self.rank}; {rule}"
            raise LayoutError(text)
        return _vector_obstacle(self, dim, width)

    def __str__(self) -> str:
        valid = "" if self.valid == TRUE else f" if {self.valid}"
        shape = ", ".join(str(extent) for extent in self.shape)
        return f"({shape}) -> {self.offset}{valid}"

    def __repr__(self) -> str:
        return f"View({self})"


class Neighbours(NamedTuple):
    """The positions of aligned groups of neighbours along one dimension.

    Args:
        position: the dimension's coordinate, as group and lane.
        lane: the index within the group, in ``[0, width)``.
        start: the offset of a group.  If a group is not contiguous, the expression contains ``lane``.
    """

    position: dict[Sym, Int]
    lane: Sym
    start: Int


def neighbours(view: View, dim: int, width: int) -> Neighbours:
    """Return the groups of ``width`` along ``dim``, each starting at a multiple of ``width``."""
    group = coordinate(0, floordiv(view.shape[dim], width), "vector_group")
    lane = Sym("vector_lane", 0, width - 1)
    position: dict[Sym, Int] = {view.coords[dim]: add(mul(group, width), lane)}
    start = add(expand(substitute(view.offset, position)), mul(lane, -1))
    return Neighbours(position, lane, start)


@lru_cache(maxsize=4096)
def _vector_obstacle(view: View, dim: int, width: int) -> str:
    extent = view.shape[dim]
    if width == 1:
        return ""
    if divisor(extent) % width:
        return f"the extent {extent} of dimension {dim} is not a multiple of {width}"
    position, lane, start = neighbours(view, dim, width)
    if lane in symbols(start):
        return f"{width} neighbours along dimension {dim} are not contiguous: offset {view.offset}"
    if divisor(start) % width:
        where = f"{width} neighbours along dimension {dim} start at multiples of"
        return f"{where} {math.gcd(divisor(start), width)} only: offset {view.offset}"
    for part in view.valid.parts if isinstance(view.valid, And) else (view.valid,):
        if not _uniform(substitute(part, position), lane, width):
            return f"an edge may cut {width} neighbours along dimension {dim}: not all of them have {part}"
    return ""


def _uniform(part: Cond, lane: Sym, width: int) -> bool:
    """Return whether a condition has one value for all ``lane`` in ``[0, width)``.

    ``left < right`` means ``gap >= 0`` with ``gap = right - left - 1``.  For ``gap = g - lane`` the condition
    is uniform if ``g % width == width - 1``; for ``gap = g + lane``, if ``g % width == 0``.
    """
    if lane not in symbols(part):
        return True
    match part:
        case And() | Or():
            return all(_uniform(piece, lane, width) for piece in part.parts)
        case Not():
            return _uniform(part.part, lane, width)
        case Less():
            gap = expand(add(part.right, mul(part.left, -1), -1))
            for sign, remainder in ((-1, width - 1), (1, 0)):
                rest = add(gap, mul(lane, -sign))
                if lane not in symbols(rest):
                    return mod(rest, width) == remainder
    return False
