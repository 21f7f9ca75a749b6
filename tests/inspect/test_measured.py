"""Predictions are compared with measurements of Nsight Compute; a fake program replaces the real one."""

from __future__ import annotations

import dataclasses
import shlex
import struct
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.programs import CliRunner
from tests.runtime.fake_gpu import Driver
from tests.runtime.fake_gpu import gpu as gpu  # a fixture
from typer.testing import Result

import tilewright as tw
from tilewright.cli.verbs import app
from tilewright.inspect.comparison import (
    CONFLICTS,
    DERIVED,
    FEWEST,
    METRICS,
    PASSES,
    REGISTERS,
    SHOWN,
    WAITS,
    TrafficComparison,
    command,
    measured,
    parse,
    predict,
    with_derived,
)
from tilewright.inspect.from_files import from_file
from tilewright.inspect.subject import Subject
from tilewright.runtime.cuda import CUDA_DRIVER

Golden = Callable[[str, str], None]
StandIn = Callable[..., Path]

EXAMPLES = Path(__file__).parents[2] / "examples"
OPTIMIZED = f"{EXAMPLES / '04_optimized_gemm.py'}:LARGE"
SHAPE = "512x384x320"
CSV = (Path(__file__).parent / "ncu.csv").read_text()
"""Examples 02 and 04, in the form in which ncu prints; figures that test_predicted lacks are made up."""

MEASURE = ("inspect", OPTIMIZED, "--target", "cuda", "--dtype", "f16", "--shape", SHAPE, "--measure")


@tw.kernel(X="N", by=tw.f32)
def scale(X, by):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    part = X.tile((64,), (n,))
    tw.copy(tw.load(part.partition((32,))) * by, part)


CARRIED = """
import tilewright as tw


@tw.kernel(X="N")
def carried(X):
    held = tw.shared((32,), X.dtype)
    state = tw.var(0)
    for i in tw.range(X.shape[0]):
        state.set(i % 3)
        with tw.when(state.get() > 0):
            tw.copy(X.tile((32,), (0,)), held, threads=(32,))
"""
"""A variable decides how often it copies."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


@pytest.fixture
def ncu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A fake `ncu`, alone on PATH: it stores its arguments, one in a line, and prints a given text."""

    def make(prints: str = CSV, status: int = 0) -> Path:
        kept, program = tmp_path / "arguments", tmp_path / "bin" / "ncu"
        program.parent.mkdir()
        # The path of Python may hold a space, which a script's first line cannot say.
        program.write_text(
            f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(f"{program}.py")} "$@"\n'
        )
        program.with_suffix(".py").write_text(
            "import pathlib, sys\n"
            f"pathlib.Path({str(kept)!r}).write_text('\\n'.join(sys.argv[1:]))\n"
            f"sys.stdout.write({prints!r})\n"
            f"sys.exit({status})\n"
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(program.parent))
        return kept

    return make


# ---------------------------------------------------------------- what ncu prints


def test_the_table(golden: Golden) -> None:
    found = predict(from_file(OPTIMIZED, "f16", SHAPE, ()), "sm_90a")
    predicted = {**found.predicted, REGISTERS: 235}  # whichever compiler is here
    counted = with_derived(parse(CSV, "optimized_gemm"))
    golden(f"{dataclasses.replace(found, predicted=predicted, measured=counted)}\n", "measured.txt")


def test_what_is_not_predicted_is_said(tmp_path: Path) -> None:
    path = tmp_path / "carried.py"
    path.write_text(CARRIED)
    found = predict(from_file(f"{path}:carried", "f16", "N=64", ()), "sm_80")
    assert set(found.predicted) == {REGISTERS}
    *_, last = (line for line in str(found).splitlines() if line.startswith("shared memory"))
    assert last.startswith("shared memory is not predicted: how often this runs depends on state_now")
    assert "with tw.when(state.get() > 0):" in str(found)


def test_every_figure_is_shown_or_is_part_of_one_that_is() -> None:
    parts = {part for name, (_, *both) in DERIVED.items() for part in both if name in SHOWN}
    assert set(METRICS.values()) <= {*SHOWN, *parts}
    assert set(SHOWN) <= {*METRICS.values(), *DERIVED}
    assert set(parse(CSV, "basic_gemm")) == set(METRICS.values())


def test_what_warps_wait_for_each_other_is_no_bank_conflict() -> None:
    """The hardware counts 1915 waits for the stores of example 02, which have no bank conflicts."""
    found = with_derived(parse(CSV, "basic_gemm"))
    assert found[CONFLICTS] == 0
    assert found[WAITS] == 1915


def test_nothing_is_divided_by_zero() -> None:
    figures = {"global load sectors": 0.0, "global load requests": 0.0, PASSES: 0.0, FEWEST: 0.0}
    assert with_derived(figures) == {**figures, CONFLICTS: 0}


