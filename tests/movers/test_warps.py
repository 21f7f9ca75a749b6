"""The part of each warp in every reuse mode, compared with loops that use no distributions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LayoutError
from tilewright.threads.distribution import Mode

pytestmark = pytest.mark.in_turns(3)

LANES = 32
BASE_16 = tw.Distribution(
    (16, 16), (Mode(4, 1, 2), Mode(8, 0, 1)), (Mode(2, 1, 1), Mode(2, 1, 8), Mode(2, 0, 8))
)
"""A base tile of 16 x 16: per lane the upper left pair, the pair 8 columns on, then the same 8 rows below."""

GRIDS = [(1, 1), (2, 2), (1, 4), (4, 1), (2, 4), (3, 2)]
MODES = [(None, None), ("row", None), ("column", None), ("row", 1), ("column", 0)]


def place_of(warp, grid, order):
    """Return row and column of a warp in the grid; ``order`` names the axis of consecutive numbers."""
    rows, columns = grid
    return (warp % rows, warp // rows) if order == "rows first" else (warp // columns, warp % columns)


def expected_part(warp, tile, grid, order, reuse, along):
    """Return the first row, rows, first column and columns of a warp's part."""
    at = place_of(warp, grid, order)
    if reuse is None:
        shares = ((0, grid[0], at[0]), (1, grid[1], at[1]))
    elif reuse == "row":
        shares = ((0 if along is None else along, grid[0], at[0]),)
    else:
        shares = ((1 if along is None else along, grid[1], at[1]),)
    start, size = [0, 0], list(tile)
    for dim, parts, number in shares:
        size[dim] = tile[dim] // parts
        start[dim] = number * size[dim]
    return start[0], size[0], start[1], size[1]


def held(spread, warp):
    """Return the coordinates of a warp, lane by lane, register by register."""
    return spread.table[warp * LANES : (warp + 1) * LANES].tolist()


@pytest.mark.parametrize(("reuse", "along"), MODES)
@pytest.mark.parametrize("order", ["rows first", "columns first"])
@pytest.mark.parametrize("grid", GRIDS)
def test_every_warps_index_set(grid, order, reuse, along) -> None:
    warps = grid if order == "rows first" else tw.Layout(grid, (grid[1], 1))
    tile = (16 * grid[0] * grid[1],) * 2
    spread = tw.by_warps(tile, BASE_16, warps, reuse=reuse, along=along)
    assert (spread.shape, spread.size_threads) == (tile, LANES * grid[0] * grid[1])
    for warp in range(grid[0] * grid[1]):
        top, rows, left, columns = expected_part(warp, tile, grid, order, reuse, along)
        wanted = {(i, j) for i in range(top, top + rows) for j in range(left, left + columns)}
        found = [tuple(at) for lane in held(spread, warp) for at in lane]
        assert len(found) == rows * columns
        assert set(found) == wanted


