"""Products in PyTorch: results and gradients are compared with those of PyTorch's operations in f64."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import tilewright.torch as tt
from tilewright.errors import DTypeError, LaunchError
from tilewright.torch.products import column_sums, tilewright_mm

functional = torch.nn.functional
f64, c128 = torch.float64, torch.complex128


def drawn(*shape: int, dtype: torch.dtype = f64, seed: int = 0) -> torch.Tensor:
    made = torch.Generator("cpu").manual_seed(sum(shape, 7 * seed))
    return torch.randn(shape, dtype=dtype, generator=made, device="cpu").to(torch.get_default_device())


def gradients(call: Callable[..., Any], arrays: Sequence[torch.Tensor], *, twice: bool) -> list[torch.Tensor]:
    """The result, its gradients, and, if asked for, the gradients of the sum of their squares."""
    given = [one.detach().clone().requires_grad_() for one in arrays]
    y = call(*given)
    seed = drawn(*y.shape, dtype=y.dtype, seed=1)
    first = torch.autograd.grad(y, given, seed, create_graph=True)
    if not twice:
        return [y, *first]
    total = sum((one * one.conj()).real.sum() for one in first)
    second = torch.autograd.grad(total, given, allow_unused=True)
    return [y, *first, *(torch.zeros(1) if one is None else one for one in second)]


def compare(
    call: Callable[..., Any], like: Callable[..., Any], *arrays: torch.Tensor, twice: bool = False
) -> None:
    found, expected = (gradients(one, arrays, twice=twice) for one in (call, like))
    for one, other in zip(found, expected, strict=True):
        # Sums of at most 64 products of numbers below 8, twice differentiated.
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-11)


SHAPES = [
    ((3, 4), (4, 5)),
    ((2, 3, 4), (4, 5)),
    ((2, 3, 4), (2, 4, 5)),
    ((3, 4), (2, 4, 5)),
    ((1, 3, 4), (2, 4, 5)),
    ((5, 1, 3, 4), (2, 4, 5)),
    ((4,), (4, 5)),
    ((2, 3, 4), (4,)),
    ((4,), (4,)),
    ((0, 4), (4, 5)),
    ((3, 0), (0, 5)),
]


@pytest.mark.parametrize(("of_a", "of_b"), SHAPES)
def test_matmul(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    twice = of_a in ((3, 4), (2, 3, 4))
    compare(tt.matmul, torch.matmul, drawn(*of_a), drawn(*of_b), twice=twice)


@pytest.mark.parametrize(("of_a", "of_b"), [SHAPES[at] for at in (1, 3, 6, 8)])
def test_matmul_of_complex_tensors(of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    arrays = drawn(*of_a, dtype=c128), drawn(*of_b, dtype=c128)
    compare(tt.matmul, torch.matmul, *arrays, twice=len(of_a) == 3)


def test_strides_of_any_kind() -> None:
    a, b = drawn(4, 3).mT, drawn(8, 10)[::2, ::2]
    compare(tt.matmul, torch.matmul, a, b)
    compare(lambda a: tt.matmul(a, b[:, :1].expand(-1, 5)), lambda a: a @ b[:, :1].expand(-1, 5), a)


@pytest.mark.parametrize("conjugates", [(False, True), (True, False), (True, True)])
@pytest.mark.parametrize(("of_a", "of_b"), [((3, 4), (4, 5)), ((3, 4), (2, 4, 5))])
def test_conjugates(conjugates: tuple[bool, bool], of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    def call(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        words = dict(zip(("conjugate_a", "conjugate_b"), conjugates, strict=True))
        return tt.complex_matmul(a, b, c, alpha=2 - 1j, beta=1 + 3j, **words)

    def like(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        one, other = (x.conj() if is_conj else x for x, is_conj in zip((a, b), conjugates, strict=True))
        return (2 - 1j) * (one @ other) + (1 + 3j) * c

    compare(call, like, drawn(*of_a, dtype=c128), drawn(*of_b, dtype=c128), drawn(3, 1, dtype=c128))


def test_lazy_conjugates_are_read_as_they_are() -> None:
    a = drawn(3, 3, dtype=c128)
    torch.testing.assert_close(tt.matmul(a.conj(), a.mH), a.conj() @ a.mH, rtol=1e-13, atol=1e-13)
    x = a.conj().imag
    assert x.is_neg()
    torch.testing.assert_close(tt.matmul(x, x), x @ x, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("activation", [None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_linear(activation: str | None) -> None:
    def like(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        y = functional.linear(x, w, bias)
        if activation in ("gelu", "gelu_tanh"):
            y = functional.gelu(y, approximate="tanh" if activation == "gelu_tanh" else "none")
        elif activation is not None:
            y = functional.silu(y) if activation == "silu" else getattr(torch, activation)(y)
        return y + residual

    def call(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return tt.linear(x, w, bias, activation=activation, residual=residual)

    arrays = (drawn(2, 3, 4), drawn(5, 4), drawn(5), drawn(3, 1))
    compare(call, like, *arrays, twice=activation in ("gelu", "silu"))
    with torch.no_grad():  # one kernel, whose activation is off by a few units in the last place
        torch.testing.assert_close(call(*arrays), like(*arrays), rtol=1e-12, atol=1e-12)
    if activation in (None, "relu", "sigmoid", "tanh"):  # one kernel with gradients, too
        x, w, bias, _ = arrays
        compare(
            lambda x, w: tt.linear(x, w, bias, activation=activation),
            lambda x, w: like(x, w, bias, torch.zeros((), dtype=f64)),
            *(x, w),
        )


@pytest.mark.parametrize("derivative", [None, "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"])
def test_terms(derivative: str | None) -> None:
    def like(a: Any, b: Any, c: Any, bias: Any, multiply: Any, residual: Any) -> torch.Tensor:
        factor = multiply
        if derivative is not None:
            act = {
                "gelu": functional.gelu,
                "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
                "silu": functional.silu,
            }.get(derivative) or getattr(torch, derivative)
            factor = torch.func.vmap(torch.func.grad(act))(multiply.flatten()).reshape(multiply.shape)
        return (0.5 * (a @ b) + 3 * c + bias) * factor + residual

    def call(a: Any, b: Any, c: Any, bias: Any, multiply: Any, residual: Any) -> torch.Tensor:
        words = {"alpha": 0.5, "beta": 3.0, "derivative": derivative}
        return tt.matmul(a, b, c=c, bias=bias, multiply=multiply, residual=residual, **words)

    arrays = (drawn(3, 4), drawn(4, 5), drawn(3, 1), drawn(5), drawn(3, 5), drawn(3, 5))
    if derivative in (None, "gelu", "silu"):  # by one kernel, and by two
        compare(call, like, *arrays)
    torch.testing.assert_close(call(*arrays), like(*arrays), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_dropout(activation: str | None) -> None:
    """The dropped elements are those of `tilewright.matmul`, in the gradient too."""
    import tilewright as tw

    x, w, bias, residual = drawn(2, 7, 4), drawn(5, 4), drawn(5), drawn(7, 5)
    bits = tw.testing.philox(np.arange(70).reshape(2, 7, 5), 3, 2)
    kept = torch.from_numpy((bits >= 2**30) / 0.75).to(x.device)
    words = {"activation": activation, "dropout": 0.25, "seed": 3, "offset": 2}

    def like(x: Any, w: Any, bias: Any, residual: Any) -> torch.Tensor:
        y = functional.linear(x, w, bias)
        return (y if activation is None else functional.gelu(y)) * kept + residual

    def call(x: Any, w: Any, bias: Any, residual: Any) -> torch.Tensor:
        return tt.linear(x, w, bias, residual=residual, **words)

    compare(call, like, x, w, bias, residual, twice=activation is not None)
    with torch.no_grad():
        torch.testing.assert_close(call(x, w, bias, residual), like(x, w, bias, residual))
    torch.manual_seed(5)
    first = tt.matmul(x, w.mT, dropout=0.5)
    torch.manual_seed(5)
    assert torch.equal(tt.matmul(x, w.mT, dropout=0.5), first)
    assert not torch.equal(tt.matmul(x, w.mT, dropout=0.5), first)
    torch.testing.assert_close(tt.matmul(x[0, 0], w[0], dropout=1e-9, seed=1), x[0, 0] @ w[0])
    for given in (x, x.clone().requires_grad_()):
        with pytest.raises(LaunchError, match=r"dropout=1.5; nearest legal choice"):
            tt.matmul(given, w.mT, dropout=1.5)
    with pytest.raises(LaunchError, match=r"complex tensors has no .*dropout"):
        tt.matmul(x.to(c128), w.mT.to(c128), dropout=0.5)
    with pytest.raises(DTypeError, match=r"dropout of torch.int32; nearest legal choice"):
        tt.matmul(x.int(), w.mT.int(), dropout=0.5)
    for shape in ((6, 2, 7, 5), (3, 5)):
        with pytest.raises(LaunchError, match=r"residual has shape .* does not broadcast"):
            tt.matmul(x, w.mT, dropout=0.5, residual=drawn(*shape))
    assert tt.matmul(x, w.mT[:, :0], dropout=0.5).shape == (2, 7, 0)


def test_gates_without_columns() -> None:
    a, b, factor = drawn(3, 2).requires_grad_(), drawn(2, 0), drawn(3, 0).requires_grad_()
    made = torch.autograd.grad(tt.matmul(a, b, activation="silu", multiply=factor).sum(), (a, factor))
    assert torch.equal(made[0], torch.zeros_like(a))
    assert made[1].shape == (3, 0)


@pytest.mark.parametrize("is_scaled", [False, True])
def test_gradients_of_wide_biases_are_not_rounded_to_the_results_dtype(is_scaled: bool) -> None:
    """70,000 rows of ones: no f16 holds their sum."""
    a, bias = torch.ones(70000, 2, dtype=torch.float16), torch.zeros(2, requires_grad=True)
    if is_scaled:
        y = tt.scaled_mm(a, torch.ones(2, 2, dtype=torch.int8), bias=bias, out_dtype=torch.float16)
    else:
        y = tt.matmul(a, torch.ones(2, 2, dtype=torch.float16), bias=bias)
    assert y.dtype == torch.float16
    assert torch.autograd.grad(y, bias, torch.ones_like(y))[0].tolist() == [70000.0, 70000.0]


EQUATIONS = [
    ("ij,jk->ik", (3, 4), (4, 5)),
    ("bik,bkj->jbi", (2, 3, 4), (2, 4, 5)),
    ("...ij,jk->...ik", (2, 3, 4), (4, 5)),
    ("ij,jk->k", (3, 4), (4, 5)),
    ("ii,ij->j", (3, 3), (3, 4)),
    ("iji,ij->j", (3, 4, 3), (3, 4)),
    ("i,j->ij", (3,), (4,)),
    ("...i,...i->...", (2, 3), (1, 3)),
    ("bsk,khe->bhse", (2, 3, 4), (4, 2, 3)),
    ("ij,jk", (3, 4), (4, 5)),
    ("ij,jk->ik", (3, 0), (0, 5)),
]


@pytest.mark.parametrize(("subscripts", "of_a", "of_b"), EQUATIONS)
def test_einsum(subscripts: str, of_a: tuple[int, ...], of_b: tuple[int, ...]) -> None:
    twice = subscripts in ("bik,bkj->jbi", "ii,ij->j")
    calls = [partial(one, subscripts) for one in (tt.einsum, torch.einsum)]
    compare(*calls, drawn(*of_a), drawn(*of_b), twice=twice)
    if twice:
        compare(*calls, drawn(*of_a, dtype=c128), drawn(*of_b, dtype=c128), twice=True)


def test_einsum_with_conjugates_and_terms() -> None:
    a, b = drawn(3, 4, dtype=c128), drawn(4, 5, dtype=c128)
    words = {"alpha": 1 - 2j, "conjugate_b": True}
    compare(
        lambda a, b: tt.einsum("ij,jk->ki", a, b, **words), lambda a, b: (1 - 2j) * (a @ b.conj()).mT, a, b
    )
    compare(
        lambda a, b, bias: tt.einsum("ij,jk->ik", a, b, bias=bias, activation="silu", residual=a[:, :1]),
        lambda a, b, bias: functional.silu(a @ b + bias) + a[:, :1],
        *(drawn(3, 4), drawn(4, 5), drawn(5)),
    )


def test_only_what_gradients_need_is_kept() -> None:
    """A call keeps as many bytes for its gradients as PyTorch's."""

    def kept(call: Callable[..., Any], *wanted: bool) -> int:
        given = (drawn(6, 4), drawn(5, 4), drawn(5))
        arrays = [one.requires_grad_(want) for one, want in zip(given, wanted, strict=True)]
        sizes = list[int]()
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.nbytes) or x, lambda x: x):
            call(*arrays)
        return sum(sizes)

    for wanted in ((True, True, True), (False, True, True), (True, False, False), (False, False, True)):
        assert kept(tt.linear, *wanted) == kept(functional.linear, *wanted)
        for name in ("relu", "gelu", "silu"):
            found = kept(lambda x, w, b, name=name: tt.linear(x, w, b, activation=name), *wanted)
            follows = getattr(functional, name)
            assert found == kept(lambda x, w, b, f=follows: f(functional.linear(x, w, b)), *wanted)


