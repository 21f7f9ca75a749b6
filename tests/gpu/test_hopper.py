"""The hand-written Hopper GEMM on a GPU: random ragged shapes, element by element against float64."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.gpu

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "03_hopper_gemm.py"))
CHOICES = tuple({"columns": columns} for columns in EXAMPLE["STAGES"])
GROUPS = 10


def random_shape(draw: random.Random) -> tuple[int, int, int]:
    """Draw any M and N, for half of them rows of C for TMA, and a K whose rows of A and B suit TMA."""
    unit = draw.choice((1, 8))
    return draw.randint(1, 900), unit * draw.randint(1, 960 // unit), 8 * draw.randint(1, 150)


@pytest.mark.parametrize("group", range(GROUPS))
def test_two_hundred_random_shapes(group: int) -> None:
    draw = random.Random(group)
    for _ in range(200 // GROUPS):
        shape, choices = random_shape(draw), draw.choice(CHOICES)
        dtype = draw.choice((tw.bf16, tw.f16))
        bound = EXAMPLE["bind"](dtype, blocks=draw.choice((1, 7, 132)), group=draw.randint(1, 9), **choices)
        mma = bound.constants["mma"]
        made = operands("random", dtype, shape, layout="nt", seed=group)
        trial = Trial(bound, made, "cuda", mma.atom, str(choices))
        executable, _ = trial.run()
        assert executable.target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{dtype} {shape} {choices}: {comparison}"


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    ("dtype", "out", "period"),
    [
        (tw.f32, tw.f32, None),
        (tw.f8e4m3, tw.bf16, None),
        (tw.f8e4m3, tw.bf16, 1),
        (tw.f8e5m2, tw.f32, 3),
        (tw.i8, tw.i32, None),
        (tw.u8, tw.i32, None),
    ],
    ids=str,
)
def test_every_dtype_that_wgmma_multiplies(dtype, out, period, seed) -> None:
    draw = random.Random(seed)
    unit = 16 // dtype.bytes
    shape = draw.randint(1, 500), 4 * draw.randint(1, 150), unit * draw.randint(1, 1500 // unit)
    columns = draw.choice(sorted(EXAMPLE["PROMOTED" if period else "STAGES"]))
    bound = EXAMPLE["bind"](dtype, columns=columns, blocks=draw.choice((1, 7, 132)), period=period)
    made = operands("random", dtype, shape, layout="nt", seed=seed)
    products = period and period * EXAMPLE["ROW_BYTES"] // dtype.bytes
    trial = Trial(bound, made, "cuda", bound.constants["mma"].atom, str(columns), out, products)
    executable, _ = trial.run()
    assert executable.target == "cuda"
    comparison = trial.verify()
    assert comparison.ok, f"{dtype} {shape} {columns}: {comparison}"
