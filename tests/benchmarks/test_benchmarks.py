"""Benchmarks run, write the files that they announce, and report missing programs."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import lru_cache
from pathlib import Path

import pytest
from tests.canaries import Canaries
from tests.programs import run_here
from tests.turns import Turns

from tilewright.runtime import host, native
from tilewright.runtime.native import host_arch, processor_flags

pytestmark = pytest.mark.in_turns(3)

ROOT = Path(__file__).parents[2]
HERE = ROOT / "benchmarks"


def run(script: str, *arguments: object, status: int = 0) -> str:
    done = run_here(HERE / script, *arguments, cwd=ROOT)
    assert done.status == status, done.stdout + done.stderr
    return done.stdout


def test_gemm_cpu_and_its_rendering(tmp_path: Path) -> None:
    kept = tmp_path / "gemm_cpu.json"
    output = run("gemm_cpu.py", "--quick", "--json", kept, "--commit", "0123456789ab")
    assert "f32 256x256x256" in output
    found = json.loads(kept.read_text())
    assert found["benchmark"] == "gemm_cpu"
    assert found["machine"]["commit"] == "0123456789ab"
    for row in found["rows"]:
        assert row["error_of_bound"] <= 1
        assert row["timings"]["tilewright"]["rounds"] >= 3
        assert row["speed"]["tilewright again"][0] > 0
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| f32 256×256×256 nn |" in page
    assert "| f32 20×16×16×16 nn |" in page
    assert "source 0123456789ab." in page


def test_kernel_counts_and_their_rendering(tmp_path: Path) -> None:
    kept = tmp_path / "counts.json"
    assert "f32" in run("kernel_counts.py", "--quick", "--json", kept)
    (row,) = json.loads(kept.read_text())["rows"]
    assert sum(row["shapes_of_each"]) == row["shapes"] == 20
    assert 1 <= row["kernels"] <= 12
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| f32 | 20 |" in (tmp_path / "page.md").read_text()


def test_what_kernels_take_in_two_trees(tmp_path: Path) -> None:
    """A tree compared with itself compiles to the same code."""
    kept, texts = tmp_path / "figures.json", tmp_path / "texts"
    printed = run("resources.py", "--before", ROOT, "--only", "05", "--json", kept, "--texts", texts)
    assert "05 large f32" in printed
    assert "same code" in printed
    found = json.loads(kept.read_text())
    assert found["before"][0]["code"] == found["after"][0]["code"]
    assert 0 < found["after"][0]["registers"] <= 40
    assert found["after"][0]["nvrtc_seconds"] > 0
    assert "im2col" in (texts / "after" / "05_large_f32.cu").read_text()


def test_im2col_and_its_rendering(tmp_path: Path) -> None:
    kept = tmp_path / "im2col.json"
    output = run("im2col.py", "--quick", "--target", "cpu", "--json", kept)
    assert "of the faster copy" in output
    (row,) = json.loads(kept.read_text())["rows"]
    assert set(row["of_copy"]) == {"tilewright", "our copy", "NumPy windows", "NumPy copy"}
    assert row["bytes"] == 4 * (2 * 5 * 4 * 6 * 2 * 8 + 2 * 48 * 216)
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| 2×5×4×6×2×8 | tilewright |" in (tmp_path / "page.md").read_text()


def test_levels_and_their_rendering(tmp_path: Path) -> None:
    kept = tmp_path / "levels.json"
    output = run("levels.py", "--quick", "--target", "cpu", "--json", kept)
    assert "256x384x320 prefetched" in output
    gemms, fused = json.loads(kept.read_text())["rows"]
    assert max(*gemms["error_of_bound"].values(), *fused["error_of_bound"].values()) <= 1
    later = {"optimised", "registers only", "serial", "buffered", "prefetched", "prefetched, wide"}
    assert set(gemms["over_the_one_before"]) == later
    assert set(gemms["over_the_rival"]) == {*later, "basic", "prefetched again"}
    assert set(fused["over_the_rival"]) == {"two fused", "two fused again"}
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| 256×384×320 buffered |" in page
    assert "| 130×72×56×136 two fused |" in page


def test_the_tutorial_and_its_rendering(tmp_path: Path) -> None:
    kept = tmp_path / "tutorial.json"
    run("tutorial.py", "--quick", "--target", "cpu", "--json", kept)
    rows = json.loads(kept.read_text())["rows"]
    assert [row["step"][:5] for row in rows] == ["step1", "step2", "step3", "step4"]
    assert all(row["shape"] == [256, 384, 320] and len(row["speed"]) == 3 for row in rows)
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| 256×384×320 step2_schedule |" in (tmp_path / "page.md").read_text()


def test_attention_on_the_cpu(tmp_path: Path) -> None:
    kept = tmp_path / "attention.json"
    run("attention.py", "--quick", "--target", "cpu", "--json", kept)
    found = json.loads(kept.read_text())
    assert found["benchmark"] == "attention_cpu"
    assert [row["layout"] for row in found["rows"]] == ["full", "causal"] * 2
    assert all(row["error_of_bound"] <= 1 and "failed" not in row for row in found["rows"])
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| f16 1×2×1×130×200×64 causal |" in (tmp_path / "page.md").read_text()


def test_fp16_by_fp8_on_the_cpu(tmp_path: Path) -> None:
    """Times are processor time of both sides."""
    kept = tmp_path / "scaled.json"
    run("scaled_cpu.py", "--quick", "--busy", "--json", kept)
    rows = json.loads(kept.read_text())["rows"]
    for row, held in zip(
        rows, (256 * 256, 256 * 128 + 2 * 256 * 2), strict=True
    ):  # with scales of two groups
        assert row["shape"] == [16, 256, 256]
        assert 0 < row["error_of_bound"] <= 1
        assert row["weight_bytes"] == {"tilewright": held, "NumPy, in f32": 4 * 256 * 256}
        assert all(timing["median_us"] > 0 for timing in row["timings"].values())
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| f16 × f8e4m3 16×256×256 contiguous along k |" in page
    assert "| f16 × i4 16×256×256 contiguous along n, groups of 128 |" in page
    assert "Counted: processor time of all threads, as many calls" in page


@pytest.mark.skipif("avx2" not in processor_flags(), reason="the processor lacks AVX2")
def test_integers_of_one_instruction_set_on_the_cpu(tmp_path: Path) -> None:
    rows = json.loads(run("integers_cpu.py", "--quick", "--isa", "AVX2"))
    assert host.host_arch is native.host_arch is host_arch, "the process compiles for its own processor again"
    assert [(row["isa"], row["layout"]) for row in rows] == [("AVX2", "nn"), ("AVX2", "nt")]
    kept = tmp_path / "integers.json"
    kept.write_text(json.dumps({"benchmark": "integers_cpu", "commit": "0123456789ab", "rows": rows}))
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| AVX2 | i8 96x96x96 nt |" in (tmp_path / "page.md").read_text()


def test_complex_products_on_the_cpu(tmp_path: Path) -> None:
    kept = tmp_path / "complex.json"
    run("complex.py", "--quick", "--target", "cpu", "--rows", "f32", "--json", kept)
    (row,) = json.loads(kept.read_text())["rows"]
    assert set(row["tflops"]) == {"tilewright", "tilewright again", "six launches", "NumPy"}
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| f32 interleaved 4m exact 64 | NumPy |" in (tmp_path / "page.md").read_text()


def test_the_kernels_of_the_page_compile() -> None:
    head, *rows = run("fifteen.py", "--compile", "--only", "linear", "gemv").splitlines()
    assert head.split()[:3] == ["kernel", "seconds", "registers"]
    found = [row.split() for row in rows]
    assert [one[0] for one in found] == ["linear", "gemv"]
    assert all(float(one[1]) > 0 and int(one[2]) > 0 and int(one[3]) == 0 for one in found)


def test_rows_on_the_cpu(tmp_path: Path) -> None:
    kept = tmp_path / "rows.json"
    run("rows.py", "--quick", "--target", "cpu", "--json", kept)
    found = [row["call"] for row in json.loads(kept.read_text())["rows"]]
    assert found == ["tilewright", "steps", "copy"] * 8
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| softmax bf16 " in (tmp_path / "page.md").read_text()


def test_chains_on_the_cpu(tmp_path: Path) -> None:
    kept = tmp_path / "chain.json"
    run("chain.py", "--quick", "--target", "cpu", "--json", kept)
    rows = json.loads(kept.read_text())["rows"]
    assert [row["layout"] for row in rows] == ["row by row, relu", "column by column, relu"]
    assert all(row["error_of_bound"] <= 1 and "failed" not in row for row in rows)


def test_startup(tmp_path: Path) -> None:
    kept = tmp_path / "startup.json"
    run("startup.py", "--quick", "--targets", "cpu", "--json", kept)
    first, second = json.loads(kept.read_text())["rows"]
    names = {"import numpy", "import numpy, tilewright", "import numpy, tilewright; tilewright.kernel"}
    assert set(first["seconds"]) == names
    steps = set(second["seconds"])
    assert {"first process: trace", "first process: compile", "second process: from the cache"} <= steps


def test_a_device_run_reports_what_fails_and_goes_on(tmp_path: Path) -> None:
    nothing = {"status": 0 if has_gpu() else 1}
    output = run("device_run.py", "--out", tmp_path, "--quick", "--parts", "cli-cuda", "doctor", **nothing)
    found = json.loads((tmp_path / "results.json").read_text())
    outcome = {part["name"]: part for part in found["parts"]}
    assert outcome["doctor"]["well"]
    assert outcome["cli-cuda"]["well"] == has_gpu()
    if not has_gpu():
        assert "no CUDA driver" in outcome["cli-cuda"]["last"]
    assert (tmp_path / "table.txt").read_text() in output
    assert "==== doctor" in (tmp_path / "log.txt").read_text()
    run("render.py", tmp_path / "results.json", "--out", tmp_path / "page.md")
    assert "| doctor | ok |" in (tmp_path / "page.md").read_text()


def test_a_device_run_ends_what_takes_too_long_and_names_missing_programs(tmp_path: Path) -> None:
    program = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(HERE)!r})
from device_run import Part, run
scratch = Path({str(tmp_path)!r})
log = scratch / "log.txt"
parts = [
    Part("slow", (sys.executable, "-c", "import time; print('started', flush=True); time.sleep(60)"), 6),
    Part("absent", ("no-such-program-as-this",), 10),
    Part("fails", (sys.executable, "-c", "raise SystemExit('why')"), 10),
    Part("gpu", (sys.executable, "-c", "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])"), 10),
]
for part in parts:
    found = run(part, scratch, time.monotonic() + 30, "", log, gpu="3")
    print(found.name, found.well, found.status, found.ended, found.last, sep="|")
print(run(parts[2], scratch, time.monotonic() + 1, "", log).ended)
print(*[line.split(":")[0] for line in log.read_text().splitlines() if line.startswith("====")])
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == [
        "slow|False|None|ended after 6 s|started",
        "absent|False|None|not started: no-such-program-as-this is missing|",
        "fails|False|1||why",
        "gpu|True|0||3",
        "not started: no time left",
        "==== slow ==== fails ==== gpu",
    ], done.stderr


def test_what_a_sanitizer_says_is_understood() -> None:
    program = f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from device_run import _clean, _found
print(_clean(0, "========= ERROR SUMMARY: 0 errors"), _clean(0, "========= ERROR SUMMARY: 2 errors"))
print(_clean(0, "no summary"), _clean(9, "========= ERROR SUMMARY: 0 errors"))
print(_clean(0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"))
print(_found(9, "========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)"))
print(_found(0, "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.split() == ["True", "False", "False", "False", "True", "True", "False"], done.stderr


WATCHED = [("gemms", 51), ("movers", 60), ("clusters", 7), ("blocks", 10), ("rows", 32)]
PARTS = 3
"""The parts into which the kernels that the sanitizers watch are divided; a run tries one, or all."""


@pytest.mark.parametrize(("kernels", "count"), WATCHED)
def test_what_the_sanitizers_watch_compiles_and_is_right(kernels: str, count: int, turns: Turns) -> None:
    part = (0, 1) if turns.every else (turns.draw % PARTS, PARTS)
    expected = len(range(part[0], count, part[1]))
    assert run("sanitize.py", kernels, "--compile", "--part", *part).count(" compiled\n") == expected
    target = "cpu" if kernels == "gemms" else "reference"
    assert run("sanitize.py", kernels, "--target", target, "--part", *part).count(" verified\n") == expected


def test_the_sanitizers_watch_as_many_kernels_as_are_counted_here() -> None:
    program = f"""
