"""PyTorch's own checks: `opcheck`, graphs without breaks, and its samples of functions that we replace."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from tests.torch.test_products import drawn
from torch._subclasses.fake_tensor import FakeTensorMode

import tilewright.torch as tt
from tilewright.errors import LaunchError, TilewrightError
from tilewright.torch import attending, contractions, layers, products
from tilewright.torch.registry import Operation

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it imports all packages that it finds, among them numba
    from torch.testing._internal.common_methods_invocations import op_db

f64, c64 = torch.float64, torch.complex64

MATRICES = (drawn(3, 4), drawn(4, 5))
TERMS = (drawn(3, 1), drawn(5), drawn(3, 5), drawn(5))

QKV = [drawn(2, 5, 8, seed=at).float() for at in range(3)]

CALLS: dict[str, tuple[Operation, tuple[Any, ...]]] = {
    "matmul": (products.MATMUL, (*MATRICES, *TERMS, 0.5, 2.0, "gelu", None, "exact", None)),
    "matmul, plain": (products.MATMUL, (*MATRICES, *(None,) * 4, 1.0, None, "relu", None, "exact", None)),
    "matmul_and_sums": (
        products.MATMUL_AND_SUMS,
        (*MATRICES, *TERMS[:2], drawn(3, 5, seed=2), TERMS[3], 0.5, 2.0, "silu", None, "exact", None),
    ),
    "dropout": (products.DROPOUT, (drawn(3, 4), 0.5, 3, 1)),
    "column_sums": (products.COLUMN_SUMS, (drawn(3, 4),)),
    "gate_gradients": (products.GATES, (*(drawn(3, 5, seed=at) for at in range(3)), "gelu")),
    "complex_matmul": (
        contractions.COMPLEX_MATMUL,
        (drawn(3, 4, dtype=c64), drawn(4, 5, dtype=c64), None, 1j, None, True, False, "exact", None),
    ),
    "einsum": (contractions.EINSUM, ("ij,jk->ki", *MATRICES, 2.0, False, False, "exact", None)),
    "attention": (
        attending.ATTENTION,
        (*QKV, None, drawn(2).float(), *(None,) * 4, True, 0, True, None, None, 0.5, 3, 1, None),
    ),
    "attention_backward": (
        attending.ATTENTION_BACKWARD,
        (
            *(*QKV, QKV[0], drawn(2, 5).float(), QKV[1], None, drawn(2).float(), None, None),
            *(False, True, True, 0, False, None, None, 0.0, 0, 0, None),
        ),
    ),
    "gemm_chain": (layers.GEMM_CHAIN, (*MATRICES, drawn(5, 2), None, None, "relu", "exact")),
    "two_layers": (layers.TWO_LAYERS, (*MATRICES, drawn(5, 2), drawn(5), drawn(2), "gelu", "exact")),
    "gated_matmul": (layers.GATED_MATMUL, (*MATRICES, drawn(4, 5, seed=1), None, None, "silu", "exact")),
    "grouped_matmul": (
        layers.GROUPED_MATMUL,
        (drawn(6, 4), drawn(2, 4, 5), torch.tensor([2, 6]), None, None),
    ),
    "grouped_gradient": (layers.GROUPED_GRADIENT, (drawn(6, 4), drawn(6, 5), torch.tensor([2, 6]))),
    "reduced_matmul": (
        layers.REDUCED_MATMUL,
        (*MATRICES, drawn(5), "logsumexp", -1, 0.5, "gelu", "exact"),
    ),
    "im2col": (contractions.IM2COL, (drawn(2, 3, 4, 2), [2, 2], [1, 2], [1, 1], [0, 1])),
    "col2im": (contractions.COL2IM, (drawn(4, 4), [1, 3, 3, 1], [2, 2], [1, 1], [1, 1], [0, 0])),
}


def with_gradients(args: tuple[Any, ...]) -> tuple[Any, ...]:
    def wanted(one: Any) -> bool:
        return isinstance(one, torch.Tensor) and (one.is_floating_point() or one.is_complex())

    return tuple(one.clone().requires_grad_() if wanted(one) else one for one in args)


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # the check reads that of the factor of two gates
@pytest.mark.parametrize("name", CALLS)
def test_opcheck(name: str) -> None:
    operation, args = CALLS[name]
    torch.library.opcheck(operation.overload, args)
    if not operation.refusal:
        torch.library.opcheck(operation.overload, with_gradients(args))


def test_opcheck_of_quantised_numbers() -> None:
    codes = torch.ones(32, 8, dtype=torch.int8)
    args = (drawn(3, 32).half(), codes, None, drawn(8).float(), *(None,) * 4, 1.0, None, None, None, None)
    torch.library.opcheck(layers.SCALED_MM.overload, args)
    torch.library.opcheck(layers.SCALED_MM.overload, (args[0].requires_grad_(), *args[1:]))


@pytest.mark.parametrize(
    ("call", "dtypes"),
    [
        (tt.matmul, (torch.uint8, torch.int16, torch.int64, torch.bool, torch.int8, torch.float8_e5m2)),
        (lambda a, b: tt.gated_matmul(a, b, b), (torch.int8, torch.float8_e4m3fn, torch.float16, f64)),
        (tt.scaled_mm, (torch.int8, torch.float8_e4m3fn, torch.bfloat16)),
    ],
)
def test_a_graph_knows_the_dtype_of_the_result(call: Any, dtypes: tuple[torch.dtype, ...]) -> None:
    for dtype in dtypes:
        a, b = torch.ones(3, 32).to(dtype), torch.ones(8, 32).to(dtype).mT
        with FakeTensorMode() as mode:
            found = call(mode.from_tensor(a), mode.from_tensor(b))
        made = call(a, b)
        assert (found.dtype, found.shape, found.stride()) == (made.dtype, made.shape, made.stride())


def test_every_operation_is_checked() -> None:
    made = {
        one.name
        for room in (attending, contractions, products, layers)
        for one in vars(room).values()
        if isinstance(one, Operation)
    }
    assert made == {operation.name for operation, _ in CALLS.values()} | {"scaled_mm"}


GRAPHS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "linear": (
        lambda x, w: tt.linear(x, w, activation="gelu", residual=x[:, :1]),
        lambda x, w: torch.nn.functional.gelu(x @ w.mT) + x[:, :1],
    ),
    "chain": (
        lambda x, w: tt.gemm_chain(x, w.mT, w, activation="relu"),
        lambda x, w: torch.relu(x @ w.mT) @ w,
    ),
    "einsum": (lambda x, w: tt.einsum("ij,kj->ki", x, w), lambda x, w: w @ x.mT),
    "gates": (
        lambda x, w: tt.gated_matmul(x, w.mT, w.mT, activation="silu"),
        lambda x, w: torch.nn.functional.silu(x @ w.mT) * (x @ w.mT),
    ),
    "two layers": (
        lambda x, w: layers.two_layers(x, w.mT, w, None, None, "gelu"),
        lambda x, w: torch.nn.functional.gelu(x @ w.mT) @ w,
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_a_compiled_graph_has_no_break(name: str) -> None:
    """One graph serves all extents, forwards and backwards."""
    call, like = GRAPHS[name]
    graphs = list[torch.fx.GraphModule]()

    def counting(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph

    for backend in (counting, "aot_eager"):
        torch._dynamo.reset()
        with torch._dynamo.config.patch(error_on_recompile=True):
            compiled = torch.compile(call, fullgraph=True, dynamic=True, backend=backend)
            for rows in (5, 9, 6):
                x, w = drawn(rows, 4).requires_grad_(), drawn(7, 4).requires_grad_()
                y, exact = compiled(x, w), like(x, w)
                seed = drawn(*exact.shape, seed=1)
                both = [torch.autograd.grad(one, (x, w), seed) for one in (y, exact)]
                for found, expected in zip((y, *both[0]), (exact, *both[1]), strict=True):
                    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    assert len(graphs) == 1
    assert any("tilewright" in str(node.target) for node in graphs[0].graph.nodes)


def test_an_exported_program_has_the_operation() -> None:
    class Layer(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            return tt.linear(x, w, activation="relu")

    x, w = drawn(3, 4), drawn(5, 4)
    exported = torch.export.export(Layer(), (x, w))
    torch.testing.assert_close(exported.module()(x, w), torch.relu(x @ w.mT), rtol=1e-12, atol=1e-12)
    assert "tilewright.matmul" in str(exported.graph)


# ---------------------------------------------------------------- PyTorch's samples


def _addmm(c: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> torch.Tensor:
    # With a factor of 0 PyTorch does not read what it multiplies, and nor do we.
    return tt.matmul(a, b, c=c, alpha=alpha, beta=beta)


def _einsum(operands: Any, equation: str) -> torch.Tensor:
    return tt.einsum(equation, *operands)


def _attention(q: Any, k: Any, v: Any, attn_mask: Any = None, **words: Any) -> torch.Tensor:
    assert words.pop("dropout_p", 0.0) == 0.0
    words.pop("enable_gqa", None)  # ours shares heads whenever there are fewer
    q = q.expand(*k.shape[: k.dim() - q.dim()], *q.shape)
    bias = attn_mask
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros(attn_mask.shape, dtype=q.dtype).masked_fill(~attn_mask, -math.inf)
    return tt.attention(q, k, v, bias=bias, causal=words.pop("is_causal", False), **words)


OURS: dict[str, Callable[..., Any]] = {
    "matmul": tt.matmul,
    "mm": tt.matmul,
    "bmm": tt.matmul,
    "addmm": _addmm,
    "baddbmm": _addmm,
    "einsum": _einsum,
    "nn.functional.linear": tt.linear,
    "nn.functional.scaled_dot_product_attention": _attention,
}

REFUSED = {
    "einsum": "ours multiplies two operands, and sums no axes at `...`",
    "nn.functional.scaled_dot_product_attention": "PyTorch draws other numbers for dropout",
}
"""Why the library refuses some samples of a function."""


def is_refused(name: str, sample: Any) -> bool:
    """Return whether the library refuses a sample."""
    if name == "einsum":
        return len(sample.input) != 2 or (
            "..." not in sample.args[0].rpartition("->")[2] and "..." in sample.args[0]
        )
    return bool(sample.kwargs.get("dropout_p", 0.0))


def compare(
    sample: Any, call: Callable[..., Any], like: Callable[..., Any], *, tolerance: float
) -> list[Any]:
    """Compare results and gradients of a sample; return the tensors that want gradients."""
    leaves = torch.utils._pytree.tree_leaves((sample.input, sample.args, sample.kwargs))
    arrays = [one for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
    found, expected = (one(sample.input, *sample.args, **sample.kwargs) for one in (call, like))
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)
    if arrays:
        seed = drawn(*expected.shape, dtype=expected.dtype)
        both = [torch.autograd.grad(y, arrays, seed, allow_unused=True) for y in (found, expected)]
        for one, other in zip(*both, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
    return arrays


@pytest.mark.parametrize("name", OURS)
def test_samples_of_pytorch(name: str) -> None:
    """Every sample in f64, attention in f32: results, gradients, and `gradcheck` of a few."""
    is_attention = name.endswith("attention")
    dtype, tolerance = (torch.float32, 1e-4) if is_attention else (f64, 1e-10)
    call = OURS[name]
    info = next(one for one in op_db if one.name == name and not one.variant_test_name)
    computed, refused, checked, failed = 0, 0, 0, list[str]()
    for sample in info.sample_inputs("cpu", dtype, requires_grad=True):
        if is_refused(name, sample):
            refused += 1
            continue
        computed += 1
        try:
            arrays = compare(sample, call, info.op, tolerance=tolerance)
        except (TilewrightError, AssertionError, RuntimeError) as error:
            failed.append(f"{sample.summary()}: {type(error).__name__}: {error}")
            continue
        if arrays and not is_attention and checked < 2 and all(0 < one.numel() < 60 for one in arrays):
            checked += 1
            again = partial(lambda sample, *_: call(sample.input, *sample.args, **sample.kwargs), sample)
            assert torch.autograd.gradcheck(again, arrays)
    assert not failed, "\n".join(failed)
    assert computed >= (1 if name in ("mm", "bmm") else 3)
    assert (refused > 0) == (name in REFUSED)


def test_what_is_refused_is_refused() -> None:
    x = drawn(3, 3)
    with pytest.raises(LaunchError, match="operands; einsum multiplies two"):
        tt.einsum("ij,jk,kl->il", x, x)
    with pytest.raises(TilewrightError):
        tt.attention(x, x, x)
