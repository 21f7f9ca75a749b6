"""Mutants of expanded kernels with changed synchronisation, and the checks that detect each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tests.hazards.mutate import FoundError, Mutant, ended_by_the_first_finding, mutants, names

from tilewright.errors import LegalityError
from tilewright.ir import verify
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Op
from tilewright.ir.ops import Reshape
from tilewright.targets.reference import run

from .small import Case

CHANGES = (
    *("removed", "other parity", "always parity 0", "next stage, around", "one stage fewer"),
    *("one more pending", "one fewer pending", "arrivals +1", "arrivals -1", "bytes +16", "bytes -16"),
    *("twice", "its own block", "the next block", "to one block", "of the block alone", "another number"),
    *("slice 0 one around", "always", "never"),
    *("not reset", "of +1", "of -1", "value +1", "value -1"),
)
"""What may go wrong with what synchronises: waits, arrivals, phases, slots, bytes, fences, barriers."""

VERBS = (
    *(
        "barrier",
        "async_commit",
        "async_wait",
        "copy_async",
        "role_barrier",
        "cluster_barrier",
        "fence_async",
    ),
    *("mbarrier", "wait", "arrive", "tma_load", "tma_store", "bulk_commit", "bulk_wait"),
    *("mma_fence", "mma_async", "mma_commit", "mma_wait", "if", "view", "warp_barrier"),
    *("signal", "ticket", "await_"),
)
"""The operations that are changed."""


def labelled(kernel: Kernel) -> dict[str, str]:
    """Return the names of the mutants to try, each with a label that does not depend on operations before."""
    counts: dict[str, int] = {}
    called: dict[str, str] = {}
    for op in kernel.walk():
        number = counts[op.verb] = counts.get(op.verb, -1) + 1
        if not _has_one_slot(op):
            called[f"{op.verb} {number}"] = _called(op)
    found = {}
    for name in names(kernel):
        place, _, what = name.partition(": ")
        if place in called and place.split()[0] in VERBS and what in CHANGES:
            found[name] = f"{called[place]}: {what}"
    return found


def _has_one_slot(op: Op) -> bool:
    """Return whether a sliced tensor has one index along its first dimension: its next one is the same."""
    return isinstance(op, Reshape) and op.source.tensor.shape[0] == 1


def _called(op: Op) -> str:
    """Return the operation, its operands, and the field of the schedule that it comes from."""
    on = [value.buffer.name if getattr(value, "buffer", None) else value.name for value in op.operands]
    origin = op.location and op.location.origin
    field = origin.field if origin else "?"
    return f"{op.verb}({', '.join(on)}) by {field}"


def outcome(mutant: Mutant, case: Case) -> str:
    """Return the check that detects a mutant, or ``"survived"``."""
    if mutant.kernel is None:
        return "refused when built"
    if broken := verify.violations(mutant.kernel):
        return f"legality: {broken[0].rule}"
    for steps in case.counts:
        arrays = case.arrays(case.shape(steps))
        try:
            with ended_by_the_first_finding():
                run(mutant.kernel, arrays)
        except LegalityError as refused:
            return f"legality: {refused.violations[0].rule}"
        except FoundError as found:
            return str(found)
        if not case.compare(arrays).ok:
            return "wrong result"
    return "survived"


def traced(case: Case) -> Kernel:
    """Return the kernel whose mutants are tried."""
    return case.bound.trace(*case.arrays(case.shape(case.turns)).values())


def outcomes(case: Case, kernel: Kernel, labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Return the label of each labelled mutant, and the check that detects it."""
    for mutant in mutants(kernel, labels):
        yield labels[mutant.name], outcome(mutant, case)
