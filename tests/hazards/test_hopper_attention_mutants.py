"""The checker finds every mutant of attention on Hopper, or it is equivalent for a reason given here."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from tests.targets.test_attention import Case
from tests.targets.test_hopper_attention import EXAMPLE, case
from tests.turns import Turns

from tilewright.ir.kernel import Kernel
from tilewright.targets.reference import run

from .mutate import Mutant, mutants, names, outcome
from .test_fused_mutants import FIRST_DECAY, MASKS_NOTHING, SAME_FOR_ALL
from .test_hopper_mutants import ISSUER_FENCES, ONE_WARP, REGISTERS_KEPT, REGISTERS_ONLY, WAITS_FOR_ALL

PARTS = 6
TILES = {"one ragged tile": 30, "no keys": 0, "seven tiles, the last one ragged": 6 * 64 + 30}
"""Keys, in tiles of 64, through rings of two stages: 3 * stages + 1 of them end on a phase of odd parity."""

ONE_STAGE = "there is one stage"
ONE_PANEL = "there is one panel, which is also the last and the next one, wherever its dimension stands"
EMPTY_GROUP = "mma_async -> mma_commit -> mma_wait: the group that is added is empty and comes after"
SAME_GROUP = "mma_async -> mma_commit -> mma_async stands: each product is in the group that it was in"
LAST_FENCE = "the fence before the product of the keys stands, and since then nothing touched registers"
OWN_ROWS = "mma_wait(0) -> copy: a warp writes the rows of Q that it alone multiplied, which it waited for"
SAME_ELEMENTS = "copy -> fence_async -> role_barrier -> tma_store: the same threads write the same elements"
OTHER_REGISTERS = "mma_async -> mma_wait: the copy touches no register of the product"
OWN_REGISTERS = "both fragments are of one distribution: a thread copies to itself"
FREED_BY_VALUES = (
    "mma_wait(0) -> arrive(empty_v) -> wait(empty_v) -> tma_load(K): before the loading warp overwrites the "
    "keys it waits for the place of the values of the tile before, which is freed after this product"
)
FREED_BEFORE = (
    "arrive(empty_v) -> wait(empty_v) -> tma_load(K): the values that it now waits for are freed in the turn "
    "before the one that needs these keys"
)
ONE_HEAD = "the cases have one sequence of one head: the next one around is the same"
SET_FIRST = "every element is set before it is read"
NOTHING_SUMMED = "before the first tile the sums are 0, by whatever they shrink"

LOADING = {
    "role 0: for all warps around it": REGISTERS_KEPT,
    "role 1: one warp later": ONE_WARP,
    **dict.fromkeys((f"arrive {n}: each warp" for n in range(3)), ONE_WARP),
    **dict.fromkeys(
        (f"{op}: next stage, around" for op in ("arrive 0", "tma_load 0", "tma_load 1")), ONE_STAGE
    ),
    **{f"view {n}: slice 1 {how}": ONE_PANEL for n in (2, 5, 8, 11) for how in ("-1", "one around")},
    **{f"view {n}: slice {dim} one around": ONE_HEAD for n in (0, 3, 6, 9) for dim in (0, 1)},
    "tma_load 2: after wait 1": FREED_BEFORE,
}
ATTENDING = {
    "wait 2: next stage, around": ONE_STAGE,
    **dict.fromkeys((f"fragment {n}: not filled" for n in (1, 4)), SET_FIRST),
    "fragment 1: filled with one": SET_FIRST,
    "fragment 2: filled with one": SAME_FOR_ALL,
    "fragment 3: filled with one": FIRST_DECAY,
    **dict.fromkeys((f"view {n}: order (1, 2, 0)" for n in (13, 16, 19)), ONE_PANEL),
    **dict.fromkeys((f"view {n}: order (2, 0, 1)" for n in (22, 25)), ONE_PANEL),
    **dict.fromkeys((f"view {n}: dimension 0" for n in (14, 17, 20)), ONE_PANEL),
    **{f"view 27: slice 1 {how}": ONE_PANEL for how in ("-1", "one around")},
    **{f"view 28: slice {dim} one around": ONE_HEAD for dim in (0, 1)},
    **dict.fromkeys((f"if {n}: always" for n in (1, 2)), MASKS_NOTHING),
    "copy 3: removed": NOTHING_SUMMED,
    **dict.fromkeys((f"copy {n}: vector halved" for n in (0, 1, 2, 6, 7, 8, 9, 13, 14)), OWN_REGISTERS),
    "copy 15: vector halved": SAME_ELEMENTS,
    **dict.fromkeys((f"mma_commit {n}: twice" for n in (0, 1, 3)), EMPTY_GROUP),
    "mma_commit 2: twice": WAITS_FOR_ALL,
    "mma_wait 1: one fewer pending": WAITS_FOR_ALL,
    "mma_fence 2: removed": LAST_FENCE,
    "role_barrier 0: removed": OWN_ROWS,
    "fence_async 0: after role_barrier 1": ISSUER_FENCES,
    # In another order.
    **{f"fill {n}: after wait {n + 3}": REGISTERS_ONLY for n in (0, 1)},
    **{f"wait {n + 3}: after mma_fence {n}": REGISTERS_ONLY for n in range(4)},
    "mma_commit 1: after wait 5": SAME_GROUP,
    "mma_wait 1: after arrive 4": FREED_BY_VALUES,
    "copy 12: after mma_wait 2": OTHER_REGISTERS,
    "if 3: after role_barrier 0": OWN_ROWS,
}
EQUIVALENT = {**LOADING, **ATTENDING}
"""Mutants that compute the same without a hazard, and the happens-before edge or the values behind it."""


def made(tiles: str) -> Case:
    """Two warpgroups have 64 queries each; the problem lacks the last 28."""
    return case((1, 1, 100, TILES[tiles], 64))


def traced() -> Kernel:
    built = made("one ragged tile")
    bound = functools.partial(EXAMPLE["bound"], keys=64, groups=2)(built.element, 64, causal=False)
    kernel: Kernel = bound.trace(built.q, built.k, built.v, built.o, built.scale, 0)
    return kernel


def found(mutant: Mutant, cases: list[Case]) -> str:
    """Return the finding in any case that shows that a mutant is wrong, or ``"survived"``."""
    for one in cases:
        arrays: dict[str, Any] = {"Q": one.q, "K": one.k, "V": one.v, "O": one.o}
        one.o[...] = np.nan

        def is_right(one: Case = one) -> bool:
            return bool((np.abs(one.o.astype(np.float64) - one.expected()) <= one.room()).all())

        def execute(kernel: Kernel, arrays: Any = arrays, scale: float = one.scale) -> Any:
            return run(kernel, arrays, {"shift": 0}, {"scale": scale})

        if (told := outcome(mutant, execute, is_right)) != "survived":
            return told
    return "survived"


def test_the_kernel_itself_is_clean() -> None:
    for tiles in TILES:
        assert found(Mutant("none", traced()), [made(tiles)]) == "survived"


@pytest.mark.parametrize("part", range(PARTS))
def test_every_mutant_is_found_or_equivalent_for_a_named_reason(part: int, turns: Turns) -> None:
    kernel, cases = traced(), [made(tiles) for tiles in TILES]
    wanted = set(names(kernel)[part::PARTS])
    assert len(wanted) * PARTS > 450
    wanted = turns.among(sorted(wanted))
    outcomes = {mutant.name: found(mutant, cases) for mutant in mutants(kernel, wanted)}
    turns.record(outcomes)
    survived = {name for name, shown in outcomes.items() if shown == "survived"}
    assert survived == wanted & EQUIVALENT.keys()


def test_every_reason_is_of_a_mutant() -> None:
    assert set(names(traced())) >= EQUIVALENT.keys()
