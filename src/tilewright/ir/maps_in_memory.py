"""Tensor maps in memory: the maps that the launcher must write, and their encoding for the reference.

A driver encodes a tensor map in its own way.  The reference has no driver and uses plain numbers: the offset
of the array in its buffer, its extents, its strides, and the spans of a box, in elements and in the order of
the dimensions, followed by zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.ir.bulk_legality import by_maps, known_box
from tilewright.ir.kernel import Kernel, TensorMap
from tilewright.ir.map_ops import MAP_WORDS


class WantedMap(NamedTuple):
    """A map in every row of a table, for bulk copies.

    Args:
        table: the kernel's parameter.
        column: the first column of the map.
        form: the form of the boxes; its tensor is the buffer that contains the array.
    """

    table: str
    column: int
    form: TensorMap


def wanted_maps(kernel: Kernel) -> tuple[WantedMap, ...]:
    """Return the maps that the launcher writes into tables before it launches a legal kernel."""
    found: dict[tuple[str, int], WantedMap] = {}
    for op in by_maps(kernel.walk()):
        source = op.ends[0]
        assert source.tensor.map is not None, "by_maps gives no other copies"
        name, column = source.tensor.map.table.buffer.name, source.tensor.map.column
        box = known_box(op)
        of = source.buffer.name
        form = TensorMap(f"{of}_map", of, box.spans, source.dtype, box.order, box.steps, box.is_swizzled)
        found.setdefault((name, column), WantedMap(name, column, form))
    return tuple(found.values())


def in_plain_numbers(
    start: int, extents: Sequence[int], strides: Sequence[int], box: Sequence[int]
) -> tuple[int, ...]:
    """Return the map of an array in the encoding of the reference.

    Example:
        >>> in_plain_numbers(3, (8, 40), (64, 1), (8, 32))
        (3, 8, 40, 64, 1, 8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    """
    words = (start, *extents, *strides, *box)
    return words + (0,) * (MAP_WORDS - len(words))
