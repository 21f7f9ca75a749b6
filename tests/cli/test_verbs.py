"""`tilewright doctor`, `inspect`, `cache`, and the front page."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from tests.programs import CliRunner
from typer.testing import Result

from tilewright.checking.compare import GemmComparison
from tilewright.cli.verbs import app
from tilewright.errors import CompileError, ToolchainError
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.in_turns(3)

EXAMPLE = Path(__file__).parents[2] / "examples" / "02_basic_gemm.py"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, list(arguments))


def good(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_front_page_lists_the_verbs() -> None:
    done = subprocess.run([sys.executable, "-m", "tilewright"], capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    verbs = ("gemm", "attention", "chain", "reduce", "doctor", "inspect", "profile", "tune", "draw", "cache")
    assert all(verb in done.stdout + done.stderr for verb in verbs)


# ---------------------------------------------------------------- attention


def test_attention() -> None:
    extents = ("1", "4", "40", "50", "32", "--heads-of-keys", "2")
    said = good("attention", *extents, "--causal", "--target", "reference", "--seed", "3")
    assert "operands  Q 1x4x40x32, K and V 1x2x50x32, f16" in said
    assert "verify    all 5120 elements agree with float64; the worst has 0." in said
    assert said.splitlines()[-1].startswith("Perf: ")
    assert said.endswith("attention<reference, causal f16 1x4x40x50x32>\n")


@pytest.mark.parametrize("diagonal", [0, -5])
def test_attention_behind_a_diagonal(diagonal: int) -> None:
    words = ("1", "2", "20", "30", "16", "--causal", "--diagonal", str(diagonal), "--target", "reference")
    said = good("attention", *words)
    assert "verify    all 640 elements agree with float64; the worst has 0." in said


@pytest.mark.parametrize(
    ("words", "peer"),
    [
        ("attention 1 2 40 50 16 --heads-of-keys 1 --causal", "NumPy, in f32"),
        ("attention 1 2 40 40 16 --causal --diagonal 0 --dtype f32", "NumPy, in f32"),
        ("chain 40 16 50 8 --activation relu", "NumPy, in f32"),
        ("reduce 40 50 16 --of sum,max,min,logsumexp --activation silu", "NumPy, in f32"),
    ],
    ids=str,
)
def test_what_a_user_would_call_instead_is_timed_too(words: str, peer: str) -> None:
    said = good(*words.split(), "--target", "cpu").splitlines()
    times = [line for line in said if line.startswith("time")]
    assert len(times) == 2
    assert times[1].startswith(f"time      {peer}: ")
    assert times[1].endswith(" times as fast")
    assert said[-1].startswith("Perf: ")


def test_attention_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong result is found, and the exit status says so."""
    monkeypatch.setattr(import_module("tilewright.cli.fused"), "attend", lambda *arrays, **words: None)
    result = run("attention", *["1", "1", "8", "8", "16", "--target", "reference"])
    assert result.exit_code == 1
    assert "an element is off by inf of its bound" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("1 2", "2 extents; nearest legal choice: five"),
        ("1 4 9 9 16 --heads-of-keys 3", "heads of q that is a multiple of the heads of k"),
        ("1 4 9 9 600", "q with 512 columns"),
        ("--dtype f64", "f16, bf16, f32"),
        ("1 1 9 9 16 --diagonal 0", "nearest: --causal --diagonal 0"),
    ],
)
def test_attention_that_cannot_be(words: str, said: str) -> None:
    result = run("attention", *words.split())
    assert result.exit_code == 2
    assert said in result.output


# ---------------------------------------------------------------- chain


@pytest.mark.parametrize("way", ["--fused", "--two"])
def test_a_chain_of_two_products(way: str) -> None:
    words = ("40", "32", "50", "24", "--activation", "silu", "--target", "reference", way)
    said = good("chain", *words)
    assert "operands  A 40x32, B 32x50, C 50x24, f16" in said
    assert "verify    all 960 elements agree with float64; the worst has 0." in said
    assert said.splitlines()[-1].startswith("Perf: ")
    assert said.endswith("chain<reference, silu f16 40x32x50x24>\n")


def test_a_chain_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("tilewright.cli.fused")
    monkeypatch.setattr(module, "gemm_chain", lambda *arrays, **words: None)
    result = run("chain", *["8", "8", "8", "16", "--target", "reference"])
    assert result.exit_code == 1
    assert "an element is off by inf of its bound" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("1 2", "2 extents; nearest legal choice: four"),
        ("9 300 9 9 --fused", "256"),
        ("--dtype f64", "f16, bf16, f32"),
        ("--activation swish", "choose one of relu, gelu"),
    ],
)
def test_a_chain_that_cannot_be(words: str, said: str) -> None:
    result = run("chain", *words.split())
    assert result.exit_code == 2
    assert said in result.output


