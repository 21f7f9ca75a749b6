"""The checker finds mutants of expanded kernels, or a happens-before edge named here makes them equivalent.

The tests expand each form of schedule, and remove or change each of its waits, arrivals, phases, slots, byte
counts, fences, groups and barriers. Examples are a ring that is filled again before it is drained, a wrong
parity or slot, an epilogue's buffer that is used too early, and groups that multiply out of turn.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from tests.turns import RECORD, Turns

from .mutants import labelled, outcomes, traced
from .small import CASES, CP_ASYNC, Case, residual

WAITS_FOR_ALL = "a wait that leaves fewer pending waits for all that the other waits for"
EMPTY_GROUP = "mma_async -> mma_wait(1) -> the next stage: the one group that may be pending is empty"
STORES_FOR_ALL = "tma_store -> bulk_wait(0) -> copy: waits for the store to the other buffer as well"
OTHER_WAIT = "copy_async -> async_wait(0) -> barrier: another wait and barrier stand before the next use"
LAST_WAIT = "tma_store -> bulk_wait(0): of the two behind the last slice either one suffices"
ONE_WARPGROUP = "mma_async -> mma_wait(0) -> copy_async: four warps begin each MMA, and wait for it, together"
STILL_APART = "async_wait, barrier -> copy: they let buffers lie where the ring lay, which lowering decides"
OTHER_SLOTS = (
    "copy -> ticket -> load: all parts of a launch use the slots of their tiles in the same other order"
)
ALL_OF_THEM = (
    "role_barrier -> role_barrier: all threads meet at the first one, whatever number both groups name"
)
HARMLESS = (
    "if() -> copy: there are several parts, and the last one of a turnstile may write the sums once more"
)
BEHIND_THE_LAST = (
    "copy -> elementwise -> mma_async: what a lane decodes behind the last part of K is multiplied by nobody"
)
SAME_LANES = "load -> copy: each lane writes what it has read itself"

STAGED = replace(CP_ASYNC, epilogue="staged", blocks=1, group_m=1, buffers=1)
MANY = CASES["split, many"]
BULK = CASES["decoded in bulk"]
MUTATED = {
    "registers": CASES["registers"],
    "registers, past shared memory": CASES["registers, A past shared memory"],
    "in turns": CASES["registers, in turns"],
    "cp_async": CASES["cp_async, persistent"],
    "cp_async, staged": Case(STAGED, residual, tiles=(1, 3)),
    "cp_async, chosen rows": CASES["cp_async, chosen rows"],
    "mixed, chosen rows": CASES["mixed, chosen rows"],
    "fragments": CASES["fragments, persistent"],
    "fragments, decoded": CASES["fragments, decoded"],
    "wgmma, cp_async": CASES["wgmma, cp_async, persistent"],
    "two loops, cp_async": CASES["two loops, cp_async, persistent"],
    "two loops, fragments": CASES["two loops, fragments"],
    "rows added up, cp_async": CASES["rows added up, cp_async, persistent"],
    "decoded in bulk": replace(
        BULK, schedule=replace(BULK.schedule, tile=(64, 16, 128), groups=1, epilogue="direct")
    ),
    "split, workspace": CASES["split"],
    "split, many": replace(MANY, schedule=replace(MANY.schedule, split_k=27), each=2),
    "split, turnstile": CASES["split, turnstile"],
    "split, atomic": CASES["split, atomic"],
    "split, reduce-scatter": CASES["split, reduce-scatter"],
    **{
        name: replace(CASES[name], schedule=replace(CASES[name].schedule, stages=2))
        for name in (
            *("cooperative", "cooperative, overlapped, residual"),
            *("cooperative, 2 x 1", "ping-pong", "two loops, cooperative"),
            "rows added up, cooperative",
        )
    },
}

COMMON = {
    "async_wait() by stages: one fewer pending": WAITS_FOR_ALL,
    "mma_wait() by atom: one fewer pending": WAITS_FOR_ALL,
    "mma_commit() by atom: twice": EMPTY_GROUP,
    "bulk_wait() by epilogue: one fewer pending": STORES_FOR_ALL,
}
APART = {
    "async_wait() by reduction: removed": STILL_APART,
    "async_wait() by reduction: one more pending": STILL_APART,
    "barrier() by reduction: removed": STILL_APART,
}
EQUIVALENT = {
    "in turns": {"role_barrier() by roles: another number": ALL_OF_THEM},
    "cp_async, staged": {
        "async_wait() by roles: removed": OTHER_WAIT,
        "async_wait() by roles: one more pending": OTHER_WAIT,
        "async_wait() by epilogue: removed": OTHER_WAIT,
        "async_wait() by epilogue: one more pending": OTHER_WAIT,
        "barrier() by roles: removed": OTHER_WAIT,
        "barrier() by epilogue: removed": OTHER_WAIT,
    },
    "decoded in bulk": {"if() by staging: always": BEHIND_THE_LAST},
    "wgmma, cp_async": {"barrier() by roles: removed": ONE_WARPGROUP},
    "split, workspace": {
        "barrier() by reduction: removed": STILL_APART,
        "if() by reduction: always": HARMLESS,
        "view(arrived) by reduction: slice 0 one around": OTHER_SLOTS,
    },
    "split, many": {
        "barrier() by reduction: removed": STILL_APART,
        "if() by reduction: always": HARMLESS,
        "view(arrived_near) by reduction: slice 0 one around": OTHER_SLOTS,
        "view(arrived) by reduction: slice 0 one around": OTHER_SLOTS,
    },
    "split, turnstile": {
        **APART,
        "if() by reduction: always": HARMLESS,
        "view(partial_sums) by reduction: slice 0 one around": OTHER_SLOTS,
        "view(arrived) by reduction: slice 0 one around": OTHER_SLOTS,
    },
    "split, atomic": {
        **APART,
        "if() by reduction: always": HARMLESS,
        "view(partial_sums) by reduction: slice 0 one around": OTHER_SLOTS,
        "view(arrived) by reduction: slice 0 one around": OTHER_SLOTS,
    },
    "split, reduce-scatter": {
        **APART,
        "if() by roles: always": HARMLESS,
        "view(arrived) by roles: slice 0 one around": OTHER_SLOTS,
    },
    "cooperative, overlapped, residual": {
        "bulk_wait() by epilogue: removed": LAST_WAIT,
        "bulk_wait() by epilogue: one more pending": LAST_WAIT,
        "warp_barrier() by epilogue: removed": SAME_LANES,
    },
}
"""For each form what computes the same without a hazard, and the happens-before edge behind it."""

FOUND = {
    "in turns": (
        *("role_barrier() by roles: removed", "if() by roles: always", "if() by roles: never"),
        *("view(sA) by staging: slice 0 one around", "view(sB) by staging: slice 0 one around"),
    ),
    "registers": ("barrier() by staging: removed",),
    "registers, past shared memory": ("barrier() by staging: removed", "barrier() by stages: removed"),
    "cp_async": (
        "async_wait() by stages: removed",
        "async_wait() by stages: one more pending",
        "async_commit() by staging: removed",
        "barrier() by stages: removed",
    ),
    "cp_async, chosen rows": (
        "async_wait() by stages: removed",
        "async_wait() by stages: one more pending",
        "async_commit() by staging: removed",
        "barrier() by stages: removed",
    ),
    "cooperative": (
        "wait(full) by stages: removed",
        "wait(full) by stages: other parity",
        "wait(full) by stages: next stage, around",
        "wait(empty) by staging: removed",
        "wait(empty) by staging: other parity",
        "arrive(empty) by stages: removed",
        "arrive(full) by staging: bytes +16",
        "arrive(full) by staging: bytes -16",
        "mbarrier() by stages: arrivals +1",
        "mbarrier() by stages: arrivals -1",
        "fence_async() by epilogue: removed",
        "role_barrier() by epilogue: removed",
        "bulk_wait() by epilogue: removed",
        "bulk_wait() by epilogue: one more pending",
        "bulk_commit() by epilogue: removed",
        "mma_wait() by atom: removed",
    ),
    "decoded in bulk": (
        "wait(full) by stages: removed",
        "wait(empty) by staging: removed",
        "arrive(empty) by stages: removed",
        "mma_fence() by atom: removed",
        "mma_wait() by atom: removed",
        "mma_wait() by atom: one more pending",
        "if() by stages: always",
        "if() by stages: never",
        "if() by staging: never",
    ),
    "split, workspace": (
        "ticket(arrived, number) by reduction: removed",
        "ticket(arrived, number) by reduction: twice",
        "ticket(arrived, number) by reduction: not reset",
        "ticket(arrived, number) by reduction: of +1",
        "ticket(arrived, number) by reduction: of -1",
    ),
    "split, many": (
        "ticket(arrived_near, number) by reduction: removed",
        "ticket(arrived, number_3) by reduction: removed",
        "ticket(arrived, number_3) by reduction: not reset",
    ),
    "split, turnstile": (
        "await_(arrived) by reduction: removed",
        "await_(arrived) by reduction: value +1",
        "await_(arrived) by reduction: value -1",
        "signal(arrived) by reduction: removed",
        "signal(arrived) by reduction: not reset",
    ),
    "split, atomic": ("ticket(arrived, number) by reduction: removed",),
    "split, reduce-scatter": (
        "signal(arrived) by reduction: removed",
        "signal(arrived) by reduction: twice",
        "await_(arrived) by reduction: removed",
        "await_(arrived) by reduction: value +1",
        "await_(arrived) by reduction: value -1",
        "signal(arrived) by reduction: not reset",
        "signal(arrived) by reduction: of +1",
        "signal(arrived) by reduction: of -1",
        "view(partial_sums) by reduction: slice 0 one around",
    ),
    "cooperative, 2 x 1": ("cluster_barrier() by stages: removed", "cluster_barrier() by cluster: removed"),
    "ping-pong": ("wait(mbarrier) by atom: removed", "arrive(mbarrier) by roles: removed"),
}
"""Faults that every form of a kind can have: that they were tried, and shown."""


@pytest.mark.parametrize("name", MUTATED)
def test_every_mutant_is_found_or_equivalent_for_a_named_edge(name: str, turns: Turns) -> None:
    case, always, named = MUTATED[name], FOUND.get(name, ()), EQUIVALENT.get(name, {})
    kernel = traced(case)
    labels = labelled(kernel)
    wanted = {*always} | turns.among(sorted({*labels.values()}))
    found = [*outcomes(case, kernel, {mutant: label for mutant, label in labels.items() if label in wanted})]
    turns.record(found)
    tried = Counter(label for label, _ in found)
    survived = {label for label, shown in found if shown == "survived"}
    assert survived - COMMON.keys() == named.keys() & wanted
    assert named.keys() <= {*labels.values()}
    for label in always:
        assert tried[label], f"{label} was not tried; tried: {sorted(tried)}"
        assert label not in survived


def test_all_mutants_of_every_form_were_tried_once() -> None:
    """The record of the last complete run contains each of them."""
    record = RECORD.read_text(encoding="utf-8")
    assert [name for name in MUTATED if f"[{name}] -> " not in record] == []
