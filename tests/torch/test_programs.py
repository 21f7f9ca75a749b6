"""Programs that users of PyTorch write around operations and converted models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.test_products import drawn

import tilewright as tw
import tilewright.torch as tt
from tilewright.errors import LaunchError


@tw.kernel(A="M K", B="N K", C="M N")
def squares(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc * acc


SQUARED = tt.op(squares)


@SQUARED.backward
def _gradient(dC: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> dict[str, torch.Tensor]:
    sums = 2 * tt.linear(A, B) * dC
    return {"A": tt.matmul(sums, B), "B": tt.matmul(sums.mT, A)}


UNARY: dict[str, Callable[[torch.Tensor], Any]] = {
    "matmul": lambda x: tt.matmul(x, x.mT),
    "linear": lambda x: tt.linear(x, x, activation="gelu"),
    "einsum": lambda x: tt.einsum("ij,kj->ik", x, x),
    "attention": lambda x: tt.attention(x, x, x, causal=True),
    "gated_matmul": lambda x: tt.gated_matmul(x, x.mT, x.mT),
    "gemm_chain": lambda x: tt.gemm_chain(x, x.mT, x),
    "reduced_matmul": lambda x: tt.reduced_matmul(x, x.mT, "logsumexp"),
    "op": lambda x: SQUARED(x, x),
}
"""Operations of one matrix."""


@pytest.mark.parametrize("name", UNARY)
def test_forward_mode_over_a_gradient_is_refused(name: str) -> None:
    """A tangent was lost inside of `torch.func.grad`: Hessians and their products with vectors were wrong."""
    x = drawn(4, 8).float()

    def loss(x: torch.Tensor) -> torch.Tensor:
        return UNARY[name](x).square().sum()

    with pytest.raises(LaunchError, match="tangent"):
        torch.func.hessian(loss)(x)
    with pytest.raises(LaunchError, match="tangent"):
        torch.func.jvp(torch.func.grad(loss), (x,), (x,))
    twice = torch.func.jacrev(torch.func.jacrev(loss))(x)
    assert twice.shape == (4, 8, 4, 8)
    assert twice.abs().max() > 0
