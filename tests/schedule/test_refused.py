"""Errors of refused schedules, word for word, with all reasons at once.

`pytest tests/schedule/test_refused.py --update-golden` writes the messages anew; read the diff.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.schedule.expand import Expanded
from tilewright.targets.target import TARGETS

from .forms import AMPERE, BULK, FORMS, HOPPER, PROGRAM, SYNC, WGMMA, flow_of, specs

CPU = TARGETS["cpu"].architecture("x86-64-v3")
FP8 = replace(BULK, atom=tw.atoms.wgmma("f8e4m3", 64), tile=(128, 64, 128))

REFUSED: dict[str, tuple[tw.Schedule, Any, Any]] = {
    "tile_of_no_whole_atoms": (replace(SYNC, tile=(100, 60, 24)), specs(), HOPPER),
    "tile_of_no_whole_groups": (replace(BULK, tile=(64, 64, 64)), specs(), HOPPER),
    "atom_of_another_dtype": (SYNC, specs("bf16"), HOPPER),
    "atom_that_adds_in_f16": (replace(SYNC, atom=tw.atoms.MMA_F16_F16), specs(), HOPPER),
    "atom_of_fewer_bits": (replace(SYNC, atom=tw.atoms.MMA_TF32), specs("f32"), HOPPER),
    "atom_of_another_machine": (replace(WGMMA, stages=3, staging="cp_async"), specs(), AMPERE),
    "atom_of_fewer_lanes": (replace(SYNC, atom=tw.atoms.fma("f16", lanes=(4, 4))), specs(), HOPPER),
    "wgmma_from_registers": (replace(WGMMA, stages=3, staging="fragments"), specs(), HOPPER),
    "fp8_along_rows": (FP8, specs("f8e4m3", "f32", major=0), HOPPER),
    "rows_of_64_bytes": (replace(BULK, tile=(128, 64, 32)), specs(), HOPPER),
    "ring_of_one_stage": (replace(FORMS["cp_async"], stages=1), specs(), HOPPER),
    "stages_that_nobody_fills": (replace(SYNC, stages=4), specs(), HOPPER),
    "past_shared_memory_in_a_ring": (replace(FORMS["cp_async"], bypass="a"), specs(), HOPPER),
    "parts_of_k1": (replace(SYNC, k1=(5, 8), dealt=((64, 4), (128, 1))), specs(), HOPPER),
    "bulk_copies_without_roles": (replace(BULK, roles="none"), specs(), HOPPER),
    "roles_without_bulk_copies": (replace(BULK, staging="cp_async"), specs(), HOPPER),
    "ping_pong_alone": (replace(BULK, roles="ping-pong", groups=1, blocks=0), specs(), HOPPER),
    "bands_of_both_kinds": (replace(BULK, group_n=4), specs(), HOPPER),
    "shared_memory": (replace(BULK, tile=(128, 64, 256), stages=8), specs(), HOPPER),
    "one_tile_too_large": (replace(WGMMA, tile=(1024, 1024, 64)), specs(), HOPPER),
    "registers_of_roles": (replace(BULK, registers=250), specs(), HOPPER),
    "registers_of_all_roles": (replace(BULK, tile=(192, 64, 64), groups=3), specs(), HOPPER),
    "sums_of_a_thread": (replace(SYNC, tile=(256, 256, 32)), specs(), HOPPER),
    "threads_of_a_block": (replace(SYNC, tile=(256, 256, 32), warps=(8, 8)), specs(), HOPPER),
    "cluster_too_large": (replace(BULK, cluster=(4, 4)), specs(), HOPPER),
    "cluster_of_odd_parts": (replace(BULK, cluster=(1, 3)), specs(), HOPPER),
    "more_storing_warps_than_room": (
        replace(BULK, tile=(256, 64, 64), groups=4, epilogue="overlapped", registers=80),
        specs(),
        HOPPER,
    ),
    "hopper_on_ampere": (BULK, specs(), AMPERE),
    "hopper_on_a_processor": (BULK, specs(), CPU),
    "split_of_unknown_blocks": (replace(SYNC, split_k="auto"), specs(), HOPPER),
    "split_in_turns": (
        replace(BULK, split_k="stream", blocks=132, roles="ping-pong", reduction="turnstile"),
        specs(),
        HOPPER,
    ),
    "split_in_a_cluster": (
        replace(BULK, split_k=12, blocks=0, reduction="cluster"),
        specs(),
        HOPPER,
    ),
    "many_reasons_at_once": (
        replace(BULK, tile=(100, 64, 48), stages=1, registers=300, group_n=2, cluster=(16, 1)),
        specs("bf16"),
        HOPPER,
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refused_schedule_says_every_reason(name: str, golden: Callable[[str, str], None]) -> None:
    schedule, arrays, arch = REFUSED[name]
    with pytest.raises(tw.ScheduleError) as refused:
        Expanded(PROGRAM, flow_of(arrays), schedule).trace(arrays, arch=arch)
    golden(f"{refused.value}\n", f"{name}.txt")
