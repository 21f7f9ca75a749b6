"""Split K with several totals: each total has its own sums in the workspace."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.gpu.workspaces import poisoned

import tilewright as tw
from tilewright.targets.atoms import fma
from tilewright.testing import compare_algebra, residues

from .test_several_products import KERNELS, SCHEDULES, arrays, computed

COPIED, BULK = SCHEDULES["cp_async"], replace(SCHEDULES["cooperative"], blocks=0)
SPLITS = {
    "a workspace": replace(COPIED, split_k=3),
    "in two steps": replace(COPIED, tile=(64, 64, 16), split_k=13),
    "steps dealt out": replace(COPIED, split_k="stream", blocks=5),
    "turns": replace(SCHEDULES["direct"], split_k=3, reduction="turnstile"),
    "atomic": replace(SCHEDULES["fragments"], split_k=3, reduction="atomic"),
    "bulk copies": replace(BULK, split_k=3),
    "bulk copies, dealt out": replace(BULK, split_k="auto", blocks=9),
    "bulk copies, promoted": replace(BULK, promote=1, split_k=2),
    "swapped": replace(BULK, split_k=2, swap_ab=True),
}
SHAPE = (70, 40, 200)
"""Two tiles, both ragged."""

of_each_split = pytest.mark.parametrize("name", SPLITS)


@pytest.mark.in_turns(4)
@of_each_split
def test_the_reference_computes_all_totals(name: str) -> None:
    computed("gated" if name == "turns" else "planar", SPLITS[name], SHAPE, "reference")


@pytest.mark.in_turns(4)
@of_each_split
def test_parts_are_the_same_polynomials_as_the_whole(name: str) -> None:
    given = [tw.like(tw.f16, array.shape) for array in arrays("planar", SHAPE, np.float16).values()]
    whole, parts = (KERNELS["planar"].bind(schedule=one) for one in (COPIED, SPLITS[name]))
    compare_algebra(whole, parts, *given).raise_if_wrong()


def test_totals_that_change_places_are_other_polynomials() -> None:
    """The comparison detects one total in the place of another."""
    given = [tw.like(tw.f16, array.shape) for array in arrays("planar", SHAPE, np.float16).values()]
    found = residues(KERNELS["planar"].bind(schedule=SPLITS["a workspace"]), *given)
    assert (found["Cr"] != found["Ci"]).mean() > 0.99


@pytest.mark.parametrize(
    ("split_k", "reduction"),
    [(14, "workspace"), ("stream", "workspace"), (2, "turnstile"), ("auto", "atomic")],
)
def test_processors_compute_all_totals(split_k: int | str, reduction: str) -> None:
    atom = fma("f32", lanes=(1, 1), each=(4, 16))
    schedule = tw.Schedule(atom, (48, 32, 16), staging="panels", split_k=split_k, reduction=reduction)
    schedule = replace(schedule, blocks=4 if isinstance(split_k, str) else 0)
    computed("planar", schedule, (61, 70, 230), "cpu", np.float32)


@pytest.mark.parametrize("name", ["in two steps", "bulk copies"])
def test_texts_spill_nothing(name: str) -> None:
    made = [tw.like(tw.f16, 256, 256)] * 6
    ran = KERNELS["planar"].bind(schedule=SPLITS[name]).compile(*made, target="cuda", arch="sm_90a")
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


@pytest.mark.parametrize("reduction", ["cluster", "reduce-scatter"])
def test_shares_of_several_totals_are_refused(reduction: str) -> None:
    split = replace(BULK, split_k=2, reduction=reduction, epilogue="direct")
    with pytest.raises(tw.ScheduleError, match=r'with 2 sums for each element.*[\s\S]*reduction="workspace"'):
        computed("planar", split, (64, 64, 64), "reference")


@pytest.mark.gpu
@of_each_split
@pytest.mark.parametrize("kernel", ["planar", "gated"])
def test_a_gpu_computes_all_totals(kernel: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with poisoned(monkeypatch):
        for shape in (SHAPE, (64, 8, 1000), (300, 200, 24)):
            computed(kernel, SPLITS[name], shape, "cuda")
