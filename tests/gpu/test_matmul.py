"""`matmul` on a GPU: every dtype, layout and ragged shape, element by element against float64."""

from __future__ import annotations

import itertools

import pytest

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.targets.atoms import MMA_F16
from tilewright.tune.trial import gemm_trial

pytestmark = pytest.mark.gpu

DTYPES = (
    ("f64", "exact"),
    ("f32", "exact"),
    ("f32", "tf32"),
    ("f16", "exact"),
    ("bf16", "exact"),
    ("i8", "exact"),
    ("f8e4m3", "exact"),
    ("f8e5m2", "exact"),
)
SHAPES = ((128, 128, 128), (129, 129, 67), (1, 1, 1), (257, 64, 8), (16, 300, 515))
LAYOUTS = ("nn", "nt", "tn", "tt")


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("name", "math"), DTYPES)
def test_every_dtype_layout_and_shape(name: str, math: str, layout: str) -> None:
    for shape, init in itertools.product(SHAPES, ("random", "integers")):
        trial = gemm_trial(operands(init, tw.dtype(name), shape, layout=layout), "cuda", math)
        executable, _ = trial.run()
        assert executable.target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{name} {shape} {layout} {init}: {comparison}"


@pytest.mark.parametrize("shape", [(2048, 2048, 2048), (3840, 1024, 1024), (8200, 8200, 136)])
def test_schedules_of_large_problems(shape: tuple[int, int, int]) -> None:
    trial = gemm_trial(operands("random", tw.f16, shape, layout="nt"), "cuda")
    assert trial.run()[0].target == "cuda"
    assert trial.verify().ok


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [8, 32, 64, 200, 1000])
def test_every_number_of_stages(stages: int, depth: int) -> None:
    staging = "direct" if stages == 1 else "cp_async"
    schedule = tw.Schedule(MMA_F16, (64, 64, 32), warps=(2, 2), stages=stages, staging=staging)
    trial = gemm_trial(operands("random", tw.f16, (190, 130, depth)), "cuda", schedule=schedule)
    trial.run()
    comparison = trial.verify()
    assert comparison.ok, comparison


def test_the_same_bits_every_time() -> None:
    made = operands("random", tw.f16, (500, 300, 700))
    results = []
    for _ in range(5):
        trial = gemm_trial(made, "cuda")
        trial.run()
        results.append(trial.result().tobytes())
    assert len(set(results)) == 1


def test_elevations() -> None:
    for name in ("f32", "f16", "i8"):
        trial = gemm_trial(operands("elevation", tw.dtype(name)), "cuda")
        trial.run()
        assert trial.verify().ok
