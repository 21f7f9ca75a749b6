"""A map of a tile to a number of threads: exact, in few sectors; priorities if extents do not fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.threads.banks import coalesced, coalescing
from tilewright.views.view import View


@given(
    st.lists(st.sampled_from([1, 2, 3, 7, 8, 32, 48, 60]), min_size=1, max_size=3),
    st.sampled_from([1, 32, 96, 100, 128]),
    st.sampled_from([1, 4, 8]),
    st.data(),
)
def test_every_element_is_moved_once_by_at_most_so_many_threads(tile, threads, vector, data) -> None:
    order = data.draw(st.permutations(range(len(tile))))
    made = coalesced(tile, threads, order, vector, 2)
    assert made.is_exact
    assert made.size_threads <= threads
    assert made.values[0].dim == order[0]
    assert made.values[0].extent <= vector


@pytest.mark.parametrize(
    ("tile", "threads", "order", "vector", "element_bytes"),
    [
        ((64, 32), 128, (1, 0), 8, 2),
        ((32, 64), 128, (0, 1), 8, 2),
        ((48, 96), 128, (1, 0), 8, 2),
        ((64, 32), 256, (1, 0), 4, 4),
        ((128, 128), 256, (1, 0), 16, 1),
        ((64, 48), 128, (1, 0), 8, 2),
        ((64, 32), 128, (1, 0), 1, 2),
    ],
)
def test_no_sector_is_touched_twice(tile, threads, order, vector, element_bytes) -> None:
    """This holds in a dense tile and in the rows of a larger array."""
    made = coalesced(tile, threads, order, vector, element_bytes)
    for stride in (tile[order[0]], 4096):
        strides = (stride, 1) if order == (1, 0) else (1, stride)
        found = coalescing(View.strided(tile, strides), made, made.values[0].extent, element_bytes)
        assert found.sectors == found.minimum


def test_consecutive_threads_take_consecutive_vectors_and_the_next_ones_lie_all_threads_on() -> None:
    made = coalesced((64, 32), 128, vector=8, element_bytes=2)
    for thread in range(128):
        for value in range(16):
            at = (thread + 128 * (value // 8)) * 8 + value % 8
            assert made.coordinate(thread, value) == (at // 32, at % 32)


@pytest.mark.parametrize(
    ("tile", "threads", "vector", "made_of"),
    [
        ((32, 32), 256, 8, (256, 4)),  # the same number of accesses: rather all threads
        ((48, 32), 128, 8, (96, 8)),  # rather fewer accesses of wide vectors
        ((7, 9), 128, 8, (63, 1)),
        ((5,), 32, 4, (5, 1)),
    ],
)
def test_what_gives_way_where_the_extents_do_not_fit(tile, threads, vector, made_of) -> None:
    made = coalesced(tile, threads, vector=vector, element_bytes=2)
    assert (made.size_threads, made.values[0].extent) == made_of


def test_a_huge_number_of_threads_is_cut_to_the_tile_at_once() -> None:
    assert coalesced((64, 32), 2**40, vector=8, element_bytes=2).size_threads == 64 * 32


@pytest.mark.parametrize("threads", [0, -3])
def test_no_threads_are_refused(threads: int) -> None:
    with pytest.raises(tw.LayoutError, match="nearest legal choice: threads=1"):
        coalesced((8, 8), threads)
