"""Random problems are right, and the comparison detects a wrong result."""

from __future__ import annotations

from contextlib import suppress
from math import prod
from typing import Any

import numpy as np
import pytest
from scripts.try_problems import Wanted, tried
from tests.budget import SHARES
from tests.problems import carried_out
from tests.problems.called import carry_out_call
from tests.problems.calls import call
from tests.problems.carried_out import carry_out
from tests.problems.drawing import BULK_ROWS, EACH, ITEMS, SMALL, problem
from tests.problems.kernels import product
from tests.problems.partitions import CHOSEN, PARTITIONS, PARTS, partitions_of, reductions_of

import tilewright as tw
from tilewright.schedule.fixup import FAN
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import REDUCTIONS, Schedule

PER_SEED = 10_000
"""Numbers of problems that belong to one seed."""

WORKERS = 2


@pytest.mark.parametrize("part", range(WORKERS))
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_problems_are_right(target: str, part: int, fuzz_seed: int) -> None:
    first = fuzz_seed * PER_SEED + part * PER_SEED // WORKERS
    found = tried(Wanted(target), first, PER_SEED, seconds=SHARES[f"problems on {target}"] / WORKERS)
    assert not found.failures, "\n".join([*found.failures, f"again: --fuzz-seed={fuzz_seed}"])
    assert found.elements


def test_a_number_says_all_of_a_problem() -> None:
    assert [str(problem(n, "cuda")) for n in range(50)] == [str(problem(n, "cuda")) for n in range(50)]
    assert len({str(problem(n, "cuda")) for n in range(50)}) == 50


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
def test_problems_vary_in_everything(target: str) -> None:
    made = [problem(number, target) for number in range(0, 600 * EACH, EACH)]
    odd = [problem(number, target) for number in range(EACH - 1, 600 * EACH, EACH)]
    assert len({one.group.subject for one in made}) >= 9
    assert {one.group.layout[:2] for one in made} == {"nn", "nt", "tn", "tt"}
    assert len({one.group.kind for one in made}) == 7
    extents = {extent for one in made for _, extent in one.extents}
    assert {0, 1} <= extents
    strides = [stride for one in odd for _, place in one.places for stride in place.strides]
    assert any(stride < 0 for stride in strides)
    assert 0 in strides
    drawn = [one.group.schedule for one in made if isinstance(one.group.schedule, Schedule)]
    assert len({schedule.staging for schedule in drawn}) == {"cpu": 2, "cuda": 5, "reference": 6}[target]


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
def test_problems_of_every_partition_can_be_asked_for(target: str) -> None:
    assert {problem(number, target).group.partition for number in range(len(PARTITIONS) * EACH)} == {
        *PARTITIONS
    }
    for name in PARTITIONS:
        for draw in (problem, call):
            made = [draw(number, target, name).group.schedule for number in range(0, 60 * EACH, EACH)]
            drawn = [schedule for schedule in made if isinstance(schedule, Schedule)]
            assert len(drawn) > 15
            assert all(name in partitions_of(schedule) for schedule in drawn)
            is_chosen = name in CHOSEN and (name, target) != ("batches", "reference")
            assert (len(drawn) < len(made)) == is_chosen, (name, draw)


