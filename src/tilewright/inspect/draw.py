"""Pictures of layouts, views and distributions, as text tables and as PNG or SVG files."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.errors import LayoutError, ToolchainError
from tilewright.layout.distribution import Distribution
from tilewright.layout.layout import Layout
from tilewright.layout.view import View
from tilewright.layout.walk import symbols

MOST_CELLS = 8192
INVALID = "·"
CELL_INCHES = 0.42


def offset_table(layout: Layout | View) -> str:
    """The offsets as a text table: a row per coordinate of all dimensions but the last.

    Args:
        layout: a static layout or view; elements of a view that do not exist show as ``·``.

    Raises:
        LayoutError: it is not static, or has too many elements to look at.

    Example:
        >>> print(offset_table(Layout((2, (2, 2)), (2, (1, 4)))))
           0  1  2  3
        0  0  1  4  5
        1  2  3  6  7
    """
    grid = _offsets(layout)
    rows = [["", *grid.columns]]
    rows += [[label, *(cell.text for cell in row)] for label, row in zip(grid.rows, grid.cells, strict=True)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(text.rjust(width) for text, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def draw_layout(layout: Layout | View, path: str | Path, title: str | None = None) -> Path:
    """Draw the offset of every coordinate; darker cells lie further back in the buffer.

    Args:
        layout: a static layout or view; elements of a view that do not exist are hatched.
        path: the file to write; its suffix (``.png``, ``.svg``, ``.pdf``) says the format.
        title: what to write above; default: the layout itself.

    Returns:
        The path.

    Raises:
        LayoutError: it is not static, or has too many elements to look at.
        ToolchainError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     draw_layout(Layout((4, (2, 4)), (2, (1, 8))), f"{directory}/nested.svg").stat().st_size > 1000
        True
    """
    return _draw(_offsets(layout), path, str(layout) if title is None else title)


def draw_distribution(distribution: Distribution, path: str | Path, title: str | None = None) -> Path:
    """Draw who holds each coordinate of a tile: a colour per thread, labels thread and value.

    Args:
        distribution: of a tile.
        path: the file to write; its suffix (``.png``, ``.svg``, ``.pdf``) says the format.
        title: what to write above; default: extents and numbers of threads and values.

    Returns:
        The path.

    Raises:
        LayoutError: the tile has too many elements to look at.
        ToolchainError: matplotlib is not installed.

    Example:
        >>> import tempfile
        >>> from tilewright.layout.distribution import blocked
        >>> rows = blocked((4, 8), threads=(4, 2), order=(1, 0))
        >>> with tempfile.TemporaryDirectory() as directory:
        ...     draw_distribution(rows, f"{directory}/rows.png").stat().st_size > 1000
        True
    """
    if title is None:
        shape = " x ".join(map(str, distribution.shape))
        title = f"{shape} on {distribution.size_threads} threads, {distribution.size_values} values each"
    return _draw(_holders(distribution), path, title)


@dataclass(frozen=True)
class _Cell:
    """What stands in a cell, and its shade: a fraction of the colour map, or None where nothing exists."""

    text: str
    shade: float | None


@dataclass(frozen=True)
class _Grid:
    cells: list[list[_Cell]]
    rows: list[str]
    columns: list[str]
    colours: str


def _offsets(layout: Layout | View) -> _Grid:
    view = View.of(layout) if isinstance(layout, Layout) else layout
    free = (symbols(view.offset) | symbols(view.valid)) - set(view.coords)
    if free or not view.is_static:
        raise LayoutError(f"{layout} is not static; give its sizes values to look at it")
    shape = _check_size(view.shape)
    index = tuple(np.indices(shape))
    offset = np.broadcast_to(view.at(index), shape).ravel().tolist()
    valid = np.broadcast_to(view.valid_at(index), shape).ravel().tolist()
    span = max([1, *(at for at, exists in zip(offset, valid, strict=True) if exists)])
    cells = [
        _Cell(str(at), 0.05 + 0.5 * at / span) if exists else _Cell(INVALID, None)
        for at, exists in zip(offset, valid, strict=True)
    ]
    return _grid(cells, shape, "YlGnBu")


def _holders(distribution: Distribution) -> _Grid:
    shape = _check_size(distribution.shape)
    holders: dict[tuple[int, ...], list[tuple[int, int]]] = {at: [] for at in np.ndindex(shape)}
    for thread, value in itertools.product(range(distribution.size_threads), range(distribution.size_values)):
        holders[tuple(distribution.table[thread, value].tolist())].append((thread, value))
    cells = [_holder(held) for held in holders.values()]
    return _grid(cells, shape, "tab20")


def _holder(held: list[tuple[int, int]]) -> _Cell:
    if not held:
        return _Cell(INVALID, None)
    threads = ",".join(str(thread) for thread, _ in held[:2]) + ("…" if len(held) > 2 else "")
    return _Cell(f"T{threads}\nV{held[0][1]}", (held[0][0] % 20 + 0.5) / 20)


def _check_size(shape: Any) -> tuple[int, ...]:
    count = int(np.prod(shape))
    if count > MOST_CELLS:
        raise LayoutError(f"{count} elements are too many to look at; take a slice of at most {MOST_CELLS}")
    return tuple(shape) or (1,)


def _grid(cells: list[_Cell], shape: tuple[int, ...], colours: str) -> _Grid:
    """Cells in rows of the last dimension; the other dimensions name the rows."""
    width = shape[-1]
    rows = [cells[start : start + width] for start in range(0, len(cells), width)]
    labels = [",".join(map(str, at)) for at in np.ndindex(shape[:-1])]
    return _Grid(rows, labels, [str(column) for column in range(width)], colours)


def _draw(grid: _Grid, path: str | Path, title: str) -> Path:
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise ToolchainError("pictures need matplotlib: pip install 'tilewright[plot]'") from None
    height, width = len(grid.rows), len(grid.columns)
    figure = Figure(figsize=(CELL_INCHES * width, CELL_INCHES * height))
    axes = figure.add_axes((0, 0, 1, 1))
    palette = mpl.colormaps[grid.colours]
    for (row, cells), column in itertools.product(enumerate(grid.cells), range(width)):
        cell = cells[column]
        look: dict[str, Any] = {"facecolor": "white", "hatch": "////", "edgecolor": "0.8"}
        if cell.shade is not None:
            look = {"facecolor": (*palette(cell.shade)[:3], 0.6), "edgecolor": "0.4"}
        axes.add_patch(Rectangle((column, row), 1, 1, linewidth=0.5, **look))
        if cell.shade is not None:
            axes.text(column + 0.5, row + 0.5, cell.text, ha="center", va="center", fontsize=7)
    # A little more than the cells, or the outermost lines would be cut in half.
    axes.set(xlim=(-0.02, width + 0.02), ylim=(height + 0.02, -0.02))
    axes.set_xticks([column + 0.5 for column in range(width)], grid.columns, fontsize=7)
    axes.set_yticks([row + 0.5 for row in range(height)], grid.rows, fontsize=7)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_frame_on(False)
    axes.set_title(title, fontsize=8, loc="left")
    target = Path(path)
    # The same picture is the same file: no random identifiers, no date.
    metadata = {"Date": None} if target.suffix == ".svg" else None
    with mpl.rc_context({"svg.hashsalt": "tilewright"}):
        figure.savefig(target, dpi=150, bbox_inches="tight", pad_inches=0.1, metadata=metadata)
    return target
