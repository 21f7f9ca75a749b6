"""Merges that an author states, for loops whose steps do not imply how parts merge."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.legality import AUTO
from tilewright.schedule.folds.parts import Extreme, Stated, StateMerge
from tilewright.targets.target import CUDA
from tilewright.testing import compare_algebra

from .folding import FoldCase, U, add_moments, poison, scores
from .test_folds import COMPILED, run
from .test_parts import PARTS, in_parts, split


def chan(a, b):
    """Merge the moments of two samples; T. F. Chan, G. H. Golub, R. J. LeVeque, "Updating formulae", 1979."""
    (count, mu, squares), (more, other, rest) = a, b
    both, apart = count + more, other - mu
    return both, mu + apart * (more / both), squares + rest + apart * apart * (count * more / both)


@tw.kernel(X="M N", mean="M", variance="M")
def welford(X, mean, variance):
    for m in tw.tiles(mean):
        count, mu, squares = (tw.zeros((m,), tw.f32) for _ in range(3))
        for n in tw.steps(X.shape[1], state=(count, mu, squares), merge=chan):
            add_moments(X[m, n].to(tw.f32), count, mu, squares)
        mean[m], variance[m] = mu, squares / count


@tw.kernel(X="M K", W="K N", best="M", more="M")
def positive(X, W, best, more):
    """Return the largest score of each row, and the number of positive ones."""
    for m in tw.tiles(best):
        top, count = tw.full((m,), -math.inf, tw.f32), tw.full((m,), 0, tw.i32)
        for n in tw.steps(W.shape[1], state=count, merge=lambda a, b: a + b):
            s = tw.zeros(dtype=tw.f32)
            for k in tw.steps(X.shape[1]):
                s += X[m, k] @ W[k, n]
            count.assign(count + tw.where(s > 0, 1, 0).sum(axis=1))
            top.assign(tw.maximum(top, s.max(axis=1)))
        best[m], more[m] = top, count


@tw.kernel(X="M N", y="M", rate=tw.f32)
def decayed(X, y, rate):
    """``y[m] = sum_n x[m, n] 2**(rate (n - N + 1))``: the order of parts matters."""
    for m in tw.tiles(y):
        state, end = tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
        for n in tw.steps(X.shape[1], state=(state, end), merge=later(rate)):
            x, at = X[m, n].to(tw.f32), tw.positions(n).to(tw.f32)
            last = (at + 0 * x).max(axis=1)
            added = (x * tw.exp2(rate * (at - last[:, None]))).sum(axis=1)
            state.assign(state * tw.exp2(rate * (end - last)) + added)
            end.assign(last)
        y[m] = state


def later(rate):
    return lambda a, b: (a[0] * tw.exp2(rate * (a[1] - b[1])) + b[0], b[1])


@tw.kernel(Q="M D", K="N D", V="N E", O="M E", scale=tw.f32)
def causal(Q, K, V, O, scale):
    """Attention, with its merge; if masks leave out steps, some parts have no steps."""
    for m, e in tw.tiles(O):
        top, total, out = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        for n in tw.steps(K.shape[0], state=(top, total, out), merge=rescaled):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[1]):
                s += Q[m, d] @ K[n, d].T
            s = tw.where(tw.positions(n) <= tw.positions(m)[:, None], scale * s, -math.inf)
            new = tw.maximum(top, s.max(axis=1))
            p, keep = tw.exp(s - new[:, None]), tw.exp(top - new)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ V[n, e])
            top.assign(new)
        O[m, e] = out / total[:, None]


def rescaled(a, b):
    top = tw.maximum(a[0], b[0])
    first, second = tw.exp(a[0] - top), tw.exp(b[0] - top)
    total = first * a[1] + second * b[1]
    return top, total, first[:, None] * a[2] + second[:, None] * b[2]


def moments_case(seed: int, M: int = 37, N: int = 94) -> FoldCase:
    rng = np.random.default_rng(seed)
    x = (100 + rng.standard_normal((M, N))).astype(np.float16)
    wide = x.astype(np.float64)
    off = (N + 16) * U * np.abs(wide).max(axis=1)  # of the mean
    spread = wide.var(axis=1)
    return FoldCase(
        welford,
        {"X": x},
        {"mean": poison("f4", M), "variance": poison("f4", M)},
        {"mean": wide.mean(axis=1), "variance": spread},
        {"mean": off, "variance": 8 * (N + 16) * U * spread + 8 * off**2 + 4 * off * np.sqrt(spread)},
    )


def causal_case(seed: int) -> FoldCase:
    rng = np.random.default_rng(seed)
    q, k, s, off = scores(rng, 94, 24, 94, "f2")
    v = rng.standard_normal((94, 40)).astype(np.float16)
    s = np.where(np.arange(94) <= np.arange(94)[:, None], 0.25 * s, -np.inf)
    p = np.exp(s - s.max(axis=1)[:, None])
    p /= p.sum(axis=1)[:, None]
    rel = np.expm1(off)[:, None] + 400 * U + 2.0**-9
    return FoldCase(
        causal,
        {"Q": q, "K": np.ascontiguousarray(k.T), "V": v, "scale": 0.25},
        {"O": poison("f2", 94, 40)},
        {"O": p @ v.astype(np.float64)},
        {"O": rel * (p @ np.abs(v.astype(np.float64))) + 2.0**-20},
    )


def decayed_case(seed: int) -> FoldCase:
    M, N, rate = 21, 90, 0.125
    x = np.random.default_rng(seed).standard_normal((M, N)).astype(np.float16)
    weights = np.exp2(rate * (np.arange(N) - N + 1.0))
    sizes = np.abs(x.astype(np.float64)) @ weights
    return FoldCase(
        decayed,
        {"X": x, "rate": rate},
        {"y": poison("f4", M)},
        {"y": x.astype(np.float64) @ weights},
        {"y": (N + 60) * U * sizes},
    )


CASES = {"moments": moments_case, "causal": causal_case, "decayed": decayed_case}


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("name", CASES)
def test_parts_merge_as_the_author_states(name: str, target: str) -> None:
    for seed, parts in enumerate(PARTS if target == "cpu" else (3, 14, 1000)):
        case = CASES[name](seed)
        run(case, target, split(case, parts, target))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_the_order_of_parts_is_that_of_the_loop(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = decayed_case(3)
    right, mutant = StateMerge.merged, split(case, 3, target)

    def exchanged(self: Any, place: Any, first: Any, second: Any) -> Any:
        return right(self, place, second, first)

    mutant.forget()
    monkeypatch.setattr(StateMerge, "merged", exchanged)
    with pytest.raises(AssertionError):
        run(case, target, mutant)
    mutant.forget()


def test_stated_and_derived_merges_serve_one_loop() -> None:
    x, w, s, _ = scores(np.random.default_rng(4), 37, 24, 94, "f2")
    best, more = np.full(37, np.nan, np.float32), np.full(37, -1, np.int32)
    form = fold_form_of(positive.flow(x, w, best, more))
    assert {type(one) for one in StateMerge(form).rules} == {Stated, Extreme}
    for target in ("reference", "cpu"):
        known = positive.bind().schedule_for(x, w, best, more, target=target)
        positive.bind(schedule=in_parts(known, 4))(x, w, best, more, target=target)
        assert np.allclose(best, s.max(axis=1), rtol=1e-5)
        assert (more == (s > 0).sum(axis=1)).all()


def test_merges_print_and_parse() -> None:
    for case in (moments_case(0), causal_case(0), decayed_case(0)):
        flow = case.kernel.flow(**case.arguments())
        text = tw.ir.print_flow(flow)
        assert tw.ir.parse_flow(text) == flow
        assert "_first" in text
        [fold] = {one.fold for one in flow.walk() if type(one).__name__ == "Folded"}
        other = replace(fold, merges=())
        assert text != tw.ir.print_flow(_with(flow, fold, other))


def _with(flow: Any, fold: Any, other: Any) -> Any:
    """Return the flow of a loop without the author's merges."""

    def again(node: Any) -> Any:
        if type(node).__name__ == "Folded":
            return replace(node, fold=other)
        given = {
            name: again(value) if hasattr(value, "axes") else tuple(map(again, value))
            for name in ("argument", "given")
            if (value := getattr(node, name, None)) is not None
        }
        return replace(node, **given) if given else node

    return replace(flow, stores=tuple(replace(one, value=again(one.value)) for one in flow.stores))


