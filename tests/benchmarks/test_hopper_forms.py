"""The family of Hopper GEMMs: its forms compile, are right on the reference, and have no hazards."""

from __future__ import annotations

import json
import runpy
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import operands

from .test_benchmarks import HERE, run


def benchmark(name: str) -> dict[str, Any]:
    """The names that a file beside the benchmarks defines."""
    sys.path.insert(0, str(HERE))
    try:
        return runpy.run_path(str(HERE / name))
    finally:
        sys.path.remove(str(HERE))


FAMILY = benchmark("hopper_family.py")
Form, PLAIN = FAMILY["Form"], FAMILY["PLAIN"]

PING = {"columns": 64, "rows": 128, "pingpong": True}
FORMS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "two groups": ({"columns": 64}, "", "bf16", "bf16"),
    "bands of n, backwards": (
        {"columns": 64, "band": 2, "band_along": "n", "snake": True},
        "",
        "bf16",
        "bf16",
    ),
    "stored as a whole": ({"columns": 128, "buffers": 2, "batch": 2, "pending": 0}, "", "f16", "f16"),
    "a cluster along M": ({"columns": 64, "cluster": (2, 1)}, "", "bf16", "bf16"),
    "a cluster along N": ({"columns": 64, "cluster": (1, 2)}, "", "bf16", "bf16"),
    "ping-pong": (PING, "", "bf16", "bf16"),
    "ping-pong in a cluster": ({**PING, "cluster": (2, 1)}, "", "bf16", "bf16"),
    "B along N": ({"columns": 64}, "n", "bf16", "bf16"),
    "A along M": ({"columns": 64, "rows": 128}, "m", "bf16", "bf16"),
    "both, in a cluster": ({"columns": 128, "cluster": (2, 1)}, "mn", "bf16", "bf16"),
    "once": (
        {"columns": 32, "groups": 1, "buffers": 0, "persistent": False, "registers": None},
        "",
        "bf16",
        "bf16",
    ),
    "promoted": ({"columns": 64, "period": 1}, "", "f8e4m3", "bf16"),
    "promoted every other step": ({"columns": 64, "period": 2, "fresh": False}, "", "f8e4m3", "bf16"),
    "promoted in turns": ({"columns": 64, "period": 1, "partials": 2}, "", "f8e4m3", "bf16"),
    "bytes": ({"columns": 64}, "", "i8", "i32"),
}


@pytest.mark.parametrize("name", FORMS)
def test_a_form_is_right_and_has_no_hazards(name: str) -> None:
    """On a ragged problem, several tiles for each block, and a ring that is used twice over."""
    fields, along, dtype, out = FORMS[name]
    form = replace(Form(**fields, processors=4), stages=3).filled(tw.dtype(out))
    (tile_m, tile_n), (across, beside) = form.tile, form.cluster
    width = 128 // tw.dtype(dtype).bytes
    shape = (tile_m * across * 2 + tile_m - 24, tile_n * beside + 40, width * 4 + 16)
    made = operands("random", tw.dtype(dtype), shape, layout="nt", seed=3)
    a, b = made.a, made.b.T
    stored = [np.ascontiguousarray(x.T) if letter in along else x for x, letter in ((a, "m"), (b, "n"))]
    c = np.full(shape[:2], 77 if out == "i32" else np.nan, tw.dtype(out).numpy)
    bound = PLAIN[along].bind(form=form)
    bound.check(*stored, c).raise_if_any()
    assert bound(*stored, c, target="reference").target == "reference"
    atom = tw.atoms.wgmma(dtype, form.columns)
    period = form.period and form.period * width
    compare_gemm(a, b.T, c, Accumulation.of(atom, period)).raise_if_wrong()


@pytest.mark.parametrize("name", ["bias_gelu", "residual"])
def test_an_epilogue_is_right_and_has_no_hazards(name: str) -> None:
    rng = np.random.default_rng(5)
    m, n, k = 300, 136, 200
    a, b, whole, row = (
        rng.standard_normal(s).astype(ml_dtypes.bfloat16) for s in ((m, k), (n, k), (m, n), n)
    )
    extra = row if name == "bias_gelu" else whole
    c = np.full((m, n), np.nan, ml_dtypes.bfloat16)
    bound = FAMILY[name].bind(form=Form(**PING, slice=8, processors=3).filled(tw.bf16))
    bound.check(a, b, extra, c).raise_if_any()
    assert bound(a, b, extra, c, target="reference").target == "reference"
    x = a.astype(np.float64) @ b.astype(np.float64).T + extra.astype(np.float64)
    slope = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    wanted = 0.5 * x * (1 + np.tanh(slope)) if name == "bias_gelu" else x
    sums = np.abs(a.astype(np.float64)) @ np.abs(b.astype(np.float64)).T
    off = np.abs(c.astype(np.float64) - wanted)
    assert (off <= 2.0**-8 * np.abs(wanted) + 1.13 * k / 16 * 2.0**-22 * sums + 2.0**-18).all()


def test_every_set_builds_without_a_gpu(tmp_path: Path) -> None:
    printed = run("hopper_forms.py", "--out", tmp_path, "--build", "--first", 1, "--processes", 2)
    built = json.loads((tmp_path / "forms.json").read_text())["builds"]
    assert f"{len(built)} kernels built" in printed
    assert {row["set"].split()[0] for row in built} >= {"large", "majors", "fp8", "fused", "i8"}
    for row in built:
        assert "failed" not in row, row
        assert row["spill_store_bytes"] == 0, row


def test_every_form_has_a_name_and_stages() -> None:
    sets = benchmark("hopper_sets.py")["SETS"]
    for cases in sets.values():
        for case in cases:
            for name, form in case.forms.items():
                assert form.filled(tw.dtype(case.out)).stages >= 2, (str(case), name)
