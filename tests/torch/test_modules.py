"""Modules, `convert`, and the training of a small language model, compared with PyTorch's own operations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import tilewright.torch as tt
from tilewright.errors import DTypeError, LaunchError

functional = nn.functional


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.attend: Any = functional.scaled_dot_product_attention

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.before(x)).unflatten(-1, (3, self.heads, -1)).movedim(-3, 0).transpose(-2, -3)
        out = self.attend(*parts.unbind(), is_causal=True)
        x = x + self.out(out.transpose(-2, -3).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Model(nn.Module):
    """A decoder as GPT-2's: tokens and places, blocks, and tied weights of the last layer."""

    def __init__(self, tokens: int = 50, width: int = 32, length: int = 24, depth: int = 2) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, 4) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        x = self.tokens(text) + self.places.weight[: text.shape[-1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def train(model: Model, steps: int) -> list[float]:
    """Train on a text whose next token follows from the last two, and return the losses."""
    numbers = torch.Generator("cpu").manual_seed(3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = list[float]()
    for _ in range(steps):
        text = torch.randint(50, (8, 25), generator=numbers, device="cpu").to(torch.get_default_device())
        for at in range(2, 25):
            text[:, at] = (text[:, at - 1] * 3 + text[:, at - 2]) % 50
        loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_a_model_learns_as_with_pytorch() -> None:
    torch.manual_seed(0)
    plain = Model()
    own = copy.deepcopy(plain)
    replaced = tt.convert(own)
    assert replaced["head"] == "Linear"
    assert sorted({*replaced.values()}) == ["LayerNorm", "Linear"]
    assert len(replaced) == 9 + 5
    assert own.head.weight is own.tokens.weight
    for block in own.blocks:
        block.attend = lambda q, k, v, is_causal: tt.attention(q, k, v, causal=is_causal)
    expected, found = train(plain, 50), train(own, 50)
    assert expected[-1] < expected[0] - 1
    # Roundings of f32 grow from step to step; the curves stay together.
    assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) < 2e-3
    assert max(abs(one - other) for one, other in zip(found[:5], expected[:5], strict=True)) < 2e-5


def test_convert_shares_parameters_and_lists_layers() -> None:
    class Special(nn.Linear):
        pass

    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared, Special(8, 4)), "c": nn.Linear(8, 6)})
    weight, names = shared.weight, list(model.state_dict())
    seen = list[str]()
    shared.register_forward_hook(lambda *_: seen.append("hook"))
    assert tt.convert(model, only=lambda name, _: name != "c") == {"a": "Linear", "b.0": "Linear"}
    assert model["a"] is model["b"][0]
    assert model["a"].weight is weight
    assert list(model.state_dict()) == names
    assert type(model["b"][1]) is Special
    assert type(model["c"]) is nn.Linear
    model["a"](torch.ones(2, 8))
    assert seen == ["hook"]
    assert tt.convert(model, weights="i4", group=4) == {"c": "QuantizedLinear"}
    assert tt.convert(model, weights="i4", group=3) == {}
    with pytest.raises(LaunchError, match="i4"):
        tt.convert(model, weights="i5")


def test_linear_and_gates() -> None:
    plain, own = nn.Linear(20, 12), tt.Linear(20, 12, activation="relu")
    own.load_state_dict(plain.state_dict())
    plain.load_state_dict(own.state_dict())
    x = torch.randn(3, 7, 20)
    torch.testing.assert_close(own(x), torch.relu(plain(x)), rtol=1e-5, atol=1e-5)
    gates = tt.GatedLinear(20, 12, bias=True)
    like = functional.silu(gates.gate(x)) * gates.up(x)
    torch.testing.assert_close(gates(x), like, rtol=1e-5, atol=1e-5)
    with torch.no_grad():
        torch.testing.assert_close(gates(x), like, rtol=1e-5, atol=1e-5)


