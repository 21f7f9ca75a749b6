"""Boxes of a tensor that begin anywhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def window(tensor: Any, shape: Sequence[int], at: Sequence[Any]) -> Any:
    """Return the box of ``shape`` whose first element is ``at``; elements outside of the tensor read as 0."""
    for dim, (side, start) in enumerate(zip(shape, at, strict=True)):
        tensor = tensor.embed(dim, (side,), (1,), start * -1)
    return tensor
