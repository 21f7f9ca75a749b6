"""The advice of each message is legal, and does what the author meant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import verify
from tilewright.targets import cuda

MMA = tw.TiledMma(tw.atoms.MMA_F16, (2, 2), (2, 4))
WGMMA = tw.TiledMma(tw.atoms.wgmma(tw.f16, 64), (1, 1))
SPREAD = tw.blocked((64,), (32,))


def traced(function: Callable[..., Any]) -> Any:
    arrays = (np.zeros((64, 32), np.float16), np.zeros((32, 64), np.float16), np.zeros((64, 64), np.float32))
    return tw.kernel(A="M K", B="K N", C="M N")(function).trace(*arrays)


def b_of_k_rows(A, B, C):
    tw.mma(tw.shared((64, 32), A.dtype), tw.shared((32, 64), B.dtype), tw.accumulator(MMA))


def a_of_k_rows(A, B, C):
    tw.mma(tw.shared((32, 64), A.dtype), tw.shared((64, 32), B.dtype), tw.accumulator(MMA))


def both_of_k_rows(A, B, C):
    tw.mma(tw.shared((32, 64), A.dtype), tw.shared((32, 64), B.dtype), tw.accumulator(MMA))


def stored_whole(A, B, C):
    tw.copy(tw.accumulator(MMA), C)


def loaded_whole(A, B, C):
    tw.load(A, tw.blocked((64, 32), (32, 4)))


@pytest.mark.parametrize(
    ("function", "advice"),
    [
        (b_of_k_rows, ["shared_1.permute(1, 0)"]),
        (a_of_k_rows, ["shared.permute(1, 0)"]),
        (both_of_k_rows, ["shared.permute(1, 0)", "shared_1.permute(1, 0)"]),
        (stored_whole, ["C.tile((64, 64), (m, n))"]),
        (loaded_whole, ["A.tile((64, 32), (m, n))"]),
    ],
)
def test_shapes_that_do_not_fit(function: Any, advice: list[str]) -> None:
    assert [violation.nearest for violation in verify.violations(traced(function))] == advice


def test_an_asynchronous_atom_needs_the_layout_of_the_hardware() -> None:
    def kernel(A, B, C):
        tw.mma(tw.shared((64, 32), A.dtype), tw.shared((64, 32), B.dtype), tw.accumulator(WGMMA))

    found = verify.violations(traced(kernel))
    assert [violation.nearest for violation in found] == [
        "tw.shared((..., 64, 64), f16, swizzle=128)",
        "tw.shared((..., 64, 64), f16, swizzle=128)",
    ]
    [older] = cuda.violations(traced(kernel), "sm_80")
    assert older.nearest == "mma.m16n8k16.f32.f16"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda X, x: np.exp(X), "nearest legal choice: x = tw.load(...) of a tile of it, then tw.exp(x)"),
        (lambda X, x: np.exp(x), "nearest legal choice: tw.exp(x)"),
        (lambda X, x: np.maximum(x, 0.0), "nearest legal choice: tw.maximum(x, y)"),
        (lambda X, x: np.maximum(np.zeros(64), x), "nearest legal choice: tw.maximum(x, y)"),
        (lambda X, x: np.sum(x), "nearest legal choice: tw.reduce_sum(x, dim)"),
        (lambda X, x: np.log2(x), "nearest legal choice: tw.log2(x)"),
        (lambda X, x: np.clip(x, 0.0, 1.0), "nearest legal choice: tw.clamp(x, low, high)"),
        (lambda X, x: np.mean(X, axis=0), "then tw.reduce_sum(x, dim) / x.shape[dim]"),
        (lambda X, x: np.where(x < 0, x, 0), "nearest legal choice: tw.where(condition, x, y)"),
        (lambda X, x: np.where(X.shape[0] < 3, 1, 0), "nearest legal choice: tw.where(condition, x, y)"),
        (lambda X, x: np.sqrt(X.shape[0]), "nearest legal choice: tw.sqrt(x)"),
        (lambda X, x: np.float32(2) * X, "the operator, between fragments or a fragment and a number"),
        (lambda X, x: np.arcsinh(x), "see `help(tw)` for the functions of tiles"),
        (lambda X, x: X**2, "is in global memory, and arithmetic needs registers"),
        (lambda X, x: -X, "is in global memory, and arithmetic needs registers"),
        (lambda X, x: 2 // X, "is in global memory, and arithmetic needs registers"),
        (lambda X, x: tw.fragment((64,), tw.f32, 0), "tw.blocked or tw.raked"),
        (lambda X, x: tw.accumulator((64, 64)), "nearest legal choice: tw.TiledMma(tw.atoms.MMA_F16"),
        (lambda X, x: tw.accumulator(tw.atoms.MMA_F16), "nearest legal choice: tw.TiledMma(tw.atoms.MMA_F16"),
    ],
)
def test_calls_that_mean_something_else(call: Any, message: str) -> None:
    @tw.kernel(X="M N")
    def kernel(X):
        call(X, tw.fragment(SPREAD, tw.f32, 0))

    with pytest.raises(tw.TraceError) as refused:
        kernel.trace(np.zeros((64, 32), np.float32))
    assert message in refused.value.message


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_functions_of_extents_are_numbers(target: str) -> None:
    @tw.kernel(X="M N")
    def kernel(X):
        part = X.tile((8, 32), (0, 0)).partition((8, 4))
        tw.copy(tw.load(part) * (1.0 / tw.sqrt(X.shape[1])), part)

    x = np.ones((8, 25), np.float32)
    assert kernel(x, target=target).target == target
    np.testing.assert_allclose(x, 0.2, rtol=1e-6)
