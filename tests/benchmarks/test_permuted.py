"""Every case of the permuted benchmark compiles for an H200; that of epilogues runs on a CPU."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ops.einsum import ARRAYS, plan_einsum
from tilewright.ops.wanted import Wanted
from tilewright.schedule.choice import choose

from .test_benchmarks import HERE, run

pytestmark = pytest.mark.in_turns(3)

PROCESSORS = 132
"""Of an H200."""

MERGED = (2, 0, 1, 3)
"""Of (B, S, H, D), where B and S have one stride and neither is taken index by index."""


def test_every_case_compiles_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))
    permuted = importlib.import_module("permuted")
    by_bulk = {}
    for layout, (b, s, h, d, k), order in permuted.ON_GPU:
        text = permuted.subscripts(layout, order)
        shapes = {"a": (b, s, k), "b": (h, d, k) if layout == "t" else (k, h, d)}
        shapes["out"] = tuple((b, s, h, d)[axis] for axis in order)
        shapes["bias"] = tuple(1 if axis < 2 else (h, d)[axis - 2] for axis in order)
        given = {name: np.empty(shape, np.float16) for name, shape in shapes.items()}
        in_call = {name: given.get(name) for name in ARRAYS}
        product = plan_einsum(text, in_call, Wanted()).product
        arguments = [*product.arrays, *product.numbers]
        question = product.kernel.question(*arguments, target="cuda", arch="sm_90a")
        assert question is not None
        schedule = choose(replace(question, processors=PROCESSORS))
        kernel = plan_einsum(text, in_call, Wanted(schedule=schedule)).product.kernel
        made = kernel.compile(*arguments, target="cuda", arch="sm_90a")
        assert made.resources["spill_store_bytes"] == 0, (text, schedule)
        by_bulk[layout, d, order] = "tma_store" in made.source
    assert by_bulk["t", 128, MERGED]
    assert by_bulk["t", 128, permuted.HEADS]
    assert not by_bulk["t", 96, permuted.HEADS]


def test_dropout_and_reductions_run_beside_numpy() -> None:
    printed = run("epilogues.py", "--quick", "--target", "cpu")
    assert "dropout 64x96x64" in printed
    assert "logsumexp 40x600x64" in printed
    assert "adapter 64x96x64x8" in printed
    assert "RMS norm 64x96x64" in printed
