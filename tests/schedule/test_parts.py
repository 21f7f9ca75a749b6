"""Loops that carry a state in parts: each block has a part, and the last one merges all states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang.fragments import Fragment
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.legality import AUTO
from tilewright.schedule.folds.parts import Added, Companion, Extreme, MergedStates, StateMerge
from tilewright.schedule.schedule import Schedule
from tilewright.targets.target import CUDA
from tilewright.testing import compare_algebra

from .folding import FoldCase, argmax, cases, moments
from .test_folds import COMPILED, FMA, MMA, NAMES, run

PARTS = (2, 3, 7, 14, 1000, AUTO)
"""Numbers of parts: up to 12 are merged at once, more in two rounds; `AUTO` leaves some tiles whole."""


def in_parts(schedule: Schedule, parts: int | str) -> Schedule:
    """Return a schedule with short steps, in parts."""
    run = max(schedule.atom.shape[1:])
    short = replace(schedule, tile=(schedule.tile[0], run, schedule.tile[2]))
    return replace(short, split_k=parts, blocks=20 if parts == AUTO else 0)


def split(case: FoldCase, parts: int | str, target: str = "reference", **words: Any) -> Any:
    """Split a case's kernel; the rest of the schedule is the chosen one, on CUDA that of sm_80.

    On sm_90a some cases have a schedule of warpgroups, which splits no loops.
    """
    if target == CUDA.name:
        words = {"arch": "sm_80", **words}
    known = case.kernel.bind().schedule_for(**case.arguments(), target=target, **words)
    return case.kernel.bind(schedule=in_parts(known, parts))


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    "name", [name for name in NAMES if all(size not in name for size in ("0, 2", "00", "90", "64, 64"))]
)
def test_random_problems_in_parts(name: str, target: str) -> None:
    # A processor compiles a kernel for each number, and three other ones in the next case.
    first = 3 * (NAMES.index(name) % 2)
    for seed, parts in enumerate(PARTS[first : first + 3] if target == "cpu" else PARTS[-3:], first):
        case = dict(cases(seed, ragged=seed % 3 != 0))[name]
        run(case, target, split(case, parts, target))


@pytest.mark.parametrize("way", [MMA, replace(MMA, staging="cp_async", stages=3), FMA])
def test_every_staging_in_parts(way: Schedule) -> None:
    kind = "f4" if way is FMA else "f2"
    case = dict(cases(21))[f"attention, {kind}, 24, 40"]
    for parts, target in ((3, "reference"), (14, "cpu")):
        run(case, target, case.kernel.bind(schedule=in_parts(way, parts)))


def test_no_steps_leave_the_start() -> None:
    a = np.empty((5, 0), np.float16)
    mean, variance = np.zeros((2, 5), np.float32)
    x, w, at = np.ones((5, 8), np.float16), np.ones((8, 0), np.float16), np.full(5, -1, np.int32)
    best = np.full(5, np.nan, np.float32)
    for target in ("reference", "cpu"):
        moments_known = moments.bind().schedule_for(a, mean, variance, target=target)
        with np.errstate(all="ignore"):
            moments.bind(schedule=in_parts(moments_known, 3))(a, mean, variance, target=target)
        assert np.isnan(mean).all(), "0 / 0"
        known = argmax.bind().schedule_for(x, w, best, at, target=target)
        argmax.bind(schedule=in_parts(known, AUTO))(x, w, best, at, target=target)
        assert (best == -np.inf).all()
        assert (at == 0).all()


def test_rows_without_a_finite_score_stay_as_they_are() -> None:
    """The maxima of these parts are -inf, and the difference of two of them is NaN."""

    @tw.kernel(X="M N", y="M")
    def log_sum_exp(X, y):
        for m in tw.tiles(y):
            top, total = tw.full((m,), -float("inf"), tw.f32), tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                new = tw.maximum(top, X[m, n].max(axis=1))
                base = tw.where(new == -float("inf"), 0.0, new)
                total.assign(total * tw.exp(top - base) + tw.exp(X[m, n] - base[:, None]).sum(axis=1))
                top.assign(new)
            y[m] = tw.log(total) + top

    x = np.full((6, 64), -np.inf, np.float32)
    x[1, 3], x[2, 60], x[3, 32] = 1.0, 2.0, 3.0
    x[4, :] = 88.0  # the sum of exponentials alone overflows
    right = np.array([-np.inf, 1, 2, 3, 88 + np.log(64), -np.inf])
    for target in ("reference", "cpu"):
        y = np.zeros(6, np.float32)
        known = log_sum_exp.bind().schedule_for(x, y, target=target)
        with np.errstate(all="ignore"):
            log_sum_exp.bind(schedule=in_parts(known, 4))(x, y, target=target)
        assert np.allclose(y, right, rtol=4e-7, atol=0)


def test_repeated_runs_have_the_same_bits() -> None:
    case = dict(cases(22))["attention, f4, 24, 40"]
    found = []
    for _ in range(3):
        given = case.arguments()
        split(case, 7, "cpu")(**given, target="cpu")
        found.append(given["O"].tobytes())
    assert len(set(found)) == 1


# ---------------------------------------------------------------- which states merge


def rules(name: str) -> list[Any]:
    case = dict(cases(0))[name]
    return StateMerge(fold_form_of(case.kernel.flow(**case.arguments()))).rules


def test_rules_of_cells() -> None:
    assert [type(one) for one in rules("cross entropy, f2, K = 24")] == [Extreme, Added, Added]
    top, total, out = rules("attention, f2, 24, 40")
    assert isinstance(top, Extreme)
    assert (total.by, out.by) == (0, 0)
    assert total.keep is not None
    _, hit = rules("cross entropy, f2, K = 24")[1:]
    assert hit.keep is None
    assert [type(one) for one in rules("argmax")] == [Extreme, Companion]


def reason(step: Any, start: float = 0.0) -> str:
    """Return why the second cell of a loop does not merge; its first cell is a running maximum."""

    @tw.kernel(X="M N", y="M", scale=tw.f32)
    def folded(X, y, scale, *, begin: float):
        for m in tw.tiles(y):
            top, cell = tw.full((m,), -1e30, tw.f32), tw.full((m,), begin, tw.f32)
            for n in tw.steps(X.shape[1]):
                x = X[m, n]
                here = x.max(axis=1)
                new = tw.maximum(top, here)
                cell.assign(step(cell, top, new, here, x, scale))
                top.assign(new)
            y[m] = cell + top

    arrays = np.zeros((4, 8), np.float32), np.zeros(4, np.float32)
    return StateMerge(fold_form_of(folded.bind(begin=start).flow(*arrays, 1.0))).against


def weights(x: Any, by: Any, scale: Any = 1.0) -> Any:
    return tw.exp2((x - by[:, None]) * scale)


MERGES = {
    "a sum": lambda c, t, new, here, x, k: c + x.sum(axis=1),
    "a difference": lambda c, t, new, here, x, k: c - x.max(axis=1) * k,
    "rescaled": lambda c, t, new, here, x, k: c * tw.exp2(t - new) + weights(x, new).sum(axis=1),
    "by a factor": lambda c, t, new, here, x, k: (
        c * tw.exp2((t - new) * k) + weights(x, new, k).sum(axis=1)
    ),
    "two factors": lambda c, t, new, here, x, k: (
        c * tw.exp2(k * t * 0.5 - new * (0.5 * k))
        + tw.exp2(x * 3 - (0.5 * k * new)[:, None]).sum(axis=1)
    ),
    "weighted values": lambda c, t, new, here, x, k: (
        c * tw.exp(t - new) + (tw.exp(x - new[:, None]) * x / k).sum(axis=1)
    ),
    "some terms": lambda c, t, new, here, x, k: (
        tw.fma(c, tw.exp(t - new), tw.where(x > 0, tw.exp(x - new[:, None]), 0.0).sum(axis=1))
    ),
    "a companion": lambda c, t, new, here, x, k: tw.where(here > t, x.min(axis=1), c),
}  # fmt: skip

DOES_NOT = {
    "decays": lambda c, t, new, here, x, k: c * 0.5 + x.sum(axis=1),
    "alternates": lambda c, t, new, here, x, k: x.sum(axis=1) - c,
    "twice": lambda c, t, new, here, x, k: c + c + x.sum(axis=1),
    "a product": lambda c, t, new, here, x, k: c * x.max(axis=1),
    "a stale extreme": lambda c, t, new, here, x, k: c * tw.exp2(t - new) + weights(x, t).sum(axis=1),
    "no rescale": lambda c, t, new, here, x, k: c + weights(x, new).sum(axis=1),
    "no weights": lambda c, t, new, here, x, k: c * tw.exp2(t - new) + x.sum(axis=1),
    "the wrong way": lambda c, t, new, here, x, k: c * tw.exp2(new - t) + weights(x, new).sum(axis=1),
    "another function": lambda c, t, new, here, x, k: c * tw.exp(t - new) + weights(x, new).sum(axis=1),
    "another factor": lambda c, t, new, here, x, k: (
        c * tw.exp2((t - new) * k) + weights(x, new).sum(axis=1)
    ),
    "half": lambda c, t, new, here, x, k: c * tw.exp2(t - new * 0.5) + weights(x, new * 0.5).sum(axis=1),
    "the largest weight": lambda c, t, new, here, x, k: c * tw.exp2(t - new) + weights(x, new).max(axis=1),
    "squares": lambda c, t, new, here, x, k: (
        c * tw.exp2(t - new) + (weights(x, new) * weights(x, new)).sum(axis=1)
    ),
    "where the extreme stays": lambda c, t, new, here, x, k: tw.where(here < t, x.min(axis=1), c),
    "the last companion": lambda c, t, new, here, x, k: tw.where(here >= t, x.min(axis=1), c),
    "of another value": lambda c, t, new, here, x, k: tw.where(x.min(axis=1) > t, here, c),
}  # fmt: skip


@pytest.mark.parametrize("way", MERGES)
def test_states_that_merge(way: str) -> None:
    assert reason(MERGES[way]) == ""


@pytest.mark.parametrize("way", DOES_NOT)
def test_states_that_do_not_merge(way: str) -> None:
    assert "cell of two parts cannot be merged" in reason(DOES_NOT[way])


def test_a_sum_that_does_not_begin_with_0() -> None:
    """Every part would add the start."""
    assert "a sum from 0" in reason(MERGES["a sum"], start=5.0)
    assert "a sum from 0" in reason(MERGES["rescaled"], start=5.0)
    assert reason(MERGES["a companion"], start=5.0) == ""


REFUSED = [
    ({"split_k": "stream", "blocks": 8}, 'split_k="stream"; the loop over k carries top', 'split_k="auto"'),
    ({"split_k": AUTO}, 'split_k="auto" with blocks=0', "blocks=132"),
    ({"split_k": 2, "blocks": 8}, "blocks=8 with split_k=2", 'blocks=0, or split_k="auto"'),
    ({"blocks": 8}, "blocks=8 with split_k=1", 'blocks=0, or split_k="auto"'),
    ({"split_k": 2, "reduction": "turnstile"}, 'reduction="turnstile"', 'reduction="workspace"'),
]


@pytest.mark.parametrize(("fields", "why", "near"), REFUSED, ids=[why for _, why, _ in REFUSED])
def test_an_illegal_split_is_refused_with_the_nearest_legal_choice(
    fields: dict[str, Any], why: str, near: str
) -> None:
    case = dict(cases(0))["largest"]
    known = case.kernel.bind().schedule_for(**case.arguments(), target="reference")
    with pytest.raises(tw.ScheduleError, match=f"(?s){why}.*{near}"):
        case.kernel.bind(schedule=replace(known, **fields)).compile(**case.arguments(), target="reference")


def test_a_state_that_does_not_merge_is_refused() -> None:
    @tw.kernel(X="M N", y="M")
    def decaying(X, y):
        for m in tw.tiles(y):
            state = tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1]):
                state.assign(state * 0.5 + X[m, n].sum(axis=1))
            y[m] = state

    arrays = np.zeros((4, 8), np.float32), np.zeros(4, np.float32)
    known = decaying.bind().schedule_for(*arrays, target="reference")
    with pytest.raises(tw.ScheduleError, match=r"(?s)split_k=2; state of two parts.*split_k=1"):
        decaying.bind(schedule=replace(known, split_k=2)).compile(*arrays, target="reference")


# ---------------------------------------------------------------- parts are equal as algebra


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", L="M", scale=tw.f32)
def weighted(Q, K, V, O, L, scale):
    """Averages by powers, and the total times the power of the shift."""
    for m, e in tw.tiles(O):
        top, total, out = tw.full((m,), -3e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0]):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            new = tw.maximum(top, s.max(axis=1))
            p, keep = tw.exp2((s - new[:, None]) * scale), tw.exp2((top - new) * scale)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[n, e])
            top.assign(new)
        O[m, e] = out * (1.0 / total)[:, None]
        L[m] = total * tw.exp2(top * scale)


LIKE = [tw.like("f16", *shape) for shape in ((40, 16), (112, 16), (112, 24), (40, 24))] + [tw.like("f32", 40)]
ALGEBRA = Schedule(tw.atoms.MMA_F16, (32, 16, 16), (2, 1), width=24, resident=True)


def test_parts_are_equal_over_pairs_of_residues() -> None:
    whole = weighted.bind(schedule=ALGEBRA)
    for parts in (2, 3, 7):
        other = weighted.bind(schedule=replace(ALGEBRA, split_k=parts))
        compare_algebra(whole, other, *LIKE, scale=0.25, exponentials=True).raise_if_wrong()


def without_rescale(
    self: StateMerge, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]
) -> Any:
    made = right(self, place, first, second)
    return [made[0], *(one + other for one, other in zip(first[1:], second[1:], strict=True))]


def inverted(self: StateMerge, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]) -> Any:
    """Each part is rescaled by the other part's factor."""
    made = right(self, place, [first[0], *second[1:]], [second[0], *first[1:]])
    return [made[0], *made[1:]]


