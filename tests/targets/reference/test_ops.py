"""The reference's meaning of every operation equals NumPy's."""

from __future__ import annotations

import re
from fractions import Fraction

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import ALL, dtype
from tilewright.functions.table import COMPARISON, FUNCTIONS, fma
from tilewright.ir.builder import Builder
from tilewright.ir.kernel import Kernel, TensorParam
from tilewright.ir.ops import KINDS, Block, Copy, Elementwise, FragmentOp
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.targets.reference import REFERENCE, run
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.view import View

from .calls import MOVE, launch, square


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: f"{kind[0].name} {kind[1]}".strip())
def test_every_operation_has_a_meaning(kind) -> None:
    assert REFERENCE.find(*kind) is not None


# ---------------------------------------------------------------- copies and views

VIEWS = {
    "tile": (lambda X: X.tile((16, 16), (0, 0)), lambda x: np.pad(x, ((0, 3), (0, 2)))),
    "slice": (lambda X: X[2:10, 3:7].tile((8, 4), (0, 0)), lambda x: x[2:10, 3:7]),
    "row": (lambda X: X[5].tile((16,), (0,)), lambda x: np.pad(x[5], (0, 2))),
    "pad": (lambda X: X.pad((1, 2), (2, 0)).tile((16, 16), (0, 0)), lambda x: np.pad(x, ((1, 2), (2, 0)))),
    "pad_to": (lambda X: X.pad_to((16, 16)).tile((16, 16), (0, 0)), lambda x: np.pad(x, ((0, 3), (0, 2)))),
    "permute": (lambda X: X.permute(1, 0).tile((16, 16), (0, 0)), lambda x: np.pad(x.T, ((0, 2), (0, 3)))),
    "merge": (lambda X: X.tile((4, 4), (1, 2)).merge(0), lambda x: x[4:8, 8:12].reshape(16)),
    "unmerge": (
        lambda X: X.tile((8, 8), (0, 0)).unmerge(1, (2, 4)),
        lambda x: x[:8, :8].reshape(8, 2, 4),
    ),
    "embed": (
        lambda X: X.tile((8, 8), (0, 0)).embed(1, (4, 4), (2, 1), 1),
        lambda x: np.pad(x[:8, :8], ((0, 0), (1, 2)))[:, np.add.outer(2 * np.arange(4), np.arange(4))],
    ),
    "broadcast": (
        lambda X: X.tile((8, 8), (0, 0)).broadcast(1, 4),
        lambda x: np.repeat(x[:8, None, :8], 4, axis=1),
    ),
}


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("strides", ["rows", "columns", "zero", "gaps"])
def test_views_are_read_as_numpy_reads_them(name, strides) -> None:
    view, expected = VIEWS[name]
    x = square(13, 14)
    if strides == "columns":
        x = np.asfortranarray(x)
    elif strides == "zero":
        x = np.broadcast_to(x[0], x.shape)
    elif strides == "gaps":
        x = square(26, 28)[::2, ::2]
    want = expected(x)

    def move(X, Y):
        source = view(X)
        threads = tuple(4 if extent % 4 == 0 else 1 for extent in source.shape)
        target = Y.tile(source.shape, (0,) * len(source.shape))
        tw.copy(source, target, threads=threads, vector=1)

    y = np.full(want.shape, np.nan, np.float32)
    launch(move, {"X": "M N", "Y": " ".join("PQR"[: want.ndim])}, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, want)


def test_writes_past_an_edge_are_dropped() -> None:
    def move(X, Y):
        m, n = tw.block_index(tw.ceil_div(Y.shape, (16, 16)))
        tw.copy(X.tile((16, 16), (m, n)), Y.tile((16, 16), (m, n)), threads=(4, 8))

    x = square(40, 50)
    whole = np.full((41, 64), 7, np.float32)
    y = whole[:37, :45]
    report = launch(move, MOVE, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x[:37, :45])
    assert (whole[37:] == 7).all()
    assert (whole[:, 45:] == 7).all()
    assert report.blocks == 9
    assert report.uncovered == {"Y": 0}


def test_swizzled_shared_memory_reads_back() -> None:
    def move(X, Y):
        held = tw.shared((16, 32), X.dtype).swizzle(2, 3, 3)
        tw.copy(X.tile((16, 32), (0, 0)), held, threads=(16, 2))
        tw.barrier()
        tw.copy(held, Y.tile((16, 32), (0, 0)), threads=(4, 8))

    x, y = square(16, 32, np.float16), np.zeros((16, 32), np.float16)
    launch(move, MOVE, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x)


def test_of_threads_that_hold_copies_one_writes() -> None:
    def move(X, Y):
        part = X.tile((16, 16), (0, 0)).partition((4, 4, 8), (1, 1, None))
        held = tw.load(part)
        assert held.distribution.copies == 8
        tw.copy(held, Y.tile((16, 16), (0, 0)))

    x, y = square(), np.zeros((16, 16), np.float32)
    report = launch(move, MOVE, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x)
    [written] = [count for count in report.counters.sectors if count.site.action == "write"]
    assert written.touched <= 16 * 16 * 4


