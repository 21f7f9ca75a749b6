"""The functions of one float, and the error bounds of targets, for the tests of all targets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.dtypes import DType, limits
from tilewright.functions.table import FUNCTIONS

VERBS: dict[str, Callable[[Any], Any]] = {
    "exp": tw.exp,
    "exp2": tw.exp2,
    "log": tw.log,
    "sqrt": tw.sqrt,
    "rsqrt": tw.rsqrt,
    "tanh": tw.tanh,
    "erf": tw.erf,
    "log2": tw.log2,
    "sin": tw.sin,
    "cos": tw.cos,
    "floor": tw.floor,
    "round": tw.round,
    "sigmoid": tw.sigmoid,
    "silu": tw.silu,
    "gelu": tw.gelu,
    "gelu_tanh": lambda x: tw.gelu(x, approximate=True),
}
"""What authors write, by the function's name in printed kernels."""

TILE = 512


@tw.kernel(X="N", Y="P N")
def each(X, Y, *, names):
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    x = tw.load(X.tile((TILE,), (n,)).partition((32,)))
    for at, name in enumerate(names):
        tw.copy(VERBS[name](x), Y[at].tile((TILE,), (n,)))


def points(dtype: DType, count: int = 1500) -> np.ndarray:
    """Numbers of all magnitudes, of the ranges in which functions change, and special values."""
    rng = np.random.default_rng(dtype.bits)
    limits = np.finfo(dtype.numpy)
    low, high = (-149, 128) if dtype.bits == 32 else (-1074, 1024)
    edges = [0.0, 1.0, 0.5, 0.875, 2.0, 6.0, np.inf, limits.max, limits.tiny, limits.smallest_subnormal]
    turns = np.arange(1, 60) * (np.pi / 4)
    parts = [
        *(rng.uniform(-reach, reach, count) for reach in (1.0, 7.0, 20.0, 110.0, 800.0)),
        np.exp2(rng.uniform(low, high, count)) * rng.choice([-1, 1], count),
        np.concatenate([edges, np.negative(edges), [np.nan]]),
        *(turns, np.round(turns * 2e5), np.exp2(np.arange(20, high, 7)) * 1.5),
        *(np.arange(-6, 6) + half for half in (0, 0.5)),
    ]
    made = np.concatenate(parts).astype(dtype.numpy)
    return np.concatenate([made, np.nextafter(made, dtype.numpy.type(9))])


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _share(x: Any, share: Any) -> Any:
    """Return x times its share; the limit at -inf is 0."""
    return np.where(x == -np.inf, 0, x * share)


def _gelu_tanh(x: Any) -> Any:
    t = 2 * np.sqrt(2 / np.arccos(np.longdouble(-1))) * (x + np.longdouble("0.044715") * x**3)
    return _share(x, _sigmoid(t))


def _erf(x: Any) -> Any:
    """Return its series of positive terms, in more bits than f64 has."""
    size = np.minimum(np.abs(x), 7)
    term = total = size
    for n in range(1, 250):
        term = term * (2 * size * size / (2 * n + 1))
        total = total + term
    made = np.copysign(2 / np.sqrt(np.arccos(np.longdouble(-1))) * np.exp(-size * size) * total, x)
    return np.where(np.abs(x) > 6.9, np.sign(x), made)


EXACT: dict[str, Callable[[Any], Any]] = {
    **{
        name: getattr(np, name)
        for name in ("exp", "exp2", "log", "sqrt", "tanh", "log2", "sin", "cos", "floor")
    },
    "round": np.rint,
    "sigmoid": _sigmoid,
    "silu": lambda x: _share(x, _sigmoid(x)),
    "gelu": lambda x: _share(x, (1 + _erf(x * np.sqrt(np.longdouble(0.5)))) / 2),
    "gelu_tanh": _gelu_tanh,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": _erf,
}
"""The same in numbers of more bits."""