def test_layers_have_a_precision() -> None:
    model = nn.Sequential(nn.Linear(20, 12), nn.Linear(12, 8))
    tt.convert(model, precision="f32")
    assert [layer.precision for layer in model] == ["f32", "f32"]
    made = tt.GatedLinear(20, 12, precision="f32"), tt.Conv1D(12, 20, precision="f32")
    x = torch.randn(3, 20)
    for layer in (model, *made):
        own = dict(layer.named_modules())
        layer(x).sum().backward()
        for one in own.values():
            if hasattr(one, "precision"):
                one.precision = "f33"
        with pytest.raises(LaunchError, match="precision='f33'; choose one of"):
            layer(x)
    attention = tt.Attention(20, 2, precision="f33")
    with pytest.raises(LaunchError, match="precision='f33'; choose one of"):
        attention(x[None])
    with pytest.raises(LaunchError, match="precision='f33'; choose one of"):
        tt.convert(model, precision="f33")


def test_attention_has_the_state_of_pytorchs() -> None:
    plain = nn.MultiheadAttention(24, 3, batch_first=True)
    nn.init.normal_(plain.in_proj_bias)
    own = tt.Attention(24, 3, causal=True)
    own.load_state_dict(plain.state_dict())
    plain.load_state_dict(own.state_dict())
    x = torch.randn(2, 9, 24)
    mask = nn.Transformer.generate_square_subsequent_mask(9)
    like, _ = plain(x, x, x, attn_mask=mask, is_causal=True)
    torch.testing.assert_close(own(x), like, rtol=1e-5, atol=1e-5)
    own(x).sum().backward()
    assert all(one.grad is not None for one in own.parameters())
    with pytest.raises(LaunchError, match="num_heads=4"):
        tt.Attention(24, 5)


FORMATS = [("f8e4m3", 16), ("f8e4m3_blocks", 16), ("i8", 254), ("i4", 14), ("nf4", 6.5)]
"""Formats, and steps between 0 and the largest number; steps of nf4 are widest at -1."""


@pytest.mark.parametrize(("weights", "steps"), FORMATS)
def test_quantised_layers(weights: str, steps: float) -> None:
    """Weights are off by at most half a step, and their product is exact but for roundings."""
    plain = nn.Linear(96, 10)
    layer = tt.QuantizedLinear.of(plain, weights, group=32)
    held = layer.dequantized()
    parts = plain.weight.detach().unflatten(-1, (-1, 32 if weights in ("i4", "nf4") else 96))
    most = parts.abs().amax(-1, keepdim=True).expand_as(parts).flatten(-2)
    if weights == "f8e4m3_blocks":
        most = most.max()
    assert bool(((held.weight - plain.weight).abs() <= most / steps * 1.01).all())
    x = torch.randn(5, 96)
    with torch.no_grad():
        like = x.double() @ held.weight.double().mT + plain.bias.double()
        size = x.abs().double() @ held.weight.abs().double().mT + 1
        assert bool(((layer(x) - like).abs() <= 100 * 2.0**-23 * size).all())
    again = tt.QuantizedLinear(96, 10, weights=weights, group=32)
    again.load_state_dict(layer.state_dict())
    assert torch.equal(again.codes.view(torch.uint8), layer.codes.view(torch.uint8))
    again.load_state_dict(plain.state_dict())
    assert torch.equal(again.scales, layer.scales)
    (d_x,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x)
    torch.testing.assert_close(d_x, held.weight.detach().sum(0).expand(5, -1), rtol=1e-4, atol=1e-4)
    assert torch.equal(again.dequantized_weight(), layer.dequantized_weight())
    with pytest.raises(LaunchError, match="group=7"):
        tt.QuantizedLinear(96, 10, weights="nf4", group=7)
    with pytest.raises(LaunchError, match="weights='i5'"):
        tt.QuantizedLinear(96, 10, weights="i5")