# ---------------------------------------------------------------- reduce


@pytest.mark.parametrize("axis", ["rows", "columns"])
def test_reductions_of_a_product(axis: str) -> None:
    words = ("40", "50", "24", "--activation", "gelu", "--axis", axis, "--of", "sum,max,logsumexp")
    said = good("reduce", *words, "--target", "reference")
    assert "operands  A 40x24, B 24x50, f16" in said
    count = 40 if axis == "rows" else 50
    assert (
        f"verify    all {count} numbers of sum, max, logsumexp agree with float64; the worst has 0." in said
    )
    assert said.endswith(f"reduce<reference, gelu f16 40x50x24 {axis} sum,max,logsumexp>\n")


def test_a_reduction_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    module = import_module("tilewright.cli.fused")
    monkeypatch.setattr(module, "reduced_matmul", lambda *arrays, **words: None)
    result = run("reduce", *["8", "8", "16", "--target", "reference"])
    assert result.exit_code == 1
    assert "a number is off by inf of its bound" in result.output


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("1 2", "2 extents; nearest legal choice: three"),
        ("--of mean", "choose one of sum, max"),
        ("--axis both", "choose one of rows, columns"),
        ("--dtype f64", "f16, bf16, f32"),
    ],
)
def test_a_reduction_that_cannot_be(words: str, said: str) -> None:
    result = run("reduce", *words.split())
    assert result.exit_code == 2
    assert said in result.output


# ---------------------------------------------------------------- cache


def test_a_cache_that_others_may_write_is_said_to_be_unused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    for verb in (("cache",), ("cache", "clear"), ("doctor",)):
        said = " ".join(run(*verb).output.split())
        assert "not used" in said
        assert "may be written by other users (mode 777)" in said
    tmp_path.chmod(0o700)
    assert "not used" not in good("cache")


# ---------------------------------------------------------------- doctor


def test_doctor_tries_every_target() -> None:
    output = good("doctor")
    assert "ok       target reference (numpy): 130x70x90 f32 verified" in output
    assert "ok       target cpu" in output
    assert "target cuda" in output
    assert all(line.split()[0] in ("ok", "unused", "missing", "fix:") for line in output.splitlines())


def test_what_is_missing_names_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    doctor = import_module("tilewright.cli.doctor")

    def no_nvrtc() -> tuple[int, int]:
        raise ToolchainError("not here")

    monkeypatch.setattr(doctor.nvrtc, "version", no_nvrtc)
    monkeypatch.setattr(doctor, "version", lambda package: "")
    monkeypatch.setattr(doctor, "find_toolchains", lambda: ())
    output = run("doctor").output
    lines = output.splitlines()
    for position, line in enumerate(lines):
        if line.startswith("missing") and "target" not in line.split(":")[0]:
            assert lines[position + 1].strip().startswith("fix: "), line
    for extra in ("native", "cuda", "torch", "plot"):
        assert f"pip install 'tilewright[{extra}]'" in output


def test_doctor_fails_where_no_compiled_target_works(monkeypatch: pytest.MonkeyPatch) -> None:
    run_it = Trial.run

    def only_reference(self: Trial) -> object:
        if self.target != "reference":
            raise ToolchainError("no compiler; install one with `pip install 'tilewright[native]'`")
        return run_it(self)

    monkeypatch.setattr(Trial, "run", only_reference)
    result = run("doctor")
    assert result.exit_code == 2
    assert (
        "missing  target cpu\n         fix: install one with `pip install 'tilewright[native]'`"
        in result.output
    )


def test_doctor_fails_where_a_target_computes_wrong_results(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = GemmComparison(False, (1, 2), 3.0, 4.0, 1.0, 0.5, "1 of 9 elements are beyond their bound", 0.0)
    monkeypatch.setattr(Trial, "verify", lambda self: wrong)
    result = run("doctor")
    assert result.exit_code == 2
    assert "WRONG    target cpu: wrong: 1 of 9 elements" in result.output


def test_doctor_shows_what_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Trial) -> object:
        raise CompileError("the compiler refused the text", "line 3: what?", "text")

    monkeypatch.setattr(Trial, "run", refuse)
    result = run("doctor")
    assert result.exit_code == 2
    assert "WRONG    target cpu: the compiler refused the text\nline 3: what?" in result.output


# ---------------------------------------------------------------- inspect


