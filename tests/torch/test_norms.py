"""Norms of rows: results and gradients against f64, modules, and what `convert` replaces."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import tilewright.torch as tt
from tilewright.errors import LaunchError
from tilewright.torch import kernels

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = ((5, 37), (2, 3, 700), (4, 1100), (1, 2, 3))


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules call kernels for all sizes, on processors too."""
    monkeypatch.setattr(kernels, "SERVED_DEVICES", ("cpu", "cuda"))
    monkeypatch.setattr(kernels, "LEAST_ELEMENTS", 0)


def given_of(shape: tuple[int, ...], dtype: torch.dtype, *, dims: int = 1) -> list[torch.Tensor]:
    """Return x, weight, bias, and the gradient of the result."""
    numbers = torch.Generator("cpu").manual_seed(sum(shape))
    shapes = shape, shape[-dims:], shape[-dims:], shape
    made = [torch.randn(one, generator=numbers, device="cpu") + 0.3 for one in shapes]
    device = torch.get_default_device()
    return [one.to(device, dtype) for one in made]


def rms(x: torch.Tensor, weight: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    """Return the norms; `torch.nn.functional.rms_norm` computes f64 in f32 on some devices."""
    dims = tuple(range(-weight.ndim, 0))
    return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps) * weight


def near(found: torch.Tensor, exact: torch.Tensor, terms: int) -> None:
    """Compare: the rounding of the result and of its factors, and sums of ``terms`` numbers in f32."""
    unit = torch.finfo(found.dtype).eps
    room = 2 * unit * exact.abs() + (terms + 64) * 2.0**-24 * (exact.abs() + exact.abs().max() + 1)
    assert ((found.double() - exact).abs() <= room).all(), (found.double() - exact).abs().max()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", ["layer_norm", "layer_norm without bias", "rms_norm"])
