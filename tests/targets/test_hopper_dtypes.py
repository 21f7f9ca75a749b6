"""The Hopper GEMM of the examples for every dtype of ``wgmma``, with and without promotion."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import normal
from tilewright.dtypes import dtype
from tilewright.ir import verify
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

pytestmark = pytest.mark.in_turns(3)

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "03_hopper_gemm.py"))
CASES = [
    ("f32", "f32", None),
    ("f8e4m3", "bf16", None),
    ("f8e4m3", "bf16", 1),
    ("f8e5m2", "f32", 2),
    ("i8", "i32", None),
]
"""Dtypes of A and B, and of C; steps between promotions."""


def matrices(rng, shape, element, out):
    """Return random A (M, K) and B (N, K) in rows of a multiple of 16 bytes, and a poisoned C (M, N)."""
    m, n, k = shape
    a, b = (normal(rng, extents, dtype(element)) for extents in ((m, k), (n, k)))
    kind = dtype(out)
    return a, b, np.full((m, n), np.nan if kind.is_float else np.iinfo(kind.numpy).min, kind.numpy)


@pytest.mark.parametrize(("element", "out", "period"), CASES)
def test_it_is_right_on_the_reference_and_clean(element, out, period) -> None:
    per_row = 128 // dtype(element).bytes
    shape = (136, 136, 4 * per_row + 16)
    a, b, c = matrices(np.random.default_rng(5), shape, element, out)
    bound = EXAMPLE["bind"](dtype(element), columns=64, stages=3, blocks=2, group=2, period=period)
    bound.check(a, b, c).raise_if_any()
    assert bound(a, b, c, target="reference").target == "reference"
    how = Accumulation.of(bound.constants["mma"].atom, period and period * per_row)
    compare_gemm(a, b.T, c, how).raise_if_wrong()


@pytest.mark.parametrize(("element", "out", "period"), CASES)
def test_it_compiles_without_spills_or_warnings(element, out, period) -> None:
    specs = [
        tw.TensorSpec(kind, 2, 1, (16 // kind.bytes,) * 2, (16 // kind.bytes, 1), 16, False)
        for kind in map(dtype, (element, element, out))
    ]
    kernel = EXAMPLE["bind"](dtype(element), period=period).trace(*specs)
    assert [str(v) for v in (*verify.violations(kernel), *cuda.violations(kernel, "sm_90a"))] == []
    binary = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)