def test_parts_are_equal_as_algebra() -> None:
    """Quotients of residues are exact, so the moments of merged parts equal those of the whole."""
    like = tw.like("f16", 40, 112), tw.like("f32", 40), tw.like("f32", 40)
    known = welford.bind().schedule_for(*moments_case(0).arguments().values(), target="reference")
    whole = welford.bind(schedule=in_parts(known, 1))
    for parts in (2, 3, 7):
        other = welford.bind(schedule=in_parts(known, parts))
        compare_algebra(whole, other, *like).raise_if_wrong()
    attention = [tw.like("f16", *shape) for shape in ((40, 16), (112, 16), (112, 24), (40, 24))]
    known = causal.bind().schedule_for(**causal_case(0).arguments(), target="reference")
    whole = causal.bind(schedule=in_parts(known, 1))
    other = causal.bind(schedule=in_parts(known, 3))
    compare_algebra(whole, other, *attention, scale=0.25, exponentials=True).raise_if_wrong()


@pytest.mark.parametrize("kind", ["f8", "f2"])
def test_states_of_other_dtypes(kind: str) -> None:
    """f64 is embedded exactly; a trial of an f16 state, rounded at each step, has a larger bound."""

    @tw.kernel(X="M N", y="M")
    def mean(X, y):
        for m in tw.tiles(y):
            mu, count = tw.zeros((m,), X.dtype), tw.zeros((m,), X.dtype)
            for n in tw.steps(X.shape[1], state=(mu, count), merge=weighed):
                more = (0 * X[m, n] + 1).sum(axis=1)
                mu.assign((mu * count + X[m, n].sum(axis=1)) / (count + more))
                count.assign(count + more)
            y[m] = mu

    def weighed(a, b):
        return (a[0] * a[1] + b[0] * b[1]) / (a[1] + b[1]), a[1] + b[1]

    x, y = np.random.default_rng(7).standard_normal((5, 40)).astype(kind), np.full(5, np.nan, kind)
    for target in ("reference", "cpu"):
        known = mean.bind().schedule_for(x, y, target=target)
        mean.bind(schedule=in_parts(known, 3))(x, y, target=target)
        assert np.allclose(y, x.astype(np.float64).mean(axis=1), atol=40 * tw.dtype(x.dtype).unit_roundoff)