def test_asynchronous_copies_arrive() -> None:
    def move(X, Y):
        held = tw.shared((16, 16), X.dtype)
        tw.copy_async(X.tile((16, 16), (0, 0)), held, threads=(16, 4))
        tw.async_commit()
        tw.async_wait(0)
        tw.barrier()
        tw.copy(held, Y.tile((16, 16), (0, 0)), threads=(4, 16))

    x, y = square(11, 16), np.zeros((16, 16), np.float32)
    launch(move, MOVE, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, np.pad(x, ((0, 5), (0, 0))))


# ---------------------------------------------------------------- arithmetic

SPREAD = Distribution((64,), (Mode(32, 0, 2),), (Mode(2, 0, 1),))


def compute(function, operands, result=None):
    """Apply one elementwise function to arrays of 64 elements, through fragments."""
    builder = Builder()
    params, values = [], []
    for number, operand in enumerate(operands):
        if not isinstance(operand, np.ndarray):
            values.append(operand)
            continue
        kind = TensorType(Memory.GLOBAL, dtype(operand.dtype), View.strided((64,), (1,)))
        param = Value(builder.names.unique(f"P{number}"), kind)
        params.append(TensorParam(param))
        held = builder.define(FragmentOp, "held", dtype=param.dtype, distribution=SPREAD)
        builder.append(Copy(param, held))
        values.append(held)
    made = builder.define(Elementwise, "made", function=function, operands_=tuple(values), dtype=result)
    out = Value("OUT", TensorType(Memory.GLOBAL, made.dtype, View.strided((64,), (1,))))
    builder.append(Copy(made, out))
    kernel = Kernel("compute", (*params, TensorParam(out)), (), 32, Block(builder.close().ops))
    arrays = {f"P{n}": o for n, o in enumerate(operands) if isinstance(o, np.ndarray)}
    array = np.zeros(64, made.dtype.numpy)
    run(kernel, {**arrays, "OUT": array}).raise_if_any()
    return array


NUMPY = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "sqrt", "tanh")},
    **{name: getattr(np, name) for name in COMPARISON if name != "random_at_least"},  # test_dropout.py
    **dict(zip(("add", "sub", "mul"), (np.add, np.subtract, np.multiply), strict=True)),
    **dict(zip(("min", "max", "neg", "abs"), (np.minimum, np.maximum, np.negative, np.abs), strict=True)),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "div": np.divide,
    "pow": np.power,
}


def inputs(element, count):
    rng = np.random.default_rng(count)
    draw = (lambda: rng.uniform(0.1, 6, 64)) if element.is_float else (lambda: rng.integers(1, 90, 64))
    values = [draw() for _ in range(count)]
    signed = [v * (-1) ** rng.integers(0, 2, 64) if element.kind != "uint" else v for v in values]
    return [v.astype(element.numpy) for v in signed]