def test_units_and_separators() -> None:
    found = parse(CSV, "basic_gemm")
    assert found["DRAM bytes"] == 1_011_712
    assert found["duration (us)"] == pytest.approx(19.168)
    scaled = CSV.replace('"ns","19,168"', '"usecond","19.168"')
    scaled = scaled.replace('"byte","1,011,712"', '"Mbyte","1.01"')
    found = parse(scaled, "basic_gemm")
    assert found["DRAM bytes"] == pytest.approx(1.01e6)
    assert found["duration (us)"] == pytest.approx(19.168)


def test_of_several_launches_the_first_counts() -> None:
    again = CSV.splitlines()[4].replace('"0","1000"', '"7","1000"').replace("1,011,712", "1")
    assert parse(f"{CSV}{again}\n", "basic_gemm")["DRAM bytes"] == 1_011_712


def test_what_ncu_does_not_have_is_left_out() -> None:
    found = parse(CSV.replace('"1,011,712"', '"no data"').replace('"19,168"', '"n/a"'), "basic_gemm")
    assert "DRAM bytes" not in found
    table = str(TrafficComparison("basic_gemm", "sm_90a", {}, found))
    assert [line.split()[-2:] for line in table.splitlines() if "DRAM" in line] == [["-", "-"]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no figure of kernel basic_gemm"),
        ("==PROF== Connected\n==WARNING== No kernels were profiled.\n", "no figure of kernel"),
        (CSV.replace('"basic_gemm"', '"other"'), "no figure of kernel basic_gemm"),
        ("\n".join(CSV.splitlines()[:4]), "no figure of kernel basic_gemm"),
        (CSV[: CSV.index("1,011,7")], "damaged"),
        (CSV[: CSV.index(',"byte"')], "damaged: 13 of 15 columns"),
        (CSV.replace("1,011,712", "a lot"), "dram__bytes.sum as 'a lot', which is no number"),
        (CSV.replace('"Metric Value"', '"Figure"'), "no column Metric Value"),
    ],
)
def test_what_is_damaged_is_refused(text: str, message: str) -> None:
    with pytest.raises(tw.ToolchainError, match=message):
        parse(text, "basic_gemm")


# ---------------------------------------------------------------- the command


def test_measuring_shows_what_was_predicted_beside_it(gpu: Driver, ncu: StandIn) -> None:
    kept = ncu()
    result = run(*MEASURE)
    assert result.exit_code == 0, result.output
    assert "optimized_gemm on sm_90a, one launch on random data, measured by Nsight Compute" in result.stdout
    rows = {line[:37].strip(): line[37:].split() for line in result.stdout.splitlines()}
    assert rows["wavefronts of stmatrix"] == ["3,072", "3,072"]
    assert rows["bank conflicts"] == ["3,840", "3,840"]
    assert rows["conflicts and waits for other warps"] == ["-", "5,653"]
    assert rows["DRAM bytes"] == ["-", "1,003,520"]
    assert not gpu.launched  # that is for the process which ncu starts

    given = kept.read_text().splitlines()
    assert given == command("ncu", "optimized_gemm", ["inspect", *MEASURE[1:4], *given[-9:]])[1:]
    assert given[given.index("--kernel-name") + 1] == "optimized_gemm"
    assert given[given.index("--metrics") + 1].split(",") == list(METRICS)
    assert given[given.index(sys.executable) :][:4] == [sys.executable, "-m", "tilewright", "inspect"]
    assert given[-1] == "--launch"


def test_the_process_that_ncu_starts_launches_once_on_random_data(gpu: Driver, ncu: StandIn) -> None:
    constants = ("tile=(64, 64, 32)", "threads=(32, 4)", "vector=1")
    mma = "mma=tw.TiledMma(tw.atoms.MMA_I8, warps=(2, 2), repeats=(2, 4))"
    given = [word for text in (*constants, mma) for word in ("--set", text)]
    kernel = f"{EXAMPLES / '02_basic_gemm.py'}:basic_gemm"
    problem = ("--target", "cuda", "--dtype", "A=i8,B=i8,C=i32", "--shape", "M=129,N=130,K=67")
    kept = ncu()
    first = run("inspect", kernel, *problem, *given, "--measure")
    assert first.exit_code == 0, first.output

    gpu.arguments = 3
    seen: list[np.ndarray] = []
    launch = gpu.cuLaunchKernel

    def look(*arguments: object) -> tuple[object]:
        status = launch(*arguments)
        for word, size in zip(gpu.launched[-1].words, (129 * 67, 130 * 67), strict=False):
            seen.append(np.frombuffer(gpu.memory[word], np.int8)[-size - 256 :].copy())
        return status

    gpu.cuLaunchKernel = look  # type: ignore[method-assign]
    words = kept.read_text().splitlines()
    second = run(*words[words.index("tilewright") + 1 :])
    assert second.exit_code == 0, second.output
    assert second.stdout == ""
    (launched,) = gpu.launched
    assert launched.shape[:4] == (3, 3, 1, 128)
    assert gpu.waits == 1
    assert all(len(np.unique(bytes_)) > 50 for bytes_ in seen)
    assert not gpu.memory  # all is freed


