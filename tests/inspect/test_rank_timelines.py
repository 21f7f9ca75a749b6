"""Simulated times of ranks: what waits for what, and the costs, determine every piece of time."""

from __future__ import annotations

import runpy
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.inspect.draw import Costs, draw_ranks
from tilewright.targets.reference.rank_times import overlap_of
from tilewright.targets.reference.ranks import RanksReport

from .pictures import check_picture

ROOT = Path(__file__).parents[2]
COSTS = Costs(link_gbs=40, latency_us=0.1, tflops=1.2, memory_gbs=400, blocks=2)


@cache
def report() -> RanksReport:
    """An all-gather and product of 3 ranks; a shard has 64 rows, for 4 tiles of 32 x 32."""
    example = runpy.run_path(str(ROOT / "examples" / "22_ranks.py"))
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((192, 64), np.float32), rng.standard_normal((64, 64), np.float32)
    memory = example["AllGather"](a, [b] * 3, 3)
    found = tw.testing.ranks([memory.program(rank, 1) for rank in range(3)])
    assert found.is_clean
    return found


def test_copies_and_tiles_take_what_the_costs_say() -> None:
    spans = report().log.times(COSTS)
    copies = [span for span in spans if span.kind == "copy"]
    tiles = [span for span in spans if span.kind == "tile"]
    assert (len(copies), len(tiles)) == (3 * 2, 3 * 12)
    assert [span.end - span.start for span in copies] == pytest.approx([64 * 64 * 4 / 40e3] * 6)
    # A tile multiplies 32 x 32 x 64, by half of the rank's rate; its memory traffic takes less.
    assert [span.end - span.start for span in tiles] == pytest.approx([2e-6 * 32 * 32 * 64 / 0.6] * 36)


def test_a_lane_does_one_thing_at_a_time_and_a_tile_waits_for_its_shard() -> None:
    spans = report().log.times(COSTS)
    lanes = {(span.rank, span.lane) for span in spans}
    assert lanes == {(rank, lane) for rank in range(3) for lane in (-1, 0, 1)}
    for lane in lanes:
        own = sorted((s.start, s.end) for s in spans if (s.rank, s.lane) == lane)
        assert all(one[1] <= other[0] + 1e-9 for one, other in pairwise(own))
    first_copy = min(span.end for span in spans if span.kind == "copy" and span.rank == 1)
    waits = [span for span in spans if span.rank == 0 and span.kind == "wait"]
    assert waits[0].end == pytest.approx(first_copy + COSTS.latency_us)  # rank 0 begins with its own shard


def test_overlap_ends_before_the_sum_and_not_before_the_longer_part() -> None:
    found = overlap_of(report().log.times(COSTS))
    assert max(found["copies"], found["tiles"]) <= found["all"] < found["copies"] + found["tiles"]
    slow = overlap_of(report().log.times(Costs(4, 0.1, 1.2, 400, 2)))
    assert slow["copies"] == pytest.approx(10 * found["copies"])
    assert slow["all"] > found["all"]


def test_the_picture_of_the_page() -> None:
    picture = draw_ranks(report(), COSTS)
    check_picture(picture)
    assert picture.svg == (ROOT / "docs" / "pictures" / "ranks.svg").read_text()
    assert "rank 2:" in picture.text


def test_blocks_that_leave_no_place_for_others_are_refused() -> None:
    @tw.kernel(X="N", Y="N")
    def backwards(X, Y):
        block, ready = tw.block_index(2), tw.counter(1)
        with tw.when(block == 0):
            tw.await_(ready[0], 1)
            tw.reset(ready[0])
        with tw.otherwise():
            tw.copy(X.tile((32,), (0,)), Y.tile((32,), (0,)), threads=32)
            tw.signal(ready[0])

    found = tw.testing.ranks([[tw.testing.launch(backwards, *np.zeros((2, 32), np.float32))]])
    assert found.is_clean
    with pytest.raises(tw.LaunchError, match=r"blocks=1: .*; nearest legal choice: blocks=2"):
        draw_ranks(found, Costs(blocks=1))
    draw_ranks(found, Costs(blocks=2))
