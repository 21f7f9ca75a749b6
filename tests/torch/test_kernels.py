"""A user's kernel as an operation of PyTorch, with its author's gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.torch.test_products import drawn

import tilewright as tw
import tilewright.torch as tt
from tilewright.errors import LaunchError, SignatureError


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def linear(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = tw.silu(acc + bias[n])


@tw.kernel(A="M K", B="N K", C="M N", D="N M", alpha=tw.f32)
def both(A, B, C, D, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = alpha * acc
        D[n, m] = acc.T


@tw.kernel(X="N", Y="N")
def doubled(X, Y, *, tile):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((32,)))
    tw.copy(x + x, Y.tile((tile,), (n,)))


@tw.kernel(X="N", Y="N")
def doubled_2(X, Y, *, tile):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((32,)))
    tw.copy(x + x + x, Y.tile((tile,), (n,)))


def test_operations_of_one_name() -> None:
    """A second operation of the same name gets a number; another kernel may have that name already."""
    first, second = (tt.op(doubled.bind(tile=64), results=["Y"]) for _ in range(2))
    other = tt.op(doubled_2.bind(tile=64), results=["Y"])
    assert len({one.operation.name for one in (first, second, other)}) == 3
    x = drawn(70).float()
    torch.testing.assert_close(other(x), x + x + x)
    torch.testing.assert_close(second(x), x + x)


def test_a_kernel_with_a_gradient() -> None:
    op = tt.op(linear)

    @op.backward
    def gradient(dC, A, B, bias):
        sums = tt.matmul(A, B.mT, bias=bias)
        d = dC * torch.sigmoid(sums) * (1 + sums * (1 - torch.sigmoid(sums)))
        return {"A": tt.matmul(d, B), "B": tt.matmul(d.mT, A), "bias": d.sum(0)}

    a, b, bias = (drawn(*shape).float() for shape in ((37, 20), (29, 20), (29,)))
    given = [one.clone().requires_grad_() for one in (a, b, bias)]
    dy = drawn(37, 29).float()
    y = op(*given)
    found = torch.autograd.grad(y, given, dy)
    exact = [one.double().requires_grad_() for one in (a, b, bias)]
    like = torch.nn.functional.silu(exact[0] @ exact[1].mT + exact[2])
    torch.testing.assert_close(y.double(), like, rtol=1e-5, atol=1e-5)
    for one, other in zip(found, torch.autograd.grad(like, exact, dy.double()), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)
    torch.library.opcheck(op.operation.overload, (a, b, bias))
    torch.library.opcheck(op.operation.overload, tuple(given))


def test_two_results_and_a_number_in_a_compiled_graph() -> None:
    op = tt.op(both)
    a, b = drawn(10, 5).float(), drawn(7, 5).float()

    def call(a: torch.Tensor, b: torch.Tensor) -> Any:
        return op(a, b, 3.0)

    compiled = torch.compile(call, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (10, 9, 4):
        c, d = compiled(a[:rows], b)
        torch.testing.assert_close(c, 3 * (a[:rows] @ b.mT), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(d, b @ a[:rows].mT, rtol=1e-5, atol=1e-5)
    torch.library.opcheck(op.operation.overload, (a, b, 3.0))


def test_an_explicit_kernel_and_dtypes() -> None:
    op = tt.op(doubled.bind(tile=64), results=("Y",))
    x = drawn(100).float()
    torch.testing.assert_close(op(x), 2 * x, rtol=0, atol=0)
    wide = tt.op(linear, dtypes={"C": torch.float32})
    y = wide(drawn(4, 8).half(), drawn(5, 8).half(), drawn(5).half())
    assert y.dtype == torch.float32


def refused(make: Callable[[], Any], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


def test_errors() -> None:
    @tw.kernel(X="N", Y="M")
    def lost(X, Y, *, tile):
        tw.copy(X.tile((tile,), (0,)), Y.tile((tile,), (0,)), threads=32)

    refused(lambda: tt.op(lost.bind(tile=4)), SignatureError, "results are not known")
    refused(lambda: tt.op(lost.bind(tile=4), results=["Y"]), SignatureError, "has the dimension M")
    refused(lambda: tt.op(lost.bind(tile=4), results=["Z"]), SignatureError, "no array Z")
    op = tt.op(linear)
    refused(lambda: op.backward(lambda dZ: {}), SignatureError, "a parameter dZ")
    a, b, bias = (drawn(*shape).float() for shape in ((4, 8), (5, 8), (5,)))
    refused(lambda: op(a.requires_grad_(), b, bias), LaunchError, "the kernel has no gradient")
    refused(lambda: op(a, b), LaunchError, r"takes 3 arguments, and was given 2; .*: A, B, bias")
    for other, kind in ((None, "NoneType"), (a.detach().numpy(), "ndarray"), ([1.0], "list"), (3, "int")):
        refused(lambda other=other: op(other, b, bias), LaunchError, f"A is a {kind}; .*: a tensor")
    op.backward(lambda dC: None)  # type: ignore[arg-type, return-value]
    refused(lambda: op(a, b, bias).sum().backward(), LaunchError, "returns a NoneType; .* dictionary")
    op.backward(lambda dC: {"D": dC})
    refused(lambda: op(a, b, bias).sum().backward(), LaunchError, "returns D")