@pytest.mark.parametrize(("weights", "_"), FORMATS)
def test_quantised_layers_of_empty_weights(weights: str, _: float) -> None:
    """Without features the result is the bias; without rows it is empty."""
    made = tt.QuantizedLinear(0, 8, weights=weights, group=32)
    made.load_state_dict({"weight": torch.empty(8, 0), "bias": torch.randn(8)})
    assert torch.equal(made(torch.ones(3, 0)), made.bias.expand(3, 8))
    assert made.dequantized_weight().shape == (8, 0)
    made = tt.QuantizedLinear(64, 0, weights=weights, group=32)
    assert made(torch.ones(3, 64)).shape == (3, 0)


@pytest.mark.parametrize(("weights", "_"), FORMATS)
def test_quantised_layers_stay_in_f32_if_a_model_becomes_double(weights: str, _: float) -> None:
    layer, x = tt.QuantizedLinear.of(nn.Linear(96, 10), weights, group=32), torch.randn(5, 96)
    before = layer(x)
    assert torch.equal(layer.double()(x), before)
    assert layer.scales.dtype == layer.bias.dtype == torch.float32
    with pytest.raises(DTypeError, match="scaled_mm of f64; nearest: f32"):
        layer(x.double())


def test_a_layer_with_two_names_in_one_module_is_replaced_at_both() -> None:
    shared = nn.Linear(8, 8)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    assert tt.convert(model, weights="i8") == {"0": "QuantizedLinear", "2": "QuantizedLinear"}
    assert model[0] is model[2]


def test_blocks_of_scales_have_remainders() -> None:
    """Blocks of 128 x 128 numbers, the last of which are smaller; one block of zeros."""
    plain = nn.Linear(300, 200, dtype=torch.float16)
    with torch.no_grad():
        plain.weight[:128, 128:256] = 0
        plain.weight[128:, :128] *= 1000
    layer = tt.QuantizedLinear.of(plain, "f8e4m3_blocks")
    assert layer.scales.shape == (2, 3)
    assert layer.scales[0, 1] == 1
    assert layer.scales[1, 0] > 100 * layer.scales[1, 1]
    wide, weight = layer.dequantized_weight(), plain.weight.detach().float()
    assert not wide[:128, 128:256].any()
    assert bool(
        ((wide - weight).abs() <= layer.scales.amax(1)[:, None].repeat_interleave(128, 0)[:200] * 16).all()
    )
    x = torch.randn(5, 300, dtype=torch.float16)
    with torch.no_grad():
        found = layer(x).double()
    like, bias = x.double() @ wide.double().mT, plain.bias.detach().double()
    size = x.abs().double() @ wide.abs().double().mT + 1
    assert bool(((found - like - bias).abs() <= 300 * 2.0**-23 * size + 2.0**-11 * (like + bias).abs()).all())


@pytest.mark.parametrize("weights", [name for name, _ in FORMATS])
def test_codes_keep_their_dtype_if_a_model_changes_its_own(weights: str) -> None:
    """Scales stay in f32, too: in f16 they would lose 13 bits."""
    layer = tt.QuantizedLinear.of(nn.Linear(32, 8), weights, group=16)
    codes, weight = layer.codes, layer.dequantized_weight()
    layer.half().float()
    assert layer.codes.dtype == codes.dtype
    assert torch.equal(layer.codes.view(torch.uint8), codes.view(torch.uint8))
    if weights not in ("i4", "nf4"):  # whose scales are of the model's dtype
        assert torch.equal(layer.dequantized_weight(), weight)
    x = torch.randn(3, 32, dtype=torch.bfloat16)
    with torch.no_grad():
        found = layer.bfloat16()(x).double()
    like = x.double() @ layer.dequantized_weight().double().mT + layer.bias.double()
    torch.testing.assert_close(found, like, rtol=2.0**-8, atol=0.02)
    layer.to("meta")
    assert layer.codes.is_meta


