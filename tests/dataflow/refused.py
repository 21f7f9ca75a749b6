"""Kernels that a loop over tiles cannot express; `test_refusals.py` has their error messages."""

# ruff: noqa: F841

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import tilewright as tw

DIMS = {"A": "M K", "B": "N K", "bias": "N", "index": "M", "C": "M N", "alpha": tw.f32}
CASES: list[Callable[..., Any]] = []


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that is refused."""
    CASES.append(function)
    return function


def product(A, B, m, n):
    acc = tw.zeros()
    for k in tw.steps(A.shape[1]):
        acc += A[m, k] @ B[n, k].T
    return acc


# ---------------------------------------------------------------- Python decides


@case
def branch_on_values(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = product(A, B, m, n)
        if acc > 0:
            C[m, n] = acc


@case
def branch_on_a_span(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        if m == 0:
            C[m, n] = product(A, B, m, n)


@case
def left_by_break(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)
        break


@case
def steps_left_by_break(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            break
        C[m, n] = acc


@case
def comprehension(A, B, bias, index, C, alpha):
    tiles = [(m, n) for m, n in tw.tiles(C)]


@case
def rebound_accumulator(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc = acc + A[m, k] @ B[n, k].T
        C[m, n] = acc


@case
def numpy_function(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = np.sum(product(A, B, m, n), axis=1)


# ---------------------------------------------------------------- indices


@case
def shifted(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = A[m + 1, n]


@case
def step_of_a_slice(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[:: A.shape[0]][m, k] @ B[n, k].T
        C[m, n] = acc


@case
def rows_by_computed_integers(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = A[index[m] + 1, n]


@case
def rows_by_floats(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = A[m, bias[n]]


@case
def rows_by_a_matrix(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = bias[C[m, n]]


@case
def both_dimensions_by_one_array(A, B, bias, index, C, alpha):
    for m in tw.tiles(C.shape[0]):
        bias[m] = A[index[m], index[m]]


@case
def rows_by_a_stored_array(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = C[m, n] + bias[index[m]][:, None]
        index[m] = 0


@case
def rows_read_elsewhere(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[index[m], n] = C[m, n] + 1


@case
def gathered_rows(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[index, k] @ B[n, k].T
        C[m, n] = acc


@case
def wrong_extent(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[0]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


@case
def too_few_indices(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = A[m]


@case
def one_span_twice(A, B, bias, index, C, alpha):
    for m, n in tw.tiles((A.shape[0], A.shape[0])):
        square = A[:, 0 : A.shape[0]]
        square[m, n] = square[m, m]


@case
def array_without_index(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n) + bias


@case
def array_times_array(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = A @ B


# ---------------------------------------------------------------- axes and dtypes


@case
def broadcast_of_rows(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = product(A, B, m, n)
        scale = index[m].to(tw.f32)
        C[m, n] = acc * scale


@case
def product_without_transposition(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k]
        C[m, n] = acc


@case
def product_along_tiles(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = C[m, n] @ C[m, n].T


@case
def dtypes_without_a_common_one(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n) * index[m, None]


@case
def fraction_of_integers(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = (index[m, None] * 0.5).to(tw.f32)


@case
def no_such_axis(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n).max(axis=2)


@case
def integer_accumulator_of_floats(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.i32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


# ---------------------------------------------------------------- explicit operations


@case
def copy_inside(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        held = tw.shared((64, 64), A.dtype)
        C[m, n] = product(A, B, m, n)


@case
def block_index_inside(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        block = tw.block_index(4)
        C[m, n] = product(A, B, m, n)


@case
def range_inside(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.range(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


@case
def explicit_before(A, B, bias, index, C, alpha):
    tw.copy(bias.tile((64,), (0,)), bias.tile((64,), (1,)), threads=64)
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)


@case
def explicit_after(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)
    tw.barrier()


# ---------------------------------------------------------------- loops and accumulators


@case
def steps_alone(A, B, bias, index, C, alpha):
    for _ in tw.steps(A.shape[1]):
        pass


@case
def second_loop_over_tiles(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)
    for m, k in tw.tiles(A):
        A[m, k] = 0


@case
def span_after_its_loop(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


@case
def product_after_its_loop(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            last = A[m, k] @ B[n, k].T
            acc += last
        C[m, n] = acc + last


@case
def no_product_in_a_step(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += tw.maximum(A[m, k] @ B[n, k].T, 0)
        C[m, n] = acc


@case
def scaled_in_a_step(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            acc *= 2
        C[m, n] = acc


@case
def nothing_accumulated(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        for k in tw.steps(A.shape[1]):
            x = A[m, k] @ B[n, k].T
        C[m, n] = 0


@case
def accumulated_in_two_loops(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for _ in tw.steps(A.shape[1]):
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[n, k].T
        C[m, n] = acc


# ---------------------------------------------------------------- stores


@case
def nothing_stored(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = product(A, B, m, n)


@case
def stored_in_a_step(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
            C[m, n] = acc


@case
def stored_twice(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)
        C[m, n] = 0


@case
def read_after_it_is_stored(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)
        bias[n] = C[m, n].sum(axis=0)


@case
def stored_along_fewer_axes(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        bias[n] = product(A, B, m, n)


@case
def stored_where_others_read(A, B, bias, index, C, alpha):
    square = A[:, 0 : A.shape[0]]
    for m, n in tw.tiles((A.shape[0], A.shape[0])):
        square[m, n] = square[n, m].T


@case
def line_in_place(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n)
        bias[n] = bias[n] * alpha


@case
def tf32_of_narrower_floats(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros(precision="tf32")
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].to(tw.f16) @ B[n, k].T
        C[m, n] = acc


@case
def unknown_precision(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        acc = tw.zeros(precision="tf23")
        C[m, n] = acc


@case
def zeros_of_a_dtype_first(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = tw.zeros(tw.f32)


@case
def zeros_in_the_old_order(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = tw.zeros(tw.f32, (m, n))


@case
def full_in_the_old_order(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = tw.full(0.0, tw.f32, (m, n))


@case
def function_of_fragments(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        bias[n] = tw.reduce_sum(product(A, B, m, n), 0)


@case
def array_with_a_new_axis(A, B, bias, index, C, alpha):
    for m, n in tw.tiles(C):
        C[m, n] = product(A, B, m, n) + bias[None, :]
