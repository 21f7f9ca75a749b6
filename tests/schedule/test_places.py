"""Places of extremes: ``argmax`` and ``argmin`` of tiles, of whole rows and columns, and of products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.folds import powers
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.parts import Companion, Extreme, StateMerge

from .folding import Array, FoldCase, poison, strided
from .test_folds import run


@tw.kernel(X="M N", most="M", least="M", top="M")
def of_rows(X, most, least, top):
    for m, n in tw.tiles(X):
        x = X[m, n]
        most[m], least[m], top[m] = x.argmax(axis=1), x.argmin(axis=-1), x.max(axis=1)


@tw.kernel(X="M N", most="N", least="N")
def of_columns(X, most, least):
    for n in tw.tiles(most):
        most[n], least[n] = X[:, n].argmax(axis=0), X[:, n].argmin(axis=0)


@tw.kernel(X="M N", C="M N", lse="M")
def one_hot(X, C, lse):
    """A one where a row is largest, and the logarithm of the sum of powers: a second pass along the row."""
    for m, n in tw.tiles(C):
        x = X[m, n].to(tw.f32)
        top = x.max(axis=1)
        C[m, n] = tw.where(tw.positions(n) == x.argmax(axis=1)[:, None], 1, 0)
        lse[m] = tw.log(tw.exp(x - top[:, None]).sum(axis=1)) + top


@tw.kernel(X="B M K", W="B N K", bias="N", most="B M", top="B M")
def of_products(X, W, bias, most, top):
    for b, m, n in tw.tiles((*most.shape, W.shape[1])):
        acc = tw.zeros()
        for k in tw.steps(X.shape[2]):
            acc += X[b, m, k] @ W[b, n, k].T
        most[b, m] = (acc + bias[n]).argmax(axis=1)
        top[b, m] = (acc + bias[n]).max(axis=1)


@tw.kernel(X="M K", C="N K", half="N", nearest="M")
def nearest_centre(X, C, half, nearest):
    for m in tw.tiles(nearest):
        nearest[m] = (half - X[m] @ C.T).argmin(axis=1)


@tw.kernel(X="M K", W="N K", most="M", least="M", top="M")
def of_weights(X, W, most, least, top):
    """Places of a softmax: the loop that finds them follows the one of the softmax."""
    for m in tw.tiles(most):
        p = tw.softmax(X[m] @ W.T)
        most[m], least[m], top[m] = p.argmax(axis=1), p.argmin(axis=1), p.max(axis=1)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("columns", [1, 70, 150])
def test_places_of_a_softmax(target: str, columns: int) -> None:
    """Scores are integers that all differ by far, so that the places are those of the scores."""
    rng = np.random.default_rng(columns)
    x = rng.integers(-2, 3, (33, 8)).astype("f2")
    w = np.concatenate(
        (rng.integers(-1, 2, (columns, 7)), 8 * np.arange(columns)[:, None] % 29), axis=1
    ).astype("f2")
    scores = x.astype(np.float64) @ w.T.astype(np.float64)
    most, least, top = np.full(33, -7, "i4"), np.full(33, -7, "i4"), np.full(33, np.nan, "f4")
    ran = of_weights(x, w, most, least, top, target=target)
    assert ran.target == target
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    p = p / p.sum(axis=1, keepdims=True)
    rows = np.arange(33)
    assert (p[rows, most] >= p.max(axis=1) * (1 - 2.0**-18)).all()
    assert (p[rows, least] <= p.min(axis=1) * (1 + 2.0**-18) + 2.0**-126).all()
    assert (np.abs(top - p.max(axis=1)) <= 2.0**-18).all()


@tw.kernel(X="M N", at="M")
def in_a_loop(X, at):
    """The place of the last step's largest element: an author's loop."""
    for m in tw.tiles(at):
        top, place = tw.full((m,), -float("inf"), tw.f32), tw.full((m,), 0, tw.i32)
        for n in tw.steps(X.shape[1]):
            x = X[m, n].to(tw.f32)
            here = x.max(axis=1)
            place.assign(tw.where(here > top, x.argmax(axis=1), place))
            top.assign(tw.maximum(top, here))
        at[m] = place


KINDS = ("f2", "f4", "f8", "i1", "u1", "i4", "i8")


def numbers(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Return small integers, many of them equal; some rows of floats have NaN or are infinite."""
    x = rng.integers(0 if kind == "u1" else -3, 4, shape).astype(kind)
    if kind[0] == "f":
        rows, columns = shape
        for row in range(rows):
            match rng.integers(6):
                case 0:
                    x[row, rng.integers(columns, size=2)] = np.nan
                case 1:
                    x[row] = -np.inf
                case 2:
                    x[row] = np.inf
                case 3:
                    x[row, rng.integers(columns, size=2)] = np.inf, np.nan
                case 4:
                    x[row] = np.where(rng.random(columns) < 0.5, -np.inf, np.inf)
    return x


