"""A model of how long a turn of a main loop takes on an AMD multiprocessor, in clocks, from its listing.

Nothing of it was measured.  It counts what a block's warps ask of each part of a multiprocessor in one turn,
and divides by what that part does in one clock:

- *matrix*: the operations of the tile, at the matrix units' rate in the architecture's record.
- *vector*: vector instructions of all warps.  A SIMD takes one clock for one of 32 lanes on gfx11 and gfx12,
  and four for one of 64 lanes on gfx9; one that does two things (``v_dual_…``) counts once, and so does one
  that would take longer (roots, exponentials, f64), of which main loops have none.
- *other*: all other instructions, of which a SIMD takes as many, beside vector instructions of another warp.
- *shared*: passes over the banks of LDS, one in a clock, as counted when the listing was executed; without
  that, as many as the bytes need.
- *memory*: bytes of A and B that come from memory, at the bandwidth of the board.  One block runs on each
  multiprocessor; those of a band of rows of tiles share what they have in common by the caches, which
  have it in time.

On gfx11 and gfx12 the vector unit executes matrix instructions too, so that both add up; on gfx9 they go on
beside each other.  Barriers cut a turn into phases.  A block that is alone on its multiprocessor goes through
them one by one, each as long as its slowest part; where other blocks fill the gaps, a turn takes as long as
its slowest part in all.  Groups of warps that take turns are each in another phase.  Waits for memory,
latencies, clocks below the highest, and what stands before and behind the loop are left out: the shares of
the peak are upper bounds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tilewright.arch import Arch, Rates
from tilewright.errors import LaunchError
from tilewright.inspect.isa.execution import Conflicts
from tilewright.inspect.isa.instructions import IsaKind, IsaLine
from tilewright.inspect.isa.reading import Isa

MATRIX_CORES = "mfma"
"""The feature of machines whose matrix instructions run at the same time as vector instructions."""

IN_LDS = (IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE)


@dataclass(frozen=True)
class Turn:
    """What a block does in one turn of its main loop.

    Args:
        tile: extents (m, n, k) of the product.
        multiplied: name of the dtype that is multiplied.
        bytes: of an element of A and of B in memory.
        warps: of the block.
        band: rows of tiles that follow each other column by column.
        groups: of the block's warps that take turns, each one phase behind the one before.
    """

    tile: tuple[int, int, int]
    multiplied: str
    bytes: tuple[int, int]
    warps: int
    band: int = 8
    groups: int = 1


@dataclass(frozen=True)
class Phase:
    """Clocks of the parts of a multiprocessor between two barriers.

    Args:
        matrix: of the matrix units.
        vector: of vector instructions.
        other: of all other instructions.
        shared: of LDS.
        beside: whether matrix and vector instructions go on beside each other.
    """

    matrix: float
    vector: float
    other: float
    shared: float
    beside: bool

    @property
    def clocks(self) -> float:
        """Of the slowest part."""
        units = max(self.matrix, self.vector) if self.beside else self.matrix + self.vector
        return max(units, self.other, self.shared)

    @staticmethod
    def together(phases: Sequence[Phase], share: float = 1.0) -> Phase:
        """A share of each of some phases, at once.

        Args:
            phases: one or more.
            share: of the warps that each has.
        """
        names = ("matrix", "vector", "other", "shared")
        total = {name: share * sum(getattr(one, name) for one in phases) for name in names}
        return Phase(**total, beside=phases[0].beside)


@dataclass(frozen=True)
class Cost:
    """What a turn takes.

    Args:
        phases: between barriers, of all warps.
        memory: clocks in which A and B come from memory.
        groups: of warps that take turns.
    """

    phases: tuple[Phase, ...]
    memory: float
    groups: int = 1

    @property
    def whole(self) -> Phase:
        """The turn as if there were no barriers."""
        return Phase.together(self.phases)

    @property
    def overlapped(self) -> float:
        """Clocks of a turn where other blocks fill the gaps."""
        return max(self.whole.clocks, self.memory)

    @property
    def alone(self) -> float:
        """Clocks of a turn of a block that is alone on its multiprocessor."""
        around = self.phases * 2
        each = [
            Phase.together(around[at : at + self.groups], 1 / self.groups) for at in range(len(self.phases))
        ]
        return max(sum(one.clocks for one in each), self.memory)

    @property
    def shares(self) -> tuple[float, float]:
        """Shares of the matrix units' peak: alone, and overlapped."""
        matrix = self.whole.matrix
        return matrix / self.alone, matrix / self.overlapped


