"""Swizzles equal their formula; loops count their effect on bank conflicts."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.ops import Shared
from tilewright.threads.banks import bank_conflicts
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Slice

SWIZZLES = {
    "128 bytes of halves": ((8, 64), 2, (3, 3, 3)),
    "128 bytes of floats": ((8, 32), 4, (3, 2, 3)),
    "64 bytes of halves": ((4, 32), 2, (2, 3, 2)),
    "64 bytes of floats": ((4, 16), 4, (2, 2, 2)),
}


@pytest.mark.parametrize("name", SWIZZLES)
def test_the_map_is_its_formula(name) -> None:
    """Chunk c of 16 bytes of row r moves to the place of chunk ``c ^ r``."""
    (rows, columns), size, parts = SWIZZLES[name]
    view = tw.Swizzle(*parts).apply(tw.View.strided((rows, columns), (columns, 1)))
    chunk = 16 // size
    found = [[int(view.at((r, c))) for c in range(columns)] for r in range(rows)]
    for r in range(rows):
        for c in range(columns):
            assert found[r][c] == r * columns + ((c // chunk) ^ r) * chunk + c % chunk
    assert sorted(offset for row in found for offset in row) == list(range(rows * columns))


ROWS_OF_MATRICES = Distribution((32, 8), (Mode(32, 0, 1),), (Mode(8, 1, 1),))
"""ldmatrix.x4: lane l gives the address of 8 halves of row l."""


def degree(offset, lanes=32, size=2):
    """Return the most different words that eight lanes together take from one bank."""
    worst = 0
    for first in range(0, lanes, 8):
        taken = {}
        for lane in range(first, first + 8):
            for word in range(offset(lane) * size // 4, offset(lane) * size // 4 + 4):
                taken.setdefault(word % 32, set()).add(word)
        worst = max(worst, *(len(words) for words in taken.values()))
    return worst


@pytest.mark.parametrize(
    ("columns", "parts", "conflicts"),
    [(64, None, 8), (64, (3, 3, 3), 1), (32, None, 4), (32, (2, 3, 2), 2), (32, (2, 3, 3), 1)],
)
def test_how_many_rows_of_a_matrix_meet_in_a_bank(columns, parts, conflicts) -> None:
    """Rows of 128 bytes: 8, or 1 swizzled. Rows of 64 bytes: 4; 2 by rows modulo 4; 1 by pairs of rows."""
    view = tw.View.strided((32, columns), (columns, 1))
    if parts is not None:
        view = tw.Swizzle(*parts).apply(view)
    assert degree(lambda lane: int(view.at((lane, 0)))) == conflicts
    slim = Slice(((0, 32), (0, 8))).apply(view)
    assert bank_conflicts(slim, ROWS_OF_MATRICES, vector=8, element_bytes=2) == conflicts


@pytest.mark.parametrize(
    ("columns", "parts", "conflicts"),
    [(32, None, 8), (32, (3, 2, 3), 1), (16, None, 4), (16, (2, 2, 2), 2), (16, (2, 2, 3), 1)],
)
def test_how_many_rows_of_floats_meet_in_a_bank(columns, parts, conflicts) -> None:
    """As for halves: rows of 128 and of 64 bytes, four floats of each."""
    view = tw.View.strided((32, columns), (columns, 1))
    if parts is not None:
        view = tw.Swizzle(*parts).apply(view)
    assert degree(lambda lane: int(view.at((lane, 0))), size=4) == conflicts
    rows = Distribution((32, 4), (Mode(32, 0, 1),), (Mode(4, 1, 1),))
    assert bank_conflicts(Slice(((0, 32), (0, 4))).apply(view), rows, vector=4, element_bytes=4) == conflicts


@tw.kernel(X="M N")
def hardware(X):
    tw.block_index(1)
    held = tw.shared((32, 128 // X.dtype.bytes), X.dtype, swizzle=128)
    tw.copy(X.tile(held.shape, (0, 0)), held, threads=(32, 1))


@pytest.mark.parametrize("dtype", ["i8", "f8e4m3", "f16", "bf16", "f32", "i32", "f64", "c64", "c128"])
def test_rows_of_any_dtype_under_the_hardwares_swizzle_meet_in_no_bank(dtype) -> None:
    element = tw.dtype(dtype)
    kernel = hardware.trace(np.zeros((32, 128 // element.bytes), element.numpy))
    [held] = [op for op in kernel.walk() if isinstance(op, Shared)]
    rows, columns = held.view.shape
    chunk = 16 // element.bytes
    for at in range(0, columns, chunk):
        found = [int(held.view.at((row, at))) for row in range(rows)]
        assert found == [row * columns + (at // chunk ^ row % 8) * chunk for row in range(rows)]
        assert degree(lambda lane, found=found: found[lane], size=element.bytes) == 1


def test_padding_spreads_rows_too() -> None:
    view = tw.View.strided((32, 64), (72, 1))
    assert degree(lambda lane: int(view.at((lane, 0)))) == 1


@tw.kernel(X="M N", Y="M N")
def through(X, Y, *, how):
    m = tw.block_index(tw.ceil_div(X.shape[0], 64))
    tile = (64, 64)
    held = {
        "chosen": lambda: tw.shared(tile, X.dtype),
        "swizzled": lambda: tw.shared(tile, X.dtype, swizzle=tw.Swizzle(3, 3, 3)),
        "128": lambda: tw.shared(tile, X.dtype, swizzle=128),
        "padded": lambda: tw.shared(tile, X.dtype, layout=tw.Layout(tile, (72, 1))),
        "columns": lambda: tw.shared(tile, X.dtype, layout=tw.Layout(tile, (1, 72))),
    }[how]()
    base = tw.atoms.MMA_F16.a
    tw.copy(X.tile(tile, (m, 0)), held, threads=tw.by_warps(tile, tw.base_tile(tile, X.dtype), (4, 1)))
    tw.barrier()
    tw.copy(tw.load(held, tw.by_warps(tile, base, (2, 2))), Y.tile(tile, (m, 0)))


@pytest.mark.parametrize("how", ["chosen", "swizzled", "128", "padded", "columns"])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_layouts_given_and_chosen_hold_the_same(how, target) -> None:
    x = np.random.default_rng(0).standard_normal((130, 64)).astype(np.float16)
    y = np.full_like(x, np.nan)
    assert through(x, y, how=how, target=target).target == target
    assert (x == y).all()


def test_a_swizzle_that_does_not_fit_is_refused() -> None:
    @tw.kernel(X="M N")
    def odd(X):
        tw.block_index(1)
        tw.shared((9, 9), X.dtype, swizzle=tw.Swizzle(3, 3, 3))

    with pytest.raises(tw.TraceError, match="nearest"):
        odd.trace(np.zeros((8, 8), np.float16))
