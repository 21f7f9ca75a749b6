"""Products of products, whose inner product fits a tile and shares the loop of another one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.problems.flow_problems import INNER, low_rank

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.schedule import rings
from tilewright.schedule.bulk import Consumer
from tilewright.schedule.form import Form, form_of
from tilewright.schedule.inner import InnerPlan
from tilewright.schedule.resources import ScheduleOnMachine

from .computing import compared, padded
from .forms import FORMS, HOPPER

pytestmark = pytest.mark.in_turns(3)

SCHEDULES = {
    name: replace(one, promote=0, width=32) for name, one in FORMS.items() if not (one.bypass or one.promote)
} | {
    "narrower": replace(FORMS["cooperative"], width=16),
    "wider": replace(FORMS["cp_async"], width=80),
    "overlapped": replace(FORMS["cooperative"], width=48, epilogue="overlapped"),
    "cluster": replace(FORMS["cooperative"], width=32, cluster=(2, 1), blocks=4),
    "balanced": replace(FORMS["registers"], width=32, balanced=True),
    "multiply-adds": tw.Schedule(
        tw.atoms.fma("f16", "f32", each=(2, 4), paired=True), (32, 32, 16), (2, 1), width=24
    ),
}
del SCHEDULES["fragments"]
SHAPE = (130, 72, 200, 16)


def arrays(name: str, shape: tuple[int, ...], dtype: Any = np.float16) -> dict[str, Any]:
    extents = dict(zip("MNKR", shape, strict=True))
    return padded(INNER[name], {**extents, "Q": extents["R"] // 2 + 1}, dtype, result="Y")


def computed(
    name: str, schedule: tw.Schedule | None, shape: tuple[int, ...], target: str, dtype: Any = np.float16
) -> tuple[Any, ...]:
    numbers = {"s": -0.75} if "s" in [one.name for one in INNER[name].program.parameters] else {}
    bound = INNER[name].bind(schedule=schedule)
    return numbers, *compared(bound, arrays(name, shape, dtype), ["Y"], target, **numbers)


def form(name: str) -> Form:
    """Return the form of a kernel."""
    made = arrays(name, SHAPE)
    numbers = {"s": 2.0} if "s" in [one.name for one in INNER[name].program.parameters] else {}
    return form_of(INNER[name].flow(*made.values(), **numbers))


@pytest.mark.parametrize(
    ("name", "loops", "totals", "side"),
    [
        ("low_rank", [(1, 1, 2), (1, 0, 1)], 1, 0),
        ("low_rank_after", [(1, 1, 2), (1, 0, 1)], 2, 0),
        ("low_rank_right", [(1, 2, 1), (1, 1, 0)], 1, 1),
        ("low_rank_pair", [(2, 1, 4), (1, 0, 1), (1, 0, 1)], 2, 0),
        ("low_rank_apart", [(0, 1, 1), (1, 1, 1), (1, 0, 1)], 1, 0),
    ],
)
def test_an_inner_product_shares_the_loop_of_its_operand(
    name: str, loops: list[tuple[int, int, int]], totals: int, side: int
) -> None:
    found = form(name)
    assert sorted((len(one.products), len(one.rows_m), len(one.rows_n)) for one in found.loops) == sorted(
        loops
    )
    assert (len(found.totals), {one.side for one in found.inner}) == (totals, {side})
    assert [one.reads_inner for one in found.loops][-1]
    assert {one.side for one in found.arranged(True).inner} == {1 - side}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_reference_computes_them_under_every_form(schedule: str) -> None:
    _, ran, *_ = computed("low_rank", SCHEDULES[schedule], SHAPE, "reference")
    case = ScheduleOnMachine(ran.schedule, form("low_rank"), ran.specs, HOPPER)
    assert ran.kernel.shared_bytes == case.shared_bytes


@pytest.mark.parametrize("name", [one for one in INNER if one != "low_rank"])
@pytest.mark.parametrize("schedule", ["cp_async", "wgmma, cp_async", "ping-pong", None])
def test_other_forms(name: str, schedule: str | None) -> None:
    asked = None if schedule is None else SCHEDULES[schedule]
    if asked is not None and name == "low_rank_right":
        asked = replace(asked, swap_ab=True)
    computed(name, asked, SHAPE, "reference")


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (33, 40, 0, 5), (33, 40, 70, 0), (70, 9, 130, 64)])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_ragged_extents(shape: tuple[int, ...], target: str) -> None:
    for dtype in (np.float16, np.float32):
        computed("low_rank", None, shape, target, dtype)


@pytest.mark.parametrize("name", INNER)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_the_cpu_computes_them(name: str, dtype: Any) -> None:
    computed(name, None, (61, 150, 140, 11), "cpu", dtype)


@pytest.mark.parametrize("lost", ["A", "B", "s"])
def test_a_product_that_is_lost_is_found(lost: str) -> None:
    numbers, ran, stored, given, how = computed("low_rank", SCHEDULES["cooperative"], SHAPE, "reference")
    given = {name: np.zeros_like(array) if name == lost else array for name, array in given.items()}
    numbers = {"s": 1.0} if lost == "s" else numbers
    assert not compare_flow(ran.flow, stored, given, numbers, how).ok


# ---------------------------------------------------------------- hazards


def without_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The warps do not wait until all have read, or written, the operand."""
    monkeypatch.setattr(rings.WholeBlock, "meet", lambda self, work: None)
    monkeypatch.setattr(Consumer, "meet", lambda self, work: None)


