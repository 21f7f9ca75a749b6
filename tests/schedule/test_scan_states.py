"""Loops whose steps store results, and that begin with a state in memory and store their last one.

Sequences may follow each other in one array: the loop then has bounds in memory.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.folds import kept

from .folding import Array, FoldCase, U, poison, strided
from .test_folds import run
from .test_scans import FMA, WAYS


@tw.kernel(Q="B N D", K="B N D", V="B N E", rate="B", start="B D E", O="B N E", last="B E D", norm="B D")
def continued(Q, K, V, rate, start, O, last, norm):
    """Linear attention that goes on from a state, and stores its last state in another order."""
    for b, e in tw.tiles((O.shape[0], O.shape[2]), batch=1):
        S, Z = tw.zeros((Q.shape[2], e), tw.f32), tw.zeros((Q.shape[2],), tw.f32)
        S.assign(start[b, :, e])
        for n in tw.steps(Q.shape[1]):
            i = tw.alias(n)
            row, column, g = tw.positions(i)[:, None], tw.positions(n), rate[b]
            first, end = column.min(axis=0), column.max(axis=0)
            s = Q[b, i] @ K[b, n].T
            s = tw.where(column <= row, s * tw.exp2(g * (row - column).to(tw.f32)), 0.0).to(V.dtype)
            seen = tw.exp2(g * (row - first + 1).to(tw.f32)) * (Q[b, i] @ S.to(V.dtype))
            O[b, i, e] = s @ V[b, n, e] + seen
            k = K[b, n] * tw.exp2(g * (end - column).to(tw.f32))[:, None].to(K.dtype)
            S.assign(S * tw.exp2(g * (end - first + 1).to(tw.f32)) + k.T @ V[b, n, e])
            Z.assign(Z + K[b, n].T.to(tw.f32).sum(axis=1))
        last[b, e, :] = S.T
        norm[b, :] = Z


@tw.kernel(Q="T D", K="T D", V="T E", rate="B", begins="B", ends="B", state="B D E", O="T E")
def packed(Q, K, V, rate, begins, ends, state, O):
    """Sequences in one array; the state of each is replaced by its last one."""
    for b, e in tw.tiles((rate.shape[0], O.shape[1]), batch=1):
        S = tw.zeros((Q.shape[1], e), tw.f32)
        S.assign(state[b, :, e])
        for n in tw.steps(Q.shape[0], begin=begins[b], end=ends[b]):
            i = tw.alias(n)
            row, column, g = tw.positions(i)[:, None], tw.positions(n), rate[b]
            first, end = column.min(axis=0), column.max(axis=0)
            s = Q[i] @ K[n].T
            s = tw.where(column <= row, s * tw.exp2(g * (row - column).to(tw.f32)), 0.0).to(V.dtype)
            O[i, e] = s @ V[n, e] + tw.exp2(g * (row - first + 1).to(tw.f32)) * (Q[i] @ S.to(V.dtype))
            k = K[n] * tw.exp2(g * (end - column).to(tw.f32))[:, None].to(K.dtype)
            S.assign(S * tw.exp2(g * (end - first + 1).to(tw.f32)) + k.T @ V[n, e])
        state[b, :, e] = S


@tw.kernel(X="M T", g="T", begins="B", ends="B", Y="M T", state="B M")
def recurrence(X, g, begins, ends, Y, state):
    """Sums of the rows of each sequence so far, in place of rows of a state."""
    for b, m in tw.tiles(state, batch=1):
        total = tw.zeros((m,), tw.f32)
        total.assign(state[b, m])
        for n in tw.steps(X.shape[1], begin=begins[b], end=ends[b]):
            x = g[n] * X[m, n].to(tw.f32)
            Y[m, n] = total[:, None] + x.cumsum(axis=1)
            total.assign(total + x.sum(axis=1))
        state[b, m] = total


KEPT = 777.0
"""Number of results that no sequence has."""


def of_sequence(q: Array, k: Array, v: Array, start: Array, rate: float) -> tuple[Array, Array, Array, Array]:
    """Return the results of one sequence in f64, its last state, and the sizes of their terms."""
    N = len(q)
    q, k, v, start = (one.astype(np.float64) for one in (q, k, v, start))
    ages = np.exp2(
        rate * np.subtract.outer(np.arange(N), np.arange(N)), where=np.tri(N) > 0, out=np.zeros((N, N))
    )
    old = np.exp2(rate * np.arange(1, N + 1))[:, None]
    left = np.exp2(rate * np.arange(N - 1, -1, -1))[:, None]
    made = []
    for a, b, c, s in ((q, k, v, start), *((tuple(np.abs(one) for one in (q, k, v, start))),)):
        made.append((ages * (a @ b.T) @ c + old * (a @ s), (left * b).T @ c + np.exp2(rate * N) * s))
    return made[0][0], made[0][1], made[1][0], made[1][1]


def rooms(q: Array, k: Array, v: Array, sizes: Array, last: Array, rate: float) -> tuple[Array, Array]:
    """Return the largest errors of the results, and of the last state.

    Scores, keys with their factors and the state are rounded to the dtype of the operands: at most 4 times.
    Sums and factors are those of f32.  Numbers below the normal ones of f16 have an absolute error.
    """
    N, D = q.shape
    u = tw.dtype(q.dtype).unit_roundoff
    small = 2.0**-25 if q.dtype == np.float16 else 0.0
    relative = 4 * u + 4 * (N + D + 8) * U + 8 * U * (1 + abs(rate) * N)
    a, b, c = (np.abs(one.astype(np.float64)) for one in (q, k, v))
    most = 1 + a.sum(axis=1, keepdims=True) * (2 + b.max(initial=0))
    tiny = small * most * np.tri(N) @ (1 + c)
    return relative * sizes + tiny + small * most, relative * last + small * (2 + b).T @ (1 + c)


def continuing(
    B: int, N: int, D: int, E: int, kind: str = "f2", out: str = "f4", *, seed: int = 0, gap: int = 0
) -> FoldCase:
    """Return a random problem of `continued`; the last state and the sums are f32."""
    rng = np.random.default_rng((B, N, D, E, seed))
    sides = (
        ("Q", (B, N, D), kind),
        ("K", (B, N, D), kind),
        ("V", (B, N, E), kind),
        ("start", (B, D, E), "f4"),
    )
    given: dict[str, Any] = {
        name: strided(rng.standard_normal(shape).astype(of), gap) for name, shape, of in sides
    }
    given["rate"] = -rng.uniform(0.001, 0.7, B).astype("f4")
    right, last = np.zeros((B, N, E)), np.zeros((B, E, D))
    room, room_last = np.zeros((B, N, E)), np.zeros((B, E, D))
    for b in range(B):
        own = tuple(given[name][b] for name in "QKV")
        rate = float(given["rate"][b])
        right[b], state, sizes, most = of_sequence(*own, given["start"][b], rate)
        room[b], state_room = rooms(*own, sizes, most, rate)
        last[b], room_last[b] = state.T, state_room.T
    room += tw.dtype(np.dtype(out)).unit_roundoff * np.abs(right) + (2.0**-24 if out == "f2" else 0)
    k = given["K"].astype(np.float64)
    return FoldCase(
        continued,
        given,
        {"O": poison(out, B, N, E), "last": poison("f4", B, E, D), "norm": poison("f4", B, D)},
        {"O": right, "last": last, "norm": k.sum(axis=1)},
        {"O": room, "last": room_last, "norm": (N + 8) * U * np.abs(k).sum(axis=1)},
    )


def bounds(rng: np.random.Generator, B: int, T: int) -> tuple[Array, Array]:
    """Return the bounds of sequences in random order, with gaps; some are empty, and the last too long."""
    ends = np.sort(rng.integers(0, T + 1, 2 * B))
    begins, ends = ends[::2].copy(), ends[1::2].copy()
    ends[rng.random(B) < 0.2] = 0
    if ends[-1] > 0:
        ends[-1] = T + 5 if rng.random() < 0.3 else ends[-1]
    order = rng.permutation(B)
    return begins[order].astype(np.int32), ends[order].astype(np.int32)


def several(
    B: int, T: int, D: int, E: int, kind: str = "f2", out: str = "f4", *, seed: int = 0, order: str = "C"
) -> FoldCase:
    """Return a random problem of `packed`; elements of no sequence are NaN."""
    rng = np.random.default_rng((B, T, D, E, seed, 1))
    given: dict[str, Any] = {
        name: rng.standard_normal((T, side)).astype(kind, order=order)
        for name, side in (("Q", D), ("K", D), ("V", E))
    }
    given["rate"] = -rng.uniform(0.001, 0.7, B).astype("f4")
    given["begins"], given["ends"] = bounds(rng, B, T)
    start = rng.standard_normal((B, D, E)).astype("f4")
    outside = np.ones(T, bool)
    right, room = np.full((T, E), KEPT), np.zeros((T, E))
    last, room_last = start.astype(np.float64), np.zeros((B, D, E))
    for b in range(B):
        run = slice(given["begins"][b], max(given["begins"][b], min(given["ends"][b], T)))
        outside[run] = False
        own, rate = tuple(given[name][run] for name in "QKV"), float(given["rate"][b])
        right[run], last[b], sizes, most = of_sequence(*own, start[b], rate)
        room[run], room_last[b] = rooms(*own, sizes, most, rate)
        room[run] += tw.dtype(np.dtype(out)).unit_roundoff * np.abs(right[run])
        room[run] += 2.0**-24 if out == "f2" else 0
    for name in "QKV":
        given[name][outside] = np.nan
    results = {"O": np.full((T, E), KEPT).astype(out, order=order), "state": start}
    return FoldCase(packed, given, results, {"O": right, "state": last}, {"O": room, "state": room_last})


def summed(B: int, T: int, M: int, kind: str = "f2", *, seed: int = 0, order: str = "C") -> FoldCase:
    """Return a random problem of `recurrence`; elements of no sequence are NaN."""
    rng = np.random.default_rng((B, T, M, seed, 2))
    x, g = rng.standard_normal((M, T)).astype(kind, order=order), rng.standard_normal(T).astype("f4")
    begins, ends = bounds(rng, B, T)
    start = rng.standard_normal((B, M)).astype("f4")
    outside = np.ones(T, bool)
    right, room = np.full((M, T), KEPT), np.zeros((M, T))
    last, room_last = start.astype(np.float64), np.zeros((B, M))
    for b in range(B):
        run = slice(begins[b], max(begins[b], min(ends[b], T)))
        outside[run] = False
        terms = g[run] * x[:, run].astype(np.float64)
        right[:, run] = start[b][:, None] + terms.cumsum(axis=1)
        sizes = (terms.shape[1] + 8) * U * (np.abs(start[b])[:, None] + np.abs(terms).cumsum(axis=1))
        room[:, run] = sizes
        if terms.shape[1]:
            last[b], room_last[b] = right[:, run][:, -1], sizes[:, -1]
    x[:, outside] = np.nan
    given = {"X": x, "g": g, "begins": begins, "ends": ends}
    results = {"Y": np.full((M, T), KEPT).astype("f4", order=order), "state": start}
    return FoldCase(recurrence, given, results, {"Y": right, "state": last}, {"Y": room, "state": room_last})


@pytest.mark.parametrize("way", WAYS)
def test_every_form_of_schedule(way: str) -> None:
    kind = "f4" if WAYS[way].atom.instruction == "fma" else "f2"
    for case in (continuing(2, 53, 12, 20, kind), several(5, 150, 14, 10, kind)):
        kernel = case.kernel.bind(schedule=WAYS[way])
        run(case, "reference", kernel)
        if case.kernel is packed and not WAYS[way].copies_in_background:
            run(case, "cpu", kernel)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(("kind", "out"), [("f2", "f2"), ("f4", "f4")])
def test_chosen_schedules(target: str, kind: str, out: str) -> None:
    for case in (
        continuing(2, 150, 20, 33, kind, out, gap=3),
        several(6, 290, 24, 40, kind, out),
        several(3, 97, 16, 8, kind, out, order="F"),
        summed(6, 190, 21, kind),
        summed(4, 130, 70, kind, order="F"),
    ):
        run(case, target)
    run(continuing(1, 1, 8, 8, kind, out), target)
    run(several(2, 0, 8, 8, kind, out), target)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_sequence_without_elements_keeps_its_state(target: str) -> None:
    case = continuing(2, 0, 12, 20, "f4")
    arrays = case.arguments()
    run(case, target, **arrays)
    assert (arrays["last"] == arrays["start"].swapaxes(1, 2)).all()


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_sequence_in_two_launches(target: str) -> None:
    """The second launch goes on from the state of the first: results are those of one launch."""
    case = several(1, 90, 12, 20, "f4")
    case.given["begins"][:], case.given["ends"][:] = 0, 90
    for name in "QKV":
        case.given[name][:] = np.random.default_rng(ord(name)).standard_normal(case.given[name].shape)
    whole = case.arguments()
    packed(**whole, target=target)
    parts = case.arguments()
    for begin, end in ((0, 41), (41, 90)):
        parts["begins"], parts["ends"] = np.int32([begin]), np.int32([end])
        packed(**parts, target=target)
    rate = float(case.given["rate"][0])
    own = tuple(case.given[name] for name in "QKV")
    right, last, sizes, most = of_sequence(*own, case.results["state"][0], rate)
    room, room_last = rooms(*own, sizes, most, rate)
    for found in (whole, parts):
        assert (np.abs(found["O"] - right) <= room).all()
        assert (np.abs(found["state"][0] - last) <= room_last).all()


@pytest.mark.parametrize("length", [None, 1, 7, 16, 200])
def test_steps_of_any_length_have_one_meaning(length: int | None) -> None:
    """The flow prints, parses back, and does not depend on the length of a step."""
    for case in (continuing(2, 50, 6, 5, "f4"), several(4, 70, 6, 5, "f4"), summed(4, 60, 5, "f4")):
        given = case.arguments()
        flow = case.kernel.flow(**given)
        assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
        assert case.wrong(tw.ir.evaluate(flow, given, rounded=False, run=length)) == []


@tw.kernel(K="N D", V="N E", first="D", O="N E", last="D")
def with_a_vector(K, V, first, O, last):
    """Linear attention of the keys to themselves, and a sum of keys that goes on from a vector."""
    for e in tw.tiles(V.shape[1]):
        S, Z = tw.zeros((K.shape[1], e), tw.f32), tw.zeros((K.shape[1],), tw.f32)
        Z.assign(first[:])
        for n in tw.steps(K.shape[0]):
            i = tw.alias(n)
            s = tw.where(tw.positions(n) <= tw.positions(i)[:, None], K[i] @ K[n].T, 0.0)
            O[i, e] = s @ V[n, e] + K[i] @ S
            S.assign(S + K[n].T @ V[n, e])
            Z.assign(Z + K[n].T.sum(axis=1))
        last[:] = Z


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("step", [1, -2])
def test_a_vector_begins_in_memory(step: int, target: str) -> None:
    rng = np.random.default_rng(5)
    for N, D, E in ((0, 5, 3), (70, 12, 20), (33, 19, 7)):
        k, v = (rng.standard_normal((N, one)).astype("f4") for one in (D, E))
        first = rng.standard_normal(2 * D).astype("f4")[::step][:D]
        o, last = poison("f4", N, E), poison("f4", D)
        with_a_vector(k, v, first, o, last, target=target)
        wide, values = k.astype(np.float64), v.astype(np.float64)
        room = (N + 2) * U * (np.abs(wide).sum(axis=0) + np.abs(first))
        assert (np.abs(last - (first + wide.sum(axis=0))) <= room).all()
        exact = np.tril(wide @ wide.T) @ values
        size = np.tril(np.abs(wide) @ np.abs(wide).T) @ np.abs(values)
        assert (np.abs(o - exact) <= 2 * (N + D) * U * size).all()


# ---------------------------------------------------------------- hazards


def test_the_checker_has_no_findings() -> None:
    case = continuing(1, 70, 12, 20)
    for way in ("direct", "two warps"):
        kernel = case.kernel.bind(schedule=WAYS[way])
        assert not kernel.check(**case.arguments(), outputs=("O", "last", "norm")).findings
    for case in (several(3, 150, 12, 20, "f4"), summed(3, 100, 13, "f4")):
        gaps = ("O",) if case.kernel is packed else ("Y",)
        assert not case.kernel.check(**case.arguments(), outputs=(), partial=gaps).findings


def test_sequences_that_share_elements_are_found() -> None:
    case = several(2, 90, 12, 20, "f4")
    case.given["begins"][:], case.given["ends"][:] = (0, 30), (50, 90)
    for name in "QKV":
        case.given[name][:] = 1
    kinds = {one.kind.value for one in packed.check(**case.arguments(), outputs=()).findings}
    assert "write-write race" in kinds


def test_a_state_that_depends_on_the_length_of_a_step_is_found() -> None:
    """The state decays once for each step, not for each element."""

    @tw.kernel(A="N D", X="N E", Y="N E", last="D E")
    def wrong(A, X, Y, last):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((A.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = 2 * X[i, e]
                S.assign(0.5 * S + A[n].T @ X[n, e])
            last[:, e] = S

    rng = np.random.default_rng(0)
    a, x = rng.standard_normal((40, 5), np.float32), rng.standard_normal((40, 7), np.float32)
    kernel = wrong.bind(schedule=replace(FMA, tile=(16, 16, 16)))
    found = kernel.check(a, x, poison("f4", 40, 7), poison("f4", 5, 7)).findings
    kinds = {(one.kind.value, one.tensor) for one in found}
    assert ("result that depends on the length of a step", "last") in kinds


def test_lanes_that_read_a_number_before_one_of_them_stores_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several lanes begin with the old state of a row, and one of them replaces it."""

    monkeypatch.setattr(kept, "meet", lambda schedule: None)
    case = summed(2, 100, 13, "f4")
    kernel = recurrence.bind()
    kernel.forget()
    try:
        kinds = {one.kind.value for one in kernel.check(**case.arguments(), outputs=(), partial="Y").findings}
        assert kinds == {"read-write race"}
    finally:
        kernel.forget()


