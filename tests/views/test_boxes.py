"""Views that are boxes are compared element by element; other views have the right reason."""

from __future__ import annotations

from itertools import product

import pytest

from tilewright.symbolic.expr import add, mul
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.views.boxes import Box, NoBox, find_box, swizzled_order
from tilewright.views.im2col import im2col
from tilewright.views.transforms import Broadcast, Embed, Merge, Pad, Permute, Slice, Swizzle, Tile, Unmerge
from tilewright.views.view import View

M, m = Sym("M", 1), Sym("m", -3, 9)
ROWS = View.strided((M, 40), (48, 1))
IMAGES = View.strided((2, 9, 11, 8), (9 * 11 * 8, 11 * 8, 8, 1))
WINDOWS = Embed(3, (6, 3), (2, 1), 1).apply(Embed(1, (9, 3), (1, 1), 1).apply(IMAGES))
COLUMNS = im2col(View.strided((2, 8, 8, 4), (256, 32, 4, 1)), spatial=(1, 2), filter=(3, 3), padding=1)
PIECES = View.strided((4, M, 40), (40, 999, 1))
MERGED = Merge(1, 2).apply(PIECES)
HALVES = View.strided((4, M, 16), (16, 999, 1))
BOXES = {
    "tile": (Tile((4, 8), (m, 3)).apply(ROWS), ROWS, None),
    "tile of a padded": (Tile((4, 8), (m, 0)).apply(Pad((3, 8), (5, 0)).apply(ROWS)), ROWS, None),
    "row": (Slice((2, (8, 24))).apply(ROWS), ROWS, None),
    "turned": (Tile((8, 4), (1, m)).apply(Permute((1, 0)).apply(ROWS)), ROWS, (1, 0)),
    "merged": (Merge(0, 3).apply(Tile((1, 3, 4, 8), (1, m, 2, 0)).apply(IMAGES)), IMAGES, None),
    "a part of a row of merged": (Tile((4, 8), (m, add(mul(m, 5), 3))).apply(MERGED), PIECES, None),
    "rows of merged": (Tile((4, 120), (0, m)).apply(MERGED), PIECES, None),
    "a third of three halves": (
        Slice((None, (8, 16))).apply(Tile((4, 24), (0, m)).apply(Merge(1, 2).apply(HALVES))),
        HALVES,
        None,
    ),
    "one tap": (Slice((1, (0, 9), 2, (0, 6), 0, None)).apply(WINDOWS), IMAGES, None),
    "rows of im2col": (
        Tile((16, 4), (3, 5)).apply(COLUMNS),
        View.strided((2, 8, 8, 4), (256, 32, 4, 1)),
        None,
    ),
}


@pytest.mark.parametrize("name", BOXES)
def test_a_box_is_the_view_element_by_element(name: str) -> None:
    view, tensor, order = BOXES[name]
    order = order or tuple(range(view.rank))
    box = find_box(view, tensor.shape, order)
    assert isinstance(box, Box)
    for rows, at in product((7, 30), range(-3, 10)):
        env = {M: rows, m: at}
        extents = [int(evaluate(extent, env)) for extent in tensor.shape]
        starts = [int(evaluate(start, env)) for start in box.starts]
        walked = product(*(range(box.sides[dim]) for dim in box.order))
        seen = product(*(range(view.shape[dim]) for dim in order))
        for steps, coordinates in zip(walked, seen, strict=True):
            taken = dict(zip(box.order, steps, strict=True))
            place = [start + taken[dim] * box.steps[dim] for dim, start in enumerate(starts)]
            of_view = {**env, **{view.coords[dim]: i for dim, i in zip(order, coordinates, strict=True)}}
            assert [evaluate(i, of_view) for i in view.base_coordinates] == place
            inside = all(0 <= i < n for i, n in zip(place, extents, strict=True))
            assert bool(evaluate(view.valid, of_view)) == inside
            if inside:
                whole = dict(zip(tensor.coords, place, strict=True))
                assert evaluate(view.offset, of_view) == evaluate(tensor.offset, whole)


NONE = {
    "an inner edge": (Tile((4, 8), (2, 0)).apply(Slice(((0, 10), None)).apply(ROWS)), "no edge of {tensor}"),
    "overlapping windows": (Tile((1, 4, 3, 1, 1, 8), (0,) * 6).apply(WINDOWS), "2 dimensions of the tile"),
    "repeated": (Broadcast(0, 4).apply(Slice((3, None)).apply(ROWS)), "4 elements of the tile refer to one"),
    "backwards": (Embed(1, (8,), (-1,), -30).apply(Slice(((0, 4), None)).apply(ROWS)), "walks backwards"),
    "no static shape": (ROWS, "known at launch only"),
    "no equal steps": (Tile((6, 8), (1, 0)).apply(Merge(0, 3).apply(IMAGES)), "not in equal steps"),
}


@pytest.mark.parametrize("name", NONE)
def test_what_is_no_box_says_why(name: str) -> None:
    view, reason = NONE[name]
    tensor = IMAGES if name in ("overlapping windows", "no equal steps") else ROWS
    found = find_box(view, tensor.shape, tuple(range(view.rank)))
    assert isinstance(found, NoBox)
    assert reason in found.reason


def test_how_tiles_lie_for_bulk_copies() -> None:
    tile = Swizzle(3, 3, 3).apply(View.strided((16, 64), (64, 1)))
    parts = Unmerge(0, (2, 8)).apply(tile)
    assert swizzled_order(parts, 2) == (0, 1, 2)
    assert swizzled_order(Permute((2, 0, 1)).apply(parts), 2) == (1, 2, 0)
    assert swizzled_order(tile, 4) is None
    assert swizzled_order(View.strided((16, 64), (64, 1)), 2) is None
    assert swizzled_order(Slice((None, (0, 32))).apply(tile), 2) is None
    assert swizzled_order(Slice(((8, None), None)).apply(tile), 2) == (0, 1)
    assert swizzled_order(Slice(((4, None), None)).apply(tile), 2) is None


def test_a_tile_whose_rows_lie_apart_for_some_integers_is_none_for_bulk_copies() -> None:
    s = Sym("s", 0, 2)
    for step, order in ((1024, (0, 1, 2)), (2048, None)):
        held = Swizzle(3, 3, 3).apply(View.strided((2, 2, 8, 64), (step, 512, 64, 1)))
        rows = Merge(0, 2).apply(held)
        assert swizzled_order(Slice(((0, 2), None, None)).apply(rows), 2) == (0, 1, 2)
        assert swizzled_order(Slice(((s, s + 2), None, None)).apply(rows), 2) == order, "rows 1 and 2"
