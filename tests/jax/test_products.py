"""Products in JAX, compared with JAX's own in f64: results, gradients, `vmap` and `jit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tilewright as tw
import tilewright.jax as tj
from tilewright.errors import LaunchError

f64 = jnp.float64
HIGHEST = jax.lax.Precision.HIGHEST


def drawn(*shape: int, seed: int = 0, dtype: Any = np.float64) -> Any:
    made = np.random.default_rng([*shape, seed]).standard_normal(shape)
    return jnp.asarray(made.astype(dtype))


def close(found: Any, expected: Any, tolerance: float = 1e-11) -> None:
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


def compare(call: Callable[..., Any], like: Callable[..., Any], *arrays: Any, twice: bool = False) -> None:
    """Compare results and gradients, perhaps second ones, with and without `jit`; the kernels must run."""
    assert "tilewright" in jax.jit(call).lower(*arrays).as_text()
    close(call(*arrays), like(*arrays))
    weight = drawn(*jnp.shape(like(*arrays)), seed=9)
    places = tuple(range(len(arrays)))

    def total(function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given: (function(*given) * weight).sum()

    first, expected = (jax.grad(total(one), places) for one in (call, like))
    for one, other in zip(jax.jit(first)(*arrays), expected(*arrays), strict=True):
        close(one, other)
    if twice:

        def square(gradients: Callable[..., Any]) -> Callable[..., Any]:
            return lambda *given: sum((one * one).sum() for one in gradients(*given))

        second = (jax.grad(square(one), places)(*arrays) for one in (first, expected))
        for one, other in zip(*second, strict=True):
            close(one, other, 1e-9)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((7, 5), (5, 9)),
        ((5,), (5, 9)),
        ((7, 5), (5,)),
        ((5,), (5,)),
        ((3, 7, 5), (5, 9)),
        ((2, 1, 7, 5), (3, 5, 9)),
        ((0, 5), (5, 9)),
        ((3, 0), (0, 4)),
    ],
)
def test_matmul(a: Sequence[int], b: Sequence[int]) -> None:
    compare(tj.matmul, jnp.matmul, drawn(*a), drawn(*b), twice=len(a) == len(b) == 2 and 0 not in (*a, *b))


ACTIVATIONS: dict[str | None, Callable[[Any], Any]] = {
    None: lambda x: x,
    "relu": jax.nn.relu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "gelu_tanh": jax.nn.gelu,
    "silu": jax.nn.silu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
}


@pytest.mark.parametrize(
    ("activation", "late"),
    [(None, False), (None, True), ("relu", False), ("sigmoid", True), ("tanh", False), ("gelu", False)],
)
def test_terms(activation: str | None, late: bool) -> None:
    """Every term has a gradient, whether or not the activation's derivative follows from the result."""
    arrays = [drawn(2, 7, 5), drawn(5, 6), drawn(7, 1), drawn(6)]
    if late:
        arrays += [drawn(2, 1, 6), drawn(2, 7, 6, seed=3)]

    def call(a: Any, b: Any, c: Any, bias: Any, multiply: Any = None, residual: Any = None) -> Any:
        more = {"multiply": multiply, "residual": residual} if late else {}
        return tj.matmul(a, b, c=c, bias=bias, alpha=0.5, beta=2.0, activation=activation, **more)

    def like(a: Any, b: Any, c: Any, bias: Any, multiply: Any = 1.0, residual: Any = 0.0) -> Any:
        return ACTIVATIONS[activation](0.5 * (a @ b) + 2 * c + bias) * multiply + residual

    compare(call, like, *arrays)


def test_terms_beside_vectors() -> None:
    """They are broadcast to the result, which lacks the dimension of the vector."""
    for a, b, c in (
        ((5,), (3, 5, 4), (3, 4)),
        ((3, 7, 5), (5,), (3, 7)),
        ((5,), (5,), ()),
        ((5,), (5, 4), (4,)),
    ):
        compare(
            lambda x, y, z: tj.matmul(x, y, c=z, multiply=z),
            lambda x, y, z: (x @ y + z) * z,
            *(drawn(*a), drawn(*b), drawn(*c, seed=2)),
        )


def test_linear() -> None:
    compare(
        lambda x, w, bias, more: tj.linear(x, w, bias, activation="silu", residual=more),
        lambda x, w, bias, more: jax.nn.silu(x @ w.T + bias) + more,
        *(drawn(2, 3, 5), drawn(4, 5), drawn(4), drawn(3, 4)),
    )
    x, w = drawn(6, 5), drawn(4, 5)
    compare(tj.linear, lambda x, w: x @ w.T, x, w, twice=True)
    assert "transpose" not in jax.jit(tj.linear).lower(x, w).as_text()


