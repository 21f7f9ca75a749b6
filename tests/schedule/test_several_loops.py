"""Sums along several spans: successive loops over one set of accumulators."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.schedule.form import form_of
from tilewright.schedule.resources import ScheduleOnMachine

from .computing import compared, padded
from .forms import AMPERE, FORMS, HOPPER

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(X="M K", W="N K", T="M R", B="N R", C="M N", s=tw.f32)
def adapted(X, W, T, B, C, s):
    """A product with a scaled product of low rank."""
    for m, n in tw.tiles(C):
        acc, low = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
        for r in tw.steps(T.shape[1]):
            low += T[m, r] @ B[n, r].T
        C[m, n] = acc + s * low


@tw.kernel(X="M K", W="K N", T="R M", B="R N", U="M L", V="N L", C="M N")
def three(X, W, T, B, U, V, C):
    """Three spans, operands of every order, a difference, and an array in the epilogue."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[k, n]
        for r in tw.steps(T.shape[0]):
            acc -= T[r, m].T @ B[r, n]
        for j in tw.steps(U.shape[1]):
            acc += U[m, j] @ V[n, j].T
        C[m, n] = tw.relu(acc)


@tw.kernel(X="M K", W="N K", G="N K", T="M R", B="N R", D="N R", C="M N", s=tw.f32)
def gated(X, W, G, T, B, D, C, s):
    """Two totals, each with a scaled product of low rank."""
    for m, n in tw.tiles(C):
        up, gate = tw.zeros(), tw.zeros()
        for r in tw.steps(T.shape[1]):
            up += T[m, r] @ B[n, r].T
            gate += T[m, r] @ D[n, r].T
        up *= s
        gate *= s
        for k in tw.steps(X.shape[1]):
            up += X[m, k] @ W[n, k].T
            gate += X[m, k] @ G[n, k].T
        C[m, n] = up * tw.sigmoid(gate)


@tw.kernel(X="M K", W="N K", T="M R", B="N R", C="M N")
def apart(X, W, T, B, C):
    """Sums that are multiplied with each other have separate accumulators."""
    for m, n in tw.tiles(C):
        one, other = tw.zeros(), tw.zeros()
        for k in tw.steps(X.shape[1]):
            one += X[m, k] @ W[n, k].T
        for r in tw.steps(T.shape[1]):
            other += T[m, r] @ B[n, r].T
        C[m, n] = one * other


KERNELS = {"adapted": adapted, "three": three, "gated": gated, "apart": apart}
TOTALS = {"adapted": ("rk", 1, 1), "three": ("krj", 1, 0), "gated": ("rk", 2, 2), "apart": ("kr", 2, 0)}
"""Spans in the order of their loops, totals, and totals that are scaled between two loops."""

SCHEDULES = {name: replace(one, promote=0) for name, one in FORMS.items()} | {
    "promoted": FORMS["cooperative, promoted"],
    "swapped": replace(FORMS["cooperative"], swap_ab=True),
    "split": replace(FORMS["cp_async"], split_k=3),
    "split in bulk": replace(FORMS["cooperative"], blocks=0, split_k=3, group_m=0, epilogue="direct"),
    "stream": replace(FORMS["cooperative"], split_k="stream", blocks=2, epilogue="direct"),
    "along k": replace(FORMS["fragments"], groups=2),
}
SHAPE = (130, 72, 200, 56, 24)


def arrays(name, shape, dtype):
    return padded(KERNELS[name], dict(zip("MNKRL", shape, strict=True)), dtype)


def computed(name, schedule, shape, target, dtype=np.float16, scale=-1.5):
    numbers = {"s": scale} if "s" in [one.name for one in KERNELS[name].program.parameters] else {}
    bound = KERNELS[name].bind(schedule=schedule)
    return numbers, *compared(bound, arrays(name, shape, dtype), ["C"], target, **numbers)


@pytest.mark.parametrize("name", KERNELS)
def test_scaled_sums_come_first_and_share_an_accumulator(name):
    form = form_of(
        KERNELS[name].flow(*arrays(name, SHAPE, np.float16).values(), *[2.0] * (TOTALS[name][2] > 0))
    )
    spans, totals, rescaled = TOTALS[name]
    assert "".join(span.name for span in form.depths) == spans
    assert (len(form.totals), len(form.rescales)) == (totals, rescaled)
    assert [one.span.name for one in form.rescales] == ["r"] * rescaled
    assert [len(loop.products) for loop in form.loops] == [totals if name == "gated" else 1] * len(spans)
    turned = form.arranged(True)
    assert [loop.depths for loop in turned.loops] == [loop.depths for loop in form.loops]


