"""`tw.matmul` for AMD GPUs: its numbers, by executing the listing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import normal
from tilewright.ops.products import output_dtype, plain

from .executed import launched

ARCHS = ("gfx942", "gfx1151")
GEMM = plain(0)


def matrix(rng: np.random.Generator, shape: tuple[int, int], dtype: tw.DType, transposed: bool) -> Any:
    """Random numbers of a dtype, contiguous along the rows or the columns."""
    extents = shape[::-1] if transposed else shape
    found = normal(rng, extents, dtype) if dtype.is_float else rng.integers(-128, 128, extents, np.int8)
    return found.T if transposed else found


@pytest.mark.parametrize("arch", ARCHS)
@pytest.mark.parametrize(
    ("dtype", "order", "shape"),
    [
        (tw.f16, "nn", (200, 136, 72)),
        (tw.bf16, "tn", (70, 99, 41)),
        (tw.i8, "nt", (65, 48, 96)),
        (tw.f32, "nn", (33, 130, 40)),
        (tw.f64, "tt", (50, 34, 24)),
    ],
    ids=lambda value: str(value),
)
def test_products_of_the_listing(arch: str, dtype: tw.DType, order: str, shape: tuple[int, int, int]) -> None:
    """Ragged sizes; the result lies in the middle of numbers that must stay, and was not a number before."""
    rng, (m, n, k) = np.random.default_rng(7), shape
    a, b = matrix(rng, (m, k), dtype, order[0] == "t"), matrix(rng, (k, n), dtype, order[1] == "t")
    out = output_dtype(dtype).numpy
    around = np.full((m + 2, n + 8), -77, out)
    c = around[1:-1, :n]
    c[:] = np.nan if dtype.is_float else -(2**31)
    made, run = launched(GEMM.bind(precision="exact"), arch, {"A": a, "B": b, "D": c})
    assert made.schedule is not None
    atom = made.schedule.atom
    compare_gemm(a, b, c, Accumulation.of(atom)).raise_if_wrong()
    around[1:-1, :n] = -77
    assert (around == -77).all()
    multiplied = {"mfma": "v_mfma_", "wmma": "v_wmma_", "fma": "v_"}[atom.instruction]
    assert any(name.startswith(multiplied) for name in run.mnemonics)
