"""Is this array the product, computed by halves of 11 bits?  The bound of docs/precision.md for each element.

Each row of A and each column of B was scaled by a power of 4 and split in two halves, of which three products
were added up, or in one.  A number is then off by ``2**-22`` of itself, or of one half by ``2**-11``, or by
``2**-38`` of the largest number of its row or column, whichever is more; the product of both
second halves, which is left out, is ``2**-22`` of that of the numbers.  Sums are bounded as `compare` bounds
them, of three products for each place of K, of which two are ``2**-11`` of the first: a period of promoted
sums has three times as many products as places.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.calls import launches
from tilewright.checking.arrays import Array
from tilewright.checking.compare import Accumulation, Comparison, gemm_bound, lost_terms
from tilewright.dtypes import f32
from tilewright.errors import LaunchError

PART = {2: 2.0**-22, 1: 2.0**-11}
"""Of a number, what so many halves lose."""

LEAST = 2.0**-38
"""Of the largest number of a row, what the smallest halves lose."""


def halves_bound(a: Array, b: Array, how: Accumulation, halves: int = 2) -> Array:
    """How far off a product of halves can be, for rows of A and columns of B of any range.

    Args:
        a: (M, K) of f32.
        b: (K, N) of f32.
        how: how the products of halves are added up.
        halves: how many of each number are multiplied.
    """
    sizes = np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)
    tops = sizes[0].max(axis=1, initial=0)[:, None], sizes[1].max(axis=0, initial=0)[None, :]
    off = tuple(PART[halves] * size + LEAST * top for size, top in zip(sizes, tops, strict=True))
    represented = off[0] @ sizes[1] + sizes[0] @ off[1] + off[0] @ off[1]
    represented += PART[2] * (sizes[0] @ sizes[1]) if halves == 2 else 0
    # Scaled, no sum is subnormal; the scale is taken off as exact powers of 2.
    up = tuple(1 / np.maximum(top, np.finfo(np.float64).tiny) for top in tops)
    left, right = a * up[0], b * up[1]
    terms = [left, left * PART[1], left * PART[1]][: 2 * halves - 1]
    period, count = how.period or a.shape[1], len(terms)
    cuts = range(period, a.shape[1], period)
    by_period = zip(*(np.split(term, cuts, axis=1) for term in terms), strict=True)
    lefts = np.hstack([part for parts in by_period for part in parts])
    rights = np.vstack([part for parts in np.split(right, cuts) for part in [parts] * count])
    how = replace(how, period=how.period and count * how.period)
    summed = gemm_bound(lefts, rights, how, f32, twice=False)[2]
    bound: Array = represented + summed / (up[0] * up[1]) + np.finfo(np.float32).smallest_subnormal
    return bound


@launches
def compare_halves(a: Array, b: Array, c: Array, how: Accumulation, halves: int = 2) -> Comparison:
    """Whether ``c = a @ b``, computed by products of halves.

    Args:
        a: (M, K) of f32; for large matrices compare some rows.
        b: (K, N) of f32.
        c: (M, N) of f32: what a kernel computed.
        how: how it adds up products of halves.
        halves: how many of each number it multiplies.

    Raises:
        LaunchError: the shapes do not fit.

    Example:
        >>> import tilewright as tw
        >>> from tilewright.checking.compare import Accumulation
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.standard_normal((2, 64, 64), np.float32)
        >>> how = Accumulation.of(tw.atoms.MMA_F16, 64)
        >>> compare_halves(a, b, a @ b, how).ok, compare_halves(a, b, a[:, 1:] @ b[1:], how).ok
        (True, False)
    """
    if a.ndim != 2 or b.ndim != 2 or c.shape != (a.shape[0], b.shape[1]) or a.shape[1] != b.shape[0]:
        raise LaunchError(f"compare_halves: a {a.shape} @ b {b.shape} and c {c.shape} do not fit")
    if c.size == 0:
        return Comparison(True, (0, 0), 0.0, 0.0, 0.0, 0.0, "", 1.0)
    product = a.astype(np.float64) @ b.astype(np.float64)
    bound = halves_bound(a, b, how, halves)
    residual = c.astype(np.float64) - product
    with np.errstate(all="ignore"):
        ratio = np.where(np.isfinite(residual), np.abs(residual) / bound, np.inf)
    wrong, (m, n) = int((ratio > 1).sum()), np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    reason, resolved = f"{wrong} of {c.size} elements are beyond their bound" * (wrong > 0), 0.0
    if not wrong:
        reason, resolved = lost_terms(a, b, residual, product, bound)
    numbers = (float(c[m, n]), float(product[m, n]), float(abs(residual[m, n])), float(bound[m, n]))
    return Comparison(not reason, (int(m), int(n)), *numbers, reason, resolved)
