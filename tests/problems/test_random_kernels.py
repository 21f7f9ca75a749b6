"""Random dataflow kernels have the results of NumPy; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import re

import numpy as np
import pytest

from . import complex_kernels, random_kernels
from .random_kernels import GPUS, drafted, outcome

FIRST = {"reference": 1000, "cpu": 2000} | {gpu: 3000 + 100 * at for at, gpu in enumerate(GPUS)}

WORDS = (
    *(
        "tw.steps",
        "argmax",
        "cumsum",
        "batch=1",
        "@",
        "softmax",
        "lse",
        "axis=0",
        "tw.take((",
        "tw.take(table",
    ),
    *("groups=ends", "groups=(starts, ends)", "end=ends[b]", "begin=None", "end=limits[g]", "in tw.steps(S"),
    *(
        "[to[m], n] =",
        "[to[m], n] +=",
        "[rows_m[m], ",
        "rows_n[n]]",
        "[1::2]",
        "[::-2]",
        "// 3",
        ".i64",
        "low",
    ),
)
"""What the text of some kernels contains."""

COMPLEX_WORDS = (
    *(
        ".conj()",
        ".real",
        ".imag",
        "1j *",
        "(2 - 1j)",
        "tw.where(",
        "acc -=",
        "acc +=",
        "t.assign",
        "batch=1",
    ),
    *("tw.c128", "::-1]", "[rows_m[m], ", ".sum(axis=1)", ".T"),
)
"""What the text of some complex kernels contains."""


@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 2)])
def test_random_kernels(target: str, count: int, part: int) -> None:
    """No result is wrong, and every kernel is computed."""
    first = FIRST[target] + part * count
    found = {number: outcome(number, target) for number in range(first, first + count)}
    assert {number: one for number, one in found.items() if one != ("", "")} == {}


@pytest.mark.parametrize("part", range(3))
@pytest.mark.parametrize(("target", "count"), [("reference", 8), ("cpu", 2)])
def test_random_complex_kernels(target: str, count: int, part: int) -> None:
    """No result is wrong, and every kernel is computed, by the reference also under schedules of GPUs."""
    numbers = range(part * count, (part + 1) * count)
    gpus = ("", GPUS[part]) if target == "reference" else ("",)
    drawn = complex_kernels.drafted
    found = {(number, gpu): outcome(number, target, gpu, drawn=drawn) for number in numbers for gpu in gpus}
    assert {number: one for number, one in found.items() if one != ("", "")} == {}


def test_every_complex_form_is_drawn_and_its_numbers_are_exact() -> None:
    seen = set[str]()
    for number in range(200):
        draft = complex_kernels.drafted(number, "cpu")
        text = draft.text()
        seen |= set(draft.results) | {word for word in COMPLEX_WORDS if word in text}
        for kind, _, elements in draft.given.values():
            assert np.iscomplexobj(elements) == (kind in complex_kernels.KINDS)
        for name, (_, elements) in draft.results.items():
            assert np.iscomplexobj(elements) == (draft.kinds[name] in complex_kernels.KINDS)
            for part in (elements.real, elements.imag):
                assert (part == part.astype(np.float32)).all()
    assert seen >= {"C", "rows", *COMPLEX_WORDS}


@pytest.mark.parametrize("gpu", GPUS)
def test_random_kernels_under_schedules_of_gpus(gpu: str) -> None:
    """The reference computes them under the schedule that is chosen for a GPU."""
    first = FIRST[gpu]
    found = {number: outcome(number, "reference", gpu) for number in range(first, first + 12)}
    assert {number: one for number, one in found.items() if one != ("", "")} == {}


@pytest.mark.parametrize("gpu", ["sm_90a", "gfx942"])
def test_random_kernels_under_schedules_of_large_problems(gpu: str) -> None:
    """A schedule of a large problem computes a small one, or is refused for its arrays."""
    found = [outcome(number, "reference", gpu, 32) for number in range(FIRST[gpu], FIRST[gpu] + 12)]
    assert [wrong for wrong, _ in found if wrong] == []
    assert sum(not why for _, why in found) >= 8


def test_every_form_is_drawn_and_its_numbers_are_exact() -> None:
    """Results are integers that f32 holds, so that they do not depend on an order of additions."""
    seen = set[str]()
    for number in range(300):
        draft = drafted(number, "cpu")
        kinds = {f".{kind}" for kind, _, _ in draft.given.values()}
        seen |= set(draft.results) | kinds | {word for word in WORDS if word in draft.text()}
        for name, (_, elements) in draft.results.items():
            assert name in draft.bounds or (elements == elements.astype(np.float32)).all()
            assert np.abs(elements).max() <= random_kernels.POISON
    assert seen >= {"C", "D", "S", "rows", "columns", "places", *WORDS}


@pytest.mark.parametrize("lost", ["a term", "a column"])
def test_a_wrong_kernel_is_found(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that the kernel lacks, and a result that lacks its last element, are named."""
    whole = random_kernels.Draft.text

    def changed(self: random_kernels.Draft) -> str:
        text, name = whole(self), next(iter(self.results))
        if lost == "a term":
            return re.sub(rf"^( +{name}\[.*?\]) (\+?=) ", r"\1 \2 1.0 + ", text, flags=re.MULTILINE)
        return text

    if lost == "a column":
        fetched = random_kernels.Placed.fetched

        def short(self: random_kernels.Placed) -> np.ndarray:
            made = fetched(self).copy()
            made[..., -1:] = random_kernels.POISON
            return made

        monkeypatch.setattr(random_kernels.Placed, "fetched", short)
    monkeypatch.setattr(random_kernels.Draft, "text", changed)
    for number in range(4):
        wrong, why = outcome(number, "reference")
        assert "are wrong" in wrong
        assert why == ""