def test_layers_that_cannot_be_quantised_stay() -> None:
    """Weights that are computed from other parameters, wide dtypes, and halves of bytes; the reasons."""
    model = nn.Sequential(
        prune.l1_unstructured(nn.Linear(8, 6), "weight", 0.5),
        nn.utils.parametrizations.weight_norm(nn.Linear(6, 7)),
        nn.Linear(7, 4),
        nn.Linear(4, 4, dtype=torch.float64),
    )
    done = tt.convert(model, weights="i4", group=1)
    assert done == {}
    assert done.left == {
        "0": "its weight is computed from other parameters",
        "1": "the library has no module in place of ParametrizedLinear",
        "1.parametrizations.weight": "the library has no module in place of ParametrizationList",
        "2": "its 7 inputs are no even multiple of group=1",
        "3": "i4 does not stand for weights of torch.float64",
    }
    assert tt.convert(model[2:], weights="i8") == {"2": "QuantizedLinear"}
    for group in (0, -2, 7):
        with pytest.raises(LaunchError, match="even multiple"):
            tt.QuantizedLinear(7, 4, weights="i4", group=group)
    with pytest.raises(LaunchError, match="num_heads=0"):
        tt.Attention(8, 0)


def test_a_quantised_layer_keeps_hooks_and_mode() -> None:
    model, seen = nn.Sequential(nn.Linear(8, 4)).eval(), list[str]()
    model[0].register_forward_pre_hook(lambda *_: seen.append("before"))
    model[0].register_forward_hook(lambda *_: seen.append("after"))
    tt.convert(model, weights="i8")
    model(torch.ones(2, 8))
    assert seen == ["before", "after"]
    assert not model[0].training


