"""The rules of shared memory: each coordinate has its own element, inside of the allocation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.errors import LegalityError, TraceError

from .broken import found, said


@pytest.mark.parametrize(
    ("strides", "places", "nearest"),
    [
        ((16, 1), "[0, 16] and [1, 0]", (32, 1)),
        ((1, 60), "[0, 1] and [60, 0]", (1, 65)),
        ((0, 1), "[0, 0] and [1, 0]", (32, 1)),
        ((1, 0), "[0, 0] and [0, 1]", (1, 64)),
        ((40, 2), "[0, 20] and [1, 0]", (63, 2)),
    ],
)
def test_two_coordinates_in_one_element_are_refused(strides, places, nearest) -> None:
    shape = (nearest[1], 32) if nearest[0] == 1 else (64, 32)

    def author():
        tw.shared(shape, tw.f16, layout=tw.Layout(shape, strides))

    def legal():
        tw.shared(shape, tw.f16, layout=tw.Layout(shape, nearest))

    assert said(author) == [
        (
            "shared layout",
            f"the layout {tw.Layout(shape, strides)} of shared puts {places} into one element",
            f"layout=tw.Layout({shape}, {nearest})",
        )
    ]
    assert said(legal) == []


def test_large_strides_are_looked_at() -> None:
    """The time depends on the number of elements, not on their distances."""

    def author():
        tw.shared((128, 2), tw.f16, layout=tw.Layout((128, 2), (250_000, 0)))

    [(rule, message, _)] = said(author)
    assert rule == "shared layout"
    assert "puts [0, 0] and [0, 1] into one element" in message


def test_strides_beyond_any_shared_memory_are_refused_at_once() -> None:
    def author():
        tw.shared((128, 2), tw.f16, layout=tw.Layout((128, 2), (10**12, 1)))

    with pytest.raises(TraceError, match=r"shared memory of 127000000000002 .* nearest legal choice"):
        said(author)


def test_it_is_refused_at_the_authors_line_on_every_target() -> None:
    @tw.kernel(X="M N")
    def overlapping(X):
        tw.block_index(1)
        s = tw.shared((64, 32), X.dtype, layout=tw.Layout((64, 32), (16, 1)))
        tw.copy(X.tile((64, 32), (0, 0)), s, threads=(32, 1))

    x = np.ones((64, 32), np.float32)
    for target in ("reference", "cpu"):
        with pytest.raises(LegalityError, match="shared layout") as caught:
            overlapping(x, target=target)
        assert "in overlapping\n" in str(caught.value)
    with pytest.raises(LegalityError, match="shared layout"):
        overlapping.compile(tw.TensorSpec(tw.f32, 2, 1, (64, 32), (32, 1), 16, False), target="cuda")


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-3, 30)), min_size=1, max_size=3),
    st.integers(0, 2),
)
def test_exactly_the_overlapping_layouts_are_refused(dims, bits) -> None:
    shape, strides = tuple(n for n, _ in dims), tuple(d for _, d in dims)

    def author():
        tw.shared(shape, tw.i32, layout=tw.Layout(shape, strides), elems=512, swizzle=tw.Swizzle(bits, 1, 3))

    offsets = [
        sum(i * stride for i, stride in zip(at, strides, strict=True)) for at in product(*map(range, shape))
    ]
    rules = {rule for rule, _, _ in said(author)}
    assert ("shared layout" in rules) == (len(set(offsets)) < len(offsets))
    assert ("shared allocation" in rules) == (min(offsets) < 0)


def test_a_layout_that_goes_backwards_is_refused() -> None:
    def author():
        tw.shared((4, 8), tw.f32, layout=tw.Layout((4, 8), (-8, 1)))

    assert said(author) == [
        (
            "shared allocation",
            "the layout (4,8):(-8,1) of shared begins at element -24, not at 0",
            "layout=tw.Layout((4, 8), (8, 1))",
        )
    ]


@pytest.mark.parametrize(("shape", "dim"), [((0, 1), 0), ((8, 0), 1), ((8, -2), 1)])
def test_an_empty_allocation_is_refused(shape: tuple[int, int], dim: int) -> None:
    def author():
        tw.shared(shape, tw.f16)

    nearest = tuple(max(extent, 1) for extent in shape)
    assert said(author) == [
        (
            "shared allocation",
            f"shared of shape {shape} has the extent {shape[dim]} along dimension {dim}; the least is 1",
            f"tw.shared({nearest}, tw.f16)",
        )
    ]


def test_a_swizzle_exchanges_among_all_that_is_allocated() -> None:
    """A layout does not fill the blocks of a swizzle; the suggested remedy can be applied."""
    layout, swizzle = tw.Layout((64, 32), (40, 1)), tw.Swizzle(3, 3, 3)

    def short():
        tw.shared((64, 32), tw.f16, layout=layout, swizzle=swizzle)

    with pytest.raises(tw.TraceError, match=r"the buffer's 2552 .* nearest: 2560 \(elems=2560 "):
        found(short)

    def author():
        tw.shared((64, 32), tw.f16, layout=layout, swizzle=swizzle, elems=2560)
        tw.shared((64, 32), tw.f16, layout=layout, elems=2560).swizzle(3, 3, 3)

    assert said(author) == []


@tw.kernel(X="M N", Y="M N")
def through_swizzled(X, Y):
    tw.block_index(1)
    s = tw.shared(
        (64, 32), X.dtype, layout=tw.Layout((64, 32), (40, 1)), swizzle=tw.Swizzle(3, 3, 3), elems=2560
    )
    tw.copy(X.tile((64, 32), (0, 0)), s, threads=(32, 1))
    tw.barrier()
    tw.copy(s, Y.tile((64, 32), (0, 0)), threads=(1, 32))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_padded_and_swizzled_tile_holds_every_element(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float16)
    y = np.full_like(x, np.nan)
    assert through_swizzled(x, y, target=target).target == target
    np.testing.assert_array_equal(y, x)
