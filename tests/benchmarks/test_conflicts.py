"""The table of bank conflicts, with a GPU and Nsight Compute, which another program replaces here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.inspect.test_measured import CSV
from tests.inspect.test_measured import ncu as ncu  # a fixture
from tests.runtime.fake_gpu import Driver
from tests.runtime.fake_gpu import gpu as gpu  # a fixture

from tilewright.tune.machine import machine

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import conflicts
import render
import reporting

StandIn = Callable[..., Path]


def main(kept: Path, monkeypatch: pytest.MonkeyPatch, *names: str) -> int:
    monkeypatch.setattr(conflicts, "CASES", {name: conflicts.CASES[name] for name in names})
    monkeypatch.setattr(reporting, "machine", lambda target, commit: machine("cpu", commit))
    monkeypatch.setattr(sys, "argv", ["conflicts.py", "--quick", "--json", str(kept), "--commit", "0123"])
    return conflicts.main()


def test_what_is_measured_is_kept_and_rendered(
    gpu: Driver, ncu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ncu(CSV.replace('"15,360"', '"15,400"').replace('"52,224"', '"52,264"'))
    kept = tmp_path / "conflicts.json"
    assert main(kept, monkeypatch, "02", "04") == 0
    found = json.loads(kept.read_text())
    basic, optimized = found["rows"]
    assert found["machine"]["commit"] == "0123"
    assert basic["arch"] == "sm_90a"
    assert (basic["predicted"]["all wavefronts"], basic["measured"]["all wavefronts"]) == (42240, 42240)
    assert optimized["measured"]["bank conflicts"] == 3880
    words = asked.read_text().splitlines()
    assert words[words.index("inspect") + 1].endswith("examples/04_optimized_gemm.py:LARGE")
    assert words[words.index("--shape") + 1] == "512x384x320"
    assert words[-1] == "--launch"
    page = render.page([kept])
    assert "| 02 512x384x320 | 0 | 30,720 | 11,520 | 0 | 0 | 42,240 | 0 | 1,915 |" in page
    stores, every, those = "15,360, **15,400**", "52,224, **52,264**", "3,840, **3,880**"
    assert f"| 04 512x384x320 | 3,072 | 30,720 | {stores} | 3,072 | 0 | {every} | {those} | 5,653 |" in page


def test_a_kernel_that_is_not_measured_does_not_stop_the_others(
    gpu: Driver, ncu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu()
    kept = tmp_path / "conflicts.json"
    assert main(kept, monkeypatch, "06", "02") == 1
    first, second = json.loads(kept.read_text())["rows"]
    assert "no figure of kernel warp_tiles_gemm" in first["failed"]
    assert first["predicted"]["all wavefronts"] == 0
    assert not first["measured"]
    assert not second["failed"]
    assert second["measured"]
