"""Elementwise functions: accuracy over whole ranges, special values, dtypes, and shared loops."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.functions import conversions
from tilewright.functions.table import fma
from tilewright.runtime import native
from tilewright.targets.reference.numbers import NUMBERS
from tilewright.targets.rules import EmittedText

Machine = Callable[..., EmittedText]
pytestmark = [pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"), pytest.mark.in_turns(3)]

TILE = 1024
BOUNDS = {"exp": 1.1, "exp2": 1.1, "log": 1.1, "tanh": 2.5, "sqrt": 0.5, "rsqrt": 1.5}
RANGES = {
    "exp": (-104, 89.5),
    "exp2": (-151, 128.5),
    "log": (0, 1e3),
    "tanh": (-12, 12),
    "sqrt": (0, 1e6),
    "rsqrt": (1e-6, 1e6),
}
UNARY = {
    "exp": tw.exp,
    "exp2": tw.exp2,
    "log": tw.log,
    "tanh": tw.tanh,
    "sqrt": tw.sqrt,
    "rsqrt": tw.rsqrt,
    "abs": tw.absolute,
}


@tw.kernel(X="N", E="N", P="N", L="N", T="N", S="N", R="N", A="N")
def unary(X, E, P, L, T, S, R, A):
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    x = tw.load(X.tile((TILE,), (n,)).partition((32,)))
    for function, Y in zip(UNARY.values(), (E, P, L, T, S, R, A), strict=True):
        tw.copy(function(x), Y.tile((TILE,), (n,)))


def applied(machine: Machine, x: np.ndarray, **options: object) -> dict[str, np.ndarray]:
    """Every unary function of an array."""
    made = {name: np.full_like(x, 7) for name in "EPLTSRA"}
    machine(unary.trace(x, *made.values()), {"X": x, **made}, **options)
    return dict(zip(UNARY, made.values(), strict=True))


@tw.kernel(X="N", Y="N", Z="N")
def arithmetic(X, Y, Z, *, function):
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    x = tw.load(X.tile((TILE,), (n,)).partition((32,)))
    y = tw.load(Y.tile((TILE,), (n,)).partition((32,)))
    tw.copy(function(x, y), Z.tile((TILE,), (n,)))


BINARY = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b if a.dtype.is_float else (a / b).to(a.dtype),
    "min": tw.minimum,
    "max": tw.maximum,
    "less": lambda a, b: (a < b).to(a.dtype),
    "less_equal": lambda a, b: (a <= b).to(a.dtype),
}


@tw.kernel(X="N", Y="N", Z="P N")
def binary(X, Y, Z):
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    x = tw.load(X.tile((TILE,), (n,)).partition((32,)))
    y = tw.load(Y.tile((TILE,), (n,)).partition((32,)))
    for at, function in enumerate(BINARY.values()):
        tw.copy(function(x, y), Z[at].tile((TILE,), (n,)))


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64], ids=str)
def test_fma_rounds_once(machine: Machine, dtype: DType) -> None:
    rng = np.random.default_rng(3)
    x, y = (rng.standard_normal(TILE + 77).astype(dtype.numpy) for _ in range(2))
    z = np.full_like(x, 7)
    machine(arithmetic.bind(function=lambda a, b: tw.fma(a, b, b)).trace(x, y, z), {"X": x, "Y": y, "Z": z})
    assert np.array_equal(z, fma(x, y, y))
    assert (z != x * y + y).any()


def hard(dtype: DType, function: str) -> np.ndarray:
    """Random numbers of the function's range, all magnitudes, neighbours of 0 and 1, and powers of two."""
    drawn = np.random.default_rng(5)
    low, high = RANGES[function]
    if dtype == tw.f64 and function in ("exp", "exp2"):
        low, high = (-746, 710) if function == "exp" else (-1077, 1025)
    wide = np.exp2(drawn.uniform(-140, 127, 50_000)) * np.where(low < 0, drawn.choice([-1, 1], 50_000), 1)
    points = np.concatenate(
        [drawn.uniform(low, high, 100_000), wide, np.exp2(np.arange(-149, 128.0)), [0.0, 1.0]]
    )
    made = points.astype(dtype.numpy)
    made = np.concatenate([made, np.nextafter(made, dtype.numpy.type(1)), -made if low < 0 else made])
    return made if low < 0 or function == "log" else np.abs(made)


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64], ids=str)
def test_accuracy(machine: Machine, dtype: DType, toolchain: native.Toolchain) -> None:
    for function, bound in BOUNDS.items():
        x = hard(dtype, function)
        y = applied(machine, x, toolchain=toolchain)[function]
        wide = x.astype(np.longdouble)
        exact = 1 / np.sqrt(wide) if function == "rsqrt" else getattr(np, function)(wide)
        finite = np.abs(exact) < np.finfo(y.dtype).max
        rounded = exact.astype(y.dtype)
        assert np.array_equal(y[~finite], rounded[~finite], equal_nan=True)
        ulp = np.spacing(np.maximum(np.abs(rounded[finite]), np.finfo(y.dtype).tiny)).astype(np.longdouble)
        error = np.abs(y[finite].astype(np.longdouble) - exact[finite]) / ulp
        assert error.max() <= bound, f"{function}: {error.max()} ulp at {x[finite][error.argmax()]!r}"


