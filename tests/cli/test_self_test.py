"""`tilewright doctor --self-test`: its output on success, after a failed step, and without a GPU.

A stand-in of ROCm's runtime, which executes listings, replaces AMD's GPU.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests.programs import CliRunner
from tests.targets.hip.standin import StandIn, standing_in
from typer.testing import Result

from tilewright.cli.verbs import app
from tilewright.runtime import comgr
from tilewright.tune.self_test import COLUMNS, ROWS, STEPS, Fenced, SelfTestOutcome, cases, tried

pytestmark = pytest.mark.in_turns(3)

CASES = [case.name for case in cases()]
COPY = cases()[0]


def self_test(*more: str) -> Result:
    return CliRunner().invoke(app, ["doctor", "--self-test", *more])


class Spoiled(StandIn):
    """A GPU that returns each array with one wrong byte, at a given offset."""

    def __init__(self, arch: str, at: int) -> None:
        super().__init__(arch)
        self.at = at

    def hipMemcpyDtoH(self, to: int, source: int, size: int) -> int:  # noqa: N802
        status = super().hipMemcpyDtoH(to, source, size)
        ctypes.c_uint8.from_address(to + self.at).value ^= 0x55
        return status


@pytest.fixture
def amd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[StandIn]:
    at: int | None = getattr(request, "param", None)
    made = StandIn("gfx1151") if at is None else Spoiled("gfx1151", at)
    with standing_in(tmp_path / "rocm", monkeypatch, made):
        yield made


def test_on_this_machines_processors_all_steps_go_well() -> None:
    result = self_test("--target", "cpu")
    assert result.exit_code == 0, result.output
    lines = [line for line in result.output.splitlines() if line.startswith("ok       target cpu: ")]
    assert [name in line for name, line in zip(CASES, lines, strict=True)] == [True] * 4
    assert all(f"all {len(STEPS)} steps" in line for line in lines)


def test_on_an_amd_gpu_all_steps_go_well(amd: StandIn) -> None:
    result = self_test("--target", "hip")
    assert result.exit_code == 0, result.output
    assert "ok       GPU 0: Stand-in GPU gfx000 (gfx1151), 4 multiprocessors" in result.output
    assert result.output.count("target hip: ") == len(CASES)
    assert result.output.count("by wmma.16x16x16.f32.f16: all 7 steps") == 3
    assert amd.executed == len(CASES)


@pytest.mark.parametrize(
    ("function", "step", "said"),
    [
        ("hipMalloc", "copy in", "hipMalloc failed with hipErrorOutOfMemory"),
        ("hipModuleLaunchKernel", "launch", "the launch failed with hipErrorOutOfMemory"),
        ("hipDeviceSynchronize", "wait", "hipDeviceSynchronize failed with"),
        ("hipMemcpyDtoH", "copy out", "hipMemcpyDtoH failed with"),
    ],
)
def test_the_step_that_failed_is_named(amd: StandIn, function: str, step: str, said: str) -> None:
    amd.fails[function] = 2
    outcome = tried(COPY, "hip")
    assert outcome.step == step
    assert said in outcome.reason


def test_failures_are_said_with_what_went_well_before(amd: StandIn) -> None:
    amd.fails["hipMalloc"] = 2
    result = self_test("--target", "hip")
    assert result.exit_code == 1
    said = "copy in failed: HIP: hipMalloc failed with hipErrorOutOfMemory (2): out of memory"
    assert result.output.count(said) == len(CASES), result.output
    later = import_module("tilewright.cli.doctor")._said("hip", SelfTestOutcome("copy", "launch", "why", 0.0))
    assert str(later) == "WRONG    target hip: copy: launch failed after copy in, compile: why"


ROW = 4 * (COPY.arrays["Y"].shape[1] + 2 * COLUMNS)
"""Bytes of a row of the copy's result, with the poison beside it."""


@pytest.mark.parametrize(
    ("amd", "step", "said"),
    [
        (ROW + 5, "canaries", "1 elements around the result were written, the first at [-1, -15] of it"),
        (ROW * (ROWS + 1) - 4 * COLUMNS + 1, "canaries", "the first at [0, 776] of it"),
        (ROW * ROWS + 4 * (COLUMNS + 3) + 2, "compare", "1 elements differ, the first at [0, 3]"),
    ],
    indirect=["amd"],
)
def test_a_wrong_byte_is_found(amd: StandIn, step: str, said: str) -> None:
    outcome = tried(COPY, "hip")
    assert outcome.step == step
    assert said in outcome.reason


def test_where_there_is_no_amd_gpu_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    monkeypatch.setattr(comgr, "MAPPED", tmp_path / "nothing")
    result = self_test("--target", "hip")
    assert result.exit_code == 2
    assert "missing  target hip: nothing was tried: target hip launches through libamdhip64" in result.output


def test_a_target_that_is_none_and_one_without_a_test() -> None:
    assert "nearest: hip" in self_test("--target", "amd").output
    result = CliRunner().invoke(app, ["doctor", "--target", "cpu"])
    assert result.exit_code == 2
    assert "--target is for --self-test" in result.output


def test_poison_around_a_result_is_looked_at() -> None:
    made = Fenced(np.empty((3, 5), np.float32), "cpu")
    made.array[...] = 1
    assert made.damage() == ""
    made._host[ROWS, COLUMNS - 1] = 0
    made._host[-1, -1] = 0
    assert made.damage() == "2 elements around the result were written, the first at [0, -1] of it"
