"""Layouts: functions from coordinates to offsets, written ``shape:stride``, possibly nested.

A layout of shape ``(s0, s1, ...)`` and stride ``(d0, d1, ...)`` maps the coordinate ``(c0, c1, ...)`` to
``c0*d0 + c1*d1 + ...``.  Each entry is a mode, and a mode may itself be a layout.  An integer index into a
nested mode, or into a whole layout, counts through its coordinates with the first one fastest.  The notation
and the operation names are those of CuTe.  `tilewright.layout.algebra` has the algebra.
"""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tilewright.calls import layouts
from tilewright.errors import LayoutError, shown
from tilewright.layout.tuples import (
    IntTuple,
    canonical,
    congruent,
    depth,
    flat,
    format_tuple,
    product,
    unflatten,
)
from tilewright.symbolic.expr import add, expand, less, maximum, mul, prove
from tilewright.symbolic.nodes import Expr, Int, bounds

# ---------------------------------------------------------------- pictures in notebooks
# A higher-level package registers the drawing function.


Draw = Callable[[object], str | None]
DrawType = TypeVar("DrawType", bound=Draw)

_draw: list[Draw] = []


def shows(draw: DrawType) -> DrawType:
    """Register the function that draws an object as SVG; it returns None if there is nothing to draw."""
    _draw[:] = [draw]
    return draw


class Drawable:
    """Base class of objects that notebooks show as a picture."""

    __slots__ = ()

    def _repr_svg_(self) -> str | None:
        """Return SVG for a notebook, or None to show the text."""
        return _draw[0](self) if _draw else None


