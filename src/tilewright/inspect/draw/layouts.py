"""Pictures of layouts and views, and of maps from threads to elements, also for notebooks."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.argument_checks import Count
from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.inspect.draw.grids import (
    NOTHING,
    Grid,
    GridCell,
    Swatch,
    check_size,
    grid_of,
    picture_of,
    table,
)
from tilewright.inspect.draw.picture import Picture, of_fraction, of_thread
from tilewright.layout.layout import Layout
from tilewright.layout.limits import LANES
from tilewright.layout.tuples import flat
from tilewright.symbolic.rebuilding import symbols
from tilewright.threads.distribution import Distribution
from tilewright.views.view import View


@layouts
def offset_table(layout: Layout | View) -> str:
    """Return the offsets as a text table: a row per coordinate of all dimensions but the last.

    Args:
        layout: a static layout or view; elements of a view that do not exist show as ``·``.

    Raises:
        LayoutError: it is no layout, not static, or too large to be drawn.

    Example:
        >>> print(offset_table(Layout((2, (2, 2)), (2, (1, 4)))))
           0  1  2  3
        0  0  1  4  5
        1  2  3  6  7
    """
    return "\n".join("".join(span.text for span in line).rstrip() for line in table(_grid(layout)))


@layouts
def draw_layout(layout: Layout | View, title: str | None = None) -> Picture:
    """Draw the offset of every coordinate; darker cells have larger offsets.

    In large layouts, neighbours in the buffer are one box with the offset of the first.

    Args:
        layout: a static layout or view; elements of a view that do not exist are hatched, and thick lines
            separate the modes of a nested layout.
        title: the title; default: the layout itself.

    Raises:
        LayoutError: it is no layout, not static, or too large to be drawn.

    Example:
        >>> draw_layout(Layout((4, (2, 4)), (2, (1, 8)))).title
        'Layout (4,(2,4)):(2,(1,8))'
    """
    grid = _grid(layout)
    reach = _reach(layout)
    if isinstance(layout, View):
        name, about = f"View of {' x '.join(map(str, layout.shape))}", [str(layout), reach]
    else:
        coordinate = ", ".join(f"i{dim}" for dim in range(layout.rank))
        name, about = f"Layout {layout}", [f"({coordinate}) -> offset, {reach}"]
    legend = [Swatch(of_fraction(0), "first offset"), Swatch(of_fraction(1), "last offset")]
    if any(cell.fill is None for row in grid.cells for cell in row):
        legend.append(Swatch(None, "hatched: no such element, reads as 0"))
    if any(cell.group for row in grid.cells for cell in row):
        legend.append(Swatch(None, "thick lines: modes within modes"))
    box = "a box: neighbours in the buffer, the first's offset"
    return picture_of(name if title is None else title, about, grid, legend, box)


def offsets_of(layout: Layout | View) -> tuple[Sequence[int], list[int | None]]:
    """Return the shape, and the offset of every coordinate in row-major order; None without an element.

    Raises:
        LayoutError: it is no layout, not static, or too large to be drawn.

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
    # Cells of different inner sub-modes are different groups.
    inner: dict[int, int] = {}
    for dim, mode in enumerate(layout.modes if isinstance(layout, Layout) else ()):
        parts = [part for part in flat(mode.shape) if isinstance(part, int)]
        if len(parts) > 1 and isinstance(mode.shape, tuple) and parts[0] > 1:
            inner[dim] = parts[0]
    for place, at in zip(itertools.product(*map(range, shape)), offsets, strict=True):
        group = tuple(place[dim] // size for dim, size in inner.items())
        run += not (at is not None and before is not None and at == before + 1)
        before = at
        where = ", ".join(map(str, place))
        if at is None:
            cells.append(GridCell((NOTHING,), None, None, "", group, f"({where}): no element"))
        else:
            fill = of_fraction((at - least) / span)
            cells.append(GridCell((str(at),), fill, run, str(at), group, f"({where}): offset {at}"))
    return grid_of(cells, shape)


def _reach(layout: Layout | View) -> str:
    """Describe the size of the buffer, or the range of offsets if some are negative."""
    offsets = [at for at in offsets_of(layout)[1] if at is not None]
    if min(offsets, default=0) < 0:
        return f"offsets {min(offsets)} to {max(offsets)}"
    elems = layout.cosize if isinstance(layout, Layout) else layout.elems
    return f"{elems} elements in the buffer"


# ---------------------------------------------------------------- maps (thread, value) -> coordinate
#
# The picture shows which thread holds each element of a tile.


WARP = REFERENCE.lanes


@layouts(lanes=LANES)
def draw_distribution(distribution: Distribution, title: str | None = None, lanes: Count = WARP) -> Picture:
    """Draw the thread that holds each element of a tile, and the index of its value.

    In large tiles, neighbours of one thread are one box.

    Args:
        distribution: the distribution of a tile.
        title: the title; default: extents.
        lanes: threads per warp; thick lines separate warps.

    Raises:
        LayoutError: it is no distribution, or its tile is too large to be drawn.

    Example:
        >>> from tilewright.threads.distribution import blocked
        >>> draw_distribution(blocked((4, 8), threads=(4, 2), order=(1, 0))).title
        'Tile of 4 x 8 on 8 threads'
    """
    shape = distribution.shape
    check_size(shape)
    cells = [_cell(at, held, lanes) for at, held in holders(distribution).items()]
    grid = grid_of(cells, shape or (1,))
    extents = " x ".join(map(str, shape))
    if title is None:
        title = f"Tile of {extents} on {distribution.size_threads} threads"
    threads, values, copies = distribution.size_threads, distribution.size_values, distribution.copies
    text = f"{threads} threads, {values} value{'s' * (values != 1)} each"
    coordinate = ", ".join(f"i{dim}" for dim in range(distribution.rank))
    about = [f"(thread, value) -> ({coordinate})", text + (f", {copies} copies" if copies > 1 else "")]
    legend = [Swatch(of_thread(thread), f"T{thread}") for thread in range(0, min(threads, lanes), 4)]
    legend.append(Swatch(None, "T thread, V value of the thread"))
    if len({cell.group for row in grid.cells for cell in row}) > 1:
        legend.append(Swatch(None, f"thick lines: warps of {lanes}"))
    if any(cell.fill is None for row in grid.cells for cell in row):
        legend.append(Swatch(None, "hatched: held by no thread"))
    return picture_of(title, about, grid, legend, "a box: neighbours that one thread holds")


def holders(distribution: Distribution) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """Return the (thread, value) pairs that hold each coordinate, in order of threads.

    Raises:
        LayoutError: a thread holds a coordinate outside of the tile.

    Example:
        >>> from tilewright.threads.distribution import blocked
        >>> holders(blocked((2, 2), threads=(2, 1), order=(0, 1)))[1, 0]
        [(1, 0)]
    """
    held: dict[tuple[int, ...], list[tuple[int, int]]] = {at: [] for at in np.ndindex(distribution.shape)}
    pairs = itertools.product(range(distribution.size_threads), range(distribution.size_values))
    for thread, value in pairs:
        at = tuple(distribution.table[thread, value].tolist())
        if at not in held:
            raise LayoutError(
                f"value {value} of thread {thread} is {at}, outside of a tile of {distribution.shape}"
            )
        held[at].append((thread, value))
    return held


def spelled(numbers: Sequence[int]) -> str:
    """Shorten a list of numbers: evenly spaced numbers become their first and last one.

    Example:
        >>> spelled([3]), spelled([0, 1, 2, 3]), spelled([0, 4]), spelled([0, 4, 8, 12]), spelled([1, 2, 9])
        ('3', '0-3', '0,4', '0,4..12', '1,2…')
    """
    if len(numbers) < 3:
        return ",".join(map(str, numbers))
    steps = {b - a for a, b in itertools.pairwise(numbers)}
    if steps == {1}:
        return f"{numbers[0]}-{numbers[-1]}"
    return f"{numbers[0]},{numbers[1]}" + (f"..{numbers[-1]}" if len(steps) == 1 else "…")


def _cell(at: tuple[int, ...], held: list[tuple[int, int]], lanes: Count) -> GridCell:
    where = ", ".join(map(str, at))
    if not held:
        return GridCell((NOTHING,), None, None, "", None, f"({where}): held by none")
    threads = tuple(dict.fromkeys(thread for thread, _ in held))
    values = sorted({value for _, value in held})
    who, which = f"T{spelled(threads)}", f"V{spelled(values)}"
    note = f"({where}): {who} {which}"
    return GridCell((who, which), of_thread(threads[0]), threads, who, threads[0] // lanes, note)


# ---------------------------------------------------------------- notebooks


def svg_of(what: object) -> str | None:
    """Return a picture as SVG; None if the object is symbolic, too large, or has no picture.

    Example:
        >>> str(svg_of(Layout((2, 2)))).startswith("<svg "), svg_of(Layout((4096, 4096)))
        (True, None)
    """
    try:
        match what:
            case Layout() | View():
                return draw_layout(what).svg
            case Distribution():
                return draw_distribution(what).svg
    except LayoutError:
        pass
    return None
