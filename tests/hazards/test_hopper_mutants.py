"""The checker finds every mutant of the Hopper GEMM, or it is equivalent for a reason given in this file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.turns import Turns, recorded

from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.targets.reference import Report, run

from .hopper import constants, operands, trace
from .mutate import Mutant, mutants, names

CONSTANTS = constants(columns=128, stages=2, buffers=2, blocks=3)

CASES = {
    # All of one class of arguments.  First 2 * stages + 1 tiles of K, ragged M, N and K, and two tiles
    # for the first of three blocks; without K, three for each.
    "": operands(133, 200, 4 * 64 + 24),
    "K = 0": operands(261, 264, 0),
    "one K tile": operands(133, 264, 24),
}

EMPTY_GROUP = "mma_async -> mma_wait(1) -> arrive: the one group that may be pending is empty"
WAITS_FOR_ALL = "mma_async -> mma_wait(0) -> arrive: waits for the MMA of this turn as well"
STORES_FOR_ALL = "tma_store -> bulk_wait(0) -> copy: waits for the store to the other buffer as well"
OTHER_BUFFER = "copy -> fence_async -> role_barrier -> tma_store: each group uses the other's buffers alone"
SAME_ELEMENTS = "copy -> fence_async -> role_barrier -> tma_store: the same threads write the same elements"
REGISTERS_ONLY = "fragment -> mma_fence -> mma_async stands, and so does tma_load -> wait(full) -> mma_async"
ONE_WARP = "wait(empty) -> arrive(full) -> tma_load: by one warp of the loading warpgroup, whichever it is"
ISSUER_FENCES = (
    "copy -> role_barrier -> fence_async -> tma_store: who stores fences what the barrier told it of"
)
REGISTERS_KEPT = "role(warps=1) inside stands: the same warp loads, and no warp gives registers away"

EQUIVALENT = {
    "role 0: for all warps around it": REGISTERS_KEPT,
    "role 1: one warp later": ONE_WARP,
    "arrive 0: each warp": ONE_WARP,
    "mma_commit 0: twice": EMPTY_GROUP,
    "mma_wait 0: one fewer pending": WAITS_FOR_ALL,
    **dict.fromkeys((f"view {i}: slice 0 one around" for i in (8, 10)), OTHER_BUFFER),
    **dict.fromkeys((f"bulk_wait {i}: one fewer pending" for i in (0, 1)), STORES_FOR_ALL),
    **dict.fromkeys((f"copy {i}: vector halved" for i in (0, 1)), SAME_ELEMENTS),
    **{f"fence_async {i}: after role_barrier {2 * i + 1}": ISSUER_FENCES for i in (0, 1)},
    "wait 1: after mma_fence 0": REGISTERS_ONLY,
}
"""Mutants that compute the same without a hazard, and the happens-before edge behind it."""


def outcome(mutant: Mutant) -> str:
    """Return the finding that shows that a mutant is wrong and its sizes, or ``"survived"``."""
    if mutant.kernel is None:
        return "refused when built"
    if broken := verify.violations(mutant.kernel):
        return f"legality: {broken[0].rule}"
    for case in CASES:
        found = executed(mutant, case)
        if found != "survived":
            return found + (f" ({case})" if case else "")
    return "survived"


def executed(mutant: Mutant, case: str) -> str:
    """Return the findings of a mutant's run; the first block runs alone first, which often is enough."""
    assert mutant.kernel is not None
    for blocks in ([(0,)], None):
        arrays = {**CASES[case], "C": CASES[case]["C"].copy()}
        try:
            report = run(mutant.kernel, arrays, blocks=blocks)
        except LegalityError as refused:
            return f"legality: {refused.violations[0].rule}"
        if report.findings:
            return summary(report)
    if not arrays["A"].shape[1]:
        return "survived" if not arrays["C"].astype(float).any() else "wrong result"
    how = Accumulation.of(CONSTANTS["mma"].atom)
    right = compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how)
    return "survived" if right.ok else "wrong result"


def summary(report: Report) -> str:
    """Return the kinds of the findings, each with its operations."""
    kinds: dict[str, list[str]] = {}
    for finding in report.findings:
        tensors = kinds.setdefault(finding.kind.value, [])
        if finding.tensor and finding.tensor not in tensors:
            tensors.append(finding.tensor)
    return "; ".join(kind + (f" ({', '.join(on)})" if on else "") for kind, on in kinds.items())


def test_every_mutant_is_found_or_equivalent_for_a_named_reason(golden, turns: Turns) -> None:
    kernel = trace(CASES[""], **CONSTANTS)
    every = names(kernel)
    outcomes = {mutant.name: outcome(mutant) for mutant in mutants(kernel, turns.among(every))}
    turns.record(outcomes)
    golden(told(every, outcomes, EQUIVALENT, "hopper_mutants.txt"), "hopper_mutants.txt")
    assert len(every) >= 150
    assert {*every} >= EQUIVALENT.keys()
    assert {name for name, found in outcomes.items() if found == "survived"} == {*outcomes} & {*EQUIVALENT}


def told(every: list[str], outcomes: dict[str, str], reasons: Mapping[str, str], file: str) -> str:
    """Return the lines of a golden file for every mutant; mutants that do not run now keep their lines."""
    width, before = max(map(len, every)), recorded(Path(__file__).parent / "golden" / file)
    lines = []
    for name in every:
        found = outcomes.get(name)
        if found == "survived":
            found = f"equivalent: {reasons.get(name, '?')}"
        lines.append(before.get(name, name) if found is None else f"{name:{width}}  {found}")
    return "\n".join(lines) + "\n"
