"""Tensor maps that lie in memory: which a kernel wants of its launcher, and how the reference spells them.

A driver encodes a tensor map in its own way.  For the reference, which has no driver, a map is written in
plain numbers: where the array begins in its buffer, its extents, its strides, and what a box reaches over, in
elements and in the order of its dimensions, with zeros behind.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tilewright.ir.bulk_legality import by_maps, known_box
from tilewright.ir.kernel import Kernel, TensorMap
from tilewright.ir.map_ops import MAP_WORDS


class WantedMap(NamedTuple):
    """A map that lies in every row of a table that bulk copies take it from.

    Args:
        table: the kernel's parameter.
        column: where it begins in a row.
        form: what it must say of boxes; its tensor is the buffer that the array is part of.
    """

    table: str
    column: int
    form: TensorMap


def wanted_maps(kernel: Kernel) -> tuple[WantedMap, ...]:
    """The maps that the launcher writes into tables before a kernel that breaks no rule is launched."""
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
    """The map of an array for the reference, which has no driver to encode it.

    Example:
        >>> in_plain_numbers(3, (8, 40), (64, 1), (8, 32))
        (3, 8, 40, 64, 1, 8, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    """
    words = (start, *extents, *strides, *box)
    return words + (0,) * (MAP_WORDS - len(words))