# ---------------------------------------------------------------- merges that are wrong


def wrong_count(a, b):
    made = chan(a, b)
    return made[0] + 1, *made[1:]


def without_distance(a, b):
    made = chan(a, b)
    return *made[:2], a[2] + b[2]


def inverted(a, b):
    return chan(a, (b[0], 2 * a[1] - b[1], b[2]))


def almost(a, b):
    made = chan(a, b)
    return *made[:2], made[2] * (1 + 2.0**-20)


def of_the_first(a, b):
    return a


def mean_of_means(a, b):
    made = chan(a, b)
    return made[0], (a[1] + b[1]) / 2, made[2]


WRONG = [wrong_count, without_distance, inverted, almost, of_the_first, mean_of_means]


@pytest.mark.parametrize("merge", WRONG, ids=lambda merge: merge.__name__)
def test_a_merge_that_disagrees_with_the_steps_is_refused(merge: Any) -> None:
    @tw.kernel(X="M N", mean="M")
    def moments(X, mean):
        for m in tw.tiles(mean):
            count, mu, squares = (tw.zeros((m,), tw.f32) for _ in range(3))
            for n in tw.steps(X.shape[1], state=(count, mu, squares), merge=merge):
                add_moments(X[m, n].to(tw.f32), count, mu, squares)
            mean[m] = mu + squares / count

    x, mean = np.ones((4, 32), np.float16), np.zeros(4, np.float32)
    with pytest.raises(tw.TraceError, match=r"(?s)the merge of the loop over n is wrong.*modulo primes"):
        moments(x, mean, target="reference")


