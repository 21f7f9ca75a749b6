"""A fence of global memory on a GPU: in every round, TMA loads what threads have written."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

TILES, ROUNDS = 500, 50


@tw.kernel(X="M N", Y="M N", Z="M N", add=tw.f32)
def through_global(X, Y, Z, add, *, after):
    """``Y = X + add`` by ordinary stores, then ``Z = Y`` by TMA; the fence is before or after the barrier."""
    block = tw.block_index(tw.ceil_div(X.shape[0], 8))
    held = tw.shared((8, 32), X.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    x = tw.load(X.tile((8, 32), (block, 0)).partition((8, 8)))
    tw.copy(x + add, Y.tile((8, 32), (block, 0)).partition((8, 8)))
    if not after:
        tw.hopper.fence_async("global")
    tw.barrier()
    if after:
        tw.hopper.fence_async("global")
    with tw.role(warps=1):
        tw.hopper.arrive(full[0], expect_bytes=8 * 32 * 4)
        tw.hopper.tma_load(Y.tile((8, 32), (block, 0)), held, full[0])
        tw.hopper.wait(full[0], 0)
        tw.copy(held, Z.tile((8, 32), (block, 0)), threads=(4, 8))


@pytest.mark.parametrize("after", [False, True], ids=["each writer", "the issuer"])
def test_tma_brings_what_threads_wrote_to_global_memory(after: bool) -> None:
    x = np.random.default_rng(0).integers(0, 1000, (8 * TILES, 32)).astype(np.float32)
    bound = through_global.bind(after=after)
    bound.check(x[:16], np.zeros_like(x[:16]), np.full_like(x[:16], np.nan), 1.0).raise_if_any()
    given, written, brought = (
        DeviceArray.of(array) for array in (x, np.zeros_like(x), np.full_like(x, np.nan))
    )
    for turn in range(ROUNDS):
        assert bound(given, written, brought, float(turn)).target == "cuda"
        np.testing.assert_array_equal(brought.host(), x + turn)
