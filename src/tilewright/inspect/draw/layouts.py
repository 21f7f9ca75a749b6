"""Layouts and views: the offset of every coordinate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.inspect.draw.grids import NOTHING, Cell, Grid, Swatch, check_size, grid_of, picture_of, table
from tilewright.inspect.draw.palette import of_fraction
from tilewright.inspect.draw.picture import Picture
from tilewright.layout.layout import Layout
from tilewright.layout.tuples import flat
from tilewright.symbolic.rebuilding import symbols
from tilewright.views.view import View


@layouts
def offset_table(layout: Layout | View) -> str:
    """The offsets as a text table: a row per coordinate of all dimensions but the last.

    Args:
        layout: a static layout or view; elements of a view that do not exist show as ``·``.

    Raises:
        LayoutError: it is no layout, not static, or has too many elements to look at.

    Example:
        >>> print(offset_table(Layout((2, (2, 2)), (2, (1, 4)))))
           0  1  2  3
        0  0  1  4  5
        1  2  3  6  7
    """
    return "\n".join("".join(span.text for span in line).rstrip() for line in table(_grid(layout)))


@layouts
def draw_layout(layout: Layout | View, title: str | None = None) -> Picture:
    """Draw the offset of every coordinate; darker cells lie further back in the buffer.

    Where there are too many cells for a number in each, elements that lie side by side in the buffer are one
    box with the offset of the first.

    Args:
        layout: a static layout or view; elements of a view that do not exist are hatched, and thick lines
            part the modes of a nested layout.
        title: what to write above; default: the layout itself.

    Raises:
        LayoutError: it is no layout, not static, or has too many elements to look at.

    Example:
        >>> draw_layout(Layout((4, (2, 4)), (2, (1, 8)))).title
        'Layout (4,(2,4)):(2,(1,8))'
    """
    grid = _grid(layout)
    if title is None:
        title = f"Layout {layout}" if isinstance(layout, Layout) else f"View of {_extents(layout.shape)}"
    reach = _reach(layout)
    about = [f"({', '.join(f'i{dim}' for dim in range(layout.rank))}) -> offset, {reach}"]
    if isinstance(layout, View):
        about = [str(layout), reach]
    legend = [Swatch(of_fraction(0), "first offset"), Swatch(of_fraction(1), "last offset")]
    if any(cell.fill is None for row in grid.cells for cell in row):
        legend.append(Swatch(None, "hatched: no such element, reads as 0"))
    if any(cell.group for row in grid.cells for cell in row):
        legend.append(Swatch(None, "thick lines: modes within modes"))
    return picture_of(title, about, grid, legend, "a box: neighbours in the buffer, the first's offset")


def offsets_of(layout: Layout | View) -> tuple[Sequence[int], list[int | None]]:
    """Its shape, and the offset of every coordinate in row-major order; None where no element exists.

    Raises:
        LayoutError: it is no layout, not static, or has too many elements to look at.

    Example:
        >>> offsets_of(Layout((2, 2)))
        ((2, 2), [0, 2, 1, 3])
    """
    view = View.of(layout) if isinstance(layout, Layout) else layout
    free = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
    if free or not view.is_static:
        raise LayoutError(f"{layout} is not static; give its sizes values to look at it")
    shape: tuple[Any, ...] = view.shape
    check_size(shape)
    index = tuple(np.indices(shape))
    offset = np.broadcast_to(view.at(index), shape).ravel().tolist()
    valid = np.broadcast_to(view.valid_at(index), shape).ravel().tolist()
    return shape, [at if exists else None for at, exists in zip(offset, valid, strict=True)]


def _grid(layout: Layout | View) -> Grid:
    shape, offsets = offsets_of(layout)
    least = min([0, *(at for at in offsets if at is not None)])
    span = max([1, *(at - least for at in offsets if at is not None)])
    cells = []
    before, run = None, 0
    groups = _mode_groups(layout, shape)
    for place, at, group in zip(itertools.product(*map(range, shape)), offsets, groups, strict=True):
        run += not (at is not None and before is not None and at == before + 1)
        before = at
        where = ", ".join(map(str, place))
        if at is None:
            cells.append(Cell((NOTHING,), None, None, "", group, f"({where}): no element"))
        else:
            fill = of_fraction((at - least) / span)
            cells.append(Cell((str(at),), fill, run, str(at), group, f"({where}): offset {at}"))
    return grid_of(cells, shape)


def _mode_groups(layout: Layout | View, shape: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """For each coordinate, how many of the innermost sub-modes of nested modes it has passed."""
    inner = [0] * len(shape)
    if isinstance(layout, Layout):
        for dim, mode in enumerate(layout.modes):
            parts = [part for part in flat(mode.shape) if isinstance(part, int)]
            inner[dim] = parts[0] if len(parts) > 1 and isinstance(mode.shape, tuple) else 0
    parted = [(dim, size) for dim, size in enumerate(inner) if size > 1]
    for place in itertools.product(*map(range, shape)):
        yield tuple(place[dim] // size for dim, size in parted)


def _reach(layout: Layout | View) -> str:
    """The elements of the buffer; where some lie before its first one, the offsets."""
    offsets = [at for at in offsets_of(layout)[1] if at is not None]
    if min(offsets, default=0) < 0:
        return f"offsets {min(offsets)} to {max(offsets)}"
    elems = layout.cosize if isinstance(layout, Layout) else layout.elems
    return f"{elems} elements in the buffer"


def _extents(shape: Sequence[Any]) -> str:
    return " x ".join(map(str, shape))
