"""Groups along K: bounds of a loop of products lie in memory. Schedules, refusals, engines and texts."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.problems.group_problems import KERNELS, SCHEDULES, GroupProblem, gradients

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.lang.control import index
from tilewright.lang.scalars import maximum, minimum
from tilewright.schedule import bulk
from tilewright.schedule.work import RowGroups

from .forms import BULK, FORMS, SYNC

SIZES = {"T": 300, "M": 80, "N": 72, "B": 1, "G": 5}


def drawn(name: str, turned: bool = False) -> dict[str, Any]:
    """Arrays of a kernel; the places of no group are NaN."""
    return GroupProblem(name, SIZES, "f16", "i4", None, 16, turned).arrays(7)[0]


def compared(name: str, kernel: Any, target: str, **numbers: int) -> Any:
    """Compute a kernel, and compare each element."""
    arrays = drawn(name)
    before = {key: array.copy() for key, array in arrays.items()}
    launch = kernel(*arrays.values(), **numbers, target=target)
    assert launch.target == target
    found = {key: arrays[key] for key in ("C", "D", "total") if key in arrays}
    how = Accumulation.of(launch.schedule.atom)
    return launch, compare_flow(launch.flow, found, before, numbers, how=how)


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("form", SCHEDULES)
def test_every_schedule(form: str) -> None:
    launch, found = compared("gradients", gradients.bind(schedule=SCHEDULES[form]), "reference")
    assert found.ok, found
    assert launch.schedule == SCHEDULES[form]


@pytest.mark.parametrize("name", KERNELS)
def test_flows_are_texts(name: str) -> None:
    numbers = {"shift": 50} if name == "weighted" else {}
    launch, found = compared(name, KERNELS[name][0], "reference", **numbers)
    assert found.ok, found
    text = tw.ir.print_flow(launch.flow)
    assert "ends" in text
    assert tw.ir.parse_flow(text) == launch.flow


@pytest.mark.parametrize("fault", ["begins early", "ends late"])
def test_a_wrong_bound_is_found(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = RowGroups._begin
    if fault == "begins early":
        monkeypatch.setattr(RowGroups, "_begin", lambda self, group: maximum(begin(self, group) - 1, 0))
    else:
        monkeypatch.setattr(
            RowGroups, "_end", lambda self, group: minimum(index(self.ends[group]) + 1, self.extent)
        )
    schedule = replace(SYNC, tile=(64, 64, 16), stages=3, staging="cp_async")  # nobody else's
    assert not compared("gradients", gradients.bind(schedule=schedule), "reference")[1].ok


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"split_k": 2}, "split_k=2; the bounds of k lie in memory"),
        ({"split_k": "stream", "blocks": 3}, "split_k='stream'; the bounds of k lie in memory"),
        ({"batches": 2}, "batches=2; the bounds of k lie in memory"),
        ({"whole": "k"}, "whole='k'; the bounds of k lie in memory"),
        ({"groups": 2, "staging": "fragments"}, "groups=2 that share steps; the bounds of k lie in memory"),
    ],
)
def test_refused_schedules(change: dict[str, Any], words: str) -> None:
    schedule = replace(SYNC, **{"stages": 3, "staging": "cp_async", **change})
    with pytest.raises(tw.ScheduleError) as error:
        gradients.bind(schedule=schedule)(*drawn("gradients").values(), target="reference")
    assert words in str(error.value)


def test_aligned_copies_do_not_begin_anywhere_along_k() -> None:
    schedule = replace(SYNC, stages=3, staging="cp_async")
    with pytest.raises(tw.ScheduleError, match="X is contiguous along k, and groups may begin anywhere"):
        gradients.bind(schedule=schedule)(*drawn("gradients", turned=True).values(), target="reference")


@pytest.mark.parametrize(
    ("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942"), ("cpu", "x86-64-v3")]
)
@pytest.mark.parametrize("name", KERNELS)
def test_a_schedule_is_chosen_for_every_layout(name: str, target: str, arch: str) -> None:
    """Also for operands that are contiguous along a batch."""
    for turned, batches in itertools.product((False, True), (1, 2)):
        sizes = {"T": 400, "M": 688, "N": 112, "K": 432, "B": batches, "G": 3}
        arrays, _ = GroupProblem(name, sizes, "bf16", "i4", None, 0, turned).arrays(1)
        numbers = {"shift": 50} if name == "weighted" else {}
        known = KERNELS[name][0].bind().schedule_for(*arrays.values(), **numbers, target=target, arch=arch)
        assert known is not None


def test_two_loops_with_bounds_are_refused() -> None:
    @tw.kernel(X="T M", Y="T N", Z="L N", W="L M", ends="G", C="G M N")
    def both(X, Y, Z, W, ends, C):
        for g, m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(X.shape[0], begin=None, end=ends[g]):
                acc += X[k, m].T @ Y[k, n]
            for j in tw.steps(Z.shape[0]):
                acc += W[j, m].T @ Z[j, n]
            C[g, m, n] = acc

    x, c = np.ones((8, 8), np.float32), np.ones((2, 8, 8), np.float32)
    words = "products over k, whose bounds lie in memory, and j; nearest legal choice: two kernels"
    with pytest.raises(tw.TraceError, match=words):
        both(x, x, x, x, np.int32([3, 8]), c, target="cpu")


def test_a_beginning_without_an_end_is_refused() -> None:
    @tw.kernel(X="T M", Y="T N", C="G M N")
    def endless(X, Y, C):
        for g, m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(X.shape[0], begin=None):
                acc += X[k, m].T @ Y[k, n]
            C[g, m, n] = acc

    x, c = np.ones((8, 8), np.float32), np.ones((2, 8, 8), np.float32)
    with pytest.raises(tw.TraceError, match="begin=None and without end"):
        endless(x, x, c, target="cpu")


@pytest.mark.parametrize(
    ("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942"), ("hip", "gfx1100")]
)
def test_large_groups_are_multiplied_by_matrix_units(target: str, arch: str) -> None:
    shapes = ("bf16", (32768, 4096)), ("bf16", (32768, 1408)), ("i32", (64,)), ("bf16", (64, 4096, 1408))
    given = [tw.like(*one) for one in shapes]
    schedule = gradients.bind().schedule_for(*given, target=target, arch=arch)
    made = gradients.compile(*given, target=target, arch=arch)
    assert schedule.atom.instruction != "fma"
    assert schedule.by_bulk == schedule.atom.asynchronous == (arch == "sm_90a")
    if target == "cuda":
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
        assert "serialized_wgmma" not in made.resources


WIDE = replace(BULK, tile=(128, 128, 64), atom=tw.atoms.wgmma("f16", 128))
"""The groups of warps share the columns of a tile, and each clears its part of them."""

THREE = replace(BULK, tile=(192, 64, 64), groups=3)
"""The columns do not have three equal parts, and one group of warps clears them."""


@pytest.mark.parametrize(
    "schedule", [BULK, WIDE, THREE, FORMS["ping-pong"], replace(BULK, cluster=(1, 2), blocks=0, group_m=0)]
)
@pytest.mark.parametrize("name", ["gradients", "prefixes", "pairs", "with_sums"])
def test_boxes_reach_into_the_next_group(name: str, schedule: tw.Schedule) -> None:
    """Rows after a group are NaN, or those of another group: they are cleared in shared memory."""
    launch, found = compared(name, KERNELS[name][0].bind(schedule=schedule), "reference")
    assert found.ok, found
    assert launch.schedule.staging == "tma"


def test_decoded_operands_of_groups_are_loaded_by_threads() -> None:
    kernel = KERNELS["weighted"][0]
    text = "X is decoded, and boxes of bulk copies reach into the next group along k"
    with pytest.raises(tw.ScheduleError, match=text):
        compared("weighted", kernel.bind(schedule=replace(WIDE, tile=(128, 128, 128))), "reference", shift=50)
    shapes = ("f16", (9999, 4096)), ("f16", (9999,)), ("f16", (9999, 1408)), ("i32", (8,))
    given = [*(tw.like(*one) for one in shapes), tw.like("f16", (8, 4096, 1408)), 50]
    assert not kernel.bind().schedule_for(*given, target="cuda", arch="sm_90a").by_bulk
    kernel.compile(*given, target="cuda", arch="sm_90a")


@pytest.mark.parametrize("fault", ["nothing is cleared", "no fence", "no barrier", "a row too few"])
@pytest.mark.parametrize("form", ["cooperative", "ping-pong"])
def test_faults_of_cleared_rows_are_found(fault: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clear = bulk.zero_after
    changed = {
        "nothing is cleared": ("zero_after", lambda *given: None),
        "no fence": ("fence_async", lambda: None),
        "no barrier": ("role_barrier", lambda *given, **words: None),
        "a row too few": ("zero_after", lambda tile, left, threads: clear(tile, left + 1, threads)),
    }
    monkeypatch.setattr(bulk, *changed[fault])
    stages = 2 + list(changed).index(fault)  # nobody else's schedules
    kernel = gradients.bind(schedule=replace(FORMS[form], stages=stages, group_m=3))
    try:
        found = compared("gradients", kernel, "reference")[1]
    except tw.HazardError:
        return
    assert not found.ok