def without_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns that no sum has keep what was in shared memory before."""
    monkeypatch.setattr(InnerPlan, "clear", lambda self, group: None)


def without_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrix unit reads writes of threads that no fence has made visible."""
    monkeypatch.setattr("tilewright.schedule.bulk.fence_async", lambda *where: None)


@pytest.mark.parametrize(
    ("mutant", "schedule"),
    [
        (without_meeting, "cooperative"),
        (without_meeting, "ping-pong"),
        (without_zeros, "wgmma, cp_async"),
        (without_zeros, "cooperative"),
        (without_fence, "cooperative"),
    ],
)
def test_the_checker_finds_mutants(mutant: Any, schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dims = {one.name: " ".join(one.dims) if one.dims else tw.f32 for one in low_rank.program.parameters}
    kernel = tw.kernel(**dims)(low_rank.program.function)  # which no other test has traced
    mutant(monkeypatch)
    made = arrays("low_rank", SHAPE).values()
    assert kernel.bind(schedule=SCHEDULES[schedule]).check(*made, 0.5).findings


@pytest.mark.parametrize("schedule", ["cp_async", "cooperative", "ping-pong", "cluster", "multiply-adds"])
def test_the_checker_has_no_findings(schedule: str) -> None:
    made = arrays("low_rank", SHAPE).values()
    assert not low_rank.bind(schedule=SCHEDULES[schedule]).check(*made, 0.5, outputs=("Y",)).findings


# ---------------------------------------------------------------- what compiles, and what is refused


@pytest.mark.parametrize(
    ("arch", "dtype", "rank"),
    [
        ("sm_90a", "bf16", 16),
        ("sm_90a", "f16", 64),
        ("sm_80", "bf16", 64),
        ("sm_80", "f32", 16),
        ("sm_90a", "f64", 8),
        ("gfx942", "bf16", 16),
        ("gfx1100", "f16", 32),
        ("gfx90a", "f32", 64),
    ],
)
def test_what_is_chosen_compiles_on_every_architecture(arch: str, dtype: str, rank: int) -> None:
    made = [tw.like(dtype, array.shape) for array in arrays("low_rank", (4096, 4096, 4096, rank)).values()]
    target = "cuda" if arch.startswith("sm") else "hip"
    kernel = low_rank.compile(*made, 0.5, target=target, arch=arch)
    spilled = ("spill_store_bytes", "spilled_registers", "stack_bytes", "serialized_wgmma")
    assert not any(kernel.resources.get(name) for name in spilled), kernel.resources
    if (arch, dtype) == ("sm_90a", "bf16"):
        assert (kernel.schedule.atom, kernel.schedule.width) == (tw.atoms.wgmma("bf16", 256), 16)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"width": 0}, r"width=0; low is an operand .* multiples of 16 up to 64\n.*width=16"),
        ({"width": 24}, r"width=24; .*\n.*width=32"),
        ({"width": 80}, r"width=80; .* up to 64\n.*width=64"),
        ({"split_k": 2, "blocks": 0, "epilogue": "direct"}, r"low is .*divide K.*\n.*split_k=1"),
        ({"swap_ab": True}, r"as operand B; a schedule computes it as operand A only\n.*swap_ab=False"),
        ({"cluster": (1, 2)}, r"no operand A that blocks along N share\n.*cluster=\(1, 1\)"),
        ({"promote": 2}, r"promote=2 would promote its sums, too\n.*promote=0"),
    ],
)
def test_schedules_that_are_refused(change: dict[str, Any], says: str) -> None:
    with pytest.raises(tw.ScheduleError, match=says):
        computed("low_rank", replace(SCHEDULES["cooperative"], **change), SHAPE, "reference")


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("rank", "width"), [(17, 48), (33, 48), (96, 96)])
def test_the_loop_along_an_inner_product_has_one_step(rank: int, width: int, target: str) -> None:
    """A second step would multiply infinite sums by the zeros past the last column, which gives NaN."""
    given = arrays("low_rank_after", (5, 6, 7, rank), np.float32)
    given = {one: np.abs(array) for one, array in given.items()}
    given["A"][1, 2] = np.inf
    schedule = tw.Schedule(tw.atoms.fma("f32"), (32, 32, 32), (2, 2), width=width)
    kernel = INNER["low_rank_after"].bind(schedule=schedule if target == "reference" else None)
    assert kernel(**given, s=0.5, target=target).target == target
    assert (given["Y"] == np.inf).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_several_operands_follow_from_one_product(target: str) -> None:
    """Each is written by its own function of the sums."""

    @tw.kernel(X="M K", W="N K", A="R K", B="N R", C="N R", Y="M N")
    def bent(X, W, A, B, C, Y):
        for m, n in tw.tiles(Y):
            acc, low = tw.zeros(), tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
                low += X[m, k] @ A[:, k].T
            x = low.to(X.dtype)
            Y[m, n] = acc + x @ B[n].T - (low * low).to(X.dtype) @ C[n].T + x @ C[n].T

    rng = np.random.default_rng(3)
    x, w, a, b, c, y = (
        rng.integers(-2, 3, shape).astype(np.float32)
        for shape in ((5, 9), (7, 9), (3, 9), (7, 3), (7, 3), (5, 7))
    )
    ran = bent(x, w, a, b, c, y, target=target)
    assert ran.target == target
    assert len(form_of(ran.flow).inner) == 2
    low = x @ a.T
    assert (y == x @ w.T + low @ b.T - low**2 @ c.T + low @ c.T).all()


