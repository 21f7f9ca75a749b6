"""Kernels in clusters and the problems to try them on, for a test and for a sanitizer."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.checking.sample import operands
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.testing import device_put
from tilewright.tune.trial import Trial

TESTS = Path(__file__).parents[1]
GEMM = runpy.run_path(str(TESTS / "hazards" / "clusters.py"))["cluster_gemm"]
MAILBOX = runpy.run_path(str(TESTS / "targets" / "cuda" / "mailbox.py"))["mailbox"]
WAVES = 8
"""In which the mailbox adds 1."""

CLUSTERS = ((2, 1), (1, 2), (2, 2), (4, 1), (1, 4), (1, 1))
CHOICES = ((256, 4, 2), (192, 4, 3), (128, 6, 2))
"""Columns of a tile, stages of the ring, buffers of each warpgroup's epilogue."""


def gemm(
    cluster: tuple[int, int],
    choice: tuple[int, int, int],
    shape: tuple[int, int, int],
    target: str,
    dtype: tw.DType = tw.bf16,
    clusters: int = 3,
    group: int = 4,
    seed: int = 0,
) -> Trial:
    """The Hopper GEMM in clusters, on random matrices."""
    columns, stages, buffers = choice
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns))
    blocks = clusters * cluster[0] * cluster[1]
    bound = GEMM.bind(mma=mma, stages=stages, buffers=buffers, blocks=blocks, group=group, cluster=cluster)
    made = operands("random", dtype, shape, layout="nt", seed=seed)
    return Trial(bound, made, target, mma.atom, f"{cluster} {choice}")


class Exchange:
    """Blocks that exchange data through global memory."""

    def __init__(self, shape: tuple[int, int], target: str) -> None:
        self.target = target
        self.x = np.random.default_rng(3).standard_normal(shape).astype(np.float32)

    def trace(self) -> Any:
        return MAILBOX.trace(self.x, self.x)

    def right(self) -> bool:
        """Run it once, and return whether every element is right."""
        given, made = (device_put(array, self.target) for array in (self.x, np.full_like(self.x, np.nan)))
        assert MAILBOX(given, made, target=self.target).target == self.target
        if self.target == "cuda":
            CUDA_DRIVER.synchronize()
            made = made.host()
        wanted = self.x.copy()
        for _ in range(WAVES):
            wanted += np.float32(1)
        return bool((made == wanted).all())
