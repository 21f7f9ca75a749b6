"""Models of `transformers` after `convert`, compared with what they compute by PyTorch alone."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import transformers

import tilewright.torch as tt

WORDS: dict[str, Any] = {"vocab_size": 48, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}


def gpt2() -> Any:
    config = transformers.GPT2Config(
        **WORDS,
        n_layer=1,
        n_embd=32,
        n_head=2,
        n_positions=32,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> Any:
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(
        **WORDS,
        **heads,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        max_position_embeddings=32,
    )
    return transformers.LlamaForCausalLM(config)


def vit() -> Any:
    config = transformers.ViTConfig(
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        image_size=16,
        patch_size=4,
        num_labels=8,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    return transformers.ViTForImageClassification(config)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.manual_seed(torch.seed())


def tokens(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    made = torch.Generator("cpu").manual_seed(seed)
    drawn = torch.randint(3, WORDS["vocab_size"], (rows, columns), generator=made, device="cpu")
    return drawn.to(torch.get_default_device())


def check_logits(plain: Any, own: Any, where: torch.Tensor | None = None, **given: Any) -> None:
    """Logits are as near to those in f64 as PyTorch's, but for a factor of 4: sums have other orders."""
    numbers = {name: one.double() if one.is_floating_point() else one for name, one in given.items()}
    with torch.no_grad():
        exact = copy.deepcopy(plain).double()(**numbers).logits
        errors = [(one(**given).logits.double() - exact).abs() for one in (own, plain)]
    found, of_pytorch = (one if where is None else one[where] for one in errors)
    assert found.isfinite().all()
    assert found.max() <= 4 * of_pytorch.max() + 2.0**-22 * exact.abs().max()
    assert found.mean() <= 2 * of_pytorch.mean() + 2.0**-24 * exact.abs().max()


def losses(model: Any, steps: int) -> list[float]:
    """Losses of training on rows that count up."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    found = list[float]()
    for step in range(steps):
        text = (tokens(4, 1, step) + torch.arange(17)) % WORDS["vocab_size"]
        loss = model(input_ids=text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


@pytest.mark.parametrize(("make", "layers"), [(gpt2, 5), (llama, 8)])
def test_language_models(make: Callable[[], Any], layers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, also after padding on the left, and losses of training; every product is one of the library."""
    plain = make().eval()
    own = copy.deepcopy(plain)
    done = tt.convert(own)
    norms = [one for one in done.values() if one in ("LayerNorm", "RMSNorm")]
    assert (len(norms), len(done)) == (3, layers + 5)
    [mlp] = (name for name, one in done.items() if one == "FeedForward")
    assert done["config"] == "attention"
    assert own.config._attn_implementation == "tilewright"
    assert plain.config._attn_implementation == "sdpa"
    assert {why.split()[-1] for why in done.left.values()} <= {"Embedding"}
    text, mask = tokens(2, 17), torch.ones(2, 17, dtype=torch.long)
    check_logits(plain, own, input_ids=text)
    mask[0, :5] = 0
    check_logits(plain, own, mask.bool(), input_ids=text, attention_mask=mask)
    own.load_state_dict(plain.state_dict())
    plain.load_state_dict(own.state_dict())
    expected = losses(plain.train(), 10)
    for name in ("linear", "addmm", "scaled_dot_product_attention"):

        def refuse(*_: Any, **__: Any) -> Any:
            raise AssertionError("a product by PyTorch")

        monkeypatch.setattr(torch if name == "addmm" else torch.nn.functional, name, refuse)
    found = losses(own.train(), 10)
    assert expected[-1] < expected[0] - 0.3
    # Roundings of f32 grow from step to step.
    assert max(abs(one - other) for one, other in zip(found, expected, strict=True)) < 1e-4
    layers_of_mlp = [*own.get_submodule(mlp).children()]
    one_by_one = own(input_ids=text).logits
    seen = [layer.register_forward_hook(lambda *_: called.append(1)) for layer in layers_of_mlp]
    called = list[int]()
    torch.testing.assert_close(own(input_ids=text).logits, one_by_one, rtol=1e-5, atol=1e-5)
    assert len(called) == len(seen)  # layers with hooks are called


@pytest.mark.parametrize("weights", ["f8e4m3", "f8e4m3_blocks", "i4", "nf4"])
@pytest.mark.parametrize("make", [gpt2, llama])
def test_generation_by_quantised_weights(make: Callable[[], Any], weights: str) -> None:
    """Tokens and logits are those of the numbers that the codes stand for; keys and values are kept."""
    own = make().eval()
    like = copy.deepcopy(own)
    tt.convert(own, weights=weights, group=16)
    with torch.no_grad():
        for name, layer in own.named_modules():
            if isinstance(layer, tt.QuantizedLinear):
                held = like.get_submodule(name)
                wide = layer.dequantized_weight()
                held.weight = torch.nn.Parameter(wide if isinstance(held, torch.nn.Linear) else wide.mT)
    text = tokens(2, 6)
    words = {"attention_mask": torch.ones_like(text), "max_new_tokens": 4, "do_sample": False}
    words |= {"return_dict_in_generate": True, "output_logits": True}
    found, expected = (model.generate(text, **words) for model in (own, like))
    assert torch.equal(found.sequences, expected.sequences)
    for one, other in zip(found.logits, expected.logits, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_vision_transformer() -> None:
    plain = vit().eval()
    own = copy.deepcopy(plain)
    done = tt.convert(own)
    assert sum(one == "Linear" for one in done.values()) == 7
    assert sum(one == "FeedForward" for one in done.values()) == 1
    assert {why.split()[-1] for why in done.left.values()} == {"ViTEmbeddings", "Conv2d"}
    images = torch.randn(3, 3, 16, 16)
    check_logits(plain, own, pixel_values=images)
    gradients = []
    for model in (own, plain):
        model(pixel_values=images, labels=torch.tensor([1, 5, 0])).loss.backward()
        gradients.append({name: one.grad for name, one in model.named_parameters() if one.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, one in gradients[0].items():
        torch.testing.assert_close(one, gradients[1][name], rtol=1e-3, atol=1e-6)


def test_attention_of_a_model_can_be_left() -> None:
    model = llama()
    done = tt.convert(model, weights="i8", only=lambda name, _: "mlp" in name, attention=False)
    assert [*done.values()] == ["QuantizedLinear"] * 3 + ["FeedForward"]
    assert done.left["lm_head"] == "left out by only="
    assert model.config._attn_implementation == "sdpa"
