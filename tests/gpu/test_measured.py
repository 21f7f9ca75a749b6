"""What Nsight Compute counts on a GPU is what was predicted. Fails where `ncu` is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.inspect.measured import (
    ASYNC_PASSES,
    CONFLICTS,
    LOAD_PASSES,
    LOADS,
    MATRIX_LOAD_PASSES,
    MATRIX_LOADS,
    MATRIX_STORE_PASSES,
    MATRIX_STORES,
    METRICS,
    PASSES,
    REGISTERS,
    STORE_PASSES,
    STORES,
    measured,
    predicted_figures,
    require_gpu,
    with_derived,
)
from tilewright.inspect.predicted import predicted_traffic
from tilewright.inspect.subject import from_file

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
LEVEL = ("tile=(128, 128, 32)", "mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(4, 8))")
WARP_TILES = ("tile=(128, 64, 32)", "mma=tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(4, 4))")
GEMM = "512x384x320"
CASES: dict[str, tuple[tuple[str, ...], str, str]] = {
    "02_basic_gemm.py:LARGE": ((), GEMM, "f16"),
    "04_optimized_gemm.py:LARGE": ((), GEMM, "f16"),
    "06_warp_tiles_gemm.py:warp_tiles_gemm": (WARP_TILES, GEMM, "f16"),
    "07_three_levels_gemm.py:serial": (LEVEL, GEMM, "f16"),
    "07_three_levels_gemm.py:buffered": (LEVEL, GEMM, "f16"),
    "07_three_levels_gemm.py:prefetched": ((*LEVEL, "stages=4"), GEMM, "f16"),
}
"""Each kernel with its constants, extents that are whole tiles, and element types."""

COUNTED = (
    *(LOADS, LOAD_PASSES, MATRIX_LOADS, MATRIX_LOAD_PASSES),
    *(STORES, STORE_PASSES, MATRIX_STORES, MATRIX_STORE_PASSES),
    *(ASYNC_PASSES, PASSES, CONFLICTS, REGISTERS),
)


@pytest.mark.parametrize("kernel", CASES)
def test_what_is_counted_is_exactly_what_was_predicted(kernel: str) -> None:
    constants, shape, dtypes = CASES[kernel]
    ncu = require_gpu()
    subject = from_file(str(EXAMPLES / kernel), dtypes, shape, constants)
    made = subject.compile("cuda")
    assert made.listing is not None
    lowered = made.listing.kernel
    traffic = predicted_traffic(lowered, subject.binding(lowered), made.arch)
    predicted = with_derived(predicted_figures(traffic, made.resources["registers"]))
    given = [word for constant in constants for word in ("--set", constant)]
    asked = ("--target", "cuda", "--dtype", dtypes, "--shape", shape, *given, "--launch")
    found = with_derived(measured(ncu, made.listing.entry, ("inspect", str(EXAMPLES / kernel), *asked)))
    assert set(METRICS.values()) <= set(found)
    assert found["duration (us)"] > 0
    assert {name: found[name] for name in COUNTED} == {name: predicted[name] for name in COUNTED}
