"""The operands of a product under a schedule: their tiles, and the order of K in which lanes hold elements.

A lane of ``mma.sync`` holds pairs that are not neighbours along K, so it would load packed elements byte by
byte.  But products may be added in any order of K.  If both operands permute K in the same way, one access
loads all elements of a lane.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd, prod

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.factors import Factor
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.stages import is_widened
from tilewright.threads.distribution import Distribution, Mode


@dataclass(frozen=True)
class OperandTile:
    """Facts of an operand on which the layout of its tiles in shared memory depends.

    Args:
        factor: the operand in the graph.
        side: 0 for operand A, 1 for operand B.
        rows: rows of the tile of one group.
        along_rows: whether the operand is contiguous along its rows.
        along_k: whether the operand is contiguous along K.
        boxes_along_rows: whether rows of 128 bytes in memory lie along its rows.
    """

    factor: Factor
    side: int
    rows: int
    along_rows: bool
    along_k: bool
    boxes_along_rows: bool

    @property
    def dtype(self) -> DType:
        """Dtype of the elements in memory."""
        return self.factor.dtype

    def kept(self, atom: MmaAtom) -> DType:
        """Dtype in shared memory, if the operand is not decoded on the way there."""
        is_wide = is_widened(atom, self.side, self.dtype, along_k=self.along_k)
        return self.factor.held if is_wide else self.dtype


@dataclass(frozen=True)
class OperandSide:
    """Operand A or B under a schedule, and the class of its array.

    Args:
        label: ``"A"`` or ``"B"``.
        factor: the operand in the graph.
        spec: the class of its array.
        rows: rows of the tile of one group.
        sharing: groups whose tiles are neighbours in one stage; 0: all groups take the same tile.
    """

    label: str
    factor: Factor
    spec: TensorSpec
    rows: int
    sharing: int

    @property
    def at(self) -> int:
        """0 for operand A, 1 for operand B."""
        return "AB".index(self.label)

    @property
    def dtype(self) -> DType:
        """Dtype of its elements in memory."""
        return self.factor.dtype

    @property
    def along_k(self) -> bool:
        """Whether the operand is contiguous along K."""
        return not self.along_rows and self.spec.unit_dim is not None

    @property
    def along_rows(self) -> bool:
        """Whether the operand is contiguous along M or N, not along K."""
        unit = self.spec.unit_dim
        return unit is not None and self.factor.part.at[unit] == self.factor.row

    @property
    def width(self) -> int:
        """Elements of a row of 128 bytes."""
        return ROW_BYTES // self.dtype.bytes

    @property
    def tile(self) -> OperandTile:
        """The operand's tile."""
        return OperandTile(
            self.factor, self.at, self.rows, self.along_rows, self.along_k, boxes_along_rows=self.along_rows
        )


def width(spec: TensorSpec) -> int:
    """Bytes of the widest access to which the beginning of every row of an array is aligned."""
    size = spec.dtype.bytes
    if spec.unit_dim is None:
        return size
    steps = [divisor for dim, divisor in enumerate(spec.stride_divisors) if dim != spec.unit_dim]
    return gcd(spec.align, *(divisor // spec.dtype.per_byte * size for divisor in steps))


# ---------------------------------------------------------------- runs along K


RUNS = (16, 8)
"""Numbers of neighbours along K that a lane may take, the best first; it holds them for both operands."""

APART = 4
"""Distance along K of two 4-bit numbers that one logic instruction converts into the halves of a word."""

GAP_BYTES = 32
"""Bytes of the gap after a row that fills whole lines of banks: four rows of four lanes read other banks."""


def row_gap(dtype: DType, depth: int) -> int:
    """Unused elements after a row of packed elements in shared memory.

    Args:
        dtype: dtype of the elements.
        depth: depth of a tile.

    Example:
        >>> from tilewright.dtypes import i4
        >>> row_gap(i4, 256), row_gap(i4, 128)
        (64, 64)
    """
    return GAP_BYTES * dtype.per_byte if dtype.bytes_of(depth) % (2 * GAP_BYTES) == 0 else 0


def lane_run(atom: MmaAtom, block_k: int, groups: Iterable[int]) -> int:
    """Number of neighbours along K that a lane multiplies; 0: as the instruction orders them.

    Two sets of registers take turns at the parts of a tile, so that their number must be even.  A part must
    lie within one group of neighbours that share a scale.

    Args:
        atom: the instruction.
        block_k: depth of a tile.
        groups: for each side array the number of neighbours along K that share an element.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> lane_run(MMA_F16, 128, [128]), lane_run(MMA_F16, 128, [32]), lane_run(MMA_F16, 32, [])
        (16, 8, 0)
    """
    if atom.instruction != "mma.sync":
        return 0
    lanes, known = lanes_along_k(atom.a), tuple(groups)
    for run in RUNS:
        depth = lanes * run
        whole = depth % atom.shape[2] == 0 and block_k % (2 * depth) == 0
        if whole and all(group % depth == 0 for group in known):
            return run
    return 0


def common_run(atom: MmaAtom, block_k: int, operands: Sequence[OperandTile]) -> int:
    """Number of neighbours along K that a lane multiplies if some operands are packed; else 0.

    Args:
        atom: the instruction.
        block_k: depth of a tile.
        operands: all operands.
    """
    packed = [one for one in operands if one.dtype.is_packed]
    if not packed or not all(one.along_k for one in operands):
        return 0
    if any(not (one.factor.is_plain or one.dtype.is_packed) for one in operands):
        return 0  # a converted operand waits in registers in the order of memory
    if any(is_widened(atom, one.side, one.dtype, along_k=True) for one in packed):
        return 0
    return lane_run(atom, block_k, [group for one in operands for group in one.factor.runs])


def lanes_along_k(spread: Distribution) -> int:
    """Number of lanes that share a row of an operand along K."""
    return prod(mode.extent for mode in spread.threads if mode.dim == 1)


def in_runs(spread: Distribution, run: int, apart: int = 1) -> Distribution:
    """The map of an operand whose lanes have ``run`` neighbours along K, in the registers of the instruction.

    Args:
        spread: the instruction's map of the operand.
        run: neighbours of a lane, a power of 2.
        apart: distance along K of the two numbers of a register, a power of 2 below ``run``.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> print(in_runs(MMA_F16.b, 4))
        threads (4 along 1 by 4, 8 along 0 by 1), values (4 along 1 by 1)
        >>> print(in_runs(MMA_F16.b, 4, 2))
        threads (4 along 1 by 4, 8 along 0 by 1), values (2 along 1 by 2, 2 along 1 by 1)
    """
    threads, step = [], run
    for mode in spread.threads:
        threads.append(Mode(mode.extent, 1, step) if mode.dim == 1 else mode)
        step *= mode.extent if mode.dim == 1 else 1
    steps = iter((apart, *(2**bit for bit in range(run.bit_length() - 1) if 2**bit != apart)))
    values: list[Mode] = []
    for mode in spread.values:
        along = mode.dim == 1
        halved = range(mode.extent.bit_length() - 1)
        values += [Mode(2, 1, next(steps)) for _ in halved] if along else [mode]
    return Distribution(spread.shape, tuple(threads), tuple(values))


def along_k_first(spread: Distribution) -> Distribution:
    """The same map with a lane's neighbours along K in neighbouring registers, as they are loaded."""
    along = sorted((mode for mode in spread.values if mode.dim == 1), key=lambda mode: mode.step)
    others = (mode for mode in spread.values if mode.dim != 1)
    return Distribution(spread.shape, spread.threads, (*along, *others))
