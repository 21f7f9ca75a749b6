"""How many products of i8 may be added up in i32 before a sum need not fit."""

from __future__ import annotations

from tilewright.dtypes import DType, i8, i32
from tilewright.errors import LaunchError

MOST_IN_I32 = 2**31 // 128**2 - 1
"""Products of two i8 of which every sum fits i32."""


def check_sums(op: str, element: DType, depth: int, kind: DType, *, changed: bool) -> None:
    """Sums that stay as they are wrap as NumPy's do; those with which something is done must fit.

    Args:
        op: what errors call the product.
        element: dtype of the operands.
        depth: how many products are added up.
        kind: dtype of the result.
        changed: whether something is done with sums that stay i32.

    Raises:
        LaunchError: more products of i8 than fit, whose sums are changed or become another dtype.

    Example:
        >>> check_sums("matmul", i8, 200_000, i32, changed=False)
        >>> check_sums("matmul", i8, MOST_IN_I32, i8, changed=True)
    """
    if element == i8 and depth > MOST_IN_I32 and (kind != i32 or changed):
        raise LaunchError(
            f"{op}: sums of {depth} products of i8 need not fit i32, in which they are added up; "
            f"nearest legal choice: operands of f16, or {MOST_IN_I32} products"
        )
