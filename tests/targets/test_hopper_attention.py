"""Attention with Hopper's operations: right within the same bounds, clean, and every mistake found."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir import verify
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

from .test_attention import HUGE, Case

pytestmark = pytest.mark.in_turns(3)

EXAMPLE: dict[str, Any] = runpy.run_path(
    str(Path(__file__).parents[2] / "examples" / "10_hopper_attention.py")
)
TARGETS = ["reference", pytest.param("cuda", marks=pytest.mark.gpu)]
RAGGED = [(1, 2, 130, 70, 64), (2, 1, 65, 300, 64), (1, 1, 3, 1, 128)]


def case(shape: tuple[int, ...], element: tw.DType = tw.bf16, **given: Any) -> Case:
    return Case(shape, element, bound=EXAMPLE["bound"], **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("element", [tw.f16, tw.bf16], ids=str)
@pytest.mark.parametrize("shape", RAGGED, ids=str)
def test_random_data(shape: tuple[int, ...], element: tw.DType, target: str) -> None:
    made = case(shape, element)
    made.check(made.run(target))


@pytest.mark.gpu
@pytest.mark.parametrize("shift", [None, 0])
@pytest.mark.parametrize("depth", [64, 128])
def test_long_sequences(depth: int, shift: int | None) -> None:
    made = case((2, 3, 1500, 1700, depth), shift=shift)
    made.check(made.run("cuda"))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shift", [0, 70, -40, -500])
def test_causal(shift: int, target: str) -> None:
    made = case((1, 2, 150, 220, 64), shift=shift)
    found = made.run(target)
    made.check(found)
    blind = min(max(-shift, 0), 150)
    assert (found[:, :, :blind] == 0).all()
    assert (found[:, :, blind:] != 0).any(axis=-1).all()


@pytest.mark.parametrize("target", TARGETS)
def test_no_keys_at_all(target: str) -> None:
    assert (case((1, 1, 5, 64, 64), shift=-64).run(target) == 0).all()
    assert (case((1, 1, 5, 0, 64)).run(target) == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("huge", HUGE, ids=str)
def test_huge_scores(huge: dict[str, float], target: str) -> None:
    made = case((1, 1, 70, 170, 64), tw.f16, **huge)
    found = made.run(target)
    assert np.isfinite(found.astype(np.float64)).all()
    made.check(found)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("scale", [0.0, -0.2])
def test_any_scale(scale: float, target: str) -> None:
    made = case((1, 2, 70, 170, 64), shift=30, scale=scale)
    made.check(made.run(target))


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("depth", [64, 128])
def test_it_compiles_without_warnings_and_nearly_without_spills(depth: int, causal: bool) -> None:
    for element in (tw.f16, tw.bf16):
        kernel = traced(case((1, 1, 16, 16, depth), element, shift=0 if causal else None))
        assert [str(v) for v in (*verify.violations(kernel), *cuda.violations(kernel, "sm_90a"))] == []
        binary = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a")
        # A third warpgroup is worth more than the two registers that it lacks.
        assert binary.resources["stack_bytes"] <= (8 if (depth, causal) == (64, False) else 0)
        assert not any(code in binary.log for code in FATAL)


def traced(made: Case) -> Any:
    return made.kernel.trace(made.q, made.k, made.v, made.o, made.scale, made.shift or 0)
