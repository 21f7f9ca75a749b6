"""Extents and strides of arrays, for posing problems."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ops.problem import Matrices
from tilewright.runtime.arrays import ArrayInfo


def layouts(infos: Mapping[str, ArrayInfo]) -> dict[str, Matrices]:
    """Return extents and strides of described arrays, by name."""
    return {name: Matrices(info.shape, info.strides) for name, info in infos.items()}
