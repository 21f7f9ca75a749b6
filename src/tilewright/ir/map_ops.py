"""Arrays with tensor maps in memory: bulk copies use a map in a row of a table."""

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
"""Size and alignment of a tensor map, in 64-bit integers."""


@dataclass(frozen=True)
class ByMap(Op):
    """The same tensor, for bulk copies that use the tensor map in ``table[row, column:]``.

    Args:
        source: a view of a buffer in global memory.
        table: an i64 tensor of two dimensions; the launcher has written the map there.
        row: the row of the table.
        column: the first column of the map.
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
        """Require a whole array, and a legal position of the tensor map."""
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
    """Let the role's first thread see the tensor map of ``source`` as it was when the kernel was launched.

    It must come before the role's first bulk copy with that map.
    """

    name = "acquire_map"
    traits = CONTROL
    roles: ClassVar = {"source": "uses"}
    source: Value

    def verify(self) -> Iterator[Violation]:
        """Require a tensor with a map in memory."""
        if self.source.tensor.map is None:
            text = f"the launch itself passes the tensor maps of {self.source.buffer}"
            yield self.violation("tensor map", text, "a view of what tw.hopper.by_map has made")
