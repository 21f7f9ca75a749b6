"""Products with scales on a GPU: every form that decodes in bulk, every mixture, random problems."""

from __future__ import annotations

import pytest
from tests.ops.test_scaled import MIXTURES
from tests.problems.scaled_problems import carried_out
from tests.schedule.small import CASES

import tilewright as tw
from tilewright.runtime import cuda
from tilewright.runtime.device_array import DeviceArray
from tilewright.tune.scaled_trial import ScaledOperands, ScaledTrial

pytestmark = pytest.mark.gpu

FORMS = [name for name in CASES if name.startswith("decoded in bulk")]


@pytest.mark.parametrize("name", FORMS)
def test_every_form(name: str) -> None:
    case = CASES[name]
    for steps in case.counts:
        before = case.arrays(case.shape(steps))
        there = {one: DeviceArray.of(array) for one, array in before.items()}
        assert case.bound(*there.values()).target == "cuda"
        cuda.synchronize()
        found = case.compare({one: array.host() for one, array in there.items()})
        assert found.ok, f"{steps} steps: {found}"


@pytest.mark.parametrize(("kind", "other"), MIXTURES)
@pytest.mark.parametrize("layout", ["nt", "nn", "tn"])
def test_every_mixture(kind: str, other: str, layout: str) -> None:
    for shape in ((16, 256, 512), (130, 272, 400), (33, 29, 70)):
        made = ScaledOperands.drawn(shape, (tw.dtype(kind), tw.dtype(other)), layout=layout)
        trial = ScaledTrial(made, "cuda", activation="silu")
        trial.run()
        trial.verify().raise_if_wrong()


def test_random_problems() -> None:
    assert [wrong for number in range(48) if (wrong := carried_out(number, "cuda"))] == []