def test_without_a_gpu_nothing_is_compiled(ncu: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    ncu()
    monkeypatch.setattr(CUDA_DRIVER, "device_count", lambda: 0)
    refused(MEASURE, "no GPU here to measure on; without one, --counters", monkeypatch)


def test_without_ncu_nothing_is_compiled(
    gpu: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(MEASURE, "no `ncu` on PATH; it comes with the CUDA toolkit", monkeypatch)


@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_only_a_gpu_is_measured(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(
        ("inspect", "--target", target, "--measure"), f"target {target} has none; nearest: --t", monkeypatch
    )
    refused(("inspect", "--target", target, "--launch"), f"target {target} has none", monkeypatch)


def test_another_architecture_cannot_be_measured(
    gpu: Driver, ncu: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    ncu()
    refused(
        (*MEASURE, "--arch", "sm_80"), "cannot measure for sm_80: this machine's GPU is sm_90a", monkeypatch
    )


def test_a_kernel_that_takes_numbers_is_not_measured_without_them(
    gpu: Driver, ncu: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = ncu()
    path = tmp_path / "scaled.py"
    path.write_text(
        'import tilewright as tw\n\n\n@tw.kernel(X="N", by=tw.f32)\ndef scale(X, by):\n    raise SystemExit\n'
    )
    asked = ("inspect", f"{path}:scale", "--target", "cuda", "--shape", "N=64", "--measure")
    refused(asked, "no value for by; give --set by=…", monkeypatch)
    assert not kept.exists()
    subject = Subject(scale.bind(), {"X": tw.f32}, {"N": 64})
    with pytest.raises(tw.LaunchError, match="no value for by; give --set"):
        subject.launch()
    assert not gpu.launched


def test_numbers_are_passed_on_to_the_launch(gpu: Driver, ncu: StandIn) -> None:
    gpu.arguments = 2
    Subject(scale.bind(), {"X": tw.f32}, {"N": 64}, numbers={"by": 0.5}).launch()
    (launched,) = gpu.launched
    assert launched.words[1] & 0xFFFFFFFF == struct.unpack("I", struct.pack("f", 0.5))[0]
    kept = ncu()
    asked = ("--set", "causal=False", "--set", "tile=TILES[64][0]", "--set", "warps=4")
    numbers = ("--set", "atom=tw.atoms.MMA_F16", "--set", "scale=0.125", "--set", "shift=-3")
    problem = ("--target", "cuda", "--dtype", "f16", "--shape", "B=1,H=1,M=128,N=64,D=64")
    run("inspect", f"{EXAMPLES / '09_attention.py'}:attention", *problem, *asked, *numbers, "--measure")
    assert kept.read_text().splitlines()[-13:-1] == [*asked, *numbers]


def refused(asked: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def compile_nothing(self: Subject, *_: object) -> object:
        raise AssertionError("compiled")

    monkeypatch.setattr(Subject, "compile", compile_nothing)
    result = run(*asked)
    assert result.exit_code == 2, result.output
    assert message in result.stderr


def test_counters_that_may_not_be_read(gpu: Driver, ncu: StandIn) -> None:
    said = "==PROF== Connected to process 7\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n"
    ncu(said, 1)
    result = run(*MEASURE)
    assert result.exit_code == 2
    assert "may not read the GPU's counters (ERR_NVGPUCTRPERM)" in result.stderr
    assert "NVreg_RestrictProfilingToAdminUsers=0" in result.stderr
    assert "--counters does not need this permission" in result.stderr


@pytest.mark.parametrize("status", [0, 2])
def test_what_ncu_says_when_it_fails_is_shown(status: int, ncu: StandIn) -> None:
    ncu("tilewright: out of memory\n==ERROR== The application returned an error code (2).\n", status)
    with pytest.raises(tw.ToolchainError) as caught:
        measured("ncu", "basic_gemm", [])
    assert "tilewright: out of memory\n==ERROR== The application" in str(caught.value)
    assert ("failed with status 2" if status else "no figure of kernel basic_gemm") in str(caught.value)


def test_the_hidden_option_is_not_in_the_help() -> None:
    help_text = run("inspect", "--help").stdout
    assert "--measure" in help_text
    assert "--launch" not in help_text
