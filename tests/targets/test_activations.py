"""Activations, which are made of other functions, against more bits."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType

from .elementary import EXACT, points

TILE = 512


@tw.kernel(X="N", Y="P N")
def each(X, Y):
    n = tw.block_index(tw.ceil_div(X.shape[0], TILE))
    x = tw.load(X.tile((TILE,), (n,)).partition((32,)))
    made = tw.relu(x), tw.silu(x), tw.gelu(x), tw.gelu(x, approximate=True)
    for at, y in enumerate(made):
        tw.copy(y, Y[at].tile((TILE,), (n,)))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("dtype", [tw.f32, tw.f64], ids=str)
@np.errstate(all="ignore")
def test_their_errors(dtype: DType, target: str) -> None:
    x = points(dtype)
    x = x[np.isfinite(x)]
    y = np.full((4, x.size), 7, dtype.numpy)
    assert each(x, y, target=target).target == target
    wide, unit = x.astype(np.longdouble), dtype.unit_roundoff
    np.testing.assert_array_equal(y[0], np.maximum(x, 0))
    tail = (1 + np.abs(wide)) * float(np.finfo(dtype.numpy).smallest_subnormal)
    silu = wide * EXACT["sigmoid"](wide)
    assert np.all(np.abs(y[1] - silu) <= 12 * unit * np.abs(silu) + 2 * tail)
    gelu = wide * (1 + EXACT["erf"](wide * np.sqrt(np.longdouble(0.5)))) / 2
    assert np.all(np.abs(y[2] - gelu) <= 4 * unit * np.abs(wide) + tail)
    near = np.abs(wide) < 100
    assert np.all(np.abs(y[3] - gelu)[near] <= 5e-4)
    assert np.all((np.abs(y[3] - gelu) <= 5e-4 + 4 * unit * np.abs(wide))[~near])


@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16], ids=str)
def test_narrow_floats_are_rounded_once(dtype: DType) -> None:
    x = np.linspace(-6, 6, 400).astype(dtype.numpy)
    y, wide = np.empty((4, x.size), dtype.numpy), np.empty((4, x.size), np.float32)
    assert each(x, y, target="cpu").target == "cpu"
    assert each(x.astype(np.float32), wide, target="cpu").target == "cpu"
    np.testing.assert_array_equal(y, wide.astype(dtype.numpy))
