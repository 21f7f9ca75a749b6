"""The checker explains, without a GPU, a kernel that hangs one."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw

from .pingpong import COLUMNS, pingpong_gemm


def problem(m=400, n=264, k=200):
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.bfloat16) for shape in ((m, k), (n, k)))
    return a, b, np.full((m, n), np.nan, ml_dtypes.bfloat16)


def bound(ordered: bool):
    mma = tw.TiledMma(tw.atoms.wgmma(tw.bf16, 128), warps=(1, 1), repeats=(2, 1))
    return pingpong_gemm.bind(tile=(128, 128, COLUMNS), mma=mma, stages=3, blocks=1, ordered=ordered)


def test_in_order_it_is_clean_and_right() -> None:
    a, b, c = problem()
    assert bound(True)(a, b, c, target="reference").target == "reference"
    exact = a.astype(np.float64) @ b.astype(np.float64).T
    np.testing.assert_allclose(c.astype(np.float64), exact, rtol=2**-8, atol=1e-4)


def test_out_of_order_the_phase_and_the_deadlock_are_found() -> None:
    report = bound(False).check(*problem())
    text = str(report)
    assert "wrong phase on barrier full" in text
    assert "two phases earlier it would have passed as well" in text
    assert "tw.hopper.wait(full[stage], step // stages % 2)" in text
    with pytest.raises(tw.HazardError):
        report.raise_if_any()