def test_results_and_gradients(name: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, weight, bias, dy = given_of(shape, dtype)
    args = [x, weight, bias] if name == "layer_norm" else [x, weight]
    args = [one.requires_grad_() for one in args]
    wide = [one.detach().double().requires_grad_() for one in args]
    if name == "rms_norm":
        y, exact = tt.rms_norm(*args), rms(*wide)
    else:
        y, exact = tt.layer_norm(*args), functional.layer_norm(wide[0], shape[-1:], *wide[1:])
    assert y.dtype == dtype
    near(y, exact, shape[-1])
    found = torch.autograd.grad(y, args, dy)
    for one, other in zip(found, torch.autograd.grad(exact, wide, dy.double()), strict=True):
        assert one.dtype == dtype
        near(one, other, shape[-1] + x.numel() // shape[-1])


def test_several_dimensions_and_strides() -> None:
    x, weight, bias, _ = given_of((3, 4, 6, 10), torch.float32, dims=2)
    near(tt.layer_norm(x, weight, bias), functional.layer_norm(x, (6, 10), weight, bias).double(), 60)
    turned = x.transpose(0, 1)
    near(tt.rms_norm(turned, weight), rms(turned.double(), weight.double()), 60)
    wide = torch.full((5, 80), float("nan"))
    wide[:, 8:45] = given_of((5, 37), torch.float32)[0]
    near(
        tt.rms_norm(wide[:, 8:45], weight.reshape(-1)[:37]),
        rms(wide[:, 8:45].double(), weight.reshape(-1)[:37].double()),
        37,
    )


def test_no_elements() -> None:
    weight = torch.ones(8, requires_grad=True)
    for call in (tt.layer_norm, tt.rms_norm):
        y = call(torch.ones(0, 8, requires_grad=True), weight)
        assert y.shape == (0, 8)
        y.sum().backward()
        assert call(torch.ones(3, 0), torch.ones(0)).shape == (3, 0)


@pytest.mark.parametrize("wanted", range(1, 8))
def test_frozen_weights(wanted: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every choice of gradients; a kernel adds columns only if a weight or bias wants its gradient."""
    x, weight, bias, _ = given_of((5, 37), torch.float32)
    if not wanted & 6:
        monkeypatch.setattr(kernels, "OF_COLUMNS_BY_MEAN", None)
        monkeypatch.setattr(kernels, "OF_COLUMNS_BY_SIZE", None)
    args = [one.requires_grad_(bool(wanted >> at & 1)) for at, one in enumerate((x, weight, bias))]
    wide = [one.detach().double().requires_grad_(one.requires_grad) for one in args]
    pairs = [(tt.layer_norm(*args), functional.layer_norm(wide[0], (37,), *wide[1:]))]
    if wanted & 3:
        pairs.append((tt.rms_norm(*args[:2]), rms(*wide[:2])))
    for y, exact in pairs:
        y.sum().backward()
        exact.sum().backward()
    for one, other in zip(args, wide, strict=True):
        assert (one.grad is None) == (other.grad is None) == (not one.requires_grad)
        if one.grad is not None:
            assert other.grad is not None
            near(one.grad, other.grad, 42)


def test_second_derivatives() -> None:
    """Those of PyTorch in f64, by the gradient of a sum of gradients."""
    x, weight, bias, dy = (one.requires_grad_() for one in given_of((3, 20), torch.float32))
    calls: Any = (
        (
            lambda *a: tt.layer_norm(*a),
            lambda x, w, b: functional.layer_norm(x, (20,), w, b),
            (x, weight, bias),
        ),
        (lambda *a: tt.rms_norm(*a), rms, (x, weight)),
    )
    for ours, exact, args in calls:
        found = []
        for call, given in ((ours, args), (exact, [one.detach().double().requires_grad_() for one in args])):
            own = dy.detach().to(given[0].dtype).requires_grad_()
            first = torch.autograd.grad(call(*given), given, own, create_graph=True)
            total = sum((one.square().sum() for one in first), torch.zeros(()))
            found.append(torch.autograd.grad(total, [*given[:2], own]))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), other, rtol=2e-3, atol=2e-4)


def test_the_operations_fit_pytorch() -> None:
    x, weight, bias, dy = given_of((4, 24), torch.float32)
    scale = torch.rand(4) + 0.5
    for one, args in (
        (kernels.BY_MEAN, (x, weight, bias, 1e-5)),
        (kernels.BY_SIZE, (x, weight, 1e-6)),
        (kernels.OF_ROWS_BY_MEAN, (dy, x, weight, scale, scale)),
        (kernels.OF_ROWS_BY_SIZE, (dy, x, weight, scale)),
        (kernels.OF_COLUMNS_BY_MEAN, (dy, x, scale, scale)),
        (kernels.OF_COLUMNS_BY_SIZE, (dy, x, scale)),
    ):
        torch.library.opcheck(one.operation.overload, args)


def test_compiled_graphs_have_no_break() -> None:
    x, weight, bias, _ = given_of((6, 24), torch.float32)

    def both(x: torch.Tensor) -> torch.Tensor:
        return tt.rms_norm(tt.layer_norm(x, weight, bias), weight)

    compiled = torch.compile(both, fullgraph=True, dynamic=True, backend="aot_eager")
    for rows in (6, 5, 2):
        torch.testing.assert_close(compiled(x[:rows]), both(x[:rows]))
    model = nn.Sequential(tt.LayerNorm(24), tt.RMSNorm(24))
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), model(x))


def test_errors() -> None:
    x, weight = torch.ones(3, 8), torch.ones(8)
    for call, text in (
        (
            lambda: tt.layer_norm(x, weight.half()),
            r"x is torch.float32, weight torch.float16.*weight.to\(x.dtype",
        ),
        (
            lambda: tt.layer_norm(x, weight, torch.ones(4)),
            r"bias of shape \(4,\) for x of shape \(3, 8\).*\(8,\)",
        ),
        (lambda: tt.rms_norm(x.double(), weight.double()), r"torch.float64.*torch.nn.functional.rms_norm"),
        (lambda: tt.rms_norm(x, torch.ones(4)), r"weight of shape \(4,\) for x of shape \(3, 8\)"),
        (lambda: tt.rms_norm(x, torch.ones(())), r"weight of shape \(\)"),
        (lambda: tt.rms_norm(x[0, 0], weight), r"x of shape \(\); .*: x of shape \(8,\)"),
        (
            lambda: tt.layer_norm(x, None),
            r"layer_norm: weight is a NoneType; .*torch.nn.functional.layer_norm",
        ),
        (lambda: tt.rms_norm([[1.0]], weight), r"rms_norm: x is a list; .*torch.as_tensor\(x\)"),
        (lambda: tt.layer_norm(x, weight, 1.0), r"bias is a float; .*torch.as_tensor\(bias\)"),
        (lambda: kernels.BY_SIZE(x, weight, 1e-6, eps=1e-6), "eps is .* twice.*: no argument by name"),
    ):
        with pytest.raises(LaunchError, match=f"(?s){text}"):
            call()


# ---------------------------------------------------------------- modules


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_modules(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, gradients and state dicts; `convert` keeps parameters, hooks, and the attributes of repr."""
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(24, 40), kind(40), nn.Linear(40, 8))
    nn.init.normal_(plain[1].weight)
    seen = []
    plain[1].register_forward_hook(lambda layer, args, y: seen.append(type(layer)))
    own = copy.deepcopy(plain)
    assert tt.convert(own)["1"] == kind.__name__
    assert repr(own[1]) == repr(plain[1])
    x, grads = torch.randn(6, 24), []
    for model in (own, plain):
        model(x).square().sum().backward()
        grads.append([one.grad for one in model.parameters()])
    assert len(seen) == 2
    torch.testing.assert_close(own(x), plain(x), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(*grads, rtol=1e-3, atol=1e-3)
    own[1]._forward_hooks.clear()  # pickle takes no function of a test
    again = pickle.loads(pickle.dumps(copy.deepcopy(own[1])))
    again.load_state_dict(plain[1].state_dict())
    monkeypatch.setattr(functional, plain[1].__class__.__name__.replace("Norm", "_norm").lower(), None)
    torch.testing.assert_close(again(plain[0](x)), own[1](own[0](x)))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_eps_of_small_rows(dtype: torch.dtype) -> None:
    """``eps`` counts in rows of small numbers; None is PyTorch's default."""
    x = (torch.randn(5, 64) * 2e-4).to(dtype)
    for own, plain in ((tt.RMSNorm(64), nn.RMSNorm(64)), (tt.LayerNorm(64), nn.LayerNorm(64))):
        found, expected = own.to(dtype)(x), plain.to(dtype)(x)
        torch.testing.assert_close(found, expected, rtol=4 * torch.finfo(dtype).eps, atol=1e-5)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_what_pytorch_computes() -> None:
    """Other dtypes, no weight, autocast, transforms and proxies give PyTorch's own results."""
    x = torch.randn(5, 16)
    for own, plain in (
        (tt.LayerNorm(16), nn.LayerNorm(16)),
        (tt.LayerNorm(16, bias=False), nn.LayerNorm(16, bias=False)),
        (tt.RMSNorm(16), nn.RMSNorm(16)),
        (tt.RMSNorm(16, elementwise_affine=False), nn.RMSNorm(16, elementwise_affine=False)),
    ):
        torch.testing.assert_close(own.double()(x.double()), plain.double()(x.double()))
        own, plain = own.float(), plain.float()
        torch.testing.assert_close(own(x), plain(x))
        with torch.autocast(x.device.type, torch.bfloat16):
            for given in (x, x.bfloat16()):
                assert own(given).dtype == plain(given).dtype
        torch.testing.assert_close(torch.func.vmap(own)(x), plain(x))
        graph = torch.fx.symbolic_trace(nn.Sequential(own))
        torch.testing.assert_close(graph(x), plain(x))


@pytest.mark.usefixtures("everywhere")
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "error::torch.jit.TracerWarning")
def test_nested_tensors_tangents_and_traces() -> None:
    """PyTorch's norms take nested tensors and tangents, and traces of them record no comparison of shapes."""
    for layer in (tt.LayerNorm(16), tt.RMSNorm(16)):
        x = torch.randn(5, 16)
        if isinstance(layer, nn.LayerNorm):  # PyTorch's RMSNorm takes no nested tensors of this layout
            nested = torch.nested.nested_tensor([x[:3], x[3:]])
            for one, rows in zip(layer(nested).unbind(), (x[:3], x[3:]), strict=True):
                torch.testing.assert_close(one, layer(rows))
        with torch.autograd.forward_ad.dual_level():
            y = layer(torch.autograd.forward_ad.make_dual(x, x))
            assert torch.autograd.forward_ad.unpack_dual(y).tangent.shape == (5, 16)
        traced = torch.jit.trace(layer, torch.randn(2, 16))
        torch.testing.assert_close(traced(x), layer(x))


def test_small_norms_and_those_of_processors_are_pytorchs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "layer_norm", None)
    monkeypatch.setattr(kernels, "rms_norm", None)
    x = torch.randn(5, 16)
    tt.RMSNorm(16)(tt.LayerNorm(16)(x))


def test_norms_are_left_out_by_only() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    done = tt.convert(model, only=lambda name, layer: isinstance(layer, nn.Linear))
    assert (dict(done), done.left) == ({"0": "Linear"}, {"1": "left out by only="})
    assert tt.convert(model).left == {"0": "it is a module of the library"}


def test_norms_without_weights_are_replaced() -> None:
    """`convert` failed if an RMSNorm had no weight."""
    plain = nn.Sequential(
        nn.LayerNorm(16, elementwise_affine=False), nn.RMSNorm(16, elementwise_affine=False), nn.RMSNorm(16)
    )
    own = copy.deepcopy(plain)
    assert [*tt.convert(own).values()] == ["LayerNorm", "RMSNorm", "RMSNorm"]
    assert repr(own) == repr(plain)
    x = torch.randn(5, 16)
    assert torch.equal(own(x), plain(x))


def test_norms_stay_norms_in_quantised_models() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16))
    assert tt.convert(model, weights="i8") == {"0": "QuantizedLinear", "1": "LayerNorm"}


