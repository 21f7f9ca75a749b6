"""The checker finds every mutant of fused GEMMs and of attention, or it is equivalent for a given reason."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.targets.test_attention import ATTENTION, FUSED, Case, FusedCase
from tests.turns import Turns

import tilewright as tw
from tilewright.ir import verify
from tilewright.ir.kernel import Kernel
from tilewright.targets.atoms import MMA_F16
from tilewright.targets.reference import Report, run

from .mutate import mutants, names, outcome


def small_attention(element: tw.DType, depth: int, *, causal: bool) -> Any:
    """Two warps, and tiles of 32 queries and 16 keys."""
    return ATTENTION["attention"].bind(causal=causal, tile=(32, 16, depth), atom=MMA_F16, warps=2)


class Attention:
    """2 * stages + 1 tiles of keys, with a ragged last one; two blocks of queries, batches and heads.

    The causal case covers everything that the full case does: its last queries see every key, and more if
    nothing masks them; its first block sees one tile fewer.  All scores are about -50, so the running maximum
    is necessary.
    """

    def __init__(self) -> None:
        queries, keys = 45, 69
        self.case = Case((2, 2, queries, keys, 64), tw.f16, shift=28, offset=-400.0, bound=small_attention)
        self.result = self.case.o

    def trace(self) -> Kernel:
        case = self.case
        made: Kernel = case.kernel.trace(case.q, case.k, case.v, case.o, case.scale, case.shift)
        return made

    def run(self, kernel: Kernel) -> Report:
        case = self.case
        arrays = {"Q": case.q, "K": case.k, "V": case.v, "O": case.o}
        return run(kernel, arrays, {"shift": case.shift}, {"scale": case.scale})


class FusedGemms:
    """More than 2 * stages tiles of K in each of three steps of N, all ragged; two blocks along M and P."""

    def __init__(self) -> None:
        self.case = FusedCase((45, 70, 86, 21), tw.f16)
        self.result = self.case.d

    def trace(self) -> Kernel:
        case = self.case
        program = FUSED["fused_gemms"].bind(tile=(32, 32, 16, 16), atom=MMA_F16, warps=2)
        made: Kernel = program.trace(case.a, case.b, case.c, case.d)
        return made

    def run(self, kernel: Kernel) -> Report:
        case = self.case
        return run(kernel, {"A": case.a, "B": case.b, "C": case.c, "D": case.d})


CASES: dict[str, type[Attention | FusedGemms]] = {"attention": Attention, "fused_gemms": FusedGemms}

PAST_THE_EDGE = "a tile past the edge is invalid: it reads as zeros, which add nothing"
OTHER_ISSUERS = (
    "copy_async -> async_wait -> barrier -> mma: whichever thread makes the copy also waits for it"
)
NARROWER = (
    "copy_async -> async_wait -> barrier -> mma: the wait covers the copy, however many accesses it makes"
)
NARROWER_LOAD = "a thread loads the elements that it stores itself, in however many accesses"
SAME_MAP = "a fragment on its way to shared memory: a thread stores what it loaded, whatever that is"
NARROWER_STORE = "copy -> barrier -> mma: the barrier covers the store, however many accesses it makes"
NARROWER_REGISTERS = "both fragments are of one distribution: a thread copies to itself"
NARROWER_LAST = "the end of the kernel orders its only copy to O, in however many accesses"
ALL_MASKED = "the masks make every score of the tile -inf, so its weights are 0 and the maximum stays"
NEVER_READ = "mma -> barrier -> copy_async: the stage has been read, and no later turn reads what comes"
MASKS_NOTHING = "the mask's own comparison is true for every element of a tile that needs no mask"
FIRST_DECAY = "the first decay is exp2(-inf) = 0, which takes what was there; without keys the result is 0"
SAME_FOR_ALL = "the softmax of a row does not change when one number is added to all its scores"

EQUIVALENT = {
    "attention": {
        "let 1: one more": ALL_MASKED,
        "for 0: stops one later": ALL_MASKED,
        "if 0: always": NEVER_READ,
        "if 1: always": MASKS_NOTHING,
        "if 2: always": MASKS_NOTHING,
        **dict.fromkeys((f"fragment {i}: filled with one" for i in (1, 3)), FIRST_DECAY),
        "fragment 4: filled with one": SAME_FOR_ALL,
        **{f"fragment 0: map with {what} 0 and 1 exchanged": SAME_MAP for what in ("threads", "values")},
        **dict.fromkeys((f"copy_async {i}: threads in another order" for i in range(4)), OTHER_ISSUERS),
        **dict.fromkeys((f"copy_async {i}: vector halved" for i in range(4)), NARROWER),
        "copy 0: vector halved": NARROWER_LOAD,
        "copy 1: vector halved": NARROWER_STORE,
        **dict.fromkeys((f"copy {i}: vector halved" for i in (2, 3, 6)), NARROWER_REGISTERS),
        "copy 7: vector halved": NARROWER_LAST,
    },
    "fused_gemms": {
        "for 0: stops one later": PAST_THE_EDGE,
        **dict.fromkeys((f"copy_async {i}: threads in another order" for i in range(5)), OTHER_ISSUERS),
    },
}
"""Mutants that compute the same without a hazard, and the happens-before edge or the values behind it."""

LEAST = {"attention": 260, "fused_gemms": 170}
SYNCHRONISATION = ("barrier", "async_wait")


def is_right(made: Attention | FusedGemms) -> bool:
    """Return whether the result is within the derived bound."""
    try:
        made.case.check(made.result)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_itself_is_clean(name: str) -> None:
    made = CASES[name]()
    kernel = made.trace()
    assert not verify.violations(kernel)
    report = made.run(kernel)
    report.raise_if_any()
    assert set(report.uncovered.values()) == {0}
    made.case.check(made.result)


@pytest.mark.parametrize("name", CASES)
def test_every_mutant_is_found_or_equivalent_for_a_named_reason(name: str, turns: Turns) -> None:
    made, outcomes = CASES[name](), {}
    kernel = made.trace()
    every = names(kernel)
    always = {mutant for mutant in every if mutant.startswith(SYNCHRONISATION)}
    for mutant in mutants(kernel, always | turns.among(every)):
        made.result[...] = np.nan
        outcomes[mutant.name] = outcome(mutant, made.run, lambda: is_right(made))
    turns.record(outcomes)
    assert len(every) >= LEAST[name]
    survived = {mutant for mutant, found in outcomes.items() if found == "survived"}
    assert survived == {*outcomes} & {*EQUIVALENT[name]}
    assert {*every} >= EQUIVALENT[name].keys()
    # What is missing between threads is seen by the checker, whatever the values are.
    synchronisation = {found for mutant, found in outcomes.items() if mutant.startswith(SYNCHRONISATION)}
    assert synchronisation == {"finding"}
