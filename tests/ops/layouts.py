"""Extents and strides of arrays, for posing problems."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ops.problem import MatrixBatch
from tilewright.runtime.arrays import ArrayInfo


def layouts(infos: Mapping[str, ArrayInfo]) -> dict[str, MatrixBatch]:
    """Return extents and strides of described arrays, by name."""
    return {name: MatrixBatch(info.shape, info.strides) for name, info in infos.items()}
