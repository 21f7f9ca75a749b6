"""Prefix sums of tiles, of rows longer than a tile, and in loops of an author that carry the sum so far."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.problems.elementwise_problems import scan, scanned_in_parts

import tilewright as tw
from tilewright.arch import Arch
from tilewright.checking.flows import compare_flow
from tilewright.ir.ops import Barrier
from tilewright.lang import tile_arithmetic
from tilewright.schedule.folds import kept
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.legality import shared_bytes
from tilewright.targets.target import CUDA, HIP

U = tw.f32.unit_roundoff


@tw.kernel(A="M K", B="N K", C="M N")
def of_products(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc.cumsum(axis=1)


@tw.kernel(X="M N", C="M N")
def whole(X, C):
    for m in tw.tiles(C.shape[0]):
        C[m] = X[m].cumsum(axis=1)


@tw.kernel(X="N M", C="N M")
def by_a_loop(X, C):
    """Prefix sums along columns, whose factor decays: ``c_i = sum_j 2^(j - i) x_j`` for j up to i."""
    for m in tw.tiles(C.shape[1]):
        total = tw.zeros((m,), tw.f32)
        for n in tw.steps(X.shape[0]):
            place = tw.positions(n)
            behind = (place - place.min(axis=0)).to(tw.f32)
            grown = X[n, m] * tw.exp2(behind)[:, None]
            C[n, m] = (total + grown.cumsum(axis=0)) * tw.exp2(-behind)[:, None]
            length = (place.max(axis=0) - place.min(axis=0) + 1).to(tw.f32)
            total.assign((total + grown.sum(axis=0)) * tw.exp2(-length))


def fma(
    lanes: tuple[int, int], each: tuple[int, int], *tile: int, warps: int = 1, across: int = 1, **more: Any
) -> tw.Schedule:
    return tw.Schedule(tw.atoms.fma("f32", lanes=lanes, each=each), tile, (warps, across), **more)


WAYS = {
    "a lane has neighbours": fma((2, 16), (1, 4), 4, 64, 1),
    "two warps": fma((4, 8), (1, 1), 16, 8, 1, warps=2),
    "one step covers the row": fma((1, 32), (1, 2), 3, 192, 1),
    "lanes along rows": fma((32, 1), (1, 1), 32, 3, 1),
    "warps share rows": fma((1, 32), (1, 2), 1, 512, 1, across=4),
    "warps share some rows each": fma((4, 8), (1, 1), 8, 48, 1, warps=2, across=3),
}


@tw.kernel(X="M N", C="M N")
def from_the_end(X, C):
    for m in tw.tiles(C.shape[0]):
        C[m] = X[m].cumsum(axis=1, reverse=True)


@tw.kernel(A="M K", B="N K", X="N M", C="M N")
def weighted(A, B, X, C):
    """Sums to the last element of products, of an array in the other order, and of positions."""
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        place = tw.positions(n).to(tw.f32)
        C[m, n] = (acc * X[n, m].T + place).cumsum(axis=1, reverse=True) * (place + 1) - acc


@pytest.mark.parametrize("way", [*WAYS, None])
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_sums_to_the_last_element(way: str | None, target: str) -> None:
    """They are prefix sums of the reverse row: each element is within the bound of a sum in any order."""
    rng = np.random.default_rng(0)
    x, c = rng.standard_normal((21, 190), np.float32), np.full((21, 197), 777, np.float32)
    ran = from_the_end.bind(schedule=WAYS.get(way or ""))(x, c[:, :190], target=target)
    assert ran.target == target
    back = x.astype(np.float64)[:, ::-1]
    room = np.arange(190) * U * np.abs(back).cumsum(axis=1)
    assert (np.abs(c[:, 189::-1] - back.cumsum(axis=1)) <= room).all()
    assert (c[:, 190:] == 777).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_sums_to_the_last_element_of_products(target: str) -> None:
    rng = np.random.default_rng(1)
    a, b, x = (rng.standard_normal(shape, np.float32) for shape in ((21, 9), (77, 9), (77, 21)))
    c = np.full((21, 77), np.nan, np.float32)
    ran = weighted(a, b, x, c, target=target)
    assert ran.target == target
    assert compare_flow(ran.flow, {"C": c}, {"A": a, "B": b, "X": x, "C": c}).ok
    assert not compare_flow(ran.flow, {"C": c + np.float32(1)}, {"A": a, "B": b, "X": x, "C": c}).ok


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_schedule(way: str) -> None:
    """Each element is within the bound of a sum of its prefix in any order."""
    rng = np.random.default_rng(0)
    x, c = rng.standard_normal((21, 190), np.float32), np.full((21, 197), 777, np.float32)
    ran = whole.bind(schedule=WAYS[way])(x, c[:, :190], target="reference")
    assert (ran.target, ran.schedule) == ("reference", WAYS[way])
    wide = x.astype(np.float64)
    room = np.arange(190) * U * np.abs(wide).cumsum(axis=1)
    assert (np.abs(c[:, :190] - wide.cumsum(axis=1)) <= room).all()
    assert (c[:, 190:] == 777).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_integers_and_truth_values_are_counted_exactly(target: str) -> None:
    rng = np.random.default_rng(1)
    for kind, made in (("i1", "i4"), ("u8", "u8"), ("f8", "f8")):
        x = rng.integers(0, 100, (9, 150)).astype(kind)
        c = np.full((9, 150), 77, made)
        assert whole(x, c, target=target).target == target
        assert (c == x.cumsum(axis=1, dtype=made)).all()
    for shape in ((0, 4), (4, 0), (1, 1)):
        x, c = np.ones(shape, np.float32), np.full(shape, np.nan, np.float32)
        assert whole(x, c, target=target).target == target
        assert (c == 1).all()


def test_results_are_the_same_bits_in_every_run() -> None:
    rng = np.random.default_rng(2)
    x, made = rng.standard_normal((300, 700), np.float32), []
    for _ in range(2):
        made.append(np.full((300, 700), np.nan, np.float32))
        assert whole(x, made[-1], target="cpu").target == "cpu"
    assert made[0].tobytes() == made[1].tobytes()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_loop_of_an_author_and_products(target: str) -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((100, 17), np.float32)
    c = np.full((17, 100), np.nan, np.float32).T
    ran = by_a_loop.bind(schedule=fma((1, 1), (1, 4), 8, 16, 1))(x, c, target=target)
    assert ran.target == target
    found = compare_flow(ran.flow, {"C": c}, {"X": x, "C": c}, run=ran.schedule.tile[1])
    assert found.ok, found
    far = np.subtract.outer(np.arange(100.0), np.arange(100.0))
    right = np.where(far >= 0, 0.5 ** np.maximum(far, 0), 0) @ x.astype(np.float64)
    assert (np.abs(c - right) <= 200 * U * np.abs(x).max()).all()
    a, b, c = (rng.standard_normal(shape, np.float32) for shape in ((33, 20), (150, 20), (33, 150)))
    ran = of_products(a, b, c, target=target)
    assert ran.target == target
    assert compare_flow(ran.flow, {"C": c}, {"A": a, "B": b, "C": c}).ok


@pytest.mark.parametrize("run", [1, 7, 64])
def test_steps_of_any_length_have_one_meaning(run: int) -> None:
    """The flow prints, parses back, and its loops do not depend on the length of a step."""
    rng = np.random.default_rng(4)
    given = {name: rng.integers(-9, 9, (11, 50)).astype("f4") for name in "AC"} | {"y": np.empty(11, "f4")}
    flow = scan.flow(**given)
    looped = fold_form_of(flow).flow
    for one in (flow, looped):
        assert tw.ir.parse_flow(tw.ir.print_flow(one)) == one
    right = (given["A"] * given["C"]).cumsum(axis=1)
    for found in (tw.ir.evaluate(flow, given), tw.ir.evaluate(looped, given, run=run)):
        assert (found["C"] == right).all()
        assert (found["y"] == given["C"].sum(axis=1)).all()


def running(carried: str, state: str) -> tw.Kernel:
    """A loop that stores the running sums of rows: its step stores ``carried``, and keeps ``state``."""

    @tw.kernel(X="M N", C="M N")
    def of_steps(X, C):
        for m in tw.tiles(C.shape[0]):
            total = tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                x = X[m, n]
                seen = total + x.sum(axis=1)
                stored = {
                    "all": total[:, None] + x.cumsum(axis=1),
                    "own": x.cumsum(axis=1),
                    "means": seen[:, None] / (1 + tw.positions(n)).to(tw.f32),
                    "mass": x / x.sum(axis=1)[:, None],
                }
                C[m, n] = stored[carried]
                total.assign({"sum": seen, "last": x.sum(axis=1)}[state])

    return of_steps


@pytest.mark.parametrize(
    ("carried", "state", "is_right"),
    [
        ("all", "sum", True),
        ("own", "sum", False),  # the state is not added
        ("all", "last", False),  # right for two steps
        ("means", "sum", False),  # elements of a step that follow are added
        ("mass", "sum", False),
    ],
)
def test_check_finds_results_that_depend_on_the_length_of_a_step(
    carried: str, state: str, is_right: bool
) -> None:
    x, c = np.random.default_rng(8).standard_normal((6, 29), np.float32), np.zeros((6, 29), np.float32)
    kinds = {finding.kind.value for finding in running(carried, state).check(x, c).findings}
    assert kinds == (set() if is_right else {"result that depends on the length of a step"})
    assert not by_a_loop.check(x.T.copy(), c.T.copy()).findings
    for shape in ((6, 0), (0, 29), (6, 1)):  # nothing is stored, or in one step alone
        assert not running(carried, "sum").check(x[: shape[0], : shape[1]], np.zeros(shape, c.dtype)).findings


def test_scans_of_two_dtypes_have_memory_for_each() -> None:
    """The bytes of shared memory that legality counts are those of the kernel."""

    @tw.kernel(X="M N", C="M N", counts="M N")
    def masses(X, C, counts):
        for m, n in tw.tiles(C):
            C[m, n] = X[m, n].cumsum(axis=1)
            counts[m, n] = (X[m, n] > 0).cumsum(axis=1)

    x = np.random.default_rng(6).integers(-9, 9, (5, 150)).astype(np.float32)
    c, counts = np.full((5, 150), np.nan, np.float32), np.full((5, 150), 77, np.int32)
    for schedule, used in (
        (fma((4, 8), (1, 1), 4, 64, 1), 0),  # lanes exchange numbers of a warp
        (
            fma((4, 8), (1, 1), 4, 64, 1, across=2),
            128 + 4 * 2 * 4,
        ),  # a number for each row and warp; addresses are multiples of 128
    ):
        c[:], counts[:] = np.nan, 77
        ran = masses.bind(schedule=schedule)(x, c, counts, target="reference")
        assert (c == x.cumsum(axis=1)).all()
        assert (counts == (x > 0).cumsum(axis=1)).all()
        assert ran.kernel.shared_bytes == shared_bytes(schedule, fold_form_of(ran.flow)) == used


@tw.kernel(Q="M D", K="N D", V="N E", S="M N", O="M E")
def with_a_product(Q, K, V, S, O):
    """The loop also adds a product to accumulators with columns, which follow the loop."""
    for m, e in tw.tiles(O):
        total, acc = tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = Q[m] @ K[n].T
            S[m, n] = total[:, None] + s.cumsum(axis=1)
            total.assign(total + s.sum(axis=1))
            acc.assign(acc + s.to(V.dtype) @ V[n, e])
        O[m, e] = acc


MMA = tw.Schedule(tw.atoms.MMA_F16, (16, 16, 32), width=16, resident=True)


@pytest.mark.parametrize(("target", "schedule"), [("cpu", None), ("reference", None), ("reference", MMA)])
def test_a_loop_that_stores_and_adds_a_product(target: str, schedule: tw.Schedule | None) -> None:
    rng = np.random.default_rng(7)
    q, k, v = (rng.integers(-2, 3, shape).astype("f2") for shape in ((21, 30), (150, 30), (150, 40)))
    s, o = np.full((21, 150), np.nan, np.float32), np.full((21, 40), np.nan, np.float32)
    assert with_a_product.bind(schedule=schedule)(q, k, v, s, o, target=target).target == target
    scores = q.astype(np.float64) @ k.T.astype(np.float64)  # integers that f16 holds
    assert (s == scores.cumsum(axis=1)).all()
    assert (o == scores @ v.astype(np.float64)).all()


@tw.kernel(X="M N", C="M N", total="M")
def replacing(X, C, total):
    """The state has the elements that the results of each step replace."""
    for m in tw.tiles(total):
        so_far = tw.zeros((m,), tw.f32)
        for n in tw.steps(X.shape[1]):
            old = C[m, n]
            C[m, n] = X[m, n] + so_far[:, None]
            so_far.assign(so_far + old.sum(axis=1))
        total[m] = so_far


@pytest.mark.parametrize(("target", "way"), [("cpu", ""), ("reference", ""), ("reference", "two warps")])
def test_a_step_reads_before_it_stores(target: str, way: str) -> None:
    rng = np.random.default_rng(9)
    x, c = (rng.integers(-9, 9, (21, 397)).astype(np.float32) for _ in "xc")
    old, total = c.copy(), np.full(21, np.nan, np.float32)
    assert replacing.bind(schedule=PARTS.get(way))(x, c, total, target=target).target == target
    assert (total == old.sum(axis=1)).all()
    assert (c[:, 0] == x[:, 0]).all()  # the other elements depend on the length of a step


@tw.kernel(X="M N", C="M N")
def of_a_softmax(X, C):
    """The rows are reduced in two loops before their prefix sums."""
    for m, n in tw.tiles(C):
        e = tw.exp(X[m, n] - X[m, n].max(axis=1)[:, None])
        C[m, n] = (e / e.sum(axis=1)[:, None]).cumsum(axis=1)


def test_warps_of_64_lanes_on_a_machine_of_32_exchange_all_their_numbers() -> None:
    """All loops of a row, and its prefix sums, share the exchange memory."""
    x, c = np.random.default_rng(4).standard_normal((5, 700), np.float32), np.empty((5, 700), np.float32)
    schedule = fma((1, 64), (1, 2), 1, 512, 1, across=4)
    assert of_a_softmax.bind(schedule=schedule)(x, c, target="reference").schedule == schedule
    e = np.exp(x.astype(np.float64) - x.max(axis=1, keepdims=True))
    assert np.abs(c - (e / e.sum(axis=1, keepdims=True)).cumsum(axis=1)).max() < 700 * U


@pytest.mark.parametrize(
    ("threads", "shape"), [((1, 128), (2, 4)), ((1, 128), (2, 128)), ((2, 32), (2, 128))]
)
def test_exchange_memory_of_another_dtype_is_refused(
    threads: tuple[int, int], shape: tuple[int, int]
) -> None:
    """Also with a number for each run, and if no warp exchanges any."""

    @tw.kernel(X="M N", C="M N")
    def running(X, C):
        x = tw.load(X.tile((2, 128), (0, 0)).partition(threads))
        tw.copy(tw.prefix_sum(x, 1, scratch=tw.shared(shape, tw.i32)), C.tile((2, 128), (0, 0)))

    x = np.ones((2, 128), np.float32)
    with pytest.raises(tw.TraceError, match=r"scratch is shared memory for i32 of shape .* and f32 of shape"):
        running(x, x.copy(), target="reference")


# ---------------------------------------------------------------- several blocks of a row

PARTS = {
    "a lane has neighbours": fma((2, 16), (1, 4), 4, 64, 1, split_k="auto", blocks=60),
    "two warps": fma((4, 8), (1, 1), 16, 8, 1, warps=2, split_k="auto", blocks=10),
    "lanes along rows": fma((32, 1), (1, 1), 32, 3, 1, split_k="auto", blocks=7),
    "warps share rows": fma((1, 32), (1, 1), 1, 128, 1, across=2, split_k="auto", blocks=40),
    "warps share some rows each": fma((4, 8), (1, 1), 8, 48, 1, warps=2, across=3, split_k="auto", blocks=30),
}


@tw.kernel(X="M N", C="M N", total="M", least="M")
def with_a_state(X, C, total, least):
    """The state after the loop is stored, too, which the last part has."""
    for m in tw.tiles(total):
        so_far, low = tw.zeros((m,), tw.f32), tw.full((m,), float("inf"), tw.f32)
        for n in tw.steps(X.shape[1]):
            C[m, n] = so_far[:, None] + X[m, n].cumsum(axis=1)
            so_far.assign(so_far + X[m, n].sum(axis=1))
            low.assign(tw.minimum(low, X[m, n].min(axis=1)))
        total[m] = so_far
        least[m] = low


def in_parts(kernel: tw.Kernel, way: str, rows: int, columns: int) -> tuple[dict[str, Any], Any]:
    """Compute prefix sums of a random array in parts; return the results, and the array."""
    x = np.random.default_rng((rows, columns)).standard_normal((rows, columns), np.float32)
    made = {"C": np.full((rows, columns + 5), 777, np.float32)}
    views = {"C": made["C"][:, :columns]}
    if kernel is with_a_state:
        made |= {name: np.full(rows, 777, np.float32) for name in ("total", "least")}
        views |= {name: made[name] for name in ("total", "least")}
    bound = kernel.bind(schedule=PARTS[way])
    bound.forget()
    ran = bound(x, **views, target="reference")
    assert (ran.target, ran.schedule) == ("reference", PARTS[way])
    return made, x


@pytest.mark.parametrize("way", PARTS)
@pytest.mark.parametrize(("rows", "columns"), [(5, 1190), (37, 397), (3, 31), (1, 4096), (2, 1)])
def test_blocks_of_a_row_begin_with_the_sums_before(way: str, rows: int, columns: int) -> None:
    """Rows have one part, or more than a tile has columns; the last one is ragged."""
    made, x = in_parts(with_a_state, way, rows, columns)
    wide = x.astype(np.float64)
    room = np.arange(columns) * U * np.abs(wide).cumsum(axis=1)
    assert (np.abs(made["C"][:, :columns] - wide.cumsum(axis=1)) <= room).all()
    assert (made["C"][:, columns:] == 777).all()
    assert (np.abs(made["total"] - wide.sum(axis=1)) <= columns * U * np.abs(wide).sum(axis=1)).all()
    assert (made["least"] == x.min(axis=1)).all()


@tw.kernel(X="M N", C="M N", D="M N", end="M")
def followed(X, C, D, end):
    """Results along the row and a number of the row follow the loop; D may be X."""
    for m, n in tw.tiles(X):
        x = X[m, n]
        C[m, n] = x.cumsum(axis=1)
        D[m, n] = x - x.sum(axis=1)[:, None]
        end[m] = 1 + x.sum(axis=1)


@pytest.mark.parametrize("way", PARTS)
@pytest.mark.parametrize(("rows", "columns"), [(5, 1190), (37, 397), (3, 31)])
def test_blocks_share_the_results_that_follow_the_loop(way: str, rows: int, columns: int) -> None:
    rng = np.random.default_rng((rows, columns))
    x = rng.integers(-9, 9, (rows, columns)).astype(np.float32)
    given, c, end = x.copy(), np.full((rows, columns), 777, np.float32), np.full(rows, 777, np.float32)
    ran = followed.bind(schedule=PARTS[way])(x, c, x, end, target="reference")
    assert (ran.target, ran.schedule) == ("reference", PARTS[way])
    assert (c == given.cumsum(axis=1)).all()
    assert (x == given - given.sum(axis=1)[:, None]).all()
    assert (end == 1 + given.sum(axis=1)).all()


@tw.kernel(X="M N", C="M N", bias="M", total="M")
def biased(X, C, bias, total):
    for m in tw.tiles(total):
        so_far = tw.zeros((m,), tw.f32)
        for n in tw.steps(X.shape[1]):
            C[m, n] = so_far[:, None] + X[m, n].cumsum(axis=1) + bias[m][:, None]
            so_far.assign(so_far + X[m, n].sum(axis=1))
        total[m] = so_far


def test_no_block_replaces_numbers_that_others_read() -> None:
    """One block has a row if ``total`` may be ``bias``: the last part would store it too early."""
    rng = np.random.default_rng(10)
    x, bias = rng.integers(-9, 9, (5, 1190)).astype("f4"), rng.integers(-9, 9, 5).astype("f4")
    old, c = bias.copy(), np.full_like(x, np.nan)
    message = r"(?s)each step reads bias, which may be total, and total is stored after.*split_k=1"
    with pytest.raises(tw.ScheduleError, match=message):
        biased.bind(schedule=PARTS["a lane has neighbours"])(x, c, bias, bias, target="reference")
    biased(x, c, bias, bias, target="reference")
    assert (c == x.cumsum(axis=1) + old[:, None]).all()
    assert (bias == x.sum(axis=1)).all()
    like = [tw.like("f32", 1, 2**20)] * 2
    for kind, split in (("f32", 1), ("f16", "auto")):  # arrays of two dtypes are two arrays
        given = (*like, tw.like(kind, 1), tw.like("f32", 1))
        schedule = biased.bind().schedule_for(*given, target="cuda", arch="sm_90a")
        assert schedule is not None
        assert schedule.split_k == split


@pytest.mark.parametrize(
    ("arch", "room", "system"),
    [(HIP.architecture("gfx942"), 65536, 0), (CUDA.architecture("sm_86"), 102400, 1024)],
)
def test_the_blocks_of_a_row_fit_in_shared_memory(arch: Arch, room: int, system: int) -> None:
    """Blocks that wait for each other are resident together; the system takes memory for each block."""

    @tw.kernel(X="M N", C="M N", counts="M N")
    def masses(X, C, counts):
        for m, n in tw.tiles(C):
            C[m, n] = X[m, n].cumsum(axis=1)
            counts[m, n] = (X[m, n] > 0).cumsum(axis=1)

    assert arch.rates is not None
    target = "hip" if system == 0 else "cuda"
    for kernel, kinds in ((whole, ("f32", "f32")), (whole, ("f64", "f64")), (masses, ("f64", "f64", "i32"))):
        like = [tw.like(kind, 1, 2**20) for kind in kinds]
        schedule = kernel.bind().schedule_for(*like, target=target, arch=arch.name)
        assert schedule is not None
        assert schedule.split_k == "auto"
        form = fold_form_of(kernel.flow(*like))
        used = shared_bytes(replace(schedule, split_k=1, blocks=0), form) + system
        assert schedule.blocks * used <= room * arch.rates.boards[0].multiprocessors


def test_random_problems_in_parts() -> None:
    found = {number: scanned_in_parts(number, "reference") for number in range(100, 112)}
    assert set(found.values()) == {""}, found


def test_parts_give_the_same_bits_in_every_run_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block that leaves out the part before it, or adds its own, is found."""
    made, x = in_parts(whole, "a lane has neighbours", 5, 1190)
    assert made["C"].tobytes() == in_parts(whole, "a lane has neighbours", 5, 1190)[0]["C"].tobytes()
    right = x.astype(np.float64).cumsum(axis=1)
    for away in (-1, 1):
        with monkeypatch.context() as patch:
            patch.setattr(
                kept.StatesBefore, "merged_parts", lambda self, segment, away=away: segment.part + away
            )
            made, _ = in_parts(whole, "a lane has neighbours", 5, 1190)
        assert np.abs(made["C"][:, :1190] - right).max() > 1
    whole.bind(schedule=PARTS["a lane has neighbours"]).forget()


