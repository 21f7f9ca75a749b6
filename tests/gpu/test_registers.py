"""Asynchronous MMA with A from registers, on a GPU: every element against float64."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.gpu

KERNEL = runpy.run_path(str(Path(__file__).parents[1] / "targets" / "cuda" / "registers.py"))["register_gemm"]
SHAPES = ((64, 256, 64), (200, 264, 3 * 64 + 8), (513, 328, 5 * 64 + 56), (1, 8, 8))


@pytest.mark.parametrize("through", ["global", "shared"])
@pytest.mark.parametrize("columns", [16, 64, 128, 192, 256])
@pytest.mark.parametrize("dtype", [tw.bf16, tw.f16], ids=str)
def test_one_warpgroup(dtype, columns, through) -> None:
    multiply(tw.TiledMma(tw.atoms.wgmma(dtype, columns)), dtype, through)


@pytest.mark.parametrize("through", ["global", "shared"])
@pytest.mark.parametrize("tile", [{"warps": (2, 1)}, {"warps": (1, 2)}, {"repeats": (2, 1)}], ids=str)
def test_warpgroups_and_repeats(tile, through) -> None:
    multiply(tw.TiledMma(tw.atoms.wgmma(tw.bf16, 64), **tile), tw.bf16, through)


def multiply(mma: tw.TiledMma, dtype: tw.DType, through: str) -> None:
    for shape in SHAPES:
        bound = KERNEL.bind(mma=mma, through=through)
        made = operands("random", dtype, shape, layout="nt", seed=sum(shape))
        trial = Trial(bound, made, "cuda", mma.atom, f"{through} {shape}")
        executable, _ = trial.run()
        assert executable.target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{dtype} {shape} {mma}: {comparison}"