@pytest.mark.parametrize("dtype", [tw.f32, tw.f64], ids=str)
def test_special_values(machine: Machine, dtype: DType) -> None:
    x = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0], dtype.numpy)
    for function, y in applied(machine, x).items():
        expected = 1 / np.sqrt(x) if function == "rsqrt" else getattr(np, function)(x)
        if function in ("exp", "exp2", "tanh"):
            expected[5] = y[5]  # a number, of which `test_accuracy` speaks
        assert np.array_equal(y, expected, equal_nan=True), function
        assert np.array_equal(np.signbit(y[3:5]), np.signbit(expected[3:5])), function


@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16, tw.f8e4m3], ids=str)
def test_narrow_types_compute_in_f32_and_round_once(machine: Machine, dtype: DType) -> None:
    x = np.arange(1 << dtype.bits, dtype=f"u{dtype.bytes}").view(dtype.numpy)
    wide = x.astype(np.float32)
    for function, y in applied(machine, x).items():
        exact = 1 / np.sqrt(wide) if function == "rsqrt" else getattr(np, function)(wide)
        expected = exact.astype(dtype.numpy)
        nan = np.isnan(expected.astype(np.float32))
        assert np.array_equal(np.isnan(y.astype(np.float32)), nan)
        # f32 results one unit apart may round to neighbours of the narrow type.
        kind = f"i{dtype.bytes}"
        near = np.abs(y[~nan].view(kind).astype(int) - expected[~nan].view(kind).astype(int))
        assert near.max() <= 1
        assert (near == 0).mean() > 0.999


INTEGERS = [tw.i64, tw.i32, tw.i8, tw.u8, tw.u32, tw.u64]


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", [tw.f64, tw.f32, tw.f16, tw.bf16, tw.f8e5m2, *INTEGERS], ids=str)
def test_arithmetic_is_the_references(machine: Machine, dtype: DType) -> None:
    drawn = np.random.default_rng(4)
    special = (
        np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, 3.0]) if dtype.is_float else np.array([0, 1, 3])
    )
    if dtype.kind == "int":
        ends = np.iinfo(dtype.numpy)
        special = np.array([0, 1, -1, ends.min, ends.max])
    pairs = np.stack(np.meshgrid(special, special)).reshape(2, -1).astype(dtype.numpy)
    tail = drawn.uniform(0 if dtype.kind == "uint" else -100, 100, (2, 3000)).astype(dtype.numpy)
    x, y = np.concatenate([pairs, tail], axis=1)
    made = np.zeros((len(BINARY), x.size), x.dtype)
    machine(binary.trace(x, y, made), {"X": x, "Y": y, "Z": made})
    for name, z in zip(BINARY, made, strict=True):
        if name == "div" and not dtype.is_float:
            quotient = (x.astype(np.float64) / y.astype(np.float64)).astype(np.float32)
            expected = conversions.convert(quotient, tw.f32, dtype)
        else:
            expected = NUMBERS.elementwise(name, [x, y], [dtype, dtype], dtype).astype(dtype.numpy)
        both = (v.astype(np.float64 if dtype.is_float else dtype.numpy) for v in (z, expected))
        assert np.array_equal(*both, equal_nan=dtype.is_float), name


