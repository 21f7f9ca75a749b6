"""Every example runs to its end, at its test size."""

from __future__ import annotations

import ast
import re
import runpy
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
from tests.programs import run_here

import tilewright as tw

IN_TORCH = "21_tensor_parallel.py"
"""The example that `tests/distributed/test_example.py` runs, because it needs PyTorch."""

EXAMPLES = sorted(
    path for path in (Path(__file__).parents[2] / "examples").glob("*.py") if path.name != IN_TORCH
)
WORK = sorted((Path(__file__).parents[2] / "examples" / "work").glob("*.py"))  # run in test_work.py


LARGE = {"reference": "256x128x64", "cpu": "512x384x320"}


@pytest.mark.parametrize("name", ["02_basic_gemm", "04_optimized_gemm"])
@pytest.mark.parametrize("target", LARGE)
def test_the_wrappers_gemm_on(target: str, name: str, tmp_path: Path) -> None:
    """The program itself checks that this target ran, and names it in every line."""
    [example] = [path for path in EXAMPLES if path.stem == name]
    result = run_here(example, "--small", "--target", target, cwd=tmp_path)
    assert result.status == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(">")[0].partition(" in tiles")[0] for line in lines if "correct" in line] == [
        f"{name.partition('_')[2]}<{target}, {case}"
        for case in (f"f16, {LARGE[target]}", "f32, 129x129x67", "f16, 129x129x67", "i8, 129x129x67")
    ]
    assert sum(line.startswith("Perf: ") for line in lines) == 4


@pytest.mark.parametrize("target", LARGE)
def test_the_optimised_gemm_adds_up_as_the_basic_one_does(target: str) -> None:
    """Both examples give the same bits."""
    shape = tuple(map(int, LARGE[target].split("x")))
    made = tw.testing.operands("random", tw.f16, shape, layout="nt")
    results = []
    for path in EXAMPLES:
        if path.stem in ("02_basic_gemm", "04_optimized_gemm"):
            bound = runpy.run_path(str(path))["LARGE"]
            trial = tw.testing.Trial(bound, made, target, tw.atoms.MMA_F16, path.stem)
            assert trial.run()[0].target == target
            results.append(trial.result())
    basic, optimized = results
    assert (basic == optimized).all()
    assert np.isfinite(basic).all()


LIBRARY = {"tilewright", *(f"tilewright.{space}" for space in ("ck", "hopper", "ir", "layouts", "testing"))}
OPTIONAL = {"matplotlib.colors", "matplotlib.figure", "sklearn.datasets"}


@pytest.mark.parametrize("example", [*EXAMPLES, *WORK], ids=lambda path: path.name)
def test_an_example_imports_what_its_reader_can(example: Path) -> None:
    """Examples import public names, NumPy and the standard library, but no other example.

    Programs that do work draw with matplotlib, and take data from scikit-learn.
    """
    tree = ast.parse(example.read_text())
    imported = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    taken = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    assert all(node.level == 0 for node in taken)
    modules = imported | {str(node.module) for node in taken}
    foreign = {name for name in modules if name.partition(".")[0] not in sys.stdlib_module_names}
    assert foreign <= {*LIBRARY, "numpy", *(OPTIONAL if example in WORK else ())}
    assert not modules & {"runpy", "importlib"}
    for node in taken:
        if str(node.module).startswith("tilewright"):
            public = import_module(str(node.module)).__all__
            assert {name.name for name in node.names} <= {*public}


@pytest.mark.parametrize("target", LARGE)
def test_im2col_on(target: str, tmp_path: Path) -> None:
    """The CPU runs the full size."""
    [example] = [path for path in EXAMPLES if path.stem == "05_im2col"]
    result = run_here(example, "--target", target, cwd=tmp_path)
    assert result.status == 0, result.stdout + result.stderr
    shape, matrix = {
        "cpu": ("32x9x9x7x4x64", "54190080 elements of (4, 7840, 1728)"),
        "reference": ("2x5x4x6x2x8", "20736 elements of (2, 48, 216)"),
    }[target]
    assert f"im2col<{target}, f32, {shape}>" in result.stdout
    assert f"all {matrix} are right" in result.stdout
    assert result.stdout.count("are right") == 2
    assert re.search(
        rf"col2im<{target}, f32, 3x6x7x5x3x5>: the sum of all products is -?\d+ both ways", result.stdout
    )


