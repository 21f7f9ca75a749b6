"""`tilewright gemm`, in the process on the reference and the CPU, and as a command."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.programs import CliRunner
from typer.testing import Result

import tilewright as tw
from tilewright.checking.compare import compare_gemm
from tilewright.checking.sample import operands
from tilewright.cli.matrices import write
from tilewright.cli.verbs import app
from tilewright.tune.trial import PlannedTrial, Trial

pytestmark = pytest.mark.in_turns(3)

PERF = re.compile(r"^Perf: \S+ ms, \S+ TFlops, \S+ GB/s, (gemm<.+>)$", re.MULTILINE)
QUICK = ("--target", "reference", "--no-time")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["gemm", *map(str, arguments)])


def good(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """a.npy (5, 7) and b.npy (7, 6) in f32, in the working directory."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7), np.float32), rng.standard_normal((7, 6), np.float32)
    np.save("a.npy", a)
    np.save("b.npy", b)
    return a, b


def test_each_step_is_said_and_one_line_is_perf() -> None:
    output = good(40, 50, 60)
    steps = [line.split()[0] for line in output.splitlines() if line and not line.startswith(" ")]
    assert steps == ["operands", "trace", "legality", "compile", "run", "verify", "time", "time", "Perf:"]
    (name,) = PERF.findall(output)
    assert name.startswith("gemm<cpu, f32, ")
    assert "NumPy" in output


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "f8e4m3", "f8e5m2", "i8"])
@pytest.mark.parametrize("target", ["cpu", "reference"])
def test_dtypes(name: str, target: str) -> None:
    output = good(20, 33, 17, "--dtype", name, "--target", target, "--no-time")
    assert f"gemm<{target}, {name}, " in output
    assert "all 660 elements" in output
    assert "Perf:" not in output


@pytest.mark.parametrize("name", ["f16", "f8e4m3", "f8e5m2fnuz"])
def test_narrow_floats_have_sums_as_f32_adds_them(name: str) -> None:
    """The sums are those of `tw.matmul`."""
    given = ("20", "33", "17", "--dtype", name, "--precision", "f32", "--target", "reference", "--no-time")
    assert "all 660 elements" in good(*given)


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_layouts(layout: str) -> None:
    output = good(20, 33, 17, "--layout", layout, *QUICK)
    assert f"A 20x17 f32 ({layout[0]}), B 17x33 f32 ({layout[1]})" in output


def test_the_reference_is_timed_by_its_run_alone() -> None:
    output = good(16, 16, 16, "--target", "reference")
    assert len(PERF.findall(output)) == 1
    assert "NumPy" not in output


def test_elevations() -> None:
    output = good("--data", "elevation", "--dtype", "i8", "--no-time")
    assert "A 344x403 i8 (n), B 403x344 i8 (t): elevations in decametres" in output
    assert "all 118336 elements equal the exact product" in output
    assert "elevations in metres" in good("--init", "elevation", "--no-time")


def test_init_and_seed() -> None:
    assert "integers from -4 to 4, seed 5" in good(8, 8, 8, "--init", "integers", "--seed", 5, *QUICK)


def test_without_verification_the_result_is_not_vouched_for() -> None:
    output = good(8, 8, 8, "--no-verify", *QUICK)
    assert "left out" in output
    assert "agree" not in output


def test_files_in_and_out(files: tuple[Any, Any]) -> None:
    a, b = files
    output = good("a.npy", "b.npy", "-o", "c.npy", *QUICK)
    assert "c.npy: C 5x6 f32" in output
    assert compare_gemm(a, b, np.load("c.npy")).ok
    refused = CliRunner().invoke(app, ["gemm", "a.npy", "b.npy", "-o", "folder/", *QUICK])
    assert refused.exit_code == 2
    assert "folder/c.npy" in refused.output
    assert not Path("folder").exists()


def test_files_keep_their_layout_and_dtype_unless_told(files: tuple[Any, Any]) -> None:
    a, _ = files
    np.save("a.npy", np.asfortranarray(a.astype(">f8")))
    np.save("b.npy", files[1].astype(np.float64))
    assert "A 5x7 f64 (t), B 7x6 f64 (n): a.npy and b.npy" in good("a.npy", "b.npy", *QUICK)
    assert "A 5x7 f16 (n), B 7x6 f16 (t)" in good(
        "a.npy", "b.npy", "--dtype", "f16", "--layout", "nt", *QUICK
    )


