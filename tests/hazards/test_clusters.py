"""The Hopper GEMM in clusters is right and without findings on the reference, at every awkward size."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir import verify
from tilewright.ir.async_ops import Role
from tilewright.targets import cuda
from tilewright.targets.reference import run

from .clusters import cluster_gemm
from .hopper import operands

SHAPES = [(2, 1), (1, 2), (2, 2), (1, 1)]

SIZES = {
    "less than a tile": (64, 40, 72),
    "nothing to sum": (136, 200, 0),
    "one ragged K tile, one block hangs over M": (130, 72, 8),
    "odd extents": (133, 67, 131),
    "several tiles of each block, 2 * stages + 1 K tiles": (600, 272, 4 * 64 + 24),
    "three of four tiles exist": (129, 65, 200),
}


def bind(cluster, dtype=tw.bf16, columns=64, stages=2, blocks=8, group=2):
    """Bind the kernel with tiles of 128 x ``columns``."""
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, columns))
    buffers = {64: 1, 128: 2, 192: 3}[columns]
    return cluster_gemm.bind(
        mma=mma, stages=stages, buffers=buffers, blocks=blocks, group=group, cluster=cluster
    )


def checked(shape, cluster, **changes):
    arrays, bound = operands(*shape), bind(cluster, **changes)
    kernel = bound.trace(*arrays.values())
    assert not [*verify.violations(kernel), *cuda.violations(kernel, "sm_90a")]
    report = run(kernel, arrays)
    report.raise_if_any()
    assert report.uncovered == {"C": 0}
    if shape[2]:
        how = Accumulation.of(bound.constants["mma"].atom)
        compare_gemm(arrays["A"], arrays["B"].T, arrays["C"], how).raise_if_wrong()
    else:
        assert not arrays["C"].astype(float).any()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("shape", SIZES.values(), ids=SIZES)
@pytest.mark.parametrize("cluster", SHAPES, ids=str)
def test_the_kernel_is_right_and_clean(shape, cluster) -> None:
    checked(shape, cluster)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize(
    ("cluster", "changes"),
    [
        ((4, 1), {"stages": 3}),
        ((1, 4), {"blocks": 4}),
        ((2, 1), {"columns": 128, "blocks": 2, "group": 1, "stages": 3}),
        ((2, 2), {"blocks": 4, "group": 5, "columns": 192}),
    ],
)
def test_other_clusters_tiles_and_blocks(cluster, changes) -> None:
    checked((400, 280, 5 * 64 + 8), cluster, **changes)


def test_with_one_block_per_cluster_it_is_the_example() -> None:
    """The operations are the same, except that the last barrier is one of the block.

    The example states the work of both groups once, and this kernel once for each.
    """
    path = Path(__file__).parents[2] / "examples" / "03_hopper_gemm.py"
    example = runpy.run_path(str(path))["bind"](tw.bf16, columns=64, stages=2, blocks=8, group=2)
    arrays = operands(400, 200, 328).values()
    clustered = [op.verb for op in bind((1, 1)).trace(*arrays).walk()]
    traced = list(example.trace(*arrays).walk())
    groups = [op for op in traced if isinstance(op, Role) and op.groups == 2]
    again = [op.verb for group in groups for op in (group, *group.body.walk())]
    alone = [*(op.verb for op in traced), *again]
    assert again
    assert clustered.count("barrier") == alone.count("barrier") + 1
    counts = {name: clustered.count(name) for name in alone if name not in ("barrier", "let", "view")}
    assert counts == {name: alone.count(name) for name in counts}
    assert not set(clustered) - set(alone)
