"""The hazard checker runs every form of schedule, with loops that fill the ring twice, and shorter ones."""

from __future__ import annotations

from math import prod

import pytest
from tests.turns import Turns

import tilewright as tw
from tilewright.targets.reference.report import ShortLoop

from .small import CASES, batched

pytestmark = pytest.mark.in_turns(3)

SIZES = ("registers", "cp_async", "fragments", "wgmma, cp_async", "cooperative", "ping-pong")
"""Forms that are tried at the sizes that the checker finds by itself."""


@pytest.mark.parametrize("name", CASES)
def test_no_hazard_and_every_element_right(name: str, turns: Turns) -> None:
    case = CASES[name]
    for steps in turns.among(case.counts, parts=3):
        arrays = case.arrays(case.shape(steps))
        report = case.executed(arrays)
        assert report.is_clean, f"{case.shape(steps)}: {report}"
        if steps >= case.turns:
            short = [loop for loop in report.coverage.short if not is_long(loop)]
            assert not short, f"{case.shape(steps)}: {short}"
        case.compare(arrays).raise_if_wrong()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].schedule.split_k == "stream"])
def test_cases_of_a_stream_have_tiles_whose_steps_are_dealt_out(name: str) -> None:
    case = CASES[name]
    blocks, tiles = case.schedule.blocks, prod(case.tiles) * (case.batches if case.kernel is batched else 1)
    whole_rounds = tiles // blocks - min(tiles % blocks, 1)
    assert tiles > whole_rounds * blocks


def is_long(loop: ShortLoop) -> bool:
    """Return whether a loop over tiles of the result runs at least three times; each time fills the ring."""
    return "by blocks=" in loop.place and loop.trips >= 3


@pytest.mark.parametrize("name", SIZES)
def test_no_hazard_at_sizes_that_show_most(name: str) -> None:
    case = CASES[name]
    depth = case.schedule.block_k
    specimens = [tw.like(array.dtype, array.shape) for array in case.arrays(case.shape(1)).values()]
    # A ring whose stages are counted over several tiles is found by nothing but its length.
    sizes = {"K": (case.turns * depth, case.turns * depth - 8, 8, 0)}
    report = case.bound.check_sizes(*specimens, sizes=sizes, seconds=20)
    assert report.is_clean, report
    tried = [dict(extents) for extents, _ in report.reports]
    assert {extents["K"] for extents in tried} == {*sizes["K"]}
    for name, tile in zip("MN", case.schedule.tile, strict=False):
        assert any(extents[name] % tile for extents in tried)
