"""The operands of a product under a schedule: their tiles, and the order of K in which a lane takes them.

The order of K does not matter to a sum.  A lane of ``mma.sync`` holds pairs along K that lie apart, so that
packed numbers would be loaded byte by byte.  If both operands are taken along K in another order, each lane
has as many neighbours as one access brings.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.mma import MmaAtom
from tilewright.lang.specs import TensorSpec
from tilewright.schedule.factors import Factor
from tilewright.schedule.needs import ROW_BYTES
from tilewright.schedule.stages import is_widened
from tilewright.threads.distribution import Distribution, Mode


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


# ---------------------------------------------------------------- runs along K


RUNS = (16, 8)
"""How many neighbours a lane has, the best first; it holds them in registers of both operands at once."""

APART = 4
"""How far numbers of 4 bits lie from each other of which a logical operation makes two halves of a word."""

ACCESS_BYTES = 16
"""The widest access of a thread."""

GAP_BYTES = 32
"""Behind a row of whole lines of the banks, so that four rows of four lanes read different banks."""


def row_gap(dtype: DType, depth: int) -> int:
    """Elements behind a row of packed elements in shared memory in which nothing lies.

    Args:
        dtype: of the elements.
        depth: of a tile.

    Example:
        >>> from tilewright.dtypes import i4
        >>> row_gap(i4, 256), row_gap(i4, 128)
        (64, 64)
    """
    return GAP_BYTES * dtype.per_byte if dtype.bytes_of(depth) % (2 * GAP_BYTES) == 0 else 0


def lane_run(atom: MmaAtom, block_k: int, groups: Iterable[int]) -> int:
    """How many neighbours along K a lane multiplies; 0: as the instruction has them.

    Two sets of registers take turns at the parts of a tile, whose number is even, and a part lies within one
    group of neighbours that have a scale in common.

    Args:
        atom: the instruction.
        block_k: how deep a tile is.
        groups: how many neighbours along K have elements of other arrays in common.

    Example:
        >>> from tilewright.targets.atoms import MMA_F16
        >>> lane_run(MMA_F16, 128, [128]), lane_run(MMA_F16, 128, [32]), lane_run(MMA_F16, 32, [])
        (16, 8, 0)
    """
    if atom.instruction != "mma.sync":
        return 0
    lanes = lanes_along_k(atom.a)
    known = tuple(groups)

    def fits(run: int) -> bool:
        depth = lanes * run
        whole = depth % atom.shape[2] == 0 and block_k % (2 * depth) == 0
        return whole and all(group % depth == 0 for group in known)

    return next((run for run in RUNS if fits(run)), 0)


def common_run(atom: MmaAtom, block_k: int, operands: Sequence[OperandTile]) -> int:
    """How many neighbours along K a lane multiplies of operands of which some are packed; else 0.

    Args:
        atom: the instruction.
        block_k: how deep a tile is.
        operands: all of them.
    """
    packed = [one for one in operands if one.dtype.is_packed]
    if not packed or not all(one.along_k for one in operands):
        return 0
    if any(one.is_decoded and not one.dtype.is_packed for one in operands):
        return 0  # which waits in registers, as it lies in memory
    if any(is_widened(atom, one.side, one.dtype, along_k=True) for one in packed):
        return 0
    return lane_run(atom, block_k, [group for one in operands for group in one.runs])


def lanes_along_k(spread: Distribution) -> int:
    """Lanes that share the k of an operand.

    Args:
        spread: the map of an operand.
    """
    count = 1
    for mode in spread.threads:
        count *= mode.extent if mode.dim == 1 else 1
    return count


def in_runs(spread: Distribution, run: int, apart: int = 1) -> Distribution:
    """The map of an operand whose lanes have so many neighbours along K, in the registers of the instruction.

    Args:
        spread: the map of the operand as the instruction has it.
        run: how many, a power of 2.
        apart: how far the two numbers of a register lie from each other along K, a power of 2 below ``run``.

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
    """The same map with a lane's neighbours along K in registers that follow each other, as they are loaded.

    Args:
        spread: the map of an operand.
    """
    along = sorted((mode for mode in spread.values if mode.dim == 1), key=lambda mode: mode.step)
    others = (mode for mode in spread.values if mode.dim != 1)
    return Distribution(spread.shape, spread.threads, (*along, *others))
