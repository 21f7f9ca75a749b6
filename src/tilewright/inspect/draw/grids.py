"""Pictures of grids: a cell per coordinate with its text and colour, a title and a legend."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.errors import LayoutError
from tilewright.inspect.draw.picture import (
    FAINT,
    INK,
    LINE,
    MONO_WIDTH,
    BoxMark,
    Label,
    Line,
    Mark,
    Picture,
    TextSpan,
    plain,
)

MOST_CELLS = 8192
MOST_ALONG = 512
NOTHING = "·"

MARGIN = 18
LEAST_WIDTH = 460
ROOM = (1120, 1500)
"""Largest size in pixels of a grid of large cells, with all of their text; larger grids have small cells."""

TEXT = 10
SMALL_TEXT = 8
SMALL_CELL = 13
WRAPPED = 32


@dataclass(frozen=True)
class GridCell:
    """One cell.

    Args:
        lines: its text.
        fill: its colour; None if the element does not exist.
        run: neighbours in a row with equal runs become one box, if cells are small.
        brief: the text of that box.
        group: a thick line separates cells of different groups.
        note: its tooltip.
    """

    lines: tuple[str, ...]
    fill: str | None
    run: Hashable
    brief: str
    group: Hashable = 0
    note: str = ""


@dataclass(frozen=True)
class Swatch:
    """An entry of the legend: a colour and its meaning, or only words."""

    fill: str | None
    text: str


@dataclass(frozen=True)
class Grid:
    """Rows of cells with the names of rows and columns."""

    cells: tuple[tuple[GridCell, ...], ...]
    rows: tuple[str, ...]
    columns: tuple[str, ...]


def check_size(shape: Sequence[int]) -> None:
    """Check that a tile of this shape is small enough to be drawn.

    Raises:
        LayoutError: it is too large; names a slice that is small enough.
    """
    count, columns = prod(shape), shape[-1] if shape else 1
    wide = len(shape) > 1 and max(columns, count // max(columns, 1)) > MOST_ALONG
    if count <= MOST_CELLS and not wide:
        return
    kept = [min(extent, MOST_ALONG) for extent in shape]
    while (product := prod(kept)) > MOST_CELLS or prod(kept[:-1]) > MOST_ALONG < product:
        largest = max(range(len(kept) - (product <= MOST_CELLS)), key=lambda dim: kept[dim])
        kept[largest] = -(-kept[largest] // 2)
    what = f"{count} elements are" if count > MOST_CELLS else f"{columns} columns of {count} elements are"
    slices = ", ".join(f"(0, {extent})" for extent in kept)
    raise LayoutError(
        f"a shape of {tuple(shape)}: {what} too many to look at; take a slice of at most {MOST_CELLS}, "
        f"{MOST_ALONG} along a side; nearest: Slice(({slices}{',' * (len(kept) == 1)}))"
    )


def grid_of(cells: Sequence[GridCell], shape: Sequence[int]) -> Grid:
    """Put cells in rows of the last dimension; the other dimensions name the rows.  A long row is wrapped."""
    width = shape[-1] if shape else 1
    labels = [",".join(map(str, at)) for at in itertools.product(*map(range, shape[:-1]))]
    if len(shape) < 2 and width > 2 * WRAPPED:
        labels = [f"{start}+" for start in range(0, width, WRAPPED)]
        width = WRAPPED
    rows = [tuple(cells[start : start + width]) for start in range(0, len(cells), width)]
    return Grid(tuple(rows), tuple(labels), tuple(map(str, range(width))))


def picture_of(title: str, about: Sequence[str], grid: Grid, legend: Sequence[Swatch], box: str) -> Picture:
    """Draw a grid with a title and a legend.

    Args:
        title: the title.
        about: lines below the title, e.g. the formula.
        grid: the cells.
        legend: the meaning of colours.
        box: the meaning of a box of several cells, for the legend of small cells.
    """
    longest = max((len(line) for row in grid.cells for cell in row for line in cell.lines), default=1)
    most_lines = max((len(cell.lines) for row in grid.cells for cell in row), default=1)
    rows, columns = len(grid.cells), max(len(row) for row in grid.cells)
    cell_w: float = max(longest * TEXT * MONO_WIDTH + 8, 24)
    cell_h: float = max(most_lines * (TEXT + 2) + 6, 22)
    is_small = columns * cell_w > ROOM[0] or rows * cell_h > ROOM[1]
    if is_small:
        cell_w = min(SMALL_CELL, max(ROOM[0] / columns, 3))
        cell_h = min(SMALL_CELL, max(1.2 * ROOM[1] / rows, 3))
    drawn = [*legend, Swatch(None, box)] if is_small else legend
    left = MARGIN + max(len(label) for label in grid.rows) * TEXT * MONO_WIDTH + 8
    width = max(left + columns * cell_w + MARGIN, LEAST_WIDTH)
    top = top_below(about)
    marks: list[Mark] = [*_axes(grid, left, top, cell_w, cell_h)]
    for number, row in enumerate(grid.cells):
        marks += _row(row, left, top + number * cell_h, cell_w, cell_h, is_small)
    # Thick lines between groups; neighbouring pieces of one line are one line.
    across = len(grid.columns)
    groups = [[cell.group for cell in row] + [None] * (across - len(row)) for row in grid.cells]
    for at in range(1, across):
        x = left + at * cell_w
        for start, stop in _stretches([row[at - 1] != row[at] for row in groups]):
            marks.append(Line(x, top + start * cell_h, x, top + stop * cell_h, INK))
    for at in range(1, rows):
        y = top + at * cell_h
        for start, stop in _stretches([groups[at - 1][to] != groups[at][to] for to in range(across)]):
            marks.append(Line(left + start * cell_w, y, left + stop * cell_w, y, INK))
    words = [swatch.text for swatch in legend if not swatch.fill]  # text needs no colours
    lines = (*table(grid), *(plain(["", *words]) if words else ()))
    return framed(title, [*about, ""], width, marks, drawn, top + rows * cell_h + 12, lines)


def top_below(about: Sequence[str]) -> float:
    """Return the top of a drawing below its heading and a line of labels."""
    return MARGIN + 22 + 16 * len(about) + 22


def framed(
    title: str,
    about: Sequence[str],
    width: float,
    marks: Iterable[Mark],
    legend: Sequence[Swatch],
    bottom: float,
    lines: Iterable[tuple[TextSpan, ...]],
) -> Picture:
    """Put a heading above marks and a legend below them.

    Args:
        title: the title; shortened if it does not fit.
        about: lines below the title.
        width: the width of the picture, in pixels.
        marks: the drawing, below the heading.
        legend: the meaning of colours.
        bottom: the top of the legend.
        lines: the drawing as lines of text.
    """
    room = width - 2 * MARGIN
    short = shortened(title, int(room / (14 * 0.68)))
    head = [Label(MARGIN, MARGIN + 6, short, 14, "start", bold=True, mono=False)]
    for number, line in enumerate(filter(None, about)):
        text = shortened(line, int(room / (11 * MONO_WIDTH)))
        head.append(Label(MARGIN, MARGIN + 26 + 16 * number, text, 11, "start", FAINT))
    swatches: list[Mark] = []
    x, y = float(MARGIN), bottom + 8
    for swatch in legend:
        size, indent = 10.0, 18 if swatch.fill else 0
        need = Label(0, 0, swatch.text, size, "start", FAINT, mono=False).width + indent
        if x > MARGIN and x + need > width - MARGIN:
            x, y = MARGIN, y + 18
        text = swatch.text
        if x + need > width - MARGIN:
            text = shortened(text, int((width - MARGIN - x) / (size * 0.62)) - (2 if swatch.fill else 0))
        if swatch.fill:
            swatches.append(BoxMark(x, y - 6, 12, 12, swatch.fill))
        swatches.append(Label(x + indent, y, text, size, "start", FAINT, mono=False))
        x += need + 14
    end = y + 14 if legend else bottom
    texts = (*plain([title, *about]), *lines)
    return Picture(title, width, end + MARGIN - 8, (*head, *marks, *swatches), texts)


def shortened(text: str, most: int) -> str:
    """Cut text after a number of characters; an ellipsis marks the cut."""
    return text if len(text) <= most else text[: max(most - 1, 0)] + "…"


def table(grid: Grid) -> tuple[tuple[TextSpan, ...], ...]:
    """Return the cells as lines of text, in columns."""
    body = [["".join(cell.lines) for cell in row] for row in grid.cells]
    head = max(len(label) for label in grid.rows)
    widths = [
        max(len(name), *(len(row[at]) for row in body if at < len(row)))
        for at, name in enumerate(grid.columns)
    ]
    names = "".join(f"  {name:>{size}}" for name, size in zip(grid.columns, widths, strict=True))
    lines: list[tuple[TextSpan, ...]] = [(TextSpan(" " * head + names),)]
    for label, cells, texts in zip(grid.rows, grid.cells, body, strict=True):
        line = [TextSpan(label.rjust(head) + " ")]
        for cell, text, size in zip(cells, texts, widths, strict=False):
            line.append(TextSpan(f" {text:>{size}}", cell.fill))
            line.append(TextSpan(" "))
        lines.append(tuple(_joined(line[:-1])))
    return tuple(lines)


def _joined(spans: Sequence[TextSpan]) -> Iterator[TextSpan]:
    for fill, same in itertools.groupby(spans, key=lambda span: span.fill):
        yield TextSpan("".join(span.text for span in same), fill)


def _axes(grid: Grid, left: float, top: float, cell_w: float, cell_h: float) -> Iterator[Label]:
    step = _step((max(map(len, grid.columns)) + 1.5) * TEXT * MONO_WIDTH, cell_w)
    for at in range(0, len(grid.columns), step):
        yield Label(left + (at + 0.5) * cell_w, top - 9, grid.columns[at], TEXT, ink=FAINT)
    step = _step(TEXT + 1, cell_h)
    for at in range(0, len(grid.rows) if any(grid.rows) else 0, step):
        yield Label(left - 6, top + (at + 0.5) * cell_h, grid.rows[at], TEXT, "end", FAINT)


def _step(need: float, size: float) -> int:
    """Return the distance between labels in cells, a power of two."""
    step = 1
    while step * size < need:
        step *= 2
    return step


def _row(
    row: Sequence[GridCell], left: float, y: float, cell_w: float, cell_h: float, is_small: bool
) -> Iterator[Mark]:
    at = 0
    for _, run in itertools.groupby(enumerate(row), key=lambda item: item[1].run if is_small else item[0]):
        cells = [cell for _, cell in run]
        x, width = left + at * cell_w, len(cells) * cell_w
        at += len(cells)
        first = cells[0]
        thick = 0.35 if is_small else 0.75
        yield BoxMark(x, y, width, cell_h, first.fill or "", LINE, thick, first.fill is None, first.note)
        if first.fill is None:
            continue
        lines = (first.brief,) if is_small else first.lines
        size = min(SMALL_TEXT, cell_h - 3) if is_small else TEXT
        if is_small and (size < 7 or len(first.brief) * size * MONO_WIDTH + 2 > width):
            continue
        middle = y + cell_h / 2 - (len(lines) - 1) * (size + 2) / 2
        for number, line in enumerate(lines):
            yield Label(x + width / 2, middle + number * (size + 2), line, size)


def _stretches(flags: Sequence[bool]) -> Iterator[tuple[int, int]]:
    at = 0
    for flag, same in itertools.groupby(flags):
        count = len(list(same))
        if flag:
            yield at, at + count
        at += count
