"""Kernels that gather and scatter rows, and arrays for them with gaps that must not change."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

ROWS, COLUMNS = 32, 24
SPREAD = tw.raked((ROWS, COLUMNS), (16, 6), 4, 1)


@tw.kernel(X="M N", I="R", Y="R N")
def gather(X, I, Y, *, way, index="global", outside=0.0):
    """``Y[r] = X[I[r]]``, or ``outside`` if there is no such row."""
    r, n = tw.block_index(tw.ceil_div(Y.shape, (ROWS, COLUMNS)))
    numbers = I.tile((ROWS,), (r,))
    if index == "shared":
        staged = tw.shared((ROWS,), I.dtype)
        tw.copy(numbers, staged, threads=32, other=-1 if I.dtype.kind == "int" else 0)
        tw.barrier()
        numbers = staged
    chosen = X.rows(numbers, padded=True).tile((ROWS, COLUMNS), (0, n))
    target = Y.tile((ROWS, COLUMNS), (r, n))
    if way == "registers":
        tw.copy(tw.load(chosen, SPREAD, other=outside), target)
        return
    sX = tw.shared((ROWS, COLUMNS), X.dtype)
    if way == "async":
        tw.copy_async(chosen, sX, threads=96)
        tw.async_commit()
        tw.async_wait()
    else:
        tw.copy(chosen, sX, threads=96, other=outside)
    tw.barrier()
    tw.copy(sX, target, threads=96)


@tw.kernel(X="R N", I="R", Y="M N")
def scatter(X, I, Y, *, way, reduction=None):
    """``Y[I[r]] = X[r]``, or reduced into it."""
    r, n = tw.block_index(tw.ceil_div(X.shape, (ROWS, COLUMNS)))
    source = X.tile((ROWS, COLUMNS), (r, n))
    chosen = Y.rows(I, padded=True).tile((ROWS, COLUMNS), (r, n))
    if way == "registers":
        tw.copy(tw.load(source, SPREAD), chosen, reduction=reduction)
        return
    tw.copy(source, chosen, threads=96, reduction=reduction)


@tw.kernel(X="M N", I="R", Y="M R")
def columns(X, I, Y):
    """``Y[m, r] = X[m, I[r]]``."""
    m, r = tw.block_index(tw.ceil_div(Y.shape, (ROWS, COLUMNS)))
    chosen = X[:, I.tile((COLUMNS,), (r,))].tile((ROWS, COLUMNS), (m, 0))
    tw.copy(chosen, Y.tile((ROWS, COLUMNS), (m, r)), threads=96)


class Strided:
    """An array in a larger one of poison.

    Args:
        array: the contents.
        gap: elements between its rows.
    """

    def __init__(self, array: np.ndarray[Any, Any], gap: int) -> None:
        rows, width = array.shape
        self.whole = np.full((rows + 2, width + gap), 777, array.dtype)
        self.array = self.whole[1 : rows + 1, :width]
        self.array[...] = array

    @property
    def is_untouched(self) -> bool:
        """Whether the memory around the array is unchanged."""
        around = np.ones(self.whole.shape, bool)
        rows, width = self.array.shape
        around[1 : rows + 1, :width] = False
        return bool((self.whole[around] == 777).all())


def expected_rows(x: np.ndarray[Any, Any], index: np.ndarray[Any, Any], outside: float) -> Any:
    """Return NumPy's gathered rows, with ``outside`` for rows that do not exist."""
    numbers = index.astype(np.int64)
    inside = (numbers >= 0) & (numbers < len(x))
    found = np.full((len(index), x.shape[1]), outside, x.dtype)
    found[inside] = x[numbers[inside]]
    return found