@pytest.mark.parametrize("missing", ["await_", "signal"])
def test_the_checker_finds_parts_that_nobody_awaits(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, c = np.ones((5, 1190), np.float32), np.empty((5, 1190), np.float32)
    kernel = whole.bind(schedule=PARTS["a lane has neighbours"])
    assert not kernel.check(x, c, outputs=("C",)).findings
    monkeypatch.setattr(kept, missing, lambda *given, **words: None)
    kernel.forget()
    try:
        assert kernel.check(x, c, outputs=("C",)).findings
    finally:
        kernel.forget()


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
def test_gpus_share_long_rows_among_blocks(target: str, arch: str) -> None:
    """A row has several blocks if the rows are few, and parts that are long enough to be read twice."""
    for rows, columns, split in ((1, 2**20, "auto"), (16, 2**17, "auto"), (4096, 4096, 1), (64, 1000, 1)):
        like = tw.like("f32", rows, columns)
        made = whole.compile(like, like, target=target, arch=arch)
        assert made.schedule.split_k == split, made.schedule
        assert {value for name, value in made.resources.items() if "spill" in name} == {0}
        lanes = made.schedule.atom.lanes
        assert made.schedule.warps == ((1, 512 // lanes) if split == "auto" else (4, 1))
        if split == 1:  # lanes exchange sums without barriers
            assert not any(isinstance(op, Barrier) for op in made.kernel.walk())


# ---------------------------------------------------------------- hazards


def test_the_checker_has_no_findings_and_misses_no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Warps that do not await the elements of others are a finding."""
    rng = np.random.default_rng(5)
    x, c = rng.standard_normal((20, 70), np.float32), np.empty((20, 70), np.float32)
    kernel = whole.bind(schedule=fma((1, 32), (1, 1), 2, 64, 1, across=2))
    assert not kernel.check(x, c, outputs=("C",)).findings
    assert not of_products.check(x, x.copy(), np.empty((20, 20), "f4"), outputs=("C",)).findings
    assert not from_the_end.check(x, c, outputs=("C",)).findings
    monkeypatch.setattr(tile_arithmetic, "meeting", lambda barrier, scope: lambda: None)
    kernel.forget()
    try:
        assert kernel.check(x, c, outputs=("C",)).findings
    finally:
        kernel.forget()


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("hip", "gfx942")])
def test_gpus_compile_without_spills(target: str, arch: str) -> None:
    like = tw.like("f16", 512, 256), tw.like("f32", 512, 256)
    assert not from_the_end.compile(*like, target=target, arch=arch).resources["stack_bytes"]
    made = whole.compile(*like, target=target, arch=arch)
    used = made.resources
    assert {value for name, value in used.items() if "spill" in name} == {0}


# ---------------------------------------------------------------- refusals


def test_what_is_refused() -> None:
    x = np.ones((6, 5), np.float32)

    @tw.kernel(X="M N", Y="M N")
    def both_ways(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n].cumsum(axis=1) - X[m, n].cumsum(axis=1, reverse=True)

    @tw.kernel(X="M N", Y="M N")
    def in_a_step(X, Y):
        for m in tw.tiles(Y.shape[0]):
            total = tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                Y[m, n] = total[:, None] + X[m, n].cumsum(axis=1, reverse=True)
                total.assign(total + X[m, n].sum(axis=1))

    @tw.kernel(X="M N", Y="M N")
    def of_no_axis(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n].cumsum(axis=2)

    @tw.kernel(X="M N", Y="M N")
    def of_a_new_axis(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n] + X[m, n].sum(axis=1)[:, None].cumsum(axis=1)

    @tw.kernel(X="M N", Y="M N")
    def both(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n].cumsum(axis=0) + X[m, n].cumsum(axis=1)

    @tw.kernel(X="M N", Y="M")
    def reduced(X, Y):
        for m in tw.tiles(Y):
            Y[m] = X[m].cumsum(axis=1).max(axis=1)

    @tw.kernel(X="M N", Y="M N")
    def of_sums(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n].cumsum(axis=1).cumsum(axis=0)

    @tw.kernel(X="M N", Y="M N")
    def centred(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n] - X[m, n].cumsum(axis=1).max(axis=1)[:, None]

    @tw.kernel(X="M N", Y="M N")
    def of_a_row(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n] * X[m, n].sum(axis=0).cumsum(axis=0)

    @tw.kernel(X="M N", Y="M N")
    def of_a_column(X, Y):
        for m, n in tw.tiles(Y):
            Y[m, n] = X[m, n] * tw.positions(m).to(tw.f32).cumsum(axis=0)[:, None]

    @tw.kernel(X="M K", Y="M M")
    def down_a_product(X, Y):
        for m, n in tw.tiles(Y):
            acc = tw.zeros()
            for k in tw.steps(X.shape[1]):
                acc += X[m, k] @ X[n, k].T
            Y[m, n] = acc.cumsum(axis=0)

    @tw.kernel(X="M N", Y="M N")
    def of_groups(X, Y, ends):
        for _, m, n in tw.tiles(Y, groups=ends):
            Y[m, n] = X[m, n].cumsum(axis=0)

    for kernel, result, message in (
        (both_ways, x.copy(), "and sums from each element to the last, .* nearest .* a kernel for each"),
        (in_a_step, x.copy(), "sums to the last element of a step over n, .* nearest .* of a tile A"),
        (of_no_axis, x.copy(), r"\.cumsum\(axis=2\) of .* has 2 axes; nearest legal choice: axis=1"),
        (of_a_new_axis, x.copy(), r"along a new axis; nearest legal choice: the axis of a span"),
        (both, x.copy(), "cumsum along m, the rows of the result; nearest .* a kernel for rows and one for"),
        (reduced, x[:, 0].copy(), "max of prefix sums along n; nearest .* the second kernel reads them"),
        (centred, x.copy(), "max of prefix sums along n; nearest .* the second kernel reads them"),
        (of_sums, x.copy(), "cumsum of prefix sums along n; nearest .* the second kernel reads them"),
        (of_a_row, x.copy(), "prefix sums along n that are the same for each m, .* for each m; nearest"),
        (of_a_column, x.copy(), "prefix sums along m that are the same for each n, .* for each n; nearest"),
        (
            down_a_product,
            np.empty((6, 6), np.float32),
            r"loop over m has the axes .* the transposed product, with the axes \(n, m\), and axis=1",
        ),
    ):
        with pytest.raises(tw.TraceError, match=f"(?s){message}"):
            kernel(x, result, target="reference")
    with pytest.raises(tw.TraceError, match="cumsum along m, which has rows of groups; nearest"):
        of_groups(x, x.copy(), np.int32([6]), target="reference")
    split = fma((1, 32), (1, 1), 1, 32, 1, split_k=2)
    with pytest.raises(
        tw.ScheduleError, match=r'(?s)wait for each other, .*at the same time.*split_k="auto"'
    ):
        whole.bind(schedule=split)(x, x.copy(), target="reference")
    split = replace(split, split_k="auto", blocks=4)
    with pytest.raises(tw.ScheduleError, match=r"(?s)does not run all blocks at the same time.*split_k=1"):
        whole.bind(schedule=split)(x, x.copy(), target="cpu")
    with pytest.raises(tw.ScheduleError, match=r"(?s)total of two parts cannot be merged.*split_k=1"):
        by_a_loop.bind(schedule=split)(x, x.copy(), target="reference")
    kernel = with_a_product.bind(schedule=replace(MMA, split_k="auto", blocks=4))
    given = [np.ones(shape, kind) for shape, kind in (((6, 8), "f2"), ((9, 8), "f2"), ((9, 7), "f2"))]
    with pytest.raises(tw.ScheduleError, match=r"(?s)acc has columns, .* numbers of rows.*split_k=1"):
        kernel(*given, np.ones((6, 9), "f4"), np.ones((6, 7), "f4"), target="reference")
    whole.bind(schedule=replace(split, split_k=1, blocks=0))(x, x.copy(), target="cpu")
