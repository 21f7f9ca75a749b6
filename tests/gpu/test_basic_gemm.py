"""The wrapper's two GEMMs, as the examples write them, run on a GPU."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.testing import Trial, operands

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module", params=["02_basic_gemm.py", "04_optimized_gemm.py"])
def example(request: pytest.FixtureRequest) -> dict[str, Any]:
    return runpy.run_path(str(EXAMPLES / request.param))


def attempt(bound: Any, dtype: tw.DType, shape: tuple[int, int, int], init: str = "random") -> Trial:
    made = operands(init, dtype, shape, layout="nt")
    trial = Trial(bound, made, "cuda", bound.constants["mma"].atom, "of the example")
    executable, _ = trial.run()
    assert executable.target == "cuda"
    comparison = trial.verify()
    assert comparison.ok, comparison
    return trial


@pytest.mark.parametrize("shape", [(256, 128, 32), (512, 384, 320), (1000, 1000, 1000)])
def test_f16_with_wide_copies(example: dict[str, Any], shape: tuple[int, int, int]) -> None:
    attempt(example["LARGE"], tw.f16, shape)
    attempt(example["LARGE"], tw.f16, shape, "integers")


def test_padded(example: dict[str, Any]) -> None:
    for dtype, atom in example["ATOMS"].items():
        bound = example["padded"](atom)
        for shape in (example["PADDED"], (1, 1, 1), (63, 65, 33)):
            attempt(bound, dtype, shape)
            attempt(bound, dtype, shape, "integers")


def test_a_width_that_the_strides_forbid_is_refused(example: dict[str, Any]) -> None:
    large = example["LARGE"]
    kernel = example[large.program.name].bind(**{**large.constants, "vector": 8})
    with pytest.raises(tw.LegalityError, match="vector"):
        attempt(kernel, tw.f16, (129, 129, 67))


@pytest.mark.parametrize("shape", [(512, 384, 320), (1000, 1000, 1000), (3840, 4096, 4096)])
def test_both_give_the_same_bits(shape: tuple[int, int, int]) -> None:
    found = (runpy.run_path(str(EXAMPLES / name)) for name in ("02_basic_gemm.py", "04_optimized_gemm.py"))
    trials = [attempt(one["LARGE"], tw.f16, shape) for one in found]
    assert (trials[0].result() == trials[1].result()).all()
