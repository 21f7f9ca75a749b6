"""`tilewright draw`."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs import CliRunner
from typer.testing import Result

from tilewright.cli.verbs import app

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["draw", *arguments])


def good(*arguments: str) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.output


def test_a_layout_in_the_terminal() -> None:
    assert good("layout", "(2,(2,2)):(2,(1,4))").splitlines() == [
        "Layout (2,(2,2)):(2,(1,4))",
        "(i0, i1) -> offset, 8 elements in the buffer",
        "",
        "   0  1  2  3",
        "0  0  1  4  5",
        "1  2  3  6  7",
        "",
        "thick lines: modes within modes",
    ]


def test_a_map_in_the_terminal() -> None:
    lines = good("map", "mma.m16n8k16", "--operand", "B").splitlines()
    assert lines[0] == "B (8 x 16) of mma.m16n8k16.f32.f16"
    assert lines[5].split()[:4] == ["0", "T0V0", "T0V1", "T1V0"]
    assert "2 x 1 warpgroups" in good("map", "wgmma.m64n8k16", "--warps", "2x1")


def test_banks_in_the_terminal() -> None:
    plain = good("banks", "(64,64):(64,1)", "--access", "ldmatrix.x4")
    assert plain.startswith("8-way bank conflicts: ldmatrix.x4, f16\n")
    assert plain.count(": 8 passes") == 4
    swizzled = good("banks", "(64,64):(64,1) | Swizzle(3,3,3)", "--access", "ldmatrix.x4", "--at", "3,3")
    assert swizzled.startswith("No bank conflicts: ldmatrix.x4, f16\n")
    copied = good("banks", "(32,32):(32,1)", "--dtype", "f32", "--threads", "32x1", "--vector", "1")
    assert copied.startswith("32-way bank conflicts: a copy by 32 threads, f32\n")
    assert good("banks", "(64,32):(32,1)", "--threads", "128").startswith("No bank conflicts")
    padded = good("banks", "(32,32):(33,1)", "--dtype", "f32", "--threads", "(32,1):(1,32)")
    assert padded.startswith("No bank conflicts")
    atom = good("banks", "(64,64):(64,1)", "--access", "mma.m16n8k16", "--operand", "B")
    assert atom.startswith("8-way bank conflicts")


def test_timelines_in_the_terminal() -> None:
    small = ("--shape", "64x64x64")
    lines = good("timeline", "gemm", *small).splitlines()
    assert lines[0] == "Timeline of gemm, block (0)"
    assert any(line.lstrip().startswith("warp 4 (loads) |LL") for line in lines)
    file = f"{EXAMPLES / '02_basic_gemm.py'}:basic_gemm"
    constants = (
        "tile=(64,64,32)",
        "threads=(32,4)",
        "vector=1",
        "mma=tw.TiledMma(ATOMS[tw.f16], warps=(2, 2), tile=(64, 64))",
    )
    given = [part for text in constants for part in ("--set", text)]
    lines = good("timeline", file, "--shape", "128x64x64", *given, "--block", "1,0").splitlines()
    assert lines[0] == "Timeline of basic_gemm, block (1, 0)"
    rows = [line.partition("|")[2] for line in lines if line.startswith("warps 0-3")]
    # For each K tile two copies and a multiply, then the epilogue's copy.
    assert rows == ["CCCCMMCCCCMMCC|"]


@pytest.mark.parametrize("suffix", ["svg", "png", "pdf", "txt"])
def test_files(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture.{suffix}"
    assert good("layout", "(4,8)", "-o", str(path)) == f"wrote {path}\n"
    assert path.stat().st_size > 100


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("layout", "(4,4", "-o", "a.svg"), "means nothing"),
        (("layout", "(4,4)", "-o", "a.jpg"), "nearest: a.svg"),
        (("layout", "(4,4)", "-o", "no/such/directory/a.svg"), "there is no directory no/such/directory"),
        (("layout", "(512,512)"), "nearest: Slice("),
        (("map", "mma.m16n8k17"), "did you mean 'mma.m16n8k16.f32.f16'"),
        (("map", "mma.m16n8k16", "--warps", "2"), "e.g. 2x2"),
        (("map", "mma.m16n8k16", "--operand", "A", "--depth", "24"), "nearest legal choice: K = 16"),
        (("banks", "(64,64):(64,1)", "--threads", "48x1"), "nearest legal choice: threads=(32, 1)"),
        (("banks", "(64,64):(64,1)", "--threads", "2x4x4"), "nearest legal choice: projection with one 1"),
        (("banks", "(64,64):(64,1)", "--threads", "0"), "nearest legal choice: threads=1"),
        (("banks", "(64,64):(64,1)", "--vector", "7"), "not a multiple of vectors of 7"),
        (("banks", "(64,64):(64,1)", "--access", "ldmatrix.x4", "--dtype", "f32"), "nearest: f16"),
        (("banks", "(64,64):(64,1)", "--access", "ldmatrix.x4", "--at", "9,9"), "outside [0, 4)"),
        (("banks", "(64,64):(64,1)", "--access", "ldmatrix.x4", "--at", "x"), "--at 0,0"),
        (("banks", "64:1", "--access", "ldmatrix.x4"), "a tensor of rank 1"),
        (("timeline", "gem"), "give gemm, or path/to/file.py:name"),
        (("timeline", "gemm", "--block", "one"), "--block 0,0"),
        (
            ("timeline", "gemm", "--block", "9,9", "--shape", "64x64x64"),
            "outside of the grid; nearest legal choice: 0",
        ),
        (("timeline", "gemm", "--steps", "0"), "nearest legal choice: 1"),
        (("timeline", "gemm", "--shape", "64"), "512x512x512"),
    ],
)
def test_bad_requests_name_what_to_ask_instead(arguments: tuple[str, ...], message: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
