"""Tuples of threads, their layouts and lists of dimensions count from one end; a number is coalesced."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.ops import Copy


@tw.kernel(X="M N", Y="M N")
def moved(X, Y, *, threads, vector=None, vector_dim=None, access_order=None):
    m, n = tw.block_index(tw.ceil_div(Y.shape, (32, 64)))
    how = {"threads": threads, "vector": vector, "vector_dim": vector_dim, "access_order": access_order}
    tw.copy(X.tile((32, 64), (m, n)), Y.tile((32, 64), (m, n)), **how)


def spec(major: int = 1, divisor: int = 8) -> tw.TensorSpec:
    extents, strides = ((1, divisor), (divisor, 1)) if major == 1 else ((divisor, 1), (1, divisor))
    return tw.TensorSpec(tw.f16, 2, major, extents, strides, 16, False)


def spread(how, *specs):
    kernel = moved.trace(*(specs or (spec(), spec())), **how)
    (found,) = (op.spread for op in kernel.walk() if isinstance(op, Copy))
    return found


def test_a_tuple_is_short_for_the_compact_layout() -> None:
    assert spread({"threads": (8, 4)}) == spread({"threads": tw.Layout((8, 4))})
    assert spread({"threads": (8, 4)}).coordinate(1, 0) == (4, 0)
    assert spread({"threads": tw.row_major((8, 4))}).coordinate(1, 0) == (0, 16)
    assert tw.blocked((32, 64), (8, 4)) == spread({"threads": (8, 4)})
    assert tw.blocked((32, 64), (8, 4), order=(1, 0)) == spread({"threads": tw.row_major((8, 4))})


def test_orders_of_threads_and_of_accesses_both_list_the_fastest_first() -> None:
    made = tw.blocked((8, 8), (4, 4), order=(1, 0), access_order=(0, 1), vector_dim=1, vector=1)
    assert made.coordinate(1, 0) == (0, 2)
    assert made.coordinate(0, 1) == (1, 0)
    assert [made.coordinate(0, value) for value in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]


def test_a_number_of_threads_follows_the_contiguous_dimension() -> None:
    rows, columns = spread({"threads": 128}), spread({"threads": 128}, spec(0), spec(0))
    assert [rows.coordinate(t, 0) for t in (1, 8)] == [(0, 8), (1, 0)]
    assert [columns.coordinate(t, 0) for t in (1, 4)] == [(8, 0), (0, 1)]


def test_of_two_global_sides_the_target_decides() -> None:
    made = spread({"threads": 128}, spec(0), spec(1))
    assert made.coordinate(1, 0) == (0, 1)


def test_a_number_of_threads_takes_vectors_that_the_rows_allow() -> None:
    for divisor, width in ((8, 8), (4, 4), (2, 2), (1, 1)):
        made = spread({"threads": 128}, spec(1, divisor), spec(1, divisor))
        assert (made.vector(), made.coordinate(1, 0)) == ((1, width), (0, width))
    assert spread({"threads": 128, "vector": 2}).coordinate(1, 0) == (0, 2)
    assert spread({"threads": 128, "vector": 1, "vector_dim": 0}).coordinate(1, 0) == (1, 0)


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("threads", [1, 32, 100, 128, np.int32(64)])
@pytest.mark.parametrize("shape", [(64, 128), (33, 65), (1, 255)])
def test_a_number_of_threads_moves_every_element(shape, threads, target) -> None:
    whole = np.random.default_rng(1).standard_normal((shape[0], shape[1] + 3)).astype(np.float16)
    result = np.full_like(whole, np.nan)
    x, y = whole[:, : shape[1]], result[:, : shape[1]]
    assert moved(x, y, threads=threads, target=target).target == target
    assert (y == x).all()
    assert np.isnan(result[:, shape[1] :]).all()


@pytest.mark.parametrize(
    ("how", "nearest"),
    [
        ({"threads": 0}, "threads=1"),
        ({"threads": -1}, "threads=1"),
        ({"threads": 128, "access_order": (0, 1)}, "a layout of threads, with one count per dimension"),
        ({"threads": 128, "vector": 3}, "vector=1"),
        ({"threads": 128, "vector_dim": 2}, "vector_dim=1"),
    ],
)
def test_what_a_number_of_threads_cannot_be_asked(how, nearest) -> None:
    with pytest.raises(tw.LegalityError) as raised:
        moved.compile(spec(), spec(), **how, target="reference")
    assert f"nearest legal choice: {nearest}" in str(raised.value)
