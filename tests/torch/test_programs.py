"""Programs that users of PyTorch write around operations and converted models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.test_products import drawn

import tilewright as tw
import tilewright.torch as tt
from tilewright.errors import LaunchError, SignatureError


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


class Image(torch.Tensor):
    """A user's subclass without methods of its own, like the images of torchvision."""


def test_a_subclass_of_tensors() -> None:
    """Results have the class that PyTorch's own functions give them; a call without gradients crashed."""
    x, w = drawn(3, 8).float(), drawn(8, 8).float()
    for call in (lambda x: tt.linear(x, w), lambda x: tt.einsum("ij,kj->ik", x, w), lambda x: SQUARED(x, w)):
        y = call(x.as_subclass(Image))
        assert type(y) is Image
        torch.testing.assert_close(y.as_subclass(torch.Tensor), call(x))
    assert type(tt.attention(x.as_subclass(Image), x, x)) is Image


def layers() -> torch.nn.Module:
    """A model with every kind of layer that `convert` makes of `torch.nn.Linear`."""

    class Mlp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.act, self.down = torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.act(self.up(x)))

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.gate, self.down = (torch.nn.Linear(32, 32) for _ in range(3))
            self.act = torch.nn.SiLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.down(self.act(self.gate(x)) * self.up(x))

    parts = Mlp(), torch.nn.Linear(32, 32), Gated(), tt.GatedLinear(32, 32), tt.Attention(32, 4)
    return torch.nn.Sequential(*parts)


@pytest.mark.parametrize("weights", [None, "i8", "i4"])
@pytest.mark.parametrize("how", [torch.fx.symbolic_trace, torch.jit.trace])
def test_models_are_traced(how: Callable[..., Any], weights: str | None) -> None:
    """`torch.fx` was refused; `torch.jit.trace` kept the results as constants."""
    model = layers()
    tt.convert(model, weights=weights, group=16, only=lambda name, _: not name.startswith("3"))
    x, other = drawn(2, 5, 32).float(), drawn(2, 5, 32).float()
    traced = how(model) if how is torch.fx.symbolic_trace else how(model, x)
    torch.testing.assert_close(traced(other), model(other))


def test_traces_of_operations() -> None:
    a, b = drawn(3, 4).float(), drawn(5, 4).float()
    calls: tuple[Callable[..., Any], ...] = (
        tt.linear,
        lambda a, b: tt.einsum("ij,kj->ik", a, b),
        lambda a, b: SQUARED(a, b),
        lambda a, b: tt.attention(a, b, b),
        lambda a, b: tt.reduced_matmul(a, b.mT, "sum"),
    )
    for call in calls:
        traced = torch.jit.trace(call, (drawn(3, 4).float(), drawn(5, 4).float()))
        torch.testing.assert_close(traced(a, b), call(a, b))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors_are_refused(layout: torch.layout) -> None:
    nested = torch.nested.nested_tensor([drawn(3, 8).float(), drawn(2, 8).float()], layout=layout)
    w = drawn(4, 8).float()
    for weight in (w, w.clone().requires_grad_()):
        with pytest.raises(LaunchError, match=r"matmul: a is a nested tensor; .*to_padded_tensor"):
            tt.linear(nested, weight)
        with pytest.raises(LaunchError, match="einsum: a is a nested tensor"):
            tt.einsum("ij,kj->ik", nested, weight)
    with pytest.raises(LaunchError, match=r"kernel_squares.*A is a nested tensor"):
        SQUARED(nested, w)


def test_arguments_that_are_no_tensors_are_named() -> None:
    x, w = drawn(3, 8).float(), drawn(2, 8, 4).float()
    wrong: tuple[tuple[str, Callable[[], Any]], ...] = (
        ("matmul: b is a NoneType; nearest legal choice: a tensor", lambda: tt.matmul(x, None)),
        (r"linear: x is a list; .*torch.as_tensor\(x\)", lambda: tt.linear([[1.0]], x, x[0])),
        ("matmul: bias is a float", lambda: tt.matmul(x, x.mT, bias=1.0)),
        ("attention: q is a list", lambda: tt.attention([1], x, x)),
        (r"ends is a list; .*torch.as_tensor\(ends\)", lambda: tt.grouped_matmul(x, w, [1, 3])),
        ("einsum: a is a list", lambda: tt.einsum("ij,kj->ik", [[1.0]], x)),
    )
    for message, call in wrong:
        with pytest.raises(LaunchError, match=message):
            call()


def test_a_seed_for_each_call_of_vmap_is_refused() -> None:
    x, w = torch.ones(3, 2, 8), drawn(4, 8).float()
    for call in (lambda x: tt.linear(x, w, dropout=0.5), lambda x: tt.attention(x, x, x, dropout=0.5)):
        with pytest.raises(LaunchError, match="randomness='same'"):
            torch.func.vmap(call, randomness="different")(x)
        first, second, third = torch.func.vmap(call, randomness="same")(x)
        assert torch.equal(first, second)
        assert torch.equal(second, third)


def test_wrong_gradients_of_a_kernel_are_named() -> None:
    operation = tt.op(squares)

    @operation.backward
    def _(dC: torch.Tensor, A: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"A": dC}

    y = operation(drawn(3, 4).float().requires_grad_(), drawn(5, 4).float())
    with pytest.raises(LaunchError, match=r"returns A of shape \(3, 5\); .*of the argument, \(3, 4\)"):
        y.sum().backward()
    for other in (operation, len):
        with pytest.raises(SignatureError, match="is no kernel; nearest legal choice"):
            tt.op(other)
