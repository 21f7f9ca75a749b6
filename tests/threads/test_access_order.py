"""The order in which a thread visits its chunk, against nested loops, in the map and in the CUDA text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.threads.distribution import blocked


def visits(
    chunk: Sequence[int], vector_dim: int, access_order: Sequence[int], vector: int
) -> Iterator[list[int]]:
    """Return a thread's elements from the first of its chunk on, with dimensions in order, fastest first."""
    units = [extent // vector if dim == vector_dim else extent for dim, extent in enumerate(chunk)]
    access_order = access_order[::-1]  # loops are nested from the slowest to the fastest
    for numbers in itertools.product(*(range(units[dim]) for dim in access_order)):
        first = [0] * len(chunk)
        for dim, number in zip(access_order, numbers, strict=True):
            first[dim] = number * vector if dim == vector_dim else number
        for element in range(vector):
            yield [at + element if dim == vector_dim else at for dim, at in enumerate(first)]


@st.composite
def visitors(draw: st.DrawFn) -> dict[str, object]:
    rank = draw(st.integers(1, 3))
    threads = tuple(draw(st.sampled_from([1, 2, 3])) for _ in range(rank))
    chunk = [draw(st.sampled_from([1, 2, 4, 6])) for _ in range(rank)]
    vector_dim = draw(st.integers(0, rank - 1))
    return {
        "tile": tuple(n * c for n, c in zip(threads, chunk, strict=True)),
        "threads": threads,
        "order": tuple(draw(st.permutations(range(rank)))),
        "vector_dim": vector_dim,
        "access_order": tuple(draw(st.permutations(range(rank)))),
        "vector": draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if chunk[vector_dim] % n == 0])),
    }


@given(visitors())
def test_every_thread_visits_its_chunk_in_the_order_asked_for(asked) -> None:
    made = blocked(**asked)
    tile, threads = asked["tile"], asked["threads"]
    chunk = [extent // count for extent, count in zip(tile, threads, strict=True)]
    order = [*visits(chunk, asked["vector_dim"], asked["access_order"], asked["vector"])]
    for at in itertools.product(*map(range, threads)):
        thread, times = 0, 1
        for dim in asked["order"]:
            thread, times = thread + at[dim] * times, times * threads[dim]
        corner = [place * extent for place, extent in zip(at, chunk, strict=True)]
        wanted = [[c + p for c, p in zip(corner, place, strict=True)] for place in order]
        assert made.table[thread].tolist() == wanted


def test_without_an_order_the_dimension_of_the_vectors_is_fastest_and_then_the_last() -> None:
    for vector_dim, fastest_first in ((0, (0, 2, 1)), (1, (1, 2, 0)), (2, (2, 1, 0))):
        made = blocked((4, 6, 8), (2, 1, 2), (2, 1, 0), vector_dim)
        assert made.table[0].tolist() == [*visits((2, 6, 4), vector_dim, fastest_first, 1)]


@tw.kernel(X="M N", Y="M N")
def moved(X, Y, *, access_order, vector_dim, vector):
    tw.block_index(1)
    how = {"threads": tw.Layout((8, 4), (4, 1)), "vector_dim": vector_dim, "vector": vector}
    tw.copy(X.tile((32, 32), (0, 0)), Y.tile((32, 32), (0, 0)), access_order=access_order, **how)


def spec(major: int) -> tw.TensorSpec:
    return tw.TensorSpec(tw.f16, 2, major, (32, 32), (32, 1) if major == 1 else (1, 32), 16, False)


LOOP = re.compile(r"for \(int (\w) = 0; \1 < (\d+);")
PLACE = re.compile(r"[(]([^()]*) < M && ([^()]*) < N[,)]")


@pytest.mark.parametrize("access_order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("vector_dim", "vector"), [(1, 4), (1, 1), (0, 2)])
def test_the_text_of_a_thread_follows_the_order(access_order, vector_dim, vector) -> None:
    """The test runs the loops around the load and the store; a thread's chunk is 4 x 8."""
    constants = {"access_order": access_order, "vector_dim": vector_dim, "vector": vector}
    X = spec(vector_dim)
    text = moved.compile(X, X, **constants, target="cuda", arch="sm_80").source
    counts = {name: int(count) for name, count in LOOP.findall(text)}  # outer before inner
    load, store = PLACE.findall(text)
    for place in (load, store):
        found = []
        for numbers in itertools.product(*map(range, counts.values())):
            names = {**dict(zip(counts, numbers, strict=True)), "row": 0, "col": 0}
            found.append([eval(part, {}, names) for part in place])
        assert found == [*visits((4, 8), vector_dim, access_order, vector)][::vector]


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("access_order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(("vector_dim", "vector"), [(1, 4), (0, 2)])
def test_any_order_moves_every_element(access_order, vector_dim, vector, target) -> None:
    whole = np.random.default_rng(0).standard_normal((26, 32)).astype(np.float16)
    result = np.full_like(whole, np.nan)
    x, y = (a[:, :28] if vector_dim else a[:, :28].T for a in (whole, result))
    ran = moved(x, y, access_order=access_order, vector_dim=vector_dim, vector=vector, target=target)
    assert ran.target == target
    assert (y == x).all()
    assert np.isnan(result[:, 28:]).all()
