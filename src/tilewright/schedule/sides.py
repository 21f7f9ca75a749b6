"""The operands of a product as a schedule sees them: rows of a group of warps, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.factors import Factor
from tilewright.schedule.stages import ROW_BYTES, is_widened


@dataclass(frozen=True)
class Side:
    """Operand A or B under a schedule.

    Args:
        label: ``"A"`` or ``"B"``.
        factor: what the graph says of it.
        spec: the class of its array.
        rows: of the tile of one group.
        sharing: groups whose tiles lie in one stage side by side; 0: all groups take the same tile.
        atom: the instruction that multiplies it.
    """

    label: str
    factor: Factor
    spec: TensorSpec
    rows: int
    sharing: int
    atom: MmaAtom

    @property
    def at(self) -> int:
        """0 of operand A, 1 of operand B."""
        return "AB".index(self.label)

    @property
    def dtype(self) -> DType:
        """Of its elements in memory."""
        return self.factor.dtype

    @property
    def kept(self) -> DType:
        """Of its elements in shared memory."""
        widened = is_widened(self.atom, self.at, self.dtype, along_k=self.along_k)
        return self.factor.held if widened else self.dtype

    @property
    def along_k(self) -> bool:
        """Whether neighbours along K are neighbours in memory."""
        return not self.along_rows and self.spec.unit_dim is not None

    @property
    def along_rows(self) -> bool:
        """Whether neighbours along M or N, not along K, are neighbours in memory."""
        unit = self.spec.unit_dim
        return unit is not None and self.factor.part.at[unit] == self.factor.row

    @property
    def width(self) -> int:
        """Elements of a row of 128 bytes."""
        return ROW_BYTES // self.dtype.bytes
