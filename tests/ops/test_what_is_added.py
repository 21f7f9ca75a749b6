"""Arrays that `matmul` adds to the sums: shapes, refusals of arrays that it would not read, known calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import tilewright as tw

Array = np.ndarray[Any, Any]
TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
A, B = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)


def drawn(seed: int, *shape: int) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def close(made: Array, expected: Array, depth: int) -> bool:
    """Return the f32 error bound of sums of products of normal random numbers and the added arrays."""
    return bool((np.abs(made - expected) <= (depth + 8) * 2.0**-22 * (1 + np.abs(expected))).all())


@TARGETS
@pytest.mark.parametrize("shape", [(), (7,), (1, 7), (6, 1), (1, 1), (2, 1, 7), (1, 6, 1)], ids=str)
def test_it_is_broadcast_as_numpy_does(shape: tuple[int, ...], target: str) -> None:
    a, b, added = drawn(1, 2, 6, 5), drawn(2, 5, 7), drawn(3, *shape)
    product = a.astype(np.float64) @ b
    assert close(tw.matmul(a, b, c=added, beta=-2.0, target=target), product - 2.0 * added, 5)
    assert close(tw.matmul(a, b, residual=added, target=target), product + added, 5)


@TARGETS
def test_vectors_and_numbers_take_what_fits_their_result(target: str) -> None:
    x, y, b = drawn(1, 5), drawn(2, 5), drawn(3, 5, 7)
    number, row = np.array(2, np.float32), drawn(4, 7)
    assert close(tw.matmul(x, y, c=number, target=target), x.astype(np.float64) @ y + 2, 5)
    assert close(tw.matmul(x, b, residual=row, target=target), x.astype(np.float64) @ b + row, 5)
    assert close(tw.matmul(x, b, c=number, target=target), x.astype(np.float64) @ b + 2, 5)
    out = np.array(3, np.float32)
    assert tw.matmul(x, y, out, beta=0.5, target=target) is out
    assert close(out, x.astype(np.float64) @ y + 1.5, 5)


@pytest.mark.parametrize("beta", [1.0, 0.0, 0])
@pytest.mark.parametrize(
    ("added", "message"),
    [
        (np.ones((3, 5), np.float32), r"c has shape \(3, 5\), which does not broadcast to .*\(4, 5\)"),
        (np.ones((1, 1, 4, 5), np.float32), r"c has shape \(1, 1, 4, 5\), which does not broadcast"),
        (np.ones((4, 5), np.complex64), "c is c64, and sums of f32 are real; nearest legal choice: c.real"),
        ("C", "matmul, argument c: builtins.str is not an array"),
        (3.0, "matmul, argument c: builtins.float is not an array"),
    ],
)
def test_c_must_fit_though_it_is_not_read(added: Any, message: str, beta: float) -> None:
    with pytest.raises(tw.TilewrightError, match=message):
        tw.matmul(A, B, c=added, beta=beta)


def test_bias_is_one_number_for_each_column_and_real() -> None:
    for shape in ((), (1,), (1, 5), (4, 1)):
        with pytest.raises(tw.LaunchError, match="one number for each column"):
            tw.matmul(A, B, bias=np.ones(shape, np.float32))
    for name in ("bias", "residual"):
        with pytest.raises(tw.DTypeError, match=rf"{name} is c128.*{name}\.real"):
            tw.matmul(A, B, **{name: np.ones(5, np.complex128)})


@TARGETS
def test_strides_of_what_is_not_stepped_along_count_for_nothing(target: str) -> None:
    a, b = drawn(1, 1, 5), drawn(2, 5, 7)
    for other in (lambda out: as_strided(out, (1, 7), (4000, 4)), lambda out: out[0]):
        for name in ("c", "residual"):
            out = drawn(3, 1, 7)
            expected = a.astype(np.float64) @ b + out
            assert tw.matmul(a, b, out, **{name: other(out)}, target=target) is out
            assert close(out, expected, 5)


# ---------------------------------------------------------------- known calls


def test_a_known_call_needs_addresses_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, bias = drawn(1, 9, 5), drawn(2, 5, 7), drawn(3, 9, 7), drawn(4, 7)
    product = a.astype(np.float64) @ b
    calls: list[tuple[dict[str, Any], Callable[[dict[str, Any], Array], Array]]] = [
        ({"alpha": 1.5, "beta": -0.5, "c": c}, lambda w, p: w["alpha"] * p + w["beta"] * c),
        ({"bias": bias, "activation": "relu"}, lambda w, p: np.maximum(p + bias, 0)),
        ({"residual": c[0], "alpha": 0.5}, lambda w, p: w["alpha"] * p + c[0]),
        ({"alpha": 2.5}, lambda w, p: w["alpha"] * p),
        ({"out_dtype": "f64"}, lambda w, p: p),
        ({"beta": 0.0, "c": c}, lambda w, p: p),
    ]
    for words, _ in calls:
        tw.matmul(a, b, **words)
        tw.matmul(a, b, np.zeros_like(c), **{**words, "out_dtype": None})
    monkeypatch.setattr("tilewright.ops.matmul.multiplied", None)
    for words, meaning in calls:
        for scale in (1.0, 1.25):
            said = {n: v * scale if n in ("alpha", "beta") else v for n, v in words.items()}
            x, out = a.copy(), np.full_like(c, np.nan)
            assert close(tw.matmul(x, b, **said), meaning(said, product), 5)
            assert tw.matmul(x, b, out, **{**said, "out_dtype": None}) is out
            assert close(out, meaning(said, product), 5)


def test_out_may_be_c_of_a_known_call(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = drawn(1, 9, 5), drawn(2, 5, 7)
    tw.matmul(a, b, drawn(3, 9, 7), beta=0.5)
    monkeypatch.setattr("tilewright.ops.matmul.multiplied", None)
    for beta in (0.5, -2.5):
        out = drawn(4, 9, 7)
        expected = a.astype(np.float64) @ b + beta * out
        tw.matmul(a, b, out, beta=beta)
        assert close(out, expected, 5)


def test_numbers_that_make_another_kernel_are_another_call() -> None:
    a, b, c = drawn(1, 9, 5), drawn(2, 5, 7), drawn(3, 9, 7)
    product = a.astype(np.float64) @ b
    for alpha in (2.0, 1.0, 0.0, 1.5, 2, 1, 0):
        for beta in (1, 0, 2.0, 0.5, 0.0, 1.0):
            for _ in range(2):
                made = tw.matmul(a, b, c=c, alpha=alpha, beta=beta)
                assert close(made, alpha * product + beta * c, 5), (alpha, beta)
            unread = np.full_like(c, np.nan)
            assert beta or close(tw.matmul(a, b, unread, alpha=alpha, beta=beta), alpha * product, 5)


def test_a_known_call_is_refused_what_an_unknown_one_is() -> None:
    memory = np.zeros((9, 30), np.float32)
    a, b, c, out = drawn(1, 9, 5), drawn(2, 5, 7), memory[:, :7], memory[:, 8:15]
    for _ in range(2):
        tw.matmul(a, b, out, c=c)
    with pytest.raises(tw.LaunchError, match="out and c share memory"):
        tw.matmul(a, b, out, c=memory[:, 4:11])
    with pytest.raises(tw.LaunchError, match="stream=3 is for GPUs"):
        tw.matmul(a, b, out, c=c, stream=3)
    small = np.ones((4, 4), np.int8)
    assert (tw.matmul(small, small, alpha=2.0) == 8).all()
    with pytest.raises(tw.DTypeError, match="alpha: the result has fractions"):
        tw.matmul(small, small, alpha=2.5)
    with pytest.raises(tw.DTypeError, match="bias: the result has fractions, and i32 cannot hold them"):
        tw.matmul(small, small, bias=np.full(4, 0.5, np.float32))
    assert (tw.matmul(small, small, bias=np.full(4, 0.5, np.float32), out_dtype="f32") == 4.5).all()
    for alpha in (np.float32(2), 2):
        assert (tw.matmul(small, small, alpha=alpha) == 8).all()
    for wrong in (True, "2", 10**400):
        with pytest.raises(tw.LaunchError):
            tw.matmul(A, B, alpha=wrong)
