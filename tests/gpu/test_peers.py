"""Shared memory of other blocks of a cluster, on a GPU: reads, writes, reductions; split K in clusters."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.hazards.peers import MMA, WAYS, arguments, check, exchange, operands, split_k
from tests.hazards.test_peers import histogram, led, operands_of_peers, two_steps

from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

CLUSTERS = pytest.mark.parametrize("across", [2, 4])


@CLUSTERS
@pytest.mark.parametrize("way", WAYS)
def test_blocks_reach_each_others_memory(way: str, across: int) -> None:
    for seed, shape in enumerate([(32 * across, 64), (200, 71), (4000, 130), (1, 1)]):
        for turn in range(6):
            x, y = arguments(shape, across, way, seed)
            made: Any = DeviceArray.of(y)
            bound = exchange.bind(across=across, way=way, halves=turn % 2 == 1)
            assert bound(DeviceArray.of(x), made).target == "cuda"
            check(x, made.host(), across, way)


@CLUSTERS
def test_split_k_adds_up_in_one_block(across: int) -> None:
    bound = split_k.bind(mma=MMA, tile_k=32, across=across)
    for shape in ((64, 64, 160), (70, 90, 167), (33, 40, 20), (512, 384, 2048), (129, 65, 4096)):
        a, b, c = operands(*shape)
        made: Any = DeviceArray.of(c)
        assert bound(DeviceArray.of(a), DeviceArray.of(b), made).target == "cuda"
        compare_gemm(a, b.T, made.host(), Accumulation.of(MMA.atom)).raise_if_wrong()


def test_a_barrier_in_two_steps() -> None:
    x = np.arange(64, dtype=np.float32)
    made: Any = DeviceArray.of(np.zeros(64, np.float32))
    assert two_steps(DeviceArray.of(x), made).target == "cuda"
    np.testing.assert_array_equal(made.host(), np.roll(x, 32))


def test_operands_come_from_other_blocks() -> None:
    a, _, _ = operands(128, 64, 32)
    made: Any = DeviceArray.of(np.full((128, 64), np.nan, np.float32))
    assert operands_of_peers(DeviceArray.of(a), made, mma=MMA).target == "cuda"
    for block in (0, 64):
        there, here = a[64 - block :][:64], a[block:][:64]
        found = made.host()[block:][:64]
        compare_gemm(there, here.T, found, Accumulation.of(MMA.atom)).raise_if_wrong()


def test_a_histogram_adds_up_in_shared_memory() -> None:
    x = np.random.default_rng(5).integers(0, 32, 100_000).astype(np.int32)
    y: Any = DeviceArray.of(np.zeros(len(x), np.int32))
    assert histogram(DeviceArray.of(x), y).target == "cuda"
    np.testing.assert_array_equal(y.host()[:32], np.bincount(x, minlength=32))


@pytest.mark.parametrize("halves", [False, True])
def test_blocks_of_a_cluster_meet_at_different_lines(halves: bool) -> None:
    x = np.arange(32, dtype=np.float32).repeat(4)
    for _ in range(20):
        made: Any = DeviceArray.of(np.full(128, np.nan, np.float32))
        assert led(DeviceArray.of(x), made, halves=halves).target == "cuda"
        np.testing.assert_array_equal(made.host().reshape(4, 32), np.tile(x[:32], (4, 1)))
