"""Rows chosen by integers in memory, in dataflow kernels on a GPU: every element, and unchanged memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product as plain
from tests.schedule.chosen_rows import EXTENTS, KERNELS, gathered, problem, untouched
from tests.schedule.forms import FORMS
from tests.schedule.test_chosen_rows import BY_THREADS, MIXED

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

ALIGNED = (64, 128, 200, 264, 520)
"""Extents whose rows of 16-bit numbers are copied 16 bytes at a time."""


def run(kernel: Any, arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[Any, np.ndarray[Any, Any]]:
    """Launch a kernel on copies of arrays on the device; return the launch and the stored array."""
    there = {name: DeviceArray.of(np.ascontiguousarray(array)) for name, array in arrays.items()}
    launch = kernel(*there.values())
    assert launch.target == "cuda"
    CUDA_DRIVER.synchronize()
    return launch, there["C"].host()


@pytest.mark.parametrize("extents", [EXTENTS, ALIGNED], ids=["odd", "aligned"])
@pytest.mark.parametrize("name", KERNELS)
def test_random_problems(name: str, extents: tuple[int, ...]) -> None:
    for seed in range(4):
        arrays, _ = problem(name, seed, ("f16", "bf16", "f32", "f16")[seed], extents)
        launch, found = run(KERNELS[name][0], arrays)
        how = Accumulation.of(launch.schedule.atom)
        compared = compare_flow(launch.flow, {"C": found}, arrays, how=how)
        assert compared.ok, f"{seed}: {compared}"
        kept = untouched(arrays, arrays | {"C": found}, name)
        assert (found[kept] == arrays["C"][kept]).all(), f"{seed}: rows that are not chosen"


@pytest.mark.parametrize("form", BY_THREADS)
def test_gathering_first_gives_the_same_bits(form: str) -> None:
    draw = np.random.default_rng(4)
    a, b = (draw.standard_normal((rows, 264)).astype(np.float16) for rows in (300, 200))
    rows = draw.integers(-3, 303, 517).astype(np.int32)
    first = np.where(((rows >= 0) & (rows < 300))[:, None], a[rows.clip(0, 299)], np.float16(0))
    c = np.full((517, 200), np.nan, np.float32)
    _, expected = run(plain.bind(schedule=FORMS[form]), {"A": first, "B": b, "C": c})
    _, found = run(gathered.bind(schedule=FORMS[form]), {"A": a, "B": b, "rows": rows, "C": c})
    assert np.array_equal(found.view(np.int32), expected.view(np.int32))


@pytest.mark.parametrize("cluster", [(1, 1), (2, 1)])
@pytest.mark.parametrize("form", MIXED)
def test_chosen_rows_next_to_bulk_copies_give_the_same_bits(form: str, cluster: tuple[int, int]) -> None:
    draw = np.random.default_rng(4)
    schedule = replace(MIXED[form], cluster=cluster, blocks=8)
    a, b = (draw.standard_normal((rows, 1224)).astype(np.float16) for rows in (300, 200))
    rows = draw.integers(-3, 303, 1517).astype(np.int32)
    first = np.where(((rows >= 0) & (rows < 300))[:, None], a[rows.clip(0, 299)], np.float16(0))
    c = np.full((1517, 200), np.nan, np.float32)
    _, expected = run(plain.bind(schedule=replace(schedule, staging="tma")), {"A": first, "B": b, "C": c})
    for _ in range(5):
        launch, found = run(gathered.bind(schedule=schedule), {"A": a, "B": b, "rows": rows, "C": c})
        assert launch.schedule == schedule
        assert np.array_equal(found.view(np.int32), expected.view(np.int32))


def test_integers_that_change_between_launches() -> None:
    draw = np.random.default_rng(5)
    a, b = (draw.standard_normal((rows, 128)).astype(np.float16) for rows in (90, 64))
    given = [DeviceArray.of(one) for one in (a, b)]
    for count in (1, 64, 130):
        rows = draw.integers(0, 90, count).astype(np.int64)
        made = DeviceArray.of(np.full((count, 64), np.nan, np.float32))
        assert gathered(*given, DeviceArray.of(rows), made).schedule.atom != tw.atoms.fma(tw.f16)
        CUDA_DRIVER.synchronize()
        exact = a[rows].astype(np.float64) @ b.T.astype(np.float64)
        assert np.allclose(made.host(), exact, rtol=0, atol=128 * 2e-5)
