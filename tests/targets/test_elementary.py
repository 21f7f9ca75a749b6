"""Functions of floats on the reference, the processor, and in CUDA's text on it: within stated bounds."""

from __future__ import annotations

import numpy as np
import pytest
from tests.targets.elementary import BITS, ROW_WAYS, VERBS, check, check_rows, each, points, rows, rows_of

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.functions.table import COMPLEX, FUNCTIONS
from tilewright.targets.reference.numbers import NUMBERS

pytestmark = pytest.mark.in_turns(3)

DTYPES = [tw.f32, tw.f64]
OWN = ("sigmoid", "silu", "gelu", "gelu_tanh")
"""Functions that C's mathematics library does not have."""


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_functions_are_within_their_bounds(target: str, dtype: DType) -> None:
    x = points(dtype)
    y = np.full((len(VERBS), x.size), 7, dtype.numpy)
    assert each.bind(names=tuple(VERBS))(x, y, target=target).target == target
    check(dtype, x, y)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_the_text_for_cuda_compiles_and_calls_its_library(arch: str, dtype: DType) -> None:
    x = points(dtype, 10)
    y = np.empty((len(VERBS), x.size), dtype.numpy)
    built = each.bind(names=tuple(VERBS)).compile(x, y, target="cuda", arch=arch)
    for name in VERBS.keys() - {"exp2", *OWN}:
        assert f"{FUNCTIONS[name].c_name(dtype)}(" in built.source, name


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2], ids=str)
@np.errstate(all="ignore")
def test_narrow_floats_compute_in_f32_and_round_once(dtype: DType) -> None:
    x = np.arange(1 << dtype.bits, dtype=f"u{dtype.bytes}").view(dtype.numpy)
    y = np.full((len(VERBS), x.size), 7, dtype.numpy)
    assert each.bind(names=tuple(VERBS))(x, y, target="cpu").target == "cpu"
    for name, got in zip(VERBS, y, strict=True):
        want = NUMBERS.elementwise(name, [x], [dtype], dtype)
        number = ~np.isnan(want.astype(np.float32))
        np.testing.assert_array_equal(np.isnan(got.astype(np.float32)), ~number, err_msg=name)
        if FUNCTIONS[name].of_operand:
            finite = np.isfinite(want.astype(np.float32))
            np.testing.assert_array_equal(got[number & ~finite], want[number & ~finite], err_msg=name)
            apart = np.abs(got[finite].astype(float) - want[finite].astype(float))
            unit = 2 * dtype.unit_roundoff * np.abs(want[finite].astype(float))
            unit += float(np.spacing(dtype.numpy.type(0)))
            assert np.all(apart <= unit + 2.0**-21 * np.abs(x[finite].astype(float))), name
            continue
        bits = (v[number].view(f"i{dtype.bytes}").astype(int) for v in (got, want))
        apart = np.abs(np.subtract(*bits))
        assert apart.max() <= 1, name  # f32 results one unit apart may round to neighbours
        assert (apart == 0).mean() > 0.999, name


def test_every_function_of_one_float_is_tried() -> None:
    rows = [row for row in FUNCTIONS.values() if row not in COMPLEX]
    kinds = [row for row in rows if row.arity == 1 and row.takes(tw.i32)]
    assert {row.name for row in kinds} == {*VERBS}


@tw.kernel(X="N", Y="N", low=tw.f32, most=int)
def clamped(X, Y, low, most):
    x = tw.load(X.tile((32,), (0,)).partition((32,)))
    tw.copy(tw.clamp(tw.clamp(x, low, 3.5), -9, most), Y.tile((32,), (0,)))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_clamp_takes_numbers_and_integers_and_keeps_nan(target: str) -> None:
    x = np.float32([-np.inf, -2.5, -0.5, 2, 3, np.inf, np.nan])
    y = np.full_like(x, 7)
    assert clamped(x, y, -1.5, 3, target=target).target == target
    np.testing.assert_array_equal(y, np.minimum(np.clip(x, np.float32(-1.5), 3.5), 3))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("dtype", "way"), [*((dtype, "blocked") for dtype in BITS), (tw.f32, "across warps"), (tw.f16, "rows")]
)
def test_rows_are_summed_searched_and_taken_as_bits(target: str, way: str, dtype: DType) -> None:
    x, made = rows_of(dtype)
    bound = rows.bind(bits=BITS[dtype], threads=ROW_WAYS[way])
    assert bound(x, *made, target=target).target == target
    check_rows(dtype, x, *made)


@pytest.mark.parametrize("dtype", BITS, ids=str)
def test_the_text_of_rows_compiles_for_cuda_and_has_no_hazard(dtype: DType) -> None:
    x, made = rows_of(dtype)
    bound = rows.bind(bits=BITS[dtype], threads=ROW_WAYS["across warps"])
    assert bound.compile(x, *made, target="cuda", arch="sm_90a").target == "cuda"
    assert bound.check(x, *made).is_clean


def test_bits_of_other_sizes_are_refused() -> None:
    x, made = rows_of(tw.f32)
    with pytest.raises(tw.TraceError, match=r"bitcast of f32 to i16: needs the same number of bits.*tw\.u32"):
        rows.bind(bits=tw.i16, threads=(4, 16)).trace(x, *made)