def stale(a, b):
    top = tw.maximum(a[0], b[0])
    return top, a[1] + b[1] * tw.exp(b[0] - top)


def no_rescale(a, b):
    return tw.maximum(a[0], b[0]), a[1] + b[1]


def the_other_way(a, b):
    top = tw.maximum(a[0], b[0])
    return top, a[1] * tw.exp(b[0] - top) + b[1] * tw.exp(a[0] - top)


def right_sum(a, b):
    top = tw.maximum(a[0], b[0])
    return top, a[1] * tw.exp(a[0] - top) + b[1] * tw.exp(b[0] - top)


@pytest.mark.parametrize("merge", [stale, no_rescale, the_other_way], ids=lambda merge: merge.__name__)
def test_wrong_rescales_are_refused(merge: Any) -> None:
    def loop(merge: Any) -> Any:
        @tw.kernel(X="M N", y="M")
        def log_sum_exp(X, y):
            for m in tw.tiles(y):
                top, total = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32)
                for n in tw.steps(X.shape[1], state=(top, total), merge=merge):
                    new = tw.maximum(top, X[m, n].max(axis=1))
                    total.assign(total * tw.exp(top - new) + tw.exp(X[m, n] - new[:, None]).sum(axis=1))
                    top.assign(new)
                y[m] = tw.log(total) + top

        return log_sum_exp

    x, y = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32), np.zeros(4, np.float32)
    assert loop(right_sum)(x, y, target="reference").target == "reference"
    assert np.allclose(y, np.logaddexp.reduce(x.astype(np.float64), axis=1), rtol=1e-5)
    with pytest.raises(tw.TraceError, match=r"(?s)total of merged parts.*differ on random numbers"):
        loop(merge)(x, y, target="reference")


def test_ties_are_tried_and_the_order_of_parts() -> None:
    """Random numbers are never equal, small integers often are."""

    def loop(merge: Any) -> Any:
        @tw.kernel(X="M N", at="M")
        def argmax(X, at):
            for m in tw.tiles(at):
                top, place = tw.full((m,), -math.inf, tw.f32), tw.full((m,), 0, tw.i32)
                for n in tw.steps(X.shape[1], state=(top, place), merge=merge):
                    here = X[m, n].max(axis=1)
                    first = tw.where(X[m, n] == here[:, None], tw.positions(n), 2**30).min(axis=1)
                    place.assign(tw.where(here > top, first, place))
                    top.assign(tw.maximum(top, here))
                at[m] = place

        return argmax

    def first(a, b):
        return tw.maximum(a[0], b[0]), tw.where(b[0] > a[0], b[1], a[1])

    def last(a, b):
        return tw.maximum(a[0], b[0]), tw.where(b[0] >= a[0], b[1], a[1])

    x, at = np.zeros((4, 32), np.float32), np.zeros(4, np.int32)
    x[:, 7] = x[:, 9] = 1
    loop(first)(x, at, target="reference")
    assert (at == 7).all()
    with pytest.raises(tw.TraceError, match=r"(?s)place of merged parts.*differ on small integers"):
        loop(last)(x, at, target="reference")
    with pytest.raises(tw.TraceError, match=r"(?s)state of merged parts.*differ modulo primes"):
        decaying_by_gates(lambda a, b: (b[0] * tw.exp2(a[1]) + a[0], a[1] + b[1]))(x, x, x[:, 0].copy())


