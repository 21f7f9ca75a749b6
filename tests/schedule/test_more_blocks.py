"""K is split among as many blocks as share a multiprocessor, if the estimate expects a gain."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.ops.products import plain
from tilewright.schedule import estimate
from tilewright.schedule.choice import candidates, split_candidates
from tilewright.schedule.load import Load
from tilewright.schedule.question import Candidate, Question, Splitting
from tilewright.schedule.resources import REDUCTION_CLASSES
from tilewright.schedule.schedule import REDUCTIONS, Schedule
from tilewright.schedule.splitting import estimated, with_more_blocks
from tilewright.schedule.tables import read_schedule

MEASURED = Path(__file__).parents[2] / "benchmarks" / "results" / "h200_shapes.json"
RING = Schedule(tw.atoms.MMA_F16, (64, 64, 64), (2, 2), stages=3, staging="cp_async", group_m=8)


def sweeps() -> list[dict[str, Any]]:
    """Return measured times with K in 1 to 132 parts, for each limit of shared memory."""
    found = [part["result"] for part in json.loads(MEASURED.read_text())["parts"]]
    return [row for one in found if one and one["benchmark"] == "split_k" for row in one["rows"]]


def question(
    shape: tuple[int, ...],
    kind: str = "f16",
    arch: str = "sm_90a",
    prec: str = "exact",
    layout: str = "nt",
) -> Question:
    m, n, k = shape
    a, b = ("C" if one == "n" else "F" for one in layout)
    given = (tw.like(kind, m, k, order=a), tw.like(kind, k, n, order=b), tw.like(kind, m, n))
    found = plain(0).bind(precision=prec).question(*given, target="cuda", arch=arch)
    assert found is not None
    return found


SWEEPS = sweeps()


@pytest.mark.parametrize("row", SWEEPS, ids=lambda row: row["problem"])
def test_as_many_parts_are_chosen_as_were_measured_to_be_fast(row: dict[str, Any]) -> None:
    asked, auto = question(tuple(row["shape"])), read_schedule(row["schedules"]["auto"])
    whole = Candidate(replace(auto, split_k=1, blocks=0), 0.0, "")
    tried = with_more_blocks(asked, auto)
    chosen = min(tried, key=lambda one: estimated(Load(asked, one), whole))
    us = {row["parts"]["auto"]: row["us"]["auto"]}
    us |= {int(name): time for name, time in row["us"].items() if name.isdigit()}
    assert min(us.values()) >= 0.95 * us[Load(asked, chosen).parts]
    if row["shape"] == [512, 512, 32768] and row["kib"] == 48:
        assert (chosen.blocks, Load(asked, chosen).parts) == (3 * 132, 6)


def test_every_limit_was_measured() -> None:
    assert sorted({row["kib"] for row in SWEEPS}) == [0, 48, 100]
    assert len(SWEEPS) == 9


def test_estimates_are_near_what_was_measured() -> None:
    """The estimate is near for few parts, which save time, and for as many as 64."""
    seen = 0
    for row in SWEEPS:
        asked, auto = question(tuple(row["shape"])), read_schedule(row["schedules"]["auto"])
        for name, us in row["us"].items() if estimate.RING.applies(Load(asked, auto)) else ():
            if name.isdigit() and int(name) <= 64:
                made = estimate.RING.time_us(Load(asked, replace(auto, split_k=int(name), blocks=0)))
                assert 0.7 < made / us < 1.2, (row["problem"], name)
                seen += 1
    assert seen > 90


RINGS = {
    "f16": (RING, "f16", "exact"),
    "f16, 64 sums of a thread": (replace(RING, tile=(64, 128, 64)), "f16", "exact"),
    "f64": (replace(RING, atom=tw.atoms.MMA_F64, tile=(64, 64, 16)), "f64", "exact"),
}


@pytest.mark.parametrize("name", RINGS)
def test_blocks_that_share_a_multiprocessor_are_those_of_the_compiled_kernel(name: str) -> None:
    whole, kind, precision = RINGS[name]
    asked = question((512, 512, 8192), kind)
    schedule = replace(whole, split_k="auto", blocks=132)
    given = (tw.like(kind, 512, 8192), tw.like(kind, 8192, 512, order="F"), tw.like(kind, 512, 512))
    bound = plain(0).bind(precision=precision, schedule=schedule)
    taken = bound.compile(*given, target="cuda", arch="sm_90a").resources
    arch, threads = asked.arch, schedule.mma.threads
    unit = arch.register_unit
    of_registers = arch.registers // (threads * -(-taken["registers"] // unit) * unit)
    of_memory = (arch.shared_bytes + 1024) // (taken["shared_bytes"] + 1024)
    assert Load(asked, schedule).resident == min(of_registers, of_memory)
    assert abs(Load(asked, schedule).registers - taken["registers"]) <= 8


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89"])
@pytest.mark.parametrize(("kind", "precision"), [("f16", "exact"), ("f32", "tf32"), ("i8", "exact")])
def test_machines_without_bulk_copies_deal_k_out_to_more_blocks(kind: str, precision: str, arch: str) -> None:
    asked = question((512, 512, 32768), kind, arch, precision)
    chosen = next(split_candidates(replace(asked, splitting=Splitting("auto")))).schedule
    beside = chosen.blocks // asked.processors
    assert (chosen.staging, chosen.blocks) == ("cp_async", beside * asked.processors)
    assert 1 <= beside <= Load(asked, chosen).resident
    alone = replace(chosen, blocks=asked.processors)
    assert estimate.RING.time_us(Load(asked, chosen)) <= estimate.RING.time_us(Load(asked, alone))


def test_only_blocks_that_need_not_run_at_once_are_more_than_one_for_each_multiprocessor() -> None:
    asked = question((512, 512, 32768))
    for reduction in REDUCTIONS:
        made = replace(RING, split_k="auto", blocks=132, reduction=reduction)
        blocks = [one.blocks for one in with_more_blocks(asked, made)]
        assert blocks == [132] if REDUCTION_CLASSES[reduction].waits else {132, 396} <= {*blocks}
    wanted = Splitting("auto", "reduce-scatter")
    exact = replace(question((64, 64, 65536), "f32"), splitting=wanted)
    assert {one.schedule.blocks for one in split_candidates(exact)} == {132}


def test_a_number_of_parts_is_that_number() -> None:
    asked = question((512, 512, 32768))
    made = replace(RING, split_k=6)
    assert [*with_more_blocks(asked, made)] == [made]


SPILLED = Schedule(
    tw.atoms.wgmma("f16", 64), (64, 64, 256), staging="registers", registers=0, swap_ab=True, split_k=13
)
"""Whose next tile is 256 elements of each thread, of 2 bytes, and each of them a register."""

UNEVEN = (
    ("f16", (33, 47, 2999), "FC", Splitting(13)),
    ("f16", (1001, 1001, 1001), "CF", Splitting(batch_invariant=True)),
    ("f8e4m3", (16, 4095, 4095), "CF", Splitting(13)),
)
"""Products of rows that begin anywhere, so that neither bulk copies nor ``cp.async`` carry them all."""


def test_a_tile_that_waits_in_registers_beside_the_sums_is_told_from_one_that_spills() -> None:
    given = (tw.like("f16", 33, 2999, order="F"), tw.like("f16", 2999, 47), tw.like("f16", 33, 47))
    asked = plain(0).bind(precision="exact").question(*given, target="cuda", arch="sm_90a")
    assert asked is not None
    assert Load(asked, SPILLED).spills
    assert not Load(asked, replace(SPILLED, tile=(64, 64, 64))).spills
    assert not Load(asked, replace(SPILLED, staging="direct")).spills
    even = (tw.like("f16", 40, 4096), tw.like("f16", 4096, 48, order="F"), tw.like("f16", 40, 48))
    whole = plain(0).bind(precision="exact").question(*even, target="cuda", arch="sm_90a")
    assert whole is not None
    assert not Load(whole, SPILLED).spills, "two elements come in one register"


@pytest.mark.parametrize(("kind", "shape", "orders", "wanted"), UNEVEN)
def test_what_is_chosen_to_split_k_of_rows_that_begin_anywhere_spills_nothing(
    kind: str, shape: tuple[int, int, int], orders: str, wanted: Splitting
) -> None:
    m, n, k = shape
    given = (tw.like(kind, m, k, order=orders[0]), tw.like(kind, k, n, order=orders[1]), tw.like("f16", m, n))
    made = plain(0).bind(precision="exact", schedule=wanted).compile(*given, target="cuda", arch="sm_90a")
    assert not made.resources["spill_store_bytes"]


@pytest.mark.parametrize(
    ("asked", "is_split"),
    [
        (question((280, 984, 6624), "f32", prec="tf32", layout="tn"), True),
        (question((232, 512, 5760), "f32", prec="tf32", layout="nn"), True),
        (question((2048, 2048, 512), "f32", prec="tf32", layout="tt"), False),
        (question((64, 64, 65536), "f16", "sm_80"), True),
        (question((4096, 4096, 4096), "f16", "sm_80", layout="nn"), False),
    ],
    ids=["tf32 tn", "tf32 nn", "tf32 many tiles", "f16 on Ampere", "f16 many tiles"],
)
def test_few_tiles_by_mma_sync_have_k_in_parts(asked: Question, is_split: bool) -> None:
    found = [one for one in candidates(asked) if not one.against]
    assert found[0].schedule.is_split is is_split
    assert "mma" in found[0].schedule.atom.instruction
    if is_split:  # the whole tile is proposed next
        whole = next(one for one in found if not one.schedule.is_split)
        assert whole.schedule.tile == found[0].schedule.tile
        assert found[0].estimate <= 0.8 * whole.estimate


def test_warps_that_load_single_elements_wait_for_each_other() -> None:
    """The time of a step of tf32, with one block on a multiprocessor and with two; measured on an H200."""
    tf32 = Schedule(tw.atoms.MMA_TF32, (64, 64, 32), (2, 2), stages=4, staging="cp_async", group_m=8)
    steps = 8192 // 32
    for shape, us in (((640, 704, 8192), 0.55), ((1280, 704, 8192), 0.8)):
        asked = question(shape, "f32", prec="tf32", layout="nn")
        load = Load(asked, tf32)
        assert estimate.estimate_of(load) is estimate.TF32
        assert estimate.TF32.time_us(load) / steps == pytest.approx(us, rel=0.15)
    along_k = Load(question((640, 704, 8192), "f32", "sm_80", "tf32"), tf32)
    assert estimate.estimate_of(along_k) is estimate.RING
