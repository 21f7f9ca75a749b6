"""Dot products of long vectors are products of matrices of 64 rows, and sums of their diagonals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.ops import dots
from tilewright.ops import matmul as matmuls
from tilewright.ops.dots import DOT_FROM, DOT_LEFT, diagonal_sum, is_long_dot, plan_dot
from tilewright.ops.launching import Call, LaunchPlan
from tilewright.ops.planes import padded_planes
from tilewright.ops.problem import Problem, problem_of
from tilewright.runtime.arrays import ArrayInfo
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.targets.target import CUDA


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> list[LaunchPlan]:
    """Treat vectors of any length as matrices, on every target; return the list of plans."""
    plans: list[LaunchPlan] = []

    def listed(*given: Any) -> LaunchPlan:
        plans.append(plan_dot(*given))
        return plans[-1]

    def is_dot(call: Call, problem: Problem, wanted: Any) -> bool:
        return is_long_dot(call.infos, problem)

    monkeypatch.setattr(dots, "DOT_FROM", 512)
    monkeypatch.setattr(dots, "plan_dot", listed)
    monkeypatch.setattr(matmuls, "is_dot", is_dot)
    return plans


def vectors(rng: np.random.Generator, items: int, length: int, kind: str) -> tuple[Any, Any]:
    """Return rows (items, 1, K) and columns (items, K, 1), in arrays whose rows are 16 elements longer."""
    dtype = {"f16": np.float16, "f32": np.float32}[kind]
    pitch = -(-length // 16) * 16 + 16
    held = [np.full((items, pitch), np.nan, dtype) for _ in range(2)]
    for one in held:
        one[:, :length] = rng.standard_normal((items, length))
    return held[0][:, None, :length], held[1][:, :length, None]


def assert_right(a: Any, b: Any, made: Any) -> None:
    """Check each element within f32 sums and one rounding; a missing last product exceeds this."""
    wide = a.astype(np.float64), b.astype(np.float64)
    want, size = wide[0] @ wide[1], np.abs(wide[0]) @ np.abs(wide[1])
    unit = 2.0**-11 if made.dtype == np.float16 else 2.0**-24
    bound = (a.shape[-1] + 1) * 2.0**-23 * size + unit * np.abs(want) + 2.0**-25
    assert (np.abs(made.astype(np.float64) - want) <= bound).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize(("items", "length"), [(1, 512), (1, 1023), (3, 1663), (2, 1537)])
def test_long_vectors_are_read_as_matrices(
    target: str, kind: str, items: int, length: int, always: list[LaunchPlan]
) -> None:
    rng = np.random.default_rng(length)
    a, b = vectors(rng, items, length, kind)
    if items == 1:
        a, b = a[0], b[0]
    out = np.full((*a.shape[:-1], 1), np.nan, a.dtype)
    made = tw.matmul(a, b, out, target=target)
    assert made is out
    (plan,) = always
    assert [launch.kernel.program.name for launch in plan.launches][-1] == "diagonal_sum"
    assert "diagonal" in str(plan)
    assert_right(a, b, made)


@pytest.mark.parametrize(("precision", "sums"), [("exact", "exact"), ("f32", "f32")])
def test_sums_have_the_precision_of_the_call(precision: str, sums: str, always: list[LaunchPlan]) -> None:
    a, b = vectors(np.random.default_rng(4), 1, 1030, "f16")
    assert_right(a[0], b[0], tw.matmul(a[0], b[0], precision=precision, target="cpu"))
    assert always[0].launches[0].kernel.constants["precision"] == sums


def test_every_product_counts_once(always: list[LaunchPlan]) -> None:
    """Sums of small whole numbers are exact: no product is missing, and none counts twice."""
    rng = np.random.default_rng(1)
    for length in (512, 1000, 1024 + 511):
        a, b = (rng.integers(-2, 3, length).astype(np.float32) for _ in range(2))
        assert tw.matmul(a, b, target="cpu") == a.astype(int) @ b.astype(int)
    assert len(always) == 3


def test_replays(always: list[LaunchPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    matmuls._PLANS.forget()

    def product() -> None:
        a, b = vectors(rng, 1, 1030, "f32")
        assert_right(a[0], b[0], tw.matmul(a[0], b[0], target="cpu"))

    product()
    assert len(always) == 1
    monkeypatch.setattr(matmuls, "multiplied", lambda *given: pytest.fail("planned again"))
    product()
    matmuls._PLANS.forget()


def described(shape: tuple[int, ...], strides: tuple[int, ...], pointer: int = 4096) -> ArrayInfo:
    return ArrayInfo(pointer, shape, strides, tw.f16, ("cuda", 0), False, None)


@pytest.mark.parametrize(
    ("k", "steps", "pointer", "is_long"),
    [
        (DOT_FROM, (1, 1), 4096, True),
        (DOT_FROM - 1, (1, 1), 4096, False),
        (DOT_FROM, (2, 1), 4096, False),
        (DOT_FROM, (1, 2), 4096, False),
        (DOT_FROM, (1, 1), 4098, False),
    ],
)
def test_short_or_strided_vectors_are_read_as_they_are(
    k: int, steps: tuple[int, int], pointer: int, is_long: bool
) -> None:
    infos = {"a": described((1, k), (k * steps[0], steps[0]), pointer), "b": described((k, 1), (steps[1], 1))}
    infos["out"] = described((1, 1), (1, 1))
    problem = problem_of(layouts(infos))
    assert is_long_dot(infos, problem) == is_long
    assert not padded_planes(infos, problem, None, (CUDA.architecture("sm_90a"), 132))


def test_the_sum_compiles() -> None:
    given = [
        tw.like("f32", 1, 64, strides=(4096, 65)),
        *[tw.like("f16", 1, DOT_LEFT - 1)] * 2,
        tw.like("f16", 1, 1),
    ]
    made = diagonal_sum.bind(on_host=False).compile(*given, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize(("items", "length"), [(1, DOT_FROM + 77), (3, 2 * DOT_FROM)])
def test_a_gpu_multiplies_long_vectors(kind: str, items: int, length: int) -> None:
    rng = np.random.default_rng(4)
    dtype = {"f16": np.float16, "f32": np.float32}[kind]
    a, b = (rng.standard_normal(shape).astype(dtype) for shape in ((items, 1, length), (items, length, 1)))
    out = DeviceArray.of(np.full((items, 1, 1), np.nan, dtype))
    there = [DeviceArray.of(one) for one in (a, b)]
    matmuls._PLANS.forget()
    for _ in range(2):  # the second time is a replay
        tw.matmul(*there, out)
        CUDA_DRIVER.synchronize()
        assert_right(a, b, out.host())