@tw.kernel(X="M N", Y="M N")
def in_slices(X, Y, *, mma):
    m, n = tw.block_index(tw.ceil_div(X.shape, mma.tile[:2]))
    x, y = (T.tile(mma.tile[:2], (m, n)) for T in (X, Y))
    acc = tw.load(x, like=mma.c())
    left = x[:, :32]
    tw.mma(tw.load(left, like=mma.a(32)), tw.load(x[:32].permute(1, 0), like=mma.b(32)), acc, mma)
    tw.copy(acc[:, 32:] + 1.0, y[:, :32])
    tw.copy(acc[:, :32], y[:, 32:])


def test_slices_of_an_accumulator(machine: Machine) -> None:
    """An author cannot name the micro-tiles of an accumulator as its parts."""
    mma = tw.TiledMma(tw.atoms.fma(tw.f32, each=(4, 4)), warps=(2, 1), repeats=(1, 2))
    m, n, _ = mma.tile
    rng = np.random.default_rng(5)
    x = rng.integers(-4, 5, (2 * m - 5, n)).astype(np.float32)
    y = np.full_like(x, 7)
    machine(in_slices.trace(x, y, mma=mma), {"X": x, "Y": y})
    wanted = np.empty_like(y)
    for start in (0, m):
        tile = np.zeros((m, n), np.float32)
        part = x[start : start + m]
        tile[: len(part)] = part
        made = tile + tile[:, :32] @ tile[:32]
        wanted[start : start + m] = np.concatenate([made[:, 32:] + 1, made[:, :32]], axis=1)[: len(part)]
    np.testing.assert_array_equal(y, wanted)


def test_products_and_sums_round_separately(machine: Machine) -> None:
    """Only multiplies of matrices are contracted, so a*b - a*b is 0."""
    x = np.random.default_rng(1).uniform(1, 2, 5000).astype(np.float32)
    z = np.ones_like(x)
    machine(arithmetic.trace(x, x, z, function=lambda a, b: a * b - a * b), {"X": x, "Y": x, "Z": z})
    assert (z == 0).all()


@tw.kernel(X="M N", Y="M N", alpha=tw.f32, beta=tw.f64, count=int)
def epilogue(X, Y, alpha, beta, count, *, tile):
    m, n = tw.block_index(tw.ceil_div(X.shape, tile))
    x = tw.load(X.tile(tile, (m, n)).partition((4, 8)))
    total = tw.fragment(x, fill=0.5)
    turn = tw.var(0)
    for _ in tw.range(count):
        now = turn.get()
        with tw.when(now % 2 == 0):
            total += x * alpha
        with tw.otherwise():
            total -= x
        turn.set(now + 1)
    mask = total < 0
    kept = tw.where(mask, total * -0.5, total)
    tw.fill(x, beta)
    tw.copy(kept + x, Y.tile(tile, (m, n)))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_branches_loops_and_numbers(machine: Machine, count: int) -> None:
    X = np.random.default_rng(1).uniform(-4, 4, (37, 50)).astype(np.float32)
    Y = np.full_like(X, np.nan)
    kernel = epilogue.trace(X, Y, 0.0, 0.0, 0, tile=(16, 32))
    machine(kernel, {"X": X, "Y": Y, "alpha": 1.5, "beta": 3.25, "count": count})
    total = np.full_like(X, 0.5)
    for turn in range(count):
        total = total + X * np.float32(1.5) if turn % 2 == 0 else total - X
    assert np.array_equal(Y, np.where(total < 0, total * np.float32(-0.5), total) + np.float32(3.25))


@tw.kernel(X="N", Y="N", rate=tw.f32)
def scaled(X, Y, rate):
    twice = (rate + rate) * 0.5 + rate
    x = tw.load(X.tile((64,), (0,)).partition((32,)))
    tw.copy(x * twice, Y.tile((64,), (0,)))


def test_numbers_are_computed_once(machine: Machine) -> None:
    x = np.arange(64, dtype=np.float32)
    y = np.zeros_like(x)
    listing = machine(scaled.trace(x, y, 0.0), {"X": x, "Y": y, "rate": 1.25})
    assert np.array_equal(y, x * np.float32(2.5))
    assert listing.text.count("rate + rate") == 1


def test_a_chain_keeps_only_what_others_read(machine: Machine) -> None:
    x = np.random.default_rng(1).uniform(1, 2, 3000).astype(np.float32)
    z = np.zeros_like(x)
    listing = machine(
        arithmetic.trace(x, x, z, function=lambda a, b: ((a + b) * a - b) / (a + 3.0)),
        {"X": x, "Y": x, "Z": z},
    )
    assert np.array_equal(z, ((x + x) * x - x) / (x + np.float32(3)))
    assert listing.text.count("for (Index e = 0") == 1
    assert listing.shared_bytes < 4 * TILE * x.itemsize


