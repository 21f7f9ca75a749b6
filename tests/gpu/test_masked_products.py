"""Products under masks of positions on a GPU: random problems, every element, unchanged memory."""

from __future__ import annotations

import numpy as np
import pytest
from tests.problems.masked_problems import LARGEST, SCHEDULES, carried_out, lower, triangular
from tests.problems.placing import Placed

from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.ops.gram import gram
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("first", range(0, 48, 12))
def test_random_problems(first: int) -> None:
    assert LARGEST["cuda"] > 512
    wrong = [text for number in range(first, first + 12) if (text := carried_out(number, "cuda"))]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule(name: str) -> None:
    schedule = SCHEDULES[name]
    kernel = triangular if name.startswith(("deep", "persistent fragments")) else lower
    draw = np.random.default_rng(5)
    for shape, shift in (((520, 456, 264), -20), ((1032, 1032, 136), 0), ((200, 776, 520), 300)):
        m, n, k = shape
        arrays = {"A": draw.standard_normal((m, k)).astype(np.float16)}
        arrays["B"] = draw.standard_normal((n, k)).astype(np.float16)
        there = [DeviceArray.of(one) for one in arrays.values()]
        made = Placed(np.full((m, n + 8), np.nan, np.float32)[:, :n], "cuda")
        launch = kernel.bind(schedule=schedule)(*there, made.there, shift)
        CUDA_DRIVER.synchronize()
        assert launch.target == "cuda"
        assert launch.schedule == schedule
        found = np.ascontiguousarray(made.fetched())  # refuses writes between the rows
        how = Accumulation.of(schedule.atom)
        compared = compare_flow(launch.flow, {"C": found}, arrays, {"shift": shift}, how=how)
        assert compared.ok, f"{shape}: {compared}"


def test_gram_of_many_tiles() -> None:
    draw = np.random.default_rng(8)
    for rows, depth in ((2048, 256), (2050, 72)):
        a = draw.standard_normal((rows, depth)).astype(np.float16)
        made = Placed(np.full((rows, rows + 8), np.nan, np.float16)[:, :rows], "cuda")
        gram(DeviceArray.of(a), made.there)
        CUDA_DRIVER.synchronize()
        found, wide = made.fetched(), a.astype(np.float64)  # refuses writes between the rows
        bound = 2.0**-10 * (np.abs(wide) @ np.abs(wide).T)
        assert (np.abs(found - wide @ wide.T) <= bound).all(), (rows, depth)


def test_a_chosen_schedule_computes_a_large_triangle() -> None:
    draw = np.random.default_rng(6)
    a, b = (draw.standard_normal((2048, 512)).astype(np.float16) for _ in range(2))
    there = [DeviceArray.of(one) for one in (a, b, np.full((2048, 2048), np.nan, np.float32))]
    launch = lower(*there, 0)
    CUDA_DRIVER.synchronize()
    assert launch.target == "cuda"
    assert launch.schedule.atom.instruction in ("wgmma", "mma.sync")
    how = Accumulation.of(launch.schedule.atom)
    compared = compare_flow(launch.flow, {"C": there[2].host()}, {"A": a, "B": b}, {"shift": 0}, how=how)
    assert compared.ok, compared
