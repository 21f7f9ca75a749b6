"""The GEMMs of examples 06 and 07 on a GPU: random ragged shapes, element by element against float64."""

from __future__ import annotations

import random
import runpy
from pathlib import Path
from typing import Any

import pytest

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.gpu

EXAMPLES = Path(__file__).parents[2] / "examples"
WARP_TILES = runpy.run_path(str(EXAMPLES / "06_warp_tiles_gemm.py"))
LEVELS = runpy.run_path(str(EXAMPLES / "07_three_levels_gemm.py"))
KERNELS = ("warp tiles", *(level.name for level in LEVELS["LEVELS"]), "wide")
SHAPES = 12


def bound(name: str, dtype: tw.DType) -> Any:
    if name == "warp tiles":
        return WARP_TILES["BOUND"][dtype]
    if name == "wide":
        return LEVELS["bind"](LEVELS["prefetched"], dtype, tile=(128, 256, 32), warps=(2, 4))
    return LEVELS["bind"](LEVELS[name], dtype)


def random_shape(draw: random.Random) -> tuple[int, int, int]:
    """Draw any extents; half of the shapes have rows of multiples of 16 bytes."""
    unit = draw.choice((1, 8))
    return draw.randint(1, 700), draw.randint(1, 700 // unit) * unit, draw.randint(1, 600 // unit) * unit


@pytest.mark.parametrize("name", KERNELS)
def test_random_shapes(name: str) -> None:
    draw = random.Random(name)
    shapes = [random_shape(draw) for _ in range(SHAPES)]
    for shape in (*shapes, (1000, 1000, 1000), (1, 1, 1)):
        dtype = draw.choice((tw.f16, tw.bf16))
        kernel = bound(name, dtype)
        made = operands("random", dtype, shape, layout="nt")
        trial = Trial(kernel, made, "cuda", kernel.constants["mma"].atom, name)
        assert trial.run()[0].target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{name} {dtype} {shape}: {comparison}"


def test_the_levels_agree_bit_by_bit() -> None:
    """They add the same products in the same order."""
    made = operands("random", tw.f16, (515, 390, 328), layout="nt")
    results = []
    for name in KERNELS:
        kernel = bound(name, tw.f16)
        trial = Trial(kernel, made, "cuda", kernel.constants["mma"].atom, name)
        trial.run()
        results.append(trial.result().tobytes())
    assert len(set(results)) == 1


def test_f16_sums() -> None:
    """Each register has two sums of 16 bits; none is past the fragment."""
    atom = tw.atoms.MMA_F16_F16
    kernel = WARP_TILES["warp_tiles_gemm"].bind(tile=(64, 64, 32), mma=tw.TiledMma(atom, (2, 2), (2, 4)))
    for kind in ("integers", "random"):
        trial = Trial(kernel, operands(kind, tw.f16, (200, 130, 67), layout="nt"), "cuda", atom, kind)
        assert trial.run()[0].target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, comparison