def decaying_by_gates(merge: Any) -> Any:
    """A power of each step's sum decays the state, for any length of a step."""

    @tw.kernel(X="M N", G="M N", y="M")
    def decaying(X, G, y):
        for m in tw.tiles(y):
            state, gates = tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
            for n in tw.steps(X.shape[1], state=(state, gates), merge=merge):
                total = G[m, n].sum(axis=1)
                state.assign(state * tw.exp2(total) + X[m, n].sum(axis=1))
                gates.assign(gates + total)
            y[m] = state

    return decaying


REFUSED = {
    "state without merge": ({"state": "both"}, "state= without merge=.*both"),
    "merge without state": ({"merge": chan}, "merge= without state=.*both"),
    "no accumulator": ({"state": "array", "merge": chan}, "no loop carries.*tw.zeros or tw.full"),
    "no change": ({"state": "idle", "merge": chan}, "no step changes.*assigns"),
    "too few": ({"state": "both", "merge": lambda a, b: (a[0],)}, "1 values for 2.*each accumulator"),
    "an array enters": ({"state": "both", "merge": "array"}, "enters total.*states of both parts"),
    "other axes": ({"state": "both", "merge": "axes"}, "total is \\[m\\], and its merge \\[m, 1\\]"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    words, text = REFUSED[name]

    @tw.kernel(X="M N", b="M", y="M")
    def summed(X, b, y):
        for m in tw.tiles(y):
            total, more = tw.zeros((m,), tw.f32), tw.zeros((m,), tw.f32)
            idle = tw.zeros((m,), tw.f32)
            given: dict[str, Any] = dict(words)
            states = {"both": (total, more), "array": (b[m],), "idle": (total, idle)}
            merges = {
                "array": lambda a, c, m=m: (a[0] + c[0] + b[m], a[1] + c[1]),
                "axes": lambda a, c: ((a[0] + c[0])[:, None], a[1] + c[1]),
            }
            given |= {"state": states[given["state"]]} if "state" in given else {}
            given |= {"merge": merges[given["merge"]]} if given.get("merge") in merges else {}
            for n in tw.steps(X.shape[1], **given):
                total.assign(total + X[m, n].sum(axis=1))
                more.assign(more + X[m, n].max(axis=1))
            y[m] = total + more + idle

    arrays = np.zeros((4, 32), np.float32), np.zeros(4, np.float32), np.zeros(4, np.float32)
    with pytest.raises(tw.TraceError, match=f"(?s){text}"):
        summed(*arrays, target="reference")


# ---------------------------------------------------------------- hazards, compilers, GPUs


def test_the_checker_has_no_findings() -> None:
    case = moments_case(5)
    for parts in (3, 14):
        assert not split(case, parts).check(**case.arguments(), outputs=tuple(case.results)).findings


@pytest.mark.parametrize(("target", "arch"), COMPILED)
def test_gpus_compile_stated_merges(target: str, arch: str) -> None:
    older = "sm_80" if arch == "sm_90a" else arch
    for case in (moments_case(6), causal_case(6)):
        schedule = case.kernel.bind().schedule_for(**case.arguments(), target=target, arch=older)
        schedule = replace(schedule, split_k=AUTO, blocks=200)
        made = case.kernel.bind(schedule=schedule).compile(**case.arguments(), target=target, arch=arch)
        used = made.resources
        assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) <= 8


def test_few_rows_take_parts() -> None:
    x, mean = tw.like("f16", 2, 1 << 20), tw.like("f32", 2)
    assert welford.bind().schedule_for(x, mean, mean, target=CUDA.name, arch="sm_90a").split_k == AUTO


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_stated_merges_on_a_gpu(name: str) -> None:
    for seed, parts in enumerate((2, 7, 14, 1000, AUTO)):
        case = CASES[name](seed + 30)
        for _ in range(2):  # the second launch finds counters that the first one has reset
            given = case.arguments(DeviceArray.of)
            assert split(case, parts, CUDA.name)(**given).target == CUDA.name
            CUDA_DRIVER.synchronize()
            assert case.wrong({one: given[one].host() for one in case.results}) == []