@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16", "i32", "i8", "u8"])
@pytest.mark.parametrize("function", NUMPY)
def test_functions_compute_wide_and_round_once(function, element) -> None:
    kind = ALL[element]
    if FUNCTIONS[function].takes(tw.i32) and not kind.is_float:
        with pytest.raises(tw.DTypeError, match="needs a float"):
            compute(function, inputs(kind, FUNCTIONS[function].arity))
        return
    if function == "pow" and kind == tw.f64:
        with pytest.raises(
            tw.DTypeError,
            match=re.escape("pow of f64: no target has it; nearest legal choice: tw.exp(y * tw.log(x))"),
        ):
            compute(function, inputs(kind, 2))
        return
    operands = inputs(kind, FUNCTIONS[function].arity)
    if function in ("log", "sqrt", "rsqrt", "pow"):
        operands = [np.abs(operand) for operand in operands]
    wide = [o.astype(np.float32) if kind.is_float and kind.bits < 32 else o for o in operands]
    with np.errstate(all="ignore"):
        want = NUMPY[function](*wide)
        want = want if function in COMPARISON else want.astype(kind.numpy)
    got = compute(function, operands)
    assert got.dtype == want.dtype
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("element", ["f32", "f64"])
def test_fma_rounds_once(element) -> None:
    kind = ALL[element].numpy
    rng = np.random.default_rng(7)
    size, bits = 4096, np.finfo(kind).nmant + 1
    x, y, z = (
        (rng.integers(-(2**bits), 2**bits, size) * 2.0 ** rng.integers(-30, 30, size)).astype(kind)
        for _ in range(3)
    )
    z[::3] = -(x * y)[::3]  # what is left is the rounding error of the product
    x[::5], y[::5], z[::5] = 1 + 2.0 ** -(bits // 2), 1, 2.0**-bits  # ties
    found = fma(x, y, z)
    assert found.dtype == kind
    for a, b, c, got in zip(x, y, z, found, strict=True):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        near = [np.nextafter(got, -np.inf, dtype=kind), got, np.nextafter(got, np.inf, dtype=kind)]
        off = [abs(Fraction(float(number)) - exact) for number in near]
        assert off[1] <= min(off)
        if off.count(off[1]) > 1:  # a tie goes to the even one
            assert got.view(f"i{got.itemsize}") % 2 == 0
    assert (found != x * y + z).mean() > 0.3


def test_fma_of_special_values() -> None:
    nan, inf = np.nan, np.inf
    for kind in (np.float32, np.float64):
        most = np.finfo(kind).max
        x, y = kind([inf, 0, nan, most, most, -0.0]), kind([0, inf, 1, 2, 2, 0])
        z = kind([1, 1, 1, -most, most, -0.0])
        with np.errstate(all="ignore"):
            found = fma(x, y, z)
        np.testing.assert_array_equal(found, kind([nan, nan, nan, most, inf, -0.0]))
        assert np.signbit(found[-1])


@pytest.mark.parametrize("element", [tw.f32, tw.f64], ids=str)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_fma_of_plain_numbers(target, element) -> None:
    def kernel(X, s):
        part = X.tile((32,), (tw.block_index(1),)).partition((32,))
        tw.copy(tw.load(part) * tw.fma(s, s, s), part)

    x = np.arange(1.0, 33.0).astype(element.numpy)
    wanted = x * element.numpy.type(12.0)
    assert tw.kernel(X="N", s=element)(kernel)(x, 3.0, target=target).target == target
    np.testing.assert_array_equal(x, wanted)


def test_fma_needs_f32_or_f64() -> None:
    with pytest.raises(tw.DTypeError, match="fma of f16: needs f32 or f64; convert first"):
        compute("fma", inputs(tw.f16, 3))
    x, y, z = inputs(tw.f32, 3)
    np.testing.assert_array_equal(compute("fma", [x, y, z]), fma(x, y, z))


def test_numbers_apply_to_every_element() -> None:
    [x] = inputs(tw.f16, 1)
    want = (x.astype(np.float32) * np.float32(0.1)).astype(np.float16)
    np.testing.assert_array_equal(compute("mul", [x, 0.1]), want)
    np.testing.assert_array_equal(compute("sub", [1, inputs(tw.i32, 1)[0]]), 1 - inputs(tw.i32, 1)[0])


def test_select_takes_either_side() -> None:
    x, y = inputs(tw.f32, 2)
    np.testing.assert_array_equal(compute("select", [x < y, x, y]), np.fmin(x, y))
    np.testing.assert_array_equal(compute("select", [x < y, x, 0.5]), np.where(x < y, x, np.float32(0.5)))


@pytest.mark.parametrize("source", ["f64", "f32", "f16", "bf16", "f8e4m3", "i32", "i8", "u8"])
@pytest.mark.parametrize("target", ["f64", "f32", "f16", "bf16", "f8e5m2", "i32", "i8", "u8"])
def test_conversions_round_once_and_saturate(source, target) -> None:
    [x] = inputs(ALL[source], 1)
    got = compute("convert", [x], ALL[target])
    exact = x.astype(np.float64)
    if ALL[target].is_float:
        # The nearest representable number: no neighbour is nearer.
        near = np.abs(got.astype(np.float64) - exact)
        relative = ALL[target].unit_roundoff * np.abs(exact)
        assert (near <= relative).all()
    elif ALL[source].is_float:
        ends = np.iinfo(ALL[target].numpy)
        np.testing.assert_array_equal(got, np.clip(np.trunc(exact), ends.min, ends.max).astype(got.dtype))
    else:
        np.testing.assert_array_equal(got, x.astype(got.dtype))


def test_comparisons_of_fragments_feed_selections() -> None:
    def relu(X, Y):
        x = tw.load(X.tile((16, 16), (0, 0)).partition((4, 8)))
        tw.copy(tw.where(x < 0.0, x * 0.0, x), Y.tile((16, 16), (0, 0)))

    x, y = square(), np.zeros((16, 16), np.float32)
    launch(relu, MOVE, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, np.maximum(x, 0))


def test_slices_of_fragments_are_parts_of_the_tile() -> None:
    spread = tw.raked((16, 16), (4, 2), 2, 1)

    def parts(X, Y):
        x = tw.load(X.tile((16, 16), (0, 0)), like=spread)
        tw.copy(x[:8, 4:], Y.tile((8, 12), (1, 0)))
        tw.copy(x[8:, -4:], Y.tile((8, 4), (0, 3)))

    x, y = square(), np.zeros((16, 16), np.float32)
    launch(parts, MOVE, {"X": x, "Y": y})
    wanted = np.zeros_like(y)
    wanted[8:, :12], wanted[:8, 12:] = x[:8, 4:], x[8:, 12:]
    np.testing.assert_array_equal(y, wanted)


def test_scalar_arguments() -> None:
    def axpy(X, Y, alpha):
        x = tw.load(X.tile((16, 16), (0, 0)).partition((4, 8)))
        filled = tw.fragment(x, fill=None)
        tw.fill(filled, alpha)
        tw.copy(filled + alpha * x, Y.tile((16, 16), (0, 0)))

    x, y = square(), np.zeros((16, 16), np.float32)
    launch(axpy, {**MOVE, "alpha": tw.f32}, {"X": x, "Y": y}, scalars={"alpha": 0.5})
    np.testing.assert_array_equal(y, np.float32(0.5) + np.float32(0.5) * x)