def test_fragments_are_refused_and_more_columns_than_a_tile() -> None:
    parts = replace(FORMS["fragments"], width=32)
    with pytest.raises(tw.ScheduleError, match=r"and not from registers\n.*cp_async"):
        computed("low_rank", parts, SHAPE, "reference")
    with pytest.raises(tw.LaunchError, match="r must be at most 32: one tile of the schedule covers it"):
        computed("low_rank", SCHEDULES["cp_async"], (64, 64, 64, 33), "reference")


def test_more_columns_than_any_tile_has() -> None:
    says = r"low is an operand .*width=16, or a kernel of its own for low, if it has more columns"
    with pytest.raises(tw.ScheduleError, match=f"(?s){says}"):
        computed("low_rank", None, (16, 16, 16, 300), "reference")


@pytest.mark.parametrize("orders", ["CCFC", "CFCF", "CFFC", "FFFF"])
@pytest.mark.parametrize(("target", "arch"), [("hip", "gfx942"), ("hip", "gfx1100"), ("cuda", "sm_80")])
def test_operands_that_are_contiguous_along_their_rows(target: str, arch: str, orders: str) -> None:
    """Registers may transpose an operand of the result, and not that of the inner product."""
    given = arrays("low_rank", (27, 197, 30, 13))
    rng = np.random.default_rng(2)
    for order, name in zip(orders, "XWAB", strict=True):
        given[name] = np.asarray(rng.integers(-2, 3, given[name].shape), np.float16, order=order)  # type: ignore[call-overload]
    made = low_rank.bind().schedule_for(**given, s=1.0, target=target, arch=arch)
    bound = low_rank.bind().under(made)
    assert bound.compile(**given, s=1.0, target=target, arch=arch).arch == arch
    if arch != "gfx942":  # whose waves have 64 lanes
        bound(**given, s=1.0, target="reference")
        x, w, a, b = (given[name].astype(np.float64) for name in "XWAB")
        exact = x @ w.T + (x @ a.T) @ b.T
        assert (given["Y"] == exact.astype(np.float16)).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "gfx942"])
