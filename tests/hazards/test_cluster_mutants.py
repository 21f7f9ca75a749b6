"""The checker finds every mutant of the cluster GEMM, or the mutant is equivalent for a reason given here."""

from __future__ import annotations

from tests.turns import Turns

from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.targets.reference import run

from .hopper import operands
from .mutate import Mutant, mutants, names
from .test_clusters import bind
from .test_hopper_mutants import EMPTY_GROUP, REGISTERS_KEPT, REGISTERS_ONLY, WAITS_FOR_ALL, summary, told

BOUND = bind((2, 1), stages=2, blocks=4, group=1)

SIZES = [(300, 40, 4 * 64 + 24), (300, 200, 24)]
"""First 2 * stages + 1 tiles of K; then several tiles for each block, of one tile of K each."""

KINDS = ("mbarrier", "wait", "arrive", "tma_load", "cluster_barrier", "mma_wait", "mma_commit", "role")
"""The operations whose mutants are tried, alone and with their neighbours; the rest is example 03's."""

ONE_WARP = "wait(empty) -> arrive -> tma_load: any one warp may load, and a role of one warp arrives once"
ANY_ORDER = "tma_load -> wait(full): both count for one phase, whose bytes may come in any order"
TWO_BARRIERS = "mma_wait -> arrive -> wait(empty), for each of two blocks: neither waits for the other"

EQUIVALENT = {
    "role 0: for all warps around it": REGISTERS_KEPT,
    "role 1: one warp later": ONE_WARP,
    "arrive 0: each warp": ONE_WARP,
    "mma_commit 0: twice": EMPTY_GROUP,
    "mma_commit 1: twice": EMPTY_GROUP,
    "mma_wait 0: one fewer pending": WAITS_FOR_ALL,
    "mma_wait 2: one fewer pending": WAITS_FOR_ALL,
    "tma_load 0: after tma_load 1": ANY_ORDER,
    "wait 1: after mma_fence 0": REGISTERS_ONLY,
    "wait 2: after mma_fence 1": REGISTERS_ONLY,
    "arrive 1: after arrive 2": TWO_BARRIERS,
    "arrive 3: after arrive 4": TWO_BARRIERS,
    "arrive 5: after arrive 6": TWO_BARRIERS,
    "arrive 7: after arrive 8": TWO_BARRIERS,
}
"""Mutants that compute the same without a hazard, and the happens-before edge behind it."""


def outcome(mutant: Mutant) -> str:
    """Return the finding that shows that a mutant is wrong, or ``"survived"``."""
    if mutant.kernel is None:
        return "refused when built"
    if broken := verify.violations(mutant.kernel):
        return f"legality: {broken[0].rule}"
    for shape in SIZES:
        for blocks in ([(0, 0)], None):
            arrays = operands(*shape)
            try:
                report = run(mutant.kernel, arrays, blocks=blocks)
            except LegalityError as refused:
                return f"legality: {refused.violations[0].rule}"
            if report.findings:
                return summary(report)
        how = Accumulation.of(BOUND.constants["mma"].atom)
        if not compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).ok:
            return "wrong result"
    return "survived"


def test_every_mutant_is_found_or_equivalent_for_a_named_reason(golden, turns: Turns) -> None:
    kernel = BOUND.trace(*operands(*SIZES[0]).values())
    every = [name for name in names(kernel) if name.split()[0] in KINDS]
    outcomes = {mutant.name: outcome(mutant) for mutant in mutants(kernel, turns.among(every))}
    turns.record(outcomes)
    golden(told(every, outcomes, EQUIVALENT, "cluster_mutants.txt"), "cluster_mutants.txt")
    assert len(every) >= 90
    assert {*every} >= EQUIVALENT.keys()
    assert {name for name, found in outcomes.items() if found == "survived"} == {*outcomes} & {*EQUIVALENT}
