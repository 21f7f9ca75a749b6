"""Kept blocks on a GPU: products, sampled products and attention, by every engine that loads them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.schedule.block_kernels import attended, attention, by_blocks, product, sampled, samples
from tests.schedule.forms import FORMS

from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


def run(kernel: Any, arrays: dict[str, Any], *numbers: Any) -> tuple[Any, np.ndarray[Any, Any]]:
    """Launch a kernel on copies of arrays on the device; return the launch and the last array."""
    there = [DeviceArray.of(np.ascontiguousarray(one)) for one in arrays.values()]
    launch = kernel(*there, *numbers)
    assert launch.target == "cuda"
    CUDA_DRIVER.synchronize()
    return launch, there[-1].host()


def near(found: np.ndarray[Any, Any], exact: np.ndarray[Any, Any], bound: float) -> bool:
    """Return whether all elements exist and are near."""
    return bool((np.abs(found.astype(np.float64) - exact) <= bound).all())


@pytest.mark.parametrize("block", [16, 24, 64, 128])
def test_products_by_kept_blocks(block: int) -> None:
    for seed in range(4):
        arrays, exact = product(seed, block, rows=(70, 264)[seed % 2], columns=(56, 320)[seed // 2])
        launch, found = run(by_blocks.bind(block=block), arrays)
        assert near(found, exact, 1e-3), f"{seed}: {launch.schedule}"


@pytest.mark.parametrize("form", FORMS)
def test_every_schedule(form: str) -> None:
    arrays, exact = product(3, 64, rows=200)
    launch, found = run(by_blocks.bind(block=64, schedule=FORMS[form]), arrays)
    assert launch.schedule == FORMS[form]
    assert near(found, exact, 1e-3)


@pytest.mark.parametrize("form", ["cooperative", "ping-pong", "wgmma, cp_async"])
def test_sampled_products(form: str) -> None:
    arrays, exact = samples(5)
    launch, found = run(sampled.bind(schedule=FORMS[form]), arrays)
    assert launch.schedule == FORMS[form]
    assert near(found, exact, 1e-3)


@pytest.mark.parametrize(("block", "depth"), [(64, 64), (128, 128), (48, 64), (20, 64)])
def test_attention_to_kept_blocks(block: int, depth: int) -> None:
    for seed, rows in enumerate((70, 128, 264)):
        arrays, exact = attended(seed, block, rows=rows, depth=depth)
        launch, found = run(attention.bind(block=block), arrays, 0.125)
        assert near(found, exact, 4e-3), f"{seed}: {launch.schedule}"


def test_lists_that_change_between_launches() -> None:
    schedule = replace(FORMS["cooperative"], blocks=8)
    bound = by_blocks.bind(block=64, schedule=schedule)
    for seed in range(6):
        arrays, exact = product(seed, 64, rows=300, columns=192)
        assert near(run(bound, arrays)[1], exact, 1e-3)
