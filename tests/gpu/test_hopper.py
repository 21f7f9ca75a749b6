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
    """Any M and N, half of the time rows of C that TMA may store; K such that the rows of A and B are."""
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