@pytest.mark.parametrize(
    ("numbers", "status", "lines"),
    [
        ("0 1 0 72 40 56", 0, (0, "basic_gemm<reference, f16, 72x40x56")),
        ("1 2 0", 0, (4, "basic_gemm<reference, f16, 256x128x64")),
        ("1 7 0", 2, (0, "init is 1 or 2")),
        ("1 2 0 64", 2, (0, "give verify init time [M N K]")),
    ],
)
def test_a_row_of_numbers_says_what_is_done(
    numbers: str, status: int, lines: tuple[int, str], tmp_path: Path
) -> None:
    [example] = [path for path in EXAMPLES if path.stem == "02_basic_gemm"]
    result = run_here(example, "--small", "--target", "reference", *numbers.split(), cwd=tmp_path)
    assert result.status == status, result.stdout + result.stderr
    assert result.stdout.count("correct") == lines[0]
    assert lines[1] in result.stdout + result.stderr


@pytest.mark.parametrize(
    ("numbers", "status", "lines"),
    [
        ("1 1 0 40 24 300 304 -1 32 7", 0, (7, "batch invariant: all 960 elements are right")),
        ("1 2 0 40 24 300 -1 -1 -1", 0, (7, "stream: all 960 elements are right")),
        ("0 0 0", 0, (0, "")),
        ("1 2", 2, (0, "give verify init time M N K SA SB SC KBatch")),
        ("1 1 0 40 24 300 299 -1 -1", 2, (0, "SA is 299, and a row has 300 elements; nearest legal choice")),
        ("1 1 0 40 0 300 -1 -1 -1", 2, (0, "N is 0; nearest legal choice: 1")),
        ("1 1 0 40 24 300 -1 -1 -1 -2", 2, (0, "KBatch is -2; nearest legal choice: 0")),
    ],
)
def test_a_row_of_numbers_says_how_k_is_split(numbers: str, status: int, lines: tuple[int, str]) -> None:
    [example] = [path for path in EXAMPLES if path.stem == "11_split_k"]
    result = run_here(example, "--small", "--target", "reference", "--", *numbers.split())
    assert result.status == status, result.stdout + result.stderr
    assert result.stdout.count("are right") == lines[0]
    assert lines[1] in result.stdout + result.stderr


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize(
    ("numbers", "status", "shown", "text"),
    [
        ("1 2 1", 0, 4, "all 8 x 20 signals are right"),
        ("1 1 0 9 7 5", 0, 4, "all 9 x 7 signals are right"),
        ("1 2 0 1 1 1", 0, 4, "all 1 x 1 signals are right"),
        ("0 2 1", 0, 0, ""),
        ("1 0 1", 2, 0, "init is 1 or 2"),
        ("1 2", 2, 0, "give verify init time [M N K], e.g. 1 2 1 512 384 320"),
        ("1 2 1 9 7", 2, 0, "give verify init time [M N K]"),
        ("1 2 0 9 0 5", 2, 0, "give verify init time [M N K]"),
    ],
)
def test_complex_products_take_the_numbers_of_cgemm_xdl(
    numbers: str, status: int, shown: int, text: str, target: str
) -> None:
    """The arguments are those of Composable Kernel's program: `cgemm_xdl 1 2 1`."""
    [example] = [path for path in EXAMPLES if path.stem == "14_complex_matmul"]
    text = text if target == "reference" else text.replace("8 x 20", "32 x 60")
    result = run_here(example, "--small", "--target", target, *numbers.split())
    assert result.status == status, result.stdout + result.stderr
    assert result.stdout.count("are right") == shown
    assert text in result.stdout + result.stderr
    timed = status == 0 and numbers.split()[2] == "1" and target != "reference"
    assert result.stdout.count("Perf: ") == timed


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_example_runs(example: Path, tmp_path: Path) -> None:
    result = run_here(example, "--small", cwd=tmp_path)
    assert result.status == 0, result.stdout + result.stderr
    assert result.stdout.strip(), "an example shows something"
    assert not list(tmp_path.iterdir()), "an example writes where it is told"


def test_an_example_runs_in_a_process_of_its_own(tmp_path: Path) -> None:
    """It runs as its reader starts it, with the same output as here."""
    command = [sys.executable, EXAMPLES[0], "--small"]
    alone = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert alone.returncode == 0, alone.stderr
    assert len(alone.stdout.splitlines()) == len(run_here(EXAMPLES[0], "--small").stdout.splitlines())
