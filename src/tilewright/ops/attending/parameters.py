"""Parameters of all kernels of attention."""

from __future__ import annotations

from typing import Any

from tilewright.dtypes import f32

PARAMETERS: dict[str, Any] = {
    "Q": "B H M D",
    "K": "B G N D",
    "V": "B G N E",
    "O": "B H M E",
    "L": "B H M ONE",
    "exponent": f32,
    "diagonal": int,
}
"""Queries, keys, values, results and logarithms; `BySoftmax.of`'s exponent; the mask's first diagonal."""

CHAINED: dict[str, Any] = {"A": "B H M K", "B": "B G N K", "C": "B G N P", "D": "B H M P"}
"""Parameters of a chain of two products: its factors, with B transposed as keys are, and the result."""