@layouts
@dataclass(frozen=True, slots=True, init=False, repr=False)
class Layout(Drawable):
    """A map from nested coordinates to offsets: ``offset(c) = sum(c_i * stride_i)``.

    Args:
        shape: an extent, or a nested tuple of extents; integers or symbolic integers.
        stride: strides in the same structure; default: packed, dimension 0 fastest.

    Raises:
        LayoutError: shape and stride differ in structure, or an extent is less than 1.

    Example:
        >>> layout = Layout((4, (2, 3)), (1, (4, 8)))
        >>> print(layout, layout.size, layout.cosize, layout.rank, layout.depth)
        (4,(2,3)):(1,(4,8)) 24 24 2 2
        >>> layout(5), layout(1, 1), layout(1, (1, 0))
        (5, 5, 5)
    """

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: Any, stride: Any = None) -> None:
        extents = canonical(shape)
        for extent in flat(extents):
            if prove(less(extent, 1)) is True:
                raise LayoutError(
                    f"extent {extent} of the layout's shape {format_tuple(extents)} is less than 1"
                )
        strides = packed(extents) if stride is None else canonical(stride)
        if not congruent(extents, strides):
            raise LayoutError(
                f"shape {format_tuple(extents)} and stride {format_tuple(strides)} differ in structure; "
                f"a stride of that structure is {format_tuple(packed(extents))}"
            )
        object.__setattr__(self, "shape", extents)
        object.__setattr__(self, "stride", strides)

    @property
    def size(self) -> Int:
        """The number of coordinates: the product of all extents."""
        return product(self.shape)

    @property
    def cosize(self) -> Int:
        """The largest offset plus one: the number of elements that a buffer needs.

        Example:
            >>> Layout((4, 8), (16, 1)).cosize
            56
        """
        spans = [
            mul(add(n, -1), d if bounds(d)[0] >= 0 else maximum(d, 0))
            for n, d in zip(flat(self.shape), flat(self.stride), strict=True)
        ]
        return expand(add(1, *spans))

    @property
    def rank(self) -> int:
        """The number of modes; 1 for a plain extent."""
        return len(self.modes)

    @property
    def depth(self) -> int:
        """The number of nested parentheses of the shape; 0 for a plain extent."""
        return depth(self.shape)

    @property
    def modes(self) -> tuple[Layout, ...]:
        """The modes as layouts.

        Example:
            >>> [str(mode) for mode in Layout((4, (2, 3))).modes]
            ['4:1', '(2,3):(4,8)']
        """
        if isinstance(self.shape, tuple) and isinstance(self.stride, tuple):
            return tuple(Layout(n, d) for n, d in zip(self.shape, self.stride, strict=True))
        return (self,)

    @property
    def is_static(self) -> bool:
        """Whether every extent and every stride is a plain integer."""
        return all(isinstance(leaf, int) for leaf in (*flat(self.shape), *flat(self.stride)))

    def __call__(self, *coords: Any) -> Any:
        """The offset at a coordinate.

        Args:
            coords: one index for the whole layout, or one coordinate per mode; a coordinate of a nested mode
                is an index or a tuple.  Integers, NumPy integer arrays, or symbolic integers.

        Raises:
            LayoutError: the coordinate does not fit the shape, or lies outside it.

        Example:
            >>> layout = Layout(((2, 4), 3), ((1, 6), 2))
            >>> layout(5, 1), layout((1, 2), 1), layout(13)
            (15, 15, 15)
        """
        whole = coords[0] if len(coords) == 1 else coords
        if isinstance(whole, tuple) and isinstance(self.shape, tuple) and len(whole) != len(self.shape) == 1:
            whole = coords
        return _offset(whole, self.shape, self.stride)

    def __getitem__(self, coords: Any) -> tuple[Layout, Int]:
        """The sub-layout at a coordinate; ``:`` or None keeps a mode.  See `slice`."""
        return self.slice(*coords) if isinstance(coords, tuple) else self.slice(coords)

    def slice(self, *coords: Any) -> tuple[Layout, Int]:
        """Return the layout of the kept modes, and the offset of the given indices.

        Args:
            coords: per mode an index, a tuple for a nested mode, or None (in brackets: ``:``) to keep it.

        Returns:
            A new layout and an offset: ``self(i, j) == kept(j) + offset``.  This layout does not change.

        Raises:
            LayoutError: the number of coordinates is not the rank, or an index lies outside.

        Example:
            >>> layout = Layout((4, (2, 3)), (1, (4, 8)))
            >>> layout[2, :]
            (Layout((2, 3), (4, 8)), 2)
            >>> layout.slice(None, (1, None))
            (Layout((4, 3), (1, 8)), 4)
        """
        if isinstance(self.shape, tuple):
            kept, offset = _slice(coords, self.shape, self.stride)
        elif len(coords) == 1:
            kept, offset = _slice(coords[0], self.shape, self.stride)
        else:
            raise _misfit(coords, self.shape)
        if len(kept) == 1:
            return Layout(*kept[0]), offset
        return Layout(tuple(n for n, _ in kept), tuple(d for _, d in kept)), offset

    def __str__(self) -> str:
        return f"{format_tuple(self.shape)}:{format_tuple(self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"


def packed(shape: IntTuple, first: Int = 1) -> IntTuple:
    """The strides of a packed layout, dimension 0 fastest, starting at ``first``.

    Example:
        >>> packed((4, (2, 3)))
        (1, (4, 8))
    """
    strides: list[Int] = []
    for extent in flat(shape):
        strides.append(first)
        first = mul(first, extent)
    return unflatten(iter(strides), shape)


@layouts
def column_major(shape: Any, stride: Int | None = None) -> Layout:
    """The layout whose first mode is fastest; ``stride`` is the distance between columns (mode 1).

    Raises:
        LayoutError: the stride is shorter than a column.

    Example:
        >>> print(column_major((4, 8)), column_major((4, 8), 6))
        (4,8):(1,4) (4,8):(1,6)
    """
    modes = canonical(shape)
    if stride is None:
        return Layout(modes)
    if not isinstance(modes, tuple) or len(modes) < 2:
        raise LayoutError(
            f"a stride of {stride} between columns for the shape {format_tuple(modes)}, which has no columns"
        )
    if prove(less(stride, product(modes[0]))) is True:
        raise LayoutError(
            f"column stride {stride} is shorter than a column; the least is {product(modes[0])}"
        )
    rest = packed(modes[1:], stride)
    assert isinstance(rest, tuple)
    return Layout(modes, (packed(modes[0]), *rest))


