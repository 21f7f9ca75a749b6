"""im2col, as the example writes it, on a GPU."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright.runtime.gpu_memory import DeviceArray

pytestmark = pytest.mark.gpu

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "05_im2col.py"))


def attempt(bound: Any, shape: tuple[int, ...]) -> None:
    geometry = {name: bound.constants[name] for name in ("taps", "stride", "dilation", "padding")}
    image = np.random.default_rng(sum(shape)).standard_normal(shape, np.float32)
    expected = EXAMPLE["matrix_of"](EXAMPLE["windows"](image, **geometry))
    x, y = DeviceArray.of(image), DeviceArray.of(np.full(expected.shape, np.nan, np.float32))
    assert bound(x, y, target="cuda").target == "cuda"
    np.testing.assert_array_equal(y.host(), expected)


@pytest.mark.parametrize("shape", [EXAMPLE["SHAPE"], EXAMPLE["SMALL"], (3, 3, 3, 3, 1, 4)])
def test_the_seeds_filter(shape: tuple[int, ...]) -> None:
    attempt(EXAMPLE["LARGE"], shape)


def test_random_geometries() -> None:
    rng = np.random.default_rng(7)
    for _ in range(40):
        taps = tuple(int(n) for n in rng.integers(1, 4, 3))
        dilation = tuple(int(n) for n in rng.integers(1, 4, 3))
        padding = tuple((int(a), int(b)) for a, b in rng.integers(0, 3, (3, 2)))
        extents = tuple(
            d * (t - 1) + 1 + int(rng.integers(0, 6)) for t, d in zip(taps, dilation, strict=True)
        )
        shape = (int(rng.integers(1, 4)), *extents, int(rng.integers(1, 4)), int(rng.integers(1, 40)))
        bound = EXAMPLE["im2col"].bind(
            taps=taps,
            tile=(32, 64),
            threads=(8, 16),
            vector=None,
            stride=tuple(int(n) for n in rng.integers(1, 4, 3)),
            dilation=dilation,
            padding=padding,
        )
        attempt(bound, shape)
