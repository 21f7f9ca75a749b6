"""`einsum`: saturated results, split K, and the precision of products."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.tune.einsum_trial import Contracted, EinsumTrial

from .test_einsum import HEADS, whole

pytestmark = pytest.mark.in_turns(3)

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
ALL_TARGETS = pytest.mark.parametrize("target", ["reference", "cpu", GPU])


def called(target: str, *arrays: Any, **words: Any) -> Any:
    there = [tw.testing.device_put(one, target) for one in arrays]
    beside = {
        name: tw.testing.device_put(one, target) if isinstance(one, np.ndarray) else one
        for name, one in words.items()
    }
    return tw.testing.device_get(tw.einsum(HEADS, *there, **beside, target=target))


KINDS = ("f8e4m3", "f8e5m2", "f16", "i8", "u8")


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        *((kind, "reference") for kind in KINDS),
        *((kind, "cpu") for kind in ("f8e4m3", "i8")),
        *(pytest.param(kind, "cuda", marks=pytest.mark.gpu) for kind in KINDS),
    ],
)
def test_results_saturate(kind: str, target: str) -> None:
    """Numbers beyond the range of a dtype become its largest number with their sign; NaN stays NaN, or 0."""
    dtype = tw.dtype(kind)
    rng = np.random.default_rng(5)
    a, b = whole(rng, (2, 7, 6), "f32"), whole(rng, (6, 3, 4), "f32")
    bias = np.float32([[[0.0], [np.inf], [-np.inf], [np.nan], [1e30], [-300.0], [0.25]]])
    exact = np.einsum(HEADS, a, b) * np.float32(50) + bias
    made = called(target, a, b, alpha=50.0, bias=bias, out_dtype=kind, saturate=True)
    if dtype.is_float:
        info = ml_dtypes.finfo(dtype.numpy)
        want = np.clip(exact, np.float32(info.min), np.float32(info.max)).astype(dtype.numpy)
        assert np.array_equal(made.astype(np.float32), want.astype(np.float32), equal_nan=True)
        assert np.isnan(made[:, :, 3].astype(np.float32)).all()
    else:
        info = np.iinfo(dtype.numpy)
        want = np.clip(np.rint(np.nan_to_num(exact, nan=0.0)), info.min, info.max).astype(dtype.numpy)
        assert np.array_equal(made, want)
        assert (made[:, :, 3] == 0).all()
    assert (made[:, :, 1] == info.max).all()
    assert (made[:, :, 2] == info.min).all()


@ALL_TARGETS
def test_sums_of_integers_are_scaled_to_bytes(target: str) -> None:
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-128, 128, shape).astype(np.int8) for shape in ((2, 7, 60), (60, 3, 4)))
    exact = np.einsum(HEADS, a.astype(np.int64), b.astype(np.int64))
    made = called(target, a, b, alpha=1 / 512, out_dtype="i8", saturate=True)
    assert np.array_equal(made, np.clip(np.rint(exact / 512), -128, 127))
    assert (made == 127).any()
    assert np.array_equal(called(target, a, b, out_dtype="i8", saturate=True), np.clip(exact, -128, 127))


@pytest.mark.in_turns(3)
@ALL_TARGETS
@pytest.mark.parametrize("split_k", [3, "auto", "stream"])
def test_parts_of_k_are_added_up_behind_views(split_k: int | str, target: str) -> None:
    """K has two strides, rows are merged, and the result is permuted; the merged K is split."""
    drawn = Contracted.drawn("bhsd,hde->ebs", ((2, 3, 70, 40), (3, 40, 24)), tw.f16, residual=True)
    trial = EinsumTrial(drawn, target, "gelu", split_k=split_k)
    trial.run()
    trial.verify().raise_if_wrong()
    assert trial.scheduled().split_k != 1 or split_k == "auto"


def test_ways_of_adding_parts_of_k_have_the_same_sums() -> None:
    rng = np.random.default_rng(7)
    a, b = whole(rng, (2, 40, 96), "f16"), whole(rng, (96, 3, 16), "f16")
    want = np.einsum(HEADS, a.astype(np.float32), b.astype(np.float32))
    for reduction in ("workspace", "turnstile", "reduce-scatter", "atomic", "cluster"):
        made = called("reference", a, b, split_k=2, reduction=reduction, out_dtype="f32")
        assert np.array_equal(made, want), reduction
    with pytest.raises(tw.LaunchError, match="has no clusters; nearest legal choice: reduction="):
        called("cpu", a, b, split_k=2, reduction="cluster")
