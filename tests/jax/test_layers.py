"""Attention, kernels of the user's, and exported programs in JAX."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export
from tests.jax.test_products import close, compare, drawn

import tilewright as tw
import tilewright.jax as tj
from tilewright.errors import LaunchError, SignatureError

# ---------------------------------------------------------------- attention


def like_attention(
    q: Any, k: Any, v: Any, bias: Any = None, sinks: Any = None, *, kept: Any = 1.0, **words: Any
) -> Any:
    """Attention as its formula says; a row that sees nothing is 0."""
    if q.ndim > 2:
        k, v = (jnp.repeat(one, q.shape[-3] // one.shape[-3], -3) for one in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    scores = scores if bias is None else scores + bias
    if words.get("causal"):
        last = jnp.arange(q.shape[-2])[:, None] + words.get("diagonal", 0)
        columns = jnp.arange(k.shape[-2])
        scores = jnp.where(
            (columns <= last) & (columns > last - words.get("window", 10**6)), scores, -jnp.inf
        )
    if sinks is None:
        weights = jax.nn.softmax(scores, -1)
    else:
        column = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:-1], 1))
        weights = jax.nn.softmax(jnp.concatenate([scores, column], -1), -1)[..., :-1]
    return (weights * kept) @ v


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ((), {"causal": True, "diagonal": 4, "window": 9}),
        (("bias", "sinks"), {}),
        ((), {"dropout": 0.25, "seed": 3}),
    ],
)
def test_attention(names: tuple[str, ...], words: dict[str, Any]) -> None:
    """Results and gradients in f32 with heads that share keys; `jit` and `vmap` too."""
    terms = {"bias": drawn(4, 1, 25), "sinks": drawn(4)}
    given = (drawn(2, 4, 21, 16), drawn(2, 2, 25, 16), drawn(2, 2, 25, 8), *(terms[name] for name in names))
    dy = drawn(2, 4, 21, 8, seed=3)
    kept: Any = 1.0
    if "dropout" in words:
        index = np.arange(2 * 4 * 21)[:, None] * 28 + np.arange(25)
        kept = (tw.testing.philox(index, 3) >= 2**30).reshape(2, 4, 21, 25) / 0.75
    plain = {name: one for name, one in words.items() if name not in ("dropout", "seed")}

    def call(*arrays: Any) -> Any:
        return tj.attention(*arrays[:3], **dict(zip(names, arrays[3:], strict=True)), **words)

    def like(*arrays: Any) -> Any:
        return like_attention(*arrays[:3], **dict(zip(names, arrays[3:], strict=True)), kept=kept, **plain)

    narrow = [one.astype(jnp.float32) for one in given]
    assert "tilewright" in jax.jit(call).lower(*narrow).as_text()
    close(jax.jit(call)(*narrow), like(*given), 1e-5)
    places = tuple(range(len(given)))
    found = jax.grad(lambda *arrays: (call(*arrays).astype(jnp.float64) * dy).sum(), places)(*narrow)
    expected = jax.grad(lambda *arrays: (like(*arrays) * dy).sum(), places)(*given)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 2e-5)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("bias", "sinks"), {}),
        ((), {"causal": True, "diagonal": 1, "window": 5}),
        (("bias",), {"causal": True}),
    ],
)
def test_second_derivatives_of_attention(names: tuple[str, ...], words: dict[str, Any]) -> None:
    """Derivatives of a function of the gradients, with heads that share keys; dropout is refused."""
    terms = {"bias": drawn(4, 9, 11), "sinks": drawn(4)}
    given = (drawn(4, 9, 16), drawn(2, 11, 16), drawn(2, 11, 8), *(terms[name] for name in names))
    places, narrow = tuple(range(len(given))), [one.astype(jnp.float32) for one in given]

    def second(function: Any, **more: Any) -> Any:
        def total(*arrays: Any) -> Any:
            held = dict(zip(names, arrays[3:], strict=True))
            return jnp.sin(function(*arrays[:3], **held, **words, **more)).sum()

        first = jax.grad(total, places)
        return jax.jit(jax.grad(lambda *arrays: sum((one**2).sum() for one in first(*arrays)), places))

    assert "tilewright" in second(tj.attention).lower(*narrow).as_text()
    expected = second(like_attention)(*given)
    for one, other in zip(second(tj.attention)(*narrow), expected, strict=True):
        close(one / jnp.abs(other).max(), other / jnp.abs(other).max(), 2e-5)
    if "bias" not in names:
        with pytest.raises(LaunchError, match=r"second derivative is wanted, and dropout=0\.5"):
            second(tj.attention, dropout=0.5)(*narrow)


@pytest.mark.parametrize("rank", [2, 3, 4])
def test_vmap_of_attention(rank: int) -> None:
    """A batch of problems is one call, also of gradients; a bias may be shared."""
    lead = (2, 2)[: rank - 2]
    q, k, v = (drawn(3, *lead, 9, 8, seed=at).astype(jnp.float32) for at in range(3))
    bias = [drawn(9, 9).astype(jnp.float32)] if rank == 3 else []
    axes = (0, 0, None, *(None for _ in bias))

    def total(function: Any) -> Any:
        def of(q: Any, k: Any, v: Any, *bias: Any) -> Any:
            return (function(q, k, v, **({"bias": bias[0]} if bias else {})) ** 2).sum()

        return jax.vmap(jax.grad(of, (0, 1, 2)), axes)

    call = jax.jit(total(tj.attention))
    assert call.lower(q, k, v[0], *bias).as_text().count("@tilewright(") == 2
    expected = total(like_attention)(q, k, v[0], *bias)
    for one, other in zip(call(q, k, v[0], *bias), expected, strict=True):
        close(one, other, 1e-4)


def test_refusals_of_attention() -> None:
    q = drawn(9, 8).astype(jnp.float32)
    with pytest.raises(LaunchError, match=r"bias and dropout=0\.5"):
        tj.attention(q, q, q, bias=q, dropout=0.5)
    with pytest.raises(LaunchError, match="diagonal='first'"):
        tj.attention(q, q, q, causal=True, diagonal="first")
    close(tj.attention(q[:3], q, q, causal=True, diagonal="last")[2], like_attention(q[2:3], q, q)[0], 1e-5)
    with pytest.raises(LaunchError, match="seed is traced, and calls are made with numbers"):
        jax.jit(lambda seed: tj.attention(q, q, q, dropout=0.5, seed=seed))(3)
    with pytest.raises(LaunchError, match=r"window=2\.5; nearest legal choice: an integer"):
        tj.attention(q, q, q, causal=True, window=2.5)  # type: ignore[arg-type]
    wide = drawn(9, 257).astype(jnp.float32)
    for given in ((wide, wide, q), (q, q, wide)):
        assert tj.attention(*given).shape == given[2].shape
        with pytest.raises(LaunchError, match=r"257 columns, and a gradient is wanted; .*: 256"):
            jax.grad(lambda *arrays: tj.attention(*arrays).sum())(*given)


def test_integers_of_numpy_and_jax() -> None:
    q = drawn(9, 8).astype(jnp.float32)
    found = tj.attention(q, q, q, causal=np.bool_(True), diagonal=np.int64(1), window=jnp.array(3))
    assert (found == tj.attention(q, q, q, causal=True, diagonal=1, window=3)).all()
    found = tj.attention(q, q, q, dropout=0.5, seed=np.uint32(7), offset=np.int16(2))
    assert (found == tj.attention(q, q, q, dropout=0.5, seed=7, offset=2)).all()


# ---------------------------------------------------------------- kernels


@tw.kernel(A="M K", B="N K", C="M N", scale=tw.f32)
def scaled_squares(A, B, scale, C):  # type: ignore[no-untyped-def]
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = scale * acc * acc


def test_kernel() -> None:
    """A dataflow kernel under `jit`, `vmap` and `grad`, with a number, and a gradient of its author."""
    squared = tj.op(scaled_squares)
    a, b = drawn(5, 7).astype(jnp.float32), drawn(6, 7).astype(jnp.float32)
    with pytest.raises(ValueError, match="cannot be differentiated"):
        jax.grad(lambda a: squared(a, b, 0.5).sum())(a)

    @squared.backward
    def gradient(dC: Any, A: Any, B: Any, scale: float) -> dict[str, Any]:
        sums = 2 * scale * tj.linear(A, B) * dC
        return {"A": tj.matmul(sums, B), "B": tj.matmul(sums.T, A)}

    def like(a: Any, b: Any) -> Any:
        return 0.5 * jnp.square(a @ b.T)

    def call(a: Any, b: Any) -> Any:
        return squared(a, b, 0.5)

    close(jax.jit(call)(a, b), like(a, b), 1e-5)
    for one, other in zip(
        jax.grad(lambda *given: call(*given).sum(), (0, 1))(a, b),
        jax.grad(lambda *given: like(*given).sum(), (0, 1))(a, b),
        strict=True,
    ):
        close(one, other, 1e-4)
    batch = jnp.stack([a, 2 * a, -a])
    close(jax.vmap(call, (0, None))(batch, b), jax.vmap(like, (0, None))(batch, b), 1e-5)
    with pytest.raises(LaunchError, match="takes 3 arguments, and was given 2"):
        squared(a, b)
    with pytest.raises(LaunchError, match=r"scale is .*; nearest legal choice: a number of Python"):
        jax.jit(squared)(a, b, 0.5)
    with pytest.raises(SignatureError, match="a parameter other"):
        squared.backward(lambda other: {})


# ---------------------------------------------------------------- exported programs

LOADS = """
import sys
import jax, numpy as np
from jax import export
import tilewright.jax
tilewright.jax.ready()
program = export.deserialize(bytearray(open(sys.argv[1], "rb").read()))
a, b = (np.load(path) for path in sys.argv[2:4])
np.save(sys.argv[4], program.call(a, b))
"""


def test_exported_program(tmp_path: Path) -> None:
    """A stored program is loaded by another process, which then compiles the kernels of its calls."""
    a, b = (np.asarray(drawn(*shape), np.float32) for shape in ((9, 5), (5, 6)))

    def program(a: Any, b: Any) -> Any:
        return jax.grad(lambda a: jnp.sin(tj.matmul(a, b)).sum())(a)

    allowed = [export.DisabledSafetyCheck.custom_call("tilewright")]
    stored = export.export(jax.jit(program), disabled_checks=allowed)(a, b).serialize()
    names = ("program", "a.npy", "b.npy", "made.npy")
    paths = [tmp_path / name for name in names]
    paths[0].write_bytes(stored)
    np.save(paths[1], a)
    np.save(paths[2], b)
    subprocess.run([sys.executable, "-c", LOADS, *map(str, paths)], check=True)
    close(np.load(paths[3]), program(a, b), 0)
    close(np.load(paths[3]), np.cos(a.astype(np.float64) @ b) @ b.T, 1e-5)


def test_training_of_a_layer() -> None:
    """Steps of gradient descent on two layers are those of JAX's own products."""
    x, target = drawn(16, 12), drawn(16, 3)
    first = [drawn(12, 20) / 4, drawn(20), drawn(20, 3) / 4, drawn(3)]

    def losses(matmul: Any) -> list[float]:
        def loss(given: list[Any]) -> Any:
            w, b, v, c = given
            return jnp.square(matmul(jax.nn.relu(matmul(x, w) + b), v) + c - target).mean()

        step = jax.jit(jax.value_and_grad(loss))
        held, found = first, list[float]()
        for _ in range(50):
            value, gradients = step(held)
            found.append(float(value))
            held = [one - 0.05 * slope for one, slope in zip(held, gradients, strict=True)]
        return found

    found = losses(tj.matmul)
    assert found[-1] < 0.5 * found[0]
    np.testing.assert_allclose(found, losses(jnp.matmul), rtol=1e-9)
    compare(tj.matmul, jnp.matmul, x, first[0])