def test_lanes_hold_base_tiles_one_below_the_other_then_side_by_side() -> None:
    spread = tw.by_warps((128, 64), BASE_16, (2, 2))
    for warp, lane in itertools.product(range(4), range(LANES)):
        wanted = []
        for j, i in itertools.product(range(2), range(4)):
            top, left = 64 * (warp % 2) + 16 * i, 32 * (warp // 2) + 16 * j
            row, column = top + lane // 4, left + lane % 4 * 2
            for down, right in ((0, 0), (0, 8), (8, 0), (8, 8)):
                wanted += [[row + down, column + right], [row + down, column + right + 1]]
        assert held(spread, warp)[lane] == wanted


@pytest.mark.parametrize(("base", "rows"), [("a", 16), ("b", 8)])
def test_the_lane_maps_of_operands(base, rows) -> None:
    """PTX: lane 4 g + t holds rows g (and g + 8) at K = 2 t, 2 t + 1 and 8 further on."""
    found = getattr(tw.atoms.MMA_F16, base).table.tolist()
    for lane in range(LANES):
        g, t = divmod(lane, 4)
        wanted = []
        for k_half in (0, 8):
            for down in (0, 8)[: rows // 8]:
                wanted += [[g + down, k_half + 2 * t], [g + down, k_half + 2 * t + 1]]
        assert found[lane] == wanted


def test_the_lane_map_of_the_accumulator() -> None:
    for atom in (tw.atoms.MMA_F16, tw.atoms.MMA_BF16, tw.atoms.MMA_I8):
        for lane in range(LANES):
            g, t = divmod(lane, 4)
            assert atom.c.table[lane].tolist() == [
                [g, 2 * t],
                [g, 2 * t + 1],
                [g + 8, 2 * t],
                [g + 8, 2 * t + 1],
            ]


@pytest.mark.parametrize("k", [16, 32, 48])
@pytest.mark.parametrize("grid", GRIDS)
def test_operands_are_the_reuse_modes(grid, k) -> None:
    mma = tw.TiledMma(tw.atoms.MMA_F16, grid, (2, 3))
    m, n, _ = mma.tile
    assert mma.a(k) == tw.by_warps((m, k), mma.atom.a, grid, reuse="row")
    assert mma.b(k) == tw.by_warps((n, k), mma.atom.b, grid, reuse="column", along=0)
    assert mma.c() == tw.by_warps((m, n), mma.atom.c, grid)
    for warp in range(grid[0] * grid[1]):
        r, c = warp % grid[0], warp // grid[0]
        assert {row for lane in held(mma.a(k), warp) for row, _ in lane} == set(range(32 * r, 32 * r + 32))
        assert {row for lane in held(mma.b(k), warp) for row, _ in lane} == set(range(24 * c, 24 * c + 24))


# ---------------------------------------------------------------- base tiles


def inferred(columns, element_bytes):
    """Return a warp's lanes: 128 bits per thread, at most 128 contiguous bytes, all 32 lanes used."""
    run = min(columns * element_bytes, 128)
    per_row = run // 16
    return 32 // per_row, run // element_bytes


@pytest.mark.parametrize("dtype", ["f8e4m3", "i8", "f16", "bf16", "f32", "c32", "f64", "c64"])
@pytest.mark.parametrize("major", [0, 1])
def test_base_tiles(dtype, major) -> None:
    element = tw.dtype(dtype)
    for run in (16, 32, 64, 128, 256):
        columns = run // element.bytes
        tile = (64, columns) if major == 1 else (columns, 64)
        spread = tw.base_tile(tile, element, contiguous=major)
        rows, width = inferred(columns, element.bytes)
        assert spread.shape == ((rows, width) if major == 1 else (width, rows))
        each = 16 // element.bytes
        for lane in range(LANES):
            across, start = divmod(lane * each, width)
            wanted = [[across, start + e] for e in range(each)]
            assert spread.table[lane].tolist() == (wanted if major == 1 else [at[::-1] for at in wanted])


def test_the_table_for_halves() -> None:
    shapes = [tw.base_tile((32, columns), tw.f16).shape for columns in (128, 64, 32, 16, 8)]
    assert shapes == [(4, 64), (4, 64), (8, 32), (16, 16), (32, 8)]


@pytest.mark.parametrize(
    ("tile", "nearest"), [((64, 4), "(64, 8)"), ((20, 16), "(16, 16)"), ((8, 24), "(32, 24)")]
)
def test_a_tile_that_no_base_tile_divides_is_refused(tile, nearest) -> None:
    with pytest.raises(LayoutError, match="nearest legal choice") as raised:
        tw.base_tile(tile, tw.f16)
    assert str(raised.value).endswith(nearest)


def test_base_tiles_repeat_over_warps() -> None:
    """A mover of 16-byte accesses: 2 x 2 warps, each with 64 x 32 of a tile of 128 x 64 halves."""
    spread = tw.by_warps((128, 64), tw.base_tile((64, 32), tw.f16), (2, 2))
    assert spread.is_exact
    assert spread.vector() == (1, 8)
    for warp in range(4):
        rows, columns = np.moveaxis(np.array(held(spread, warp)), -1, 0)
        assert (rows.min(), rows.max()) == (64 * (warp % 2), 64 * (warp % 2) + 63)
        assert (columns.min(), columns.max()) == (32 * (warp // 2), 32 * (warp // 2) + 31)


MOVED = ["f8e4m3", "u8", "f16", "bf16", "i32", "f32", "c32", "f64", "i64", "c64", "c128"]


def moved_by(lane, element_bytes, run_bytes, major):
    """Return the elements that a lane moves at once, from a base tile's first, and the tile's extents."""
    columns = run_bytes // element_bytes
    rows, width = inferred(columns, element_bytes)
    each = 16 // element_bytes
    across, start = divmod(lane * each, width)
    places = [(across, start + e) for e in range(each)]
    return (places, (rows, width)) if major == 1 else ([at[::-1] for at in places], (width, rows))


@pytest.mark.parametrize("run_bytes", [16, 64, 128])
@pytest.mark.parametrize("major", [0, 1])
@pytest.mark.parametrize("dtype", MOVED)
def test_every_movers_index_set(dtype, major, run_bytes) -> None:
    """Base tiles in every grid and reuse mode: the elements of each lane, and their order."""
    element = tw.dtype(dtype)
    lanes = [moved_by(lane, element.bytes, run_bytes, major) for lane in range(LANES)]
    places, (height, width) = np.array([at for at, _ in lanes]), lanes[0][1]
    part = (2 * height, width) if major == 1 else (height, 2 * width)
    base = tw.base_tile(part, element, contiguous=major)
    for grid, order, (reuse, along) in itertools.product(GRIDS, ("rows first", "columns first"), MODES):
        times = 6 if grid == (3, 2) else 4  # what rows and columns of the grid both divide
        tile = (part[0] * times, part[1] * times)
        warps = grid if order == "rows first" else tw.Layout(grid, (grid[1], 1))
        spread = tw.by_warps(tile, base, warps, reuse=reuse, along=along)
        assert (spread.shape, spread.size_threads) == (tile, LANES * grid[0] * grid[1])
        for warp in range(grid[0] * grid[1]):
            top, rows, left, columns = expected_part(warp, tile, grid, order, reuse, along)
            across, down = range(left, left + columns, width), range(top, top + rows, height)
            corners = np.array([(i, j) for j in across for i in down])  # below each other, then side by side
            found = spread.table[warp * LANES : (warp + 1) * LANES]
            assert (found == (places[:, None] + corners[:, None]).reshape(LANES, -1, 2)).all()


# ---------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("what", "tile", "reuse", "given", "right"),
    [
        ("A", (128, 32), "row", (8, 8), (4, 2)),
        ("B", (32, 64), "column", (8, 4), (2, 2)),
        ("C", (128, 64), None, (8, 8), (4, 2)),
    ],
)
def test_inconsistent_register_tiles_are_refused_with_the_right_ones(what, tile, reuse, given, right) -> None:
    """A tutorial gives these shapes for 2 x 2 warps on a chunk of 128 x 32 by 32 x 64."""
    assert (
        tw.by_warps(tile, BASE_16, (2, 2), reuse=reuse, repeats=right).size_values == 8 * right[0] * right[1]
    )
    with pytest.raises(LayoutError, match="nearest legal choice") as raised:
        tw.by_warps(tile, BASE_16, (2, 2), reuse=reuse, repeats=given)
    text = str(raised.value)
    assert f"repeats={given}" in text
    assert text.endswith(f"repeats={right}")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"tile": (100, 32)}, "nearest legal choice: (96, 32)"),
        ({"tile": (8, 8)}, "nearest legal choice: (32, 32)"),
        ({"reuse": "rows"}, "one of None, 'row', 'column'"),
        ({"along": 0}, "along=0 without reuse"),
        ({"reuse": "row", "along": 2}, "0 or 1"),
        ({"warps": (2, 2, 1)}, "two integers, of rows and of columns; nearest legal choice: warps=(2, 2)"),
        ({"warps": (0, 2)}, "two positive integers"),
        ({"warps": tw.Layout((2, 2), (1, 4))}, "0 to 3"),
        (
            {"tile": (128, 32, 2)},
            "two integers, of rows and of columns; nearest legal choice: tile=(128, 32)",
        ),
    ],
)
def test_what_is_no_grid_is_refused(arguments, says) -> None:
    given = {"tile": (128, 32), "base": BASE_16, "warps": (2, 2), **arguments}
    with pytest.raises(LayoutError) as raised:
        tw.by_warps(**given)
    assert says in str(raised.value)
