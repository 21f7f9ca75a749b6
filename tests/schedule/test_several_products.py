"""Flows of several products: operands are loaded once, and products add to totals."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.schedule.choice import choose
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import reasons
from tilewright.schedule.question import coarse
from tilewright.schedule.resources import ScheduleOnMachine

from .computing import compared
from .forms import FORMS, HOPPER

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(Ar="M K", Ai="M K", Br="N K", Bi="N K", Cr="M N", Ci="M N")
def planar(Ar, Ai, Br, Bi, Cr, Ci):
    """Complex numbers with real and imaginary parts in separate arrays."""
    for m, n in tw.tiles(Cr):
        re, im = tw.zeros(), tw.zeros()
        for k in tw.steps(Ar.shape[1]):
            re += Ar[m, k] @ Br[n, k].T
            re -= Ai[m, k] @ Bi[n, k].T
            im += Ar[m, k] @ Bi[n, k].T
            im += Ai[m, k] @ Br[n, k].T
        Cr[m, n] = re
        Ci[m, n] = im


@tw.kernel(Ah="M K", Al="M K", Bh="N K", Bl="N K", bias="N", C="M N")
def in_parts(Ah, Al, Bh, Bl, bias, C):
    """High and low parts of numbers, without the product of both low parts."""
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(Ah.shape[1]):
            acc += Al[m, k] @ Bh[n, k].T
            acc += Ah[m, k] @ Bl[n, k].T
            acc += Ah[m, k] @ Bh[n, k].T
        C[m, n] = acc + bias[n]


@tw.kernel(A="M K", B="N K", G="N K", R="M N", C="M N")
def gated(A, B, G, R, C):
    """One product gates the other, and an array is subtracted."""
    for m, n in tw.tiles(C):
        up, gate = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            up += A[m, k] @ B[n, k].T
            gate += A[m, k] @ G[n, k].T
        C[m, n] = tw.sigmoid(gate) * up - R[m, n]


@tw.kernel(A="M K", B="N K", G="N K", C="M N")
def difference(A, B, G, C):
    """The sums are subtracted, not the products in the loop."""
    for m, n in tw.tiles(C):
        one, other = tw.zeros(), tw.zeros()
        for k in tw.steps(A.shape[1]):
            one += A[m, k] @ B[n, k].T
            other += A[m, k] @ G[n, k].T
        C[m, n] = one - other


KERNELS = {"planar": planar, "in parts": in_parts, "gated": gated, "difference": difference}
PLANS = {
    "planar": (2, 2, 2, [(0, 0, 0, False), (1, 1, 0, True), (0, 1, 1, False), (1, 0, 1, False)]),
    "in parts": (2, 2, 1, [(0, 0, 0, False), (1, 1, 0, False), (1, 0, 0, False)]),
    "gated": (1, 2, 2, [(0, 0, 0, False), (0, 1, 1, False)]),
    "difference": (1, 2, 1, [(0, 0, 0, False), (0, 1, 0, True)]),
}
SCHEDULES = {name: replace(schedule, promote=0) for name, schedule in FORMS.items()} | {
    "promoted": FORMS["cooperative, promoted"],
    "swapped": replace(FORMS["cooperative"], swap_ab=True),
}


def arrays(name, shape, dtype, seed=0):
    """Return random operands with odd row strides, and results of NaN."""
    m, n, k = shape
    rng = np.random.default_rng(seed)
    sizes = {"M K": (m, k), "N K": (n, k), "M N": (m, n), "N": (n,)}
    made = {}
    for parameter in KERNELS[name].program.parameters:
        size = sizes[" ".join(parameter.dims)]
        whole = np.full((*size[:-1], size[-1] + 8), np.nan, dtype)
        made[parameter.name] = whole[..., :-8]
        if not parameter.name.startswith("C"):
            made[parameter.name][...] = rng.standard_normal(size)
    return made


def computed(name, schedule, shape, target, dtype=np.float16):
    made = arrays(name, shape, dtype)
    results = [one for one in made if one.startswith("C")]
    return compared(KERNELS[name].bind(schedule=schedule), made, results, target)


@pytest.mark.parametrize("name", KERNELS)
def test_operands_are_loaded_once_and_totals_added_up_together(name):
    made = arrays(name, (8, 8, 8), np.float16)
    form = form_of(KERNELS[name].flow(*made.values()))
    rows_m, rows_n, totals, products = PLANS[name]
    assert (len(form.rows_m), len(form.rows_n), len(form.totals)) == (rows_m, rows_n, totals)
    # In the order in which the values are computed.
    found = [(one.a, one.b, one.total, one.negative) for one in form.products]
    assert sorted(found) == sorted(products)
    turned = form.arranged(True)
    assert [(one.b, one.a, one.total, one.negative) for one in turned.products] == found


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", KERNELS)
def test_the_reference_computes_them_under_every_form(name, schedule):
    chosen = SCHEDULES[schedule]
    m = 130 if chosen.tile[0] > 64 or chosen.blocks else 66  # two tiles, or more than blocks that take turns
    k = min((2 * chosen.stages + 1) * chosen.block_k - 24, 200)  # a ring comes round twice, where it is short
    computed(name, chosen, (m, 72, k), "reference")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", KERNELS)
def test_the_cpu_computes_them(name, dtype):
    computed(name, None, (70, 61, 150), "cpu", dtype)


@pytest.mark.parametrize("lost", ["Ai", "Br"])
def test_a_product_that_is_lost_is_found(lost):
    ran, stored, given, how = computed("planar", SCHEDULES["cooperative"], (64, 64, 72), "reference")
    given = {name: np.zeros_like(array) if name == lost else array for name, array in given.items()}
    assert not compare_flow(ran.flow, stored, given, how=how).ok


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("schedule", ["cp_async", "fragments", "cooperative", "ping-pong", "swapped"])
def test_they_compile_and_take_what_is_said(name, schedule):
    made = [tw.like(tw.f16, array.shape) for array in arrays(name, (256, 256, 256), np.float16).values()]
    bound = KERNELS[name].bind(schedule=SCHEDULES[schedule])
    question = bound.question(*made, target="cuda", arch="sm_90a")
    case = ScheduleOnMachine(SCHEDULES[schedule], question.form, question.specs, HOPPER)
    kernel = bound.compile(*made, target="cuda", arch="sm_90a")
    assert kernel.resources["spill_store_bytes"] == kernel.resources["stack_bytes"] == 0
    assert kernel.resources["shared_bytes"] == case.shared_bytes


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", KERNELS)
def test_a_gpu_computes_them(name, schedule):
    computed(name, SCHEDULES.get(schedule), (130, 72, 200), "cuda")


def test_products_of_other_dtypes_are_refused():
    @tw.kernel(A="M K", B="N K", P="M K", Q="N K", C="M N")
    def mixed(A, B, P, Q, C):
        for m, n in tw.tiles(C):
            one, other = tw.zeros(), tw.zeros()
            for k in tw.steps(A.shape[1]):
                one += A[m, k] @ B[n, k].T
                other += P[m, k] @ Q[n, k].T
            C[m, n] = one * other

    wide = np.ones((8, 8), np.float32)
    a, c = np.ones((8, 8), np.float16), np.empty((8, 8), np.float16)
    with pytest.raises(tw.TraceError, match="one instruction must multiply them all"):
        mixed(a, a, wide, wide, c, target="reference")


def asked(name, dtype, arch, shape):
    """Return the question of a large problem."""
    m, n, k = shape
    sizes = {"M K": (m, k), "N K": (n, k), "M N": (m, n), "N": (n,)}
    made = [tw.like(dtype, sizes[" ".join(one.dims)]) for one in KERNELS[name].program.parameters]
    question = KERNELS[name].bind().question(*made, target="cuda", arch=arch)
    return made, replace(question, extents=shape, processors=132)


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(4096, 4096, 4096), (1000, 2000, 272), (33, 100, 150)])
def test_what_is_chosen_is_legal(name, shape):
    for dtype in ("f16", "f32", "f64", "f8e4m3"):
        for arch in ("sm_80", "sm_90a"):
            question = asked(name, dtype, arch, shape)[1]
            schedule = choose(question)
            specs = {one: coarse(spec, question.arch) for one, spec in question.specs.items()}
            assert not [*reasons(schedule, question.form, specs, question.arch)]
            is_large = arch == "sm_90a" and dtype in ("f16", "f8e4m3") and shape[2] > 150
            assert (schedule.atom.instruction == "wgmma") == is_large


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_chosen_of_large_products_does_not_spill(name):
    made, question = asked(name, "f16", "sm_90a", (4096, 4096, 4096))
    kernel = KERNELS[name].bind(schedule=choose(question)).compile(*made, target="cuda", arch="sm_90a")
    assert kernel.resources["spill_store_bytes"] == kernel.resources["stack_bytes"] == 0


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_more_batch_items_than_an_axis_of_a_grid_has_blocks(arch):
    @tw.kernel(A="L M K", B="L M K", C="L N K", D="L M N")
    def both(A, B, C, D):
        for batch, m, n in tw.tiles(D):
            acc = tw.zeros()
            for k in tw.steps(A.shape[-1]):
                acc += A[batch, m, k] @ C[batch, n, k].T
                acc -= B[batch, m, k] @ C[batch, n, k].T
            D[batch, m, n] = acc

    made = [tw.like("f32", (70000, 16, 16))] * 4
    schedule = choose(replace(both.bind().question(*made, target="cuda", arch=arch), processors=132))
    assert schedule.blocks or schedule.batches > 1


def test_integers_that_are_subtracted_are_refused():
    @tw.kernel(A="M K", B="K N", C="M N")
    def less(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc -= A[m, k] @ B[k, n]
            C[m, n] = acc

    low = np.full((4, 4), -128, np.int8)
    with pytest.raises(tw.TraceError, match="lowest value cannot be negated"):
        less(low, low, np.empty((4, 4), np.int32), target="reference")
