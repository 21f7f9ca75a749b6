"""The passes that `scaled_mm` replaces: right results, and the stated launches and bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import WrongResultError
from tilewright.tune.scaled_trial import OUR_PASSES, ScaledOperands, ScaledTrial
from tilewright.tune.trial import OURS

PAGE = Path(__file__).parents[2] / "docs" / "scaled.md"
CASES: dict[str, tuple[tuple[str, str], dict[str, Any], int]] = {
    "weights of fp8": (("f16", "f8e4m3"), {}, 3),
    "contiguous along N": (("bf16", "i8"), {"layout": "nn"}, 3),
    "A is narrower": (("f8e5m2", "f16"), {"layout": "tn"}, 3),
    "two kinds of fp8": (("f8e4m3", "f8e5m2"), {}, 4),
    "integers": (("i8", "i8"), {}, 2),
    "4 bits": (("f16", "f4e2m1"), {"layout": "nn"}, 3),
    "groups with zero points": (("f16", "i4"), {"group": 32, "zeros": True}, 3),
    "neither scales nor bias": (("f16", "f8e4m3"), {"scales": (), "bias": False}, 3),
}


def trial(kinds: tuple[str, str], words: dict[str, Any], target: str, activation: str | None) -> ScaledTrial:
    made = ScaledOperands.drawn((5, 24, 96), (tw.dtype(kinds[0]), tw.dtype(kinds[1])), **words)
    return ScaledTrial(made, target, activation=activation)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("case", CASES)
def test_the_passes_compute_the_same(case: str, target: str) -> None:
    kinds, words, launches = CASES[case]
    passes = trial(kinds, words, target, "relu" if "4" in case else None).own_passes
    assert passes is not None
    assert passes.verified().ok
    assert passes.launches == launches


@pytest.mark.gpu
@pytest.mark.parametrize("case", ["weights of fp8", "contiguous along N", "neither scales nor bias"])
def test_the_passes_compute_the_same_on_a_gpu(case: str) -> None:
    """The results of our passes and of PyTorch's are compared."""
    pytest.importorskip("torch")
    kinds, words, _ = CASES[case]
    made = trial(kinds, words, "cuda", None)
    assert made.own_passes is not None
    assert made.own_passes.verified().ok
    made.run()
    (call,) = made.three_passes().values()
    found: Any = call()
    np.testing.assert_allclose(
        found.float().cpu().numpy(), made.result().astype(np.float32), rtol=2e-2, atol=1e-2 * 96**0.5
    )


def test_a_wrong_element_is_found() -> None:
    passes = trial(*CASES["weights of fp8"][:2], "reference", None).own_passes
    assert passes is not None
    assert passes.verified().ok
    passes.out[3, 7] += 1
    assert passes.verify().wrong == 1
    passes._wide["b"][3, 7] += 1
    with pytest.raises(WrongResultError, match="b is converted to f16 wrongly"):
        passes.verify()


def test_a_scale_of_one_number_is_one_for_all() -> None:
    made = ScaledOperands.drawn((5, 24, 96), (tw.f16, tw.f8e4m3), blocks=(1, 128))  # one block along K
    passes = ScaledTrial(made, "reference").own_passes
    assert passes is not None
    assert passes.verified().ok


@pytest.mark.parametrize(
    ("depth", "words"), [(140, {"blocks": (1, 128)}), (96, {"group": 32, "layout": "nn"})], ids=str
)
def test_there_are_none_where_each_block_would_need_a_product(depth: int, words: dict[str, Any]) -> None:
    made = ScaledTrial(ScaledOperands.drawn((5, 24, depth), (tw.f16, tw.f8e4m3), **words), "reference")
    assert made.own_passes is None
    assert {*made.launches} == {*made.moved} == {OURS}


@pytest.mark.parametrize(("m", "n", "k"), [(16, 4096, 4096), (1024, 4096, 4096)])
def test_the_page_has_launches_and_bytes(m: int, n: int, k: int) -> None:
    a, b = np.zeros((m, k), np.float16), np.zeros((n, k), tw.f8e4m3.numpy).T
    ones = np.ones(max(m, n), np.float32)
    made = ScaledTrial(ScaledOperands(a, b, ones[:m], ones[:n], ones[:n]), "cpu")
    assert made.launches == {OURS: 1, OUR_PASSES: 3}
    passes, beside_result = 5 * k * n + 2 * m * k + 6 * m * n, 4 * (m + 2 * n)
    assert made.moved == {
        OURS: 2 * m * k + k * n + 2 * m * n + beside_result,
        OUR_PASSES: passes + beside_result,
    }
    for name, said in ((OURS, "`tw.scaled_mm`"), (OUR_PASSES, "convert, GEMM, scale and bias")):
        line = f"| {m} × {n} × {k} | {said} | {made.launches[name]} | {made.moved[name] / 1e6:.1f} |"
        assert line in PAGE.read_text()
