"""Tensors in the order of their addresses, by the bits of one index."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout
from tilewright.passes.by_address import order_of_addresses
from tilewright.symbolic.nodes import Sym
from tilewright.views.transforms import Bits, Slice, Swizzle
from tilewright.views.view import View


@st.composite
def tiles(draw: st.DrawFn) -> View:
    """Return a stage of a ring of swizzled tiles: rows, columns, or K0 x rows x K1."""
    rows, depth = (1 << draw(st.integers(0, 4)) for _ in "mk")
    k1 = 1 << draw(st.integers(0, depth.bit_length() - 1))
    layout = draw(
        st.sampled_from(
            [
                Layout((3, rows, depth), (rows * depth, depth, 1)),
                Layout((3, rows, depth), (rows * depth, 1, rows)),
                Layout((3, rows, (k1, depth // k1)), (rows * depth, k1, (1, rows * k1))),
            ]
        )
    )
    view = View.of(layout)
    most = (rows * depth).bit_length() - 1
    for _ in range(draw(st.integers(0, 2))):
        bits = draw(st.integers(0, most // 2))
        base = draw(st.integers(0, most - 2 * bits))
        view = Swizzle(bits, base, draw(st.integers(bits, most - base - bits))).apply(view)
    return Slice((draw(st.integers(0, 2)), None, None)).apply(view)


@given(tiles())
def test_elements_in_the_order_of_their_addresses(tile: View) -> None:
    order = order_of_addresses(tile)
    assert isinstance(order, Bits)
    count = math.prod(int(extent) for extent in tile.shape)
    shown = np.broadcast_to(order.apply(tile).at((np.arange(count),)), (count,))
    assert np.array_equal(shown, tile.at((0, 0)) + np.arange(count))


@pytest.mark.parametrize(
    ("view", "why"),
    [
        (View.strided((4, 8), (9, 1)), "without gaps"),
        (View.strided((4, 12), (12, 1)), "4 x 12 has an extent that is no power of two"),
        (View.strided((4, 4), (1, 1)), "without gaps"),
        (View((8,), Sym("i0", 0, 7) * Sym("pitch", 1, 2), 16), "depends on the tile's position"),
    ],
)
def test_other_tiles_have_no_such_order(view: View, why: str) -> None:
    assert why in str(order_of_addresses(view))


def test_bits_that_name_an_element_twice_are_refused() -> None:
    with pytest.raises(LayoutError, match="do not name every element once"):
        Bits((((0,), (0,)),)).apply(View.strided((4,), (1,)))
    with pytest.raises(LayoutError, match=r"extents \(8,\)"):
        Bits((((0,), (1,)),)).apply(View.strided((8,), (1,)))
