"""Rescaled sums are right for any shifts: an extreme that changes at every step, and any order of steps.

Over the pairs of `exponentials`, averages by powers do not depend on the shift of the exponents.  Here
``max`` gives another number than both of its arguments, so that the shift changes in every step, in every
reduction and in every merge.  A true running maximum seldom changes, and hides a wrong rescale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.lang.fragments import elementwise
from tilewright.ops.attending import flow
from tilewright.ops.attending.flow import BySoftmax
from tilewright.schedule.factors import plain
from tilewright.schedule.folds.block import FoldBlock
from tilewright.schedule.folds.form import fold_form_of
from tilewright.schedule.folds.parts import Added, StateMerge
from tilewright.schedule.folds.rows import RowLoops
from tilewright.schedule.folds.values import TileValues
from tilewright.targets.reference.exponentials import LOWEST, PAIRS
from tilewright.testing import compare_algebra

from . import test_parts
from .test_folds import GROUPS
from .test_parts import ALGEBRA, LIKE, inverted, left_out, stale, without_rescale
from .test_rows import weighted as of_rows

Array = np.ndarray[Any, Any]
SEEDS = range(2)


def neither(left: Array, right: Array) -> Array:
    """Return another number than both arguments, independent of their order; -inf does not count."""
    made = PAIRS.word(PAIRS.some("neither", [PAIRS.add(left, right)]))
    return np.where(left == LOWEST, right, np.where(right == LOWEST, left, made))


@pytest.fixture(autouse=True)
def _forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PAIRS.functions, "max", neither)  # type: ignore[arg-type]


def kernel_of(mutant: str = "") -> Any:
    """Return a kernel of averages weighted by powers, with their scaled total; or one of its mutants."""

    @tw.kernel(Q="M D", K="N D", V="N E", O="M E", L="M", scale=tw.f32)
    def weighted(Q, K, V, O, L, scale):
        for m, e in tw.tiles(O):
            top, total, out = tw.full((m,), -3e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
            for n in tw.steps(K.shape[0]):
                s = tw.zeros(dtype=tw.f32)
                for d in tw.steps(Q.shape[1]):
                    s += Q[m, d] @ K[n, d].T
                here = s.max(axis=1)
                new = tw.maximum(top, here)
                by = {"stale weights": top, "weights of the step": here}.get(mutant, new)
                p = tw.exp2((s - by[:, None]) * scale)
                if mutant == "inverted":
                    keep = tw.exp2((new - top) * scale)
                elif mutant == "rescaled to the step":
                    keep = tw.exp2((top - here) * scale)
                elif mutant == "half":
                    keep = tw.exp2((top - new) * (0.5 * scale))
                else:
                    keep = tw.exp2((top - new) * scale)
                total.assign((total if mutant == "total dropped" else total * keep) + p.sum(axis=1))
                kept = out if mutant == "out dropped" else out * keep[:, None]
                out.assign(kept + p.to(V.dtype) @ V[n, e])
                top.assign(here if mutant == "the step's extreme is kept" else new)
            O[m, e] = out * (1.0 / total)[:, None]
            L[m] = total * tw.exp2(top * scale)

    return weighted


MUTANTS = (
    "stale weights",
    "weights of the step",
    "inverted",
    "rescaled to the step",
    "half",
    "total dropped",
    "out dropped",
    "the step's extreme is kept",
)
WAYS = {
    "steps of 16": ALGEBRA,
    "steps of 32": replace(ALGEBRA, tile=(32, 32, 16)),
    "one step": replace(ALGEBRA, tile=(32, 112, 16)),
    "two stages": replace(ALGEBRA, staging="cp_async", stages=2),
    "2 parts": replace(ALGEBRA, split_k=2),
    "7 parts": replace(ALGEBRA, split_k=7),
    "multiply-adds, 3 parts": replace(
        ALGEBRA, atom=tw.atoms.fma("f16", "f32", each=(2, 2)), width=32, split_k=3
    ),
    "warpgroups": GROUPS,
    "one warpgroup, three stages": replace(GROUPS, tile=(64, 32, 32), groups=1, stages=3),
}


def are_equal(one: Any, other: Any, seed: int = 0) -> bool:
    return compare_algebra(one, other, *LIKE, scale=0.25, exponentials=True, seed=seed).ok


@pytest.fixture
def whole() -> Any:
    """Return the average over all keys in one step, without rescaling."""
    return kernel_of().bind(schedule=WAYS["one step"])


@pytest.mark.parametrize("way", WAYS)
def test_every_schedule_is_right_for_any_shifts(way: str, whole: Any) -> None:
    other = kernel_of().bind(schedule=WAYS[way])
    assert all(are_equal(whole, other, seed) for seed in SEEDS)


@pytest.mark.parametrize("fold", ["online", "two passes"])
def test_whole_rows_are_right_for_any_shifts(fold: str, whole: Any) -> None:
    for way in ("steps of 16", "steps of 32", "two stages"):
        other = of_rows.bind(schedule=replace(WAYS[way], fold=fold))
        other.forget()
        assert all(are_equal(whole, other, seed) for seed in SEEDS)


@pytest.mark.parametrize("mutant", MUTANTS)
def test_every_wrong_rescale_differs(mutant: str, whole: Any) -> None:
    for way in ("two stages", "warpgroups"):
        other = kernel_of(mutant).bind(schedule=WAYS[way])
        assert not any(are_equal(whole, other, seed) for seed in SEEDS), way


@pytest.mark.parametrize("mutant", [without_rescale, inverted, stale, left_out])
def test_every_wrong_merge_differs(mutant: Any, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    assert test_parts.right is StateMerge.merged
    monkeypatch.setattr(StateMerge, "merged", mutant)
    for way in ("2 parts", "7 parts"):
        other = kernel_of().bind(schedule=WAYS[way])
        assert not any(are_equal(whole, other, seed) for seed in SEEDS), way


def test_every_wrong_rescale_of_a_row_differs(whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    keep = RowLoops._keep

    def turned(self: RowLoops, function: str, exponents: Any, node: Any) -> Any:
        return keep(self, function, tuple((key, (-one, names)) for key, (one, names) in exponents), node)

    def halved(self: RowLoops, function: str, exponents: Any, node: Any) -> Any:
        return keep(self, function, tuple((key, (one / 2, names)) for key, (one, names) in exponents), node)

    for mutant in (turned, halved):
        monkeypatch.setattr(RowLoops, "_keep", mutant)
        other = of_rows.bind(schedule=ALGEBRA)
        other.forget()
        assert not any(are_equal(whole, other, seed) for seed in SEEDS)
        other.forget()


# ---------------------------------------------------------------- the library's attention

SHAPES = ((1, 40, 16), (112, 16), (112, 24), (1, 40, 24))
NUMBERS = {"exponent": 0.25, "diagonal": 80}
"""Row i of 40 sees the keys up to i + 80 of 112 behind a mask."""


def attending(way: str, *, causal: bool) -> Any:
    """The kernel of `tw.attention`, which subtracts first: a choice of exponents is no polynomial."""
    words = {"scores": flow.Scores(causal), "between": BySoftmax(power=0.0), "with_lse": False}
    return flow.attention.bind(**words, schedule=WAYS[way])


def averages_are_equal(one: Any, other: Any, seed: int) -> bool:
    like = [tw.like("f16", 1, 1, *shape) for shape in SHAPES] + [tw.like("f32", 1, 1, 1, 40)]
    return compare_algebra(one, other, *like, **NUMBERS, exponentials=True, seed=seed).ok


@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_right_for_any_shifts(causal: bool) -> None:
    one = attending("one step", causal=causal)
    for way in WAYS:
        other = attending(way, causal=causal)
        assert all(averages_are_equal(one, other, seed) for seed in SEEDS), way


@pytest.fixture
def rescales(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a function that changes how every loop rescales its sums."""
    powers: dict[int, Any] = {}
    init, compute = FoldBlock.__init__, TileValues._compute

    def begun(self: Any, form: Any, schedule: Any, arguments: Any) -> None:
        powers.clear()
        for rule in StateMerge(form).rules:
            if isinstance(rule, Added) and rule.keep is not None:
                powers[id(plain(rule.keep))] = plain(rule.keep)
        assert len(powers) == 1, "both sums have one rescale"
        init(self, form, schedule, arguments)

    def change(mutant: Any) -> None:
        def computed(self: Any, node: Any) -> Any:
            return mutant(self, node) if id(node) in powers else compute(self, node)

        monkeypatch.setattr(FoldBlock, "__init__", begun)
        monkeypatch.setattr(TileValues, "_compute", computed)

    return change


def dropped(self: Any, node: Any) -> Any:
    return 1.0


def the_other_way(self: Any, node: Any) -> Any:
    return elementwise(node.function, elementwise("neg", self.value(node.given[0])))


@pytest.mark.parametrize("mutant", [dropped, the_other_way])
@pytest.mark.parametrize("way", ["steps of 16", "two stages", "warpgroups", "one warpgroup, three stages"])
def test_wrong_rescales_of_attention_differ(way: str, mutant: Any, rescales: Any) -> None:
    one, other = attending("one step", causal=False), attending(way, causal=False)
    form = fold_form_of(other.flow(*(np.zeros((1, 1, *shape), np.float16) for shape in SHAPES),
                                   np.zeros((1, 1, 1, 40), np.float32), **NUMBERS))  # fmt: skip
    assert sum(isinstance(rule, Added) for rule in StateMerge(form).rules) == 2
    other.forget()
    rescales(mutant)
    try:
        assert not any(averages_are_equal(one, other, seed) for seed in SEEDS)
    finally:
        other.forget()