def test_an_output_file_is_replaced_as_a_whole(files: tuple[Any, Any]) -> None:
    Path("c.npy").write_text("something else")
    good("a.npy", "b.npy", "-o", "c.npy", *QUICK)
    assert np.load("c.npy").shape == (5, 6)
    assert sorted(path.name for path in Path().iterdir()) == ["a.npy", "b.npy", "c.npy"]


def test_the_output_may_be_an_input(files: tuple[Any, Any]) -> None:
    np.save("b.npy", np.eye(7, dtype=np.float32))
    good("a.npy", "b.npy", "-o", "a.npy", *QUICK)
    assert np.array_equal(np.load("a.npy"), files[0])


def test_bf16_goes_through_files_as_raw_bytes(files: tuple[Any, Any]) -> None:
    good("a.npy", "b.npy", "-o", "c.npy", "--dtype", "bf16", *QUICK)
    assert np.load("c.npy").dtype.itemsize == 2
    np.save("b.npy", np.eye(6).astype(tw.bf16.numpy))
    good("c.npy", "b.npy", "-o", "d.npy", "--dtype", "bf16", *QUICK)
    assert np.load("d.npy").tobytes() == np.load("c.npy").tobytes()


def test_a_failed_write_leaves_nothing(
    files: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np.lib.format, "write_array", full)
    with pytest.raises(tw.TilewrightError, match="No space left"):
        write(tmp_path / "c.npy", np.zeros(3))
    assert not (tmp_path / "c.npy").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "b.npy"]


def test_a_wrong_result_fails_and_is_not_written(
    files: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Trial.result
    monkeypatch.setattr(Trial, "result", lambda self: right(self) + np.float32(1e-3))
    result = run("a.npy", "b.npy", "-o", "c.npy", *QUICK)
    assert result.exit_code == 1
    assert result.stderr.startswith("tilewright: wrong: ")
    assert "Perf:" not in result.output
    assert not Path("c.npy").exists()


def command(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tilewright", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        **options,
    )


def test_the_command() -> None:
    done = command("gemm", "32", "32", "32", *QUICK)
    assert done.returncode == 0, done.stderr
    assert "all 1024 elements" in done.stdout
    assert done.stderr == ""


def test_a_closed_pipe_is_no_traceback() -> None:
    line = f"{shlex.quote(sys.executable)} -m tilewright gemm 32 32 32 {' '.join(QUICK)} | true"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""


def test_help_comes_quickly_and_loads_nothing_heavy() -> None:
    program = (
        "import sys\nfrom tilewright.cli.verbs import app\n"
        "try:\n    app(['gemm', '--help'])\nfinally:\n    print(*sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert "--layout" in done.stdout
    assert not loaded & {"rich", "matplotlib", "torch", "cuda", "jax", "cupy"}


@pytest.mark.parametrize(("precision", "layout"), [("f32", "nn"), ("f16", "tt")])
def test_halves_are_verified_under_a_bound_of_their_own(precision: str, layout: str) -> None:
    promote = 4 if precision == "f32" else 0
    atom = f"tw.atoms.MMA_F16, (32, 32, 32), warps=(2, 2), promote={promote}"
    given = ("33", "20", "40", "--precision", precision, "--layout", layout, *QUICK)
    said = good(*given, "--schedule", f"tw.Schedule({atom})")
    assert "gemm_in_halves<reference, f32, 32x32x32" in said
    assert "all 660 elements agree" in said
    # Elsewhere they are multiplied as they are, which is more exact.
    assert "gemm<reference, f32, " in good(*given)


def test_what_halves_leave_out_is_found() -> None:
    made = operands("random", tw.f32, (20, 30, 40))
    schedule = tw.Schedule(tw.atoms.MMA_F16, (32, 32, 32), warps=(2, 2), promote=1)
    trial = PlannedTrial(made, "reference", "f32", schedule)
    assert isinstance(trial, PlannedTrial)
    assert (len(trial.plan.launches), trial.halves) == (2, 2)
    assert not trial.verify().ok
    trial.run()
    assert trial.verify().ok
    made.a[:, 3] = 0
    assert not trial.verify().ok
