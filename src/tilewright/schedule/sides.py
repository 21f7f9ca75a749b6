"""The operands of a product under a schedule: the tile of a group of warps, and how it lies in memory."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.factors import Factor
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.stages import is_widened


@dataclass(frozen=True)
class OperandTile:
    """An operand, as far as the layout of its tiles in shared memory depends on it.

    Args:
        name: of the operand.
        side: 0 of operand A, 1 of operand B.
        rows: of the tile of one group.
        dtype: of its elements in memory.
        held: of its elements in registers, before they are decoded.
        along_rows: whether neighbours along its rows are neighbours in memory.
        along_k: whether neighbours along K are neighbours in memory.
        boxes_along_rows: whether rows of 128 bytes in memory lie along its rows.
        is_decoded: whether it is decoded inside the main loop.
        is_computed: whether more is done with its elements than to convert them.
        runs: for each side array the neighbours along K that share an element.
    """

    name: str
    side: int
    rows: int
    dtype: DType
    held: DType
    along_rows: bool
    along_k: bool
    boxes_along_rows: bool
    is_decoded: bool
    is_computed: bool
    runs: tuple[int, ...] = ()

    def kept(self, atom: MmaAtom) -> DType:
        """Dtype in shared memory, if it is not decoded on the way there."""
        return self.held if is_widened(atom, self.side, self.dtype, along_k=self.along_k) else self.dtype


@dataclass(frozen=True)
class OperandSide:
    """Operand A or B under a schedule, and the class of its array.

    Args:
        label: ``"A"`` or ``"B"``.
        factor: the operand in the graph.
        spec: the class of its array.
        rows: of the tile of one group.
        sharing: groups whose tiles lie in one stage side by side; 0: all groups take the same tile.
    """

    label: str
    factor: Factor
    spec: TensorSpec
    rows: int
    sharing: int

    @property
    def at(self) -> int:
        """0 of operand A, 1 of operand B."""
        return "AB".index(self.label)

    @property
    def dtype(self) -> DType:
        """Dtype of its elements in memory."""
        return self.factor.dtype

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

    @property
    def tile(self) -> OperandTile:
        """The operand's tile."""
        factor = self.factor
        return OperandTile(
            factor.name,
            self.at,
            self.rows,
            self.dtype,
            factor.held,
            self.along_rows,
            self.along_k,
            self.along_rows,
            not factor.is_plain,
            not (factor.is_plain or factor.is_converted),
            tuple(factor.runs),
        )
