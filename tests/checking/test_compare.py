"""The comparator accepts right results and rejects wrong ones."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from tilewright.checking.compare import Accumulation, compare_gemm, gemm_bound
from tilewright.checking.references import softmax_attention
from tilewright.dtypes import DType, bf16, f8e4m3, f16, f32, f64, i32
from tilewright.errors import DTypeError, WrongResultError
from tilewright.functions.conversions import keep_fraction
from tilewright.targets.atoms import MMA_BF16, MMA_F16, MMA_I8, MMA_TF32

SIZES = [(16, 16, 16), (64, 48, 80), (129, 129, 67), (96, 128, 1024), (16, 32, 65536)]
DROPPED_TILE = 16


def normal(rng, shape):
    return rng.standard_normal(shape)


def positive(rng, shape):
    """Return numbers like photographs' pixels: many small, few large, no negative ones, 256 steps."""
    return np.floor(256 * rng.beta(0.4, 0.6, shape))


def sequential(a, b, how):
    """Compute like a correct kernel: one accumulator for each element, ``k_step`` products at a time."""
    if how.precision is not None:
        a, b = keep_fraction(a, how.precision), keep_fraction(b, how.precision)
    a, b = a.astype(np.float64), b.astype(np.float64)
    acc = np.zeros((len(a), b.shape[1]), how.acc.numpy)
    whole = np.zeros_like(acc)
    for k in range(0, a.shape[1], how.k_step):
        products = a[:, k : k + how.k_step, None] * b[None, k : k + how.k_step]
        if how.sum_bits:
            acc = cut_sum(acc, products, how.sum_bits)
        else:
            acc = (acc + products.sum(axis=1)).astype(acc.dtype)
        if how.period and (k + how.k_step) % how.period == 0:
            whole, acc = whole + acc, np.zeros_like(acc)
    return whole + acc


def cut_sum(acc, products, bits):
    """Sum like a matrix unit: addends lose bits below the largest one, and the result rounds towards 0."""
    largest = np.maximum(np.abs(acc.astype(np.float64)), np.abs(products).max(axis=1))
    unit = np.exp2(np.floor(np.log2(np.where(largest > 0, largest, 1))) - bits)
    kept = acc if bits > 23 else np.trunc(acc / unit) * unit
    total = kept + (np.trunc(products / unit[:, None]) * unit[:, None]).sum(axis=1)
    near = total.astype(np.float32)
    return np.where(np.abs(near.astype(np.float64)) > np.abs(total), np.nextafter(near, np.float32(0)), near)


CASES = {
    "f32": (f32, f32, Accumulation()),
    "f16": (f16, f32, Accumulation.of(MMA_F16)),
    "f16->f16": (f16, f16, Accumulation.of(MMA_F16)),
    "bf16": (bf16, f32, Accumulation.of(MMA_BF16)),
    "tf32": (f32, f32, Accumulation.of(MMA_TF32)),
    "f64": (f64, f64, Accumulation(f64)),
}


