"""Eight lines without hardware, on arrays: every target, layouts, batches, ragged extents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product_in_f32 as gemm

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm


@tw.kernel(A="B M K", W="B K N", C="B M N")
def batched(A, W, C):
    for b, m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ W[b, k, n]
        C[b, m, n] = acc


@tw.kernel(A="M K", B="N K", C="M N")
def coarse(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(precision="tf32")
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


def within(shape: tuple[int, ...], dtype: Any) -> np.ndarray[Any, Any]:
    """Return an array that is a slice of a larger one, both full of NaN."""
    larger = np.full([extent + 3 for extent in shape], np.nan, dtype)
    return larger[tuple(slice(1, 1 + extent) for extent in shape)]


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("layout", ["nt", "tn"])
@pytest.mark.parametrize("shape", [(136, 200, 72), (1, 70, 33), (65, 1, 128), (7, 5, 0)])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_ragged_shapes(target: str, layout: str, shape: tuple[int, int, int], dtype: Any) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    given = (a, b) if layout == "nt" else (np.asfortranarray(a), np.asfortranarray(b))
    c = within((m, n), np.float32)
    assert gemm(*given, c, target=target).target == target
    compare_gemm(a, b.T, c, Accumulation.of(tw.atoms.fma(tw.dtype(dtype)))).raise_if_wrong()
    assert np.isnan(c.base).sum() == c.base.size - c.size


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_batches(target: str) -> None:
    rng = np.random.default_rng(3)
    a, w = rng.standard_normal((3, 50, 40)), rng.standard_normal((3, 40, 70))
    c = within((3, 50, 70), np.float64)
    a, w = a.astype(np.float32), w.astype(np.float32)
    assert batched(a, w, c, target=target).target == target
    for one, other, made in zip(a, w, c, strict=True):
        compare_gemm(one, other, made, Accumulation.of(tw.atoms.fma(tw.f32))).raise_if_wrong()
    assert np.isnan(c.base).sum() == c.base.size - c.size


def test_a_schedule_is_said() -> None:
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((rows, 100)).astype(np.float16) for rows in (70, 90))
    schedule = tw.Schedule(tw.atoms.MMA_F16, (32, 64, 32), warps=(2, 2), stages=3, staging="fragments")
    c = np.full((70, 90), np.nan, np.float32)
    made = gemm.bind(schedule=schedule)(a, b, c, target="reference")
    assert made.kernel.threads == 128
    compare_gemm(a, b.T, c, Accumulation.of(schedule.atom)).raise_if_wrong()


def test_an_explicit_kernel_has_none() -> None:
    @tw.kernel(X="N")
    def explicit(X):
        tw.copy(tw.fragment(tw.blocked((32,), (32,)), tw.f32, 0), X.tile((32,), (0,)))

    schedule = tw.Schedule(tw.atoms.MMA_F16, (32, 64, 32), warps=(2, 2))
    with pytest.raises(tw.LaunchError, match="this kernel is explicit"):
        explicit(np.zeros(3, np.float32), schedule=schedule)
    with pytest.raises(tw.LaunchError, match="schedule=3 is no schedule"):
        gemm.bind(schedule=3)


def test_tf32_is_multiplied_by_tensor_cores_where_it_is_allowed() -> None:
    a, b, c = (tw.like("f32", 4096, 4096) for _ in range(3))
    [exact, quick] = (kernel.compile(a, b, c, target="cuda", arch="sm_90a") for kernel in (gemm, coarse))
    assert quick.schedule is not None
    assert quick.schedule.atom.precision == 10
    assert exact.schedule is not None
    assert exact.schedule.atom.precision is None
    assert "precision='tf32'" in tw.ir.print_flow(coarse.flow(a, b, c))


def test_an_executable_says_its_schedule() -> None:
    schedule = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2), stages=3, staging="cp_async")
    arrays = tw.like("f16", 512, 256), tw.like("f16", 768, 256), tw.like("f16", 512, 768)
    asked = gemm.bind(schedule=schedule).compile(*arrays, target="cuda", arch="sm_80")
    assert asked.schedule == schedule
    chosen = gemm.compile(*arrays, target="cuda", arch="sm_80").schedule
    assert chosen is not None
    assert gemm.bind(schedule=chosen).compile(*arrays, target="cuda", arch="sm_80").source


@tw.kernel(A="M K", B="N K", C="M N", top="M")
def largest(A, B, C, top):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        top[m] = acc.max(axis=1)
        C[m, n] = acc


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("n", [0, 1, 7])
def test_what_is_stored_along_rows_is_stored_without_columns_too(target: str, n: int) -> None:
    rng = np.random.default_rng(n)
    a, b = (rng.integers(-3, 4, (rows, 12)).astype(np.float32) for rows in (70, n))
    c, top = within((70, n), np.float32), within((70,), np.float32)
    assert largest(a, b, c, top, target=target).target == target
    assert np.array_equal(c, a @ b.T)
    assert np.array_equal(top, (a @ b.T).max(axis=1, initial=-np.inf))
    assert np.isnan(top.base).sum() == top.base.size - top.size