def stale(self: StateMerge, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]) -> Any:
    """The extreme is that of the first part."""
    return [first[0], *right(self, place, first, second)[1:]]


def left_out(self: StateMerge, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]) -> Any:
    return list(first)


def exchanged(self: StateMerge, place: Any, first: Sequence[Fragment], second: Sequence[Fragment]) -> Any:
    return right(self, place, second, first)


right = StateMerge.merged


@pytest.fixture
def anew(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Return a function that clears a kernel's traces, now and after the test."""

    def forget(bound: Any) -> Any:
        bound.forget()
        request.addfinalizer(bound.forget)
        return bound

    return forget


@pytest.mark.parametrize("mutant", [without_rescale, inverted, stale, left_out])
def test_mutants_of_merges_differ(mutant: Any, monkeypatch: pytest.MonkeyPatch, anew: Any) -> None:
    whole, other = (weighted.bind(schedule=replace(ALGEBRA, split_k=parts)) for parts in (1, 3))
    case = dict(cases(23))["attention, f2, 24, 40"]
    parts = split(case, 3)
    run(case, "reference", anew(parts))
    monkeypatch.setattr(StateMerge, "merged", mutant)
    with pytest.raises(AssertionError):
        run(case, "reference", anew(parts))
    assert not compare_algebra(whole, anew(other), *LIKE, scale=0.25, exponentials=True).ok


def test_the_order_of_parts_counts(monkeypatch: pytest.MonkeyPatch, anew: Any) -> None:
    """Among equal scores the first one counts."""
    case = dict(cases(24))["argmax"]
    run(case, "reference", anew(split(case, 5)))
    monkeypatch.setattr(StateMerge, "merged", exchanged)
    with pytest.raises(AssertionError):
        run(case, "reference", anew(split(case, 5)))


def test_a_part_that_is_left_out_is_wrong(monkeypatch: pytest.MonkeyPatch, anew: Any) -> None:
    case = dict(cases(25))["attention, f2, 24, 40"]
    add = MergedStates._add

    def short(self: Any, work: Any, totals: Any, first: Any, count: Any, step: int) -> None:
        add(self, work, totals, first, count - 1, step)

    monkeypatch.setattr(MergedStates, "_add", short)
    with pytest.raises(AssertionError):
        run(case, "reference", anew(split(case, 3)))


# ---------------------------------------------------------------- hazards, compilers, the choice


@pytest.mark.parametrize("name", ["attention, f2, 24, 40", "argmax"])
def test_the_checker_has_no_findings(name: str) -> None:
    case = dict(cases(26))[name]
    for parts in (3, 14):
        assert not split(case, parts).check(**case.arguments(), outputs=tuple(case.results)).findings


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_parts_without_spills(target: str, arch: str) -> None:
    first = COMPILED.index((target, arch)) % 2  # the machines of one vendor share the pairs
    for number, name in enumerate(("attention, f2, 64, 64", "argmax", "moments")):
        case, parts = dict(cases(27))[name], (5, AUTO)[(first + number) % 2]
        # That of sm_80 where warpgroups would compute, which take no parts.
        older = "sm_80" if arch == "sm_90a" else arch
        schedule = case.kernel.bind().schedule_for(**case.arguments(), target=target, arch=older)
        schedule = replace(schedule, split_k=parts, blocks=200 if parts == AUTO else 0)
        made = case.kernel.bind(schedule=schedule).compile(**case.arguments(), target=target, arch=arch)
        used = made.resources
        spilled = used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0)
        assert spilled <= 8, (name, used)


