"""Tiles counted by their place: legal indices."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw


@tw.kernel(X="B M N", Y="R S")
def chosen(X, Y, *, take):
    tile = take(X.tiles((1, 8, 8)))
    if tile.__class__.__name__ == "Tiles":  # of the dimensions that are left, the first
        tile = tile[(0,) * len(tile.shape)]
    tw.copy(tile[0], Y.tile((8, 8), (0, 0)), threads=(8, 4))


@pytest.mark.parametrize(
    ("take", "at"),
    [
        (lambda tiles: tiles[1, ..., 2], (1, 0, 2)),
        (lambda tiles: tiles[..., 1], (0, 0, 1)),
        (lambda tiles: tiles[1, ...], (1, 0, 0)),
        (lambda tiles: tiles[...], (0, 0, 0)),
        (lambda tiles: tiles[1, 0, 2, ...], (1, 0, 2)),
    ],
)
def test_three_dots_keep_what_is_between(take, at) -> None:
    x = np.random.default_rng(0).standard_normal((2, 8, 24)).astype(np.float32)
    y = np.full((8, 8), np.nan, np.float32)
    chosen(x, y, take=take, target="reference")
    b, _, j = at
    np.testing.assert_array_equal(y, x[b, :, 8 * j : 8 * j + 8])


def test_tiles_are_indexed_not_called() -> None:
    x, y = np.zeros((2, 8, 24), np.float32), np.zeros((8, 8), np.float32)
    with pytest.raises(tw.TraceError) as caught:
        chosen(x, y, take=lambda tiles: tiles(0, 0, 1), target="reference")
    said = "tiles(0, 0, 1): tiles are indexed; nearest legal choice: tiles[0, 0, 1]"
    assert str(caught.value).startswith(said)
    assert "take=lambda tiles: tiles(0, 0, 1)" in str(caught.value)
