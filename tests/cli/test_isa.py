"""`tilewright inspect --isa`: the main loop in machine code, as text and as a page."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.programs import CliRunner

from tilewright.cli.verbs import app

pytestmark = pytest.mark.in_turns(3)

GEMM = ("inspect", "--isa", "--target", "hip", "--dtype", "f16", "--shape", "512x512x512")


def run(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, list(words))
    return done.exit_code, done.output


def test_the_main_loop_of_the_librarys_gemm() -> None:
    status, said = run(*GEMM, "--arch", "gfx942")
    assert status == 0, said
    assert said.startswith("gemm for hip gfx942\n")
    parts = ("a turn of the main loop", "accesses of a lane", "ratios in a turn", "resources of the kernel")
    assert all(part in said for part in (*parts, "warps of a SIMD", "counted while the listing was executed"))
    product = next(
        line for line in said.splitlines() if " v_mfma_f32_32x32x8_f16" in line and "acc +=" in line
    )
    assert " A, B " in product
    assert "tiled_product.py:" in product


def test_a_page(tmp_path: Path) -> None:
    target = tmp_path / "loop.html"
    status, said = run(*GEMM, "--arch", "gfx1151", "--html", str(target))
    assert (status, said) == (0, f"wrote {target}\n")
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_hopper_by_hand_in_machine_code(tmp_path: Path) -> None:
    """Example 03, with CUDA's own disassembler."""
    example = f"{Path(__file__).parents[2] / 'examples' / '03_hopper_gemm.py'}:hopper_gemm"
    mma = "mma=tw.TiledMma(tw.atoms.wgmma(tw.f16, 64))"
    fixed = [word for one in ("stages=3", "buffers=1", "blocks=132", "group=8") for word in ("--set", one)]
    words = ("inspect", example, "--isa", "--target", "cuda", "--arch", "sm_90a", "--dtype", "f16")
    words += ("--shape", "M=512,N=512,K=512", "--set", mma, *fixed)
    status, said = run(*words)
    assert status == 0, said
    assert said.startswith("hopper_gemm for cuda sm_90a\n")
    parts = ("a turn of the main loop", "a turn of the loop that loads for it", "4 of 16384 bytes  A")
    assert all(part in said for part in (*parts, "spill store bytes  0", "3, limited by registers"))
    product = next(line for line in said.splitlines() if " HGMMA.64x64x16.F32 R" in line)
    assert " 1.00 " in product
    assert " A, B " in product
    assert "03_hopper_gemm.py:79:" in product
    assert run(*words, "--html", str(tmp_path / "loop.html"))[0] == 0
    assert "HGMMA.64x64x16.F32 R" in (tmp_path / "loop.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "inspect --isa",
            "target cpu has no listing of machine code that is read here; nearest legal choice",
        ),
        ("inspect --isa --target hip --arch gfx1250", "unknown architecture 'gfx1250'"),
        ("inspect --isa --target hip --arch gfx1151", "no main loop: 0 matrix instructions"),
        ("inspect --html loop.html", "nearest legal choice: --isa --html FILE"),
        ("inspect --isa --target hip --html no/such/folder/loop.html", "no/such/folder"),
    ],
)
def test_what_cannot_be_shown(words: str, said: str) -> None:
    status, output = run(*words.split())
    assert status == 2
    assert said in " ".join(output.split())
