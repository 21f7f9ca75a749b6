"""Products of f64 matrices as accurate as with twice as many bits, by NumPy or PyTorch.

Each product and each sum is split into its rounded value and its rounding error; the errors are added up
separately (Dot2 of Ogita, Rump and Oishi, "Accurate sum and dot product", 2005, algorithm 5.3, with the
splitting of Dekker and Veltkamp). The error is one rounding in twice the bits, plus ``K**2 * 2**-106`` of the
sum of magnitudes. A plain product in f64 has an error of up to ``K * 2**-53`` of it.
"""

from __future__ import annotations

from typing import Any

SPLITTER = 2.0**27 + 1
"""Factor that splits f64 numbers into a high half of 26 bits and a low one."""


def halves(x: Any) -> tuple[Any, Any]:
    """Split numbers below 2**996 into two halves, whose products are exact."""
    scaled = x * SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def exact_product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the high and the low part of ``a @ b``.

    Args:
        a: f64 array or tensor (M, K).
        b: f64 array or tensor (K, N).
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
    """Return the error of each element of a product, and the exact product.

    Args:
        made: the computed product (M, N), in f64.
        a: operand (M, K), in f64.
        b: operand (K, N), in f64.
        is_wide: whether the original operands were f64, so that twice the bits are needed.
    """
    high, low = exact_product(a, b) if is_wide else (a @ b, 0.0)
    return (made - high) - low, high


def parts_of_product(a: tuple[Any, Any], b: tuple[Any, Any], join: Any) -> tuple[tuple[Any, Any], ...]:
    """Return the operands of two real products of twice the depth: the parts of a complex product.

    Args:
        a: real and imaginary parts of A.
        b: real and imaginary parts of B.
        join: ``numpy.concatenate`` or ``torch.cat``.
    """
    (a_re, a_im), (b_re, b_im) = a, b
    return (
        (join([a_re, -a_im], 1), join([b_re, b_im], 0)),
        (join([a_re, a_im], 1), join([b_im, b_re], 0)),
    )