FEW = ("registers", "fragments", "wgmma, cp_async", "cooperative", "promoted", "swapped", "stream")


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("adapted", one) for one in SCHEDULES]
    + [(name, one) for name in ("three", "gated", "apart") for one in FEW],
)
def test_the_reference_computes_them_under_every_form(name, schedule):
    computed(name, SCHEDULES[schedule], SHAPE, "reference")


@pytest.mark.parametrize(
    "shape", [(1, 1, 1, 1, 1), (33, 40, 0, 9, 5), (33, 40, 9, 0, 0), (20, 7, 130, 257, 64)]
)
@pytest.mark.parametrize("schedule", ["fragments", "cooperative", "split", "stream"])
def test_loops_of_any_length_follow_each_other(schedule, shape):
    computed("adapted", SCHEDULES[schedule], shape, "reference")


def test_groups_that_share_k_have_one_sum_of_each_element():
    with pytest.raises(tw.ScheduleError, match="2 sums for each element"):
        computed("gated", SCHEDULES["along k"], SHAPE, "reference")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(("adapted", dtype) for dtype in (np.float16, np.float64)), *((name, np.float32) for name in KERNELS)],
)
def test_the_cpu_computes_them(name, dtype):
    computed(name, None, (70, 61, 150, 33, 9), "cpu", dtype)


