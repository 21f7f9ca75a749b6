"""`tw.col2im` on a GPU: every element, and sums added to an image."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.test_col2im import PROBLEMS, Problem, check, poisoned

import tilewright as tw
from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu


def attempt(problem: Problem, old: Any = None) -> None:
    columns, (made, _) = problem.columns(), poisoned(problem)
    given = np.ascontiguousarray(made if old is None else old)
    there, image = DeviceArray.of(np.ascontiguousarray(problem.matrix(columns))), DeviceArray.of(given)
    tw.col2im(there, out=image, accumulate=old is not None, **problem.geometry)
    check(problem, image.host(), columns, old)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_element(name: str) -> None:
    attempt(PROBLEMS[name])


@pytest.mark.parametrize("name", ["one dimension", "channels in groups", "channels first"])
def test_sums_are_added_to_an_image(name: str) -> None:
    made, _ = poisoned(PROBLEMS[name])
    attempt(PROBLEMS[name], np.random.default_rng(1).integers(-9, 9, made.shape).astype(made.dtype))


@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16, tw.f32], ids=str)
def test_many_blocks(dtype: tw.DType) -> None:
    """Images have more rows than resident blocks; vectors have 16 bytes."""
    attempt(Problem(dtype, (8, 57, 55, 72), (3, 3), (1, 2), {"stride": (2, 1), "padding": ((1, 0), 1)}))


def test_the_same_bits_every_time() -> None:
    problem = PROBLEMS["wide"]
    columns = DeviceArray.of(problem.matrix(problem.columns()))
    made = [tw.col2im(columns, problem.shape, **problem.geometry).host() for _ in range(3)]
    assert (made[0] == made[1]).all()
    assert (made[0] == made[2]).all()
