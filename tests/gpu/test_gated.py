"""Gated products on a GPU: random problems, and large layers under chosen schedules."""

from __future__ import annotations

import numpy as np
import pytest
from tests.problems.gated_problems import carried_out

import tilewright as tw
from tilewright.checking.references import gated, worst_of
from tilewright.testing import device_get, device_put

pytestmark = pytest.mark.gpu


def test_random_problems() -> None:
    assert [wrong for number in range(72) if (wrong := carried_out(number, "cuda"))] == []


@pytest.mark.filterwarnings("ignore::tilewright.SlowWarning")  # rows of f8 that begin at any byte
@pytest.mark.parametrize("kind", ["f16", "bf16", "i8", "f8e4m3", "f32"])
@pytest.mark.parametrize("shape", [(2048, 1536, 640), (16, 4096, 1024), (1000, 1016, 520)])
@pytest.mark.parametrize("turned", [True, False])
def test_layers_under_the_chosen_schedules(kind: str, shape: tuple[int, int, int], turned: bool) -> None:
    m, n, k = shape
    rng, dtype = np.random.default_rng(0), tw.dtype(kind)

    def numbers(rows: int, columns: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
        if not dtype.is_float:
            return rng.integers(-9, 10, (rows, columns)).astype(dtype.numpy)
        return (rng.standard_normal((rows, columns)) / 8).astype(dtype.numpy)

    a, b, c = numbers(m, k), numbers(n, k).T, numbers(n, k).T
    if not turned:
        b, c = np.ascontiguousarray(b), np.ascontiguousarray(c)
    scales = {"scale_b": rng.uniform(0.1, 0.2, n).astype(np.float32), "scale_a": 0.125}
    bias = {"bias_c": rng.standard_normal(n, np.float32)}
    there = [device_put(one, "cuda") for one in (a, b, c)]
    words = {
        name: one if isinstance(one, float) else device_put(one, "cuda")
        for name, one in (scales | bias).items()
    }
    made = device_get(tw.gated_matmul(*there, **words, out_dtype="f32"))
    rows = slice(0, None, max(m // 100, 1))
    unit = 2.0**-13 if kind.startswith("f8") else 0.0
    assert worst_of(made[rows], gated(a[rows], b, c, "silu", tw.f32, scales | bias, unit)) <= 1
