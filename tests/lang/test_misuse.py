"""Operations with impossible arguments are refused at the author's line, with an alternative."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw

from .kernels import ROWS, pointed
from .refused import cases, refusal


def tensor_arithmetic(A, n, alpha):
    A + 1.0  # A + 1.0


def tensor_product(A, n, alpha):
    A @ A  # A @ A


def tensor_assignment(A, n, alpha):
    A[0] = 1.0  # A[0]


def tensor_and_fragment(A, n, alpha):
    tw.fragment(ROWS, tw.f32, 0) + A  # tw.fragment(ROWS, tw.f32, 0) + A


def index_as_a_number(A, n, alpha):
    tw.fill(tw.fragment(ROWS, tw.f32), n)  # tw.fill(tw.fragment(ROWS, tw.f32), n)


def mixed_dtypes(A, n, alpha):
    tw.fragment(ROWS, tw.f16, 0) * alpha  # tw.fragment(ROWS, tw.f16, 0) * alpha


def unassignable(A, n, alpha):
    tw.fragment(ROWS, tw.f16, 0).assign(0.0)  # tw.fragment(ROWS, tw.f16, 0).assign(0.0)


def symbolic_tile(A, n, alpha):
    A.tile((8, n), (0, 0))  # A.tile((8, n), (0, 0))


def tile_of_another_rank(A, n, alpha):
    A.tile((8, 8, 8), (0, 0, 0))  # A.tile((8, 8, 8), (0, 0, 0))


def too_many_indices(A, n, alpha):
    A[0, 0, 0]  # A[0, 0, 0]


def stepped_slice(A, n, alpha):
    A[::n]  # A[::n]


def symbolic_shared(A, n, alpha):
    tw.shared((8, n), tw.f16)  # tw.shared((8, n), tw.f16)


def unknown_dtype(A, n, alpha):
    tw.shared((8, 8), "f17")  # tw.shared((8, 8), "f17")


def impossible_swizzle(A, n, alpha):
    A.swizzle(3, 3, 2)  # A.swizzle(3, 3, 2)


def indivisible_partition(A, n, alpha):
    tw.shared((8, 8), tw.f16).partition((3, 8))  # tw.shared((8, 8), tw.f16).partition((3, 8))


def partition_of_symbolic(A, n, alpha):
    A.partition((4, 8))  # A.partition((4, 8))


def copy_of_a_number(A, n, alpha):
    tw.copy(1.0, A)  # tw.copy(1.0, A)


def mma_without_atom(A, n, alpha):
    tw.mma(A, A, tw.fragment(ROWS, tw.f32, 0))  # tw.mma(A, A, tw.fragment(ROWS, tw.f32, 0))


def depth_of_operand(A, n, alpha):
    tw.operand_a(tw.TiledMma(tw.atoms.MMA_F16), 24)  # tw.operand_a(tw.TiledMma(tw.atoms.MMA_F16), 24)


def undistributed_load(A, n, alpha):
    tw.load(A)  # tw.load(A)


def part_of_a_vector(A, n, alpha):
    tw.fragment(ROWS, tw.f32, 0)[:, 0:1]  # tw.fragment(ROWS, tw.f32, 0)[:, 0:1]


def part_at_run_time(A, n, alpha):
    tw.fragment(ROWS, tw.f32, 0)[n:]  # tw.fragment(ROWS, tw.f32, 0)[n:]


def element_of_a_fragment(A, n, alpha):
    tw.fragment(ROWS, tw.f32, 0)[0]  # tw.fragment(ROWS, tw.f32, 0)[0]


def fragment_without_dtype(A, n, alpha):
    tw.fragment(ROWS)  # tw.fragment(ROWS)


def negative_wait(A, n, alpha):
    tw.async_wait(-1)  # tw.async_wait(-1)


def four_axes(A, n, alpha):
    tw.block_index((n, n, n))
    tw.batch_index(n)  # tw.batch_index(n)


def grid_inside_the_kernel(A, n, alpha):
    m = tw.block_index(n)
    tw.batch_index(m + 1)  # tw.batch_index(m + 1)


def workspace_inside_the_kernel(A, n, alpha):
    for k in tw.range(n):
        tw.workspace((k,), tw.f32)  # tw.workspace((k,), tw.f32)


def derived_inside_the_kernel(A, n, alpha):
    for k in tw.range(n):
        tw.derived(k * 2)  # tw.derived(k * 2)


def two_clusters(A, n, alpha):
    tw.hopper.cluster_index((2, 1))
    tw.hopper.cluster_index((2, 1))  # tw.hopper.cluster_index((2, 1))


@pytest.mark.parametrize(
    ("kernel", "caret"), cases(globals()), ids=lambda value: getattr(value, "__name__", "")
)
def test_refused_at_the_line(kernel: Callable[..., Any], caret: str) -> None:
    assert caret in pointed(refusal(kernel))


@pytest.mark.parametrize(
    ("kernel", "advice"),
    [
        (tensor_arithmetic, "tw.load"),
        (tensor_assignment, "tw.copy"),
        (symbolic_tile, "keyword-only constant"),
        (depth_of_operand, "nearest legal choice: K = 16"),
        (indivisible_partition, "threads=(2, 8)"),
        (derived_inside_the_kernel, "depends on k"),
    ],
)
def test_the_message_says_what_to_do(kernel: Callable[..., Any], advice: str) -> None:
    assert advice in refusal(kernel).message


@tw.kernel
def other_kernel(A):
    tw.barrier()


def test_a_kernel_inside_a_kernel() -> None:
    def kernel(A, n, alpha):
        other_kernel(A)

    error = refusal(kernel)
    assert "a kernel can neither launch another one" in error.message
    assert pointed(error) == "other_kernel(A)"


def test_arrays_are_not_handed_to_libraries() -> None:
    def kernel(A, n, alpha):
        np.asarray(A)

    assert pointed(refusal(kernel)) == "np.asarray(A)"


def yielding(A, n, alpha):
    yield tw.barrier()


def giving_back(A, n, alpha):
    return A


@pytest.mark.parametrize(("kernel", "kind"), [(yielding, "generator"), (giving_back, "Tensor")])
def test_kernels_return_nothing(kernel: Callable[..., Any], kind: str) -> None:
    assert f"kernel {kernel.__name__} returns a {kind}" in refusal(kernel).message
