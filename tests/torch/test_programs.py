"""Programs that users of PyTorch write around operations and converted models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from tests.torch.test_products import drawn

import tilewright as tw
import tilewright.distributed as td
import tilewright.torch as tt
from tilewright.errors import DTypeError, LaunchError, SignatureError


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


def test_graphs_of_own_operations_and_norms() -> None:
    """`torch.fx` was refused; its graph keeps gradients."""
    a, b = drawn(3, 4).float().requires_grad_(), drawn(5, 4).float()
    calls: tuple[Callable[..., Any], ...] = (
        lambda a, b: SQUARED(a, B=b),
        lambda a, b: tt.layer_norm(a, b[0], b[1], eps=0.5),
        lambda a, b: tt.layer_norm(a, b[0]),
        lambda a, b: tt.rms_norm(a, b[0], eps=0.5),
    )
    for call in calls:
        graph = torch.fx.symbolic_trace(call)
        found, exact = graph(a, b), call(a, b)
        assert torch.equal(found, exact)
        (own,), (like,) = (torch.autograd.grad(y.square().sum(), a) for y in (found, exact))
        assert torch.equal(own, like)


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


def test_layers_of_gates_and_attention_are_replaced() -> None:
    """Quantised layers, adapters and hooks in a `GatedLinear` were an error or ignored."""

    class Adapter(torch.nn.Module):
        def __init__(self, base: torch.nn.Module) -> None:
            super().__init__()
            self.base, self.down = base, torch.nn.Parameter(torch.ones(3, 32) / 8)
            self.up = torch.nn.Parameter(torch.ones(32, 3) / 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.base(x) + tt.linear(tt.linear(x, self.down), self.up)

    x = drawn(5, 32).float()
    gated = tt.GatedLinear(32, 32, bias=True)
    model = torch.nn.Sequential(gated)
    assert tt.convert(model, weights="i8") == {"0.gate": "QuantizedLinear", "0.up": "QuantizedLinear"}
    gate, up = gated.gate.dequantized(), gated.up.dequantized()  # type: ignore[operator]
    exact = torch.nn.functional.silu(gate(x)) * up(x)
    torch.testing.assert_close(model(x), exact, rtol=1e-4, atol=1e-5)

    gated.gate = Adapter(gated.gate)  # type: ignore[assignment]
    given = x.clone().requires_grad_()
    model(given).sum().backward()
    like = x.clone().requires_grad_()
    exact = torch.nn.functional.silu(gate(like) + like.sum(-1, keepdim=True) * 3 / 64) * up(like)
    torch.testing.assert_close(model(given), exact, rtol=1e-4, atol=1e-5)
    exact.sum().backward()
    torch.testing.assert_close(given.grad, like.grad, rtol=1e-4, atol=1e-5)
    assert gated.gate.up.grad is not None  # type: ignore[union-attr]

    seen = tt.GatedLinear(32, 32)
    before = seen(x)
    seen.up.register_forward_hook(lambda layer, given, y: 2 * y)
    torch.testing.assert_close(seen(x), 2 * before, rtol=1e-4, atol=1e-5)

    linear = tt.GatedLinear(32, 32, activation=None)  # type: ignore[arg-type]
    exact = linear(x)
    linear.up = torch.nn.Sequential(linear.up)  # type: ignore[assignment]
    torch.testing.assert_close(linear(x), exact, rtol=1e-4, atol=1e-5)

    layer = tt.Attention(32, 4)
    layer.out_proj = Adapter(layer.out_proj)  # type: ignore[assignment]
    assert layer(x[None]).shape == (1, 5, 32)


def test_a_quantised_layer_prints_its_format() -> None:
    assert "in_features=32, out_features=16, bias=True, weights='i4', group=16" in repr(
        tt.QuantizedLinear(32, 16, weights="i4", group=16)
    )


def test_transforms_of_calls_over_ranks_are_refused() -> None:
    """The message was that of PyTorch, about `setup_context` or the address of a tensor."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        a, b = drawn(3, 8).float(), drawn(8, 4).float()
        for call in (td.all_gather_matmul, td.matmul_reduce_scatter, td.matmul_all_reduce):
            for transformed in (
                torch.func.grad(lambda a, call=call: call(a, b).sum()),
                torch.func.vmap(lambda row, call=call: call(row[None], b)),
            ):
                with pytest.raises(LaunchError, match=r"torch\.func transforms the call, .*autograd\.grad"):
                    transformed(a)
    finally:
        dist.destroy_process_group()


def test_a_mask_of_truth_values_names_the_numbers() -> None:
    q, seen = drawn(2, 3, 4, 8).float(), torch.ones(4, 4, dtype=torch.bool).tril()
    with pytest.raises(
        DTypeError, match=r"bias is boolean; .*0 for keys that a row sees, and -inf for others"
    ):
        tt.attention(q, q, q, bias=seen)
    numbers = torch.zeros(4, 4).masked_fill(~seen, -torch.inf)
    exact = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=seen)
    torch.testing.assert_close(tt.attention(q, q, q, bias=numbers), exact, rtol=1e-4, atol=1e-5)


def test_placed_tensors_are_refused() -> None:
    """An operation without a rule for placements names the functions that have one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        x = dist.tensor.distribute_tensor(drawn(3, 8).float(), mesh, [dist.tensor.Shard(0)])
        with pytest.raises(LaunchError, match=r"matmul: a tensor is a DTensor.*tilewright.distributed"):
            tt.matmul(x, x.mT)
    finally:
        dist.destroy_process_group()


def test_arguments_of_a_kernel_by_name() -> None:
    a, b = drawn(3, 4).float(), drawn(5, 4).float()
    exact = SQUARED(a, b)
    for call in (SQUARED, torch.compile(SQUARED, fullgraph=True, backend="aot_eager")):
        assert torch.equal(call(a, B=b), exact)
        assert torch.equal(call(B=b, A=a), exact)
    for wrong in ({"A": a}, {"B": b, "C": b}):
        with pytest.raises(
            LaunchError, match="is missing, given twice, or no argument; nearest legal choice: B by"
        ):
            SQUARED(a, **wrong)
