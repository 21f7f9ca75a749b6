"""Arrays whose tensor maps lie in memory: bulk copies walk boxes of them by a map in a row of a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.errors import Violation
from tilewright.ir.op import Op
from tilewright.ir.traits import CONTROL, NAMES
from tilewright.ir.types import MapInMemory, Memory, Type, Value
from tilewright.symbolic.nodes import Int
from tilewright.symbolic.ranges import divisor

MAP_WORDS, MAP_UNIT = 16, 8
"""Integers of 64 bits that a tensor map takes, and of how many its place is a multiple."""


@dataclass(frozen=True)
class ByMap(Op):
    """The same tensor, an array of which bulk copies move boxes by the tensor map in ``table[row, column:]``.

    Args:
        source: a view of a buffer in global memory.
        table: i64, of two dimensions; the launcher has written the map there.
        row: of the table.
        column: where the map begins.
    """

    name = "by_map"
    traits = NAMES
    roles: ClassVar = {"result": "defines", "source": "uses", "table": "uses"}
    result: Value
    source: Value
    table: Value
    row: Int
    column: int

    @staticmethod
    def infer(source: Value, table: Value, row: Int, column: int) -> Type:
        """Type of the result."""
        array = replace(source.tensor.view, index=None)
        return replace(source.tensor, view=array, map=MapInMemory(table, row, column, array))

    def verify(self) -> Iterator[Violation]:
        """A whole array, and integers where a tensor map may lie."""
        kind, source = self.table.tensor, self.source.tensor
        if kind.dtype.name != "i64" or kind.view.rank != 2 or kind.memory is not Memory.GLOBAL:
            text = f"tensor maps lie in rows of {self.table}, of rank {kind.view.rank} and {kind.dtype}"
            yield self.violation("tensor map", text, "i64 in global memory, of two dimensions")
        elif divisor(kind.view.at((self.row, self.column))) % MAP_UNIT:
            text = (
                f"the tensor map at [{self.row}, {self.column}] of {self.table} begins at no known multiple"
            )
            nearest = f"columns, and rows of the table, that are multiples of {MAP_UNIT}"
            yield self.violation("tensor map", f"{text} of {MAP_UNIT} integers, 64 bytes", nearest)
        if source.memory is not Memory.GLOBAL or source.indices or source.distribution is not None:
            text = f"{self.source} is no array in global memory, of which there are tensor maps"
            yield self.violation("tensor map", text, str(self.source.buffer))


@dataclass(frozen=True)
class AcquireMap(Op):
    """The role's first thread sees the tensor map of ``source`` as it was when the kernel was launched.

    It comes before the first of the role's bulk copies by that map.
    """

    name = "acquire_map"
    traits = CONTROL
    roles: ClassVar = {"source": "uses"}
    source: Value

    def verify(self) -> Iterator[Violation]:
        """A tensor with a map in memory."""
        if self.source.tensor.map is None:
            text = f"the launch itself passes the tensor maps of {self.source.buffer}"
            yield self.violation("tensor map", text, "a view of what tw.hopper.by_map has made")
