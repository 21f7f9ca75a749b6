"""`matmul` with all its arguments: shapes of every rank, terms, outputs of any strides."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given as drawing
from hypothesis import settings
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ops.ending import ACTIVATIONS
from tilewright.ops.products import plain

pytestmark = pytest.mark.in_turns(3)

Array = np.ndarray[Any, Any]
TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])

MEANINGS: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (0.5 + 0.5 * np.vectorize(math.erf, otypes=[float])(x / np.sqrt(2))),
    "gelu_tanh": lambda x: x * (0.5 + 0.5 * np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "tanh": np.tanh,
}


def drawn(seed: int, *shape: int, dtype: Any = np.float32) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def within(shape: tuple[int, ...], dtype: Any = np.float32) -> Array:
    """Return an array inside of a larger one, with gaps full of NaN between its rows."""
    larger = np.full([extent + 3 for extent in shape], np.nan, dtype)
    return larger[tuple(slice(1, 1 + extent) for extent in shape)]


def nothing_else_written(out: Array) -> bool:
    return bool(np.isnan(out.base.astype(np.float64)).sum() == out.base.size - out.size)


def bound(a: Array, b: Array) -> Array:
    """Return the error bound of each f32 sum, from K and the magnitudes of the products."""
    sizes = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64))
    return np.asarray((a.shape[-1] + 4) * 2.0**-24 * sizes + 1e-30)


SHAPES = [
    ((5, 6), (6, 7)),
    ((3, 5, 6), (6, 7)),
    ((3, 5, 6), (3, 6, 7)),
    ((2, 3, 5, 6), (3, 6, 7)),
    ((2, 1, 3, 6), (4, 6, 5)),
    ((2, 1, 3, 2, 6), (1, 4, 1, 6, 5)),
    ((6,), (6, 7)),
    ((5, 6), (6,)),
    ((6,), (6,)),
    ((4, 6), (3, 6, 2)),
    ((6,), (3, 6, 2)),
    ((3, 4, 6), (6,)),
    ((5, 0), (0, 3)),
    ((0, 3), (3, 2)),
    ((2, 0, 3, 4), (4, 2)),
    ((0,), (0,)),
    ((40, 70), (70, 33)),
    ((1, 70), (70, 1)),
]


@pytest.mark.in_turns(4)
@TARGETS
@pytest.mark.parametrize(("a", "b"), SHAPES)
def test_numpys_shapes(a: tuple[int, ...], b: tuple[int, ...], target: str) -> None:
    x, y = drawn(1, *a), drawn(2, *b)
    expected = np.matmul(x.astype(np.float64), y)
    made = tw.matmul(x, y, target=target)
    assert (made.shape, made.dtype) == (expected.shape, np.float32)
    assert (np.abs(made - expected) <= bound(x, y)).all()
    if expected.ndim:
        out = within(expected.shape)
        assert tw.matmul(x, y, out, target=target) is out
        assert (np.abs(out - expected) <= bound(x, y)).all()
        assert nothing_else_written(out)


@settings(max_examples=25, deadline=None)
@drawing(data=st.data())
def test_views_of_any_strides(data: st.DataObject) -> None:
    steps = st.sampled_from([slice(None), slice(None, None, -1), slice(1, None, 2), slice(None, None, -3)])
    base = drawn(3, 9, 18, 27)
    a = base[tuple(data.draw(steps) for _ in range(3))]
    b = drawn(4, 60, 60)[:: data.draw(st.sampled_from([1, -1]))][: a.shape[2]][:, data.draw(steps)]
    if data.draw(st.booleans()):
        a = np.broadcast_to(a[:1], a.shape)
    out = np.full((a.shape[0], b.shape[1], a.shape[1]), np.nan, np.float32).transpose(0, 2, 1)
    out = out[data.draw(st.sampled_from([slice(None), slice(None, None, -1)]))]
    tw.matmul(a, b, out)
    assert (np.abs(out - a.astype(np.float64) @ b) <= bound(a, b)).all()


@pytest.mark.in_turns(4)
@TARGETS
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
def test_what_is_done_to_the_sums(activation: str | None, target: str) -> None:
    a, b, c, r = drawn(1, 3, 20, 30), drawn(2, 30, 41), drawn(3, 20, 41), drawn(4, 3, 20, 41)
    bias, out = drawn(5, 41), within((3, 20, 41))
    given = {"c": c, "alpha": 0.25, "beta": -2.0, "bias": bias, "residual": r, "activation": activation}
    tw.matmul(a, b, out, **given, target=target)
    inner = 0.25 * (a.astype(np.float64) @ b) - 2.0 * c + bias
    expected = (MEANINGS[activation](inner) if activation else inner) + r
    np.testing.assert_allclose(out, expected, rtol=2e-5, atol=2e-5)
    assert nothing_else_written(out)


@TARGETS
@pytest.mark.parametrize("term", ["alpha", "c", "bias", "activation", "residual"])
def test_each_alone(term: str, target: str) -> None:
    a, b = drawn(1, 20, 30), drawn(2, 30, 41)
    product = a.astype(np.float64) @ b
    c, bias = drawn(3, 20, 1), drawn(5, 41)
    value, expected = {
        "alpha": (-3.0, -3 * product),
        "c": (c, product + c),
        "bias": (bias, product + bias),
        "activation": ("relu", np.maximum(product, 0)),
        "residual": (c, product + c),
    }[term]
    made = tw.matmul(a, b, **{term: value}, target=target)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5)


@TARGETS
def test_c_may_be_the_output(target: str) -> None:
    a, b, before = drawn(1, 20, 30), drawn(2, 30, 41), drawn(3, 20, 41)
    expected = a.astype(np.float64) @ b + 0.5 * before
    for given in ("out", "c", "residual"):
        out = before.copy()
        if given == "out":
            made = tw.matmul(a, b, out, beta=0.5, target=target)
        elif given == "c":
            made = tw.matmul(a, b, out, c=out, beta=0.5, target=target)
        else:
            out *= 0.5
            made = tw.matmul(a, b, out, residual=out, target=target)
        assert made is out
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)


@TARGETS
def test_with_beta_0_c_is_not_read(target: str) -> None:
    a, b = drawn(1, 20, 30), drawn(2, 30, 41)
    for given in (
        {"c": np.full((20, 41), np.nan, np.float32)},
        {"out": np.full((20, 41), np.nan, np.float32)},
    ):
        made = tw.matmul(a, b, **given, beta=0.0, alpha=2.0, target=target)
        np.testing.assert_allclose(made, 2 * (a.astype(np.float64) @ b), rtol=1e-5, atol=1e-5)


@TARGETS
def test_no_depth_leaves_what_is_added(target: str) -> None:
    a, b, c = np.zeros((5, 0), np.float32), np.zeros((0, 7), np.float32), drawn(3, 5, 7)
    assert (tw.matmul(a, b, target=target) == 0).all()
    np.testing.assert_allclose(tw.matmul(a, b, c=c, beta=2.0, target=target), 2 * c, rtol=1e-6)


@TARGETS
@pytest.mark.parametrize("activation", [None, "relu"])
def test_f32_is_rounded_to_tf32_if_that_is_enough(activation: str | None, target: str) -> None:
    a, b = np.full((20, 1), 1 + 2.0**-12, np.float32), np.ones((1, 30), np.float32)
    for precision, expected in (("exact", 1 + 2.0**-12), ("tf32", 1.0)):
        made = tw.matmul(a, b, precision=precision, activation=activation, target=target)
        assert (made == np.float32(expected)).all()
    for dtype in (np.float64, np.float16):  # dtypes that lose nothing
        x, y = (1 + drawn(1, 20, 8) / 64).astype(dtype), drawn(2, 8, 30, dtype=dtype)
        made = tw.matmul(x, y, precision="tf32", target=target)
        assert (made == tw.matmul(x, y, target=target)).all()


def test_wgmma_cuts_off_what_tf32_does_not_have() -> None:
    """Each factor loses up to 2**-10 of itself: the bound of `docs/precision.md` is nearly reached."""
    x = np.float32(1 + 2.0**-10 - 2.0**-23)
    a, b = np.full((128, 64), x, np.float32), np.asfortranarray(np.full((64, 64), x, np.float32))
    bulk = {"stages": 3, "staging": "tma", "roles": "cooperative"}
    schedule = tw.Schedule(tw.atoms.wgmma("f32", 64), (128, 64, 32), warps=(2, 1), **bulk)
    made = tw.matmul(a, b, precision="tf32", target="reference", schedule=schedule)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    off = np.abs(made - exact) / exact
    assert (off <= 2.0**-9).all()
    assert (off > 1.9 * 2.0**-10).all()


@TARGETS
def test_dtypes_of_the_result(target: str) -> None:
    half, small = drawn(1, 9, 30, dtype=np.float16), np.arange(-40, 50, dtype=np.int8).reshape(9, 10)
    for given, asked, made in (
        (half, None, np.float16),
        (half, "f32", np.float32),
        (half, tw.bf16, ml_dtypes.bfloat16),
        (half.astype(ml_dtypes.float8_e4m3fn), None, np.float16),
        (half.astype(ml_dtypes.float8_e5m2), "bf16", ml_dtypes.bfloat16),
        (small, None, np.int32),
        (small, tw.f32, np.float32),
    ):
        c = tw.matmul(given, given.T, out_dtype=asked, target=target)
        assert c.dtype == made
        expected = given.astype(np.float64) @ given.T.astype(np.float64)
        np.testing.assert_allclose(c.astype(np.float64), expected, rtol=2e-2, atol=2e-2)
    exact = small.astype(np.int64) @ small.T.astype(np.int64)
    np.testing.assert_array_equal(tw.matmul(small, small.T, target=target), exact)
    made = tw.matmul(small, small.T, alpha=0.5, out_dtype="f32", target=target)
    np.testing.assert_array_equal(made, exact * 0.5)


A, B = np.ones((4, 3), np.float32), np.ones((3, 5), np.float32)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tw.matmul(A, B, out_dtype="i32"), "out_dtype is i32, a @ b is f32: the fractions"),
        (
            lambda: tw.matmul(A, B, np.zeros((4, 5), np.float32), out_dtype="f16"),
            "out is f32, and out_dtype=f16",
        ),
        (lambda: tw.matmul(A, B.astype(np.float16)), "matmul of f32 and f16: convert one of them first"),
        (lambda: tw.matmul(A, B.astype(np.int8)), "matmul of f32 and i8; nearest legal choice: tw.scaled_mm"),
        (lambda: tw.matmul(A, B, bias=np.ones(4, np.float32)), r"bias has shape \(4,\)"),
        (
            lambda: tw.matmul(A, B, c=np.ones((5, 4), np.float32)),
            r"c has shape \(5, 4\), which does not broadcast",
        ),
        (lambda: tw.matmul(A, B, beta=2.0), "beta=2.0 needs c or out"),
        (lambda: tw.matmul(A, B, np.broadcast_to(np.float32(0), (4, 5))), "read-only"),
        (lambda: tw.matmul(A, B, precision="fast"), "precision='fast'; choose one of exact, tf32"),
        (lambda: tw.matmul(A, B, residual=3), "matmul, argument residual: builtins.int is not an array"),
    ],
)
def test_what_is_refused(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(tw.TilewrightError, match=message):
        call()


def test_what_is_written_is_read_nowhere_else() -> None:
    memory = np.zeros((3, 12), np.float32)
    a, b, out = np.ones((3, 4), np.float32), np.ones((4, 6), np.float32), memory[:, 2:8]
    for name in ("c", "residual"):
        with pytest.raises(tw.LaunchError, match=f"out and {name} share memory"):
            tw.matmul(a, b, out, **{name: memory[:, 3:9]})
    with pytest.raises(tw.LaunchError, match="out and bias share memory"):
        tw.matmul(a, b, out, bias=memory[1, 2:8])
    with pytest.raises(tw.LaunchError, match="out and c share memory"):
        tw.matmul(a, b, out, c=out[::-1])


def test_rows_that_lie_over_each_other_are_no_output() -> None:
    out = np.lib.stride_tricks.as_strided(np.zeros(20, np.float32), (4, 5), (4, 4))
    with pytest.raises(tw.LaunchError, match="give several of its"):
        tw.matmul(A, B, out)


def test_a_schedule_is_said() -> None:
    schedule = tw.Schedule(tw.atoms.fma(tw.f32), (8, 8, 8))
    a, b = drawn(1, 20, 30), drawn(2, 30, 41)
    made = tw.matmul(a, b, schedule=schedule, target="reference")
    assert (np.abs(made - a.astype(np.float64) @ b) <= bound(a, b)).all()


def test_the_precision_that_is_asked_for_reaches_the_schedule() -> None:
    x = tw.like("f32", 256, 256)
    made = (
        plain(0)
        .bind(precision="tf32")
        .compile(x, tw.like("f32", 256, 256, order="F"), x, target="cuda", arch="sm_90a")
    )
    assert made.schedule.atom.precision == 10