def rows_case(
    rng: np.random.Generator, M: int, N: int, kind: str, gap: int = 0, order: str = "C"
) -> FoldCase:
    """Return a random problem of `of_rows`."""
    x = strided(numbers(rng, (M, N), kind), gap) if order == "C" else numbers(rng, (M, N), kind).copy("F")
    exact = {"most": x.argmax(axis=1), "least": x.argmin(axis=1)}
    return FoldCase(
        of_rows,
        {"X": x},
        {"most": poison("i4", M), "least": poison("i8", M), "top": poison("f8", M)},
        exact,
        {"most": 0, "least": 0},
    )


def columns_case(
    rng: np.random.Generator, M: int, N: int, kind: str, gap: int = 0, order: str = "C"
) -> FoldCase:
    """Return a random problem of `of_columns`."""
    x = numbers(rng, (N, M), kind).T
    x = strided(x, gap) if order == "C" else x.copy("F")
    exact = {"most": x.argmax(axis=0), "least": x.argmin(axis=0)}
    results = {"most": poison("i4", N), "least": poison("i4", N)}
    return FoldCase(of_columns, {"X": x}, results, exact, {"most": 0, "least": 0})


def products_case(rng: np.random.Generator, B: int, M: int, N: int, K: int, kind: str) -> FoldCase:
    """Return a random problem of `of_products`, whose sums are exact."""
    x, w = (rng.integers(-3, 4, (B, rows, K)).astype(kind) for rows in (M, N))
    bias = rng.integers(-3, 4, N).astype("f4")
    if rng.integers(2):
        x[0, rng.integers(M), rng.integers(K)] = np.nan
        w[0, rng.integers(N), rng.integers(K)] = np.nan
    s = x.astype(np.float64) @ w.astype(np.float64).swapaxes(1, 2) + bias
    most = s.argmax(axis=2)
    return FoldCase(
        of_products,
        {"X": x, "W": w, "bias": bias},
        {"most": poison("i4", B, M), "top": poison("f4", B, M)},
        {"most": most},
        {"most": 0},
    )


def centres_case(rng: np.random.Generator, M: int, N: int, K: int, kind: str) -> FoldCase:
    """Return a random problem of `nearest_centre`, whose sums are exact."""
    x, c = (rng.integers(-3, 4, (rows, K)).astype(kind) for rows in (M, N))
    half = (c.astype(np.float64) ** 2).sum(axis=1) / 2
    s = half - x.astype(np.float64) @ c.astype(np.float64).T
    given = {"X": x, "C": c, "half": half.astype("f4")}
    return FoldCase(
        nearest_centre, given, {"nearest": poison("i4", M)}, {"nearest": s.argmin(axis=1)}, {"nearest": 0}
    )


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_and_columns(kind: str, target: str) -> None:
    rng = np.random.default_rng(KINDS.index(kind))
    for M, N in ((9, 7), (21, 1), (3, 2000), (70, 130)):
        run(rows_case(rng, M, N, kind, gap=3), target)
        run(columns_case(rng, M, N, kind), target)
    run(rows_case(rng, 20, 33, kind, order="F"), target)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("kind", ["f2", "f4"])