def test_one_kernel_computes_a_layer_in_training() -> None:
    """PyTorch computes nothing but memory for the results; two gates are two kernels."""

    class Calls(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.names = list[str]()

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            self.names.append(func.name())
            return func(*args, **(kwargs or {}))

    x, w, bias = (drawn(*shape).requires_grad_() for shape in ((6, 4), (5, 4), (5,)))
    for activation, residual in (
        ("gelu", None),
        ("silu", drawn(6, 5)),
        ("relu", drawn(6, 5)),
        ("tanh", None),
    ):
        with Calls() as seen:
            tt.linear(x, w, bias, activation=activation, residual=residual)
        own = [name for name in seen.names if not name.startswith(("aten::t", "aten::empty", "aten::detach"))]
        assert own == ["tilewright::matmul" if activation == "tanh" else "tilewright::matmul_and_sums"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_of_16_bits_are_rounded_once(dtype: torch.dtype) -> None:
    x, w, dy = (drawn(*shape).to(dtype) for shape in ((37, 29), (31, 29), (37, 31)))
    bias = drawn(31).to(dtype)
    given = [one.requires_grad_() for one in (x, w, bias)]
    found = torch.autograd.grad(tt.linear(*given), given, dy)
    a, b, g = (one.detach().double() for one in (x, w, dy))
    exact = (g @ b, g.mT @ a, g.sum(0))
    sums = (g.abs() @ b.abs(), g.abs().mT @ a.abs(), g.abs().sum(0))
    for one, other, size in zip(found, exact, sums, strict=True):
        unit = torch.finfo(dtype).eps / 2
        bound = unit * other.abs() * 1.01 + 2 * 40 * 2.0**-24 * size + torch.finfo(dtype).smallest_normal
        assert bool(((one.double() - other).abs() <= bound).all())


def test_transforms() -> None:
    x, w, bias = drawn(6, 4), drawn(5, 4), drawn(5)

    def loss(w: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return tt.linear(x, w, bias, activation="relu").square().sum()

    def like(w: torch.Tensor, bias: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(functional.linear(x, w, bias)).square().sum()

    for one, other in zip(
        torch.func.vmap(torch.func.grad(loss, argnums=(0, 1)), in_dims=(None, None, 0))(w, bias, x),
        torch.func.vmap(torch.func.grad(like, argnums=(0, 1)), in_dims=(None, None, 0))(w, bias, x),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
    hessian = torch.func.jacrev(torch.func.jacrev(loss))(w, bias, x)
    torch.testing.assert_close(hessian, torch.func.jacrev(torch.func.jacrev(like))(w, bias, x))


VMAPS: list[tuple[Any, Any, tuple[Any, ...], tuple[tuple[int, ...], ...]]] = [
    (tt.matmul, torch.matmul, (0, None), ((7, 3, 4), (4, 5))),
    (tt.matmul, torch.matmul, (None, 2), ((3, 4), (4, 5, 7))),
    (tt.matmul, torch.matmul, (1, 0), ((3, 7, 4), (7, 2, 4, 5))),
    (tt.matmul, torch.matmul, (0, 0), ((7, 4), (7, 4))),
    (tt.matmul, torch.matmul, (1, None), ((4, 7), (4, 5))),
    (tt.matmul, torch.matmul, (0, None), ((7, 3, 4), (4,))),
    (tt.linear, functional.linear, (0, None, None), ((7, 4), (5, 4), (5,))),
    (tt.linear, functional.linear, (0, 0, 0), ((7, 3, 4), (7, 5, 4), (7, 5))),
    (
        lambda a, b, c: tt.matmul(a, b, c=c),
        lambda a, b, c: a @ b + c,
        (None, None, 0),
        ((3, 4), (4, 5), (7, 3, 5)),
    ),
    (
        lambda a, b, c: tt.matmul(a, b, c=c),
        lambda a, b, c: a @ b + c,
        (None, None, 1),
        ((4,), (4, 5), (5, 7)),
    ),
    (tt.linear, functional.linear, (None, None, 0), ((2, 3, 4), (5, 4), (7, 5))),
    *(
        (
            lambda a, b, text=text: tt.einsum(text, a, b),
            lambda a, b, text=text: torch.einsum(text, a, b),
            dims,
            shapes,
        )
        for text, dims, shapes in (
            ("ij,jk->ki", (0, 1), ((7, 3, 4), (4, 7, 5))),
            ("...i,...i->...", (0, None), ((7, 2, 3), (2, 3))),
            ("...i,...i->...", (0, None), ((7, 2, 3), (1, 3))),
        )
    ),
]


@pytest.mark.parametrize(("call", "like", "dims", "shapes"), VMAPS)
def test_vmap(call: Any, like: Any, dims: tuple[Any, ...], shapes: tuple[tuple[int, ...], ...]) -> None:
    arrays = [drawn(*shape) for shape in shapes]
    found, expected = (torch.func.vmap(one, in_dims=dims)(*arrays) for one in (call, like))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_forward_mode_is_refused() -> None:
    x, w = drawn(3, 4), drawn(4, 5)
    tt.matmul(x, w)
    tt.matmul(x, w)  # from now on it is replayed
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        for call in (tt.matmul, lambda a, b: tt.einsum("ij,jk->ik", a, b), torch.ops.tilewright.matmul):
            words = (None,) * 4 + (1.0, None, None, None, "exact", None)
            with pytest.raises(LaunchError, match="tangent"):
                call(dual, w, *(words if call is torch.ops.tilewright.matmul else ()))
        with pytest.raises(LaunchError, match="tangent"):
            tt.matmul(dual.requires_grad_(), w)
        torch.testing.assert_close(tt.matmul(x, w), x @ w, rtol=1e-13, atol=1e-13)
    with pytest.raises(LaunchError, match="reverse mode"):
        torch.func.jvp(lambda x: tt.matmul(x, w), (x,), (x,))


def test_the_core_refuses_tangents_too() -> None:
    import tilewright as tw

    x = drawn(3, 4)
    for _ in range(3):
        tw.matmul(x, x.mT)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, x)
        with pytest.raises(LaunchError, match="tangent of PyTorch's forward mode"):
            tw.matmul(dual, x.mT)
        tw.matmul(x, x.mT)


def test_autocast() -> None:
    x, w, bias = (drawn(*shape).float() for shape in ((6, 4), (5, 4), (5,)))
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        y, like = tt.linear(x, w.requires_grad_(), bias), functional.linear(x, w, bias)
        assert tt.einsum("ij,kj->ik", x, w).dtype == torch.bfloat16
        assert tt.matmul(x.double(), w.mT.double()).dtype == f64
    assert y.dtype == like.dtype == torch.bfloat16
    torch.testing.assert_close(y, like, rtol=0.02, atol=0.02)
    y.sum().backward()
    assert w.grad is not None
    assert w.grad.dtype == torch.float32


def test_errors() -> None:
    x = drawn(3, 4)
    with pytest.raises((LaunchError, RuntimeError), match=r"K|do not fit"):
        tt.matmul(x, x)
    with pytest.raises(DTypeError):
        tt.matmul(x, x.mT.float())
    with pytest.raises(LaunchError, match="complex tensors has no bias"):
        tt.matmul(x.to(c128), x.mT.to(c128), bias=x[0])
    with pytest.raises(LaunchError, match="activation"):
        tt.matmul(x, x.mT, activation="relo")
    with pytest.raises(LaunchError, match="activation"):
        tt.matmul(x.requires_grad_(), x.mT, activation="relo")


def test_a_tensor_is_no_number() -> None:
    """A tensor is refused as alpha or beta, for its gradient would be lost."""
    x, number = drawn(3, 3), torch.tensor(2.0, requires_grad=True)
    calls = (
        lambda: tt.matmul(x, x, alpha=number),
        lambda: tt.matmul(x.requires_grad_(), x, c=x, beta=number),
        lambda: tt.einsum("ij,jk->ik", x, x, alpha=number.detach()),
        lambda: tt.attention(x.float(), x.float(), x.float(), scale=number),
    )
    for call in calls:
        with pytest.raises(LaunchError, match="is a tensor"):
            call()
        with torch.autocast("cpu"), pytest.raises(LaunchError, match="is a tensor"):
            call()


def test_a_factor_without_an_addend_is_refused() -> None:
    x = drawn(3, 3)
    for given in (x, x.clone().requires_grad_()):
        with pytest.raises(LaunchError, match=r"beta=2.0 needs c"):
            tt.matmul(given, x, beta=2.0)
        with pytest.raises(LaunchError, match=r"beta.*needs c"):
            tt.matmul(given.to(c128), x.to(c128), beta=2.0)


def test_a_batch_of_no_calls() -> None:
    found = torch.func.vmap(lambda x: tt.attention(x, x, x))(torch.zeros(0, 3, 4))
    assert found.shape == (0, 3, 4)
    found, lse = torch.func.vmap(lambda x: tt.attention(x, x, x, return_lse=True))(torch.zeros(0, 3, 4))
    assert (found.shape, lse.shape) == ((0, 3, 4), (0, 3))


def test_gradients_in_batches() -> None:
    """`torch.autograd.grad(is_grads_batched=True)` has a transform that `torch.func` does not know of."""
    x, w = drawn(2, 4), drawn(4, 5)
    calls: list[Callable[..., Any]] = [
        lambda x: tt.matmul(x, w, activation="sigmoid"),
        lambda x: tt.matmul(x, w, activation="gelu"),
        lambda x: tt.attention(x.float(), w[:3].float() @ torch.ones(5, 4), x.float()[:1].expand(3, 4)),
    ]
    for call in calls:
        found, expected = (
            torch.autograd.functional.jacobian(call, x, vectorize=at_once) for at_once in (True, False)
        )
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_tensors_without_memory() -> None:
    """They have shapes and dtypes alone, as in a model whose parameters are made later."""
    x, w = (torch.empty(*shape, device="meta", requires_grad=True) for shape in ((2, 3, 4), (5, 4)))
    y = tt.linear(x, w, torch.empty(5, device="meta"), activation="gelu")
    y.sum().backward()
    assert (y.shape, y.dtype, y.is_meta) == ((2, 3, 5), torch.float32, True)
    assert x.grad is not None
    assert (x.grad.shape, x.grad.is_meta) == (x.shape, True)


@pytest.mark.parametrize("wants", [False, True])
def test_tensors_with_and_without_memory_are_refused(wants: bool) -> None:
    """The result would have undefined elements."""
    a, b = drawn(3, 4).requires_grad_(wants), torch.empty(4, 5, device="meta", dtype=f64)
    for call, given in (
        (tt.matmul, (a, b)),
        (tt.matmul, (b.mT, a.mT)),
        (partial(tt.matmul, activation="silu"), (a, b)),
        (tt.linear, (a, a, b[0, :3])),
        (partial(tt.einsum, "ij,jk->ik"), (a, b)),
        (tt.gemm_chain, (a, a.mT, b[:3])),
    ):
        with pytest.raises(LaunchError, match=r"on the device meta have no elements, .*one device"):
            call(*given)


def test_shapes_that_do_not_fit_are_refused_alike_in_training() -> None:
    """If the kernel stores the sums too, the operation makes their tensor before the kernel's checks."""
    for wants in (False, True):
        a, b = drawn(3, 4).requires_grad_(wants), drawn(5, 6)
        for activation in (None, "silu"):
            with pytest.raises(LaunchError, match=r"matmul of shapes \(3, 4\) and \(5, 6\): K is 4 in a"):
                tt.matmul(a, b, activation=activation)
            with pytest.raises(LaunchError, match=r"batch dimensions \(2,\) and \(3,\) do not broadcast"):
                tt.matmul(a.expand(2, 3, 4), b[:4].expand(3, 4, 6), activation=activation)


class Seen(TorchDispatchMode):
    """The names of the operations that PyTorch's dispatcher sees."""

    def __init__(self) -> None:
        super().__init__()
        self.names = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("wants", [False, True])
def test_a_mode_sees_calls_that_else_go_around_the_dispatcher(wants: bool) -> None:
    x, weight, bias = drawn(3, 4), drawn(5, 4), drawn(5)
    bias.requires_grad_(wants)
    like = tt.linear(x, weight, bias, activation="relu")
    with Seen() as seen:
        found = tt.linear(x, weight, bias, activation="relu")
    assert "tilewright.matmul.default" in seen.names
    torch.testing.assert_close(found, like, rtol=0, atol=0)
    torch.testing.assert_close(found, torch.relu(x @ weight.mT + bias), rtol=1e-12, atol=1e-12)


def test_arguments_of_the_kernels_alone_are_refused() -> None:
    """A call that goes around the dispatcher takes no more than the operation does."""
    a = drawn(3, 3)
    for words in ({"out": a.clone()}, {"target": "reference"}, {"schedule": None}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            tt.matmul(a, a, **words)
    with pytest.raises(TypeError, match="positional"):
        tt.matmul(a, a, a.clone())  # type: ignore[misc]


@pytest.mark.parametrize("lead", [(6,), (2, 3)])
def test_gradients_of_weights_have_the_strides_of_the_weights(lead: tuple[int, ...]) -> None:
    """Else PyTorch copies them."""
    weight = drawn(5, 4).requires_grad_()
    tt.linear(drawn(*lead, 4).requires_grad_(), weight).sum().backward()
    assert weight.grad is not None
    assert weight.grad.is_contiguous()
    held, x = drawn(4, 5).requires_grad_(), drawn(*lead, 4)
    turned = torch.autograd.grad(tt.matmul(x, held.mT.contiguous().mT).square().sum(), held)[0]
    plain = torch.autograd.grad(tt.matmul(x, held).square().sum(), held)[0]
    torch.testing.assert_close(turned, plain, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_sums_of_columns(dtype: torch.dtype) -> None:
    """Of matrices of any strides; a sum of n numbers has n - 1 roundings, and one more of the result."""
    wide, unit = drawn(38, 29, 3), torch.finfo(torch.float64 if dtype == f64 else torch.float32).eps / 2
    for rows in (
        wide,
        wide[:, ::2],
        wide.mT,
        wide[:, :, 0],
        wide[:0, :, 0],
        wide[0, 0],
        wide[:1].expand(5, -1, -1),
    ):
        given = rows.to(dtype)
        found, exact, sizes = (
            column_sums(given),
            *(one.double().reshape(-1, one.shape[-1]).sum(0) for one in (given, given.abs())),
        )
        count = max(given.numel() // given.shape[-1], 1)
        bound = count * 1.01 * unit * sizes + torch.finfo(dtype).eps / 2 * exact.abs() * 1.01
        assert found.dtype == dtype
        assert bool(((found.double() - exact).abs() <= bound).all())
    held = drawn(3, 2).requires_grad_()
    torch.testing.assert_close(
        torch.autograd.grad(column_sums(held)[0], held)[0][:, 0], torch.ones(3, dtype=f64)
    )


def test_operands_that_are_no_tensors_are_refused() -> None:
    """The message names the argument."""
    a = drawn(3, 3)
    with pytest.raises(LaunchError, match=r"matmul: a is a NoneType; nearest legal choice: a tensor"):
        tt.matmul(None, a)  # type: ignore[arg-type]
    with pytest.raises(LaunchError, match=r"linear: weight is a list; .*: torch\.as_tensor"):
        tt.linear(a, [[1.0]])  # type: ignore[arg-type]


DROPPED_IN_A_GRAPH = """
import torch
import tilewright.torch as tt

a, b = torch.arange(12.0).view(3, 4), torch.arange(20.0).view(4, 5)
call = lambda seed: tt.matmul(a, b, dropout=0.5, seed=seed)
found = [torch.compile(call, fullgraph=True, backend="eager")(seed) for seed in (3, 4)]
assert not torch.equal(*found)
assert all(torch.equal(one, call(seed)) for one, seed in zip(found, (3, 4)))
"""


def test_a_graph_may_be_the_first_to_drop_elements() -> None:
    """In a new process the checks of dropout have read no annotations yet, which a graph cannot do."""
    words = [sys.executable, "-c", DROPPED_IN_A_GRAPH]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


IN_INDUCTOR = """
import sys, torch
import tilewright.torch as tt
from tilewright.ops import matmul as ops
from torch._dynamo.utils import counters

arrays, made = sys.argv[1:]
x, w, v, seed = torch.load(arrays)
called, own = set(), ops.matmul

def watched(a, b, out):
    called.add((tuple(a.shape), tuple(b.shape)))
    out.view(-1).view(torch.uint8).fill_(255)
    return own(a, b, out)

ops.matmul = watched
options = {**tt.inductor_options(), "max_autotune_gemm_backends": "TRITON"}
compiled = torch.compile(lambda x, w, v: (x @ w).abs() @ v.mT, fullgraph=True, options=options)
for one in (x, w, v):
    one.requires_grad_(seed.is_floating_point())
y = compiled(x, w, v)
grads = torch.autograd.grad(y, (x, w, v), seed) if y.requires_grad else ()
found = [one.detach() for one in (y, *grads)]
torch.save((found, called, counters["inductor"]["fxgraph_cache_hit"]), made)
"""


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.int64])
def test_inductor_calls_matmul_for_products_of_matrices(kind: torch.dtype, tmp_path: Path) -> None:
    """Without choices of its own, Inductor takes it, for gradients too; a second process finds the graph."""
    shapes = ((37, 70), (70, 90), (33, 90), (37, 33))
    x, w, v, seed = ((4 * drawn(*shape)).to(kind) for shape in shapes)
    torch.save((x, w, v, seed), tmp_path / "arrays.pt")
    own = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "cache")}
    expected = [(x.double() @ w.double()).abs() @ v.double().mT]
    called = {((37, 70), (70, 90)), ((37, 90), (90, 33))}
    if kind.is_floating_point:
        exact = [one.double().requires_grad_() for one in (x, w, v)]
        y = (exact[0] @ exact[1]).abs() @ exact[2].mT
        expected += torch.autograd.grad(y, exact, seed.double())
        called |= {((37, 33), (33, 90)), ((70, 37), (37, 90)), ((37, 90), (90, 70))}
    for hits in (0, 1):
        words = [sys.executable, "-c", IN_INDUCTOR, str(tmp_path / "arrays.pt"), str(tmp_path / "made.pt")]
        done = subprocess.run(words, env=os.environ | own, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        found, seen, cached = torch.load(tmp_path / "made.pt")
        assert called <= seen
        assert bool(cached) == bool(hits)
        for one, other in zip(found, expected, strict=True):
            # Sums of at most 90 products of numbers below 16, twice: relative to the largest result.
            bound = 200 * torch.finfo(kind).eps if kind.is_floating_point else 0.0
            atol = bound * other.abs().max().item()
            torch.testing.assert_close(one.double(), other, rtol=bound, atol=atol)


def test_dtypes_that_matmul_lacks_are_computed_by_pytorch_in_inductor() -> None:
    a, b = torch.arange(12).view(3, 4), torch.arange(20).view(4, 5)
    for kind in (torch.int64, torch.int16, torch.uint8, torch.int8):
        x, y = a.to(kind), b.to(kind)
        assert torch.equal(tilewright_mm(x, y, out=torch.empty(3, 5, dtype=kind)), x @ y)
