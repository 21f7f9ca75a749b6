"""Every schedule drops the same elements: dropout depends only on the element's number in the result."""

from __future__ import annotations

import numpy as np
import pytest
from tests.schedule.small import CASES

import tilewright as tw

EVERYWHERE = ["direct", "cp_async, staged", "split, reduce-scatter", "swapped, cp_async, staged"]
"""Schedules of every GPU."""

HOPPER = [
    "cooperative, overlapped",
    "cooperative, 2 x 2",
    "cooperative, stream",
    "cooperative, split, reduce-scatter",
    "ping-pong, overlapped",
    "swapped, few rows",
]
SEED, OFFSET, SHARE = (1 << 62) + 977, (3 << 33) + 5, 0.4


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", ["reference", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", [*EVERYWHERE, *HOPPER])
def test_every_schedule_drops_the_same(name: str, target: str) -> None:
    schedule = CASES[name].schedule
    m, n, k = (extent + more for extent, more in zip(schedule.tile, (7, 24, schedule.block_k), strict=True))
    rng = np.random.default_rng(8)
    a, b = (rng.integers(1, 4, shape).astype(np.float16) for shape in ((2, m, k), (2, n, k)))
    # Sums of positive numbers: a 0 is what was dropped, and all else is exact.
    whole = np.matmul(a.astype(np.float32), b.astype(np.float32).swapaxes(1, 2))
    words = {"dropout": SHARE, "seed": SEED, "offset": OFFSET, "out_dtype": "f32", "target": target}
    there = [tw.testing.device_put(one, target) for one in (a, b)]
    made = tw.testing.device_get(tw.einsum("bmk,bnk->bmn", *there, schedule=schedule, **words))
    kept = tw.testing.philox(np.arange(whole.size).reshape(whole.shape), SEED, OFFSET) >= SHARE * 2**32
    assert np.array_equal(made != 0, kept)
    assert np.array_equal(made, np.where(kept, whole * np.float32(1 / (1 - SHARE)), 0))
