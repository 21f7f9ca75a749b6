"""Chosen schedules for packed weights on a GPU have lanes in runs along K, and split K for few tiles."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.products import scaled_in_groups
from tilewright.schedule.choice import proposals
from tilewright.schedule.legality import reasons
from tilewright.schedule.resources import ScheduleOnMachine


def question(m: int, n: int, k: int, group: int, arch: str, *, order: str = "k", wide: str = "f16") -> Any:
    """Return the problem of f16 or bf16 by 4-bit weights in groups with scales."""
    terms = frozenset({"scale_b"})
    kernel = scaled_in_groups(0).bind(multiplied=tw.dtype(wide), group=group, terms=terms, activation=None)
    held = np.empty((n, k // 2), np.uint8).T if order == "k" else np.empty((k, n // 2), np.uint8)
    a, groups = tw.like(wide, m, k), tw.like(wide, k // group, n)
    rows, columns = tw.like("f32", m), tw.like("f32", n)
    given = (a, tw.packed(held, tw.i4), rows, groups, groups, columns, tw.like(wide, m, n), 1.0)
    return kernel.question(*given, target="cuda", arch=arch)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
@pytest.mark.parametrize(
    "shape", [(1, 4096, 4096, 128), (16, 28672, 4096, 64), (64, 4096, 4096, 32)], ids=str
)
def test_few_rows_have_weights_along_the_rows_of_the_instruction(
    shape: tuple[int, int, int, int], wide: str, arch: str
) -> None:
    asked = question(*shape, arch, wide=wide)
    found = [one.schedule for one in islice(proposals(asked), 2)]
    for schedule in found:
        assert schedule.swap_ab
        assert not reasons(schedule, asked.form, asked.specs, asked.arch)
        case = ScheduleOnMachine(schedule, asked.form, asked.specs, asked.arch)
        assert case.run == (16 if shape[-1] > 32 else 8)


def test_k_is_split_where_tiles_are_few() -> None:
    assert next(proposals(question(4, 512, 16384, 128, "sm_90a"))).schedule.split_k != 1
    assert next(proposals(question(4, 28672, 4096, 128, "sm_90a"))).schedule.split_k == 1


@pytest.mark.parametrize("shape", [(1, 4096, 4096), (16, 4096, 11008), (8, 8192, 8192)], ids=str)
def test_few_tiles_leave_no_multiprocessor_to_two_warps(shape: tuple[int, int, int]) -> None:
    schedule = next(proposals(question(*shape, 128, "sm_90a"))).schedule
    assert isinstance(schedule.split_k, int)
    blocks = -(-shape[1] // schedule.tile[0]) * schedule.split_k
    assert blocks * schedule.warps[0] * schedule.groups >= 3.8 * 132
    assert schedule.reduction == ("cluster" if schedule.split_k == 2 else "workspace")
    assert schedule.groups == {4096: 8, 11008: 4, 8192: 1}[shape[2]]


@pytest.mark.parametrize(
    ("shape", "whole"),
    [((16, 4096, 4096), "mnk"), ((15, 4096, 4096), "mk"), ((16, 11008, 4096), "mk"), ((8, 4100, 4096), "k")],
    ids=str,
)
def test_few_rows_ask_nothing_of_whole_tiles_and_have_no_order(
    shape: tuple[int, int, int], whole: str
) -> None:
    """They are transposed products, whose rows are columns of the weights."""
    schedule = next(proposals(question(*shape, 128, "sm_90a"))).schedule
    assert (schedule.whole, schedule.group_m, schedule.group_n) == (whole, 0, 0)


@pytest.mark.parametrize("rows", [1, 7, 8, 16])
@pytest.mark.parametrize("terms", [{"scale_b"}, {"scale_b", "zero_b"}], ids=["scales", "zero points"])
def test_what_is_chosen_for_few_rows_does_not_spill(rows: int, terms: set[str]) -> None:
    words = {"multiplied": tw.f16, "group": 128, "terms": frozenset(terms), "activation": None}
    groups = tw.like("f16", 32, 4096)
    weights = tw.like("i4", 4096, 4096, order="F")
    given = (tw.like("f16", rows, 4096), weights, tw.like("f32", rows), groups, groups, tw.like("f32", 4096))
    kernel = scaled_in_groups(0).bind(**words)
    made = kernel.compile(*given, tw.like("f16", rows, 4096), 1.0, target="cuda", arch="sm_90a")
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0


def test_warps_of_many_rows_decode_different_weights() -> None:
    assert next(proposals(question(128, 8192, 8192, 128, "sm_90a"))).schedule.warps[1] == 1


def test_weights_along_columns_are_widened_before_they_lie_in_shared_memory() -> None:
    asked = question(16, 4096, 4096, 128, "sm_90a", order="n")
    schedule = next(proposals(asked)).schedule
    case = ScheduleOnMachine(schedule, asked.form, asked.specs, asked.arch)
    weights = case.sides[1 if not schedule.swap_ab else 0]
    assert (case.run, weights.tile.kept(schedule.atom)) == (0, tw.f16)