def test_norms_of_transformers_that_are_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Norms with a gate took one tensor after `convert`, or `convert` failed; a hook saw its numbers."""
    pytest.importorskip("transformers")
    from transformers.models.llama.modeling_llama import LlamaRMSNorm
    from transformers.models.mamba2.modeling_mamba2 import MambaRMSNormGated
    from transformers.models.qwen3_next.modeling_qwen3_next import Qwen3NextRMSNormGated

    class WithoutRoot(LlamaRMSNorm):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.weight * x / (x.square().mean(-1, keepdim=True).sqrt() + self.variance_epsilon)

    monkeypatch.setattr(WithoutRoot, "__module__", "transformers.models.other")
    seen = []
    others = MambaRMSNormGated(16, 16), Qwen3NextRMSNormGated(16), WithoutRoot(16)
    model = nn.ModuleList([LlamaRMSNorm(16), *others])
    model[0].register_forward_hook(lambda layer, args, y: seen.append(y))
    nn.init.normal_(model[0].weight)
    x, gate = torch.randn(5, 16), torch.randn(5, 16)
    exact = model[0](x), model[1](x, gate), model[2](x, gate), model[3](x)
    done = tt.convert(model)
    assert (dict(done), len(seen)) == ({"0": "RMSNorm"}, 1)
    assert [why.split()[-1] for why in done.left.values()] == [type(one).__name__ for one in others]
    torch.testing.assert_close((model[0](x), model[1](x, gate), model[2](x, gate), model[3](x)), exact)
