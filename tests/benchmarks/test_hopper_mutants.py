"""The parts of the mutants' GPU run that need no GPU: delays, texts, the time limit."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tilewright import dtypes
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.nvrtc import FATAL, compile_text

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import delays
import hopper_mutants as mutants
from tests.runtime.fake_gpu import Driver
from tests.runtime.fake_gpu import gpu as gpu  # a fixture

pytestmark = pytest.mark.in_turns(3)

TEXT = """prelude
extern "C" __global__ void f() {
  if (tid < 32) {
    // f.py:1: wait for full
    mbarrier_wait(full, 0);
  }
  // f.py:2: wait for empty
}
"""


def texts(name: str) -> dict[str, str]:
    m, n, k = delays.rows()[name].shape
    inputs = [np.zeros(shape, dtypes.bf16.numpy) for shape in ((m, k), (n, k), (m, n))]
    return {variant: text for variant, _, text in mutants.variants(name, inputs)}


def test_a_delay_stands_in_front_of_every_line_that_fits_and_nothing_else_changes() -> None:
    late = delays.delayed(TEXT, delays.Delay(delays.COMMENT + "wait for (full|empty)", 4, 7, 500))
    line = "if (threadIdx.x / 32 >= 4 && threadIdx.x / 32 <= 7) delay(500);"
    assert f"    {line}\n    // f.py:1: wait for full\n" in late
    assert f"  {line}\n  // f.py:2: wait for empty\n" in late
    kept = late.replace(delays.FUNCTION, "").splitlines()
    assert [text for text in kept if text.strip() != line] == TEXT.splitlines()
    assert delays.delayed(TEXT, None) == TEXT


def test_a_delay_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="no line of the kernel fits"):
        delays.delayed(TEXT, delays.Delay("wait", 0, 0))


@pytest.mark.parametrize("name", delays.rows())
def test_every_row_is_found_by_the_checker_and_its_delay_fits_both_kernels(name: str) -> None:
    assert not mutants.found(name).startswith(("equivalent", "refused", "legality"))
    delay, made = delays.rows()[name].delay, texts(name)
    late = [variant for variant, text in made.items() if "delay(" in text]
    assert late == ([] if delay is None else [mutants.CORRECT, mutants.LATE])
    assert made[mutants.PLAIN] != made[mutants.CORRECT]


CHOSEN = {case.delay: name for name, case in delays.rows().items() if case.delay is not None}


@pytest.mark.parametrize("name", CHOSEN.values())
def test_delays_compile_without_warnings(name: str) -> None:
    made = texts(name)
    for variant in (mutants.CORRECT, mutants.LATE):
        assert not any(code in compile_text(made[variant], mutants.ARCH).log for code in FATAL)


CHILD = """
import json, sys, time
def say(**message): print(json.dumps(message), flush=True)
say(begins="one"); say(outcome="right: 3 launches")
say(begins="two")
{rest}
"""


@pytest.mark.parametrize(
    ("rest", "limit_s", "outcome"),
    [
        ("time.sleep(300)", 1, "hangs: not done after 1 s"),
        ("sys.exit('the device failed')", 60, "fails: the device failed"),
        ("say(outcome='wrong: 3 of 3 launches')", 60, "wrong: 3 of 3 launches"),
    ],
)
def test_a_process_that_hangs_or_fails_keeps_what_it_said(rest: str, limit_s: float, outcome: str) -> None:
    told = mutants.watched((sys.executable, "-c", CHILD.format(rest=rest)), limit_s)
    assert told == {"one": "right: 3 launches", "two": outcome}


def copying(driver: Driver) -> Any:
    """Return the driver's functions, including those that copy memory."""

    def call(name: str, *arguments: Any) -> Any:
        if name.startswith("cuMemcpy"):
            return ctypes.memmove(*arguments)
        if name == "cuMemsetD8Async":
            return ctypes.memset(*arguments[:3])
        return None if name == "cuCtxSynchronize" else driver.call(name, *arguments)

    return call


def test_every_variant_is_launched_and_a_result_that_nobody_writes_is_wrong(gpu, monkeypatch, capsys) -> None:
    monkeypatch.setattr(CUDA_DRIVER, "call", copying(gpu))
    mutants.run("role 1: for all warps around it")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    times = [mutants.DELAYED_LAUNCHES, mutants.LAUNCHES, mutants.DELAYED_LAUNCHES]
    names = (mutants.CORRECT, mutants.PLAIN, mutants.LATE)
    expected: list[dict[str, str]] = []
    for name, count in zip(names, times, strict=True):  # a message before each launch, and one before all
        expected += [{"begins": name}] * (count + 1)
        expected.append({"outcome": f"wrong: {count} of {count} launches, up to {128 * 128} elements"})
    assert told == expected
    assert len(gpu.launched) == sum(times)
    assert {launched.shape[:4] for launched in gpu.launched} == {(1, 1, 1, 384)}
