"""Random dataflow kernels have the results of NumPy; `scripts/try_members.py` tries any number of them."""

from __future__ import annotations

import numpy as np
import pytest

from . import random_kernels
from .random_kernels import drafted, outcome

FIRST = {"reference": 1000, "cpu": 2000}


@pytest.mark.parametrize("part", range(6))
@pytest.mark.parametrize(("target", "count"), [("reference", 12), ("cpu", 2)])
def test_random_kernels(target: str, count: int, part: int) -> None:
    """No result is wrong, and every kernel is computed."""
    first = FIRST[target] + part * count
    found = {number: outcome(number, target) for number in range(first, first + count)}
    assert {number: one for number, one in found.items() if one != ("", "")} == {}


def test_every_form_is_drawn_and_its_numbers_are_exact() -> None:
    """Results are integers that f32 holds, so that they do not depend on an order of additions."""
    seen = set[str]()
    for number in range(300):
        draft = drafted(number, "cpu")
        seen |= set(draft.results) | {
            word for word in ("tw.steps", "argmax", "cumsum", "batch=1", "@") if word in draft.text()
        }
        for _, elements in draft.results.values():
            assert (elements == elements.astype(np.float32)).all()
            assert np.abs(elements).max() < random_kernels.POISON
    assert seen >= {
        "C",
        "D",
        "S",
        "rows",
        "columns",
        "places",
        "tw.steps",
        "argmax",
        "cumsum",
        "batch=1",
        "@",
    }


@pytest.mark.parametrize("lost", ["a term", "a column"])
def test_a_wrong_kernel_is_found(lost: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that the kernel lacks, and a result that lacks its last element, are named."""
    whole = random_kernels.Draft.text

    def changed(self: random_kernels.Draft) -> str:
        text, (name, (axes, _)) = whole(self), next(iter(self.results.items()))
        if lost == "a term":
            return text.replace(f"{name}[{', '.join(axes)}] =", f"{name}[{', '.join(axes)}] = 1.0 +")
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
