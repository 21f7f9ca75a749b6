"""Views show the right elements, and a claimed vector width holds for every instance."""

from __future__ import annotations

import contextlib
import itertools
import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout
from tilewright.symbolic.expr import ceil_div, less, prove
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.views.transforms import (
    Embed,
    Merge,
    Pad,
    PadTo,
    Permute,
    Slice,
    Swizzle,
    Tile,
    Transform,
    Unmerge,
)
from tilewright.views.view import View, coordinates

pytestmark = pytest.mark.in_turns(3)

M, N, K = Sym("M", 1), Sym("N", 4, divisor=4), Sym("K", 16, divisor=16)
SIZES = [{M: m, N: n, K: k} for m, n, k in [(1, 4, 16), (3, 12, 32), (17, 8, 48), (33, 20, 16)]]


def instance(view: View, env: dict[Sym, int]) -> tuple[tuple[int, ...], Any, Any]:
    """Return extents, offsets and validity of a view at given sizes."""
    shape = tuple(substitute(extent, env) for extent in view.shape)
    index = dict(zip(view.coords, np.indices(shape), strict=True))
    static = View(shape, rename(view, view.offset, shape, env), 0, rename(view, view.valid, shape, env))
    at = tuple(index.values())
    return shape, np.broadcast_to(static.at(at), shape), np.broadcast_to(static.valid_at(at), shape)


def rename(view: View, what: Any, shape: tuple[int, ...], env: dict[Sym, int]) -> Any:
    return substitute(what, {**env, **dict(zip(view.coords, coordinates(shape), strict=True))})


def check_width(view: View, dim: int, width: int, env: dict[Sym, int]) -> bool:
    """Return whether aligned groups of ``width`` neighbours are contiguous, aligned, and equally valid."""
    shape, offset, valid = instance(view, env)
    if shape[dim] % width:
        return False
    groups = [np.moveaxis(a, dim, -1).reshape(-1, width) for a in (offset, valid)]
    contiguous = (groups[0] == groups[0][:, :1] + np.arange(width)).all()
    aligned = (groups[0][:, 0] % width == 0).all()
    uniform = (groups[1] == groups[1][:, :1]).all()
    return bool(contiguous and aligned and uniform)


def random_strided(rng: random.Random) -> View:
    extents: list[Int] = [rng.choice([M, N, K, 8, 16, 6, 32]) for _ in range(rng.randint(1, 3))]
    strides: list[Int] = [1] * len(extents)
    span: Int = 1
    for dim in rng.sample(range(len(extents)), len(extents)):
        strides[dim] = span
        span = span * extents[dim] + rng.choice([0, 0, 0, 1, 4, 8])
    return View.strided(extents, strides)


def random_tile(rng: random.Random, view: View) -> Transform:
    shape = [rng.choice([4, 8, 16]) for _ in view.shape]
    counts = [ceil_div(n, t) for n, t in zip(view.shape, shape, strict=True)]
    name = f"t{rng.randrange(10**9)}_"
    return Tile(tuple(shape), tuple(Sym(f"{name}{d}", 0, None, 1, count) for d, count in enumerate(counts)))


def random_slice(rng: random.Random, view: View) -> Transform:
    parts: list[Any] = [None] * view.rank
    parts[rng.randrange(view.rank)] = (rng.choice([0, 1, 4]), None)
    return Slice(tuple(parts))


