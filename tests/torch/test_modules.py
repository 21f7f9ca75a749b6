"""Modules, `convert`, and a small language model that is trained beside PyTorch's own operations."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import tilewright.torch as tt
from tilewright.errors import LaunchError

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
    """Losses of training on a text whose next token follows from the last two."""
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
    assert len(replaced) == 9
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


@pytest.mark.parametrize(("weights", "steps"), [("f8e4m3", 16), ("i8", 254), ("i4", 14)])
def test_quantised_layers(weights: str, steps: int) -> None:
    """Weights are off by half a step, and the product of what they stand for is exact but for roundings."""
    plain = nn.Linear(96, 10)
    layer = tt.QuantizedLinear.of(plain, weights, group=32)
    held = layer.dequantized()
    parts = plain.weight.detach().unflatten(-1, (-1, 32 if weights == "i4" else 96))
    most = parts.abs().amax(-1, keepdim=True).expand_as(parts).flatten(-2)
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
    with pytest.raises(LaunchError, match="no gradients"):
        layer(x.requires_grad_())
    with pytest.raises(LaunchError, match="group=7"):
        tt.QuantizedLinear(96, 10, weights="i4", group=7)
    with pytest.raises(LaunchError, match="weights='i5'"):
        tt.QuantizedLinear(96, 10, weights="i5")