# ---------------------------------------------------------------- compilers


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_80"), ("cuda", "sm_90a"), ("hip", "gfx942")])
def test_gpus_compile_without_spills(target: str, arch: str) -> None:
    q, k = tw.like("bf16", 8192, 64), tw.like("i32", 8)
    made = packed.compile(
        q, q, q, tw.like("f32", 8), k, k, tw.like("f32", 8, 64, 64), q, target=target, arch=arch
    )
    used = made.resources
    assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0
    if target == "cuda":
        assert (made.schedule.staging, made.schedule.atom.instruction) == ("cp_async", "mma.sync")


# ---------------------------------------------------------------- refusals


def refused(kernel: Any, *arrays: Any, match: str) -> None:
    with pytest.raises(tw.TraceError, match=f"(?s){match}"):
        kernel(*arrays, target="reference")


def test_refusals() -> None:
    x, y, last = np.ones((40, 8), "f2"), np.empty((40, 8), "f4"), np.empty((8, 8), "f4")

    @tw.kernel(X="N E", W="E K", B="K E", Y="N E", last="E E")
    def a_product_after(X, W, B, Y, last):
        for e in tw.tiles(X.shape[1]):
            S, more = tw.zeros((X.shape[1], e), tw.f32), tw.zeros()
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ X[n, e])
            for k in tw.steps(B.shape[0]):
                more += W[:, k] @ B[k, e]
            last[:, e] = S + more

    w = np.ones((8, 3), "f2")
    match = "a product along k after the loop over n, which stores in steps; nearest .* a second kernel"
    refused(a_product_after, x, w, w.T, y, last, match=match)

    @tw.kernel(X="N E", Y="N E", total="E")
    def reduced_after(X, Y, total):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ X[n, e])
            total[e] = S.sum(axis=0)

    refused(
        reduced_after,
        x,
        y,
        np.empty(8, "f4"),
        match="sum after the loop over n, which stores in steps; nearest .* a second kernel that reads the",
    )

    @tw.kernel(X="N E", Y="N E", norm="E")
    def a_vector(X, Y, norm):
        for e in tw.tiles(X.shape[1]):
            S, Z = tw.zeros((X.shape[1], e), tw.f32), tw.zeros((X.shape[1],), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ X[n, e])
                Z.assign(Z + X[n].T.to(tw.f32).sum(axis=1))
            norm[:] = Z

    norm = np.empty(8, "f4")
    a_vector(x, y, norm, target="reference")
    assert (norm == 40).all()

    @tw.kernel(X="N E", Y="N E", last="E E")
    def a_constant(X, Y, last):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ X[n, e])
            last[:, e] = 0.0

    refused(
        a_constant,
        x,
        y,
        last,
        match=r"last is stored along \w+ after a loop .* not depend on the state.* a second kernel.*"
        r"last\[:, e\] = 0.0",
    )

    @tw.kernel(X="N E", norm="E", Y="N E")
    def a_vector_in_place(X, norm, Y):
        for e in tw.tiles(X.shape[1]):
            S, Z = tw.zeros((X.shape[1], e), tw.f32), tw.zeros((X.shape[1],), tw.f32)
            Z.assign(norm[:])
            for n in tw.steps(X.shape[0]):
                i = tw.alias(n)
                Y[i, e] = X[i] @ S.to(X.dtype)
                S.assign(S + X[n].T @ X[n, e])
                Z.assign(Z + X[n].T.to(tw.f32).sum(axis=1))
            norm[:] = Z

    refused(
        a_vector_in_place,
        x,
        norm,
        y,
        match=r"norm\[e_1\] is read and norm\[e_1\] is stored.*store to another",
    )

    @tw.kernel(X="N E", last="E E")
    def without_stores(X, last):
        for e in tw.tiles(X.shape[1]):
            S = tw.zeros((X.shape[1], e), tw.f32)
            for n in tw.steps(X.shape[0]):
                S.assign(0.5 * S + X[n].T @ X[n, e])
            last[:, e] = S

    refused(
        without_stores,
        x,
        last,
        match="varies along the whole row e_1 and is carried by a loop; nearest .* tw.t",
    )

    @tw.kernel(X="B N E", Y="B N E", last="E E")
    def without_a_batch(X, Y, last):
        for b, e in tw.tiles((X.shape[0], X.shape[2]), batch=1):
            S = tw.zeros((X.shape[2], e), tw.f32)
            for n in tw.steps(X.shape[1]):
                i = tw.alias(n)
                Y[b, i, e] = X[b, i] @ S.to(X.dtype)
                S.assign(S + X[b, n].T @ X[b, n, e])
            last[:, e] = S

    refused(
        without_a_batch, x[None], y[None], last, match=r"all tiles along b would write the same .*last\[b,"
    )
