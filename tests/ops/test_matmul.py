"""`matmul` on arrays in host memory: dtypes, ragged and empty shapes, strides, and what it refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.config import SUPPORTED, default_config
from tilewright.ops.gemm import output_dtype
from tilewright.ops.sample import operands
from tilewright.runtime.compare import Accumulation, compare_gemm

TARGETS = ("reference", "cpu")
SHAPES = [(1, 1, 1), (129, 129, 67), (1, 70, 33), (65, 1, 3), (33, 31, 0), (0, 5, 4), (5, 0, 4)]


def check(a: Any, b: Any, target: str, out: Any = None) -> None:
    element = tw.dtype(a.dtype)
    c = tw.matmul(a, b, out, target=target)
    assert c.dtype == output_dtype(element).numpy
    atom = default_config(target, element, (*c.shape, a.shape[1])).mma.atom
    compare_gemm(a, b, c, Accumulation.of(atom)).raise_if_wrong()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", SUPPORTED)
def test_dtypes_and_shapes(name: str, target: str) -> None:
    for m, n, k in SHAPES:
        made = operands("random", tw.dtype(name), (max(m, 1), max(n, 1), max(k, 1)))
        check(made.a[:m, :k], made.b[:k, :n], target)


@pytest.mark.parametrize("target", TARGETS)
def test_strides(target: str) -> None:
    x = np.random.default_rng(0).standard_normal((150, 150)).astype(np.float32)
    x.flags.writeable = False
    for a, b in (
        (x.T, x.T[:, :7]),
        (x[::2, ::3], x[1:51, 5:50]),
        (np.broadcast_to(x[0], (40, 150)), x),
        (np.broadcast_to(np.float32(2), (40, 30)), np.broadcast_to(x[0, 0], (30, 20))),
    ):
        check(a, b, target)
        check(a, b, target, np.zeros((2 * len(a), 3 * b.shape[1]), np.float32)[::2, ::3])


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
@pytest.mark.parametrize("name", [name for name in tw.dtypes.ALL if name not in SUPPORTED])
def test_dtypes_without_a_gemm(name: str, target: str) -> None:
    with pytest.raises(tw.DTypeError, match=f"no GEMM for {name} yet; nearest: f64, f32"):
        default_config(target, tw.dtype(name), (8, 8, 8))


def test_an_output_that_shares_memory_with_an_operand() -> None:
    x = np.random.default_rng(1).standard_normal((64, 128)).astype(np.float32)
    a, b = x[:, :64], x[:, 64:]
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(a, b, a)
    with pytest.raises(tw.LaunchError, match="out and b share memory"):
        tw.matmul(a.copy(), b, b.T)
    expected = a[:, :32] @ b[:32]
    check(a[:, :32].copy(), b[:32].copy(), "cpu", x[:, 32:96])
    assert np.allclose(x[:, 32:96], expected, atol=1e-4)


def test_an_output_that_cannot_hold_the_product() -> None:
    x = np.ones((4, 4), np.float32)
    with pytest.raises(tw.DTypeError, match="out is i32, a @ b is f32: the fractions would be lost"):
        tw.matmul(x, x, np.zeros((4, 4), np.int32))
    with pytest.raises(tw.LaunchError, match=r"out: builtins.list is not an array"):
        tw.matmul(x, x, [1.0])
