"""The example's hand-written kernel on a GPU."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.ops.sample import operands
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_basic_gemm.py"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLE))


def attempt(bound: Any, dtype: tw.DType, shape: tuple[int, int, int], init: str = "random") -> None:
    made = operands(init, dtype, shape, layout="nt")
    trial = Trial(bound, made, "cuda", bound.constants["mma"].atom, "of the example")
    executable, _ = trial.run()
    assert executable.target == "cuda"
    comparison = trial.verify()
    assert comparison.ok, comparison


@pytest.mark.parametrize("shape", [(256, 128, 32), (512, 384, 320), (1000, 1000, 1000)])
def test_f16_with_wide_copies(example: dict[str, Any], shape: tuple[int, int, int]) -> None:
    attempt(example["LARGE"], tw.f16, shape)
    attempt(example["LARGE"], tw.f16, shape, "integers")


def test_padded(example: dict[str, Any]) -> None:
    for dtype, mma in example["ATOMS"].items():
        bound = example["basic_gemm"].bind(tile=(64, 64, 32), threads=(32, 4), mma=mma, vector=1)
        for shape in (example["PADDED"], (1, 1, 1), (63, 65, 33)):
            attempt(bound, dtype, shape)
            attempt(bound, dtype, shape, "integers")


def test_a_width_that_the_strides_forbid_is_refused(example: dict[str, Any]) -> None:
    with pytest.raises(tw.LegalityError, match="vector"):
        attempt(example["LARGE"], tw.f16, (129, 129, 67))
