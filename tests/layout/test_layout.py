"""Layouts as functions: indices of every form, slices, sizes, symbols."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout, column_major, row_major
from tilewright.layout.tuples import canonical, congruent, depth, flat, format_tuple
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate, substitute

SHAPES = st.recursive(
    st.integers(1, 4), lambda s: st.lists(s, min_size=1, max_size=3).map(tuple), max_leaves=5
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shape = draw(SHAPES)
    return Layout(shape, strides_like(draw, shape))


def strides_like(draw: st.DrawFn, shape: Any) -> Any:
    if isinstance(shape, tuple):
        return tuple(strides_like(draw, part) for part in shape)
    return draw(st.integers(0, 20))


def positions(shape: Any) -> list[Any]:
    """Yield all coordinates of a nested shape, the first entry fastest."""
    if not isinstance(shape, tuple):
        return list(range(shape))
    columns = itertools.product(*(positions(part) for part in reversed(shape)))
    return [tuple(reversed(column)) for column in columns]


def inner_product(coord: Any, stride: Any) -> int:
    if isinstance(coord, tuple):
        return sum(inner_product(c, d) for c, d in zip(coord, stride, strict=True))
    return int(coord * stride)


@given(layouts())
def test_an_index_counts_through_coordinates_the_first_fastest(layout: Layout) -> None:
    expected = [inner_product(coord, layout.stride) for coord in positions(layout.shape)]
    assert [layout(i) for i in range(layout.size)] == expected
    assert [layout(coord) for coord in positions(layout.shape)] == expected
    assert layout(np.arange(layout.size)).tolist() == expected
    assert layout.size == len(expected)
    assert layout.cosize == max(expected) + 1


@given(layouts())
def test_one_index_per_mode_agrees(layout: Layout) -> None:
    for coords in itertools.product(*(range(mode.size) for mode in layout.modes)):
        assert layout(*coords) == sum(mode(c) for mode, c in zip(layout.modes, coords, strict=True))


@given(layouts())
def test_a_symbolic_index_has_the_same_value(layout: Layout) -> None:
    index = Sym("i", 0, layout.size - 1)
    value = layout(index)
    assert [evaluate(value, {index: i}) for i in range(layout.size)] == [
        layout(i) for i in range(layout.size)
    ]


@given(layouts())
def test_text_and_structure(layout: Layout) -> None:
    assert eval(repr(layout)) == layout  # repr promises to be evaluable
    assert str(layout) == f"{format_tuple(layout.shape)}:{format_tuple(layout.stride)}"
    assert layout.rank == (len(layout.shape) if isinstance(layout.shape, tuple) else 1)
    assert layout.depth == depth(layout.shape)
    assert congruent(layout.shape, layout.stride)
    assert hash(layout) == hash(Layout(layout.shape, layout.stride))


@given(layouts(), st.data())
def test_a_slice_is_the_layout_with_some_coordinates_fixed(layout: Layout, data: st.DataObject) -> None:
    before = (layout.shape, layout.stride)

    def choose(shape: Any) -> Any:
        how = data.draw(st.sampled_from(["keep", "fix", "deeper"]))
        if how == "keep":
            return None
        if how == "fix" or not isinstance(shape, tuple):
            return data.draw(st.integers(0, Layout(shape).size - 1))
        return tuple(choose(part) for part in shape)

    def chosen(shape: Any, choice: Any) -> list[Any]:
        """Return the coordinates that remain after a choice."""
        if isinstance(choice, tuple):
            columns = [chosen(n, c) for n, c in zip(shape, choice, strict=True)]
            return list(itertools.product(*columns))
        return list(range(Layout(shape).size)) if choice is None else [choice]

    parts = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
    choices = tuple(choose(part) for part in parts)
    kept, offset = layout.slice(*choices)
    expected = [layout(*coord) for coord in chosen(parts, choices)]
    assert sorted(expected) == sorted(kept(i) + offset for i in range(kept.size))
    assert (layout.shape, layout.stride) == before
    assert layout[choices] == (kept, offset)


def test_slices_in_brackets() -> None:
    layout = Layout((4, (2, 3)), (1, (4, 8)))
    assert layout[2, :] == (Layout((2, 3), (4, 8)), 2)
    assert layout[:, (1, None)] == (Layout((4, 3), (1, 8)), 4)
    assert layout[3, (1, 2)] == (Layout((), ()), 23)
    assert layout[:, :] == (layout, 0)
    assert Layout(8, 3)[5] == (Layout((), ()), 15)
    assert Layout(8, 3)[:] == (Layout(8, 3), 0)


def test_the_empty_layout() -> None:
    empty = Layout(())
    assert (empty.size, empty.cosize, empty.rank, empty.depth, empty()) == (1, 1, 0, 1, 0)


def test_default_strides_are_packed_first_dimension_fastest() -> None:
    assert Layout((4, (2, 3), 5)) == Layout((4, (2, 3), 5), (1, (4, 8), 24))
    assert column_major((4, 8)) == Layout((4, 8), (1, 4))
    assert row_major((4, 8)) == Layout((4, 8), (8, 1))
    assert row_major((4, (2, 3))) == Layout((4, (2, 3)), (6, (3, 1)))
    assert row_major((4, 8), 16) == Layout((4, 8), (16, 1))
    assert column_major((4, 8, 2), 5) == Layout((4, 8, 2), (1, 5, 40))


def test_negative_strides_do_not_grow_the_buffer() -> None:
    assert Layout((4, 3), (1, -4)).cosize == 4


def test_symbolic_layouts() -> None:
    M, K = Sym("M", 1), Sym("K", 8, divisor=8)
    layout = row_major((M, K))
    assert str(layout) == "(M,K):(K,1)"
    assert not layout.is_static
    assert layout(2, 3) == K * 2 + 3
    assert substitute(layout.cosize, {M: 6, K: 16}) == 96
    kept, offset = layout[:, 5]
    assert (kept, offset) == (Layout(M, K), 5)
    index = Sym("i", 0, None, 1, M * K)
    for m, k in [(1, 8), (3, 16)]:
        static = row_major((m, k))
        value = substitute(layout(index), {M: m, K: k})
        assert [evaluate(value, {index: i}) for i in range(m * k)] == [static(i) for i in range(m * k)]


def test_numpy_integers_are_integers() -> None:
    layout = Layout((np.int32(4), np.int64(2)))
    assert layout == Layout((4, 2))
    assert {type(leaf) for leaf in flat(layout.shape)} == {int}
    assert layout(np.int16(3), 1) == 7
    assert canonical([np.uint8(3), [4]]) == (3, (4,))


@pytest.mark.parametrize("coords", [(24,), (-1,), (4, 0), (0, 6), (0, (2, 0)), (np.array([0, 24]),)])
def test_coordinates_outside_are_refused(coords: tuple[Any, ...]) -> None:
    with pytest.raises(LayoutError, match="outside"):
        Layout((4, (2, 3)))(*coords)


@pytest.mark.parametrize(
    "coords", [(0, 0, 0), ((0, 0), 0), (0, (0, 0, 0)), (0.5,), ("0",), (np.array([0.5]),)]
)
def test_coordinates_that_do_not_fit_are_refused(coords: tuple[Any, ...]) -> None:
    with pytest.raises(LayoutError, match=r"fit|not an index"):
        Layout((4, (2, 3)))(*coords)


def test_an_array_needs_a_static_layout() -> None:
    with pytest.raises(LayoutError, match="only a static layout"):
        row_major((Sym("M", 1), 8))(np.arange(4))
