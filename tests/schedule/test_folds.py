"""Loops that carry a state, under schedules of every form, on every target."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.attending import flow
from tilewright.ops.attending.flow import BySoftmax
from tilewright.runtime.arrays import describe
from tilewright.runtime.binding import spec_of
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.group_choice import ITEM
from tilewright.schedule.folds.items import longest
from tilewright.schedule.folds.legality import reasons
from tilewright.schedule.folds.masks import Trials, masks_of
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA, HIP

from .folding import Array, FoldCase, add_moments, argmax, cases, chain, moments, strided, windowed

NAMES = [name for name, _ in cases(0)]
MMA = Schedule(tw.atoms.MMA_F16, (32, 16, 32), (2, 1), width=64, resident=True)
FMA = Schedule(tw.atoms.fma("f32", each=(2, 2)), (16, 16, 64), (2, 1), width=64, resident=True)
GROUPS = Schedule(
    tw.atoms.wgmma("f16", 32),
    (128, 32, 32),
    stages=2,
    staging="tma",
    roles="cooperative",
    groups=2,
    width=48,
    resident=True,
    epilogue="staged",
)
SCHEDULES = {
    "direct": MMA,
    "two stages": replace(MMA, staging="cp_async", stages=2),
    "four stages": replace(MMA, staging="cp_async", stages=4),
    "results in two tiles": replace(MMA, width=32),
    "one warp of 16 rows": replace(MMA, tile=(16, 32, 32), warps=(1, 1)),
    "depth in parts": replace(MMA, tile=(32, 32, 16), resident=False),
    "depth in parts, two stages": replace(
        MMA, tile=(32, 16, 16), resident=False, staging="cp_async", stages=2
    ),
    "warpgroups": GROUPS,
    "one warpgroup, three stages": replace(GROUPS, tile=(64, 32, 32), groups=1, stages=3),
    "persistent warpgroups": replace(GROUPS, blocks=2, epilogue="overlapped"),
    "three persistent warpgroups": replace(
        GROUPS, tile=(192, 32, 32), groups=3, registers=160, blocks=3, stages=3
    ),
    "bands of persistent warpgroups": replace(
        GROUPS, tile=(64, 32, 32), groups=1, blocks=2, group_n=2, epilogue="overlapped"
    ),
    "multiply-adds": FMA,
    "multiply-adds, three stages": replace(FMA, staging="cp_async", stages=3),
}


def run(case: FoldCase, target: str, kernel: Any = None, **arrays: Array) -> None:
    """Launch a case on a target; check that every result is right, and that nothing else is written."""
    given = {**case.arguments(), **arrays}
    done = (kernel or case.kernel)(**given, target=target)
    assert done.target == target
    assert case.wrong({name: given[name] for name in case.results}) == []


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", NAMES)
def test_random_problems_under_chosen_schedules(name: str, target: str) -> None:
    for seed, ragged in ((1, True), (2, False)):
        run(dict(cases(seed, ragged=ragged))[name], target)


def refused_by_warpgroups(name: str, schedule: Schedule) -> None:
    """Rows of this chain's matrices begin at any byte, and cross entropy has no product along the loop."""
    wanted, why = {
        "chain": ("chain, P = 40", "the stride of dimension 0 of A is a multiple of 2 f16 elements"),
        "cross entropy": ("cross entropy, f2, K = 24", "resident=True with warpgroups"),
    }[name]
    case = dict(cases(3))[wanted]
    near = 'staging="cp_async"' if name == "chain" else "resident=False"
    with pytest.raises(tw.ScheduleError, match=f"(?s){why}.*nearest legal choice: {near}"):
        case.kernel.bind(schedule=schedule)(**case.arguments(), target="reference")


@pytest.mark.parametrize("way", SCHEDULES)
@pytest.mark.parametrize("name", ["attention", "chain", "cross entropy"])
def test_every_form_of_schedule(name: str, way: str) -> None:
    schedule = SCHEDULES[way]
    if schedule.by_bulk and name != "attention":
        refused_by_warpgroups(name, schedule)
        return
    kind = "f4" if schedule.atom.instruction == "fma" else "f2"
    wanted = {
        "attention": f"attention, {kind}, 24, 40",
        "chain": "chain, P = 40",
        "cross entropy": f"cross entropy, {kind}, K = {24 if kind == 'f2' else 40}",
    }[name]
    case = dict(cases(3))[wanted]
    if name == "cross entropy":
        schedule = replace(schedule, width=0)
    if kind == "f4" and name == "chain":
        case = replace(case, given={key: one.astype(np.float32) for key, one in case.given.items()})
    kernel = case.kernel.bind(schedule=schedule)
    run(case, "reference", kernel)
    if not schedule.by_bulk:
        run(case, "cpu", kernel)