@pytest.mark.parametrize("rank", [300, 384, 1024])
def test_more_columns_than_a_gpu_multiplies_are_refused(rank: int, arch: str) -> None:
    """Also columns of which no instruction of Hopper has as many."""
    made = [tw.like("f16", array.shape) for array in arrays("low_rank", (2048, 2048, 1024, rank)).values()]
    says = "low is an operand .* or a kernel of its own for low, if it has more columns"
    with pytest.raises(tw.ScheduleError, match=f"(?s){says}"):
        low_rank.bind().schedule_for(*made, 0.5, target="cuda" if arch[0] == "s" else "hip", arch=arch)


def test_operands_that_no_schedule_computes() -> None:
    @tw.kernel(X="M K", W="N K", A="R K", B="R K", Y="M N")
    def of_both_sides(X, W, A, B, Y):
        for m, n in tw.tiles(Y):
            acc, low, right = tw.zeros(), tw.zeros(), tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
                low += X[m, k] @ A[:, k].T
                right += B[:, k] @ W[n, k].T
            Y[m, n] = acc + low.to(X.dtype) @ right.to(X.dtype)

    ones = np.ones((8, 8), np.float32)
    with pytest.raises(tw.TraceError, match=r"low is a left .* of its own for right"):
        of_both_sides(*(ones,) * 4, ones.copy(), target="reference")

    @tw.kernel(X="M K", W="N K", A="R K", B="N R", b="R", Y="M N")
    def with_an_array(X, W, A, B, b, Y):
        for m, n in tw.tiles(Y):
            acc, low = tw.zeros(), tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
                low += X[m, k] @ A[:, k].T
            Y[m, n] = acc + (low + b).to(X.dtype) @ B[n].T

    @tw.kernel(X="M K", W="N K", A="R K", B="N R", Y="M N")
    def without_conversion(X, W, A, B, Y):
        for m, n in tw.tiles(Y):
            acc, low = tw.zeros(), tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ W[n, k].T
                low += X[m, k] @ A[:, k].T
            Y[m, n] = acc + low @ B[n].T

    x, w, a, b, y = arrays("low_rank", SHAPE).values()
    with pytest.raises(tw.TraceError, match="follows from a product and from arrays; nearest legal choice"):
        with_an_array(x, w, a, b, np.zeros(SHAPE[3], np.float32), y, target="reference")
    with pytest.raises(tw.TraceError, match=r"a product of .* in f32 .* f16|to\(tw.f16\)"):
        without_conversion(x, w, a, b, y, target="reference")


@pytest.mark.gpu
@pytest.mark.parametrize("schedule", [None, *SCHEDULES])
@pytest.mark.parametrize("name", INNER)
def test_a_gpu_computes_them(name: str, schedule: str | None) -> None:
    asked = SCHEDULES.get(schedule or "")
    if asked is not None and name == "low_rank_right":
        asked = replace(asked, swap_ab=True)
    computed(name, asked, SHAPE, "cuda")
