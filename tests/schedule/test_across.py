"""Reductions across tiles: sums, extrema and softmax statistics of rows and columns longer than a tile."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.ir.async_ops import RoleBarrier
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.runtime.gpu_memory import device_get, device_put
from tilewright.schedule.form import Form, form_of, reduced_in_parts
from tilewright.schedule.resources import ScheduleOnMachine
from tilewright.schedule.schedule import Schedule
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.target import CUDA

from .small import CASES

pytestmark = pytest.mark.in_turns(3)

ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
Array = np.ndarray[Any, Any]


@tw.kernel(A="B M K", W="K N", bias="N", D="B M N", top="B M", total="B M", least="B N", mean="B N")
def statistics(A, W, bias, D, top, total, least, mean, *, stores):
    """A product, the row statistics that a softmax needs, and the least and the mean of its columns."""
    for b, m, n in tw.tiles(D):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[b, m, k] @ W[k, n]
        scores = acc + bias[n]
        high = scores.max(axis=1)
        if stores:
            D[b, m, n] = scores
        top[b, m] = high
        total[b, m] = tw.log(tw.exp(scores - high[:, None]).sum(axis=1)) + high
        least[b, n] = scores.min(axis=0)
        mean[b, n] = scores.sum(axis=0) * 0.5


NAMES = ("A", "W", "bias", "D", "top", "total", "least", "mean")
SCHEDULES = {
    "direct": replace(CASES["direct"].schedule, epilogue="direct"),
    "staged": CASES["cp_async, staged"].schedule,
    "ping-pong": CASES["ping-pong, overlapped"].schedule,
    "cooperative": CASES["cooperative, overlapped"].schedule,
    "split": CASES["split"].schedule,
}


def arrays(shape: tuple[int, int, int, int], kind: str = "f16", seed: int = 0) -> dict[str, Array]:
    """Return random operands, and poisoned results."""
    b, m, n, k = shape
    rng = np.random.default_rng(seed)
    shapes = {"A": (b, m, k), "W": (k, n), "bias": (n,)}
    made = {name: rng.standard_normal(one).astype(tw.dtype(kind).numpy) for name, one in shapes.items()}
    extents = {"D": (b, m, n), "top": (b, m), "total": (b, m), "least": (b, n), "mean": (b, n)}
    return made | {name: np.full(one, 7.7e7, np.float32) for name, one in extents.items()}


def compared(given: dict[str, Array], ran: Any, stores: bool = True) -> None:
    stored = {name: given[name] for name in NAMES[3:] if stores or name != "D"}
    kept = {name: given[name] for name in NAMES[:3]} | ({} if stores else {"D": given["D"]})
    flow = statistics.bind(stores=stores).flow(*given.values())
    schedule = ran.schedule
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    compare_flow(flow, stored, kept, how=how).raise_if_wrong()


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_element_under_every_partition(name: str) -> None:
    """There are several tiles along rows and columns, ragged extents, and no races."""
    schedule = replace(SCHEDULES[name], across=True, cluster=(1, 1))
    m, n, _ = schedule.tile
    given = arrays((1 if schedule.roles != "none" else 2, m + 5, n + 9, 24))
    bound = statistics.bind(schedule=schedule, stores=True)
    ran = bound(*given.values(), target="reference")
    assert ran.schedule.across
    compared(given, ran)
    report = bound.check(*given.values())
    assert report.is_clean, report


@ON_ALL
def test_long_rows_are_reduced_across_tiles_by_themselves(target: str) -> None:
    given = arrays((1, 40, 300, 16), "f32")
    there = {name: device_put(one, target) for name, one in given.items()}
    found = []
    for _ in range(2):
        ran = statistics.bind(stores=True)(*there.values(), target=target)
        assert (ran.target, ran.schedule.across) == (target, True)
        found.append({name: device_get(there[name]).copy() for name in NAMES[3:]})
    assert all(np.array_equal(found[0][name], found[1][name]) for name in found[0]), (
        "the same bits at each run"
    )
    compared(given | found[0], ran)


def test_nothing_else_need_be_stored() -> None:
    given = arrays((1, 20, 260, 8), "f32")
    before = given["D"].copy()
    ran = statistics.bind(stores=False)(*given.values(), target="reference")
    compared(given, ran, stores=False)
    assert np.array_equal(given["D"], before)


@ON_ALL
def test_stretches_of_minus_infinity_add_nothing_to_rows_that_have_more(target: str) -> None:
    """A vocabulary's first tiles, last tiles, or all but the end of the last are masked or padded."""
    for masked in (slice(0, 260), slice(40, 300), slice(0, 299)):
        given = arrays((1, 40, 300, 16), "f32")
        given["bias"][masked] = -np.inf
        there = {name: device_put(one, target) for name, one in given.items()}
        ran = statistics.bind(stores=True)(*there.values(), target=target)
        assert ran.schedule.across
        with np.errstate(all="ignore"):
            scores = given["A"][0].astype(np.float64) @ given["W"] + given["bias"]
        seen = np.isfinite(given["bias"])
        assert (
            np.abs(device_get(there["total"])[0] - np.logaddexp.reduce(scores[:, seen], axis=1)).max() < 1e-4
        )
        assert np.abs(device_get(there["top"])[0] - scores.max(1)).max() < 1e-4


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_tile_of_minus_infinity_under_every_partition(name: str) -> None:
    schedule = replace(SCHEDULES[name], across=True, cluster=(1, 1))
    m, n, _ = schedule.tile
    given = arrays((1, m, 2 * n + 9, 24))
    given["bias"][n:] = -np.inf
    statistics.bind(schedule=schedule, stores=True)(*given.values(), target="reference")
    scores = given["A"][0].astype(np.float64) @ given["W"][:, :n] + given["bias"][:n]
    assert np.abs(given["total"][0] - np.logaddexp.reduce(scores, axis=1)).max() < 1e-2