@pytest.mark.parametrize("target", ["reference", "cpu", "cuda"])
def test_k_is_split_in_every_way_and_of_every_depth(target: str) -> None:
    made = [problem(number, target, "split") for number in range(120 * EACH)]
    ways = [one.group.schedule for one in made]
    assert all(ways)
    assert {way.reduction for way in ways if way} == {*reductions_of(target), None}
    assert {way.split_k for way in ways if way} == {*PARTS, "auto"}
    assert any(isinstance(way, Splitting) and way.batch_invariant for way in ways)
    depths = [dict(one.extents)["K"] for one in made]
    assert {0, 1} <= {*depths}
    drawn = [
        (way.split_k, -(-depth // way.block_k))
        for way, depth in zip(ways, depths, strict=True)
        if isinstance(way, Schedule) and isinstance(way.split_k, int)
    ]
    assert any(0 < steps < parts for parts, steps in drawn)
    assert any(steps >= parts > FAN for parts, steps in drawn), "the sums come together in two steps"
    few = [dict(problem(number, target, "swapped").extents)["M"] for number in range(60 * EACH)]
    assert sum(1 <= rows <= 64 for rows in few) > len(few) / 2
    items = [dict(problem(number, target, "batches").extents) for number in range(60 * EACH)]
    assert max(one["L"] for one in items) == ITEMS[target]
    assert all(one[name] <= SMALL + BULK_ROWS for one in items for name in "MNK")


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_parts_come_together_as_they_can_on_a_target(target: str) -> None:
    """If a reduction had no schedule, none of its problems would be computed by it."""
    arrays = [np.zeros(shape, np.float32) for shape in ((40, 600), (600, 40), (40, 40))]
    found = []
    for reduction in REDUCTIONS:
        with suppress(tw.LaunchError):
            product.bind(schedule=Splitting(2, reduction)).trace(*arrays, target=target)
            found.append(reduction)
    assert (*found,) == reductions_of(target)


WRONG = {
    "an element": lambda made: made.array.__setitem__((0, 0), 77),
    "what lies before an array": lambda made: made.buffer.__setitem__(3, 0),
    "what lies between rows": lambda made: made.buffer.__setitem__(made.offset + made.strides[0] - 1, 0),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    number = next(
        number
        for number in range(10_000)
        if (one := problem(number, "reference")).group.subject == "product"
        and one.group.padded
        and one.group.kind == "f32"
        and one.group.layout[2] == "n"
        and dict(one.places)["C"].strides[0] > dict(one.extents)["N"]
        and min(dict(one.extents)[name] for name in "MNK") > 4
    )
    assert not carry_out(problem(number, "reference"), "reference").wrong
    launched = carried_out._launched

    def spoiled(one: Any, arrays: Any, *rest: Any) -> Any:
        ran = launched(one, arrays, *rest)
        WRONG[name](arrays["C"])
        return ran

    monkeypatch.setattr(carried_out, "_launched", spoiled)
    assert carry_out(problem(number, "reference"), "reference").wrong


def test_numbers_are_compared_with_nan_in_place_of_what_is_not_read() -> None:
    one = problem(0, "reference")
    rng = np.random.default_rng(0)
    stored = [carried_out._filled(one, name, rng) for name in one.group.about.stored]
    assert all(
        np.isnan(made.array.astype(np.float64)).all() for made in stored if made.array.dtype.kind == "f"
    )


WAITING = tw.LaunchError("its blocks wait for each other")
DRAWN = tw.Schedule(tw.atoms.fma("f32"), (32, 32, 8))
RIGHTLY: tuple[tuple[Any, Any, bool], ...] = (
    (WAITING, Splitting(25, "reduce-scatter"), True),
    (WAITING, Splitting(2, "reduce-scatter", batch_invariant=True), True),
    (WAITING, DRAWN, True),
    (WAITING, Splitting("auto", "reduce-scatter"), False),
    (WAITING, Splitting(25, "workspace"), False),
    (WAITING, Splitting(25, "turnstile"), False),
    (WAITING, Splitting(4, "cluster"), False),
    (WAITING, Splitting(25), False),
    (WAITING, None, False),
    (tw.LaunchError("no memory"), Splitting(25, "reduce-scatter"), False),
    (tw.LaunchError("no memory"), DRAWN, False),
    (tw.ScheduleError("gemm", "numpy", "", []), DRAWN, True),
    (tw.ScheduleError("gemm", "numpy", "", []), Splitting(25, "reduce-scatter"), False),
    (tw.ScheduleError("gemm", "numpy", "", []), None, False),
    (tw.LayoutError("blocks wait for each other"), DRAWN, False),
)
"""An error, what a problem asks for, and whether it may be refused so."""


@pytest.mark.parametrize(("error", "asked", "is_right"), RIGHTLY)
def test_what_is_refused_is_wrong_but_where_it_may_be(error: Any, asked: Any, is_right: bool) -> None:
    found = carried_out.refused(error, asked)
    assert found.refused == (str(error) if is_right else "")
    assert bool(found.wrong) != is_right


def without(name: str) -> Any:
    """`tw.matmul` without one of its arguments."""
    product = tw.matmul
    return lambda *, out, **given: product(
        out=out, **{key: value for key, value in given.items() if key != name}
    )


def other_bits_next_time() -> Any:
    """`tw.matmul`, but a repeated call stores another last bit."""
    product, made = tw.matmul, []

    def matmul(*, out: Any, **given: Any) -> Any:
        product(out=out, **given)
        made.append(out)
        if len(made) > 1:
            out[...] = np.nextafter(out, np.inf, dtype=out.dtype)
        return out

    return matmul


SPOILED = {
    "bias": (lambda: without("bias"), "wrong: "),
    "residual": (lambda: without("residual"), "wrong: "),
    "other bits": (other_bits_next_time, "the same call stored other bits"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_with_a_call_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = next(
        one
        for one in (call(number, "reference", "data-parallel") for number in range(20_000))
        if {"bias", "residual", "out"} <= {*one.shapes}
        and one.kinds["out"] == "f32"
        and one.kinds["residual"] != "i8"
        and one.words.get("activation") in (None, "gelu")
        and prod(one.shapes["out"]) > 50
    )
    assert not carry_out_call(one, "reference").wrong
    spoil, said = SPOILED[name]
    monkeypatch.setattr(tw, "matmul", spoil())
    assert carry_out_call(one, "reference").wrong.startswith(said)


def test_rows_that_have_other_bits_alone_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    one = next(
        one
        for one in (call(number, "reference", "split") for number in range(20_000))
        if one.words.get("batch_invariant")
        and one.kinds["a"] == "f32"
        and len(one.shapes["a"]) == 2 == len(one.shapes["b"])
        and min(one.extents[name] for name in "MNK") > 1
    )
    assert not carry_out_call(one, "reference").wrong
    product, whole = tw.matmul, one.shapes["a"]

    def by_rows(a: Any, b: Any, *rest: Any, **given: Any) -> Any:
        made = product(a, b, *rest, **given)
        if a.shape != whole:
            made[...] = np.nextafter(made, np.inf, dtype=made.dtype)
        return made

    monkeypatch.setattr(tw, "matmul", by_rows)
    assert carry_out_call(one, "reference").wrong.endswith("rows have other bits alone")