def random_unmerge(rng: random.Random, view: View) -> Transform:
    dim, inner = rng.randrange(view.rank), rng.choice([2, 4, 8])
    return Unmerge(dim, (view.shape[dim] // inner, inner))


def random_embed(rng: random.Random, view: View) -> Transform:
    lengths, strides = (rng.choice([3, 4]), rng.choice([3, 8])), (rng.choice([1, 2, 4, 8]), 1)
    return Embed(rng.randrange(view.rank), lengths, strides, rng.choice([0, 1, 4]))


def widths(rng: random.Random, view: View, choices: list[int]) -> tuple[int, ...]:
    return tuple(rng.choice(choices) for _ in view.shape)


TRANSFORMS: list[Callable[[random.Random, View], Transform]] = [
    random_tile,
    random_slice,
    random_unmerge,
    random_embed,
    lambda rng, view: Pad(widths(rng, view, [0, 0, 1, 4, 8]), widths(rng, view, [0, 0, 1, 4, 8])),
    lambda rng, view: PadTo(widths(rng, view, [1, 4, 8, 16])),
    lambda rng, view: Merge(rng.randrange(view.rank), 2),
    lambda rng, view: Permute(tuple(rng.sample(range(view.rank), view.rank))),
    lambda rng, view: Swizzle(*rng.choice([(1, 2, 1), (2, 2, 2), (1, 1, 1), (1, 3, 1), (1, 0, 1)])),
]


def random_view(rng: random.Random) -> View:
    """Draw a view with symbolic extents and random transforms."""
    view = random_strided(rng)
    for _ in range(rng.randint(0, 4)):
        with contextlib.suppress(LayoutError):
            view = rng.choice(TRANSFORMS)(rng, view).apply(view)
    return view


@pytest.mark.parametrize("seed", range(8))
def test_claimed_vector_widths_hold_for_all_sizes(seed: int) -> None:
    rng, wide = random.Random(seed), 0
    for _ in range(60):
        view = random_view(rng)
        claimed = [view.vector_width(dim, 8) for dim in range(view.rank)]
        wide += max(claimed) > 1
        tiles = sorted(symbols(view.offset) | symbols(view.valid), key=str)
        for sizes in SIZES:
            extents = [substitute(extent, sizes) for extent in view.shape]
            counts = {tile: substitute(tile.stop, sizes) for tile in tiles if tile.name.startswith("t")}
            if min([*extents, *counts.values()]) < 1 or math.prod(extents) > 20000:
                continue
            env = {**sizes, **{tile: rng.randrange(count) for tile, count in counts.items()}}
            for dim, width in enumerate(claimed):
                assert check_width(view, dim, width, env), (str(view), dim, width, env)
    assert wide >= 10


@given(st.data())
def test_static_strided_views_get_the_widest_vector(data: st.DataObject) -> None:
    shape = [data.draw(st.sampled_from([1, 2, 3, 4, 8, 12, 16])) for _ in range(2)]
    strides = [data.draw(st.sampled_from([1, 2, 4, 8, 12, 16, 20])) for _ in range(2)]
    view = View.strided(shape, strides)
    for dim in range(2):
        widest = max(w for w in (1, 2, 4, 8, 16) if check_width(view, dim, w, {}))
        assert view.vector_width(dim) == widest


@pytest.mark.parametrize("swizzle", [Swizzle(3, 3, 3), Swizzle(2, 3, 3), Swizzle(3, 2, 3), Swizzle(2, 3, 2)])
@pytest.mark.parametrize("columns", [32, 64, 128])
def test_swizzled_rows_keep_vectors_of_the_base(swizzle: Swizzle, columns: int) -> None:
    view = swizzle.apply(View.strided((8, columns), (columns, 1)))
    assert view.vector_width(1) == 1 << swizzle.base
    assert check_width(view, 1, 1 << swizzle.base, {})
    assert "not contiguous" in view.vector_obstacle(1, 2 << swizzle.base)


def test_a_tile_of_a_symbolic_tensor_keeps_its_vectors() -> None:
    view = View.strided((M, K), (K, 1))
    m, k = Sym("m", 0, None, 1, ceil_div(M, 128)), Sym("k", 0, None, 1, ceil_div(K, 32))
    assert Tile((128, 32), (m, k)).apply(view).vector_width(1) == 16
    ragged = Tile((128, 32), (m, k)).apply(View.strided((M, N), (N, 1)))
    assert ragged.vector_width(1) == 4
    assert "start at multiples of 4 only" in ragged.vector_obstacle(1, 8)
    aligned = Tile((128, 32), (m, k)).apply(View.strided((M, N), (64, 1)))
    assert "an edge may cut 8 neighbours" in aligned.vector_obstacle(1, 8)


@pytest.mark.parametrize(
    ("view", "dim", "width", "why"),
    [
        (View.strided((4, 6), (8, 1)), 1, 4, "the extent 6 of dimension 1 is not a multiple of 4"),
        (View.strided((4, 8), (1, 4)), 1, 2, "2 neighbours along dimension 1 are not contiguous"),
        (View.strided((4, 8), (12, 1)), 1, 8, "start at multiples of 4 only"),
        (
            Slice((None, (1, 5))).apply(View.strided((4, 8), (8, 1))),
            1,
            2,
            "start at multiples of 1 only",
        ),
        (PadTo((1, 4)).apply(View.strided((4, 6), (8, 1))), 1, 4, "not all of them have i1 < 6"),
        (View.strided((4, 8), (8, 1)), 1, 8, ""),
        (View.strided((4, 8), (8, 1)), 0, 1, ""),
    ],
    ids=str,
)
def test_obstacles_say_why(view: View, dim: int, width: int, why: str) -> None:
    assert why in view.vector_obstacle(dim, width)
    assert (view.vector_obstacle(dim, width) == "") == (why == "")


def test_padding_by_whole_vectors_keeps_them() -> None:
    padded = Pad((0, 8), (0, 8)).apply(View.strided((4, 16), (16, 1)))
    assert padded.vector_width(1) == 8
    assert Pad((0, 4), (0, 4)).apply(View.strided((4, 16), (16, 1))).vector_width(1) == 4


def test_a_view_of_a_layout_is_the_layout() -> None:
    for layout in [
        Layout(((2, 4), 3), ((1, 6), 2)),
        Layout(12, 3),
        Layout((4, (2, (3, 2))), (1, (4, (8, 24)))),
    ]:
        view = View.of(layout)
        assert view.shape == tuple(mode.size for mode in layout.modes)
        assert view.elems == layout.cosize
        for coords in itertools.product(*map(range, view.shape)):
            assert view.at(coords) == layout(*coords)


def test_a_view_of_a_symbolic_layout() -> None:
    view = View.of(Layout((M, (4, K)), (K * 4, (1, 4))))
    assert view.shape == (M, K * 4)
    assert str(view) == "(M, 4*K) -> 4*K*i0 + i1"
    assert view.vector_width(1) == 16


def test_at_takes_integers_arrays_and_symbols() -> None:
    view = Tile((4, 4), (1, 1)).apply(View.strided((6, 8), (8, 1)))
    assert view.at((1, 2)) == 46
    assert view.valid_at((1, 2)) is True
    assert view.valid_at((2, 0)) is False
    rows = np.arange(4)
    assert view.at((rows, 2)).tolist() == [38, 46, 54, 62]
    assert view.valid_at((rows, 2)).tolist() == [True, True, False, False]
    i = Sym("i", 0, 1)
    assert str(view.at((i, 0))) == "8*i + 36"
    assert prove(view.valid_at((i, 0))) is True
    assert view.valid_at((M, 0)) == less(M + 4, 6)


def test_the_wrong_number_of_coordinates_is_refused() -> None:
    with pytest.raises(LayoutError, match="3 coordinates"):
        View.strided((4, 8), (8, 1)).at((1, 2, 3))
    with pytest.raises(LayoutError, match="rank 2"):
        View.strided((4, 8), (8,))


def test_text() -> None:
    view = Tile((4,), (1,)).apply(View.strided((6,), (1,)))
    assert str(view) == "(4) -> i0 + 4 if i0 + 4 < 6"
    assert (view.rank, view.is_static) == (1, True)
    assert not View.strided((M,), (1,)).is_static