@pytest.mark.parametrize(
    ("axes", "shapes"),
    [
        ((0, None), ((4, 7, 5), (5, 6))),
        ((None, 1), ((7, 5), (5, 4, 6))),
        ((2, 0), ((7, 5, 4), (4, 5, 6))),
        ((0, 0), ((4, 5), (4, 5, 6))),
    ],
)
def test_vmap_of_matmul(axes: Any, shapes: Sequence[Sequence[int]]) -> None:
    """A batch of products is one call; gradients of each sample too."""
    a, b = drawn(*shapes[0]), drawn(*shapes[1])
    call, like = jax.vmap(tj.matmul, axes), jax.vmap(jnp.matmul, axes)
    assert jax.jit(call).lower(a, b).as_text().count("@tilewright(") == 1
    compare(call, like, a, b)

    def sample(function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.vmap(jax.grad(lambda a, b: (function(a, b) ** 2).sum(), (0, 1)), axes)

    for one, other in zip(sample(tj.matmul)(a, b), sample(jnp.matmul)(a, b), strict=True):
        close(one, other)


def test_vmap_of_terms() -> None:
    """A bias for each element of a batch takes the place of `c`; with both there is a loop."""
    x, w, bias, c = drawn(4, 7, 5), drawn(6, 5), drawn(4, 6), drawn(4, 7, 6)
    compare(
        jax.vmap(tj.linear, (0, None, 0)), jax.vmap(lambda x, w, b: x @ w.T + b, (0, None, 0)), x, w, bias
    )
    compare(
        jax.vmap(lambda x, b, c: tj.matmul(x, w.T, bias=b, c=c, beta=3.0)),
        jax.vmap(lambda x, b, c: x @ w.T + b + 3 * c),
        *(x, bias, c),
    )
    twice = jax.vmap(jax.vmap(tj.linear, (0, None)), (None, 0))
    compare(twice, lambda x, w: jnp.einsum("bmk,pnk->pbmn", x, w), x, drawn(3, 6, 5))


@pytest.mark.parametrize(
    ("dtype", "unit"), [(jnp.float32, 2**-24), (jnp.float16, 2**-11), (jnp.bfloat16, 2**-8)]
)
def test_dtypes(dtype: Any, unit: float) -> None:
    """Ragged products within the bound of sums in f32 and one rounding."""
    a, b = drawn(37, 61, dtype=dtype), drawn(61, 45, dtype=dtype)
    found = np.asarray(jax.jit(tj.matmul)(a, b), np.float64)
    exact_a, exact_b = (np.asarray(one, np.float64) for one in (a, b))
    bound = 62 * 2.0**-24 * (abs(exact_a) @ abs(exact_b)) + unit * abs(exact_a @ exact_b)
    assert bool((abs(found - exact_a @ exact_b) <= 1.01 * bound).all())
    codes = jnp.asarray(np.random.default_rng(0).integers(-128, 128, (5, 61)), jnp.int8)
    sums = tj.matmul(codes, codes.T)
    assert sums.dtype == jnp.int32
    np.testing.assert_array_equal(sums, np.asarray(codes, np.int64) @ np.asarray(codes, np.int64).T)


def test_large_products_on_several_threads() -> None:
    """Callers of several threads share XLA's threads; every result is the same."""
    a = drawn(300, 300, dtype=np.float32)
    product = jax.jit(lambda a: tj.matmul(tj.matmul(a, a), a))
    first = np.asarray(product(a))
    exact = np.linalg.matrix_power(np.asarray(a, np.float64), 3)
    assert float(abs(first - exact).max()) <= 2e-5 * float(abs(exact).max())
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: np.asarray(product(a)), range(40)):
            np.testing.assert_array_equal(found, first)


# ---------------------------------------------------------------- contractions


@pytest.mark.parametrize(
    ("subscripts", "a", "b"),
    [
        ("bsk,khe->bhse", (2, 3, 5), (5, 4, 6)),
        ("ij,j->i", (3, 4), (4,)),
        ("abc,cbd->da", (3, 4, 5), (5, 4, 2)),
    ],
)
def test_einsum(subscripts: str, a: Sequence[int], b: Sequence[int]) -> None:
    call = lambda x, y: tj.einsum(subscripts, x, y, alpha=0.5)  # noqa: E731
    like = lambda x, y: 0.5 * jnp.einsum(subscripts, x, y, precision=HIGHEST)  # noqa: E731
    x, y = drawn(*a), drawn(*b)
    compare(call, like, x, y)
    compare(jax.vmap(call, (0, None)), jax.vmap(like, (0, None)), drawn(3, *a, seed=4), y)


