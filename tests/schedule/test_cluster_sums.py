"""K split among the blocks of a cluster: right, clean, and with the bits of a workspace."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from tests.hazards.mutate import mutants

import tilewright as tw
from tilewright.ir.ops import Shared
from tilewright.runtime.nvrtc import compile_text
from tilewright.schedule.resources import ScheduleOnMachine as Resources
from tilewright.schedule.schedule import Schedule
from tilewright.targets import cuda
from tilewright.targets.target import TARGETS

from .mutants import labelled, outcome
from .small import CP_ASYNC, FEW_ROWS, ONCE, SYNC, Case, batched, product, residual, row_sums, two_results

pytestmark = pytest.mark.in_turns(3)

HOPPER = TARGETS["cuda"].architecture("sm_90a")


def clustered(schedule: Schedule, blocks: int, **changes: object) -> Schedule:
    """Return the schedule with K split among the blocks of a cluster."""
    return replace(schedule, split_k=blocks, reduction="cluster", **changes)  # type: ignore[arg-type]


WIDE = replace(CP_ASYNC, tile=(32, 96, 16), stages=2)
"""Of columns for three slices at most, which the blocks share."""
LONG = replace(ONCE, atom=tw.atoms.wgmma("f16", 128), tile=(128, 128, 64))
"""Of four slices of 128 bytes."""

CASES = {
    "direct": Case(clustered(SYNC, 2), edge=19),
    "cp_async, shared slices": Case(clustered(WIDE, 2), residual, edge=19),
    "cp_async, a slice each": Case(clustered(WIDE, 3, promote=2), two_results),
    "cp_async, staged": Case(clustered(WIDE, 4, epilogue="staged", group_m=2), residual, tiles=(2, 1)),
    "row sums": Case(clustered(CP_ASYNC, 3, epilogue="staged"), row_sums, tiles=(2, 1)),
    "batches": Case(clustered(CP_ASYNC, 2, group_m=2), batched),
    "balanced": Case(clustered(SYNC, 2, balanced=True)),
    "wgmma, eight": Case(clustered(replace(ONCE, groups=1, tile=(64, 64, 64)), 8), edge=19),
    "cooperative": Case(clustered(ONCE, 2), residual),
    "cooperative, direct": Case(clustered(ONCE, 2, epilogue="direct", promote=2)),
    "cooperative, several slices": Case(clustered(LONG, 3), edge=28),
    "cooperative, one buffer": Case(clustered(LONG, 2, buffers=1), residual, tiles=(1, 1)),
    "few rows": Case(clustered(FEW_ROWS, 4), residual, layout="nn", tiles=(2, 1)),
    "few rows, a narrow slice each": Case(
        clustered(replace(FEW_ROWS, atom=tw.atoms.wgmma("f16", 64), tile=(64, 64, 64)), 2),
        layout="nn",
        edge=19,
    ),
}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", CASES)
def test_no_hazard_and_every_element_right(name: str) -> None:
    case = CASES[name]
    for steps in (2 * case.schedule.stages * case.schedule.split_k + 1, 1, 0):  # type: ignore[operator]
        arrays = case.arrays(case.shape(steps))
        report = case.executed(arrays)
        assert report.is_clean, f"{case.shape(steps)}: {report}"
        case.compare(arrays).raise_if_wrong()


@pytest.mark.parametrize("name", ["cp_async, a slice each", "cp_async, staged", "cooperative", "few rows"])
def test_the_bits_are_those_of_a_workspace(name: str) -> None:
    case = CASES[name]
    other = replace(case, schedule=replace(case.schedule, reduction="workspace"))
    for steps in (11, 2):
        found = []
        for each in (case, other):
            arrays = each.arrays(each.shape(steps))
            assert each.bound(*arrays.values(), target="reference").target == "reference"
            found.append(arrays)
        assert all(found[0][stored].tobytes() == found[1][stored].tobytes() for stored in found[0])


BARRIERS = ("removed", "of the block alone")


@pytest.mark.parametrize("name", ["cp_async, shared slices", "row sums", "cooperative"])
def test_blocks_that_do_not_meet_are_found(name: str) -> None:
    case = CASES[name]
    kernel = case.bound.trace(*case.arrays(case.shape(case.turns)).values())
    labels = {
        number: label
        for number, label in labelled(kernel).items()
        if label.startswith("cluster_barrier() by reduction") and label.endswith(BARRIERS)
    }
    found = Counter((labels[mutant.name], outcome(mutant, case)) for mutant in mutants(kernel, labels))
    for change in BARRIERS:
        shown = [what for (label, what) in found if label.endswith(change)]
        assert len(shown) == 2  # the barrier before the sums are read, and the one behind
        assert any("may not have begun" in what for what in shown)
        assert any("may have ended" in what for what in shown)


@pytest.mark.parametrize("name", ["cp_async, staged", "cooperative", "few rows"])
def test_its_text_compiles(name: str) -> None:
    case = CASES[name]
    listing = cuda.emit(case.bound.trace(*case.arrays(case.shape(case.turns)).values()), "sm_90a")
    blocks = case.schedule.split_k
    assert f"__cluster_dims__({blocks}, 1, 1)" in listing.text or f"(1, {blocks}, 1)" in listing.text
    assert [listing.text.count(f"  cluster_{name}();") for name in ("barrier", "part")] == [1, 1]
    assert "ticket" not in listing.text
    assert "_cluster(" not in listing.text  # the ring's barriers order the block's own threads alone
    assert compile_text(listing.text, "sm_90a").resources["spill_store_bytes"] == 0


def test_what_it_takes_of_shared_memory_is_said_before() -> None:
    case = CASES["cooperative"]
    arrays = case.arrays(case.shape(case.turns))
    kernel = case.bound.trace(*arrays.values())
    held = {op.result.name: op.elems for op in kernel.walk() if isinstance(op, Shared)}
    assert held["partial_sums"] == 2 * 64 * (64 + 8) - 8
    made = case.bound.compile(*arrays.values(), target="cuda", arch="sm_90a")
    specs = {name: tw.like(array.dtype, array.shape) for name, array in arrays.items()}
    bound = residual.bind(schedule=case.schedule)
    question = bound.question(*specs.values(), target="cuda", arch="sm_90a")
    taken = Resources(case.schedule, question.form, question.specs, HOPPER).shared_bytes
    assert made.resources["shared_bytes"] == taken


REFUSED = {
    "auto": (replace(CP_ASYNC, split_k="auto", blocks=132), "sm_90a", "split_k=4 and blocks=0"),
    "nine": (replace(CP_ASYNC, split_k=9), "sm_90a", 'split_k=8, or reduction="workspace"'),
    "no clusters": (replace(CP_ASYNC, split_k=2), "sm_80", 'nearest legal choice: reduction="workspace"'),
    "registers": (replace(ONCE, split_k=2, registers=232), "sm_90a", "registers=0"),
    "multicast": (replace(ONCE, split_k=2, cluster=(2, 1)), "sm_90a", "cluster=(1, 1)"),
    "too much": (replace(ONCE, split_k=2, stages=9), "sm_90a", "partial_sums 36832"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_no_cluster_computes_is_refused(name: str) -> None:
    schedule, arch, nearest = REFUSED[name]
    arrays = tw.like("f16", 512, 512), tw.like("f16", 512, 512), tw.like("f32", 512, 512)
    bound = product.bind(schedule=replace(schedule, reduction="cluster"))
    with pytest.raises(tw.ScheduleError) as refused:
        bound.compile(*arrays, target="cuda", arch=arch)
    assert nearest in str(refused.value)


def test_a_processor_has_no_clusters() -> None:
    array = np.zeros((64, 64), np.float16)
    fma = Schedule(tw.atoms.fma("f16", "f32"), (32, 32, 8), split_k=2, reduction="cluster")
    with pytest.raises(tw.ScheduleError, match="has no clusters") as refused:
        product(array, array, np.zeros((64, 64), np.float32), schedule=fma, target="cpu")
    assert 'nearest legal choice: reduction="workspace"' in str(refused.value)
