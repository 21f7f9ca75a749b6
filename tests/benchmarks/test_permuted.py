"""Every case of the permuted benchmark compiles for an H200; that of epilogues runs on a CPU."""

from __future__ import annotations

import importlib
from dataclasses import replace

import numpy as np
import pytest

from tilewright.ops.contraction import posed
from tilewright.ops.contractions import IN_KERNEL
from tilewright.ops.einsum import Dropout, bound_for
from tilewright.ops.planning import Wanted
from tilewright.ops.subscripts import read_subscripts
from tilewright.runtime.arrays import describe
from tilewright.runtime.frameworks import Strided
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
        infos = {name: describe(one) for name, one in given.items()}
        problem = posed(read_subscripts(text, (3, 3)), infos)
        seen = {name: Strided(given[name], info) for name, info in problem.infos.items()}
        arguments = [*(seen.get(name, seen["out"]) for name in IN_KERNEL), 1.0, *Dropout().numbers]
        question = bound_for(problem, infos, Wanted()).question(*arguments, target="cuda", arch="sm_90a")
        assert question is not None
        schedule = choose(replace(question, processors=PROCESSORS))
        kernel = bound_for(problem, infos, Wanted(schedule=schedule))
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
