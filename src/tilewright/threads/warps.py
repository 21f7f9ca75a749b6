"""Distribution of a tile over a grid of warps, with or without copies in several warps."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TypeAlias

from tilewright.arch import REFERENCE
from tilewright.argument_checks import Count
from tilewright.calls import layouts
from tilewright.dtypes import DType
from tilewright.dtypes import dtype as dtype_named
from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout
from tilewright.layout.tuples import flat, integers
from tilewright.threads.distribution import Distribution, Mode

Pair: TypeAlias = Sequence[int]
"""Two positive integers: rows and columns."""

REUSES = (None, "row", "column")
"""Warps of the grid that hold copies of a part: none, those of one row, or those of one column."""

ACCESS_BYTES = REFERENCE.access_bytes
"""Bytes of a base tile per thread: the widest access."""

WARP = REFERENCE.lanes

RUN_BYTES = REFERENCE.line_bytes
"""Longest contiguous run of a base tile, in bytes: one row of shared-memory banks, or one cache line."""


@layouts
def by_warps(
    tile: Pair,
    base: Distribution,
    warps: Layout | Pair,
    reuse: str | None = None,
    along: int | None = None,
    repeats: int | Sequence[int] | None = None,
    *,
    interleaved: bool = False,
) -> Distribution:
    """Distribute a tile over a grid of warps: each warp holds a contiguous part, made of repeated base tiles.

    Without reuse the grid's rows divide dimension 0 and its columns divide dimension 1.  With
    ``reuse="row"`` all warps in a row of the grid hold the same part, so only the rows divide the tile.  With
    ``reuse="column"`` only the columns do.

    Args:
        tile: extents of the tile.
        base: the distribution of one warp's unit: an operand of an MMA atom, or a `base_tile`.
        warps: rows and columns of the grid.  Warps are numbered along a column first, as in `TiledMma`, or by
            the strides of a layout.
        reuse: None, ``"row"`` or ``"column"``.
        along: the dimension to divide under reuse; default: 0 for ``"row"``, 1 for ``"column"``.
        repeats: expected base tiles per warp along both dimensions; default: any.
        interleaved: whether the base tiles of different warps alternate: first one base tile of every warp,
            then the next one of every warp.

    Raises:
        LayoutError: base tiles and warps do not fill the tile, or not with these repeats; the message gives
            the right ones.

    Example:
        A tile of 128 x 32 of operand A on 2 x 2 warps; the second warp of the first row holds the same
        elements as the first:

        >>> from tilewright.targets.atoms import MMA_F16
        >>> rows = by_warps((128, 32), MMA_F16.a, (2, 2), reuse="row")
        >>> rows.coordinate(0, 0), rows.coordinate(32, 0), rows.coordinate(64, 0)
        ((0, 0), (64, 0), (0, 0))
        >>> rows = by_warps((128, 32), MMA_F16.a, (2, 2), reuse="row", interleaved=True)
        >>> rows.coordinate(0, 0), rows.coordinate(32, 0), rows.coordinate(64, 0)
        ((0, 0), (16, 0), (0, 0))
    """
    counts, order = _grid(warps)
    dims = _shared_out(reuse, along)
    extents = _matrix("tile", tile)
    parts = [1, 1]
    for count, dim in zip(counts, dims, strict=True):
        if dim is not None:
            parts[dim] = count
    units = [part * side for part, side in zip(parts, base.shape, strict=True)]
    if any(extent < 1 or extent % unit for extent, unit in zip(extents, units, strict=True)):
        nearest = tuple(max(extent // unit, 1) * unit for extent, unit in zip(extents, units, strict=True))
        raise LayoutError(
            f"{_words(counts, reuse)} with base tiles of {_by(base.shape)} do not fill a tile of "
            f"{_by(extents)}, which must be a multiple of {_by(units)}",
            nearest,
        )
    right = tuple(extent // unit for extent, unit in zip(extents, units, strict=True))
    single = None if repeats is None or isinstance(repeats, Iterable) else int(repeats)
    wanted = tuple(repeats) if isinstance(repeats, Iterable) else single
    if wanted not in (None, right):
        raise LayoutError(
            f"repeats={wanted}: {_words(counts, reuse)} divide a tile of {_by(extents)} into parts of "
            f"{_by([e // p for e, p in zip(extents, parts, strict=True)])}, which are {_by(right)} base "
            f"tiles of {_by(base.shape)}",
            f"repeats={right}",
        )
    return _repeated(base, counts, order, dims, (right[0], right[1]), interleaved)


@lru_cache(maxsize=1024)
def _repeated(
    base: Distribution,
    counts: tuple[int, int],
    order: tuple[int, int],
    dims: tuple[int | None, int | None],
    repeats: tuple[int, int],
    interleaved: bool,
) -> Distribution:
    """Repeat a base tile within the warp, then over warps along ``dims``; the reverse if interleaved."""
    warps = [1, 1]
    for count, dim in zip(counts, dims, strict=True):
        if dim is not None:
            warps[dim] *= count
    shape = tuple(
        side * repeat * count for side, repeat, count in zip(base.shape, repeats, warps, strict=True)
    )
    apart, inner = (warps, (1, 1)) if interleaved else ((1, 1), repeats)
    modes = [
        Mode(n, d, 0 if d is None else base.shape[d] * inner[d]) for n, d in zip(counts, dims, strict=True)
    ]
    steps = tuple(Mode(repeat, dim, base.shape[dim] * apart[dim]) for dim, repeat in enumerate(repeats))
    threads = (*base.threads, *(modes[axis] for axis in order))
    return Distribution(shape, threads, (*base.values, *steps))


@layouts
def base_tile(tile: Pair, dtype: DType | str, contiguous: int = 1, lanes: Count = WARP) -> Distribution:
    """The tile that a warp moves at once: 16 bytes per thread, in runs of at most 128 bytes.

    Args:
        tile: extents of the tile to move; the longest run that divides it is chosen.
        dtype: element type.
        contiguous: the dimension that is contiguous in memory.
        lanes: threads of a warp.

    Raises:
        LayoutError: no base tile divides the tile; the message gives the nearest tile that one does.

    Example:
        >>> from tilewright.dtypes import f16
        >>> [base_tile((64, columns), f16).shape for columns in (64, 32, 16, 8)]
        [(4, 64), (8, 32), (16, 16), (32, 8)]
    """
    tile, dtype = _matrix("tile", tile), dtype_named(dtype)
    if contiguous not in (0, 1):
        raise LayoutError(f"contiguous={contiguous}", "0 or 1")
    width = max(8 * ACCESS_BYTES // dtype.bits, 1)
    run, other = tile[contiguous], tile[1 - contiguous]
    along = 8 * RUN_BYTES // (width * dtype.bits)
    while along > 1 and (run % (width * along) or lanes % along):
        along //= 2
    across = lanes // along
    if run % (width * along) or other % across:
        nearest = [max(other // across, 1) * across] * 2
        nearest[contiguous] = max(run // (width * along), 1) * width * along
        raise LayoutError(
            f"a warp moves {width * along} {dtype} along dimension {contiguous} of the tile {_by(tile)} and "
            f"{across} along the other, which do not divide it",
            tuple(nearest),
        )
    shape = (across, width * along) if contiguous == 1 else (width * along, across)
    threads = (Mode(along, contiguous, width), Mode(across, 1 - contiguous, 1))
    return Distribution(shape, threads, (Mode(width, contiguous, 1),))


def _grid(warps: Layout | Pair) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return rows and columns of the grid, and its axes in the order of the warp numbers."""
    given = flat(warps.shape) if isinstance(warps, Layout) else warps
    counts = rows, columns = integers("warps", given, 2, "rows and columns of a grid")
    if not isinstance(warps, Layout):
        return (rows, columns), (0, 1)
    for order, packed in (((0, 1), (1, rows)), ((1, 0), (columns, 1))):
        strides = zip(counts, flat(warps.stride), packed, strict=True)
        if all(count == 1 or stride == wanted for count, stride, wanted in strides):
            return (rows, columns), order
    raise LayoutError(f"warp layout {warps} does not number its warps 0 to {rows * columns - 1}")


def _shared_out(reuse: str | None, along: int | None) -> tuple[int | None, int | None]:
    """Return the dimension that each axis of the grid divides."""
    if reuse not in REUSES:
        raise LayoutError(f"reuse={reuse!r}", f"one of {', '.join(map(repr, REUSES))}")
    if reuse is None:
        if along is not None:
            raise LayoutError(f"along={along} without reuse: the warps divide both dimensions")
        return (0, 1)
    if along not in (None, 0, 1):
        raise LayoutError(f"along={along}", "0 or 1")
    if reuse == "row":
        return (0 if along is None else along, None)
    return (None, 1 if along is None else along)


def _matrix(what: str, tile: Sequence[int]) -> tuple[int, int]:
    rows, columns = integers(what, tile, 2, "rows and columns")
    return rows, columns


def _words(counts: tuple[int, int], reuse: str | None) -> str:
    return f"{_by(counts)} warps" + (f" with {reuse} reuse" if reuse else "")


def _by(extents: Sequence[int]) -> str:
    return "x".join(map(str, extents))
