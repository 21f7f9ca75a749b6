"""The laws of the algebra, on random layouts and on symbolic ones."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.layout.algebra import (
    blocked_product,
    coalesce,
    complement,
    composition,
    left_inverse,
    logical_divide,
    logical_product,
    make_layout,
    raked_product,
    right_inverse,
    tiled_divide,
    zipped_divide,
)
from tilewright.layout.layout import Layout, row_major
from tilewright.layout.tuples import flat
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import substitute

pytestmark = pytest.mark.in_turns(3)

EXTENTS = st.sampled_from([1, 2, 3, 4, 6, 8])


@st.composite
def layouts(draw: st.DrawFn, modes: int = 3) -> Layout:
    """Draw any layout, nested once."""
    count = draw(st.integers(1, modes))
    shape = [draw(EXTENTS) for _ in range(count)]
    stride = [draw(st.sampled_from([0, 1, 2, 3, 4, 6, 8, 12, 16, 24])) for _ in range(count)]
    if count > 1 and draw(st.booleans()):
        return Layout((shape[0], tuple(shape[1:])), (stride[0], tuple(stride[1:])))
    return Layout(tuple(shape), tuple(stride))


@st.composite
def spread(draw: st.DrawFn, modes: int = 3) -> Layout:
    """Draw an injective layout: strides are multiples of the span of the modes below."""
    span, parts = 1, []
    for _ in range(draw(st.integers(1, modes))):
        extent, stride = draw(EXTENTS), span * draw(st.integers(1, 3))
        parts.append((extent, stride))
        span = extent * stride
    parts = draw(st.permutations(parts))
    return Layout(tuple(n for n, _ in parts), tuple(d for _, d in parts))


def offsets(layout: Layout) -> list[int]:
    return [layout(i) for i in range(layout.size)]


@given(layouts())
def test_coalesce_keeps_the_function(layout: Layout) -> None:
    short = coalesce(layout)
    assert offsets(short) == offsets(layout)
    assert short.depth <= 1
    assert all(
        n0 * d0 != d1 and 1 not in (n0, n1)
        for (n0, d0), (n1, d1) in itertools.pairwise(zip(flat(short.shape), flat(short.stride), strict=True))
    )


@given(layouts())
def test_coalesce_by_mode_keeps_every_mode(layout: Layout) -> None:
    short = coalesce(layout, (None,) * layout.rank)
    assert [offsets(mode) for mode in short.modes] == [offsets(mode) for mode in layout.modes]
    assert short.depth <= 2


@given(layouts(), layouts())
def test_composition_is_the_composition(outer: Layout, inner: Layout) -> None:
    try:
        both = composition(outer, inner)
    except LayoutError:
        assume(False)
    assert offsets(both) == [outer(inner(i)) for i in range(inner.size)]
    assert [mode.size for mode in both.modes] == [mode.size for mode in inner.modes]


@given(layouts())
def test_composition_with_the_whole_layout_keeps_it(layout: Layout) -> None:
    assert offsets(composition(layout, Layout(layout.size))) == offsets(layout)
    assert offsets(composition(Layout(layout.cosize), layout)) == offsets(layout)


@given(spread(), st.data())
def test_composition_is_associative(layout: Layout, data: st.DataObject) -> None:
    a = data.draw(st.sampled_from([n for n in range(1, layout.size + 1) if layout.size % n == 0]))
    b = data.draw(st.sampled_from([n for n in range(1, a + 1) if a % n == 0]))
    middle, inner = Layout(a, layout.size // a), Layout(b, a // b)
    try:
        left = composition(composition(layout, middle), inner)
        right = composition(layout, composition(middle, inner))
    except LayoutError:
        assume(False)
    assert offsets(left) == offsets(right)


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        (Layout((4, 2), (1, 10)), Layout((4, 4), (1, 1))),  # the two modes together carry
        (Layout((4, 2), (1, 10)), Layout(3, 3)),
        (Layout((4, 4), (1, 10)), Layout((2, 3), (1, 2))),
        (Layout(8), Layout(4, 3)),
        (Layout(8), Layout(4, -1)),
    ],
)
def test_what_is_no_layout_is_refused(outer: Layout, inner: Layout) -> None:
    with pytest.raises(LayoutError, match="composition of"):
        composition(outer, inner)


@given(spread(), st.integers(1, 3))
def test_complement_is_disjoint_and_covers(layout: Layout, periods: int) -> None:
    span = max([1, *(n * d for n, d in zip(flat(layout.shape), flat(layout.stride), strict=True) if n > 1)])
    rest = complement(layout, span * periods)
    assert sorted(offsets(make_layout(layout, rest))) == list(range(span * periods))
    assert sorted(offsets(rest)) == offsets(rest)
    assert sorted(offsets(make_layout(layout, complement(layout)))) == list(range(span))


@given(layouts(), st.integers(1, 96))
def test_a_complement_is_right_or_refused(layout: Layout, size: int) -> None:
    try:
        rest = complement(layout, size)
    except LayoutError:
        assume(False)
    assert sorted(set(offsets(make_layout(layout, rest)))) == list(range(size))
    assert len(set(offsets(layout))) * rest.size == size


@given(spread(), st.data())
def test_logical_divide_covers_each_element_once(layout: Layout, data: st.DataObject) -> None:
    tile = data.draw(st.sampled_from([n for n in range(1, layout.size + 1) if layout.size % n == 0]))
    stride = data.draw(st.sampled_from([n for n in range(1, 9) if layout.size % (n * tile) == 0]))
    try:
        divided = logical_divide(layout, Layout(tile, stride))
    except LayoutError:
        assume(False)
    assert divided.rank == 2
    assert divided.modes[0].size == tile
    assert sorted(offsets(divided)) == sorted(offsets(layout))
    assert offsets(divided.modes[0]) == [layout(i * stride) for i in range(tile)]


@given(st.data())
def test_division_by_mode_covers_each_element_once(data: st.DataObject) -> None:
    tile = [data.draw(st.integers(1, 4)) for _ in range(2)]
    count = [data.draw(st.integers(1, 4)) for _ in range(2)]
    shape = [t * c for t, c in zip(tile, count, strict=True)]
    layout = row_major((*shape, 2), data.draw(st.integers(2, 5)))
    zipped, tiled = zipped_divide(layout, tile), tiled_divide(layout, tile)
    assert sorted(offsets(zipped)) == sorted(offsets(tiled)) == sorted(offsets(layout))
    for t0, t1, c0, c1, rest in itertools.product(*map(range, (*tile, *count, 2))):
        at = layout(c0 * tile[0] + t0, c1 * tile[1] + t1, rest)
        assert zipped((t0, t1), (c0, c1, rest)) == at
        assert tiled((t0, t1), c0, c1, rest) == at
        assert logical_divide(layout, tile)((t0, c0), (t1, c1), rest) == at


def test_nested_tilers() -> None:
    layout = Layout(((8, 6), 4))
    zipped = zipped_divide(layout, ((4, 3), 2))
    assert zipped(((3, 2), 1), ((1, 1), 1)) == layout((7, 5), 3)


@given(spread(), spread(2))
def test_logical_product_repeats_without_overlap(layout: Layout, tiler: Layout) -> None:
    try:
        made = logical_product(layout, tiler)
    except LayoutError:
        assume(False)
    assert made.modes[0] == layout
    assert len(set(offsets(made))) == layout.size * tiler.size
    # Copies stand in the order in which the tiler counts them.
    firsts = offsets(made.modes[1])
    assert sorted(range(tiler.size), key=firsts.__getitem__) == sorted(range(tiler.size), key=tiler)


def test_blocked_and_raked_products() -> None:
    layout, tiler = Layout((2, 5), (5, 1)), Layout((3, 4))
    blocked, raked = blocked_product(layout, tiler), raked_product(layout, tiler)
    pair = logical_product(layout, tiler)
    for a, b, x, y in itertools.product(range(2), range(5), range(3), range(4)):
        assert blocked((a, x), (b, y)) == raked((x, a), (y, b)) == pair((a, b), (x, y))


@given(spread())
def test_inverses(layout: Layout) -> None:
    left = left_inverse(layout)
    assert [left(layout(i)) for i in range(layout.size)] == list(range(layout.size))
    right = right_inverse(layout)
    assert [layout(right(i)) for i in range(right.size)] == list(range(right.size))


@given(st.permutations([0, 1, 2]), st.tuples(EXTENTS, EXTENTS, EXTENTS))
def test_a_right_inverse_of_a_packed_layout_is_whole(order: list[int], shape: tuple[int, int, int]) -> None:
    strides = [math.prod(shape[at] for at in order[: order.index(dim)]) for dim in range(3)]
    assert right_inverse(Layout(shape, tuple(strides))).size == math.prod(shape)


M = Sym("M", 32, divisor=32)
K = Sym("K", 16, divisor=16)
SIZES = [{M: m, K: k} for m, k in [(32, 16), (64, 48), (96, 16)]]


def at(layout: Layout, sizes: dict[Sym, int]) -> Layout:
    return Layout(nested(layout.shape, sizes), nested(layout.stride, sizes))


def nested(value: object, sizes: dict[Sym, int]) -> object:
    return tuple(nested(v, sizes) for v in value) if isinstance(value, tuple) else substitute(value, sizes)


@pytest.mark.parametrize("sizes", SIZES, ids=str)
@pytest.mark.parametrize("tile", [(32, 16), (16, 8), (8, 1), (1, 16)])
def test_symbolic_division(tile: tuple[int, int], sizes: dict[Sym, int]) -> None:
    layout = row_major((M, K))
    for verb in (logical_divide, zipped_divide, tiled_divide):
        assert offsets(at(verb(layout, tile), sizes)) == offsets(verb(at(layout, sizes), tile))


def test_symbolic_results_read_well() -> None:
    layout = row_major((M, K))
    assert str(zipped_divide(layout, (32, 8))) == "((32,8),(M // 32,K // 8)):((K,1),(32*K,8))"
    assert str(coalesce(Layout((K, M), (1, K)))) == "K*M:1"
    assert str(complement(Layout(16, K), K * 16)) == "K:1"
    assert str(complement(Layout((M, K), (K, 1)), M * K)) == "1:0"
    assert str(right_inverse(layout)) == "(K,M):(M,1)"
    assert str(composition(layout, (Layout(16, 2), Layout(8)))) == "(16,8):(2*K,1)"


@pytest.mark.parametrize("tiler", [Layout(64), Layout(24), (64, 8), (5, 8)])
def test_undecidable_divisibility_is_refused(tiler: Layout | tuple[int, int]) -> None:
    with pytest.raises(LayoutError, match="known"):
        logical_divide(row_major((M, K)), tiler)
