"""Products that do not use the tensor cores of their dtype warn once, and commands say so."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner
from tests.runtime.fake_gpu import Driver, OnGpu
from tests.runtime.fake_gpu import gpu as gpu  # a fixture

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.ops import launching, matmul
from tilewright.ops.products import output_dtype
from tilewright.schedule.question import SUPPORTED
from tilewright.targets import cuda
from tilewright.targets.nvidia import ARCHITECTURES

SLOW = {
    "sm_80": set(),
    "sm_86": set(),
    "sm_89": {"f8e4m3", "f8e5m2"},
    "sm_90a": {"f8e4m3", "f8e5m2"},
}
"""Architecture -> the dtypes whose tensor cores do nothing for operands that are stored row after row.

f32 is exact, for which there are none.
"""


class Matrix(OnGpu):
    """A matrix with a dtype that the array interface cannot name, and a transpose."""

    @property
    def dtype(self) -> Any:
        return self.array.dtype

    @property
    def T(self) -> Matrix:  # noqa: N802
        return Matrix(self.array.T)


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_SAID", set())
    monkeypatch.setattr(matmul, "plain", lru_cache(matmul.plain.__wrapped__))
    matmul._PLANS.forget()


def product(dtype: tw.DType, n: int = 16, order: str = "C", **chosen: Any) -> None:
    a, b = (Matrix(np.ones((n, n), dtype.numpy, order)) for order in ("C", order))
    tw.matmul(a, b, Matrix(np.zeros((n, n), output_dtype(dtype).numpy)), **chosen)


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_it_is_said_once_for_each_dtype_at_the_callers_line(name: str, gpu: Driver) -> None:
    message = (
        f"matmul: {name} is multiplied by scalar fma instructions; the tensor cores of sm_90a support it"
    )
    with pytest.warns(tw.SlowWarning, match=message) as said:
        product(tw.dtype(name))
    [one] = said
    assert one.filename == __file__
    assert "nearest: operands that are contiguous along K, which wgmma multiplies, or convert to f16" in str(
        one.message
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for n in (16, 32):  # a product that is known, and another of the same kernel
            product(tw.dtype(name), n)
    assert len(gpu.launched) == 3


@pytest.mark.parametrize("name", ["f8e4m3", "f8e5m2"])
def test_along_k_it_is_multiplied_on_tensor_cores(name: str, gpu: Driver) -> None:
    product(tw.dtype(name), order="F")
    assert len(gpu.launched) == 1


@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "i8"])
def test_what_is_as_fast_as_it_can_be_or_has_no_tensor_cores_warns_of_nothing(name: str, gpu: Driver) -> None:
    product(tw.dtype(name))
    assert len(gpu.launched) == 1


def test_tf32_warns_of_nothing(gpu: Driver) -> None:
    product(tw.f32, precision="tf32")


def test_who_chooses_the_schedule_is_not_told(gpu: Driver) -> None:
    product(tw.f8e4m3, schedule=tw.Schedule(tw.atoms.fma(tw.f8e4m3), (16, 16, 16)))


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_other_targets_have_no_tensor_cores(target: str) -> None:
    a = np.ones((8, 8), tw.f8e4m3.numpy)
    assert (tw.matmul(a, a, target=target).astype(float) == 8).all()


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("name", SUPPORTED)
def test_every_dtype_on_every_architecture(name: str, arch: str) -> None:
    element = tw.dtype(name)
    for order, slow_ones in (("C", SLOW[arch]), ("F", SLOW[arch] if arch != "sm_90a" else set())):
        a, b, c = tw.like(element, 512, 512), tw.like(element, 512, 512, order=order), output_dtype(element)
        bound = matmul.plain(0).bind(precision="exact")
        kernel = bound.trace(a, b, tw.like(c, 512, 512), target="cuda", arch=arch)
        notes = [note for note in cuda.emit(kernel, arch).notes if "tensor cores" in note]
        assert len(notes) == (name in slow_ones)
        assert all(note.startswith(f"{name} is multiplied by scalar fma") for note in notes)


@pytest.mark.parametrize(
    ("dtype", "arch", "count"), [("f8e4m3", "sm_90a", 1), ("f8e4m3", "sm_80", 0), ("f16", "sm_90a", 0)]
)
def test_inspect_says_it(dtype: str, arch: str, count: int) -> None:
    command = ["inspect", "gemm", "--target", "cuda", "--arch", arch, "--dtype", dtype, "--shape", "64x64x64"]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 0, result.output
    assert result.output.count("support it, but keep only 13 bits") == count