@pytest.mark.parametrize("seed", range(5))
def test_random_dot_general(seed: int) -> None:
    """Random dimension numbers: contracted and batched axes anywhere, in any order."""
    rng = np.random.default_rng(seed)
    batches, contracted = int(rng.integers(0, 3)), int(rng.integers(1, 4))
    extents = {label: int(rng.integers(1, 6)) for label in "abcdefgh"}
    shared = "".join(rng.permutation([*"abcd"]))
    batch, along = shared[:batches], shared[batches : batches + min(contracted, 4 - batches)]
    of_left, of_right = "ef"[: rng.integers(0, 3)], "gh"[: rng.integers(0, 3)]
    left, right = ("".join(rng.permutation([*(batch + along + own)])) for own in (of_left, of_right))
    numbers = (
        (tuple(map(left.index, along)), tuple(map(right.index, along))),
        (tuple(map(left.index, batch)), tuple(map(right.index, batch))),
    )
    arrays = [drawn(*(extents[label] for label in own), seed=seed) for own in (left, right)]
    compare(
        lambda x, y: tj.dot_general(x, y, numbers),
        lambda x, y: jax.lax.dot_general(x, y, numbers, precision=HIGHEST),
        *arrays,
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_wider_results_of_dot_general_are_rounded_once(dtype: Any) -> None:
    """Sums in f32 are stored as they are, and not as numbers of the operands' 16 bits."""
    x, y = (drawn(*shape, dtype=np.float32).astype(dtype) for shape in ((9, 300), (300, 7)))
    numbers = (((1,), (0,)), ((), ()))

    def call(a: Any, b: Any) -> Any:
        return tj.dot_general(a, b, numbers, preferred_element_type=jnp.float32)

    wide = [np.asarray(one, np.float64) for one in (x, y)]
    for found in (call(x, y), jax.vmap(call, (0, None))(x[:, None], y)[:, 0]):
        assert found.dtype == jnp.float32
        bound = 304 * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))
        assert (np.abs(np.asarray(found, np.float64) - wide[0] @ wide[1]) <= bound).all()
    slope = jax.grad(lambda a: call(a, y).sum())(x)
    assert slope.dtype == dtype
    expected = wide[1].sum(1)[None].repeat(9, 0)
    bound = 8 * 2.0**-24 * np.abs(wide[1]).sum(1) + float(jnp.finfo(dtype).eps) * np.abs(expected)
    assert (np.abs(np.asarray(slope, np.float64) - expected) <= bound).all()


# ---------------------------------------------------------------- quantised numbers, and refusals


def test_scaled_mm() -> None:
    x = drawn(5, 64, dtype=np.float16)
    rng = np.random.default_rng(1)
    codes = jnp.asarray(rng.integers(-127, 128, (8, 64)), jnp.int8)
    scales = jnp.abs(drawn(8)).astype(jnp.float32)
    wide, numbers = np.asarray(x, np.float64), np.asarray(codes, np.float64)
    exact = wide @ numbers.T * np.asarray(scales) + np.asarray(scales)
    found = jax.jit(lambda *given: tj.scaled_mm(*given, scale_b=scales, bias=scales))(x, codes)
    bound = 70 * 2.0**-23 * (abs(wide) @ abs(numbers.T) * np.asarray(scales) + np.asarray(scales))
    assert bool((abs(np.asarray(found, np.float64) - exact) <= bound).all())
    fp8 = (codes / 16).astype(jnp.float8_e4m3fn)
    exact = 0.5 * (wide @ np.asarray(fp8, np.float64).T) * np.asarray(scales)
    close(tj.scaled_mm(x, fp8, scale_a=0.5, scale_b=scales), exact, 2e-5)
    small = rng.integers(-8, 8, (8, 64)).astype(np.int8)
    by_group = jnp.abs(drawn(2, 8)).astype(jnp.float16)
    given = {"scale_b": by_group, "group": 32, "packed": "i4"}
    weights = (small.T.astype(np.float16) * np.repeat(np.asarray(by_group), 32, 0)).astype(np.float64)
    close(tj.scaled_mm(x, jnp.asarray(tw.pack(small, tw.i4)), **given), wide @ weights, 2e-4)
    pairs, residuals = jnp.stack([x, 2 * x]), drawn(2, 5, 8, dtype=np.float32)
    for residual, axes in (
        (None, (0, None)),
        (residuals, (0, 0)),
        (residuals[:, 0], (0, 0)),
        (residuals[0], (0, None)),
    ):
        call = jax.vmap(lambda x, r: tj.scaled_mm(x, codes, scale_b=scales, residual=r), axes)
        text = jax.jit(call).lower(pairs, residual).as_text()
        assert text.count("@tilewright(") == 1
        assert "while" not in text
        found = call(pairs, residual)
        for at in range(2):
            one = residual[at] if residual is not None and axes[1] == 0 else residual
            close(found[at], tj.scaled_mm(pairs[at], codes, scale_b=scales, residual=one), 1e-6)
    both = jax.vmap(lambda x, codes: tj.scaled_mm(x, codes, scale_b=scales))(
        pairs, jnp.stack([codes, -codes])
    )
    close(both[1], -2 * both[0], 1e-6)


