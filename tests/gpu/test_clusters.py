"""The Hopper GEMM in clusters on a GPU: every shape of cluster, ragged sizes, element by element."""

from __future__ import annotations

import random
import runpy
from pathlib import Path

import numpy as np
import pytest
from tests.targets.cuda.mailbox import mailbox

import tilewright as tw
from tilewright.ops.device_array import DeviceArray
from tilewright.ops.sample import operands
from tilewright.runtime import cuda
from tilewright.tune.trial import Trial

pytestmark = pytest.mark.gpu

GEMM = runpy.run_path(str(Path(__file__).parents[1] / "hazards" / "clusters.py"))["cluster_gemm"]
CLUSTERS = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (1, 1))
CHOICES = ((256, 4, 2), (192, 4, 3), (128, 6, 2))
"""Columns of a tile, stages of the ring, buffers of each warpgroup's epilogue."""
SHAPES = ((128, 128, 64), (129, 264, 8), (1, 8, 8), (4096, 4096, 512), (1000, 520, 1096))


def random_shape(draw: random.Random) -> tuple[int, int, int]:
    """Any M; N and K such that rows are multiples of 16 bytes."""
    return draw.randint(1, 1500), 8 * draw.randint(1, 190), 8 * draw.randint(1, 150)


@pytest.mark.parametrize("cluster", CLUSTERS, ids=str)
def test_fixed_and_random_shapes(cluster: tuple[int, int]) -> None:
    draw = random.Random(str(cluster))
    blocks = cluster[0] * cluster[1]
    for shape in (*SHAPES, *(random_shape(draw) for _ in range(20))):
        choice, dtype = draw.choice(CHOICES), draw.choice((tw.bf16, tw.f16))
        columns, stages, buffers = choice
        mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns))
        bound = GEMM.bind(
            mma=mma,
            stages=stages,
            buffers=buffers,
            blocks=draw.choice((1, 3, 132 // blocks)) * blocks,
            group=draw.randint(1, 9),
            cluster=cluster,
        )
        made = operands("random", dtype, shape, layout="nt", seed=draw.randint(0, 99))
        trial = Trial(bound, made, "cuda", mma.atom, f"{cluster} {choice}")
        executable, _ = trial.run()
        assert executable.target == "cuda"
        comparison = trial.verify()
        assert comparison.ok, f"{dtype} {shape} {cluster} {choice}: {comparison}"


def test_blocks_exchange_data_through_global_memory() -> None:
    x = np.random.default_rng(3).standard_normal((64 * 66 - 5, 100)).astype(np.float32)
    wanted = x.copy()
    for _ in range(8):
        wanted += np.float32(1)
    given, made = DeviceArray.of(x), DeviceArray.of(np.full_like(x, np.nan))
    for _ in range(50):
        assert mailbox(given, made).target == "cuda"
        cuda.synchronize()
        np.testing.assert_array_equal(made.host(), wanted)