@layouts
def row_major(shape: Any, stride: Int | None = None) -> Layout:
    """The layout whose last mode is fastest; ``stride`` is the distance between rows (the mode before).

    Raises:
        LayoutError: the stride is shorter than a row.

    Example:
        >>> print(row_major((4, 8)), row_major((4, 8), 12), row_major((2, 4, 8), 12))
        (4,8):(8,1) (4,8):(12,1) (2,4,8):(48,12,1)
    """
    modes = canonical(shape)
    return Layout(modes, _mirror(column_major(_mirror(modes), stride).stride))


def _mirror(value: IntTuple) -> IntTuple:
    return tuple(_mirror(part) for part in reversed(value)) if isinstance(value, tuple) else value


def _misfit(coord: Any, shape: IntTuple) -> LayoutError:
    return LayoutError(f"coordinate {shown(coord)} does not fit the shape {format_tuple(shape)}")


def _index(coord: Any, shape: IntTuple) -> Any:
    """Convert an index to a plain integer, an expression, or an array."""
    if isinstance(coord, Expr):
        return coord
    if isinstance(coord, np.ndarray):
        if coord.dtype.kind not in "iu":
            raise LayoutError(f"an array of {coord.dtype} is not an index; use an integer dtype")
        return coord.astype(np.int64)
    try:
        return operator.index(coord)
    except TypeError:
        raise _misfit(coord, shape) from None


def _offset(coord: Any, shape: IntTuple, stride: IntTuple) -> Any:
    if isinstance(coord, tuple):
        if not (isinstance(shape, tuple) and isinstance(stride, tuple) and len(coord) == len(shape)):
            raise _misfit(coord, shape)
        parts = [_offset(c, n, d) for c, n, d in zip(coord, shape, stride, strict=True)]
        return sum(parts[1:], parts[0]) if parts else 0
    index, size = _index(coord, shape), product(shape)
    if isinstance(index, np.ndarray):
        if not Layout(shape, stride).is_static:
            raise LayoutError(
                f"an array as index of {Layout(shape, stride)}; only a static layout takes arrays"
            )
        outside = bool(index.size) and (index.min() < 0 or prove(less(int(index.max()), size)) is False)
    else:
        outside = prove(less(index, 0)) is True or prove(less(index, size)) is False
    if outside:
        raise LayoutError(f"coordinate {index} is outside [0, {size})")
    extents, strides = flat(shape), flat(stride)
    total: Any = 0
    for extent, step in zip(extents[:-1], strides[:-1], strict=True):
        total = total + index % extent * step
        index = index // extent
    return total + index * (strides[-1] if strides else 0)


Kept = tuple[tuple[IntTuple, IntTuple], ...]


def _slice(coord: Any, shape: IntTuple, stride: IntTuple) -> tuple[Kept, Int]:
    if coord is None or (isinstance(coord, builtins.slice) and coord == builtins.slice(None)):
        return ((shape, stride),), 0
    if isinstance(coord, builtins.slice):
        rule = "a layout keeps whole modes (use :), a view takes boxes"
        text = f"slice {coord.start}:{coord.stop} of the mode {format_tuple(shape)}; {rule}"
        raise LayoutError(text)
    if not isinstance(coord, tuple):
        return (), _offset(coord, shape, stride)
    if not (isinstance(shape, tuple) and isinstance(stride, tuple) and len(coord) == len(shape)):
        raise _misfit(coord, shape)
    kept: list[tuple[IntTuple, IntTuple]] = []
    offset: Int = 0
    for c, n, d in zip(coord, shape, stride, strict=True):
        inner, shift = _slice(c, n, d)
        offset = add(offset, shift)
        if isinstance(c, tuple) and len(inner) > 1:
            kept.append((tuple(part for part, _ in inner), tuple(part for _, part in inner)))
        else:
            kept.extend(inner)
    return tuple(kept), offset
