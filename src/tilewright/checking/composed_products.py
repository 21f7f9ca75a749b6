"""Comparison of products that are computed by several real products: halves of 11 bits, and complex numbers.

**Halves** (the bound of docs/precision.md).  Each row of A and each column of B was scaled by a power of 4
and split in two halves.  Three products of halves were added up, or one.  A number is then off by ``2**-22``
of itself, or by ``2**-11`` for one half, or by ``2**-38`` of the largest number of its row or column,
whichever is most.  The product of both second halves is left out: it is ``2**-22`` of the product of the
numbers.  `compare` bounds the sums of three products for each index of K; two of them are ``2**-11`` of the
first.  So a period of promoted sums has three times as many products as indices.

**Complex numbers.**  With ``A = Ar + i Ai`` and ``B = Br + i Bi``, each part of ``A B`` is one real product
twice as deep: the real parts are ``[Ar, -Ai] [Br; Bi]``, the imaginary parts ``[Ar, Ai] [Bi; Br]``, the two
products of each k side by side.  To compare ``D = alpha A B + beta C`` with them, ``beta C`` is subtracted
and the rest divided by ``alpha``, so that lost terms are found in the same way.  The roundings of this
epilogue widen the bound.

Three products (``method="3m"``) have a bound of their own.  The errors of real parts are those of ``Ar Br``
and ``Ai Bi``.  The errors of imaginary parts are those of both and of ``(Ar + Ai) (Br + Bi)``, whose factors
were also rounded to the dtype: independently, at most `SPREAD` times ``2 u sqrt(sum ((Ar + Ai) (Br +
Bi))^2)``. This bound does not shrink with a part of the result that is smaller than these products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.calls import launches
from tilewright.checking.compare import (
    NO_ELEMENTS,
    SPREAD,
    Accumulation,
    Array,
    GemmComparison,
    gemm_bound,
    inputs,
    lost_terms,
)
from tilewright.dtypes import DType, dtype, f32, f64
from tilewright.errors import LaunchError

PART = {2: 2.0**-22, 1: 2.0**-11}
"""Relative error of a number represented by one or two halves."""

LEAST = 2.0**-38
"""Error of the smallest halves relative to the largest number of a row."""


def halves_bound(a: Array, b: Array, how: Accumulation, halves: int = 2) -> Array:
    """Return the largest error of a product of halves; rows of A and columns of B may have any range.

    Args:
        a: (M, K) of f32.
        b: (K, N) of f32.
        how: the order and precision in which the products of halves are summed.
        halves: how many halves of each number are multiplied.
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
def compare_halves(a: Array, b: Array, c: Array, how: Accumulation, halves: int = 2) -> GemmComparison:
    """Compare ``c`` with ``a @ b``, computed by products of halves.

    Args:
        a: (M, K) of f32; for large matrices compare some rows.
        b: (K, N) of f32.
        c: (M, N) of f32, the result of the kernel.
        how: how the kernel adds up products of halves.
        halves: number of halves of each number that the kernel multiplies.

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
        return NO_ELEMENTS
    product = a.astype(np.float64) @ b.astype(np.float64)
    given, bound = c.astype(np.float64), halves_bound(a, b, how, halves)
    return _compared((a, b), "elements", given - product, product, bound, given)


# ---------------------------------------------------------------- complex products


@launches
def compare_complex(
    a: Any,
    b: Any,
    d: Any,
    c: Any = None,
    *,
    alpha: complex = 1,
    beta: complex = 0,
    how: Accumulation | None = None,
    method: str = "4m",
    halves: int = 0,
) -> GemmComparison:
    """Compare ``d`` with ``alpha * a @ b + beta * c``.

    Args:
        a: (M, K) of complex numbers, or a pair of real arrays; already conjugated, if the kernel conjugates.
        b: (K, N), likewise.
        d: (M, N), likewise: the result of the kernel.
        c: (M, N), the addend before the launch, or None.
        alpha: a number, not 0.
        beta: a number.
        how: how the kernel adds up; default: one multiply-add at a time.
        method: the number of real products of the kernel, ``"4m"`` or ``"3m"``.
        halves: number of halves of 11 bits that it multiplies of each f32; 0: it multiplies the numbers.

    Raises:
        LaunchError: the shapes do not fit.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> a, b = rng.standard_normal((2, 64, 64, 2), np.float32).view(np.complex64)[..., 0]
        >>> compare_complex(a, b, a @ b).ok, compare_complex(a, b, a[:, 1:] @ b[1:]).ok
        (True, False)
        >>> compare_complex(a, b, a.conj() @ b).ok, compare_complex(a, b, 2j * (a @ b), alpha=2j).ok
        (False, True)
    """
    (a_re, a_im), (b_re, b_im), given = planes(a), planes(b), planes(d)
    if a_re.ndim != 2 or b_re.ndim != 2 or given[0].shape != (len(a_re), b_re.shape[1]):
        raise LaunchError(
            f"compare_complex: a {a_re.shape} @ b {b_re.shape} and d {given[0].shape} do not fit"
        )
    how = how or Accumulation.default(dtype(a_re.dtype))
    kind = dtype(given[0].dtype)
    if given[0].size == 0:
        return NO_ELEMENTS
    a_re, a_im, b_re, b_im = (inputs(part, how) for part in (a_re, a_im, b_re, b_im))
    pairs = (
        (_alternating(a_re, -a_im, 1), _alternating(b_re, b_im, 0)),
        (_alternating(a_re, a_im, 1), _alternating(b_im, b_re, 0)),
    )
    number = f64 if f64 in (kind, how.acc) else f32
    # A part adds two products for each place of K.
    of_parts = replace(how, period=how.period and 2 * how.period)
    made = [gemm_bound(left, right, of_parts, number) for left, right in pairs]
    if method == "3m":
        bounds = [*_of_three((a_re, a_im), (b_re, b_im), how, number)]
        made = [(high, low, bound) for (high, low, _), bound in zip(made, bounds, strict=True)]
    if halves:
        bounds = [halves_bound(left, right, of_parts, halves) for left, right in pairs]
        made = [(high, low, bound) for (high, low, _), bound in zip(made, bounds, strict=True)]
    product = [np.asarray(high, np.longdouble) + low for high, low, _ in made]
    added = [np.zeros_like(one) for one in product] if c is None else list(planes(c))
    # The roundings of two products and two sums of two, in both parts, and of the result, divided by alpha.
    sizes = [np.abs(re) + np.abs(im) for re, im in (product, added)]
    steps = 0.0 if alpha == 1 and c is None else 6 * number.unit_roundoff
    smallest = 2.0**-24 if kind.name == "f16" else float(np.finfo(number.numpy).tiny)
    whole = abs(alpha) * sizes[0] + abs(beta) * sizes[1]
    epilogue = (2 * (steps + kind.unit_roundoff) * whole + 4 * smallest) / abs(alpha)
    total = _complex(*given) - beta * _complex(*added)
    found = total / np.clongdouble(alpha)
    outcomes = []
    for at, part in enumerate((found.real, found.imag)):
        bound = np.asarray(made[at][2] + epilogue, np.float64)
        residual = np.asarray(part - product[at], np.float64)
        high = np.asarray(product[at], np.float64)
        what = f"{('real', 'imaginary')[at]} parts"
        outcomes.append(_compared(pairs[at], what, residual, high, bound, high + residual))
    return min(outcomes, key=lambda one: one.ok)


def _of_three(
    a: tuple[Array, Array], b: tuple[Array, Array], how: Accumulation, number: DType
) -> tuple[Array, Array]:
    """Return the absolute bounds of both parts for three products."""
    element = dtype(a[0].dtype)
    sums = [np.asarray(re + im, re.dtype) for re, im in (a, b)]
    pairs = (a[0], b[0]), (a[1], b[1]), (sums[0], sums[1])
    first, second, third = (gemm_bound(left, right, how, number, twice=False) for left, right in pairs)
    wide = [np.asarray(one, np.float64) ** 2 for one in sums]
    rounded = 2 * SPREAD * element.unit_roundoff * np.sqrt(wide[0] @ wide[1])
    sizes = np.abs(first[0]) + np.abs(second[0])
    unit = 2 * how.acc.unit_roundoff
    re = first[2] + second[2] + unit * sizes
    im = first[2] + second[2] + third[2] + rounded + unit * (sizes + np.abs(third[0]))
    return re, im


def _compared(
    pair: tuple[Array, Array], what: str, residual: Array, product: Array, bound: Array, given: Array
) -> GemmComparison:
    """Compare a real array with the product of a pair.

    Args:
        pair: the operands.
        what: a word for the elements.
        residual: the array minus the product.
        product: the reference.
        bound: the largest errors of a correct kernel.
        given: the array.
    """
    with np.errstate(all="ignore"):
        ratio = np.where(np.isfinite(residual), np.abs(residual) / bound, np.inf)
    wrong, (m, n) = int((ratio > 1).sum()), np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    reason, resolved = f"{wrong} of {ratio.size} {what} are beyond their bound" * (wrong > 0), 0.0
    if not wrong:
        reason, resolved = lost_terms(*pair, residual, product, bound)
    value, expected, off, limit = (float(x[m, n]) for x in (given, product, residual, bound))
    return GemmComparison(not reason, (int(m), int(n)), value, expected, abs(off), limit, reason, resolved)


def planes(given: Any) -> tuple[Array, Array]:
    """Return real and imaginary parts of an array of complex numbers, or of a pair of real arrays.

    Example:
        >>> re, im = planes(np.array([1 + 2j]))
        >>> re.tolist(), im.tolist()
        ([1.0], [2.0])
    """
    if isinstance(given, tuple | list):
        return given[0], given[1]
    if given.dtype.names:
        return given["re"], given["im"]
    return given.real, given.imag


def _alternating(one: Array, other: Array, axis: int) -> Array:
    """Interleave the columns, or rows, of two matrices."""
    both = np.stack([one, other], axis + 1)
    shape = [*one.shape]
    shape[axis] *= 2
    return both.reshape(shape)


def _complex(re: Array, im: Array) -> Array:
    return np.asarray(re, np.longdouble) + 1j * np.asarray(im, np.longdouble)
