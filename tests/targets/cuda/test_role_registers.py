"""Roles may not set more registers than the block has at launch: `setmaxnreg` would wait for ever."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir.kernel import Kernel
from tilewright.lang.program import Program
from tilewright.runtime import nvrtc
from tilewright.runtime.device import CudaBackend
from tilewright.runtime.nvrtc import compile_text
from tilewright.targets import cuda
from tilewright.targets.nvidia import SM_90A

SPEC = tw.TensorSpec(tw.f16, 2, 1, (64, 64), (8, 1), 16, False)
EXAMPLES = Path(__file__).parents[3] / "examples"


def traced(*registers: int | None) -> Kernel:
    """Trace neighbouring warpgroups."""

    def in_roles(X, Y):
        for row, count in enumerate(registers):
            with tw.role(warps=4, registers=count):
                tw.copy(X.tile((16, 64), (row, 0)), Y.tile((16, 64), (row, 0)), threads=(8, 4))

    return Program(in_roles, {"X": "M N", "Y": "P Q"}).trace({"X": SPEC, "Y": SPEC})


LEGAL = [
    *((40, 232, 232), (24, 240, 240), (32, 160, 160, 160), (24, 216, 216, 56), (240, 240), (240,)),
    *((168, 168, 168), (40, None), (40, 232), (24, 104, 104, 104, 104), (64,) * 8, (72,) * 7),
]
TOO_MANY = [
    (
        (40, 240, 240),
        "40 x 128 + 240 x 256 = 66560 registers at once, and the block has 64512",
        "232 instead of 240",
    ),
    ((24, 240, 240, 24), "24 x 128 + 240 x 256 + 24 x 128 = 67584", "232 instead of 240"),
    (
        (32, 240, 240),
        "32 x 128 + 240 x 256 = 65536 registers at once, and the block has 64512",
        "232 instead of 240",
    ),
    ((176, None, None), "176 x 128 + 168 x 256 = 65536", "168 instead of 176"),
    ((32, 168, 160, 160), "32 x 128 + 168 x 128 + 160 x 256 = 66560", "160 instead of 168"),
    ((72,) * 8, "72 x 1024 = 73728 registers at once, and the block has 65536", "64 instead of 72"),
    ((240, 240, 240, 240), "240 x 512 = 122880", "128 instead of 240"),
]


@pytest.mark.parametrize("registers", LEGAL, ids=str)
def test_what_fits_is_legal_and_the_compiler_gives_it(registers: tuple[int | None, ...]) -> None:
    kernel = traced(*registers)
    assert cuda.violations(kernel, "sm_90a") == []
    compiled = compile_text(cuda.emit(kernel, "sm_90a").text, "sm_90a").resources["registers"]
    assert cuda.too_many_as_compiled(kernel, SM_90A, compiled) == []


@pytest.mark.parametrize(("registers", "message", "nearest"), TOO_MANY, ids=str)
def test_what_does_not_fit_is_refused(registers: tuple[int | None, ...], message: str, nearest: str) -> None:
    [found] = cuda.violations(traced(*registers), "sm_90a")
    assert found.rule == "registers"
    assert message in found.message
    assert "a role would wait for ever" in found.message
    assert found.nearest == f"registers={nearest}"
    assert "with tw.role(warps=4, registers=count)" in str(found)
    legal = tuple(min(count, int(nearest.split()[0])) if count else None for count in registers)
    assert cuda.violations(traced(*legal), "sm_90a") == []


def test_the_compiled_count_is_looked_at_before_a_launch(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If the compiler uses fewer than the launch bounds allow, roles can take fewer from others."""
    kernel = traced(40, 232, 232)
    assert (
        cuda.too_many_as_compiled(kernel, SM_90A, 168) == cuda.too_many_as_compiled(kernel, SM_90A, 161) == []
    )
    [found] = cuda.too_many_as_compiled(kernel, SM_90A, 160)
    assert "40 x 128 + 232 x 256 = 64512 registers at once, and the block has 61440" in found.message
    assert "384 threads start with the 160 registers for which the kernel was compiled" in found.message
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    compiled = nvrtc.compile_text

    def fewer(*arguments: Any) -> nvrtc.Binary:
        made = compiled(*arguments)
        return nvrtc.Binary(made.cubin, made.log, {**made.resources, "registers": 128})

    monkeypatch.setattr(nvrtc, "compile_text", fewer)
    for _ in range(2):  # what comes from the cache is looked at too
        with pytest.raises(
            LegalityError, match="start with the 128 registers for which the kernel was compiled"
        ):
            CudaBackend().compile(kernel, "sm_90a")


@pytest.mark.parametrize("columns", [64, 128, 192, 256])
def test_example_03_is_legal(columns: int) -> None:
    example = runpy.run_path(str(EXAMPLES / "03_hopper_gemm.py"))
    spec = tw.TensorSpec(tw.bf16, 2, 1, (8, 8), (8, 1), 16, False)
    assert cuda.violations(example["bind"](tw.bf16, columns=columns).trace(spec, spec, spec), "sm_90a") == []


@pytest.mark.parametrize("depth", [64, 128])
@pytest.mark.parametrize("causal", [False, True])
def test_example_10_is_legal(depth: int, causal: bool) -> None:
    example = runpy.run_path(str(EXAMPLES / "10_hopper_attention.py"))
    spec = tw.TensorSpec(tw.bf16, 4, 3, (8, 8, 8, 8), (8, 8, 8, 1), 16, False)
    kernel = example["bound"](tw.bf16, depth, causal=causal).trace(*[spec] * 4, 1.0, 0)
    assert cuda.violations(kernel, "sm_90a") == []
