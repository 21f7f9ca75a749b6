"""Automatic barriers in kernels whose blocks find their tiles from sizes of the launch."""

from __future__ import annotations

import numpy as np

import tilewright as tw


def test_tiles_that_a_block_finds_by_sizes_of_the_launch() -> None:
    """If places are divided by unknown sizes, any two tiles may be the same."""

    @tw.kernel(X="M N", Y="N M", sync="auto")
    def transpose(X, Y):
        held = tw.shared((32, 32), tw.f32)
        down, across = tw.ceil_div(X.shape[0], 32), tw.ceil_div(X.shape[1], 32)
        block = tw.block_index(3)
        for turn in tw.range(tw.ceil_div(down * across - block, 3)):
            tile = block + 3 * turn
            m, n = tile // across, tile % across
            tw.copy(X.tile((32, 32), (m, n)), held, threads=64)
            tw.copy(held.permute(1, 0), Y.tile((32, 32), (n, m)), threads=64)

    x, y = np.random.default_rng(0).random((70, 100), np.float32), np.empty((100, 70), np.float32)
    executable = transpose(x, y, target="reference")
    assert np.array_equal(y, x.T)
    assert executable.ir.count("barrier()") == 2
