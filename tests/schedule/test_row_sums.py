"""Sums of rows of operands, computed from the tiles that are multiplied."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.schedule.choice import choose
from tilewright.schedule.folds.form import is_folded
from tilewright.schedule.form import form_of
from tilewright.schedule.row_sums import RowSum
from tilewright.schedule.tables import MeasuredSchedule, ScheduleTable, Version, chosen, class_of, extents_of

from .computing import compared, padded
from .forms import FORMS

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(X="M K", W="N K", C="M N", eps=tw.f32)
def rms_norm(X, W, C, eps):
    """Divide the rows of X by the roots of their mean squares, and multiply by W."""
    for m, n in tw.tiles(C):
        acc, square = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            x = X[m, k].to(tw.f32)
            square += (x * x).sum(axis=1)
        C[m, n] = acc * tw.rsqrt(square / X.shape[1] + eps)[:, None]


@tw.kernel(X="M K", W="N K", sums="N", bias="N", C="M N", eps=tw.f32)
def layer_norm(X, W, sums, bias, C, eps):
    """Normalise the rows of X to mean 0 and variance 1, and multiply by W, whose sums along K are given."""
    for m, n in tw.tiles(C):
        acc, total, square = tw.zeros(), tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            x = X[m, k].to(tw.f32)
            total += x.sum(axis=1)
            square += (x * x).sum(axis=1)
        mean = total / X.shape[1]
        spread = tw.rsqrt(square / X.shape[1] - mean * mean + eps)
        C[m, n] = (acc - mean[:, None] * sums[n]) * spread[:, None] + bias[n]


@tw.kernel(X="K M", W="K N", C="M N", eps=tw.f32)
def both_sides(X, W, C, eps):
    """Sum rows of both operands, which are contiguous along their rows."""
    for m, n in tw.tiles(C):
        acc, rows, columns = tw.zeros(), tw.zeros((m,), tw.f32), tw.zeros((n,), tw.f32)
        for k in tw.steps(X.shape[0]):
            acc += X[k, m].T @ W[k, n]
            rows += X[k, m].to(tw.f32).sum(axis=0)
            columns += abs(W[k, n].to(tw.f32)).sum(axis=0)
        C[m, n] = acc + eps * rows[:, None] * columns


@tw.kernel(X="M K", W="N K", T="M R", B="N R", C="M N", eps=tw.f32)
def adapted(X, W, T, B, C, eps):
    """One loop has a sum of rows, and one has none."""
    for m, n in tw.tiles(C):
        acc, low, square = tw.zeros(), tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(X.shape[1]):
            acc += X[m, k] @ W[n, k].T
            square += (X[m, k].to(tw.f32) * X[m, k].to(tw.f32)).sum(axis=1)
        for r in tw.steps(T.shape[1]):
            low += T[m, r] @ B[n, r].T
        C[m, n] = (acc + 0.25 * low) * tw.rsqrt(square + eps)[:, None]


KERNELS = {"rms_norm": rms_norm, "layer_norm": layer_norm, "both_sides": both_sides, "adapted": adapted}
COUNTS = {"rms_norm": 1, "layer_norm": 2, "both_sides": 2, "adapted": 1}
SCHEDULES = {name: replace(one, promote=0) for name, one in FORMS.items()} | {
    "promoted": FORMS["cooperative, promoted"],
    "swapped": replace(FORMS["cooperative"], swap_ab=True),
    "swapped, cp_async": replace(FORMS["cp_async"], swap_ab=True),
    "1 x 2": replace(FORMS["cooperative"], cluster=(1, 2), blocks=2),
}
SHAPE = (130, 72, 200, 56)


def arrays(name, shape, dtype):
    return padded(KERNELS[name], dict(zip("MNKR", shape, strict=True)), dtype)


def computed(name, schedule, shape, target, dtype=np.float16):
    bound = KERNELS[name].bind(schedule=schedule)
    return compared(bound, arrays(name, shape, dtype), ["C"], target, eps=0.5)


@pytest.mark.parametrize("depth", [16, 32, 48, 64])
@pytest.mark.parametrize("warps", [(1, 1), (2, 1)])
@pytest.mark.parametrize("name", KERNELS)
def test_tiles_with_fewer_elements_than_lanes_that_hold_a_row(name, warps, depth):
    """32 lanes of this instruction hold a row of the sums; they add copies if a tile has 16 elements."""
    schedule = tw.Schedule(tw.atoms.MFMA_F32_K8, (32 * warps[0], 32, depth), warps=warps, staging="registers")
    computed(name, schedule, (70, 40, 100, 24), "reference", np.float32)


@pytest.mark.parametrize("name", KERNELS)
def test_they_are_leaves_of_a_form_of_products(name):
    flow = KERNELS[name].flow(*arrays(name, SHAPE, np.float16).values(), eps=0.5)
    assert not is_folded(flow)
    form = form_of(flow)
    assert len(form.row_sums) == COUNTS[name]
    assert len(form.totals) == 1
    assert [form.number_of(one) for one in form.row_sums] == [*range(1, 1 + COUNTS[name])]
    assert sum(isinstance(node, RowSum) for node in form.flow.walk()) == COUNTS[name]


FEW = ("registers", "fragments", "wgmma, cp_async", "cooperative", "promoted", "swapped")


@pytest.mark.parametrize(
    ("name", "schedule"),
    [("layer_norm", one) for one in SCHEDULES]
    + [(name, one) for name in ("rms_norm", "both_sides", "adapted") for one in FEW],
)
def test_the_reference_computes_them_under_every_form(name, schedule):
    if name == "both_sides" and schedule == "fragments":
        with pytest.raises(tw.ScheduleError, match="hold other rows than the accumulators"):
            computed(name, SCHEDULES[schedule], SHAPE, "reference")
        return
    computed(name, SCHEDULES[schedule], SHAPE, "reference")


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (33, 40, 0, 9), (20, 7, 130, 0), (70, 9, 257, 33)])
def test_rows_of_any_length(shape):
    for schedule in ("cp_async", "cooperative", "ping-pong"):
        computed("adapted", SCHEDULES[schedule], shape, "reference")
    computed("both_sides", None, shape, "cpu")


@pytest.mark.parametrize(
    ("name", "dtype"), [("layer_norm", np.float16), *((name, np.float32) for name in KERNELS)]
)
def test_the_cpu_computes_them(name, dtype):
    computed(name, None, (70, 61, 150, 33), "cpu", dtype)


def test_a_sum_that_is_lost_is_found():
    ran, stored, given, how = computed("rms_norm", SCHEDULES["cooperative"], SHAPE, "reference")
    wrong = stored["C"] * np.float16(1.01)
    assert not compare_flow(ran.flow, {"C": wrong}, given, {"eps": 0.5}, how).ok


def test_a_normalised_row_is_the_product_of_the_normalised_row():
    """As algebra, it equals the product of rows that are normalised first, with sums in f64."""
    made = arrays("layer_norm", SHAPE, np.float32)
    made["sums"][...] = made["W"].sum(axis=1)
    layer_norm(*made.values(), eps=0.5, target="cpu")
    x = made["X"].astype(np.float64)
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 0.5)
    exact = x @ made["W"].T.astype(np.float64) + made["bias"]
    assert np.allclose(made["C"], exact, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("split", "field"), [({"split_k": 3}, "split_k"), ({"split_k": "stream", "blocks": 3}, "split_k")]
)
def test_parts_of_k_are_refused(split, field):
    with pytest.raises(tw.ScheduleError, match=f"{field}: square is the sum of rows of X") as error:
        computed("rms_norm", replace(FORMS["cp_async"], **split), SHAPE, "reference")
    assert "split_k=1" in str(error.value)


@pytest.mark.parametrize(
    ("target", "arch", "dtype", "shape"),
    [
        ("cuda", "sm_90a", "bf16", (4096, 4096, 4096, 64)),
        ("cuda", "sm_90a", "f16", (16, 4096, 4096, 64)),
        ("cuda", "sm_80", "f16", (4096, 4096, 4096, 64)),
        ("hip", "gfx942", "bf16", (4096, 4096, 4096, 64)),
        ("hip", "gfx1100", "f16", (512, 512, 512, 64)),
    ],
)
@pytest.mark.parametrize("name", ["rms_norm", "layer_norm"])
def test_what_is_chosen_multiplies_as_fast_as_without(name, target, arch, dtype, shape):
    made = [tw.like(dtype, array.shape) for array in _shapes(name, shape)]
    kernel = KERNELS[name].compile(*made, eps=0.5, target=target, arch=arch)
    assert kernel.schedule.split_k == 1
    spilled = ("spill_store_bytes", "serialized_wgmma")
    assert not any(kernel.resources.get(one) for one in spilled)
    if arch == "sm_90a":
        assert (kernel.schedule.staging, kernel.schedule.atom.instruction) == ("tma", "wgmma")


def _shapes(name, shape):
    extents = dict(zip("MNKR", shape, strict=True))
    return [
        np.broadcast_to(np.float16(0), [extents[dim] for dim in parameter.dims])
        for parameter in KERNELS[name].program.parameters
        if parameter.dims
    ]


def test_other_sums_are_loops_with_a_state():
    """If a function does not keep 0, or the array is no operand, the tiles cannot give the sum."""

    @tw.kernel(X="M K", W="N K", C="M N")
    def counted(X, W, C):
        for m, n in tw.tiles(C):
            acc, count = tw.zeros(), tw.zeros((m,), tw.f32)
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
                count += (X[m, k].to(tw.f32) + 1).sum(axis=1)
            C[m, n] = acc / count[:, None]

    made = arrays("rms_norm", SHAPE, np.float32)
    assert is_folded(counted.flow(*made.values()))
    counted(*made.values(), target="cpu")
    x = made["X"].astype(np.float64)
    exact = x @ made["W"].T.astype(np.float64) / (x + 1).sum(1, keepdims=True)
    assert np.allclose(made["C"], exact, rtol=1e-3, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", KERNELS)
def test_a_gpu_computes_them(name, schedule):
    if name == "both_sides" and schedule == "fragments":
        return
    computed(name, SCHEDULES.get(schedule), SHAPE, "cuda")


@tw.kernel(A="M K", B="N K", C="M N")
def beside_masked_result(A, B, C):
    """A sum of rows needs tiles that the product's mask leaves out."""
    for m, n in tw.tiles(C):
        acc, square = tw.zeros(), tw.zeros((m,), tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            x = A[m, k].to(tw.f32)
            square += (x * x).sum(axis=1)
        C[m, n] = tw.where(tw.positions(m)[:, None] >= tw.positions(n), acc, 0) + square[:, None]


@tw.kernel(A="M K", B="N K", C="M N")
def beside_masked_operand(A, B, C):
    """A sum of rows needs steps that the other operand's mask leaves out."""
    for m, n in tw.tiles(C):
        acc, square = tw.zeros(), tw.zeros((n,), tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += tw.where(tw.positions(k) <= tw.positions(m)[:, None], A[m, k], 0) @ B[n, k].T
            x = B[n, k].to(tw.f32)
            square += (x * x).sum(axis=1)
        C[m, n] = acc + square


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kernel", [beside_masked_result, beside_masked_operand])
def test_masks_leave_out_nothing_that_is_added_up(kernel, target):
    rng = np.random.default_rng(4)
    a, b = (rng.standard_normal((rows, 150)).astype(np.float16) for rows in (70, 90))
    c = np.full((70, 90), np.nan, np.float32)
    ran = kernel(a, b, c, target=target)
    assert ran.target == target
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    if kernel is beside_masked_result:
        wanted = np.tril(wide_a @ wide_b.T) + (wide_a**2).sum(axis=1)[:, None]
    else:
        wanted = np.tril(wide_a) @ wide_b.T + (wide_b**2).sum(axis=1)
    bound = 2e-5 * (abs(wide_a) @ abs(wide_b.T) + (wide_a**2).sum(axis=1)[:, None] + (wide_b**2).sum(axis=1))
    assert (abs(c - wanted) <= bound).all()


@pytest.mark.parametrize("name", KERNELS)
def test_tables_of_measured_schedules_know_a_class(name):
    """A machine with a table asks for the class of every problem."""
    made = [tw.like("bf16", array.shape) for array in _shapes(name, (1024, 512, 256, 64))]
    asked = KERNELS[name].bind().question(*made, eps=0.5, target="cuda", arch="sm_90a")
    measured = MeasuredSchedule(class_of(asked), extents_of(asked), choose(asked), 1.0, 1.0, 1)
    table = ScheduleTable(Version("", "", "sm_90a", "a GPU", 132), (measured,))
    assert next(table.nearest(asked)) is measured
    assert chosen(asked, table) == measured.schedule