@pytest.mark.parametrize("name", ["attention, f2, 24, 40", "cross entropy, f2, K = 24", "chain, P = 40"])
def test_strides_that_no_copy_in_the_background_carries(name: str) -> None:
    case = dict(cases(4))[name]
    odd = {key: strided(one, 3) for key, one in case.given.items() if np.ndim(one) > 1}
    odd |= {key: strided(one, 5) for key, one in case.results.items()}
    kernel = case.kernel
    given = case.arguments() | odd
    assert kernel.bind().schedule_for(**given, target="cuda", arch="sm_80").staging == "direct"
    for target in ("reference", "cpu"):
        run(case, target, **odd)
        held = next(iter(case.results))
        whole = odd[held].base
        assert whole is not None
        assert not whole[..., odd[held].shape[-1] :].any(), "between the rows nothing is written"


def test_columns_that_are_contiguous() -> None:
    case = dict(cases(5))["chain, P = 40"]
    for name in "ABC":
        run(case, "reference", **{name: np.asfortranarray(case.given[name])})
        run(case, "cpu", **{name: np.asfortranarray(case.given[name])})


def test_operands_are_decoded_on_the_way() -> None:
    """Factors have functions and narrower dtypes than the products: exp(0) = 1 beyond the end."""

    @tw.kernel(X="M K", W="K N", V="N E", Y="M E", factor=tw.f32)
    def mixed(X, W, V, Y, factor):
        for m, e in tw.tiles(Y):
            out = tw.zeros((m, e), tw.f32)
            for n in tw.steps(V.shape[0]):
                s = tw.zeros(dtype=tw.f32)
                for k in tw.steps(X.shape[1]):
                    s += tw.exp2(X[m, k].to(tw.f32)) @ (W[k, n] * factor)
                out.assign(out + s @ tw.exp2(V[n, e].to(tw.f32)))
            Y[m, e] = out

    rng = np.random.default_rng(6)
    x, v = (rng.integers(-2, 3, shape).astype(np.int8) for shape in ((37, 21), (45, 30)))
    w = rng.integers(-3, 4, (21, 45)).astype(np.float32)
    y = np.full((37, 30), np.nan, np.float32)
    right = 2.0**x @ (w * 0.5) @ 2.0**v
    for target in ("reference", "cpu"):
        y.fill(np.nan)
        assert mixed(x, w, v, y, 0.5, target=target).target == target
        assert (y == right).all()


def test_no_steps_leave_the_start() -> None:
    a, y = np.empty((5, 0), np.float16), np.full(5, np.nan, np.float32)
    mean = np.full(5, np.nan, np.float32)
    for target in ("reference", "cpu"):
        with np.errstate(all="ignore"):
            moments(a, mean, y, target=target)
        assert np.isnan(mean).all(), "0 / 0"
    x, w = np.ones((5, 8), np.float16), np.ones((8, 0), np.float16)
    at = np.full(5, -1, np.int32)
    for target in ("reference", "cpu"):
        argmax(x, w, y, at, target=target)
        assert (y == -np.inf).all()
        assert (at == 0).all()


SHIFTS = [(0, 1000), (0, 20), (40, 30), (-20, 7), (60, 0), (500, 1000), (-500, 3)]


