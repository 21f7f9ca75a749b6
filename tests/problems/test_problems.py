"""Random problems, others each day; and that what is wrong with one is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scripts.try_problems import tried
from tests.budget import SHARES
from tests.problems import carried_out
from tests.problems.carried_out import carry_out
from tests.problems.drawing import EACH, problem

PER_DAY = 10_000
"""So many numbers of problems are a day's."""

WORKERS = 2


@pytest.mark.parametrize("part", range(WORKERS))
@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_random_problems_are_right(target: str, part: int, fuzz_seed: int) -> None:
    first = fuzz_seed * PER_DAY + part * PER_DAY // WORKERS
    found = tried(target, first, PER_DAY, seconds=SHARES[f"problems on {target}"] / WORKERS)
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
    assert len({one.group.schedule.staging for one in made if one.group.schedule}) == {"cpu": 1}.get(
        target, 5
    )


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
