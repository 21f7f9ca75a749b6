"""What every kernel of attention is given."""

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
"""Queries, keys, values, results and logarithms; ``abs(scale) * log2(e)``; the mask's first diagonal."""
