"""CUDA graphs of operations in PyTorch, whose first call is captured; needs `--torch-device cuda`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import tilewright.torch as tt

WIDE = torch.randn(96, 64, dtype=torch.bfloat16)
BIAS = torch.randn(96, dtype=torch.bfloat16)
ATTENTION = {"causal": True, "diagonal": "last"}

CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "linear": lambda x: tt.linear(x, WIDE, BIAS, activation="gelu"),
    "gates": lambda x: tt.gated_matmul(x, WIDE.mT, WIDE.mT),
    "attention": lambda x: tt.attention(
        x.view(2, 2, 12, 64), x.view(2, 2, 12, 64), x.view(2, 2, 12, 64), **ATTENTION
    ),
    **{
        weights: tt.QuantizedLinear.of(torch.nn.Linear(64, 96, dtype=torch.bfloat16), weights, group=32)
        for weights in ("f8e4m3", "i4")
    },
}


def replayed(call: Callable[[torch.Tensor], Any], x: torch.Tensor) -> tuple[Callable[[], None], Any]:
    """A graph of the first call, and the tensors that it writes."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = call(x)
    return graph.replay, made


@pytest.mark.parametrize("name", CALLS)
def test_first_call_is_captured(name: str) -> None:
    x = torch.randn(48, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        replay, made = replayed(CALLS[name], x)
        for _ in range(3):
            x.normal_()
            made.fill_(float("nan"))
            replay()
            torch.testing.assert_close(made, CALLS[name](x), rtol=0, atol=0)


def test_gradients_are_captured() -> None:
    """A step of training; ones for column sums that a graph makes are not kept for later calls."""
    x, dy = torch.randn(40, 64, dtype=torch.bfloat16), torch.randn(40, 96, dtype=torch.bfloat16)
    given = [one.clone().requires_grad_() for one in (WIDE, BIAS)]

    def step(x: torch.Tensor) -> Any:
        return torch.autograd.grad(tt.linear(x, *given), given, dy)

    replay, made = replayed(step, x)
    for _ in range(3):
        x.normal_()
        for one in made:
            one.fill_(float("nan"))
        replay()
        for one, other in zip(made, step(x), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)
