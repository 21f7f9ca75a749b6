"""A step of a loop repeats a computation: the largest scores of each row, for lists of any length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.dataflow.parser import parse_flow
from tilewright.dataflow.printer import print_flow
from tilewright.schedule.folds.form import FoldForm, fold_form_of
from tilewright.schedule.folds.legality import reasons
from tilewright.targets.atoms import wgmma

from . import folding

TOP = folding.top_k


def problem(k: int, shape: tuple[int, int, int] = (37, 70, 24), seed: int = 0) -> dict[str, Any]:
    """Small whole numbers, of which many are equal; W has a row of its own between two of its rows."""
    (m, n, d), rng = shape, np.random.default_rng(seed)
    x, w = (rng.integers(-3, 4, one).astype(np.float16) for one in ((m, d), (n, 2 * d)))
    blank = np.full((m, k + 3), np.nan, np.float32)
    return {"X": x, "W": w[:, :d], "best": blank[:, :k], "at": np.full((m, k), -7, np.int32)}


def wanted(given: dict[str, Any]) -> tuple[Any, Any]:
    """The scores in descending order, and their places; beyond the row -inf, and place 0."""
    k = given["best"].shape[1]
    s = given["X"].astype(np.float64) @ given["W"].astype(np.float64).T
    at = np.argsort(-s, axis=1, kind="stable")[:, :k]
    best, more = np.take_along_axis(s, at, 1), k - at.shape[1]
    return np.pad(best, ((0, 0), (0, more)), constant_values=-np.inf), np.pad(at, ((0, 0), (0, more)))


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize(("k", "n"), [(1, 70), (8, 70), (8, 5), (32, 131), (19, 64)])
def test_the_largest_are_in_order_and_the_first_of_equal_ones_comes_first(
    target: str, k: int, n: int
) -> None:
    rows = 37 if target == "cpu" else 18
    given = problem(k, (rows, n, 24))
    ran = TOP(**given, target=target)
    assert ran.target == target
    best, at = wanted(given)
    np.testing.assert_array_equal(given["best"], best)
    np.testing.assert_array_equal(given["at"][best > -np.inf], at[best > -np.inf])
    assert np.isnan(given["best"].base[:, k:]).all()


@pytest.mark.parametrize("run", [16, 48, 128])
def test_steps_of_any_length_find_the_same(run: int) -> None:
    given = problem(8)
    known = TOP.bind().schedule_for(**given, target="cpu")
    rows, _, depth = known.tile
    made = tw.Schedule(known.atom, (rows, run, depth), known.warps, width=known.width, resident=True)
    TOP.bind(schedule=made)(**given, target="cpu")
    best, at = wanted(given)
    np.testing.assert_array_equal(given["best"], best)
    np.testing.assert_array_equal(given["at"], at)


def test_the_flow_says_what_the_kernel_computes() -> None:
    given = problem(8)
    flow = TOP.flow(**given)
    best, at = wanted(given)
    for step in (None, 16, 7):
        found = tw.ir.evaluate(flow, given, run=step)
        np.testing.assert_array_equal(found["best"], best)
        np.testing.assert_array_equal(found["at"], at)
    assert parse_flow(print_flow(flow)).key == flow.key
    read = {name: given[name] for name in "XW"}
    stored = {"best": best.astype(np.float32), "at": at.astype(np.int32)}
    assert compare_flow(flow, stored, read, run=16).ok
    stored["at"][3, 4] += 1
    assert compare_flow(flow, stored, read, run=16).wrong == 1


@pytest.mark.parametrize(("target", "arch"), [("cuda", "sm_90a"), ("cuda", "sm_80"), ("hip", "gfx942")])
def test_the_text_has_a_loop_whatever_the_length_of_the_list(target: str, arch: str) -> None:
    """The lines of its body do not grow with the list; registers of accumulators do not spill."""
    lines = {}
    for k in (8, 32):
        specs = [
            tw.like("f16", 512, 64),
            tw.like("f16", 4096, 64),
            tw.like("f32", 512, k),
            tw.like("i32", 512, k),
        ]
        made = TOP.compile(*specs, target=target, arch=arch)
        lines[k] = len(made.source.splitlines())
        spilled = [made.resources.get(name, 0) for name in ("spill_store_bytes", "spilled_registers")]
        assert spilled == [0, 0]
    assert lines[32] < 1.1 * lines[8]


def test_parts_and_warpgroups_are_refused_with_their_reason() -> None:
    specs = {
        "X": tw.like("f16", 512, 64), "W": tw.like("f16", 4096, 64),
        "best": tw.like("f32", 512, 8), "at": tw.like("i32", 512, 8),
    }  # fmt: skip
    question = TOP.bind().question(**specs, target="cuda", arch="sm_90a")
    form = question.form
    assert isinstance(form, FoldForm)
    assert len(form.repeats) == 1
    known = TOP.bind().schedule_for(**specs, target="cuda", arch="sm_90a")
    groups = tw.Schedule(
        wgmma("f16", 64),
        (64, 64, 64),
        stages=2,
        staging="tma",
        roles="cooperative",
        groups=1,
        width=8,
        resident=True,
    )
    found = reasons(groups, form, question.specs, question.arch)
    assert any("a step repeats a computation for each i" in one.message for one in found)
    parts = tw.Schedule(known.atom, known.tile, known.warps, width=8, resident=True, split_k=2)
    assert any(
        "cannot be merged" in one.message for one in reasons(parts, form, question.specs, question.arch)
    )


PARTS = tw.Schedule(tw.atoms.MMA_F16, (32, 16, 32), (2, 1), width=16, resident=True)


@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize(("k", "n", "parts"), [(8, 150, 4), (13, 70, 2), (8, 20, 3), (1, 64, 4)])
def test_lists_of_parts_merge(target: str, k: int, n: int, parts: int) -> None:
    """Parts may have fewer scores than the list, and the last parts none; equal scores keep their order."""
    given = problem(k, (18, n, 24))
    kernel = folding.top_k_in_parts.bind(schedule=replace(PARTS, split_k=parts))
    assert kernel(**given, target=target).target == target
    best, at = wanted(given)
    np.testing.assert_array_equal(given["best"], best)
    np.testing.assert_array_equal(given["at"], at)
    assert np.isnan(given["best"].base[:, k:]).all()


def test_lists_of_few_rows_are_split_by_the_rules() -> None:
    """On a GPU, few rows have a part of the words for each processor; the flow prints and parses back."""
    like = tw.like("f16", 64, 1024), tw.like("f16", 32000, 1024), tw.like("f32", 64, 8), tw.like("i32", 64, 8)
    flow = folding.top_k_in_parts.flow(*like)
    assert parse_flow(print_flow(flow)).key == flow.key
    made = folding.top_k_in_parts.bind().schedule_for(*like, target="cuda", arch="sm_90a")
    assert (made.split_k, made.blocks) == ("auto", 132)


def in_another_order(one: Any, other: Any, **words: Any) -> Any:
    return folding.longest(other, one, **words)


def with_one_list(one: Any, other: Any, **words: Any) -> Any:
    return folding.longest(one, (one[0], other[1]), **words)


def test_lists_that_merge_in_another_order_are_found() -> None:
    """The second list first, or a list that keeps what was taken, disagrees with the loop."""
    for wrong in ("order", "one list"):

        @tw.kernel(X="M K", W="N K", best="M T", at="M T")
        def top_k(X, W, best, at, *, wrong=wrong):
            for m, t in tw.tiles(best):
                values, places = tw.full((m, t), -np.inf, tw.f32), tw.full((m, t), 0, tw.i32)
                mutant = in_another_order if wrong == "order" else with_one_list
                merge = partial(mutant, m=m, t=t, n=t, count=best.shape[1])
                for n in tw.steps(W.shape[0], state=(values, places), merge=merge):
                    s = tw.zeros(dtype=tw.f32)
                    for d in tw.steps(X.shape[1]):
                        s += X[m, d] @ W[n, d].T
                    lists = (values, places), (s, tw.positions(n))
                    made, found = folding.longest(*lists, m, t, n, best.shape[1])
                    values.assign(made)
                    places.assign(found)
                best[m, t], at[m, t] = values, places

        with pytest.raises(tw.TraceError, match="of merged parts and of the whole loop differ on"):
            top_k.bind(schedule=PARTS)(**problem(8, (18, 70, 24)), target="reference")


def test_a_product_inside_of_a_repeated_computation_is_refused() -> None:
    @tw.kernel(X="M K", W="N K", Y="M T")
    def wrong(X, W, Y):
        for m, t in tw.tiles(Y):
            total = tw.zeros((m, t), tw.f32)
            for n in tw.steps(W.shape[0]):
                for _i, _ in tw.steps((3, 1)):
                    s = tw.zeros(dtype=tw.f32)
                    for d in tw.steps(X.shape[1]):
                        s += X[m, d] @ W[n, d].T
                    total.assign(total + s.max(axis=1)[:, None])
            Y[m, t] = total

    given = np.ones((8, 8), np.float16), np.ones((8, 8), np.float16), np.empty((8, 4), np.float32)
    with pytest.raises(tw.TraceError, match="a product along d in the loop over _i of a step"):
        fold_form_of(wrong.flow(*given))