@np.errstate(all="ignore")
def check(dtype: DType, x: np.ndarray, made: np.ndarray) -> None:
    """Check that every function is within its bound, and exact if the right result is infinite or NaN."""
    for name, y in zip(VERBS, made, strict=True):
        exact = EXACT[name](x.astype(np.longdouble))
        assert np.finfo(exact.dtype).nmant > 60, "a reference needs more bits"
        rounded = exact.astype(y.dtype)
        finite = np.isfinite(rounded)
        np.testing.assert_array_equal(y[~finite], rounded[~finite], err_msg=name)
        zero = (rounded == 0) & finite & (x == 0)
        np.testing.assert_array_equal(np.signbit(y[zero]), np.signbit(rounded[zero]), err_msg=name)
        tiny = np.finfo(y.dtype).tiny
        if name in ("exp2", "sigmoid"):  # which may give 0 there
            finite &= np.abs(rounded) >= tiny
        row = FUNCTIONS[name]
        if row.of_operand:
            ulp = np.abs(x[finite]).astype(np.longdouble) * np.finfo(y.dtype).eps + np.spacing(
                y.dtype.type(0)
            )
        else:
            ulp = np.spacing(np.maximum(np.abs(rounded[finite]), tiny)).astype(np.longdouble)
        error = np.abs(y[finite].astype(np.longdouble) - exact[finite]) / ulp
        bound = row.ulp or 0.5
        assert error.max() <= bound, f"{name}: {error.max()} ulp at {x[finite][error.argmax()]!r}"


@tw.kernel(X="M N", Y="M N", B="M N", I="M O")
def rows(X, Y, B, I, *, bits, threads):
    """Prefix sums, bits and the place of the largest of each row; rows are spread over several warps."""
    m = tw.block_index(tw.ceil_div(X.shape[0], 16))
    x = tw.load(X.tile((16, 64), (m, 0)).partition(threads))
    wide = tw.f32 if X.dtype.is_float and X.dtype.bits < 32 else X.dtype
    sums = tw.prefix_sum(x, 1, scratch=tw.shared((16, 64), wide))
    tw.copy(sums, Y.tile((16, 64), (m, 0)))
    tw.copy(tw.bitcast(tw.bitcast(x, bits) ^ 1, X.dtype), B.tile((16, 64), (m, 0)))
    most = tw.load(
        X.tile((16, 64), (m, 0)).partition(threads),
        other=limits(X.dtype)[0] if not X.dtype.is_float else -float("inf"),
    )
    scratch, indices = tw.shared((16, 2), wide), tw.shared((16, 2), tw.i32)
    tw.copy(tw.argmax(most, 1, scratch=scratch, indices=indices), I.tile((16, 1), (m, 0)))


BITS = {tw.f64: tw.i64, tw.f32: tw.u32, tw.f16: tw.i16, tw.bf16: tw.u16, tw.i32: tw.u32, tw.i8: tw.u8}
ROW_WAYS = {"blocked": (4, 16), "across warps": (1, 64), "rows": (16, 4)}


def rows_of(dtype: DType) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return a ragged array with equal largest numbers and a NaN, and poisoned outputs."""
    rng = np.random.default_rng(dtype.bits)
    x = rng.integers(-9, 10, (37, 51)).astype(np.float64)
    if dtype.is_float:
        x += rng.standard_normal(x.shape) / 8
    x[3, 7] = x[3, 9] = 50  # the first of them is meant
    x = x.astype(dtype.numpy)
    if dtype.is_float:
        x[20, 11] = x[20, 30] = np.nan
    return x, [*(np.full_like(x, 7) for _ in range(2)), np.full((37, 1), 7, np.int32)]


@np.errstate(all="ignore")
def check_rows(dtype: DType, x: np.ndarray, sums: np.ndarray, bits: np.ndarray, places: np.ndarray) -> None:
    """Check sums within their bound, and the rest exactly."""
    kind = f"u{dtype.bytes}"
    np.testing.assert_array_equal(bits.view(kind), x.view(kind) ^ 1)
    wide = x.astype(np.float64) if dtype.bits < 64 else x.astype(np.longdouble)
    np.testing.assert_array_equal(places[:, 0], np.argmax(wide, axis=1))
    if not dtype.is_float:
        np.testing.assert_array_equal(sums, np.cumsum(x, axis=1, dtype=x.dtype))
        return
    unit = dtype.unit_roundoff
    exact, most = np.cumsum(wide, axis=1), np.cumsum(np.abs(wide), axis=1)
    bound = 6 * 2.0 ** -(53 if dtype == tw.f64 else 24) * most + unit * np.abs(exact) * 1.01
    near = np.abs(sums.astype(exact.dtype) - exact) <= bound
    assert (near | (np.isnan(exact) & np.isnan(sums.astype(exact.dtype)))).all()
