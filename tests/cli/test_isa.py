"""`tilewright inspect --isa`: the main loop in machine code, as text and as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tilewright.cli.verbs import app

GEMM = ("inspect", "--isa", "--target", "hip", "--dtype", "f16", "--shape", "512x512x512")


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


@pytest.mark.parametrize(
    ("arch", "matrix"), [("gfx942", "v_mfma_f32_32x32x8_f16"), ("gfx1151", "v_wmma_f32_16x16")]
)
def test_the_main_loop_of_the_librarys_gemm(arch: str, matrix: str) -> None:
    status, said = run(*GEMM, "--arch", arch)
    assert status == 0, said
    assert said.startswith(f"gemm for hip {arch}\n")
    parts = ("a turn of the main loop", "accesses of a lane", "for each other", "what the kernel takes")
    assert all(part in said for part in (*parts, "warps of a SIMD", "counted while the listing was executed"))
    (line, *_) = (line for line in said.splitlines() if f" {matrix}" in line and "acc +=" in line)
    assert " A, B " in line
    assert "products.py:" in line


def test_a_page(tmp_path: Path) -> None:
    target = tmp_path / "loop.html"
    status, said = run(*GEMM, "--html", str(target))
    assert (status, said) == (0, f"wrote {target}\n")
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "inspect --isa",
            "target cpu has no listing of machine code that is read here; nearest legal choice",
        ),
        ("inspect --isa --target hip --arch gfx1150", "unknown architecture 'gfx1150'"),
        ("inspect --isa --target hip --arch gfx1151", "no main loop: 0 matrix instructions"),
        ("inspect --html loop.html", "nearest legal choice: --isa --html FILE"),
        ("inspect --isa --target hip --html no/such/folder/loop.html", "no/such/folder"),
    ],
)
def test_what_cannot_be_shown(words: str, said: str) -> None:
    status, output = run(*words.split())
    assert status == 2
    assert said in " ".join(output.split())
