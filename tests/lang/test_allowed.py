"""Variables that may change inside a traced loop or branch, because no value is lost."""

# ruff: noqa: F841, PERF401

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw

from .kernels import ROWS, broken, trace

DECLARED = {"n": int, "alpha": tw.f32}


def temporaries_of_two_loops(A, n, alpha):
    for k in tw.range(n):
        row = k * 2
        tile = A.tile((8, 8), (row, 0))
        first = k == 0
        pair = (row, tile)
        with tw.when(first):
            A[pair[0]]
    for k in tw.range(n):
        row = k * 3
        tile = A.tile((8, 8), (row, 0))
        first = k == 1
        pair = (row, tile)
        with tw.when(first):
            A[pair[0]]


def comprehensions(A, n, alpha):
    for k in tw.range(n):
        tiles = [A.tile((8, 8), (k, i)) for i in range(2)]
        sizes = {i: k + i for i in range(2)}
        assert len(tiles) == len(sizes)
    for k in tw.range(n):
        tiles = [A.tile((8, 8), (k, i)) for i in range(3)]
        sizes = {i: k + i for i in range(3)}
        assert len(tiles) == len(sizes)


def python_loops(A, n, alpha):
    for k in tw.range(n):
        for i in range(2):
            A[k + i]
    for k in tw.range(n):
        for i in range(4):
            A[k + i]


def unrolled(A, n, alpha):
    for stage in tw.unroll(3):
        for k in tw.range(n):
            row = k + stage
            A[row]


def in_place(A, n, alpha):
    acc = tw.fragment(ROWS, tw.f32, 0)
    accs = [tw.fragment(ROWS, tw.f32, 0) for _ in range(2)]
    for _k in tw.range(n):
        acc += 1.0
        acc *= alpha
        accs[0] -= 1.0
        acc.assign(acc / 2.0)


def the_same_value_again(A, n, alpha):
    x, y = n + 1, 3
    for _k in tw.range(n):
        x, y = 1 + n, 3
        A[x]


def variables_of_the_kernel(A, n, alpha):
    x = tw.var(0)
    for _k in tw.range(n):
        x.set(x.get() + 1)
    A[x.get()]


def growing_list(A, n, alpha):
    tiles = []
    for k in tw.range(n):
        tiles.append(A.tile((8, 8), (k, 0)))


def both_ways(A, n, alpha):
    with tw.when(n > 3):
        row = n - 3
        A[row]
    with tw.otherwise():
        row = 0
        A[row]


def continuing(A, n, alpha):
    for k in tw.range(n):
        A[k]
        if n is None:
            continue
        A[k + 1]


def counted_in_python(A, n, alpha):
    count = 0
    for i in range(3):
        count += i
    for _k in tw.range(n):
        A[count]


def ranges_made_before(A, n, alpha):
    steps = tw.range(n)
    for j in steps:
        for k in steps:
            A[j + k]


ALLOWED = [
    temporaries_of_two_loops,
    comprehensions,
    python_loops,
    unrolled,
    in_place,
    the_same_value_again,
    variables_of_the_kernel,
    growing_list,
    both_ways,
    continuing,
    counted_in_python,
    ranges_made_before,
]


@pytest.mark.parametrize("kernel", ALLOWED, ids=lambda kernel: kernel.__name__)
def test_allowed(kernel: Callable[..., Any]) -> None:
    assert broken(trace(kernel, DECLARED)) == []
