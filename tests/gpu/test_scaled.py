"""Products with scales on a GPU: every form that decodes in bulk, every mixture, random problems."""

from __future__ import annotations

import pytest
from tests.ops.test_scaled import MIXTURES
from tests.problems import weights_problems
from tests.problems.scaled_problems import carried_out
from tests.schedule.small import CASES

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
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
        CUDA_DRIVER.synchronize()
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


def test_random_weights_in_groups() -> None:
    wrong = (weights_problems.carried_out(number, "cuda") for number in range(48))
    assert [found for found in wrong if found] == []


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_weights_of_4_bits_at_every_number_of_rows(group: int, zeros: bool, wide: str) -> None:
    for m, n, k in ((1, 512, 4096), (8, 4096, 512), (16, 200, 1280), (64, 328, 1024), (200, 264, 640)):
        kinds = (tw.dtype(wide), tw.i4)
        made = ScaledOperands.drawn((m, n, k), kinds, scales=("scale_b",), group=group, zeros=zeros)
        trial = ScaledTrial(made, "cuda")
        trial.run()
        trial.verify().raise_if_wrong()
