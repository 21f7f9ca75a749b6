"""Answers about runs and alignment are true, and refusals have a reason."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tilewright.symbolic.expr import ceil_div
from tilewright.symbolic.nodes import Sym
from tilewright.views.questions import contiguous_run, stride
from tilewright.views.transforms import Broadcast, Merge, Swizzle
from tilewright.views.view import View

M, K = Sym("M", 1), Sym("K", 8, divisor=8)
m, k = Sym("m", 0, None, 1, ceil_div(M, 128)), Sym("k", 0, None, 1, ceil_div(K, 32))


def longest_run(view: View, dim: int) -> int:
    offset = np.broadcast_to(view.at(tuple(np.indices(view.shape))), view.shape)
    rows = np.moveaxis(offset, dim, -1)
    extent = view.shape[dim]
    for n in sorted((n for n in range(1, extent + 1) if extent % n == 0), reverse=True):
        groups = rows.reshape(-1, n)
        if (groups == groups[:, :1] + np.arange(n)).all():
            return n
    return 1


@given(st.data())
def test_runs_of_strided_merged_and_swizzled_views(data: st.DataObject) -> None:
    shape = [data.draw(st.sampled_from([1, 2, 3, 4, 6, 8])) for _ in range(3)]
    strides, span = [0, 0, 0], 1
    for dim in data.draw(st.permutations(range(3))):
        strides[dim] = span
        span = span * shape[dim] + data.draw(st.sampled_from([0, 0, 2]))
    view = View.strided(shape, strides)
    if data.draw(st.booleans()):
        view = Merge(data.draw(st.integers(0, 1)), 2).apply(view)
    for dim in range(view.rank):
        assert contiguous_run(view, dim) == longest_run(view, dim)
    swizzled = Swizzle(2, data.draw(st.integers(0, 2)), 2).apply(View.strided((8, 32), (32, 1)))
    for dim in range(2):
        assert longest_run(swizzled, dim) % contiguous_run(swizzled, dim) == 0


def test_runs_of_symbolic_views() -> None:
    packed = View.strided((M, K), (K, 1))
    assert contiguous_run(packed, 1) == K
    assert contiguous_run(Merge(0, 2).apply(packed), 0) == M * K
    assert contiguous_run(Merge(0, 2).apply(View.strided((M, K), (K + 8, 1))), 0) == 8
    assert contiguous_run(packed, 0) == 1


def test_strides() -> None:
    view = View.strided((M, K), (K, 1))
    assert (stride(view, 0), stride(view, 1)) == (K, 1)
    assert stride(Swizzle(3, 3, 3).apply(View.strided((8, 64), (64, 1))), 1) is None
    assert stride(Broadcast(0, 4).apply(view), 0) == 0
