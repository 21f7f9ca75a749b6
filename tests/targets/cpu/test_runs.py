"""Copies whose rows are separate runs: of im2col views and of merged dimensions with any extents."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.symbolic.expr import less
from tilewright.symbolic.nodes import Sym
from tilewright.symbolic.rebuilding import replaced


@tw.kernel(X="N H W C", Y="P T")
def rows(X, Y):
    matrix = X.im2col(spatial=(1, 2), filter=(3, 2), padding=((1, 0), (0, 1)), dilation=(1, 2))
    tw.require(matrix.shape[0] == Y.shape[0], "rows")
    tw.require(matrix.shape[1] == Y.shape[1], "columns")
    j, i = tw.block_index((tw.ceil_div(Y.shape[1], 32), tw.ceil_div(Y.shape[0], 8)))
    tw.copy(matrix.tile((8, 32), (i, j)), Y.tile((8, 32), (i, j)), threads=32)


@tw.kernel(X="M A B", Y="M K")
def joined(X, Y):
    flat = X.merge(1)
    tw.require(flat.shape[1] == Y.shape[1], "columns")
    j, i = tw.block_index((tw.ceil_div(Y.shape[1], 32), tw.ceil_div(Y.shape[0], 4)))
    tw.copy(flat.tile((4, 32), (i, j)), Y.tile((4, 32), (i, j)), threads=32)


@pytest.mark.parametrize("channels", [1, 2, 3, 7, 8, 31, 32, 33, 100])
def test_im2col_of_any_number_of_channels(channels: int) -> None:
    x = np.random.default_rng(channels).standard_normal((2, 5, 6, channels)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (1, 0), (0, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))[..., ::2]
    want = windows.transpose(0, 1, 2, 4, 5, 3).reshape(-1, 6 * channels)
    y = np.full(want.shape, np.nan, np.float32)
    ran = rows(x, y, target="cpu")
    assert ran.target == "cpu"
    assert ("const Index length" in ran.source) == (channels != 32)  # a tile of whole runs divides nothing
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize(("a", "b"), [(1, 1), (3, 5), (5, 3), (7, 64), (64, 7), (2, 31), (0, 4), (4, 0)])
def test_merged_dimensions_that_lie_apart(a: int, b: int) -> None:
    whole = np.random.default_rng(a).standard_normal((9, a, b + 3)).astype(np.float32)
    x, y = whole[:, :, :b], np.full((9, a * b), np.nan, np.float32)
    assert joined(x, y, target="cpu").target == "cpu"
    np.testing.assert_array_equal(y, x.reshape(9, a * b))


def test_parts_are_replaced_the_largest_first() -> None:
    i, j = Sym("i", 0, 63), Sym("j", 0, 7)
    assert replaced((i // 8) % 2 + i, {i // 8: j, i: 5}) == j % 2 + 5
    assert replaced(less(i // 8, 3), {i // 8: j}) == less(j, 3)
