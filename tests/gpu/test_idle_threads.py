"""Blocks of whole warps with idle threads, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@tw.kernel(X="M N", Y="M N", S="M P")
def five_columns(X, Y, S, *, threads):
    """40 threads share (8, 5); the first 8 threads sum a row each."""
    s = tw.shared((8, 5), X.dtype)
    block = tw.block_index(tw.ceil_div(X.shape[0], 8))
    tw.copy(X.tile((8, 5), (block, 0)), s, threads=threads)
    tw.barrier()
    x = tw.load(s.partition(threads))
    tw.copy(x + x, Y.tile((8, 5), (block, 0)))
    rows = tw.load(s.partition((8, 1)))
    tw.copy(tw.reduce_sum(rows, dim=1), S.tile((8, 1), (block, 0)))


@pytest.mark.parametrize("threads", [40, 64, (8, 5)])
def test_threads_that_a_tile_cannot_use_idle(threads) -> None:
    x = np.random.default_rng(1).integers(-9, 9, (83, 5)).astype(np.float32)
    y, s = (DeviceArray.of(np.full(shape, np.nan, np.float32)) for shape in (x.shape, (83, 1)))
    made = five_columns(DeviceArray.of(x), y, s, threads=threads)
    assert (made.target, made.kernel.threads) == ("cuda", 64)
    np.testing.assert_array_equal(y.host(), x + x)
    np.testing.assert_array_equal(s.host(), x.sum(axis=1, keepdims=True))
