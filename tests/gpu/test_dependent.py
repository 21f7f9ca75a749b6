"""Each grid of a chain begins before the one before has ended, and reads its results."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

TILE, BLOCKS, STEPS, ROUNDS = 256, 600, 12, 200


@tw.kernel(X="N", Y="N", half=tw.f32, turns=int)
def step(X, Y, half, turns, *, early):
    """``Y = 1 + X`` with its tiles in reverse order; every third block is slow, and writes late."""
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    if early:
        tw.hopper.launch_dependents()
    tw.hopper.prior_grid_wait()
    last = X.shape[0] // TILE - 1
    x = tw.load(X.tile((TILE,), (last - n,)).partition((TILE,)))
    total = tw.fragment(x, fill=0)
    total.assign(x)
    for _ in tw.range(turns * (n % 3)):
        total.assign(total * half + total * half)
    tw.copy(total + 1.0, Y.tile((TILE,), (n,)))


@pytest.mark.parametrize("early", [True, False], ids=["launch_dependents", "implicit"])
def test_every_link_sees_all_that_the_one_before_wrote(early: bool) -> None:
    start = np.random.default_rng(0).integers(0, 1000, TILE * BLOCKS).astype(np.float32)
    expected = start + STEPS  # an even number of reversals
    x, y = DeviceArray.of(start), DeviceArray.of(np.full_like(start, np.nan))
    bound = step.bind(early=early)
    stream = CUDA_DRIVER.call("cuStreamCreate", 1)  # that does not wait for the default one
    for turn in range(ROUNDS):
        CUDA_DRIVER.call("cuMemcpyHtoD", x.memory.address, start.ctypes.data, start.nbytes)
        CUDA_DRIVER.synchronize()
        for link in range(STEPS):
            source, target = (x, y) if link % 2 == 0 else (y, x)
            executable = bound(source, target, 0.5, 2000, stream=int(stream))
            assert executable.target == "cuda"
        wrong = np.flatnonzero(x.host() != expected)
        assert not wrong.size, f"round {turn}: {wrong.size} elements, the first at {wrong[0]}"
    CUDA_DRIVER.call("cuStreamDestroy", stream)