@pytest.mark.parametrize(("dtype", "unit"), [(np.complex64, 1e-5), (np.complex128, 1e-12)])
def test_complex_numbers(dtype: Any, unit: float) -> None:
    """Products and contractions of complex numbers, with JAX's gradients, which take no conjugates."""
    a, b, c, x = (
        (drawn(*shape, seed=1) + 1j * drawn(*shape, seed=2)).astype(dtype)
        for shape in ((3, 7, 5), (5, 9), (7, 9), (4, 5, 7))
    )
    cases: list[tuple[Any, Any, tuple[Any, ...]]] = [
        (lambda a, b, c: tj.matmul(a, b, c=c, beta=2.0), lambda a, b, c: a @ b + 2 * c, (a, b, c)),
        (
            lambda a, x: tj.einsum("bij,cjk->bcik", a, x),
            lambda a, x: jnp.einsum("bij,cjk->bcik", a, x),
            (a, x),
        ),
        (jax.vmap(tj.matmul), jax.vmap(jnp.matmul), (a, x[:3])),
    ]
    for call, like, arrays in cases:
        wide = [one.astype(jnp.complex128) for one in arrays]
        assert "tilewright" in jax.jit(call).lower(*arrays).as_text()
        weight = drawn(*like(*wide).shape, seed=9)

        def slopes(function: Any, given: Any, weight: Any = weight) -> Any:
            places = tuple(range(len(given)))
            return jax.grad(lambda *own: (jnp.abs(function(*own)) * weight).sum(), places)(*given)

        pairs = [(call(*arrays), like(*wide)), *zip(slopes(call, arrays), slopes(like, wide), strict=True)]
        for found, expected in pairs:
            assert found.dtype == dtype
            np.testing.assert_allclose(found, expected, rtol=unit, atol=20 * unit)


def test_refusals() -> None:
    """Shapes and words are refused when a program is traced, dtypes when it is compiled."""
    with pytest.raises(LaunchError, match="a has 4 elements along K, and b 5"):
        tj.matmul(drawn(3, 4), drawn(5, 6))
    with pytest.raises(LaunchError, match="operands of one dtype"):
        tj.matmul(drawn(3, 4), drawn(4, 6, dtype=np.float32))
    with pytest.raises(LaunchError, match="occur once in each operand"):
        tj.einsum("ii,ij->j", drawn(3, 3), drawn(3, 4))
    with pytest.raises(jax.errors.JaxRuntimeError, match="DTypeError: einsum of i32 is not supported"):
        tj.einsum("ij,jk->ik", jnp.ones((3, 4), jnp.int32), jnp.ones((4, 5), jnp.int32))
    a, b = drawn(3, 4), drawn(4, 6)
    for wrong in ("bent", ["relu"]):
        for call in (tj.matmul, jax.grad(lambda *given, **words: tj.matmul(*given, **words).sum())):
            with pytest.raises(LaunchError, match=r"activation=.*; choose one of relu"):
                call(a, b, activation=wrong)
    for call in (tj.matmul, tj.linear, partial(tj.einsum, "ij,jk->ik")):
        with pytest.raises(LaunchError, match="precision='high'; choose one of exact"):
            call(a, b, precision="high")
    for name, one in (("bias", a[0]), ("c", a), ("residual", drawn(2, 3, 6)), ("multiply", drawn(2))):
        for call in (tj.matmul, jax.jit(tj.matmul)):
            with pytest.raises(LaunchError, match=f"matmul: {name} has shape"):
                call(a, b, **{name: one})
    for wrong in (1j, "x", None, a):
        with pytest.raises(LaunchError, match=r"alpha=.*; nearest legal choice: a real number"):
            tj.matmul(a, b, alpha=wrong)
    for name, call in (
        ("alpha", lambda x: tj.matmul(drawn(3, 4), drawn(4, 6), alpha=x)),
        ("beta", lambda x: tj.matmul(drawn(3, 4), drawn(4, 6), c=drawn(3, 6), beta=x)),
        ("alpha", lambda x: tj.einsum("ij,jk->ik", drawn(3, 4), drawn(4, 6), alpha=x)),
        ("scale", lambda x: tj.attention(*[drawn(3, 4, dtype=np.float32)] * 3, scale=x)),
    ):
        with pytest.raises(LaunchError, match=f"{name} is traced"):
            jax.jit(call)(2.0)
    with pytest.raises(TypeError, match="forward-mode"):
        jax.jvp(tj.matmul, (drawn(3, 4), drawn(4, 5)), (drawn(3, 4), drawn(4, 5)))