@pytest.mark.parametrize(
    "way",
    ["direct", "two stages", "warpgroups", "persistent warpgroups", "bands of persistent warpgroups"],
)
@pytest.mark.parametrize(("shift", "window"), SHIFTS)
def test_steps_that_a_mask_hides_are_left_out(shift: int, window: int, way: str) -> None:
    """Keys that no row of a tile sees are infinite, and are never read."""
    rng = np.random.default_rng(13)
    m, n, run = 70, 150, SCHEDULES[way].tile[1]
    q, k, v = (rng.standard_normal(shape).astype(np.float16) for shape in ((m, 24), (n, 24), (n, 40)))
    row, key = np.arange(m)[:, None] + shift, np.arange(n)
    seen = (key <= row) & (key >= row - window)
    scores = np.where(seen, 0.25 * q.astype(np.float64) @ k.astype(np.float64).T, -np.inf)
    weights = np.exp(scores - np.where(seen.any(1), scores.max(1), 0)[:, None])
    right = weights @ v.astype(np.float64) / np.maximum(weights.sum(1), 1e-300)[:, None]
    room = 4e-3 * (weights @ np.abs(v) / np.maximum(weights.sum(1), 1e-300)[:, None]) + 1e-6
    whole = np.repeat(seen.any(0).reshape(-1, 1), 40, 1)
    begin, end = np.flatnonzero(whole[:, 0])[[0, -1]] if whole.any() else (n, -1)
    k[: begin // run * run] = k[(end // run + 1) * run :] = np.inf
    v[: begin // run * run] = v[(end // run + 1) * run :] = np.nan
    kernel = windowed.bind(schedule=SCHEDULES[way])
    for target in ("reference", "cpu")[: 1 if SCHEDULES[way].by_bulk else 2]:
        out = np.full((m, 40), np.nan, np.float16)
        assert kernel(q, k, v, out, 0.25, shift, window, target=target).target == target
        assert (np.abs(out - right) <= room).all()


def test_which_masks_leave_the_state_as_it_is() -> None:
    """A sum that also counts hidden elements changes in a step with only hidden elements."""
    arrays = [np.zeros(shape, np.float32) for shape in ((8, 8), (8, 8), (8, 8), (8, 8))]
    form = fold_form_of(windowed.flow(*arrays, 0.25, 0, 3))
    [mask] = masks_of(form)
    assert Trials(form).leaves_state(mask)
    assert sorted(one.rises for one in mask.comparisons) == [False, True]
    again = fold_form_of(windowed.flow(*(array[:, :5] for array in arrays), 0.25, 0, 3))
    trials = Trials(again)
    assert trials.leaves_state(masks_of(again)[0])
    assert "steps" not in vars(trials), "flows of the same text share what was found"

    @tw.kernel(X="M N", y="M")
    def counted(X, y):
        for m in tw.tiles(y):
            total = tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                x = tw.where(tw.positions(n) <= tw.positions(m)[:, None], X[m, n], 1.0)
                total.assign(total + x.sum(axis=1))
            y[m] = total

    x, y = np.arange(64.0, dtype=np.float32).reshape(8, 8), np.full(8, np.nan, np.float32)
    form = fold_form_of(counted.flow(x, y))
    assert [Trials(form).leaves_state(one) for one in masks_of(form)] == [False]
    for target in ("reference", "cpu"):
        counted(x, y, target=target)
        assert (y == np.where(np.tri(8, dtype=bool), x, 1).sum(1)).all()


def test_one_tile_is_reduced_in_several_ways() -> None:
    """Beyond the end of a row, scores are -inf for the maximum, then 0 for their sum, with weight 0."""

    @tw.kernel(X="M N", lse="M", total="M")
    def both(X, lse, total):
        for m in tw.tiles(lse):
            top, sums, weights = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                s = X[m, n] * 2.0
                new = tw.maximum(top, s.max(axis=1))
                sums.assign(sums + tw.exp(new - new) * s.sum(axis=1))
                weights.assign(weights * tw.exp(top - new) + tw.exp(s - new[:, None]).sum(axis=1))
                top.assign(new)
            lse[m] = tw.log(weights) + top
            total[m] = sums

    x = np.random.default_rng(14).standard_normal((37, 70)).astype(np.float32)
    wide = 2 * x.astype(np.float64)
    for target in ("reference", "cpu"):
        lse, total = (np.full(37, np.nan, np.float32) for _ in range(2))
        assert both(x, lse, total, target=target).target == target
        assert (np.abs(lse - np.log(np.exp(wide).sum(1))) <= 1e-5).all()
        assert (np.abs(total - wide.sum(1)) <= 80 * 2.0**-24 * np.abs(wide).sum(1)).all()


def test_a_choice_between_two_numbers_by_positions() -> None:
    @tw.kernel(X="M N", y="M")
    def late(X, y):
        for m in tw.tiles(y):
            total = tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                w = tw.where(tw.positions(n) > 39, 1.0, 0.0) + 0.0 * tw.absolute(X[m, n])
                total.assign(total + w.sum(axis=1))
            y[m] = total

    x = np.random.default_rng(16).standard_normal((37, 70)).astype(np.float32)
    for target in ("reference", "cpu"):
        y = np.full(37, np.nan, np.float32)
        assert late(x, y, target=target).target == target
        assert (y == 30).all()


def test_a_choice_that_random_numbers_do_not_make_is_no_proof() -> None:
    """In rows longer than every trial, elements past the end have weight 1 and must not count."""

    @tw.kernel(X="M N", size="M", y="M")
    def chosen(X, size, y):
        for m in tw.tiles(y):
            top, total = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                s = X[m, n] * 2.0
                new = tw.maximum(top, s.max(axis=1))
                p = tw.where(size[m][:, None] > 1e30, 1.0, tw.exp(s - new[:, None]))
                total.assign(total * tw.where(size[m] > 1e30, 1.0, tw.exp(top - new)) + p.sum(axis=1))
                top.assign(new)
            y[m] = total

    x = np.random.default_rng(15).standard_normal((37, 70)).astype(np.float32)
    size, y = np.full(37, 1e31, np.float32), np.full(37, np.nan, np.float32)
    size[::2] = 0
    wide = 2 * x.astype(np.float64)
    right = np.where(size == 0, np.exp(wide - wide.max(1)[:, None]).sum(1), 70)
    for target in ("reference", "cpu"):
        y.fill(np.nan)
        assert chosen(x, size, y, target=target).target == target
        assert (np.abs(y - right) <= 1e-5 * right).all()


@tw.kernel(A="M N", B="N P", C="M P", D="M P")
def shared(A, B, C, D):
    """One product enters a sum and another cell."""
    for m, p in tw.tiles(C):
        total, most = tw.zeros((m, p), tw.f32), tw.zeros((m, p), tw.f32)
        for n in tw.steps(B.shape[0]):
            product = tw.absolute(A[m, n]) @ B[n, p]
            total.assign(total + product)
            most.assign(tw.maximum(most, most + product))
        C[m, p], D[m, p] = total, most


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_product_of_a_step_that_is_summed_too(target: str) -> None:
    rng = np.random.default_rng(10)
    a, b = (rng.integers(1, 5, shape).astype(np.float32) for shape in ((37, 150), (150, 33)))
    c, d = (np.full((37, 33), np.nan, np.float32) for _ in range(2))
    shared(a, b, c, d, target=target)
    assert (c == a @ b).all()
    assert (d == a @ b).all()


@tw.kernel(X="M N", Z="M N", mean="M", best="M", far="M")
def outliers(X, Z, mean, best, far):
    """Outliers are added in all columns, also in those that the mask hides."""
    for m in tw.tiles(best):
        top, count = tw.full((m,), -math.inf, tw.f32), tw.zeros((m,), tw.f32)
        for n in tw.steps(X.shape[1]):
            seen = tw.positions(n) <= tw.positions(m)[:, None]
            top.assign(tw.maximum(top, tw.where(seen, X[m, n], -math.inf).max(axis=1)))
            off = tw.absolute(Z[m, n] - mean[m][:, None])
            count.assign(count + tw.maximum(off - 1e6, 0.0).sum(axis=1))
        best[m], far[m] = top, count


@tw.kernel(X="M N", best="M")
def narrow(X, best):
    """Positions wrap in i8."""
    for m in tw.tiles(best):
        top = tw.full((m,), -math.inf, tw.f32)
        for n in tw.steps(X.shape[1]):
            seen = tw.positions(n).to(tw.i8) <= tw.positions(m).to(tw.i8)[:, None]
            top.assign(tw.maximum(top, tw.where(seen, X[m, n], -math.inf).max(axis=1)))
        best[m] = top


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_masks_leave_out_no_step_that_arrays_enter_elsewhere(target: str) -> None:
    rng = np.random.default_rng(8)
    x, z = (rng.standard_normal((130, 290)).astype(np.float32) for _ in range(2))
    mean, best, far = np.full(130, 20, np.float32), np.zeros(130, np.float32), np.zeros(130, np.float32)
    z[:, ::3] += 1e6 + 64
    outliers(x, z, mean, best, far, target=target)
    assert (best == np.where(np.tri(130, 290, dtype=bool), x, -np.inf).max(axis=1)).all()
    right = np.maximum(np.abs(z.astype(np.float64) - 20) - 1e6, 0).sum(axis=1)
    assert (np.abs(far - right) <= 1e-3 * right).all()


@tw.kernel(X="M N", y="M")
def about_means(X, y):
    """Sums of squares about the mean of each step; Welford's formulas merge the steps."""
    for m in tw.tiles(y):
        count, mu, squares = (tw.zeros((m,), tw.f32) for _ in range(3))
        for n in tw.steps(X.shape[1]):
            add_moments(X[m, n].to(tw.f32), count, mu, squares)
        y[m] = squares / count


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_what_is_reduced_beyond_the_end_of_a_row_depends_on_the_row(target: str) -> None:
    """Zeros beyond the end of the last step differ from its mean."""
    x = (100 + np.random.default_rng(17).standard_normal((37, 94))).astype(np.float16)
    y = np.full(37, np.nan, np.float32)
    assert about_means(x, y, target=target).target == target
    right = x.astype(np.float64).var(axis=1)
    assert (np.abs(y - right) <= 1e-4 * right).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_masks_of_narrow_positions_leave_out_no_step(target: str) -> None:
    x, best = (
        np.random.default_rng(9).standard_normal((290, 290)).astype(np.float32),
        np.zeros(290, np.float32),
    )
    narrow(x, best, target=target)
    at = np.arange(290).astype(np.int8)
    assert (best == np.where(at <= at[:, None], x, -np.inf).max(axis=1)).all()


COMPILED = [
    *((CUDA.name, arch) for arch in ("sm_80", "sm_90a")),
    *((HIP.name, arch) for arch in ("gfx942", "gfx1100")),
]


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_the_cases_without_spills(target: str, arch: str) -> None:
    first = COMPILED.index((target, arch)) % 2
    for number, (name, case) in enumerate(cases(7)):
        if "300" in name or "264" in name or name == "normalised":  # wide tiles spill a little
            continue
        if (first + number) % 2:
            continue  # the other machine of the vendor compiles it
        made = case.kernel.compile(**case.arguments(), target=target, arch=arch)
        used = made.resources
        spilled = used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0)
        assert spilled <= 8, (name, used)


@pytest.mark.parametrize(
    ("columns", "rows", "causal"),
    [
        *((64, 256, True), (64, 4096, False), (96, 4096, True)),
        *((128, 256, True), (192, 256, False), (256, 256, True)),
    ],
)
def test_no_multiply_of_attention_is_serialized(columns: int, rows: int, causal: bool) -> None:
    """The loop has two products, one is before it and one after it; nothing spills."""
    q, k = np.zeros((1, 64, 1, rows, columns), np.float16), np.zeros((1, 64, rows, columns), np.float16)
    words = {"between": BySoftmax.of(columns**-0.5)[0], "with_lse": False}
    made = flow.attention.bind(**words, scores=flow.Scores(causal)).compile(
        q, k, k, q, np.zeros((1, 64, 1, rows), np.float32), 0.1, 0, target="cuda", arch="sm_90a"
    )
    assert made.schedule is not None
    assert made.schedule.staging == "tma"
    assert made.schedule.blocks == 132
    assert not made.resources.get("serialized_wgmma", 0)
    assert not made.resources["spill_store_bytes"]
    found = {part: made.source.count(part) for part in ("mma_commit();", "mma_wait<1>();")}
    assert found == {"mma_commit();": 4, "mma_wait<1>();": 1}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("epilogue", ["staged", "overlapped"])
@pytest.mark.parametrize(("blocks", "band"), [(1, 0), (1, 1), (3, 2), (5, 3), (100, 2)])
@pytest.mark.parametrize("causal", [False, True])
def test_persistent_blocks_take_every_tile_once(causal: bool, blocks: int, band: int, epilogue: Any) -> None:
    """Rings, and the memory of the queries, continue from tile to tile; rows without keys are 0."""
    rng, diagonal = np.random.default_rng(blocks), -70
    q, k, v = (rng.standard_normal((2, 3, n, 16)).astype(np.float16) for n in (150, 40, 40))
    out, lse = np.full((2, 3, 1, 150, 16), np.nan, np.float16), np.full((2, 3, 1, 150), np.nan, np.float32)
    between, exponent = BySoftmax.of(0.25)
    schedule = replace(
        GROUPS, tile=(64, 32, 16), groups=1, width=16, blocks=blocks, group_n=band, epilogue=epilogue
    )
    kernel = flow.attention.bind(
        scores=flow.Scores(causal), between=between, with_lse=True, schedule=schedule
    )
    done = kernel(q[:, :, None], k, v, out, lse, exponent, diagonal, target="reference")
    assert done.target == "reference"
    seen = np.arange(40) <= np.arange(150)[:, None] + diagonal if causal else np.ones((150, 40), bool)
    scores = np.where(seen, 0.25 * q.astype(np.float64) @ k.astype(np.float64).swapaxes(2, 3), -np.inf)
    right = np.logaddexp.reduce(scores, axis=3)
    weights = np.exp(scores - np.where(right == -np.inf, 0, right)[..., None])
    room = 2.0**-9 * (weights @ np.abs(v.astype(np.float64))) + 1e-6
    assert (np.abs(out[:, :, 0] - weights @ v.astype(np.float64)) <= room).all()
    np.testing.assert_allclose(lse[:, :, 0], right, atol=1e-4)


def columns_first(array: Array) -> Array:
    return array.swapaxes(-1, -2).copy().swapaxes(-1, -2)


@pytest.mark.parametrize("schedule", [GROUPS, replace(GROUPS, blocks=2, epilogue="overlapped")], ids=str)
@pytest.mark.parametrize(("of_keys", "of_values"), [(True, False), (False, True), (True, True)])
def test_operands_may_be_contiguous_along_the_loop(
    of_keys: bool, of_values: bool, schedule: Schedule
) -> None:
    """Bulk copies move panels of 64 of their rows; a product of integers is exact."""
    rng = np.random.default_rng(3)
    a, b, c = (
        rng.integers(-3, 4, shape).astype(np.float16)
        for shape in ((1, 2, 1, 150, 24), (1, 2, 200, 24), (1, 2, 200, 40))
    )
    b, c = columns_first(b) if of_keys else b, columns_first(c) if of_values else c
    right = np.maximum(a[:, :, 0].astype(np.int64) @ b.astype(np.int64).swapaxes(2, 3), 0) @ c.astype(
        np.int64
    )
    whole = replace(schedule, atom=tw.atoms.wgmma("f16", 64), tile=(128, 64, 32))
    d = np.full((1, 2, 1, 150, 40), np.nan, np.float16)
    kernel = flow.gemm_chain.bind(activation="relu", schedule=whole)
    assert kernel(a, b, c, d, target="reference").target == "reference"
    assert (d[:, :, 0] == right.astype(np.float16)).all()
    made = kernel.compile(a, b, c, d, target="cuda", arch="sm_90a")
    assert not made.resources.get("serialized_wgmma", 0)
    with pytest.raises(
        tw.ScheduleError, match=r"(?s)steps of 32; [BC] is contiguous along its rows.*\(128, 64, 32"
    ):
        flow.gemm_chain.bind(activation="relu", schedule=schedule)(a, b, c, d, target="reference")


@pytest.mark.parametrize(
    ("columns", "by_column", "activation"),
    [
        *((64, False, None), (64, True, "silu"), (192, False, "relu")),
        *((192, True, None), (256, False, "silu"), (256, True, "relu")),
    ],
)
def test_no_multiply_of_a_chain_is_serialized(columns: int, by_column: bool, activation: str | None) -> None:
    """This includes a first matrix that is contiguous along the loop, like B of `tw.gemm_chain`."""
    a, b = (np.zeros((1, 1, *shape), np.float16) for shape in ((1, 20000, columns), (4096, columns)))
    c, b = b, columns_first(b) if by_column else b
    made = flow.gemm_chain.bind(activation=activation).compile(a, b, c, a, target="cuda", arch="sm_90a")
    assert made.schedule is not None
    assert made.schedule.staging == "tma"
    assert not made.resources.get("serialized_wgmma", 0)
    assert not made.resources["spill_store_bytes"]


def test_what_is_proposed_for_warpgroups() -> None:
    """The proposal has a block for each processor, bands for a mask, and three groups if registers allow."""

    def proposed(columns: int, rows: int, *, causal: bool, batches: int = 4, heads: int = 16) -> Schedule:
        queries, keys = (batches, heads, 1, rows, columns), (batches, heads, rows, columns)
        arrays = [*(tw.like("bf16", shape) for shape in (queries, keys, keys, queries))]
        arrays.append(tw.like("f32", queries[:-1]))
        words = {"between": BySoftmax.of(0.1)[0], "with_lse": False, "scores": flow.Scores(causal)}
        found = flow.attention.bind(**words).schedule_for(*arrays, 0.1, 0, target="cuda", arch="sm_90a")
        assert isinstance(found, Schedule)
        return found

    def fields(one: Schedule) -> tuple[Any, ...]:
        return one.tile, one.groups, one.registers, one.group_n, one.epilogue

    assert fields(proposed(64, 4096, causal=False)) == ((192, 128, 64), 3, 160, 0, "overlapped")
    assert fields(proposed(64, 1024, causal=False)) == ((128, 128, 64), 2, 232, 0, "overlapped")
    assert fields(proposed(64, 4096, causal=True)) == ((192, 128, 64), 3, 160, 16, "overlapped")
    assert fields(proposed(64, 1024, causal=True)) == ((128, 128, 64), 2, 232, 32, "overlapped")
    assert fields(proposed(128, 16384, causal=True)) == ((128, 128, 128), 2, 232, 2, "overlapped")
    assert fields(proposed(256, 4096, causal=False)) == ((128, 80, 256), 2, 232, 0, "staged")
    assert {proposed(columns, 2048, causal=True).blocks for columns in (64, 96, 256)} == {132}


@pytest.mark.parametrize(("rows", "split"), [(4096, 1), (1024, "auto")])
def test_few_tiles_of_warpgroups_are_faster_than_parts_by_warps(rows: int, split: int | str) -> None:
    """If at least a quarter of the processors have a tile of 64 rows, warpgroups compute whole loops."""
    a, b = tw.like("bf16", (1, 1, 1, rows, 128)), tw.like("bf16", (1, 1, 1024, 128))
    found = flow.gemm_chain.bind(activation=None).schedule_for(a, b, b, a, target="cuda", arch="sm_90a")
    assert isinstance(found, Schedule)
    assert (found.split_k, found.staging) == (split, "tma" if split == 1 else "cp_async")


@pytest.mark.parametrize(("heads", "tiles", "width", "blocks"), [(7, 5, 3, 4), (4, 3, 4, 100), (5, 1, 2, 2)])
def test_the_time_of_the_slowest_block_is_that_of_its_tiles(
    heads: int, tiles: int, width: int, blocks: int
) -> None:
    """The reference adds tiles in the order of the blocks: forwards, backwards, and each band reversed."""
    lengths = np.arange(1, tiles + 1) ** 2
    load = [0.0] * blocks
    for number, first in enumerate(range(0, heads, width)):
        left = [lengths[t] for t in reversed(range(tiles)) for _ in range(first, min(first + width, heads))]
        way = range(min(blocks, heads * tiles))
        while left:
            for block in reversed(way) if number % 2 else way:
                load[block] += left.pop(0) if left else 0
            number += 1
    assert longest(lengths, heads, width, blocks) == max(load)


@pytest.mark.parametrize("rows", [512, 1024, 2048, 4096, 8192])
@pytest.mark.parametrize("columns", [64, 96, 128, 192, 256])
def test_bands_are_even(columns: int, rows: int) -> None:
    """With 64 heads on 132 processors, no block takes much longer than the mean."""
    arrays = [tw.like("f16", (4, 16, *shape)) for shape in ((1, rows, columns), *((rows, columns),) * 2)]
    arrays += [arrays[0], tw.like("f32", (4, 16, 1, rows))]
    words = {"between": BySoftmax.of(0.1)[0], "with_lse": False, "scores": flow.Scores(causal=True)}
    found = flow.attention.bind(**words).schedule_for(*arrays, 0.1, 0, target="cuda", arch="sm_90a")
    assert isinstance(found, Schedule)
    lengths = -(-np.arange(128, rows + 1, 128) // found.tile[1]) + ITEM
    width = -(-64 // -(-64 // found.group_n))
    assert longest(lengths, 64, width, 132) < 1.08 * lengths.sum() * 64 / 132


def test_the_checker_has_no_findings_and_finds_a_missing_barrier() -> None:
    case = dict(cases(8))["attention, f2, 24, 40"]
    for way in ("direct", "two stages", "depth in parts, two stages"):
        kernel = case.kernel.bind(schedule=SCHEDULES[way])
        assert not kernel.check(**case.arguments(), outputs=("O",)).findings


# ---------------------------------------------------------------- refusals

ARRAYS = {name: np.zeros(shape, np.float16) for name, shape in (("A", (32, 16)), ("B", (16, 32)))}
ARRAYS |= {"C": np.zeros((32, 48), np.float16), "D": np.zeros((32, 48), np.float32)}

REFUSED = [
    (
        replace(MMA, staging="registers"),
        'staging="registers"; the loop over n carries out',
        'staging="direct"',
    ),
    (replace(MMA, stages=3), '3 stages; with staging="direct"', "stages=1"),
    (replace(MMA, staging="cp_async"), "1 stage; a ring", "stages=2"),
    (replace(MMA, atom=tw.atoms.MMA_BF16), "multiplies bf16 and adds in f32", "atoms.MMA_F16"),
    (replace(MMA, atom=tw.atoms.wgmma("f16", 64)), "in the background", "atoms.MMA_F16"),
    (
        replace(MMA, tile=(24, 16, 32)),
        r"\(24, 16, 32\) is no multiple of \(32, 16, 16\)",
        r"tile=\(32, 16, 32\)",
    ),
    (replace(MMA, warps=(1, 2)), "each warp has whole rows", r"warps=\(2, 1\)"),
    (replace(MMA, width=0), "width=0 is no multiple of 8", "width=8"),
    (replace(MMA, tile=(32, 4096, 256), width=256), "bytes of shared memory", r"tile=\(32, 2048, 256\)"),
]


@pytest.mark.parametrize(("schedule", "why", "near"), REFUSED, ids=[why for _, why, _ in REFUSED])
def test_an_illegal_schedule_is_refused_with_the_nearest_legal_choice(
    schedule: Schedule, why: str, near: str
) -> None:
    with pytest.raises(tw.ScheduleError, match=f"(?s){why}.*{near}") as caught:
        chain.bind(schedule=schedule).compile(**ARRAYS, target="cuda", arch="sm_80")
    assert "test_folds" in str(caught.value) or "folding.py" in str(caught.value)


@pytest.mark.parametrize(
    ("schedule", "why", "near"),
    [
        (replace(GROUPS, group_n=4), "group_n=4 with blocks=0", "group_n=0, or blocks=132"),
        (
            replace(GROUPS, groups=3, tile=(192, 32, 32)),
            "3 groups with 232 registers for each thread",
            "registers=160",
        ),
        (replace(GROUPS, epilogue="direct"), 'epilogue="direct"', 'epilogue="staged" or "overlapped"'),
        (replace(GROUPS, split_k=3), "split_k=3 with warpgroups; schedules without bulk", "split_k=1"),
    ],
    ids=str,
)
def test_an_illegal_schedule_of_warpgroups_is_refused(schedule: Schedule, why: str, near: str) -> None:
    case = dict(cases(3))["attention, f2, 24, 40"]
    with pytest.raises(tw.ScheduleError, match=f"(?s){why}.*{near}"):
        case.kernel.bind(schedule=schedule)(**case.arguments(), target="reference")


def test_the_nearest_choices_are_legal() -> None:
    known = fold_form_of(chain.flow(*ARRAYS.values()))
    specs = {name: spec_of(describe(one)) for name, one in ARRAYS.items()}
    arch = CUDA.architecture("sm_80")
    for one in (replace(MMA, width=8), replace(MMA, tile=(32, 2048, 16)), replace(MMA, warps=(2, 1))):
        assert reasons(replace(one, width=8, tile=(32, 16, 16)), known, specs, arch) == []


def test_loops_that_no_schedule_computes() -> None:
    x, y, v = (np.zeros(shape, np.float32) for shape in ((8, 8), (8, 8), (8,)))

    @tw.kernel(X="M N", Y="M N")
    def columns(X, Y):
        for m, n in tw.tiles(Y):
            out = tw.zeros((m, n), tw.f32)
            for k in tw.steps(X.shape[0]):
                out.assign(tw.maximum(out, X[k, n].sum(axis=0)))
            Y[m, n] = out

    @tw.kernel(X="M N", Y="M N", v="M")
    def twice(X, Y, v):
        for m, n in tw.tiles(Y):
            top, out = tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
            for k in tw.steps(X.shape[1]):
                top.assign(tw.maximum(top, X[m, k].max(axis=1)))
            for j in tw.steps(X.shape[1]):
                out.assign(out + tw.exp(X[m, j] - top[:, None]).sum(axis=1))
            Y[m, n] = out[:, None]

    @tw.kernel(X="M N", v="N")
    def state(X, v):
        for n in tw.tiles(v):
            out = tw.zeros((), tw.f32)
            for k in tw.steps(X.shape[0]):
                out.assign(out + X[k, n].sum(axis=0).sum(axis=0))
            v[n] = out

    with pytest.raises(tw.TraceError, match="nearest legal choice"):
        columns(x, y, target="reference")
    with pytest.raises(tw.TraceError, match=r"the loops over k and j carry a state.*one kernel for"):
        twice(x, y, v, target="reference")
    with pytest.raises(
        tw.TraceError, match=r"out has the axes \(\); a loop carries values with the axes \(n,\)"
    ):
        state(x, v, target="reference")


def test_a_wider_result_than_the_tile_is_refused_at_launch() -> None:
    case = dict(cases(9))["normalised"]
    kernel = case.kernel.bind(schedule=replace(MMA, width=32))
    message = r"e must be at most 32: one tile .*; nearest legal choice: schedule=None, or a larger width"
    with pytest.raises(tw.LaunchError, match=message):
        kernel(**case.arguments(), target="reference")
    for schedule in (None, replace(MMA, width=64)):
        run(case, "reference", case.kernel.bind(schedule=schedule))


def test_warpgroups_cover_all_columns_of_the_result() -> None:
    """Otherwise bulk copies would store columns of another tile."""
    case = dict(cases(9))["attention, f2, 64, 64"]
    kernel = case.kernel.bind(schedule=replace(GROUPS, tile=(128, 32, 64), width=32))
    with pytest.raises(
        tw.LaunchError, match=r"e must be at most 32: one tile of the schedule covers it \(width\)"
    ):
        kernel(**case.arguments(), target="reference")
    run(case, "reference", case.kernel.bind(schedule=replace(GROUPS, tile=(128, 32, 64), width=64)))


def test_depth_beyond_a_resident_tile_is_refused_at_launch() -> None:
    case = dict(cases(9))["cross entropy, f2, K = 300"]
    kernel = case.kernel.bind(schedule=replace(MMA, width=0))
    with pytest.raises(
        tw.LaunchError, match=r"k must be at most 32.*choice: schedule=None, or a larger tile"
    ):
        kernel(**case.arguments(), target="cpu")
    for schedule in (None, replace(MMA, tile=(32, 16, 304), width=0)):
        run(case, "cpu", case.kernel.bind(schedule=schedule))


def test_the_comparison_rejects_wrong_results() -> None:
    """The comparison detects a missing step, a missing rescale, and exchanged rows."""
    case = dict(cases(10))["attention, f2, 24, 40"]
    right = {"O": case.expected["O"].copy()}
    assert case.wrong(right) == []
    assert case.wrong({"O": right["O"][..., ::-1, :]})
    assert case.wrong({"O": right["O"] * (1 + 2**-6)})
    short = case.given | {"K": case.given["K"][..., :-1, :], "V": case.given["V"][..., :-1, :]}
    assert case.wrong({"O": tw.testing.softmax_attention(short["Q"], short["K"], short["V"], 0.25)})


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_random_problems_on_a_gpu(name: str) -> None:
    for seed, ragged in ((11, True), (12, False)):
        case = dict(cases(seed, ragged=ragged))[name]
        given = case.arguments(DeviceArray.of)
        assert case.kernel(**given).target == CUDA.name
        CUDA_DRIVER.synchronize()
        assert case.wrong({one: given[one].host() for one in case.results}) == []