import runpy
made = runpy.run_path({str(HERE / "sanitize.py")!r})["KERNELS"]
print(*(sum(1 for _ in made[name]("cpu")) for name in {[name for name, _ in WATCHED]!r}))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert [int(word) for word in done.stdout.split()] == [count for _, count in WATCHED], done.stderr


def test_the_planted_race_compiles_and_the_reference_finds_it() -> None:
    assert " compiled\n" in run("sanitize.py", "planted", "--compile")
    done = run_here(HERE / "sanitize.py", "planted", "--target", "reference", cwd=ROOT)
    assert done.status == 1
    assert "read-write race on shared sA" in done.stderr


def test_the_sanitizers_watch_no_framework() -> None:
    program = f"""
import runpy, sys
made = runpy.run_path({str(HERE / "sanitize.py")!r})
for name, kernels in made["KERNELS"].items():
    if name not in ("members", "rows"):  # problems of tests, whose modules load pytest
        next(kernels("reference")).trace()
print(*sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    assert "tilewright" in loaded, done.stderr
    assert not loaded & {"torch", "cupy", "jax", "pytest", "hypothesis"}


def test_conflicts_are_predicted_of_every_kernel_and_measured_on_a_gpu(tmp_path: Path) -> None:
    kept = tmp_path / "conflicts.json"
    output = run("conflicts.py", "--quick", "--json", kept, status=0 if has_gpu() else 1)
    found = {row["example"]: row for row in json.loads(kept.read_text())["rows"]}
    assert sorted({name[:2] for name in found}) == [f"{number:02}" for number in range(2, 11)]
    assert not any(row["unknown"] for row in found.values())
    assert found["04"]["predicted"]["bank conflicts"] == 3840
    if has_gpu():
        assert not any(row["failed"] for row in found.values())
        return
    assert "13 of 13 kernels were not measured" in output
    assert all(row["failed"].startswith("no GPU here") for row in found.values())
    run("render.py", kept, "--out", tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    assert "| 04 512x384x320 | 3,072 | 30,720 | 15,360 | 3,072 | 0 | 52,224 | 3,840 | – |" in page
    assert "04: no GPU here to measure on" in page


@lru_cache(maxsize=1)
def has_gpu() -> bool:
    program = "from tilewright.runtime.cuda import device_count; print(device_count())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    return int(done.stdout) > 0


@pytest.mark.gpu
@pytest.mark.parametrize("script", ["dense.py", "im2col.py", "attention.py", "launch_overhead.py"])
def test_benchmarks_of_the_gpu(script: str, tmp_path: Path, canaries: Canaries) -> None:
    kept = tmp_path / "kept.json"
    with canaries.unguarded("its results are tensors that benchmarks make"):
        run(script, "--quick", "--json", kept)
    found = json.loads(kept.read_text())
    assert found["machine"]["device"]["name"]
    assert not [row for row in found["rows"] if "failed" in row]


def test_errors_at_every_grade(tmp_path: Path) -> None:
    kept = tmp_path / "errors.json"
    assert "f32 by halves" in run("errors.py", "--quick", "--target", "reference", "--json", kept)
    rows = {row["grade"]: row["ours"] for row in json.loads(kept.read_text())["rows"]}
    for kind in ("normal", "positive", "wide", "cancelling"):
        errors = [rows[grade][kind][0] for grade in ("f32", "f32 by halves", "tf32", "bf16")]
        assert max(errors[:2]) < 16, "units of f32: tensor cores cut sums off"
        assert 16 < errors[2] < 1 << 14, "units of 11 bits"
    run("render.py", kept, "--out", tmp_path / "page.md")
    assert "| complex tf32 |" in (tmp_path / "page.md").read_text()