REALS = (0, 3, -7, 0.1, float("inf"), float("nan"))
LITERALS = {
    **dict.fromkeys((tw.f16, tw.f8e4m3), REALS),
    **dict.fromkeys((tw.f32, tw.bf16, tw.f64), (*REALS, 1e30)),
    tw.i8: (-128, 127),
    tw.i64: (-(2**63), 2**63 - 1),
    tw.u64: (0, 2**64 - 1),
    tw.u32: (0, 2**32 - 1),
    tw.i32: (5.0, -7),
}


@tw.kernel(Y="P N")
def filled(Y, *, numbers):
    for at, number in enumerate(numbers):
        tw.copy(tw.fragment(tw.blocked((64,), (32,), (0,)), Y.dtype, fill=number), Y[at].tile((64,), (0,)))


@pytest.mark.parametrize("dtype", LITERALS, ids=str)
def test_literals_are_rounded_once(machine: Machine, dtype: DType) -> None:
    numbers = LITERALS[dtype]
    y = np.zeros((len(numbers), 64), dtype.numpy)
    machine(filled.trace(y, numbers=numbers), {"Y": y})
    exact = np.array(numbers, np.float64 if dtype.is_float else dtype.numpy)
    expected = conversions.convert(exact, tw.f64, dtype) if dtype.is_float else exact
    wide = np.float64 if dtype.is_float else dtype.numpy
    assert np.array_equal(y.astype(wide).T, np.tile(expected.astype(wide), (64, 1)), equal_nan=dtype.is_float)


def test_integers_divide_by_zero_without_a_trap(machine: Machine) -> None:
    x, y = np.array([5, -5, 0], np.int32), np.array([0, 0, 0], np.int32)
    z = np.ones_like(x)
    machine(arithmetic.trace(x, y, z, function=lambda a, b: a / b), {"X": x, "Y": y, "Z": z})
    assert z[2] == 0


@tw.kernel(X="M N", Y="M N", T="M L")
def changed_between(X, Y, T):
    x = tw.load(X.tile((8, 32), (0, 0)).partition((1, 1)))
    kept, made = x + 1.0, tw.fragment(x, fill=0.0)
    made.assign(kept * 2.0)
    top = tw.reduce_max(made, 1)
    made.assign(made * 3.0)
    again = made + kept
    tw.copy(again, Y.tile((8, 32), (0, 0)))
    tw.copy(top, T.tile((8, 1), (0, 0)))


def test_operations_of_one_loop_stay_behind_what_reads_the_old_elements(machine: Machine) -> None:
    x = np.random.default_rng(3).integers(-9, 9, (8, 32)).astype(np.float32)
    y, t = np.full_like(x, np.nan), np.full((8, 1), np.nan, np.float32)
    machine(changed_between.trace(x, y, t), {"X": x, "Y": y, "T": t})
    assert np.array_equal(t, (2 * (x + 1)).max(axis=1, keepdims=True))
    assert np.array_equal(y, 7 * (x + 1))


@tw.kernel(X="M N", Y="M N", Z="P N")
def stored_twice(X, Y, Z):
    """One buffer is stored through two views: the transposed one, and one that is a row lower."""
    square, tall = tw.shared((16, 16), X.dtype), tw.shared((17, 16), X.dtype)
    upper, lower = tall[:16], tall[1:]
    x = tw.load(X.tile((16, 16), (0, 0)).partition((1, 1)))
    tw.copy(x * 2.0, square)
    tw.copy(x * 0.0, upper)
    tw.barrier()
    tw.copy(x + 1.0, square.permute(1, 0))
    tw.copy(x + 1.0, lower)
    tw.barrier()
    tw.copy(square, Y.tile((16, 16), (0, 0)))
    tw.copy(tall, Z.tile((17, 16), (0, 0)))


def test_the_later_store_of_a_buffer_is_the_last(machine: Machine) -> None:
    x = np.random.default_rng(3).integers(1, 9, (16, 16)).astype(np.float32)
    y, z = np.full_like(x, np.nan), np.full((17, 16), np.nan, np.float32)
    machine(stored_twice.trace(x, y, z), {"X": x, "Y": y, "Z": z})
    assert np.array_equal(y, (x + 1).T)
    assert np.array_equal(z, np.concatenate([0 * x[:1], x + 1]))
