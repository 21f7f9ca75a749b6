"""Maps (thread, value) -> coordinate: who holds each element of a tile."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from tilewright.arch import REFERENCE
from tilewright.calls import layouts
from tilewright.errors import LayoutError
from tilewright.inspect.draw.grids import NOTHING, Cell, Grid, Swatch, check_size, grid_of, picture_of
from tilewright.inspect.draw.palette import of_thread
from tilewright.inspect.draw.picture import Picture
from tilewright.kinds import Count
from tilewright.layout.limits import LANES
from tilewright.threads.distribution import Distribution

WARP = REFERENCE.lanes


@layouts(lanes=LANES)
def draw_distribution(distribution: Distribution, title: str | None = None, lanes: Count = WARP) -> Picture:
    """Draw which thread holds each element of a tile, and in which of its values.

    Where there are too many cells for both in each, neighbours of one thread are one box.

    Args:
        distribution: of a tile.
        title: what to write above; default: extents.
        lanes: threads per warp; thick lines part warps.

    Raises:
        LayoutError: it is no distribution, or its tile has too many elements to look at.

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
    about = _about(distribution)
    legend = _legend(distribution, grid, lanes)
    return picture_of(title, about, grid, legend, "a box: neighbours that one thread holds")


def holders(distribution: Distribution) -> dict[tuple[int, ...], list[tuple[int, int]]]:
    """The (thread, value) pairs that hold each coordinate, in order of threads.

    Raises:
        LayoutError: some hold what is outside of the tile.

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
    """Numbers in short: the first and the last of those that follow each other evenly.

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


def _cell(at: tuple[int, ...], held: list[tuple[int, int]], lanes: Count) -> Cell:
    where = ", ".join(map(str, at))
    if not held:
        return Cell((NOTHING,), None, None, "", None, f"({where}): held by none")
    threads = tuple(dict.fromkeys(thread for thread, _ in held))
    values = sorted({value for _, value in held})
    who, which = f"T{spelled(threads)}", f"V{spelled(values)}"
    note = f"({where}): {who} {which}"
    return Cell((who, which), of_thread(threads[0]), threads, who, threads[0] // lanes, note)


def _about(distribution: Distribution) -> list[str]:
    threads, values, copies = distribution.size_threads, distribution.size_values, distribution.copies
    text = f"{threads} threads, {values} value{'s' * (values != 1)} each"
    coordinate = ", ".join(f"i{dim}" for dim in range(distribution.rank))
    return [f"(thread, value) -> ({coordinate})", text + (f", {copies} copies" if copies > 1 else "")]


def _legend(distribution: Distribution, grid: Grid, lanes: Count) -> list[Swatch]:
    count = distribution.size_threads
    legend = [Swatch(of_thread(thread), f"T{thread}") for thread in range(0, min(count, lanes), 4)]
    legend.append(Swatch(None, "T thread, V value of the thread"))
    if len({cell.group for row in grid.cells for cell in row}) > 1:
        legend.append(Swatch(None, f"thick lines: warps of {lanes}"))
    if any(cell.fill is None for row in grid.cells for cell in row):
        legend.append(Swatch(None, "hatched: held by no thread"))
    return legend