def test_integers_are_added_up_exactly():
    made = {
        one: np.random.default_rng(0).integers(-99, 99, shape).astype(np.int8)
        for one, shape in {"X": (40, 70), "W": (50, 70), "T": (40, 24), "B": (50, 24)}.items()
    }
    result = np.full((40, 50), 7, np.int32)

    @tw.kernel(X="M K", W="N K", T="M R", B="N R", C="M N")
    def both(X, W, T, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
            for r in tw.steps(T.shape[1]):
                acc += T[m, r] @ B[n, r].T
            C[m, n] = acc

    wide = {one: array.astype(np.int32) for one, array in made.items()}
    for target in ("reference", "cpu"):
        result[...] = 7
        assert both(*made.values(), result, target=target).target == target
        assert np.array_equal(result, wide["X"] @ wide["W"].T + wide["T"] @ wide["B"].T)


@tw.kernel(X="M K", W="N K", scale="N", T="M R", B="N R", C="M N")
def quantised(X, W, scale, T, B, C):
    """The first loop has weights of i8, the second an adapter of f16."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ (W[n, k].to(tw.f16) * scale[n][:, None]).T
        for r in tw.steps(T.shape[1]):
            acc += T[m, r] @ B[n, r].T
        C[m, n] = acc


IN_BULK = tw.Schedule(
    tw.atoms.wgmma("f16", 16),
    (64, 16, 128),
    stages=3,
    staging="tma",
    roles="cooperative",
    registers=0,
    swap_ab=True,
    buffers=1,
)


@pytest.mark.parametrize(
    "schedule",
    [None, FORMS["fragments"], IN_BULK, replace(IN_BULK, split_k=2), replace(IN_BULK, blocks=2, promote=1)],
)
def test_an_operand_is_computed_in_one_loop_and_not_in_the_other(schedule):
    rng, (m, n, k, r) = np.random.default_rng(0), (33, 100, 200, 24)
    made = {
        "X": rng.standard_normal((m, k)).astype(np.float16),
        "W": rng.integers(-8, 9, (n, 208)).astype(np.int8)[:, :k],
        "scale": np.exp2(rng.integers(-3, 2, n)).astype(np.float16),
        "T": rng.standard_normal((m, r)).astype(np.float16),
        "B": rng.standard_normal((n, r)).astype(np.float16),
    }
    result = np.full((m, 104), np.nan, np.float32)[:, :n]
    ran = quantised.bind(schedule=schedule)(*made.values(), result, target="reference")
    how = Accumulation.of(ran.schedule.atom, ran.schedule.promote * ran.schedule.block_k or None)
    compare_flow(quantised.flow(*made.values(), result), {"C": result}, made, how=how).raise_if_wrong()


@pytest.mark.parametrize("lost", ["X", "B", "s"])
def test_a_loop_or_a_scale_that_is_lost_is_found(lost):
    numbers, ran, stored, given, how = computed("adapted", SCHEDULES["cooperative"], SHAPE, "reference")
    given = {name: np.zeros_like(array) if name == lost else array for name, array in given.items()}
    numbers = {"s": 1.0} if lost == "s" else numbers
    assert not compare_flow(ran.flow, stored, given, numbers, how).ok


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("schedule", ["fragments", "cooperative", "ping-pong"])
def test_they_compile_and_take_what_is_said(name, schedule):
    shape = (256, 256, 256, 64, 64)
    made = [tw.like(tw.f16, array.shape) for array in arrays(name, shape, np.float16).values()]
    numbers = {"s": 2.0} if TOTALS[name][2] else {}
    bound = KERNELS[name].bind(schedule=SCHEDULES[schedule])
    question = bound.question(*made, **numbers, target="cuda", arch="sm_90a")
    case = ScheduleOnMachine(SCHEDULES[schedule], question.form, question.specs, HOPPER)
    kernel = bound.compile(*made, **numbers, target="cuda", arch="sm_90a")
    assert kernel.resources["spill_store_bytes"] == kernel.resources["stack_bytes"] == 0
    assert "serialized_wgmma" not in kernel.resources
    # Lowering finds more memory to share: rings of other layouts that two loops use.
    shared = kernel.resources["shared_bytes"]
    assert shared <= case.shared_bytes if name == "three" else shared == case.shared_bytes


@pytest.mark.parametrize("arch", [AMPERE, HOPPER])
def test_they_take_the_schedule_of_their_longest_loop(arch):
    shapes = {"X": (4096, 4096), "W": (4096, 4096), "T": (4096, 16), "B": (4096, 16), "C": (4096, 4096)}
    made = [tw.like(tw.f16, shape) for shape in shapes.values()]
    kernel = adapted.compile(*made, s=2.0, target="cuda", arch=arch.name)

    @tw.kernel(X="M K", W="N K", C="M N")
    def alone(X, W, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
            C[m, n] = acc

    plain = alone.compile(made[0], made[1], made[4], target="cuda", arch=arch.name)
    assert kernel.schedule == plain.schedule
    assert kernel.resources["spill_store_bytes"] == kernel.resources["stack_bytes"] == 0
    assert "serialized_wgmma" not in kernel.resources


@pytest.mark.parametrize(
    ("arch", "dtype"),
    [
        ("sm_80", "bf16"),
        ("sm_80", "f64"),
        ("sm_90a", "f32"),
        ("sm_90a", "f8e4m3"),
        ("gfx942", "f16"),
        ("gfx1100", "f32"),
    ],
)
def test_what_is_chosen_compiles_on_every_architecture(arch, dtype):
    shapes = [array.shape for array in arrays("three", (2056, 2056, 1032, 40, 64), np.float32).values()]
    made = [tw.like(dtype, shape) for shape in shapes[:-1]]
    target = "cuda" if arch.startswith("sm") else "hip"
    kernel = three.compile(*made, tw.like("f32", shapes[-1]), target=target, arch=arch)
    spilled = ("spill_store_bytes", "spilled_registers", "stack_bytes")
    assert not any(kernel.resources.get(name) for name in spilled)


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", KERNELS)
def test_a_gpu_computes_them(name, schedule):
    if schedule == "along k" and TOTALS[name][1] > 1:
        return
    computed(name, SCHEDULES.get(schedule), SHAPE, "cuda")


def test_totals_that_need_opposite_orders_are_refused():
    @tw.kernel(X="M K", W="N K", T="M R", B="N R", C="M N", D="M N")
    def crossed(X, W, T, B, C, D):
        for m, n in tw.tiles(C):
            one, other, third, fourth = tw.zeros(), tw.zeros(), tw.zeros(), tw.zeros()
            for k in tw.steps(X.shape[1]):
                one += X[m, k] @ W[n, k].T
                third += X[m, k] @ W[n, k].T
            for r in tw.steps(T.shape[1]):
                other += T[m, r] @ B[n, r].T
                fourth -= T[m, r] @ B[n, r].T
            C[m, n] = one + 2 * other
            D[m, n] = fourth + 3 * third

    made = arrays("adapted", SHAPE, np.float16)
    with pytest.raises(tw.TraceError, match="opposite order"):
        crossed(*made.values(), made["C"].copy(), target="reference")
