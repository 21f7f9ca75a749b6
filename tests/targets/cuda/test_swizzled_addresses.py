"""Addresses in swizzled tiles: the bits that a loop flips agree with the layout."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols
from tilewright.targets.simt.copies import split_flips
from tilewright.targets.simt.thread_values import split_offset
from tilewright.views.view import View

ROW, COL = Sym("row", 0, 15), Sym("col", 0, 8, 8)
STEP, STAGE = Sym("step", 0, 3), Sym("stage", 0, 1)


def same(offset: Int, start: Int, flips: Int) -> None:
    """Compare the two forms at every point; steps may be added after bits are flipped."""
    assert not symbols(flips) & {ROW, COL}
    still, steps = split_offset(start, (STEP, STAGE), set())
    assert symbols(still) <= {ROW, COL}
    for row, col, step, stage in itertools.product(range(16), (0, 8), range(4), range(2)):
        env = {ROW: row, COL: col, STEP: step, STAGE: stage}
        assert evaluate(start, env) ^ evaluate(flips, env) == evaluate(offset, env)
        assert (evaluate(still, env) ^ evaluate(flips, env)) + evaluate(steps, env) == evaluate(offset, env)


@pytest.mark.parametrize("columns", [64, 128])
def test_a_step_along_k_flips_bits_of_one_address(columns: int) -> None:
    plain = View.strided((2, 16, columns), (16 * columns, columns, 1))
    swizzle = tw.Swizzle(3, 3, 3 if columns == 64 else 4)
    offset = swizzle.apply(plain).at((STAGE, ROW, 16 * STEP + COL))
    found = split_flips(offset, {ROW, COL})
    assert found is not None
    same(offset, *found)
    assert found[1] == 16 * STEP


@given(st.data())
def test_whatever_is_split_is_equal(data: st.DataObject) -> None:
    bits, base, shift = (data.draw(st.integers(1, 4)) for _ in range(3))
    columns = data.draw(st.sampled_from([64, 72, 80, 128]))
    along = data.draw(st.sampled_from([8, 16, 24, 32]))
    view = View.strided((2, 80, columns), (80 * columns, columns, 1))
    offset = tw.Swizzle(bits, base, shift + bits).apply(view).at((STAGE, ROW, along * STEP + COL))
    if (found := split_flips(offset, {ROW, COL})) is not None:
        same(offset, *found)


def test_what_a_step_changes_below_the_flipped_bits_is_left_alone() -> None:
    below = (16 * (((STEP + ROW) // 2) % 4)) ^ (8 * STAGE + COL)
    assert split_flips(64 * ROW + ((16 * (ROW // 8)) ^ (64 * STEP + below)), {ROW, COL}) is None


def test_overlapping_bits_are_left_alone() -> None:
    assert split_flips(64 * ROW + ((8 * STEP + COL) ^ (8 * (ROW % 8))), {ROW, COL}) is None
    assert split_flips(40 * ROW + ((16 * STEP + COL) ^ (8 * (ROW % 8))), {ROW, COL}) is None
    assert split_flips(64 * ROW + ((16 * STEP + COL) ^ (8 * ((ROW + STEP) % 8))), {ROW, COL}) is None