def test_an_encoder_takes_a_mask_of_padding_in_inference() -> None:
    """PyTorch's encoder makes nested tensors for layers that it bypasses; ours take none."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    model, x = nn.TransformerEncoder(layer, 2).eval(), torch.randn(2, 5, 16)
    is_padding = torch.arange(5) >= torch.tensor([[5], [3]])
    with torch.no_grad():
        expected = model(x, src_key_padding_mask=is_padding)
        assert not tt.convert(model, only=lambda *_: False)
        assert torch.equal(model(x, src_key_padding_mask=is_padding), expected)  # nothing was replaced
        assert [*tt.convert(model).values()].count("Linear") == 4
        found = model(x, src_key_padding_mask=is_padding)
    torch.testing.assert_close(found[~is_padding], expected[~is_padding], rtol=1e-4, atol=1e-4)
    again = tt.convert(model, weights="i8")
    assert not again
    assert [*again.left.values()].count("it is a module of the library") == 8


@pytest.mark.parametrize(("weights", "made"), [(None, tt.Linear), ("i8", tt.QuantizedLinear)])
def test_layers_of_a_transformer_are_called_in_inference(
    weights: str | None, made: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyTorch's encoder can bypass its layers and read their weights directly."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x, calls, forward = torch.randn(2, 5, 16), list[Any](), made.forward
    monkeypatch.setattr(made, "forward", lambda own, x: calls.append(own) or forward(own, x))
    with torch.no_grad():
        like = model(x)
        assert [*tt.convert(model, weights=weights).values()].count(made.__name__) == 4
        tolerance = 1e-5 if weights is None else 0.05
        torch.testing.assert_close(model(x), like, rtol=tolerance, atol=tolerance)
    assert len(calls) == 4


def test_complex_layers_are_converted() -> None:
    model = nn.Sequential(nn.Linear(8, 5, dtype=torch.complex64))
    x = torch.randn(3, 8, dtype=torch.complex64)
    like = model(x)
    tt.convert(model)
    found = model(x)
    torch.testing.assert_close(found, like, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(y.abs().sum(), [*model.parameters()]) for y in (found, like)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def test_states_of_another_size() -> None:
    layer = tt.QuantizedLinear(8, 4, weights="i4", group=4)
    with pytest.raises(RuntimeError, match=r"weight has shape \(4, 6\), and the layer \(4, 8\)"):
        layer.load_state_dict(nn.Linear(6, 4).state_dict())
    plain = nn.Linear(8, 4)
    held = tt.QuantizedLinear(8, 4, weights="i4", group=4, device="meta")
    held.load_state_dict(plain.state_dict(), assign=True)
    assert torch.equal(held.codes, tt.QuantizedLinear.of(plain, "i4", group=4).codes)


class Mlp(nn.Module):
    """An MLP whose forward calls another method."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down, self.act = nn.Linear(4, 8), nn.Linear(8, 4), nn.GELU()

    def layers(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.act(self.up(x)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def test_layers_that_are_replaced_or_observed_later_are_called() -> None:
    torch.manual_seed(0)
    x = torch.randn(3, 4)
    model = nn.Sequential(Mlp())
    assert tt.convert(model)["0"] == "FeedForward"
    feed: Any = model[0]
    seen = list[Any]()
    handle = feed.up.register_forward_hook(lambda *args: seen.append(args))
    torch.testing.assert_close(model(x), feed.down(functional.gelu(feed.up(x))))
    assert len(seen) == 2
    handle.remove()
    for other, function in (
        (nn.ReLU(), torch.relu),
        (nn.GELU(approximate="tanh"), lambda y: functional.gelu(y, approximate="tanh")),
        (nn.ELU(), functional.elu),
    ):
        feed.act = other
        torch.testing.assert_close(model(x), feed.down(function(feed.up(x))))


class Switched(Mlp):
    """An MLP that reads attributes: of the object, of the class, and a property."""

    doubles = False

    def __init__(self) -> None:
        super().__init__()
        self.negates, self._shift = False, 0.0

    @property
    def shift(self) -> float:
        return self._shift

    @shift.setter
    def shift(self, value: float) -> None:
        self._shift = 2 * value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layers(x)
        y = y + self._shift if self._shift else y
        y = -y if self.negates else y
        return 2 * y if self.doubles else y


@pytest.mark.parametrize(("name", "value"), [("negates", True), ("doubles", True), ("shift", 3.0)])
def test_attributes_that_are_set_later_are_read(name: str, value: Any) -> None:
    torch.manual_seed(0)
    plain, x = nn.Sequential(Switched()), torch.randn(3, 4)
    model = copy.deepcopy(plain)
    assert tt.convert(model)["0"] == "FeedForward"
    model.train()
    model[0].negates, model[0].note = False, "a new attribute"
    assert isinstance(model[0], tt.modules.FeedForward)
    for one in (plain[0], model[0], copy.deepcopy(model)[0]):
        setattr(one, name, value)
    assert not torch.allclose(plain(x), Switched.layers(plain[0], x))
    torch.testing.assert_close(model(x), plain(x))
    assert type(model[0]) is Switched
    assert tt.convert(model) == {}
    torch.testing.assert_close(model(x), plain(x))


def test_a_feed_forward_takes_one_tensor() -> None:
    model = nn.Sequential(Mlp())
    tt.convert(model)
    x = torch.ones(3, 4)
    assert torch.equal(model[0](x=x), model[0](x))
    for given in ((), (x, x)):
        with pytest.raises(LaunchError, match=rf"FeedForward: {len(given)} arguments; .*one tensor"):
            model[0](*given)


def test_a_module_that_computes_something_else_in_training_stays() -> None:
    class Doubled(Mlp):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.layers(x)
            return y * 2 if self.training else y

    for mode in (True, False):
        model = nn.Sequential(Doubled()).train(mode)
        assert "0" not in tt.convert(model)
        assert model[0].training is mode


def test_an_mlp_of_a_vector() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(Mlp()).double(), torch.randn(4, dtype=torch.float64)
    found = []
    for _ in range(2):
        y = model(x)
        found.append([y, *torch.autograd.grad(y.sum(), [*model.parameters()])])
        tt.convert(model)
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
