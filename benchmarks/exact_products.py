"""Products of matrices of f64 as if they were computed with twice as many bits, by NumPy or PyTorch.

Each product is split into its rounding and what that lost, and so is each sum; what was lost is added up
beside (Dot2 of Ogita, Rump and Oishi, "Accurate sum and dot product", 2005, algorithm 5.3, with the splitting
of Dekker and Veltkamp). The result is off by one rounding in twice the bits and by ``K**2 * 2**-106`` of the
sum of sizes, where a plain product in f64 is off by up to ``K * 2**-53`` of it.
"""

from __future__ import annotations

from typing import Any

SPLITTER = 2.0**27 + 1
"""Numbers of f64 are split into a high half of 26 bits, and a low one."""


def halves(x: Any) -> tuple[Any, Any]:
    """Numbers as sums of two, the products of which are exact; their sizes are below 2**996."""
    scaled = x * SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """The high and the low part of ``a @ b``.

    Args:
        a: (M, K) of f64, an array or a tensor.
        b: (K, N), likewise.
    """
    (a_high, a_low), (b_high, b_low) = halves(a), halves(b)
    high = a[:, :1] * b[:1] * 0
    low = high
    for k in range(len(b)):
        column, row = slice(k, k + 1), slice(k, k + 1)
        product = a[:, column] * b[row]
        left, left_low, right, right_low = a_high[:, column], a_low[:, column], b_high[row], b_low[row]
        lost = ((left * right - product) + left * right_low + left_low * right) + left_low * right_low
        total = high + product
        back = total - high
        low = low + (((high - (total - back)) + (product - back)) + lost)
        high = total
    total = high + low
    return total, low - (total - high)


def off_by(made: Any, a: Any, b: Any, *, is_wide: bool) -> tuple[Any, Any]:
    """By how much a product is off, element by element, and the product.

    Args:
        made: (M, N) in f64: the product as it was computed.
        a: (M, K) of f64.
        b: (K, N) of f64.
        is_wide: whether these were given in f64, so that twice the bits are needed.
    """
    high, low = exact_product(a, b) if is_wide else (a @ b, 0.0)
    return (made - high) - low, high


def parts_of_product(a: tuple[Any, Any], b: tuple[Any, Any], join: Any) -> tuple[tuple[Any, Any], ...]:
    """The real products, twice as deep, that are the real and the imaginary parts of a complex one.

    Args:
        a: real and imaginary parts.
        b: likewise.
        join: ``numpy.concatenate`` or ``torch.cat``.
    """
    (a_re, a_im), (b_re, b_im) = a, b
    return (
        (join([a_re, -a_im], 1), join([b_re, b_im], 0)),
        (join([a_re, a_im], 1), join([b_im, b_re], 0)),
    )