def test_resources_of_cuda_without_a_gpu() -> None:
    output = good(
        "inspect", "--target", "cuda", "--arch", "sm_80", "--dtype", "f16", "--shape", "512x512x512"
    )
    assert "cuda sm_80" in output
    for word in ("registers per thread", "shared bytes", "spill store bytes", "threads per block"):
        assert word in output
    assert "8 elements (16 bytes) per access" in output


def test_ir_and_source() -> None:
    output = good("inspect", "--target", "cuda", "--arch", "sm_90a", "--ir", "--source", "--dtype", "bf16")
    ir, _, source = output.partition("__global__")
    assert "'gemm'" in ir
    assert "mma" in source


def test_what_is_not_asked_for_is_not_shown() -> None:
    assert "__global__" not in good("inspect", "--target", "cuda", "--resources")
    output = good("inspect", "--ir")
    assert "bytes per" not in output
    assert "machine code" not in output


def test_counters_come_from_the_reference() -> None:
    output = good("inspect", "--shape", "64x64x64", "--target", "reference", "--counters")
    assert "wavefronts per request" in output
    assert "sectors" in output


def test_a_bound_kernel_of_a_file() -> None:
    output = good("inspect", f"{EXAMPLE}:LARGE", "--target", "cuda", "--arch", "sm_80", "--dtype", "f16")
    assert "basic_gemm" in output
    assert "02_basic_gemm.py:" in output


def test_a_kernel_of_a_file_with_its_constants() -> None:
    constants = (
        "tile=(64, 64, 32)",
        "threads=(32, 4)",
        "mma=tw.TiledMma(tw.atoms.MMA_I8, warps=(2, 2), repeats=(2, 4))",
        "vector=1",
    )
    given = [word for constant in constants for word in ("--set", constant)]
    arrays = ("--dtype", "A=i8,B=i8,C=i32", "--shape", "M=129,N=129,K=67")
    output = good("inspect", f"{EXAMPLE}:basic_gemm", *given, *arrays, "--ir")
    assert "i32" in output


EIGHT_AT_A_TIME = (
    "tile=(64, 64, 32)",
    "mma=tw.TiledMma(tw.atoms.MMA_F16, (2, 2), tile=(64, 64))",
    "vector=8",
)
EIGHTS = [word for constant in EIGHT_AT_A_TIME for word in ("--set", constant)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((f"{EXAMPLE}:nothing",), "it has basic_gemm, LARGE"),
        (
            (f"{EXAMPLE}:basic_gemm",),
            "missing constant tile, mma; its constants are tile, mma, threads, vector",
        ),
        ((f"{EXAMPLE}:LARGE", "--set", "tile=(1,1,1)"), "bound already"),
        ((f"{EXAMPLE}:basic_gemm", "--set", "tile"), "NAME=EXPRESSION"),
        ((f"{EXAMPLE}:basic_gemm", "--set", "tile=1/0"), "ZeroDivisionError"),
        ((f"{EXAMPLE}:LARGE", "--dtype", "A=f16"), "no dtype for B, C"),
        ((f"{EXAMPLE}:basic_gemm", *EIGHTS, "--dtype", "f16", "--shape", "129x129x67"), "vector 8 on A.tile"),
        (("--shape", "0x8x8"), "must be positive"),
        (("--target", "gpu"), "nearest: cuda"),
        (("--target", "cuda", "--arch", "sm_20"), "sm_20"),
    ],
)
def test_what_cannot_be_inspected(arguments: tuple[str, ...], message: str) -> None:
    result = run("inspect", *arguments)
    assert result.exit_code == 2, result.output
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_a_file_that_fails_says_why(tmp_path: Path) -> None:
    path = tmp_path / "broken.py"
    path.write_text("import no_such_module\n")
    result = run("inspect", f"{path}:kernel")
    assert result.exit_code == 2
    assert "ModuleNotFoundError: No module named 'no_such_module'" in result.stderr


# ---------------------------------------------------------------- cache


@pytest.mark.usefixtures("no_known_products")
def test_the_cache_is_counted_and_cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "kernels"))
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "64MiB")
    output = good("cache")
    assert str(tmp_path / "kernels") in output
    assert "kernels   0, 0 B" in output
    assert "64.0 MiB" in output
    assert "compiled in" in good("gemm", "16", "17", "18", "--no-time")
    assert "kernels   1, " in good("cache", "stats")
    assert "cleared   1 kernel, " in good("cache", "clear")
    assert "kernels   0, 0 B" in good("cache", "stats")


def test_a_setting_that_means_nothing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWRIGHT_CACHE_BYTES", "much")
    result = run("cache")
    assert result.exit_code == 2
    assert "TILEWRIGHT_CACHE_BYTES='much'" in result.stderr
