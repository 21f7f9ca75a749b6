"""Distributions: every coordinate held once, by whom, and in which order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewright.errors import LayoutError
from tilewright.layout.distribution import Distribution, Mode, blocked
from tilewright.layout.expr import Sym
from tilewright.layout.walk import evaluate


@st.composite
def deals(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]:
    rank = draw(st.integers(1, 3))
    threads = tuple(draw(st.sampled_from([1, 2, 3, 4])) for _ in range(rank))
    tile = tuple(n * draw(st.sampled_from([1, 2, 4])) for n in threads)
    return tile, threads, tuple(draw(st.permutations(range(rank)))), draw(st.integers(0, rank - 1))


@given(deals())
def test_blocked_deals_every_element_once_in_chunks(
    deal: tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int],
) -> None:
    tile, threads, order, vector_dim = deal
    made = blocked(tile, threads, order, vector_dim)
    assert made.is_exact
    assert made.copies == 1
    assert made.size_threads * made.size_values == np.prod(tile)
    chunk = [n // t for n, t in zip(tile, threads, strict=True)]
    for at in itertools.product(*map(range, threads)):
        thread, times = 0, 1
        for dim in order:
            thread, times = thread + at[dim] * times, times * threads[dim]
        held = [made.coordinate(thread, value) for value in range(made.size_values)]
        box = itertools.product(*(range(a * c, a * c + c) for a, c in zip(at, chunk, strict=True)))
        assert sorted(held) == sorted(box)
        for value in range(chunk[vector_dim]):
            assert held[value][vector_dim] - held[0][vector_dim] == value
    assert chunk[vector_dim] == 1 or made.vector() == (vector_dim, chunk[vector_dim])


@st.composite
def distributions(draw: st.DrawFn) -> Distribution:
    shape = tuple(draw(st.sampled_from([2, 4])) for _ in range(2))
    modes = [
        Mode(
            draw(st.sampled_from([1, 2, 4])),
            draw(st.sampled_from([0, 1, None])),
            draw(st.sampled_from([1, 2])),
        )
        for _ in range(draw(st.integers(1, 4)))
    ]
    cut = draw(st.integers(0, len(modes)))
    return Distribution(shape, tuple(modes[:cut]), tuple(modes[cut:]))


@given(distributions())
def test_exactness_is_counting(made: Distribution) -> None:
    counts = dict.fromkeys(itertools.product(*map(range, made.shape)), 0)
    outside = 0
    for thread, value in itertools.product(range(made.size_threads), range(made.size_values)):
        at = made.coordinate(thread, value)
        if at in counts:
            counts[at] += 1
        else:
            outside += 1
    assert made.is_exact == (outside == 0 and set(counts.values()) == {made.copies})


@given(distributions())
def test_table_and_symbolic_coordinates_agree(made: Distribution) -> None:
    thread, value = Sym("t", 0, made.size_threads - 1), Sym("v", 0, made.size_values - 1)
    symbolic = made.coordinate(thread, value)
    assert made.table.shape == (made.size_threads, made.size_values, 2)
    for t, v in itertools.product(range(made.size_threads), range(made.size_values)):
        at = made.coordinate(t, v)
        assert tuple(made.table[t, v]) == at
        assert tuple(evaluate(part, {thread: t, value: v}) for part in symbolic) == at


@given(distributions())
def test_consecutive_values_are_neighbours(made: Distribution) -> None:
    dim, width = made.vector()
    assert made.size_values % width == 0
    for thread in range(made.size_threads):
        for first in range(0, made.size_values, width):
            held = made.table[thread, first : first + width]
            assert (held[:, dim] == held[0, dim] + np.arange(width)).all()
            assert (np.delete(held, dim, axis=1) == np.delete(held[:1], dim, axis=1)).all()


def test_replicated_threads_hold_copies() -> None:
    made = Distribution((4,), (Mode(4, 0, 1), Mode(2, None, 0)), ())
    assert (made.is_exact, made.copies, made.size_threads) == (True, 2, 8)
    assert [made.coordinate(t, 0) for t in (1, 5)] == [(1,), (1,)]


def test_the_wrappers_thread_layouts() -> None:
    """Tile 256x32 on (64,4):(4,1): four threads to a row, eight elements each."""
    made = blocked((256, 32), (64, 4), order=(1, 0))
    assert made.coordinate(0, 0) == (0, 0)
    assert made.coordinate(1, 0) == (0, 8)
    assert made.coordinate(4, 0) == (4, 0)
    assert made.coordinate(255, 31) == (255, 31)
    assert made.vector() == (1, 8)


def test_what_does_not_divide_is_refused() -> None:
    with pytest.raises(LayoutError, match="nearest legal number of threads: 16"):
        blocked((32, 48), (1, 20), order=(1, 0))
    with pytest.raises(LayoutError, match="differ in rank"):
        blocked((32, 48), (4,), order=(0,))
