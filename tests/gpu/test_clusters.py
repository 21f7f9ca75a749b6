"""The Hopper GEMM in clusters on a GPU: every shape of cluster, ragged sizes, element by element."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import pytest

import tilewright as tw

pytestmark = pytest.mark.gpu

KERNELS = runpy.run_path(str(Path(__file__).with_name("clusters.py")))
SHAPES = ((128, 128, 64), (129, 264, 8), (129, 257, 8), (1, 8, 8), (4096, 4096, 512), (1000, 520, 1096))


def random_shape(draw: random.Random) -> tuple[int, int, int]:
    """Draw any M and N, for half of them rows of C for TMA, and a K whose rows of A and B suit TMA."""
    unit = draw.choice((1, 8))
    return draw.randint(1, 1500), unit * draw.randint(1, 1520 // unit), 8 * draw.randint(1, 150)


@pytest.mark.parametrize("cluster", KERNELS["CLUSTERS"], ids=str)
def test_fixed_and_random_shapes(cluster: tuple[int, int]) -> None:
    draw = random.Random(str(cluster))
    most = 132 // (cluster[0] * cluster[1])
    for shape in (*SHAPES, *(random_shape(draw) for _ in range(20))):
        choice, dtype = draw.choice(KERNELS["CHOICES"]), draw.choice((tw.bf16, tw.f16))
        clusters, group = draw.choice((1, 3, most)), draw.randint(1, 9)
        trial = KERNELS["gemm"](
            cluster, choice, shape, "cuda", dtype, clusters, group, seed=draw.randint(0, 99)
        )
        executable, _ = trial.run()
        assert executable.target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{dtype} {shape} {cluster} {choice}: {comparison}"


def test_blocks_exchange_data_through_global_memory() -> None:
    exchange = KERNELS["Exchange"]((64 * 66 - 5, 100), "cuda")
    for _ in range(50):
        assert exchange.right()
