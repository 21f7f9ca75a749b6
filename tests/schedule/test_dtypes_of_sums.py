"""Products are added up in the dtype that the kernel names, also if the operands have another one."""

from __future__ import annotations

import numpy as np
import pytest
from tests.eight_lines import product_in_f32 as in_f32

import tilewright as tw


@tw.kernel(A="M K", B="N K", C="M N")
def in_f64(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f64)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


CASES = [(in_f64, tw.f32), (in_f64, tw.f16), (in_f64, tw.bf16), (in_f32, tw.f64)]
"""Kernels with the dtype of their operands; no schedule was legal for them."""


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_sums_of_another_dtype(kernel: tw.Kernel, dtype: tw.DType, target: str) -> None:
    draw = np.random.default_rng(0)
    m, n, k = (70, 50, 90) if target == "cpu" else (9, 7, 20)
    a, b = (draw.standard_normal(shape).astype(dtype.numpy) for shape in ((m, k), (n, k)))
    wide = kernel is in_f64
    c = np.zeros((m, n), np.float64 if wide else np.float32)
    kernel(a, b, c, target=target)
    exact = a.astype(np.longdouble) @ b.astype(np.longdouble).T
    bound = np.abs(a.astype(np.longdouble)) @ np.abs(b.astype(np.longdouble)).T * (k + 1)
    assert (np.abs(c - exact) <= bound * (2.0**-53 if wide else 2.0**-24)).all()


@pytest.mark.parametrize(("kernel", "dtype"), CASES)
@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx90a")])
def test_sums_of_another_dtype_compile(kernel: tw.Kernel, dtype: tw.DType, target: str, arch: str) -> None:
    """Two numbers of f32 and a sum of f64 were no arguments of `fma` for NVRTC."""
    sums = tw.f64 if kernel is in_f64 else tw.f32
    given = tw.like(dtype, (512, 512)), tw.like(dtype, (512, 512)), tw.like(sums, (512, 512))
    source = kernel.compile(*given, target=target, arch=arch).source
    assert "(double)" in source