def cost_of(isa: Isa, turn: Turn, conflicts: Mapping[int, Conflicts] | None = None) -> Cost:
    """What a turn of a kernel's main loop takes by the model above.

    Args:
        isa: the kernel's machine code.
        turn: what a block does in it.
        conflicts: by the line of the listing, how accesses of LDS met in banks.

    Raises:
        LaunchError: the kernel has no main loop, or the rates of the architecture are not known.
    """
    arch = isa.arch
    if arch.rates is None or turn.multiplied not in arch.rates.tensor_flops:
        known = ", ".join(arch.rates.tensor_flops) if arch.rates else "none"
        raise LaunchError(f"no rate of {turn.multiplied} is known for {arch.name}; known: {known}")
    m, n, k = turn.tile
    matrix = 2 * m * n * k / arch.rates.tensor_flops[turn.multiplied]
    products = isa.main.mix[IsaKind.MATRIX]
    phases = tuple(
        _phase(lines, arch, arch.rates, turn, matrix / products, conflicts or {})
        for lines in _between_barriers(isa.main.turn)
    )
    return Cost(phases, _memory(arch.rates, turn), turn.groups)


def _between_barriers(lines: Iterable[IsaLine]) -> list[list[IsaLine]]:
    """The instructions of a turn in parts; what follows the last barrier is one with what begins the turn."""
    parts: list[list[IsaLine]] = [[]]
    for line in lines:
        parts[-1].append(line)
        if line.kind is IsaKind.BARRIER:
            parts.append([])
    if len(parts) > 1:
        parts[0] = parts.pop() + parts[0]
    return parts


def _phase(
    lines: list[IsaLine],
    arch: Arch,
    rates: Rates,
    turn: Turn,
    product: float,
    conflicts: Mapping[int, Conflicts],
) -> Phase:
    """What some instructions of all warps take.

    Args:
        lines: the instructions.
        arch: the architecture.
        rates: its rates.
        turn: what the block does.
        product: clocks of one matrix instruction of all warps.
        conflicts: how accesses met in banks.
    """
    count = {kind: sum(line.kind is kind for line in lines) for kind in (IsaKind.MATRIX, IsaKind.VECTOR)}
    each = arch.vector_clocks * turn.warps / arch.simds
    other = len(lines) - sum(count.values())
    line_bytes = arch.banks * arch.bank_bytes
    passes = sum(_passes(line, arch, conflicts) for line in lines if line.kind in IN_LDS)
    return Phase(
        matrix=count[IsaKind.MATRIX] * product,
        vector=count[IsaKind.VECTOR] * each,
        other=other * each,
        shared=passes * turn.warps * line_bytes / rates.shared_bytes,
        beside=MATRIX_CORES in arch.features,
    )


def _passes(line: IsaLine, arch: Arch, conflicts: Mapping[int, Conflicts]) -> float:
    """Passes over the banks of one warp's access, or of both of an instruction with two."""
    if (met := conflicts.get(line.line)) is not None and met.accesses:
        return line.accesses * met.passes / met.accesses
    return line.accesses * max(arch.lanes * line.bytes / (arch.banks * arch.bank_bytes), 1)


def _memory(rates: Rates, turn: Turn) -> float:
    """Clocks in which the tiles of all multiprocessors come from memory, each once."""
    board, (m, n, k) = rates.boards[0], turn.tile
    rows = min(turn.band, board.multiprocessors)
    columns = -(-board.multiprocessors // rows)
    moved = (rows * m * turn.bytes[0] + columns * n * turn.bytes[1]) * k
    return moved * board.clock_mhz / (board.memory_gbytes_per_s * 1e3)
