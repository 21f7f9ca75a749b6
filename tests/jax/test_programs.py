"""Programs for several devices, and a model that trains with these operations as with JAX's own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import tilewright.jax as tj

SHARDED = """
import jax, jax.numpy as jnp, numpy as np
import tilewright as tw, tilewright.jax as tj
from jax.sharding import Mesh, PartitionSpec as P

jax.config.update("jax_enable_x64", True)
assert jax.device_count() == 4

@tw.kernel(A="M K", B="K N", R="M N", C="M N")
def product(A, B, R, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc + 0 * R[m, n]

kernel = tj.op(product)

@kernel.backward
def gradient(dC, A, B):
    return {"A": tj.matmul(dC, B.T), "B": tj.matmul(A.T, dC)}

rng = np.random.default_rng(5)
x, w, y = (jnp.asarray(rng.standard_normal(shape)) for shape in ((8, 12), (12, 16), (8, 16)))
q = jnp.asarray(rng.standard_normal((4, 7, 16)), jnp.float32)
line = Mesh(np.array(jax.devices()), ("d",))
square = Mesh(np.array(jax.devices()).reshape(2, 2), ("d", "e"))

def attend(q, k):
    weights = jnp.where(jnp.tri(7, dtype=bool), q @ k.swapaxes(-1, -2) / 4, -jnp.inf)
    return jax.nn.softmax(weights, -1) @ k

def summed(x, w):
    return jax.lax.psum(tj.einsum("mk,kn->mn", x, w), "e")

cases = [
    (line, lambda x, w: tj.matmul(x, w, activation="silu"), lambda x, w: jax.nn.silu(x @ w),
     (P("d"), P()), P("d"), (x, w), 1e-12),
    (line, lambda x, w: tj.linear(x, w.T, activation="relu"), lambda x, w: jax.nn.relu(x @ w),
     (P(), P(None, "d")), P(None, "d"), (x, w), 1e-12),
    (square, summed, jnp.matmul, (P("d", "e"), P("e")), P("d"), (x, w), 1e-12),
    (line, lambda q, k: tj.attention(q, k, k, causal=True), attend, (P("d"), P()), P("d"), (q, q[:1]), 2e-5),
    (line, kernel, lambda x, w, y: x @ w + 0 * y, (P("d"), P(), P("d")), P("d"), (x, w, y), 1e-12),
]
for checks in (True, False):
    for mesh, call, like, given, made, arrays, unit in cases:
        spread = jax.shard_map(call, mesh=mesh, in_specs=given, out_specs=made, check_vma=checks)
        weight = jnp.asarray(rng.standard_normal(like(*arrays).shape))
        places = tuple(range(len(arrays)))
        text = jax.jit(spread).lower(*arrays).as_text()
        assert text.count("@tilewright(") == 1, text

        def run(function):
            slopes = jax.jit(jax.grad(lambda *own: (function(*own) * weight).sum(), places))
            return function(*arrays), *slopes(*arrays)

        found, expected = run(spread), run(like)
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=unit, atol=10 * unit)
print("each of", len(cases))
"""


def test_shard_map_on_four_devices() -> None:
    """Results and gradients, with arrays that devices share, with JAX's check of such arrays and without."""
    apart = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=4", "JAX_PLATFORMS": "cpu"}
    run = [sys.executable, "-c", SHARDED]
    done = subprocess.run(run, env=apart, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "each of 5\n"


# ---------------------------------------------------------------- a model with parameters as in Flax


def dense(rng: Any, rows: int, columns: int) -> dict[str, Any]:
    kernel = rng.standard_normal((rows, columns)) / np.sqrt(rows)
    return {"kernel": jnp.asarray(kernel, jnp.float32), "bias": jnp.zeros(columns, jnp.float32)}


def parameters(width: int, words: int) -> dict[str, Any]:
    rng = np.random.default_rng(7)
    block = {"qkv": dense(rng, width, 3 * width), "out": dense(rng, width, width)}
    block |= {"up": dense(rng, width, 4 * width), "down": dense(rng, 4 * width, width)}
    table = jnp.asarray(rng.standard_normal((words, width)) / 4, jnp.float32)
    return {"embedding": table, "block": block, "head": dense(rng, width, words)}


def logits(given: dict[str, Any], tokens: Any, layer: Callable[..., Any], attend: Callable[..., Any]) -> Any:
    """A decoder of one block with two heads."""

    def normed(x: Any) -> Any:
        return (x - x.mean(-1, keepdims=True)) * jax.lax.rsqrt(x.var(-1, keepdims=True) + 1e-5)

    x, block = given["embedding"][tokens], given["block"]
    heads = layer(normed(x), block["qkv"]).reshape(*tokens.shape, 3, 2, -1).transpose(2, 0, 3, 1, 4)
    joined = attend(*heads).swapaxes(1, 2).reshape(x.shape)
    x = x + layer(joined, block["out"])
    x = x + layer(layer(normed(x), block["up"], "gelu"), block["down"])
    return layer(normed(x), given["head"])


def own_layer(x: Any, given: dict[str, Any], activation: str | None = None) -> Any:
    return tj.matmul(x, given["kernel"], bias=given["bias"], activation=activation)


def jax_layer(x: Any, given: dict[str, Any], activation: str | None = None) -> Any:
    y = jnp.matmul(x, given["kernel"]) + given["bias"]
    return jax.nn.gelu(y, approximate=False) if activation else y


def jax_attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.matmul(q, k.swapaxes(-1, -2)) / np.sqrt(q.shape[-1])
    scores = jnp.where(jnp.tri(q.shape[-2], dtype=bool), scores, -jnp.inf)
    return jnp.matmul(jax.nn.softmax(scores, -1), v)


def test_a_transformer_trains_as_with_the_products_of_jax() -> None:
    """The losses of 40 steps of gradient descent; the words to predict repeat those before."""
    tokens = jnp.asarray(np.tile(np.random.default_rng(3).integers(0, 23, (4, 6)), 3))

    def losses(layer: Any, attend: Any, kind: Any) -> Any:
        def loss(given: Any) -> Any:
            made = jax.nn.log_softmax(logits(given, tokens[:, :-1], layer, attend))
            return -jnp.take_along_axis(made, tokens[:, 1:, None], -1).mean()

        step = jax.jit(jax.value_and_grad(loss))
        assert ("tilewright" in step.lower(parameters(32, 23)).as_text()) == (layer is own_layer)
        held, found = jax.tree.map(lambda one: one.astype(kind), parameters(32, 23)), []
        for _ in range(40):
            value, slopes = step(held)
            found.append(float(value))
            held = jax.tree.map(lambda one, slope: one - 0.3 * slope, held, slopes)
        return np.array(found)

    found = losses(own_layer, lambda q, k, v: tj.attention(q, k, v, causal=True), jnp.float32)
    exact, single = (losses(jax_layer, jax_attention, kind) for kind in (jnp.float64, jnp.float32))
    assert found[-1] < 0.5 * found[0]
    # Rounding errors grow from step to step; those of JAX's own products in f32 are the measure.
    assert (abs(found - exact) <= 4 * np.maximum.accumulate(abs(single - exact)) + 2e-6).all()
