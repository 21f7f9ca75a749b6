"""Clusters as authors write them: the recorded operations, and refusals with the nearest legal choice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LaunchError, TraceError
from tilewright.ir import async_ops, ops
from tilewright.ir.copies import Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.verify import violations
from tilewright.lang.program import Program
from tilewright.targets import cuda
from tilewright.targets.reference import run

SPEC = tw.TensorSpec(tw.f16, 2, 1, (8, 8), (8, 1), 16, False)


def author(A, *, grid, shape, call):
    tw.block_index(grid)
    at = tw.hopper.cluster_index(shape) if shape is not None else None
    held = tw.shared((8, 64), A.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    call(A, held, full, at)


def trace(call: Any, shape: Any = (2, 4), grid: Any = (4, 4)) -> Kernel:
    return Program(author, {"A": "M K"}).trace({"A": SPEC}, {"grid": grid, "shape": shape, "call": call})


def load(**named):
    return lambda A, held, full, at: tw.hopper.tma_load(A.tile((8, 64), (0, 0)), held, full[0], **named)


def arrive(**named):
    return lambda A, held, full, at: tw.hopper.arrive(full[0], **named)


def found(kernel: Kernel, op: type) -> Any:
    [one] = [each for each in kernel.walk() if isinstance(each, op)]
    return one


def said(kernel: Kernel) -> list[tuple[str, str, str]]:
    return [(v.rule, v.message, v.nearest) for v in violations(kernel)]


# ---------------------------------------------------------------- what is recorded


@pytest.mark.parametrize(
    ("block", "rank"),
    [
        (lambda m, n: (1 - m, n), "2*n - m + 1"),
        (lambda m, n: ((m + 1) % 2, n), "2*n + ((m + 1) % 2)"),
        (lambda m, n: (1, 3), "7"),
        (lambda m, n: 5, "5"),
        (lambda m, n: (m, n), "None"),
        (lambda m, n: ((m + 0) % 2, (n + 4) % 4), "None"),
        (lambda m, n: m + 2 * n, "None"),
    ],
)
def test_a_coordinate_becomes_a_rank_and_ones_own_block_none(block, rank) -> None:
    kernel = trace(lambda A, held, full, at: tw.hopper.arrive(full[0], block=block(*at)))
    assert said(kernel) == []
    recorded = found(kernel, async_ops.Arrive).block
    names = {"m": kernel.cluster[0].sym.name, "n": kernel.cluster[1].sym.name}
    text = tw.ir.print_kernel(kernel)
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text
    assert str(recorded).replace(names["m"], "m").replace(names["n"], "n") == rank


@pytest.mark.parametrize(("multicast", "axes"), [(0, (0,)), (1, (1,)), ((1, 0), (0, 1)), ((), ())])
def test_multicast_names_axes(multicast, axes) -> None:
    kernel = trace(load(multicast=multicast))
    assert said(kernel) == []
    assert found(kernel, Copy).multicast == axes


def test_an_axis_of_one_block_is_no_axis() -> None:
    kernel = trace(load(multicast=(0, 1)), (1, 4))
    assert [(member.axis, member.extent) for member in kernel.cluster] == [(1, 4)]
    assert found(kernel, Copy).multicast == (1,)


def test_a_cluster_of_one_block_is_no_cluster() -> None:
    def call(A, held, full, at):
        assert at == (0, 0)
        tw.hopper.cluster_barrier()
        tw.hopper.tma_load(A.tile((8, 64), (0, 0)), held, full[0], multicast=(0, 1))
        tw.hopper.arrive(full[0], block=(0, 0))

    kernel = trace(call, (1, 1), 4)
    assert kernel.cluster == ()
    assert not any(isinstance(op, async_ops.ClusterBarrier) for op in kernel.walk())
    assert found(kernel, ops.Barrier) is not None
    assert found(kernel, Copy).multicast == ()
    assert found(kernel, async_ops.Arrive).block is None


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (load(multicast=0), r"tma_load\(multicast=0\)"),
        (arrive(block=1), r"arrive\(block=1\)"),
        (lambda *_: tw.hopper.cluster_barrier(), r"cluster_barrier\(\)"),
    ],
)
def test_without_a_cluster_there_is_no_other_block(call, what) -> None:
    advice = r" in a kernel without clusters; nearest legal choice: tw.hopper.cluster_index\(\(2, 1\)\)"
    with pytest.raises(TraceError, match=what + advice):
        trace(call, None)


@pytest.mark.parametrize("block", [(2, 0), (0, 4), (-1, 0), (0,), (0, 0, 0)])
def test_coordinates_that_the_cluster_does_not_have(block) -> None:
    with pytest.raises(TraceError, match=r"in a cluster of \(2, 4\) blocks; coordinates go up to \(1, 3\)"):
        trace(arrive(block=block))


def test_a_cluster_has_blocks() -> None:
    with pytest.raises(TraceError, match=r"a cluster of \(2, 0\) blocks; every extent is at least 1"):
        trace(load(), (2, 0))


@pytest.mark.parametrize(("rank", "nearest"), [(8, "block=7"), (-1, "block=0")])
def test_ranks_that_the_cluster_does_not_have(rank, nearest) -> None:
    assert said(trace(arrive(block=rank))) == [("cluster", f"rank {rank} in a cluster of 8 blocks", nearest)]


@pytest.mark.parametrize(("axis", "nearest"), [(2, "multicast=1"), (-1, "multicast=0")])
def test_axes_that_the_cluster_does_not_have(axis, nearest) -> None:
    message = f"multicast along axis {axis}; the cluster has blocks 2 along axis 0 and 4 along axis 1"
    assert said(trace(load(multicast=axis))) == [("multicast", message, nearest)]


def test_bytes_are_announced_at_ones_own_barrier() -> None:
    assert said(trace(arrive(block=3, expect_bytes=64))) == [
        ("arrive", "announces 64 bytes at another block's barrier", "expect_bytes=0")
    ]


def test_the_grid_has_the_axes_of_the_cluster() -> None:
    [(rule, message, nearest)] = said(trace(load(), (2, 4), 8))
    assert (rule, nearest) == ("cluster", "tw.block_index of 2 extents")
    assert message.startswith("the cluster has extent 4 along axis 1")
    assert message.endswith("the grid has 1 axes")


def test_a_parsed_kernel_is_verified_again() -> None:
    def call(A, held, full, at):
        tw.hopper.cluster_barrier()
        tw.hopper.tma_load(A.tile((8, 64), (0, 0)), held, full[0], multicast=0)
        tw.hopper.arrive(full[0], block=1)

    lines = tw.ir.print_kernel(trace(call)).splitlines()
    alone = "\n".join(line for line in lines if " = cluster(" not in line) + "\n"
    assert said(tw.ir.parse_kernel(alone)) == [
        (
            "cluster",
            f"{what} in a kernel without clusters",
            "tw.hopper.cluster_index((2, 1)) at the kernel's start",
        )
        for what in ("cluster_barrier", "tma_load(multicast=(0,))", "arrive(block=1)")
    ]


def test_architectures_have_limits() -> None:
    kernel = trace(load(multicast=0))
    assert cuda.violations(kernel, "sm_90a") == []
    refused, *_ = cuda.violations(kernel, "sm_80")
    assert (refused.message, refused.nearest) == ("clusters of 8 blocks; sm_80 has no clusters", "sm_90a")
    [refused] = cuda.violations(trace(load(), (4, 4), (8, 8)), "sm_90a")
    assert (refused.message, refused.nearest) == ("clusters of 16 blocks; sm_90a has at most 8", "8 blocks")
    [refused] = cuda.violations(trace(load(), (2, 4), (3, 4)), "sm_90a")
    assert (refused.message, refused.nearest) == ("3 blocks along axis 0 are no multiple of 2", "4 blocks")


@tw.kernel(Y="N")
def in_pairs(Y, *, grid):
    b = tw.block_index(grid or tw.ceil_div(Y.shape[0], 8))
    tw.hopper.cluster_index(2)
    tw.copy(tw.fragment(tw.blocked((8,), (8,), (0,)), tw.f32, fill=1), Y.tile((8,), (b,)))


def test_clusters_fill_the_grid() -> None:
    message = "3 blocks along axis 0 are no multiple of the cluster's 2"
    y = np.zeros(24, np.float32)
    with pytest.raises(LaunchError, match=message):
        in_pairs(y, target="reference", grid=None)
    with pytest.raises(LaunchError, match=message):
        run(in_pairs.trace(y, grid=None), {"Y": y})
    in_pairs(y, target="reference", grid=4)
    assert (y == 1).all()


def test_a_block_is_executed_with_its_cluster() -> None:
    y = np.zeros(64, np.float32)
    report = run(in_pairs.trace(y, grid=None), {"Y": y}, blocks=[(3,), (2,), (5,)])
    assert report.blocks == 4
    assert (y.reshape(4, 16).any(axis=1) == [False, True, True, False]).all()
