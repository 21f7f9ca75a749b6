"""Is this array the complex product?  The bound of `checking.compare`, for real and for imaginary parts.

With ``A = Ar + i Ai`` and ``B = Br + i Bi``, each part of ``A B`` is one real product twice as deep: the real
parts are ``[Ar, -Ai] [Br; Bi]``, the imaginary parts ``[Ar, Ai] [Bi; Br]``, the two products of each k side
by side.  Of ``D = alpha A B + beta C`` what remains when ``beta C`` is taken away and ``alpha`` divided out
is compared with them, so that lost terms are found in the same way; the roundings of this epilogue widen the
bound.

Three products (``method="3m"``) have a bound of their own: real parts are off by what ``Ar Br`` and ``Ai Bi``
are, imaginary parts by what both of these and ``(Ar + Ai) (Br + Bi)`` are, whose factors were rounded to the
dtype besides: independently, at most `SPREAD` times ``2 u sqrt(sum ((Ar + Ai) (Br + Bi))^2)``.  It does not
shrink with a part of the result that is smaller than these products.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.calls import launches
from tilewright.checking.arrays import Array
from tilewright.checking.compare import (
    SPREAD,
    Accumulation,
    Comparison,
    gemm_bound,
    inputs,
    lost_terms,
)
from tilewright.checking.halves import halves_bound
from tilewright.dtypes import DType, dtype, f32, f64
from tilewright.errors import LaunchError


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
) -> Comparison:
    """Whether ``d = alpha * a @ b + beta * c``.

    Args:
        a: (M, K) of complex numbers, or a pair of real arrays; conjugated, where that is what is multiplied.
        b: (K, N), likewise.
        d: (M, N), likewise: what a kernel computed.
        c: (M, N), what was added, as it was before; None: nothing.
        alpha: a number, not 0.
        beta: a number.
        how: how the kernel adds up; default: one multiply-add at a time.
        method: by how many real products it does, ``"4m"`` or ``"3m"``.
        halves: of 11 bits that it multiplies of each number of f32, see `tilewright.checking.halves`; 0: it
            multiplies the numbers as they are.

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
        return Comparison(True, (0, 0), 0.0, 0.0, 0.0, 0.0, "", 1.0)
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
    epilogue = _epilogue_bound(product, added, (alpha, beta), number, kind, is_plain=alpha == 1 and c is None)
    total = _complex(*given) - beta * _complex(*added)
    found = total / np.clongdouble(alpha)
    outcomes = []
    for at, part in enumerate((found.real, found.imag)):
        bound = np.asarray(made[at][2] + epilogue, np.float64)
        residual = np.asarray(part - product[at], np.float64)
        high = np.asarray(product[at], np.float64)
        outcomes.append(_compared(pairs[at], ("real", "imaginary")[at], residual, high, bound))
    return min(outcomes, key=lambda one: one.ok)


def _of_three(
    a: tuple[Array, Array], b: tuple[Array, Array], how: Accumulation, number: DType
) -> tuple[Array, Array]:
    """The bounds of both parts where three products are added up, in absolute terms."""
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
    pair: tuple[Array, Array], which: str, residual: Array, product: Array, bound: Array
) -> Comparison:
    """One of both parts."""
    with np.errstate(all="ignore"):
        ratio = np.where(np.isfinite(residual), np.abs(residual) / bound, np.inf)
    wrong, (m, n) = int((ratio > 1).sum()), np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    reason, resolved = f"{wrong} of {ratio.size} {which} parts are beyond their bound" * (wrong > 0), 0.0
    if not wrong:
        reason, resolved = lost_terms(*pair, residual, product, bound)
    expected, off, limit = (float(x[m, n]) for x in (product, residual, bound))
    at = (int(m), int(n))
    return Comparison(not reason, at, expected + off, expected, abs(off), limit, reason, resolved)


def _epilogue_bound(
    product: list[Array],
    added: list[Array],
    factors: tuple[complex, complex],
    number: DType,
    kind: DType,
    *,
    is_plain: bool,
) -> Array | float:
    """How far off ``alpha * sums + beta * c`` may be, its result rounded, divided by ``alpha``."""
    sizes = [np.abs(product[0]) + np.abs(product[1]), np.abs(added[0]) + np.abs(added[1])]
    whole = abs(factors[0]) * sizes[0] + abs(factors[1]) * sizes[1]
    # Two products, and two sums of two, of numbers that were rounded themselves; both parts.
    steps = 0.0 if is_plain else 6 * number.unit_roundoff
    smallest = float(np.finfo(np.float32).tiny if number == f32 else np.finfo(np.float64).tiny)
    narrow = 2.0**-24 if kind.name == "f16" else smallest
    bound: Array = (2 * (steps + kind.unit_roundoff) * whole + 4 * narrow) / abs(factors[0])
    return bound


def planes(given: Any) -> tuple[Array, Array]:
    """Real and imaginary parts of an array of complex numbers, or of a pair of real arrays.

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
    """Columns, or rows, of two matrices in turns."""
    both = np.stack([one, other], axis + 1)
    shape = [*one.shape]
    shape[axis] *= 2
    return both.reshape(shape)


def _complex(re: Array, im: Array) -> Array:
    return np.asarray(re, np.longdouble) + 1j * np.asarray(im, np.longdouble)
