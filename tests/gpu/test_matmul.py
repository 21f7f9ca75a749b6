"""`matmul` on a GPU: every dtype, layout and ragged shape, element by element against float64."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import operands
from tilewright.ops import launching
from tilewright.ops.products import output_dtype
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.targets.atoms import MMA_F16
from tilewright.tune.trial import PlannedTrial

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
@pytest.mark.parametrize(("name", "precision"), DTYPES)
def test_every_dtype_layout_and_shape(name: str, precision: str, layout: str) -> None:
    for shape, init in itertools.product(SHAPES, ("random", "integers")):
        trial = PlannedTrial(operands(init, tw.dtype(name), shape, layout=layout), "cuda", precision)
        executable, _ = trial.run()
        assert executable.target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{name} {shape} {layout} {init}: {comparison}"


@pytest.mark.parametrize("shape", [(2048, 2048, 2048), (3840, 1024, 1024), (8200, 8200, 136)])
def test_schedules_of_large_problems(shape: tuple[int, int, int]) -> None:
    trial = PlannedTrial(operands("random", tw.f16, shape, layout="nt"), "cuda")
    assert trial.run()[0].target == "cuda"
    assert trial.verify().ok


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("depth", [8, 32, 64, 200, 1000])
def test_every_number_of_stages(stages: int, depth: int) -> None:
    schedule = tw.Schedule(MMA_F16, (64, 64, 32), (2, 2), stages, "cp_async" if stages > 1 else "direct")
    trial = PlannedTrial(operands("random", tw.f16, (190, 130, depth)), "cuda", schedule=schedule)
    trial.run()
    comparison = trial.verify()
    assert comparison.ok, comparison


def test_the_same_bits_every_time() -> None:
    made = operands("random", tw.f16, (500, 300, 700))
    results = []
    for _ in range(5):
        trial = PlannedTrial(made, "cuda")
        trial.run()
        results.append(trial.result().tobytes())
    assert len(set(results)) == 1


def test_elevations() -> None:
    for name in ("f32", "f16", "i8"):
        trial = PlannedTrial(operands("elevation", tw.dtype(name)), "cuda")
        trial.run()
        assert trial.verify().ok


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_what_is_slower_than_it_could_be_says_so_and_is_right(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "_SAID", set())
    made = operands("random", tw.dtype(name), (130, 70, 90))
    a, b = DeviceArray.of(made.a), DeviceArray.of(made.b)
    out = DeviceArray.of(np.zeros((130, 70), output_dtype(tw.dtype(name)).numpy))
    with pytest.warns(tw.SlowWarning, match=f"{name} is multiplied by scalar fma instructions"):
        assert tw.matmul(a, b, out) is out
    tw.matmul(a, b, out)
    compare_gemm(made.a, made.b, out.host(), Accumulation.of(tw.atoms.fma(name))).raise_if_wrong()
