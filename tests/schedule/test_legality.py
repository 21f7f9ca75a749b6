"""The formulas of legality, threads and shared memory agree with the expanded kernel."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
from tests.eight_lines import product

import tilewright as tw
from tilewright.ir.ops import FragmentOp, Shared
from tilewright.lang.program import Program
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import check, reasons
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.targets.cuda.emit import lower

from .drawing import compared
from .forms import AMPERE, BULK, FORMS, HOPPER, SYNC, WGMMA, expanded, flow_of, specs

CHUNKS, EACH = 4, 30


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_formulas_say_what_expanded_kernels_say(chunk: int) -> None:
    found = [compared(random.Random(seed)) for seed in range(chunk * EACH, (chunk + 1) * EACH)]
    assert not [one.difference for one in found if one.difference]
    assert sum(one.verdict == "legal" for one in found) >= EACH // 5
    assert sum(one.verdict == "broken" for one in found) >= EACH // 10


OVERLAPPED = replace(BULK, epilogue="overlapped")
TAKEN = {
    **FORMS,
    "cooperative, registers as they are": replace(BULK, registers=0),
    "overlapped": OVERLAPPED,
    "overlapped, registers as they are": replace(OVERLAPPED, registers=0),
    "overlapped, three groups": replace(OVERLAPPED, tile=(192, 64, 64), groups=3, registers=152),
    "ping-pong, overlapped": replace(FORMS["ping-pong"], epilogue="overlapped"),
}


@pytest.mark.parametrize("form", TAKEN)
def test_threads_and_shared_memory_of_every_form_are_those_of_its_kernel(form: str) -> None:
    given, schedule = specs(), TAKEN[form]
    case = ScheduleOnMachine(schedule, form_of(flow_of(given)), given, HOPPER)
    kernel, _ = lower(expanded(schedule), HOPPER)
    assert (case.threads, case.shared_bytes) == (kernel.threads, kernel.shared_bytes)


@pytest.mark.parametrize("stages", [1, 3])
def test_what_stays_together_takes_what_its_layout_says(stages: int) -> None:
    schedule = replace(
        SYNC, stages=stages, staging="cp_async" if stages > 1 else "direct", k1=(8, 16), extra_rows=(1, 2)
    )
    kernel = expanded(schedule)
    held = {op.result.name: op.elems for op in kernel.walk() if isinstance(op, Shared)}
    a, b = 4 * 65 * 8, 2 * 66 * 16
    assert (held["sA"], held["sB"]) == (stages * a - 8, stages * b - 2 * 16)


def test_a_result_that_one_block_stores_goes_through_shared_memory_as_a_whole() -> None:
    kernel = expanded(replace(FORMS["cp_async"], warps=(4, 1), epilogue="staged"))
    (held,) = (op.elems for op in kernel.walk() if isinstance(op, Shared) and op.result.name == "sC")
    assert held >= 64 * 64


def test_registers_of_two_parts_of_plain_operands_are_those_of_the_kernel() -> None:
    given, schedule = specs(), FORMS["fragments"]
    names = {"rA", "rA_1", "rB", "rB_1"}
    held = [op for op in expanded(schedule).walk() if isinstance(op, FragmentOp) and op.result.name in names]
    assert len(held) == len(names)
    values = sum(op.result.fragment.distribution.size_values for op in held)
    assert (
        ScheduleOnMachine(schedule, form_of(flow_of(given)), given, HOPPER).held == values * tw.f16.bytes // 4
    )


@pytest.mark.parametrize("unit", [0, 1])
def test_a_result_that_is_seen_with_its_axes_changed_is_stored_by_bulk_copies(unit: int) -> None:
    def turned(A, B, C):
        D = C.permute(1, 0)
        for m, n in tw.tiles(D):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            D[m, n] = acc

    result = replace(specs()["C"], unit_dim=unit, stride_divisors=(16, 1) if unit else (1, 16))
    given = {**specs(), "C": result}
    del given["bias"]
    form = form_of(Program(turned, {"A": "M K", "B": "N K", "C": "N M"}).run(given))
    case = ScheduleOnMachine(BULK, form, given, HOPPER)
    assert not [*case.epilogue.against_bulk(case)]


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_legal_on_hopper(form: str) -> None:
    given = specs()
    assert reasons(FORMS[form], form_of(flow_of(given)), given, HOPPER) == []


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (replace(BULK, stages=1), "stages"),
        (replace(BULK, roles="none"), "roles"),
        (replace(SYNC, k1=(5, 0)), "k1"),
        (replace(SYNC, k1=(0, 64)), "k1"),
        (replace(WGMMA, k1=(8, 8)), "k1"),
        (replace(BULK, k1=(0, 8)), "k1"),
        (replace(SYNC, staging="registers", bypass="a", k1=(8, 0)), "k1"),
        (replace(SYNC, extra_rows=(0, 1)), "extra_rows"),
        (replace(SYNC, dealt=((64, 4), (0, 0))), "dealt"),
        (replace(SYNC, turned="a"), "turned"),
        (replace(SYNC, staging="registers", turned="b"), "turned"),
        (replace(SYNC, dealt=((0, 0), (128, 1))), "dealt"),
        (replace(SYNC, dealt=((0, 4), (0, 0))), "dealt"),
        (replace(WGMMA, dealt=((64, 2), (0, 0))), "dealt"),
        (replace(SYNC, bypass="a"), "bypass"),
        (replace(SYNC, stages=3, staging="fragments", bypass="b"), "bypass"),
        (replace(WGMMA, staging="registers", bypass="a"), "bypass"),
        (replace(BULK, bypass="ab"), "bypass"),
        (replace(SYNC, groups=2), "groups"),
        (replace(FORMS["fragments"], tile=(64, 64, 40)), "tile"),
        (replace(SYNC, roles="cooperative"), "roles"),
        (replace(SYNC, staging="panels"), "staging"),
        (replace(SYNC, stages=2), "stages"),
        (replace(BULK, roles="ping-pong", groups=1), "groups"),
        (replace(BULK, roles="alternating", groups=2), "roles"),
        (replace(SYNC, roles="alternating", groups=2), "roles"),
        (replace(SYNC, staging="registers", roles="ping-pong", groups=2, stages=2), "roles"),
        (replace(BULK, group_n=2), "group_n"),
        (replace(SYNC, cluster=(2, 1)), "cluster"),
        (replace(BULK, cluster=(1, 3)), "cluster"),
        (replace(SYNC, epilogue="overlapped"), "epilogue"),
        (replace(BULK, roles="ping-pong", blocks=0), "blocks"),
        (replace(WGMMA, atom=tw.atoms.wgmma("f16", 256), tile=(128, 256, 64)), "tile"),
        (replace(SYNC, atom=tw.atoms.MMA_F16_F16), "atom"),
        (replace(SYNC, tile=(64, 64, 48), stages=3, staging="fragments"), "tile"),
        (replace(SYNC, split_k="auto"), "blocks"),
        (replace(SYNC, split_k="stream"), "blocks"),
        (replace(SYNC, split_k=2, blocks=132), "split_k"),
        (replace(SYNC, split_k="stream", blocks=132, balanced=True), "split_k"),
        (replace(SYNC, split_k="stream", blocks=132, reduction="turnstile"), "reduction"),
        (replace(BULK, split_k="stream", blocks=132, roles="ping-pong"), "roles"),
        (replace(BULK, split_k="stream", blocks=132, epilogue="overlapped"), "epilogue"),
        (replace(BULK, split_k="stream", blocks=132, cluster=(2, 1)), "cluster"),
        (replace(BULK, split_k=2, blocks=0, reduction="cluster", cluster=(2, 1)), "cluster"),
        (replace(SYNC, batches=2), "batches"),
        (replace(WGMMA, interleaved=True), "interleaved"),
        (replace(BULK, atom=tw.atoms.wgmma("f16", 32), epilogue="direct", promote=1), "atom"),
        (replace(BULK, atom=tw.atoms.wgmma("f16", 32), blocks=0, split_k=2, promote=1), "atom"),
        (replace(BULK, whole="m"), "whole"),
        (replace(SYNC, balanced=True, whole="mn"), "whole"),
        (replace(SYNC, batches=2, blocks=2), "batches"),
    ],
)
def test_what_a_kernel_would_get_silently_wrong_is_refused(schedule: tw.Schedule, field: str) -> None:
    given = specs()
    found = reasons(schedule, form_of(flow_of(given)), given, HOPPER)
    assert field in {violation.rule for violation in found}


def decoded(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].to(A.dtype).T
        C[m, n] = acc


@pytest.mark.parametrize(("stages", "depth", "legal"), [(2, 32, False), (2, 64, True), (3, 32, True)])
def test_what_is_decoded_must_be_there_two_parts_ahead(stages: int, depth: int, legal: bool) -> None:
    given = specs()
    del given["bias"]
    given["B"] = replace(given["B"], dtype=tw.i8)
    flow = flow_of(given, Program(decoded, {"A": "M K", "B": "N K", "C": "M N"}))
    schedule = replace(FORMS["fragments"], stages=stages, tile=(64, 64, depth))
    found = reasons(schedule, form_of(flow), given, HOPPER)
    assert {violation.rule for violation in found} == (set() if legal else {"stages"})


def test_a_launch_refuses_an_illegal_schedule() -> None:
    @tw.kernel(A="M K", B="N K", C="M N")
    def gemm(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            C[m, n] = acc

    a, b, c = (np.zeros((40, 40), np.float16) for _ in range(3))
    schedule = replace(SYNC, stages=1, staging="cp_async")
    with pytest.raises(tw.ScheduleError, match="stages=2"):
        gemm.bind(schedule=schedule)(a, b, c, target="reference")


def test_a_refused_schedule_raises_with_every_reason() -> None:
    given = specs()
    with pytest.raises(tw.ScheduleError) as refused:
        check(replace(BULK, stages=1, cluster=(2, 1)), form_of(flow_of(given)), given, AMPERE)
    assert isinstance(refused.value, tw.LegalityError)
    assert {violation.rule for violation in refused.value.violations} >= {
        "stages",
        "cluster",
        "atom",
        "staging",
    }


IN_BULK = replace(BULK, atom=tw.atoms.wgmma("f16", 16), tile=(128, 16, 128), swap_ab=True)


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, {}),
        ({"swap_ab": False}, {"swap_ab": "swap_ab=True"}),
        ({"tile": (128, 16, 192)}, {"tile": "tile=(128, 16, 256)"}),
        ({"promote": 2}, {}),
        ({"atom": tw.atoms.MMA_F16}, {"staging": 'staging="fragments"'}),
        ({"registers": 40}, {"tile": "a smaller tile"}),
    ],
    ids=str,
)
def test_what_decodes_under_multiplications_in_the_background(
    changes: dict[str, object], broken: dict[str, str]
) -> None:
    given = specs()
    del given["bias"]
    given["B"] = replace(given["B"], dtype=tw.i8)
    flow = flow_of(given, Program(decoded, {"A": "M K", "B": "N K", "C": "M N"}))
    found = {
        one.rule: one.nearest for one in reasons(replace(IN_BULK, **changes), form_of(flow), given, HOPPER)
    }
    assert found.keys() >= broken.keys()
    assert broken or not found
    for field, nearest in broken.items():
        assert nearest in found[field]


def test_extents_that_are_no_whole_tiles_are_refused_at_launch() -> None:
    """A kernel does not check dimensions that its schedule declares whole."""
    schedule = replace(SYNC, tile=(32, 32, 16), whole="mk")
    bound = product.bind(schedule=schedule)
    a, b, c = (np.ones(shape, np.float16) for shape in ((64, 32), (33, 32), (64, 33)))
    bound(a, b, c, target="reference")
    assert (c == 32).all()
    with pytest.raises(
        tw.LaunchError, match=r"m must .* of 32: .* whole='mk'; nearest legal choice: whole='k'"
    ):
        bound(a[:63], b, c[:63], target="reference")
    with pytest.raises(
        tw.LaunchError, match=r"k must be a multiple of 16: .*; nearest legal choice: whole='m'"
    ):
        bound(a[:, :31], b[:, :31], c, target="reference")


@pytest.mark.parametrize("columns", [200, 208, 256])
def test_threads_have_registers_besides_the_sums_of_wgmma(columns: int) -> None:
    """Three groups and a copying warp leave each thread 128 registers, because each scheduler has 4 warps."""
    tile, atom = (192, columns, 64), tw.atoms.wgmma("f16", columns)
    schedule = replace(BULK, atom=atom, tile=tile, groups=3, stages=2, registers=0, epilogue="direct")
    given = specs()
    found = [str(one) for one in reasons(schedule, form_of(flow_of(given)), given, HOPPER)]
    assert any("26 for addresses; a thread has 128" in one for one in found) == (columns > 200), found
