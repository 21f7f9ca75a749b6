"""Exclusive or splits into parts that the other operand cannot reach: addresses become base and step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tilewright.symbolic.expr import floordiv, mod, xor
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import evaluate
from tilewright.views.transforms import Swizzle
from tilewright.views.view import View

X, Y = Sym("x"), Sym("y", 0, 63)


@given(
    st.integers(-500, 500), st.integers(0, 63), st.sampled_from([1, 2, 8, 32, 64, 128]), st.integers(0, 99)
)
def test_xor_means_xor(x: int, y: int, factor: int, constant: int) -> None:
    value = X * factor + constant
    expected = (x * factor + constant) ^ y
    assert evaluate(xor(value, Y), {X: x, Y: y}) == expected
    assert evaluate(xor(Y, value), {X: x, Y: y}) == expected


@given(
    st.integers(-500, 500),
    st.integers(0, 63),
    st.sampled_from([1, 2, 8, 32]),
    st.sampled_from([2, 4, 16, 64]),
)
def test_division_by_powers_of_two_goes_through_xor(x: int, y: int, factor: int, by: int) -> None:
    value = xor(X * factor + 5, Y * 3)
    expected = (x * factor + 5) ^ (y * 3)
    assert evaluate(floordiv(value, by), {X: x, Y: y}) == expected // by
    assert evaluate(mod(value, by), {X: x, Y: y}) == expected % by


def test_two_swizzles_do_not_nest() -> None:
    view = Swizzle(1, 5, 2).apply(Swizzle(2, 3, 3).apply(View.strided((256, 32), (32, 1))))
    assert str(view.offset).count("^") == 2


def test_a_swizzled_address_splits_into_base_and_step() -> None:
    view = Swizzle(2, 3, 3).apply(View.strided((256, 32), (32, 1)))
    row, step, column = Sym("row", 0, 63), Sym("step", 0, 3), Sym("column", 0, 3)
    assert str(view.at((row + step * 64, column * 8))) == (
        "2048*step + 32*row + ((8*((row // 2) % 4)) ^ (8*column))"
    )