def test_products(kind: str, target: str) -> None:
    """One tile covers few columns; more columns are a loop."""
    rng = np.random.default_rng(3)
    for B, M, N, K in ((2, 9, 7, 5), (1, 33, 100, 40), (2, 17, 900, 33)):
        run(products_case(rng, B, M, N, K, kind), target)
        run(centres_case(rng, M, N, K, kind), target)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_places_in_a_second_pass_and_in_loops(target: str) -> None:
    rng = np.random.default_rng(4)
    x = rng.integers(-3, 4, (20, 300)).astype("f4")
    c, lse, at = poison("f4", 20, 300), poison("f4", 20), poison("i4", 20)
    one_hot(x, c, lse, target=target)
    wide = x.astype(np.float64)
    assert (c == (np.arange(300) == x.argmax(axis=1)[:, None])).all()
    right = np.log(np.exp(wide).sum(axis=1))
    assert (np.abs(lse - right) <= 320 * 2.0**-24 * (1 + np.abs(right))).all()
    in_a_loop(x, at, target=target)
    assert (at == x.argmax(axis=1)).all()


def test_a_row_is_read_once() -> None:
    """One loop carries each extreme and its place, and both merge with those of another part."""
    rng = np.random.default_rng(0)
    for case in (rows_case(rng, 9, 40, "f4"), centres_case(rng, 9, 40, 5, "f4")):
        form = fold_form_of(case.kernel.flow(**case.arguments()))
        assert len(form.folds) == 1
        merge = StateMerge(form)
        kinds = {"top": Extreme, "low": Extreme, "place": Companion, "place_1": Companion}
        assert merge.against == ""
        assert [type(rule) for rule in merge.rules] == [kinds[cell.name] for cell in form.fold.cells]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_parts_of_a_row(target: str) -> None:
    """Few long rows: blocks share a row, and their states merge."""
    rng = np.random.default_rng(5)
    for kind in ("f4", "i4"):
        case = rows_case(rng, 24, 700, kind)
        known = case.kernel.bind().schedule_for(**case.arguments(), target=target)
        for parts in (2, 3, 5):
            run(case, target, case.kernel.bind(schedule=replace(known, split_k=parts, blocks=0)))


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_a_chosen_schedule_can_be_bound(arch: str) -> None:
    """Under one schedule, tiles cover short rows, and loops compute longer ones."""
    rng, target = np.random.default_rng(8), "cuda"
    cases = [products_case(rng, 2, 9, columns, 82, "f4") for columns in (816, 20, 790)]
    given = cases[0].arguments()
    known = cases[0].kernel.bind().schedule_for(**given, target=target, arch=arch)
    assert known is not None
    assert known.tile[1] < 790
    bound = cases[0].kernel.bind(schedule=known)
    texts = [one.compile(**given, target=target, arch=arch).source for one in (cases[0].kernel, bound)]
    assert texts[0] == texts[1]
    for case in cases:
        run(case, "reference", bound)


@pytest.mark.parametrize("length", [None, 1, 7, 64])
def test_the_flow_has_one_meaning(length: int | None) -> None:
    rng = np.random.default_rng(6)
    for case in (
        rows_case(rng, 30, 41, "f4"),
        columns_case(rng, 30, 41, "f2"),
        centres_case(rng, 9, 40, 5, "f4"),
    ):
        given = case.arguments()
        flow = case.kernel.flow(**given)
        assert tw.ir.parse_flow(tw.ir.print_flow(flow)) == flow
        for one in (flow, fold_form_of(flow).flow):
            arrays = {name: given[name] for name in case.given}
            assert case.wrong(tw.ir.evaluate(one, arrays, run=length)) == []