def test_few_tiles_are_split_and_many_are_not() -> None:
    def schedule(heads: int, rows: int, keys: int, arch: str) -> Schedule:
        case = dict(cases(0))["attention, f2, 64, 64"]
        arrays = {
            name: np.empty((1, heads, count, 64), np.float16)
            for name, count in (("Q", rows), ("K", keys), ("V", keys), ("O", rows))
        }
        found = case.kernel.bind().schedule_for(**arrays, scale=0.1, target="cuda", arch=arch)
        assert isinstance(found, Schedule)
        return found

    for arch in ("sm_80", "sm_90a"):
        few = [schedule(8, 1, keys, arch) for keys in (4096, 5000, 65536)]
        assert {one.split_k for one in few} == {AUTO}
        assert len({repr(one) for one in few}) == 1, "one kernel serves growing keys"
        assert few[0].tile[:2] == (16, 64), "the rows of one instruction, and long steps"
        assert schedule(8, 1, 128, arch).split_k == 1, "too few steps"
        assert schedule(64, 1, 8192, arch).split_k == AUTO, "more blocks read more at the same time"
        assert schedule(64, 1024, 4096, arch).split_k == 1, "every processor has a tile"


@pytest.mark.gpu
@pytest.mark.parametrize("name", NAMES)
def test_parts_on_a_gpu(name: str) -> None:
    for seed, parts in enumerate((2, 7, 14, AUTO)):
        case = dict(cases(seed + 30, ragged=seed % 2 == 0))[name]
        for _ in range(2):  # the second launch finds counters that the first one has reset
            given = case.arguments(DeviceArray.of)
            assert split(case, parts, CUDA.name)(**given).target == CUDA.name
            CUDA_DRIVER.synchronize()
            assert case.wrong({one: given[one].host() for one in case.results}) == []
