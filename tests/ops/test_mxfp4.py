"""mxfp4 in `scaled_mm`: numbers of f4e2m1 in groups whose scales are powers of 2 equal NumPy's."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops.products import scaled_in_groups
from tilewright.testing import device_get, device_put

pytestmark = pytest.mark.in_turns(2)

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = np.array([*MAGNITUDES, *(-one for one in MAGNITUDES)])
"""The numbers of f4e2m1 by their codes, from the table of the OCP specification of MX formats."""


def decoded(codes: Array, scales: Array, group: int = 32) -> Array:
    """Return weights (K, N) in f64, from codes (K, N) and bytes of scales (K / group, N)."""
    powers = np.where(scales == 255, np.nan, np.exp2(scales.astype(np.float64) - 127))
    return NUMBERS[codes] * np.repeat(powers, group, axis=0)


def placed(codes: Array, scales: Array, target: str) -> tuple[Any, Any]:
    """Return the arguments of a call: weights with neighbours along K in one byte, and scales."""
    both = (codes[0::2] | codes[1::2] << 4).astype(np.uint8).T
    held = device_put(np.ascontiguousarray(both), target)
    return tw.packed(held.T, tw.f4e2m1), device_put(scales.view(ml_dtypes.float8_e8m0fnu), target)


@ALL_TARGETS
@pytest.mark.parametrize("wide", ["f16", "bf16", "f32"])
def test_every_number_with_every_scale_is_exact(wide: str, target: str) -> None:
    """One row of A selects one number, so the result is this number, rounded to the dtype of A."""
    codes = np.repeat(np.arange(32)[:, None] % 16, 256, axis=1).astype(np.uint8)
    scales = np.arange(256, dtype=np.uint8)[None]
    a = np.eye(32).astype(tw.dtype(wide).numpy)
    b, scale = placed(codes, scales, target)
    made = tw.scaled_mm(device_put(a, target), b, scale_b=scale, group=32, out_dtype="f32", target=target)
    with np.errstate(all="ignore"):
        weights = decoded(codes, scales).astype(a.dtype).astype(np.float64)
        want = (a.astype(np.float64)[:, :, None] * weights[None]).sum(1).astype(np.float32)
    np.testing.assert_array_equal(device_get(made), want)
    assert np.isnan(want[:, 255]).all()
    assert np.isfinite(want[:, :130]).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_number_of_a_table_is_rounded_before_a_power_of_two_multiplies_it(target: str) -> None:
    table = tuple(1e-6 * one for one in tw.NF4)  # in f16 these lose most of their fraction
    codes = np.arange(32)[:, None].astype(np.uint8) % 16
    both = tw.packed(np.ascontiguousarray((codes[0::2] | codes[1::2] << 4).T).T, tw.u4, axis=0)
    scale = np.array([[137]], np.uint8).view(ml_dtypes.float8_e8m0fnu)
    words = {"scale_b": scale, "group": 32, "table": table, "out_dtype": "f32", "target": target}
    made = tw.scaled_mm(np.eye(32, dtype=np.float16), both, **words)
    want = np.asarray(table, np.float16).astype(np.float32) * 1024
    assert np.array_equal(made[:, 0], np.tile(want, 2))
    assert not np.array_equal(want, (np.float32(1024) * np.float32(table)).astype(np.float16))


def drawn(m: int, n: int, k: int, wide: str, group: int = 32) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(m + n + k)
    a = rng.standard_normal((m, k + 8)).astype(tw.dtype(wide).numpy)[:, :k]
    codes = rng.integers(0, 16, (k, n)).astype(np.uint8)
    return a, codes, rng.integers(117, 132, (k // group, n)).astype(np.uint8)


def room(a: Array, weights: Array, kind: str) -> Array:
    """Return the error bound of a result."""
    sizes = np.abs(a.astype(np.float64)) @ np.abs(weights)
    unit = 2.0**-24 * 4 * (a.shape[1] + 8)
    return unit * sizes + tw.dtype(kind).unit_roundoff * np.abs(a.astype(np.float64) @ weights) + 2.0**-24


@ALL_TARGETS
@pytest.mark.parametrize("wide", ["f16", "bf16", "f32"])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 40, 96), (17, 130, 64), (70, 33, 160)])
def test_every_element(m: int, n: int, k: int, wide: str, target: str) -> None:
    a, codes, scales = drawn(m, n, k, wide)
    weights, whole = decoded(codes, scales), np.full((m, n + 8), np.nan, tw.dtype(wide).numpy)
    b, scale = placed(codes, scales, target)
    there, held = device_put(a, target), device_put(whole, target)
    for _ in calls_on(target):
        tw.scaled_mm(there, b, held[:, 4:-4], scale_b=scale, group=32, target=target)
    made = device_get(held).astype(np.float64)
    assert np.isnan(made[:, :4]).all()
    assert np.isnan(made[:, -4:]).all()
    off = np.abs(made[:, 4:-4] - a.astype(np.float64) @ weights)
    assert (off <= room(a, weights, wide)).all()
    wrong = decoded(codes, np.roll(scales, 1, axis=1))
    assert not (np.abs(made[:, 4:-4] - a.astype(np.float64) @ wrong) <= room(a, wrong, wide)).all()


@pytest.mark.parametrize("group", [32, 16, 64])
@pytest.mark.parametrize("zeros", [False, True])
def test_groups_of_other_lengths_and_zero_points(group: int, zeros: bool) -> None:
    a, codes, scales = drawn(9, 20, 128, "f16", group)
    b, scale = placed(codes, scales, "reference")
    zero = np.random.default_rng(1).integers(-2, 3, scales.shape).astype(np.int8)
    words = {"zero_b": zero} if zeros else {}
    bias = np.arange(20, dtype=np.float32)
    made = tw.scaled_mm(
        a, b, scale_b=scale, scale_a=0.5, bias=bias, group=group, out_dtype="f32", target="reference", **words
    )
    weights = decoded(codes, scales, group)
    if zeros:
        powers = np.repeat(np.exp2(scales.astype(np.float64) - 127), group, axis=0)
        weights = (NUMBERS[codes] - np.repeat(zero, group, axis=0)) * powers
    weights = weights.astype(np.float16).astype(np.float64)
    want = 0.5 * (a.astype(np.float64) @ weights) + bias
    assert (np.abs(made - want) <= room(a, weights, "f32") + 2.0**-20).all()


def test_weights_that_share_bytes_along_n_are_packed_first() -> None:
    a, codes, scales = drawn(5, 24, 64, "bf16")
    both = (codes[:, 0::2] | codes[:, 1::2] << 4).astype(np.uint8)
    scale = scales.view(ml_dtypes.float8_e8m0fnu)
    weights = tw.rearrange_weights(tw.packed(both, tw.f4e2m1), scale, group=32, target="cpu")
    made = tw.scaled_mm(a, weights, out_dtype="f32", target="cpu")
    exact = decoded(codes, scales)
    assert (np.abs(made - a.astype(np.float64) @ exact) <= room(a, exact, "f32")).all()


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
@pytest.mark.parametrize("rows", [16, 1024])
def test_it_is_one_kernel_by_tensor_cores_and_spills_nothing(rows: int, wide: str, arch: str) -> None:
    n = k = 4096
    like: list[Any] = [tw.like(wide, rows, k), tw.packed(np.empty((n, k // 2), np.uint8).T, tw.f4e2m1)]
    codes = tw.like("u8", k // 32, n)
    like += [tw.like("f32", rows), codes, codes, tw.like("f32", n), tw.like(wide, rows, n)]
    words = {"multiplied": tw.dtype(wide), "group": 32, "terms": frozenset(["scale_b"]), "activation": None}
    made = scaled_in_groups(0).bind(**words).compile(*like, 1.0, target="cuda", arch=arch)
    assert made.schedule.atom == {"f16": tw.atoms.MMA_F16, "bf16": tw.atoms.MMA_BF16}[wide]
    assert made.resources["spill_store_bytes"] == made.resources["spill_load_bytes"] == 0


A, B = np.ones((2, 32), np.float16), tw.packed(np.zeros((4, 16), np.uint8).T, tw.f4e2m1)
SCALE = np.ones((1, 4), ml_dtypes.float8_e8m0fnu)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        ({"scale_b": SCALE}, tw.LaunchError, "scale_b is f8e8m0, .* and group is None; nearest .*: group=32"),
        ({"scale_a": SCALE[0, :1]}, tw.DTypeError, "scale_a is f8e8m0; nearest legal choice: f32, f16, bf16"),
        (
            {"scale_b": SCALE, "group": 16},
            tw.LaunchError,
            r"needs one number for each column and each group of 16 along K; nearest legal choice: \(2, 4\)",
        ),
        (
            {"scale_b": SCALE, "group": 32, "prepass": True},
            tw.LaunchError,
            "nearest legal choice: prepass=None",
        ),
        ({"scale_b": SCALE, "group": 32, "bias": SCALE[0]}, tw.DTypeError, "bias is f8e8m0; nearest"),
        ({"scale_b": SCALE, "zero_b": SCALE, "group": 32}, tw.DTypeError, "zero_b is f8e8m0; nearest"),
    ],
)
def test_what_is_no_mx_format_is_refused(words: dict[str, Any], error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        tw.scaled_mm(A, B, **words, target="reference")


def test_kernels_do_not_compute_with_exponents() -> None:
    @tw.kernel(X="N", Y="N")
    def copied(X: Any, Y: Any) -> None:
        tw.copy(tw.load(X.tile((32,), (0,)).partition((32,))), Y.tile((32,), (0,)).partition((32,)))

    codes = np.arange(32).astype(np.uint8)
    for target in ("reference", "cpu"):
        with pytest.raises(tw.DTypeError, match=r"X is f8e8m0, .*; nearest legal choice: its bytes, X.view"):
            copied(codes.view(ml_dtypes.float8_e8m0fnu), np.zeros(32, np.uint8), target=target)
        out = np.zeros(32, np.uint8)
        copied(codes, out, target=target)
        assert (out == codes).all()
    assert tw.dtype(ml_dtypes.float8_e8m0fnu) == tw.dtype("float8_e8m0fnu") == tw.f8e8m0
    with pytest.raises(tw.DTypeError, match="matmul of f8e8m0 is not supported"):
        tw.matmul(SCALE, SCALE, target="reference")
