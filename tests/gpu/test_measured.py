"""What Nsight Compute counts on a GPU is what was predicted. Fails where `ncu` is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tilewright.inspect.measured import (
    LOADS,
    MATRIX_LOADS,
    METRICS,
    REGISTERS,
    STORE_PASSES,
    STORES,
    measured,
    predicted_figures,
    require_gpu,
    with_ratios,
)
from tilewright.inspect.predicted import predicted_traffic
from tilewright.inspect.subject import from_file

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
SHAPE = "512x384x320"


@pytest.mark.parametrize("example", ["02_basic_gemm.py", "04_optimized_gemm.py"])
def test_predicted_passes_are_within_a_tenth_of_those_measured(example: str) -> None:
    ncu = require_gpu()
    kernel = f"{EXAMPLES / example}:LARGE"
    subject = from_file(kernel, "f16", SHAPE, ())
    made = subject.compile("cuda")
    assert made.listing is not None
    lowered = made.listing.kernel
    traffic = predicted_traffic(lowered, subject.binding(lowered), made.arch)
    predicted = with_ratios(predicted_figures(traffic, made.resources["registers"]))
    asked = ("inspect", kernel, "--target", "cuda", "--dtype", "f16", "--shape", SHAPE, "--launch")
    found = with_ratios(measured(ncu, made.listing.entry, asked))
    assert set(METRICS.values()) <= set(found)
    assert traffic is not None
    for name in (LOADS, MATRIX_LOADS, REGISTERS):
        assert found[name] == predicted[name], (name, found, predicted)
    assert predicted["wavefronts per load"] == pytest.approx(found["wavefronts per load"], rel=0.1)
    if not traffic.matrix_stores:
        assert found[STORES] == predicted[STORES]
        assert predicted["wavefronts per store"] == pytest.approx(found["wavefronts per store"], rel=0.1)
        return
    # Each counter of stores may count `stmatrix` or not.
    every = traffic.stores + traffic.matrix_stores
    assert found[STORES] in (traffic.stores, every), (found, traffic)
    passes = (traffic.store_passes, traffic.store_passes + traffic.matrix_store_passes)
    assert any(count == pytest.approx(found[STORE_PASSES], rel=0.1) for count in passes), (found, traffic)
    assert found["duration (us)"] > 0
