"""If any wait or barrier of a lowered kernel is removed, a fault is found, or this file gives a reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import numpy as np
import pytest
from tests.hazards.mutate import FoundError, ended_by_the_first_finding

import tilewright as tw
from tilewright.ir.async_ops import BulkWait, ClusterBarrier, MmaWait, RoleBarrier
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import AsyncWait, Barrier, Block, Fill, Op, WarpBarrier
from tilewright.passes.idle_waits import drop_idle_waits
from tilewright.targets.cuda.emit import lower
from tilewright.targets.reference import run

from .forms import FORMS, HOPPER, expanded
from .small import Case
from .test_mutants import MUTATED

WAITS = (Barrier, WarpBarrier, AsyncWait, BulkWait, RoleBarrier, MmaWait, ClusterBarrier)

ONE_WARPGROUP = (
    "mma_wait(0) -> barrier -> copy: in the reference a warp that has waited knows that the MMA of all four "
    "has read its operands; wgmma.wait_group promises that of what the executing threads committed"
)
OVER_THE_RING = (
    "async_wait(0), barrier -> copy: buffers may lie where the ring lay, as the plan of shared memory says; "
    "here none does"
)
SAME_LANES = (
    "load -> warp_barrier -> copy: each lane writes what it has read itself, but not where stmatrix stores"
)

IN_VAIN_IN_FORMS = {"wgmma, direct": {"barrier() by stages": ONE_WARPGROUP}}
IN_VAIN = {
    "wgmma, cp_async": {"barrier() by roles": ONE_WARPGROUP},
    "split, turnstile": {
        "async_wait() by reduction": OVER_THE_RING,
        "barrier() by reduction": OVER_THE_RING,
    },
    "split, atomic": {
        "async_wait() by reduction": OVER_THE_RING,
        "barrier() by reduction": OVER_THE_RING,
    },
    "split, reduce-scatter": {
        "async_wait() by reduction": OVER_THE_RING,
        "barrier() by reduction": OVER_THE_RING,
    },
    "cooperative, overlapped, residual": {"warp_barrier() by epilogue": SAME_LANES},
}
"""What nothing shows to be missing, and why it stands there all the same."""


def without(block: Block, gone: Op) -> Block:
    """A block without an operation."""
    ops = []
    for op in block.ops:
        if op is gone:
            continue
        regions = {f.name: v for f in fields(op) if isinstance(v := getattr(op, f.name), Block)}
        ops.append(replace(op, **{name: without(v, gone) for name, v in regions.items()}) if regions else op)
    return Block(tuple(ops))


def called(op: Op) -> str:
    """Return the operation, and the field of the schedule that it comes from."""
    origin = op.location and op.location.origin
    return f"{op.verb}() by {origin.field if origin else '?'}"


def in_vain(kernel: Kernel, arguments: Callable[[], Iterator[dict[str, np.ndarray]]]) -> set[str]:
    """Return the waits and barriers that can be removed without a finding, for all arguments."""

    def is_found(changed: Kernel) -> bool:
        try:
            with ended_by_the_first_finding():
                for arrays in arguments():
                    run(changed, arrays)
        except FoundError:
            return True
        return False

    assert not is_found(kernel)
    waits = [op for op in kernel.walk() if isinstance(op, WAITS)]
    changed = ((op, replace(kernel, body=without(kernel.body, op))) for op in waits)
    return {called(op) for op, one in changed if not is_found(one)}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("form", FORMS)
def test_each_wait_of_a_form_of_schedule_is_needed(form: str) -> None:
    schedule = FORMS[form]
    m, n, k = schedule.tile
    rows, columns = (2 * m + 16, 4 * n) if schedule.blocks else (m, n)

    def arguments() -> Iterator[dict[str, np.ndarray]]:
        for steps in (7, 1, 0):
            shapes = {
                "A": (rows, k * steps),
                "B": (columns, k * steps),
                "bias": columns,
                "C": (rows, columns),
            }
            yield {name: np.ones(shape, np.float16) for name, shape in shapes.items()}

    assert in_vain(lower(expanded(schedule), HOPPER)[0], arguments) == {*IN_VAIN_IN_FORMS.get(form, ())}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", MUTATED)
def test_each_wait_of_more_kernels_is_needed(name: str) -> None:
    case: Case = MUTATED[name]

    def arguments() -> Iterator[dict[str, np.ndarray]]:
        for steps in case.counts:
            yield case.arrays(case.shape(steps))

    traced = case.bound.trace(*case.arrays(case.shape(case.turns)).values())
    assert in_vain(lower(traced, HOPPER)[0], arguments) == {*IN_VAIN.get(name, ())}


# ---------------------------------------------------------------- the pass


@tw.kernel(X="M N", Y="M N")
def waiting(X, Y, *, turns, between, branch):
    """Copy through shared memory, with two waits and two barriers in a row."""
    held = tw.shared((32, 32), X.dtype)
    for t in tw.range(turns):
        tw.copy_async(X.tile((32, 32), (t, 0)), held, threads=64)
        tw.async_commit()
        if branch:
            with tw.when(t > 0):
                tw.async_wait(0)
                tw.barrier()
        else:
            tw.async_wait(0)
            tw.barrier()
        if between == "copy":
            tw.copy_async(X.tile((32, 32), (t, 1)), held, threads=64)
        if between in ("copy", "commit"):
            tw.async_commit()
        tw.async_wait(0)
        tw.barrier()
        tw.copy(held, Y.tile((32, 32), (t, 0)), threads=(2, 32))
        tw.barrier()
        tw.barrier()


@pytest.mark.parametrize(
    ("between", "branch", "left"),
    [
        ("", False, ["async_wait", "barrier", "barrier"]),
        ("", True, ["async_wait", "barrier", "async_wait", "barrier", "barrier"]),
        ("commit", False, ["async_wait", "barrier", "async_wait", "barrier", "barrier"]),
        ("copy", False, ["async_wait", "barrier", "async_wait", "barrier", "barrier"]),
    ],
)
def test_what_waits_for_nothing_on_any_way_is_left_out(between: str, branch: bool, left: list[str]) -> None:
    x = tw.like("f32", 64, 64)
    traced = waiting.trace(x, x, turns=2, between=between, branch=branch)
    made, notes = drop_idle_waits(traced)
    assert [op.verb for op in made.walk() if isinstance(op, WAITS)] == left
    count = sum(isinstance(op, WAITS) for op in traced.walk())
    assert len(notes) == count - len(left)
    assert all("test_no_wait_in_vain.py" in note for note in notes)


@pytest.mark.parametrize("form", ["direct", "registers", "cp_async", "fragments", "persistent"])
def test_no_sums_are_cleared_that_nothing_is_added_to(form: str) -> None:
    """Promoted sums are cleared before the next sums, but not after the last ones."""
    ops = [*expanded(replace(FORMS[form], promote=2)).walk()]
    filled = {at: op.target for at, op in enumerate(ops) if isinstance(op, Fill)}
    assert filled
    for at, target in filled.items():
        assert any(target in later.operands for later in ops[at + 1 :] if not isinstance(later, Fill))