def problem(shape, inputs: DType, data):
    m, n, k = shape
    rng = np.random.default_rng(m * n + k)
    return data(rng, (m, k)).astype(inputs.numpy), data(rng, (k, n)).astype(inputs.numpy)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("shape", SIZES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize(
    ("case", "data"),
    # Sums of pixels overflow f16.
    [(c, normal) for c in CASES] + [(c, positive) for c in CASES if c != "f16->f16"],
)
def test_right_results_pass_and_wrong_ones_do_not(shape, case, data) -> None:
    if case == "f64":
        shape = (*shape[:2], min(shape[2], 8192))
    inputs, out, how = CASES[case]
    a, b = problem(shape, inputs, data)
    m, n, k = shape
    exact = keep_fraction(a, how.precision) if how.precision else a
    exact_b = keep_fraction(b, how.precision) if how.precision else b

    right = sequential(a, b, how).astype(out.numpy)
    found = compare_gemm(a, b, right, how)
    assert found.ok, str(found)
    assert found.resolved == 1.0, str(found)
    # A lost term: what the kernel would have given, less the term's product.
    for lost in (0, k // 2, k - 1):
        term = np.outer(exact[:, lost].astype(np.float64), exact_b[lost].astype(np.float64))
        assert not compare_gemm(a, b, (right.astype(np.float64) - term).astype(out.numpy), how).ok
    tile = slice(k - DROPPED_TILE, k) if k > DROPPED_TILE else slice(0, 8)
    terms = exact[:, tile].astype(np.float64) @ exact_b[tile].astype(np.float64)
    assert not compare_gemm(a, b, (right.astype(np.float64) - terms).astype(out.numpy), how).ok
    swapped = right.copy()
    swapped[[1, m // 2]] = right[[m // 2, 1]]
    assert not compare_gemm(a, b, swapped, how).ok
    unwritten = right.copy()
    unwritten[m - 1, n - 1] = np.nan
    assert not compare_gemm(a, b, unwritten, how).ok
    transposed = (a.astype(np.float64) @ b.reshape(n, k).T.astype(np.float64)).astype(out.numpy)
    assert not compare_gemm(a, b, transposed, how).ok


@pytest.mark.parametrize("shape", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_integers_compare_exactly(shape) -> None:
    m, n, k = shape
    rng = np.random.default_rng(k)
    a, b = (rng.integers(-128, 128, s).astype(np.int8) for s in ((m, k), (k, n)))
    right = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.int32)
    how = Accumulation.of(MMA_I8)
    assert compare_gemm(a, b, right, how).ok
    wrong = right.copy()
    wrong[m // 2, n - 1] += 1
    found = compare_gemm(a, b, wrong, how)
    assert not found.ok
    assert found.index == (m // 2, n - 1)
    lost = right - np.outer(a[:, -1].astype(np.int32), b[-1].astype(np.int32))
    assert not compare_gemm(a, b, lost, how).ok


def test_sums_of_integers_wrap_like_the_accumulator() -> None:
    a, b = np.full((1, 2**17), 127, np.int8), np.full((2**17, 1), 127, np.int8)
    wrapped = np.int64(2**17 * 127 * 127).astype(np.int32)
    assert compare_gemm(a, b, wrapped.reshape(1, 1)).ok


@pytest.mark.parametrize("kinds", [("i8", "i8"), ("i8", "i1"), ("i1", "i8"), ("u8", "u8")])
def test_sums_of_wide_integers_have_their_own_dtype(kinds) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(1, min(np.iinfo(kind).max, 2**42), (8, 8)).astype(kind) for kind in kinds)
    product = a @ b
    assert abs(product).max() > 2**32
    assert compare_gemm(a, b, product).ok
    product[2, 3] += 1
    assert not compare_gemm(a, b, product).ok


@pytest.mark.parametrize("data", [normal, positive])
@pytest.mark.parametrize("period", [None, 128, 512])
def test_sums_of_few_bits_and_their_promotion(period, data) -> None:
    """Sums that keep 13 bits pass, alone and promoted. Those with 6 bits or a missing term do not."""
    a, b = problem((24, 32, 4096), f8e4m3, lambda rng, shape: data(rng, shape) / 64)
    how = Accumulation(f32, 32, sum_bits=13, period=period)
    right = sequential(a, b, how)
    found = compare_gemm(a, b, right, how)
    assert found.ok, str(found)
    assert not compare_gemm(a, b, sequential(a, b, replace(how, sum_bits=6)), how).ok
    if data is normal or period == 128:  # else the bound is wider than a term
        term = np.outer(a[:, 99].astype(np.float64), b[99].astype(np.float64))
        assert not compare_gemm(a, b, (right - term).astype(np.float32), how).ok


def test_promotion_narrows_the_bound() -> None:
    a, b = problem((24, 32, 4096), f8e4m3, normal)
    often, rarely, never = (
        gemm_bound(a, b, Accumulation(f32, 32, sum_bits=13, period=period), f32)[2].max()
        for period in (128, 512, None)
    )
    assert often < rarely < never / 2


def test_a_blas_result_of_many_elements_passes() -> None:
    a, b = np.random.default_rng(5).standard_normal((2, 768, 768), np.float32)
    found = compare_gemm(a, b, a @ b)
    assert found.ok
    assert found.error < found.bound / 2


def test_panels_make_no_difference(monkeypatch) -> None:
    a, b = np.random.default_rng(6).standard_normal((2, 64, 64), np.float32)
    whole = compare_gemm(a, b, a @ b)
    monkeypatch.setattr("tilewright.checking.compare._PANEL", 64 * 5)
    parts = compare_gemm(a, b, a @ b)
    assert (parts.ok, parts.index, parts.resolved) == (whole.ok, whole.index, whole.resolved)
    assert np.isclose(parts.bound, whole.bound)


def test_a_lost_term_hidden_in_the_noise_of_each_element_is_found_and_named() -> None:
    a, b = problem((64, 64, 4096), f32, positive)
    how = Accumulation.of(MMA_F16)
    right = sequential(a, b, how)
    lost = right - np.outer(a[:, 1234], b[1234]).astype(np.float32)
    _, _, bound = gemm_bound(a, b, how, f32)
    assert (np.abs(right.astype(np.float64) - lost) < bound).mean() > 0.5
    found = compare_gemm(a, b, lost.astype(np.float32), how)
    assert not found.ok


def test_what_could_not_have_been_seen_is_said() -> None:
    a, b = problem((16, 16, 65536), bf16, lambda rng, shape: rng.random(shape))
    how = Accumulation.of(MMA_BF16)
    found = compare_gemm(a, b, sequential(a, b, how).astype(bf16.numpy), how)
    assert found.ok
    assert found.resolved < 0.1
    assert "one lost term would show for" in str(found)


def test_equal_products_round_alike_and_still_pass() -> None:
    a, b = np.full((8, 4096), 0.1, np.float32), np.full((4096, 8), 0.1, np.float32)
    assert compare_gemm(a, b, sequential(a, b, Accumulation())).ok
    assert not compare_gemm(a, b, sequential(a[:, 2:], b[2:], Accumulation())).ok


def test_infinities_belong_where_the_product_has_them() -> None:
    a, b = np.full((4, 4), 200.0, np.float16), np.full((4, 4), 200.0, np.float16)
    assert compare_gemm(a, b, np.full((4, 4), np.inf, np.float16)).ok
    assert not compare_gemm(a, b, np.full((4, 4), -np.inf, np.float16)).ok
    small = np.ones((4, 4), np.float16)
    assert not compare_gemm(small, small, np.full((4, 4), np.inf, np.float16)).ok
    a[0, 0] = np.nan
    right = np.full((4, 4), np.inf, np.float16)
    right[0] = np.nan
    assert compare_gemm(a, b, right).ok
    assert not compare_gemm(a, b, np.full((4, 4), np.inf, np.float16)).ok


def test_no_infinity_or_nan_gives_a_warning() -> None:
    a = np.eye(4, dtype=np.float32)
    for number in (np.inf, -np.inf, np.nan):
        b = a.copy()
        b[1, 2] = number
        with np.errstate(all="ignore"):
            product = b.astype(float) @ a
        assert compare_gemm(b, a, product.astype(np.float32)).ok
        assert not compare_gemm(b, a, a).ok
        assert np.isnan(softmax_attention(a, a, b, 1.0)[:, 2]).all() == np.isnan(number)
        masked = softmax_attention(a, b, a, 1.0, shift=0)
        assert np.isfinite(masked[0]).all()
        assert np.isnan(masked[3]).all()


def test_integers_by_floats_are_multiplied_as_floats() -> None:
    a, b = np.arange(-8, 8, dtype=np.int8).reshape(4, 4), np.full((4, 4), 0.5, np.float32)
    for left, right in ((a, b), (b, a)):
        product = left.astype(np.float32) @ right.astype(np.float32)
        assert compare_gemm(left, right, product).ok
        assert not compare_gemm(left, right, 0 * product).ok


def test_f64_inputs_are_compared_in_twice_the_precision() -> None:
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((24, 40)), rng.standard_normal((40, 24))
    high, low, bound = gemm_bound(a, b, Accumulation(f64), f64)
    for i in range(24):
        for j in range(24):
            exact = sum(Fraction(x) * Fraction(y) for x, y in zip(a[i], b[:, j], strict=True))
            assert abs(Fraction(high[i, j]) + Fraction(low[i, j]) - exact) < Fraction(1, 2**70)
    assert (bound < 1e-12).all()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        compare_gemm(np.zeros((2, 3)), np.zeros((2, 3)), np.zeros((2, 3)))
    with pytest.raises(DTypeError, match="real and imaginary"):
        compare_gemm(np.zeros((2, 2), complex), np.zeros((2, 2), complex), np.zeros((2, 2), complex))
    with pytest.raises(WrongResultError, match=r"element \(0, 0\) is 1, expected 0"):
        compare_gemm(np.zeros((1, 1)), np.zeros((1, 1)), np.ones((1, 1))).raise_if_wrong()


def test_empty_products() -> None:
    assert compare_gemm(np.zeros((0, 4)), np.zeros((4, 3)), np.zeros((0, 3))).ok
    assert compare_gemm(np.zeros((2, 0)), np.zeros((0, 3)), np.zeros((2, 3))).ok
    assert not compare_gemm(np.zeros((2, 0)), np.zeros((0, 3)), np.ones((2, 3))).ok
    ints = np.zeros((2, 0), np.int8), np.zeros((0, 3), np.int8)
    assert compare_gemm(*ints, np.zeros((2, 3), i32.numpy)).ok