# ---------------------------------------------------------------- hazards and mutants


def test_the_checker_has_no_findings() -> None:
    rng = np.random.default_rng(7)
    for case in (rows_case(rng, 20, 300, "f4"), centres_case(rng, 20, 70, 9, "f2")):
        assert not case.kernel.check(**case.arguments(), outputs=(*case.results,)).findings


@pytest.mark.parametrize("mutant", ["swapped", "a later equal element", "without NaN", "any NaN"])
def test_wrong_steps_are_found(mutant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twins of the step that keep the wrong place give wrong results."""
    right = powers.moved_place

    def wrong(combine: str, place: Any, first: Any, so_far: Any, here: Any) -> Any:
        made = right(combine, place, first, so_far, here)
        condition = made.given[0]
        less = condition.given[0] if condition.function == "or" else condition
        if mutant == "swapped":
            return right("min" if combine == "max" else "max", place, first, so_far, here)
        if mutant == "without NaN":
            changed = less
        elif mutant == "any NaN":
            changed = replace(condition, given=(less, condition.given[1].given[0]))
        else:
            changed = replace(condition, given=(replace(less, function="less_equal"), condition.given[1]))
        return replace(made, given=(changed, *made.given[1:]))

    monkeypatch.setattr("tilewright.schedule.folds.rows.moved_place", wrong)
    case = rows_case(np.random.default_rng(8), 60, 90, "f4")
    kernel = of_rows.bind(schedule=tw.Schedule(tw.atoms.fma("f32", each=(1, 1)), (8, 8, 4)))
    kernel.forget()
    try:
        arrays = case.arguments()
        kernel(**arrays, target="reference")
        assert case.wrong({name: arrays[name] for name in case.results}) != []
    finally:
        kernel.forget()


# ---------------------------------------------------------------- compilers and refusals


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_80"), ("cuda", "sm_90a"), ("hip", "gfx942")])
def test_gpus_compile_without_spills(target: str, arch: str) -> None:
    x, i, f = tw.like("bf16", 4096, 5000), tw.like("i32", 4096), tw.like("f32", 4096)
    for kernel, arrays in (
        (of_rows, (x, i, i, f)),
        (nearest_centre, (tw.like("bf16", 4096, 64), tw.like("bf16", 1024, 64), tw.like("f32", 1024), i)),
    ):
        used = kernel.compile(*arrays, target=target, arch=arch).resources
        assert used.get("spill_store_bytes", 0) + used.get("spilled_registers", 0) == 0


def test_refusals() -> None:
    @tw.kernel(X="M N", at="M")
    def no_axis(X, at):
        for m, n in tw.tiles(X):
            at[m] = X[m, n].argmax(axis=2)

    @tw.kernel(X="M N", at="M")
    def new_axis(X, at):
        for m, n in tw.tiles(X):
            at[m] = X[m, n].max(axis=1)[:, None].argmin(axis=1)

    x, at = np.zeros((3, 4), "f4"), np.zeros(3, "i4")
    for kernel, match in (
        (no_axis, r"\.argmax\(axis=2\) of .* has 2 axes; nearest legal choice: axis=1"),
        (new_axis, r"\.argmin\(axis=1\) of .* along a new axis; nearest legal choice: the axis of a span"),
    ):
        with pytest.raises(tw.TraceError, match=match):
            kernel(x, at, target="reference")

    @tw.kernel(X="M N", at="M")
    def plain(X, at):
        for m, n in tw.tiles(X):
            at[m] = X[m, n].argmax(axis=1)

    with pytest.raises(tw.TraceError, match=r"c64, has no order; nearest .* squares of their absolute"):
        plain(x.astype("c8"), at, target="reference")
    with pytest.raises(tw.LaunchError, match="argmax along n: a row must have at least one element"):
        plain(x[:, :0], at, target="cpu")
    plain(x[:0], at[:0], target="cpu")
