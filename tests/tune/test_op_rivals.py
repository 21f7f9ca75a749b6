"""The rivals of attention, chains and reductions compute the same results."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.references import ACTIVATIONS as MEANINGS
from tilewright.targets.target import CPU, CUDA
from tilewright.testing import device_get, device_put, softmax_attention
from tilewright.tune.rivals import ACTIVATIONS, NUMPY, attention_rivals, chain_rivals, reduce_rivals

RNG = np.random.default_rng(0)


def drawn(*shapes: tuple[int, ...], kind: Any = np.float32) -> list[Any]:
    return [RNG.standard_normal(shape).astype(kind) for shape in shapes]


@pytest.mark.parametrize("shift", [None, 0, 7, -3])
def test_numpy_attends(shift: int | None) -> None:
    host = drawn((2, 4, 20, 16), (2, 2, 27, 16), (2, 2, 27, 16))
    found = attention_rivals(host, host, CPU.name, shift)[NUMPY]()
    q, k, v = host
    rows = slice(max(0, -(shift or 0)), None)  # NumPy gives a mean where no key is seen
    wanted = softmax_attention(q, k.repeat(2, 1), v.repeat(2, 1), 0.25, shift)
    np.testing.assert_allclose(np.asarray(found)[:, :, rows], wanted[:, :, rows], atol=1e-5)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_chains(activation: str | None) -> None:
    host = drawn((20, 8), (8, 30), (30, 4))
    found = chain_rivals(host, host, CPU.name, activation)[NUMPY]()
    a, b, c = (one.astype(np.float64) for one in host)
    np.testing.assert_allclose(np.asarray(found), MEANINGS[activation].meaning(a @ b) @ c, atol=1e-3)


def test_numpy_has_no_error_function() -> None:
    host = drawn((20, 8), (8, 30), (30, 4))
    assert chain_rivals(host, host, CPU.name, "gelu") == {}
    assert reduce_rivals(host[:2], host[:2], CPU.name, "gelu", (("max",), -1)) == {}


@pytest.mark.parametrize("axis", [-1, -2])
def test_numpy_reduces(axis: int) -> None:
    host, names = drawn((20, 8), (8, 30)), ("sum", "max", "min", "logsumexp")
    found: Any = reduce_rivals(host, host, CPU.name, None, (names, axis))[NUMPY]()
    for ours, theirs in zip(tw.reduced_matmul(host[0], host[1], names, axis), found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("shift", [None, 0, 28])
def test_torch_computes_the_same(shift: int | None) -> None:
    pytest.importorskip("torch")
    host = drawn((2, 4, 100, 64), (2, 2, 128, 64), (2, 2, 128, 64), kind=np.float16)
    there = [device_put(one, CUDA.name) for one in host]
    ours = tw.attention(there[0], there[1], there[2], causal=shift is not None, diagonal=shift or 0)
    (theirs,) = attention_rivals(there, host, CUDA.name, shift).values()
    found: Any = theirs()
    np.testing.assert_allclose(found.cpu().numpy(), device_get(ours), atol=4e-3)
    host = drawn((100, 64), (64, 80), (80, 32), kind=np.float16)
    there = [device_put(one, CUDA.name) for one in host]
    (theirs,) = chain_rivals(there, host, CUDA.name, "relu").values()
    found = theirs()
    ours = tw.gemm_chain(there[0], there[1], there[2], activation="relu")
    np.testing.assert_allclose(found.cpu().numpy(), device_get(ours), rtol=1e-2, atol=0.5)
    names = ("sum", "max", "min", "logsumexp")
    (theirs,) = reduce_rivals(there[:2], host[:2], CUDA.name, None, (names, -1)).values()
    found = theirs()
    for one, other in zip(tw.reduced_matmul(there[0], there[1], names), found, strict=True):
        np.testing.assert_allclose(other.cpu().numpy(), device_get(one), rtol=1e-2, atol=0.5)
