"""Launches of kernels whose blocks signal: counters are cleared once, grids fit the device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.runtime.fake_gpu import Driver, OnGpu
from tests.runtime.fake_gpu import gpu as gpu  # a fixture
from tests.schedule.small import ONCE, SPLIT, product, row_sums
from tests.targets import signals

import tilewright as tw
from tilewright.errors import LaunchError


def arrays(size: int) -> list[OnGpu]:
    return [OnGpu(np.zeros(size, np.float32)) for _ in range(2)]


def test_counters_are_cleared_when_they_are_allocated_and_never_again(gpu: Driver) -> None:
    gpu.arguments = 4
    bound, (x, y) = signals.hand_over.bind(), arrays(128)
    for _ in range(3):
        bound(x, y, stream=7)
    assert [stream for *_, stream in gpu.cleared] == [7]
    address = gpu.cleared[0][0]
    assert {launched.words[2] for launched in gpu.launched} == {address}
    bound(x, y, stream=8)  # another stream has counters of its own
    bound(x, y, stream=7)
    assert [stream for *_, stream in gpu.cleared] == [7, 8]
    assert gpu.launched[-2].words[2] == gpu.cleared[1][0] != address
    assert gpu.launched[-1].words[2] == address


def test_each_captured_launch_has_counters_that_its_graph_clears(gpu: Driver) -> None:
    gpu.arguments = 4
    bound, (x, y) = signals.hand_over.bind(), arrays(192)  # a shape of its own: nothing is prepared yet
    bound(x, y, stream=7)
    gpu.capturing.add(7)
    for _ in range(2):
        bound(x, y, stream=7)
    gpu.capturing.clear()
    assert [stream for *_, stream in gpu.cleared] == [7, 7, 7]
    assert len({launched.words[2] for launched in gpu.launched}) == 3


def test_blocks_that_wait_for_all_are_launched_together(gpu: Driver) -> None:
    gpu.arguments = 5
    signals.around.bind(blocks=264)(*arrays(64 * 264), stream=7)  # two on each of 132 multiprocessors
    (launched,) = gpu.launched
    assert launched.attributes == {"cooperative": 1}
    gpu.arguments = 4
    signals.hand_over(*arrays(256), stream=7)  # block 1 waits for block 0 alone
    assert gpu.launched[-1].attributes == {}


@pytest.mark.parametrize("schedule", [SPLIT, replace(ONCE, split_k=2, epilogue="direct")], ids=["fma", "TMA"])
def test_parts_of_k_that_wait_for_each_other_are_launched_together(
    gpu: Driver, schedule: tw.Schedule
) -> None:
    """If K is one part, no block waits."""
    bound = product.bind(schedule=replace(schedule, reduction="reduce-scatter"))
    for depth, attributes in ((512, {"cooperative": 1}), (8, {})):
        operands = [OnGpu(np.zeros((32, depth), np.float16)) for _ in range(2)]
        bound(*operands, OnGpu(np.zeros((32, 32), np.float32)), stream=7)
        assert gpu.launched[-1].attributes == attributes


def test_clusters_that_wait_for_each_other_are_counted_as_clusters(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    clusters = replace(ONCE, split_k=2, epilogue="direct", reduction="reduce-scatter", cluster=(2, 1))
    bound = product.bind(schedule=clusters)
    operands = [OnGpu(np.zeros((256, 512), np.float16)) for _ in range(2)]
    bound(*operands, OnGpu(np.zeros((256, 256), np.float32)), stream=7)
    attributes = gpu.launched[-1].attributes
    assert attributes["cooperative"] == 1
    assert {**attributes, "cooperative": 1} == attributes != {"cooperative": 1}
    monkeypatch.setattr(gpu, "clusters", 3)
    with pytest.raises(
        tw.LaunchError, match=r"its 16 blocks wait for each other, and device 0 runs only 6 of them"
    ):
        product.bind(schedule=replace(clusters, group_m=1))(
            *operands, OnGpu(np.zeros((256, 256), np.float32)), stream=7
        )


def test_of_no_blocks_none_waits(gpu: Driver) -> None:
    """Expressions of the tile's place have no value then."""
    bound = product.bind(schedule=replace(SPLIT, group_m=2, reduction="reduce-scatter"))
    operands = [OnGpu(np.zeros((rows, 512), np.float16)) for rows in (32, 0)]
    bound(*operands, OnGpu(np.zeros((32, 0), np.float32)), stream=7)
    assert not gpu.launched


def test_an_array_of_nothing_has_zeros_in_its_place(gpu: Driver) -> None:
    """A reduction over no columns copies B, which has no elements."""
    operands = [OnGpu(np.zeros((rows, 128), np.float16)) for rows in (32, 0)]
    sums = OnGpu(np.zeros(32, np.float32))
    row_sums.bind(schedule=ONCE)(*operands, OnGpu(np.zeros((32, 0), np.float32)), sums, stream=7)
    assert gpu.launched
    elsewhere = [address for address in gpu.maps if address not in gpu.memory]
    assert len(gpu.maps) > len(elsewhere) == 1  # A alone lies in memory that is not ours
    assert all(not any(gpu.memory[address].raw) for address in gpu.maps if address in gpu.memory)


@tw.kernel(X="N", Y="N")
def rounds(X, Y, *, blocks, count):
    """All blocks wait for all, in every iteration of a loop."""
    block, came = tw.block_index(blocks), tw.counter(1)
    spread = tw.blocked((64,), (64,))
    for turn in tw.range(count):
        with tw.when(turn >= 0):
            tw.copy(tw.load(X.tile((64,), (block,)), spread), Y.tile((64,), (block,)))
        tw.signal(came[0])
        tw.await_(came[0], blocks * (turn + 1))


def test_waits_in_loops_count_if_there_is_a_turn(gpu: Driver) -> None:
    gpu.arguments = 4
    rounds.bind(blocks=3, count=2)(*arrays(192), stream=7)
    assert gpu.launched[-1].attributes == {"cooperative": 1}
    rounds.bind(blocks=3, count=0)(*arrays(192), stream=7)
    assert gpu.launched[-1].attributes == {}
    with pytest.raises(LaunchError, match="its 265 blocks wait for each other"):
        rounds.bind(blocks=265, count=2)(*arrays(64 * 265), stream=7)


def test_more_blocks_than_the_device_holds_are_refused(gpu: Driver) -> None:
    with pytest.raises(LaunchError) as refused:
        signals.around.bind(blocks=265)(*arrays(64 * 265), stream=7)
    assert "its 265 blocks wait for each other, and device 0 runs only 264 of them at the same time" in str(
        refused.value
    )
    assert "tw.await_(came[0], blocks)" in str(refused.value)
    assert gpu.launched == []
