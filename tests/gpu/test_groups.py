"""Groups of rows on a GPU, whose sizes the kernel reads: every element, any sizes, changing sizes."""

from __future__ import annotations

from importlib import import_module

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.ops.test_grouped import ENDS, FORMS, check, operands
from tests.schedule.small import CASES

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", FORMS)
def test_every_form(name: str) -> None:
    case = CASES[name]
    for steps in case.counts:
        before = case.arrays(case.shape(steps))
        there = {one: DeviceArray.of(array) for one, array in before.items()}
        assert case.bound(*there.values()).target == "cuda"
        CUDA_DRIVER.synchronize()
        found = case.compare({one: array.host() for one, array in there.items()})
        assert found.ok, f"{steps} steps: {found}"


@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize(("kind", "out"), [("bf16", "bf16"), ("f16", "f32"), ("f32", "f32"), ("i8", "i32")])
@pytest.mark.parametrize("shape", [(130, 64, 48), (130, 35, 50)])
def test_every_row_of_every_group(name: str, kind: str, out: str, shape: tuple[int, int, int]) -> None:
    ends = ENDS[name]
    a, b = operands(ends, kind, shape=shape)
    before = np.full((shape[0], shape[2]), 99, tw.dtype(out).numpy)
    made = DeviceArray.of(before)
    given = [DeviceArray.of(array) for array in (a, b, np.asarray(ends, np.int32))]
    tw.grouped_matmul(*given, made)
    CUDA_DRIVER.synchronize()
    check(a, b, ends, made.host(), 99)


def test_many_groups_of_any_size() -> None:
    draw = np.random.default_rng(3)
    for seed in range(6):
        rows, groups = int(draw.integers(1, 3000)), int(draw.integers(1, 300))
        ends = sorted(int(end) for end in draw.integers(0, rows + 1, groups))
        a, b = operands(
            ends, "f16", seed, (rows, 8 * int(draw.integers(1, 20)), 8 * int(draw.integers(1, 30)))
        )
        made = DeviceArray.of(np.full((rows, b.shape[2]), 99, np.float32))
        tw.grouped_matmul(*(DeviceArray.of(one) for one in (a, b, np.asarray(ends, np.int64))), made)
        CUDA_DRIVER.synchronize()
        check(a, b, ends, made.host(), 99)


def test_sizes_that_change_between_the_replays_of_a_graph(canaries: Canaries) -> None:
    torch = import_module("torch")
    a, b = operands([0] * 5, "f16", shape=(130, 64, 48))
    first, second, ends = (torch.from_numpy(one).cuda() for one in (a, b, np.zeros(5, np.int32)))
    out = canaries.torch(np.full((130, 48), 99, np.float32))
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):  # the first call
        tw.grouped_matmul(first, second, ends, out)
    for sizes in ([3, 3, 45, 46, 130], [130, 130, 130, 130, 130], [0, 0, 0, 0, 7]):
        ends.copy_(torch.tensor(sizes, dtype=torch.int32))
        out.fill_(99)
        graph.replay()
        torch.cuda.synchronize()
        check(a, b, sizes, out.cpu().numpy(), 99)
