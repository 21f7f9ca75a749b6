"""Layers of Flax whose products and attention are these operations."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from tests.jax.test_products import drawn

import tilewright.jax as tj


def attention_of_heads(query: Any, key: Any, value: Any, **_words: Any) -> Any:
    """Causal attention on Flax's arrays (batch, length, heads, columns)."""
    made = tj.attention(*(one.swapaxes(-3, -2) for one in (query, key, value)), causal=True)
    return made.swapaxes(-3, -2)


class Encoder(nn.Module):
    """One block of a transformer."""

    own: bool

    @nn.compact
    def __call__(self, x: Any) -> Any:
        given: dict[str, Any] = {"dot_general": tj.dot_general} if self.own else {}
        heads = {"attention_fn": attention_of_heads, "qkv_dot_general": tj.dot_general} if self.own else {}
        heads |= {"out_dot_general": tj.dot_general} if self.own else {}
        mask = None if self.own else nn.make_causal_mask(x[..., 0])
        normed = nn.LayerNorm()(x)
        x = x + nn.MultiHeadDotProductAttention(num_heads=2, **heads)(normed, mask=mask)
        y = nn.gelu(nn.Dense(64, **given)(nn.LayerNorm()(x)))
        return nn.Dense(5, **given)(x + nn.Dense(32, **given)(y))


def test_a_model_of_flax_trains_as_with_its_own_products() -> None:
    x, target = (drawn(*shape, dtype=np.float32) for shape in ((3, 10, 32), (3, 10, 5)))
    first = Encoder(own=False).init(jax.random.key(1), x)

    def losses(own: bool) -> Any:
        def loss(given: Any) -> Any:
            return jnp.square(Encoder(own=own).apply(given, x) - target).mean()

        step = jax.jit(jax.value_and_grad(loss))
        text = step.lower(first).as_text()
        assert (text.count("@tilewright(") > 10) == own
        held, found = first, []
        for _ in range(30):
            value, slopes = step(held)
            found.append(float(value))
            held = jax.tree.map(lambda one, slope: one - 0.1 * slope, held, slopes)
        return np.array(found)

    found = losses(own=True)
    assert found[-1] < 0.7 * found[0]
    np.testing.assert_allclose(found, losses(own=False), rtol=1e-4)
