"""Blocks that signal, on a GPU: repeated launches, waves, two streams and graphs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.hazards.test_signals import THROTTLE, in_roles, throttled
from tests.targets import signals

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

LAUNCHES = 20

MMA = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(2, 4))
TURNSTILE = signals.turnstile.bind(mma=MMA, tile=(64, 64, 32), splits=7, threads=128)

rng = np.random.default_rng(3)


def numbers(*shape: int, dtype: Any = np.float32) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(dtype)


@pytest.mark.parametrize("shape", [(64, 64, 4096), (129, 200, 1031), (2048, 1024, 512)])
def test_blocks_add_up_parts_of_a_product_in_turn_with_the_same_bits_every_time(shape) -> None:
    m, n, k = shape  # the last one has 3584 blocks, in several waves
    a, b = numbers(m, k, dtype=np.float16), numbers(n, k, dtype=np.float16)
    on_device = [DeviceArray.of(array) for array in (a, b)]
    results = []
    for _ in range(LAUNCHES):
        c = DeviceArray.of(np.full((m, n), np.float32(np.nan)))
        assert TURNSTILE(*on_device, c).target == "cuda"
        results.append(c.host())
    assert compare_gemm(a, b.T, results[0], Accumulation.of(MMA.atom)).ok
    assert len({result.tobytes() for result in results}) == 1


@pytest.mark.parametrize("size", [1, 1000, 1 << 20])
def test_the_last_block_adds_up_what_all_left(size) -> None:
    x = numbers(size)
    on_device = DeviceArray.of(x)
    results = set()
    for _ in range(LAUNCHES):
        y = DeviceArray.of(np.full(1, np.float32(np.nan)))
        assert signals.last_block_sum(on_device, y).target == "cuda"
        results.add(float(y.host()[0]))
    (result,) = results
    assert abs(result - x.sum(dtype=np.float64)) <= size * 2**-24 * np.abs(x).sum(dtype=np.float64)


def test_all_blocks_count_into_one_histogram() -> None:
    x = rng.integers(-3, 70, 1_000_003).astype(np.int32)
    h = DeviceArray.of(np.ones(64, np.int32))
    assert signals.histogram(DeviceArray.of(x), h).target == "cuda"
    np.testing.assert_array_equal(h.host(), 1 + np.bincount(x[(x >= 0) & (x < 64)], minlength=64))


def test_a_reset_counter_serves_the_next_launch() -> None:
    x = numbers(128)
    for _ in range(LAUNCHES):
        y = DeviceArray.of(np.full(128, np.float32(np.nan)))
        assert signals.hand_over(DeviceArray.of(x), y).target == "cuda"
        np.testing.assert_array_equal(y.host(), np.append(x[:64], x[64:] + x[:64]))


@pytest.mark.parametrize("blocks", [2, 100])
def test_all_blocks_wait_for_all(blocks) -> None:
    x, bound = numbers(64 * blocks), signals.around.bind(blocks=blocks)
    for _ in range(LAUNCHES):
        y = DeviceArray.of(np.full(64 * blocks, np.float32(np.nan)))
        assert bound(DeviceArray.of(x), y).target == "cuda"
        np.testing.assert_array_equal(y.host(), x + np.roll(x, -64))


def test_tma_sees_what_another_block_wrote_and_signalled() -> None:
    for _ in range(LAUNCHES):
        x, y = numbers(64, dtype=np.float16), DeviceArray.of(np.full((16, 64), np.float16(np.nan)))
        assert signals.hand_over_by_tma(DeviceArray.of(x), y).target == "cuda"
        np.testing.assert_array_equal(y.host(), np.tile(x, (16, 1)))


def test_roles_signal_and_wait_by_themselves() -> None:
    x, bound = numbers(128), in_roles.bind(number=1)
    for _ in range(LAUNCHES):
        y = DeviceArray.of(np.full(128, np.float32(np.nan)))
        assert bound(DeviceArray.of(x), y).target == "cuda"
        np.testing.assert_array_equal(y.host(), np.tile(x[:64], 2))


def test_streams_have_counters_of_their_own(canaries: Canaries) -> None:
    torch = import_module("torch")
    sizes, streams = (200_000, 70_000), [torch.cuda.Stream() for _ in range(2)]
    xs = [torch.randn(size, device="cuda") for size in sizes]
    ys = [canaries.torch(np.full(1, np.nan, np.float32)) for _ in sizes]
    torch.cuda.synchronize()
    bound = signals.last_block_sum.bind()
    for _ in range(LAUNCHES):
        for stream, x, y in zip(streams, xs, ys, strict=True):
            with torch.cuda.stream(stream):
                assert bound(x, y).target == "cuda"
    torch.cuda.synchronize()
    for x, y in zip(xs, ys, strict=True):
        assert abs(float(y[0]) - float(x.double().sum())) < 1e-6 * float(x.abs().double().sum())


def test_graphs_launch_kernels_with_counters_again_and_again(canaries: Canaries) -> None:
    torch = import_module("torch")
    x = torch.randn(100_000, device="cuda")
    sums = [canaries.torch(np.full(1, np.nan, np.float32)) for _ in range(2)]
    a, b = (torch.randn(size, 700, device="cuda").half() for size in (100, 130))
    c = canaries.torch(np.full((100, 130), np.nan, np.float32))
    stream, graphs = torch.cuda.Stream(), [torch.cuda.CUDAGraph() for _ in range(2)]
    with torch.cuda.stream(stream):  # compiled before, and its counters used
        signals.last_block_sum(x, sums[0])
        TURNSTILE(a, b, c)
    torch.cuda.synchronize()
    for graph, y in zip(graphs, sums, strict=True):
        with torch.cuda.graph(graph, stream=stream):
            signals.last_block_sum(x, y)
            TURNSTILE(a, b, c)
    want = None
    for _ in range(5):
        for graph, y in reversed(list(zip(graphs, sums, strict=True))):
            x.normal_()
            y.fill_(float("nan"))
            c.fill_(float("nan"))
            graph.replay()
            torch.cuda.synchronize()
            assert abs(float(y[0]) - float(x.double().sum())) < 1e-6 * float(x.abs().double().sum())
            want = c.clone() if want is None else want
            assert torch.equal(c, want)
    wide = a.double() @ b.double().T
    assert bool(((want - wide).abs() <= 1e-3 * (a.double().abs() @ b.double().abs().T)).all())


@pytest.mark.parametrize("needs", range(1, THROTTLE + 1))
def test_a_wait_for_any_of_several_signals(needs: int) -> None:
    x = numbers(64 * THROTTLE)
    for _ in range(LAUNCHES):
        y = DeviceArray.of(np.full(len(x), np.float32(np.nan)))
        assert throttled(DeviceArray.of(x), y, needs=needs, reads="its own").target == "cuda"
        np.testing.assert_array_equal(y.host(), x + np.float32(1))
