"""Loops whose steps store results, with a state of other rows: linear attention with a state that decays."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.folds import expand
from tilewright.schedule.schedule import Schedule

from .folding import Array, FoldCase, U, poison, strided
from .test_fold_texts import lines
from .test_folds import run


@tw.kernel(Q="B N D", K="B N D", V="B N E", rate="B", O="B N E")
def linear_attention(Q, K, V, rate, O):
    for b, e in tw.tiles((O.shape[0], O.shape[2]), batch=1):
        S = tw.zeros((Q.shape[2], e), tw.f32)
        for n in tw.steps(Q.shape[1]):
            i = tw.alias(n)
            row, column, g = tw.positions(i)[:, None], tw.positions(n), rate[b]
            first, last = column.min(axis=0), column.max(axis=0)
            s = Q[b, i] @ K[b, n].T
            s = tw.where(column <= row, s * tw.exp2(g * (row - column).to(tw.f32)), 0.0).to(V.dtype)
            seen = tw.exp2(g * (row - first + 1).to(tw.f32)) * (Q[b, i] @ S.to(V.dtype))
            O[b, i, e] = s @ V[b, n, e] + seen
            k = K[b, n] * tw.exp2(g * (last - column).to(tw.f32))[:, None].to(K.dtype)
            S.assign(S * tw.exp2(g * (last - first + 1).to(tw.f32)) + k.T @ V[b, n, e])


@tw.kernel(Q="B N D", K="B N D", V="B N E", before="B N", after="B N", O="B N E")
def gated(Q, K, V, before, after, O):
    """A factor for each position: ``before`` and ``after`` are sums of logarithms up to it, and with it."""
    for b, e in tw.tiles((O.shape[0], O.shape[2]), batch=1):
        S = tw.zeros((Q.shape[2], e), tw.f32)
        for n in tw.steps(Q.shape[1]):
            i = tw.alias(n)
            mine, other = after[b, i][:, None], after[b, n]
            start, end = before[b, n].max(axis=0), after[b, n].min(axis=0)
            s = Q[b, i] @ K[b, n].T
            s = tw.where(tw.positions(n) <= tw.positions(i)[:, None], s * tw.exp2(mine - other), 0.0)
            O[b, i, e] = s.to(V.dtype) @ V[b, n, e] + tw.exp2(mine - start) * (Q[b, i] @ S.to(V.dtype))
            k = K[b, n].T * tw.exp2(end - other).to(K.dtype)
            S.assign(S * tw.exp2(end - start) + k @ V[b, n, e])


@tw.kernel(X="N E", W="D E", A="N D", Y="N E", Z="N E")
def two_results(X, W, A, Y, Z):
    """A state with a factor for each row, two results in a step, and no product along the step of scores."""
    for e in tw.tiles(X.shape[1]):
        S = tw.full((W.shape[0], e), 1.0, tw.f32)
        for n in tw.steps(X.shape[0]):
            i = tw.alias(n)
            y = A[i] @ S.to(X.dtype)
            own = tw.where(tw.positions(n) < tw.positions(i)[:, None], A[i] @ A[n].T, 0.0).to(X.dtype)
            Y[i, e] = y + own @ X[n, e]
            Z[i, e] = (y + own @ X[n, e]) * X[i, e].to(tw.f32)
            S.assign(S + A[n].T @ X[n, e])


def decayed(
    given: dict[str, Array], logs: Array, kernel: Any, kind: str, out: str, more: dict[str, Any]
) -> FoldCase:
    """Return a case with results in f64: ``o_i = sum_j 2^(logs_i - logs_j) (q_i k_j) v_j`` for j up to i.

    Rounding bounds each result.  Scores, or keys with their factors and the state, are rounded to the dtype
    of the operands: at most 4 times.  Sums and factors are those of f32.  Numbers below the normal ones of
    f16 have an absolute error.
    """
    q, k, v = (given[name].astype(np.float64) for name in "QKV")
    N = q.shape[1]
    far = logs[:, :, None] - logs[:, None, :]
    weights = np.where(np.tri(N, dtype=bool), np.exp2(np.minimum(far, 0)), 0)
    right = weights * (q @ k.transpose(0, 2, 1)) @ v
    sizes = weights * (np.abs(q) @ np.abs(k).transpose(0, 2, 1)) @ np.abs(v)
    u = tw.dtype(np.dtype(kind)).unit_roundoff
    small = 2.0**-25 if kind == "f2" else 0.0
    most = 1 + np.abs(q).sum(axis=2, keepdims=True) * (2 + np.abs(k).max())
    tiny = small * most * np.tri(N) @ (1 + np.abs(v))
    exponents = 8 * U * (1 + np.abs(logs).max())  # of differences of logarithms
    room = (4 * u + 4 * (N + q.shape[2] + 8) * U + exponents) * sizes + tiny
    room += tw.dtype(np.dtype(out)).unit_roundoff * np.abs(right) + (2.0**-24 if out == "f2" else 0)
    read = {**{name: given[name] for name in "QKV"}, **more}
    return FoldCase(kernel, read, {"O": poison(out, *right.shape)}, {"O": right}, {"O": room})


def uniform(B: int, N: int, D: int, E: int, kind: str = "f2", out: str = "f4", seed: int = 0) -> FoldCase:
    """Return a random problem of `linear_attention`."""
    rng = np.random.default_rng((B, N, D, E, seed))
    given = {
        name: rng.standard_normal((B, N, side)).astype(kind) for name, side in (("Q", D), ("K", D), ("V", E))
    }
    rate = -rng.uniform(0.001, 0.7, B).astype("f4")
    logs = rate.astype(np.float64)[:, None] * np.arange(N)
    return decayed(given, logs, linear_attention, kind, out, {"rate": rate})


def with_gates(B: int, N: int, D: int, E: int, kind: str = "f2", out: str = "f4") -> FoldCase:
    """Return a random problem of `gated`."""
    rng = np.random.default_rng((B, N, D, E))
    given = {
        name: rng.standard_normal((B, N, side)).astype(kind) for name, side in (("Q", D), ("K", D), ("V", E))
    }
    after = np.cumsum(-rng.uniform(0, 0.5, (B, N)), axis=1).astype("f4")
    before = np.concatenate((np.zeros((B, 1), "f4"), after[:, :-1]), axis=1)
    return decayed(given, after.astype(np.float64), gated, kind, out, {"before": before, "after": after})


def summed(N: int, D: int, E: int) -> FoldCase:
    """Return a random problem of `two_results`, of integers that all sums hold."""
    rng = np.random.default_rng((N, D, E))
    x, a = (rng.integers(-1, 2, shape).astype("f2") for shape in ((N, E), (N, D)))
    wide, rows = x.astype(np.float64), a.astype(np.float64)
    y = rows @ np.ones((D, E)) + np.tri(N, k=-1) * (rows @ rows.T) @ wide
    given = {"X": x, "W": np.zeros((D, E), "f2"), "A": a}
    results = {name: poison("f4", N, E) for name in "YZ"}
    return FoldCase(two_results, given, results, {"Y": y, "Z": y * wide}, {"Y": 0.0, "Z": 0.0})


MMA = Schedule(tw.atoms.MMA_F16, (16, 16, 16), width=16, resident=True)
FMA = Schedule(tw.atoms.fma("f32", each=(2, 2)), (16, 16, 16), width=16, resident=True)
WAYS = {
    "direct": MMA,
    "two stages": replace(MMA, staging="cp_async", stages=2),
    "longer steps": replace(MMA, tile=(16, 48, 16), width=24),
    "two warps": replace(MMA, tile=(32, 32, 32), warps=(2, 1), staging="cp_async", stages=3),
    "multiply-adds": FMA,
    "multiply-adds by two warps": replace(FMA, tile=(32, 32, 32), warps=(2, 1)),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_schedule(way: str) -> None:
    """Lengths that no step divides; states and results that no tile divides."""
    kind = "f4" if WAYS[way].atom.instruction == "fma" else "f2"
    gates = with_gates(1, 70, 14, 10, kind)
    for case in (uniform(2, 53, 12, 20, kind), gates):
        kernel = case.kernel.bind(schedule=WAYS[way])
        run(case, "reference", kernel)
        if case is gates and not WAYS[way].copies_in_background:
            run(case, "cpu", kernel)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("kind", "out"), [("f2", "f2"), ("f4", "f4")])
def test_chosen_schedules(target: str, kind: str, out: str) -> None:
    for case in (
        uniform(2, 150, 20, 33, kind, out),
        with_gates(1, 97, 64, 40, kind, out),
        summed(75, 24, 17),
    ):
        run(case, target)
    run(uniform(1, 1, 8, 8, kind, out), target)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_strides_and_poisoned_gaps(target: str) -> None:
    case = uniform(2, 70, 20, 12)
    arrays: dict[str, Any] = {name: strided(case.given[name], 3) for name in "QKV"}
    whole = np.full((2, 70, 17), 777, np.float32)
    run(case, target, O=whole[..., :12], **arrays)
    assert (whole[..., 12:] == 777).all()
    arrays = {name: np.asfortranarray(case.given[name]) for name in "QKV"}
    run(case, target, **arrays)


@pytest.mark.parametrize("length", [None, 1, 7, 16, 200])
def test_steps_of_any_length_have_one_meaning(length: int | None) -> None:
    """The flow prints, parses back, and does not depend on the length of a step."""
    for case in (uniform(2, 50, 6, 5, "f4"), with_gates(1, 41, 8, 8, "f4"), summed(33, 6, 4)):
        given = case.arguments()
        flow = case.kernel.flow(**given)
        assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
        arrays = {name: given[name] for name in case.given}
        found = tw.ir.evaluate(flow, arrays, rounded=False, run=length)
        assert case.wrong(found) == []


def test_a_result_is_stored_before_its_state_changes() -> None:
    """The last step's results need the state of the steps before it, in each of them."""
    case = summed(64, 16, 16)
    for steps in (1, 4):
        schedule = replace(MMA, tile=(16, 64 // steps, 16))
        run(case, "reference", case.kernel.bind(schedule=schedule))


@tw.kernel(X="N E", A="N D", Y="N E")
def of_the_step_before(X, A, Y):
    """Quotients of a state that each step replaces, and no scores."""
    for e in tw.tiles(X.shape[1]):
        S = tw.full((A.shape[1], e), 1.0, tw.f32)
        for n in tw.steps(X.shape[0]):
            i = tw.alias(n)
            Y[i, e] = A[i] @ (1.0 / S)
            S.assign(0.0 * S + A[n].T @ X[n, e])


STEPS_OF_16 = replace(FMA, tile=(16, 16, 16))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_rows_of_a_state_that_lie_beyond_its_end_enter_no_product(target: str) -> None:
    """The state is 0 there, and its quotient infinite."""
    rng = np.random.default_rng(0)
    x, a = (rng.uniform(1, 2, shape).astype("f4") for shape in ((40, 7), (40, 5)))
    y = poison("f4", 40, 7)
    of_the_step_before.bind(schedule=STEPS_OF_16)(x, a, y, target=target)
    wide, rows = x.astype(np.float64), a.astype(np.float64)
    state = np.ones((5, 7))
    for first in range(0, 40, 16):
        step = slice(first, first + 16)
        right = rows[step] @ (1 / state)
        assert (np.abs(y[step] - right) <= 64 * U * right).all()
        state = rows[step].T @ wide[step]


def test_one_tile_covers_the_state_of_a_loop_without_scores() -> None:
    x, a, y = np.ones((40, 7), "f4"), np.ones((40, 17), "f4"), poison("f4", 40, 7)
    with pytest.raises(tw.LaunchError, match="d must be at most 16: one tile of the schedule covers it"):
        of_the_step_before.bind(schedule=STEPS_OF_16)(x, a, y, target="cpu")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_state_without_rows_has_results_of_0(target: str) -> None:
    x, a, y = np.ones((40, 7), "f4"), np.ones((40, 0), "f4"), poison("f4", 40, 7)
    of_the_step_before(x, a, y, target=target)
    assert (y == 0).all()


def test_the_kernel_has_at_most_fifteen_lines() -> None:
    assert lines(linear_attention) <= 15


# ---------------------------------------------------------------- hazards


def test_the_checker_has_no_findings() -> None:
    case = uniform(1, 70, 12, 20)
    for way in ("direct", "two warps"):
        kernel = case.kernel.bind(schedule=WAYS[way])
        assert not kernel.check(**case.arguments(), outputs=("O",)).findings
    wide = uniform(1, 70, 12, 20, "f4")
    kernel = wide.kernel.bind(schedule=WAYS["multiply-adds by two warps"])
    assert not kernel.check(**wide.arguments(), outputs=("O",)).findings


def test_check_finds_a_result_that_depends_on_the_length_of_a_step() -> None:
    rng = np.random.default_rng(3)
    x, a = rng.standard_normal((40, 7), np.float32), 1 + rng.random((40, 5), np.float32)
    kernel = of_the_step_before.bind(schedule=STEPS_OF_16)
    [finding] = kernel.check(x, a, poison("f4", 40, 7)).findings
    assert (finding.kind.value, finding.tensor) == ("result that depends on the length of a step", "Y")


def test_the_checker_finds_a_state_that_nobody_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product that reads the state before all warps have copied it is a finding."""

    class Without:
        def __getattr__(self, name: str) -> Any:
            return (lambda: None) if name == "barrier" else getattr(expand_operations, name)

    expand_operations = expand.tw
    monkeypatch.setattr(expand, "tw", Without())
    case = uniform(1, 70, 12, 20)
    kernel = case.kernel.bind(schedule=WAYS["two warps"])
    kernel.forget()
    try:
        assert kernel.check(**case.arguments(), outputs=("O",)).findings
    finally:
        kernel.forget()


# ---------------------------------------------------------------- compilers


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_80"), ("cuda", "sm_90a"), ("hip", "gfx942")])
def test_gpus_compile_without_spills(target: str, arch: str) -> None:
    q = tw.like("bf16", 8, 4096, 128 if arch == "sm_90a" else 64)
    made = linear_attention.compile(q, q, q, tw.like("f32", 8), q, target=target, arch=arch)
    used = made.resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0
    if target == "cuda":
        assert (made.schedule.staging, made.schedule.atom.instruction) == ("cp_async", "mma.sync")


def test_few_sequences_have_blocks_with_fewer_columns() -> None:
    """Columns that take the fewest products of a step, in rounds of all blocks."""
    for sequences, D, width in ((256, 64, 64), (64, 64, 32), (16, 128, 16), (64, 128, 64)):
        q = tw.like("bf16", sequences, 2048, D)
        rate = tw.like("f32", sequences)
        kernel = linear_attention.bind()
        made = kernel.schedule_for(q, q, q, rate, q, target="cuda", arch="sm_90a")
        assert (made.tile[1], made.width) == (64, width)


# ---------------------------------------------------------------- refusals


def refused(kernel: Any, *arrays: Any, match: str, **words: Any) -> None:
    with pytest.raises(tw.TraceError, match=f"(?s){match}"):
        kernel(*arrays, target="reference", **words)


X, Y = np.ones((40, 8), np.float16), np.empty((40, 8), np.float32)


def test_what_the_language_refuses() -> None:
    @tw.kernel(X="N E", Y="N E")
    def of_tiles(X, Y):
        for n, e in tw.tiles(Y):
            Y[n, e] = X[tw.alias(n), e]

    refused(of_tiles, X, Y, match=r"alias of n; nearest legal choice: n, of `for n in tw.steps\(N\)`")

    @tw.kernel(X="N E", Y="N E")
    def along_an_alias(X, Y):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                S.assign(S + X[i].T @ X[i, e])
                Y[i, e] = X[i] @ S.to(X.dtype)

    refused(along_an_alias, X, Y, match="sums along i, another name of n; nearest .* n in place of i")

    @tw.kernel(X="N E", Y="N E")
    def nothing_carried(X, Y):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                S += X[n].T @ X[n, e]
                Y[i, e] = X[i, e]

    refused(nothing_carried, X, Y, match="whose steps depend on no carried value; nearest .*tw.tiles")

    @tw.kernel(X="N E", Y="N E")
    def without_rows(X, Y):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                S.assign(S + X[n].T @ X[n, e])
                Y[i, e] = X[n, e].sum(axis=0)

    refused(without_rows, X, Y, match="in a step is the same for all rows i; nearest .* varies along i")

    @tw.kernel(X="N E", Y="N E")
    def of_the_step(X, Y):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                S.assign(S + X[n].T @ X[n, e])
                Y[n, e] = X[n] @ S.to(X.dtype)

    refused(of_the_step, X, Y, match=r"S has the axes .*i = tw.alias\(n\), and O\[i, e\]")


def test_what_schedules_refuse() -> None:
    case = uniform(1, 40, 12, 20)
    for words, message in (
        ({"tile": (16, 16, 32)}, r"rows of the state, and the depth of the products.*tile=\(32, 16, 32\)"),
        ({"tile": (32, 16, 32), "warps": (2, 1)}, r"rows of a step are rows of 2 warps.*tile=\(32, 32, 32\)"),
        ({"split_k": 2}, "each step stores results that depend on all steps along n before it.*split_k=1"),
        ({"fold": "kept"}, r'nothing is stored along n.*fold="online"'),
        ({"resident": False}, "a step has whole depths.*resident=True"),
        ({"staging": "tma"}, r'each step stores rows i; warpgroups store after the loop.*staging="cp_async"'),
    ):
        with pytest.raises(tw.ScheduleError, match=f"(?s){message}"):
            run(case, "reference", case.kernel.bind(schedule=replace(MMA, **words)))
    with pytest.raises(tw.LaunchError, match="d must be at most 16: one tile of the schedule covers it"):
        run(uniform(1, 40, 20, 20), "reference", case.kernel.bind(schedule=MMA))

    @tw.kernel(X="N E", Y="N E", Z="E")
    def a_number_for_each_column(X, Y, Z):
        for e in tw.tiles(X.shape[1]):
            S, total = tw.zeros((X.shape[1], e), tw.f32), tw.zeros((e,), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ X[n, e])
                total.assign(total + X[n, e].to(tw.f32).sum(axis=0))
            Z[e] = total

    refused(
        a_number_for_each_column,
        X,
        Y,
        np.empty(8, np.float32),
        match=r"total has the axes \(e,\) in a loop that",
    )

    @tw.kernel(X="N E", Y="N E")
    def of_a_state(X, Y):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ (X[i] @ S.to(X.dtype)).to(X.dtype))

    refused(of_a_state, X, Y, match="the last axis of the first is not the first axis of the second")

    @tw.kernel(X="N E", Y="N E")
    def of_rows(X, Y):
        for m, e in tw.tiles(X):
            S = tw.zeros((m, e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                S.assign(S + X[m, e].to(tw.f32))
                Y[i, e] = (X[i] @ X[n].T).to(X.dtype) @ X[n, e] * S.sum(axis=0)

    refused(of_rows, X, Y, match=r"carries S with the axes \(m, e\), and the tiles have the spans \(m, e\)")