def test_the_logarithm_of_a_row_whose_maximum_is_infinite_is_nan() -> None:
    given = arrays((1, 3, 300, 8), "f32")
    given["bias"][100:] = -np.inf
    given["A"][0, 0] = given["W"][0, 50] = np.inf
    with np.errstate(all="ignore"):
        statistics.bind(stores=True)(*given.values(), target="reference")
        assert np.isnan(given["total"][0, 0])
        given["bias"][:] = -np.inf
        given["W"][0, 50] = given["A"][0, 0] = 0
        statistics.bind(stores=True)(*given.values(), target="reference")
    assert np.isnan(given["total"]).all()
    assert np.isneginf(given["top"]).all()


def test_rows_without_finite_numbers_and_without_elements() -> None:
    given = arrays((1, 5, 300, 8), "f32")
    given["A"][0, 1] = np.inf
    given["A"][0, 2] = np.nan
    given["bias"][3] = -np.inf
    statistics.bind(stores=True)(*given.values(), target="reference")
    with np.errstate(all="ignore"):
        scores = given["A"][0].astype(np.float64) @ given["W"] + given["bias"]
        assert np.array_equal(np.isnan(given["top"][0]), np.isnan(scores.max(1)))
    assert np.isfinite(given["total"][0, [0, 3, 4]]).all()
    empty = arrays((1, 5, 300, 0), "f32")
    statistics.bind(stores=True)(*empty.values(), target="reference")
    assert np.array_equal(empty["top"][0], np.full(5, empty["bias"].max()))


@pytest.mark.parametrize("name", ["cooperative", "ping-pong"])
def test_formulas_say_what_the_kernel_takes(name: str) -> None:
    schedule = replace(SCHEDULES[name], across=True, cluster=(1, 1))
    given = arrays((1, 300, 600, 64))
    bound = statistics.bind(schedule=schedule, stores=True)
    made = bound.compile(*given.values(), target="cuda", arch="sm_90a")
    assert made.schedule == schedule
    question = bound.question(*given.values(), target="reference")
    case = ScheduleOnMachine(schedule, question.form, question.specs, CUDA.architecture("sm_90a"))
    assert made.resources["spill_store_bytes"] == 0
    assert made.resources["shared_bytes"] == case.shared_bytes


def test_what_tiles_do_not_know_is_refused() -> None:
    @tw.kernel(A="M K", B="N K", C="M N")
    def softmax(A, B, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            power = tw.exp(acc - acc.max(axis=1)[:, None])
            C[m, n] = power / power.sum(axis=1)[:, None]

    a, b, c = (np.zeros(shape, np.float16) for shape in ((8, 16), (600, 16), (8, 600)))
    schedule: Schedule = replace(SCHEDULES["staged"], across=True)
    with pytest.raises(tw.ScheduleError, match="may only store each reduction along one dimension"):
        softmax.bind(schedule=schedule)(a, b, c, target="reference")
    given = arrays((1, 8, 600, 16))
    schedule = replace(SCHEDULES["cooperative"], across=True, cluster=(2, 1))
    with pytest.raises(tw.ScheduleError, match=r"across=True with cluster=\(2, 1\)"):
        statistics.bind(schedule=schedule, stores=True)(*given.values(), target="reference")


def flow_of_powers(power: Callable[[Any, Any], Any]) -> Form:
    """Return the form of a product with the maximum of its rows, and a sum of powers of both."""

    def powers(A, B, C, top, total):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
            high = acc.max(axis=1)
            C[m, n] = acc
            top[m] = high
            total[m] = power(acc, high[:, None]).sum(axis=1)

    dims = {"A": "M K", "B": "N K", "C": "M N", "top": "M", "total": "M"}
    matrix = TensorSpec(tw.f32, 2, 1, (16, 16), (16, 1), 16, False)
    row = TensorSpec(tw.f32, 1, 0, (16,), (1,), 16, False)
    specs = {name: matrix if " " in one else row for name, one in dims.items()}
    return form_of(Program(powers, dims).run(specs))


@pytest.mark.parametrize(
    ("power", "is_in_parts"),
    [
        (lambda x, high: tw.exp(x), True),
        (lambda x, high: tw.exp(x - high), True),
        (lambda x, high: tw.exp2(x - high), True),
        (lambda x, high: tw.exp(x + high), False),
        (lambda x, high: tw.exp(x * high), False),
        (lambda x, high: tw.exp(high - x), False),
        (lambda x, high: tw.sqrt(x - high), False),
    ],
)
def test_a_sum_above_a_maximum_is_made_of_parts_where_a_difference_of_maxima_scales_it(
    power: Callable[[Any, Any], Any], is_in_parts: bool
) -> None:
    assert len(reduced_in_parts(flow_of_powers(power))) == (2 if is_in_parts else 0)


@pytest.mark.parametrize("name", ["ping-pong", "cooperative"])
def test_groups_of_warps_meet_at_barriers_of_their_own(name: str) -> None:
    """If two groups shared a number, warps of one would continue for those of the other."""
    schedule = replace(SCHEDULES[name], across=True)
    kernel = statistics.bind(schedule=schedule, stores=True).trace(*arrays((2, 128, 256, 64)).values())
    numbers = {op.number for op in kernel.walk() if isinstance(op, RoleBarrier)}
    named = {sym for number in numbers for sym in symbols(number)}
    assert schedule.groups == 2
    assert numbers
    first, second = (
        {substitute(number, dict.fromkeys(named, group)) for number in numbers} for group in range(2)
    )
    assert not first & second
