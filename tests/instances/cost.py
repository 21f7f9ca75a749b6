"""A model of the clocks of one turn of a main loop on an AMD multiprocessor, from its listing.

No figure was measured.  The model counts the work of a block's warps for each part of a multiprocessor in one
turn, and divides it by the rate of the part:

- *matrix*: the operations of the tile, at the matrix units' rate in the architecture's record.
- *vector*: vector instructions of all warps.  A SIMD takes one clock for an instruction of 32 lanes on gfx11
  and gfx12, and four clocks for 64 lanes on gfx9.  Dual instructions (``v_dual_…``) count once, and so do
  slower ones (roots, exponentials, f64), which main loops do not have.
- *other*: all other instructions.  A SIMD executes them at the same time as vector instructions of another
  warp, at the same rate.
- *shared*: passes over the banks of LDS, one per clock, as counted in an execution of the listing; without
  one, as many as the bytes need.
- *memory*: bytes of A and B from memory, at the bandwidth of the board.  One block runs on each
  multiprocessor; blocks of a band of rows of tiles share their common operands through the caches, which
  are fast enough.

On gfx11 and gfx12 the vector unit also executes matrix instructions, so that both add up; on gfx9 they run at
the same time.  Barriers cut a turn into phases.  A block that is alone on its multiprocessor executes them
one after the other, each as long as its slowest part.  If other blocks fill the gaps, a turn takes as long as
its slowest part in total.  Groups of warps that take turns are in different phases.  The model leaves out
waits for memory, latencies, clocks below the highest, and code outside the loop: the shares of the peak are
upper bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tilewright.arch import Rates
from tilewright.errors import LaunchError
from tilewright.inspect.isa.instructions import IsaKind, IsaLine
from tilewright.inspect.isa.reading import Isa
from tilewright.targets.simt.banks import Conflicts

MATRIX_CORES = "mfma"
"""Feature of architectures whose matrix instructions run at the same time as vector instructions."""

IN_LDS = (IsaKind.SHARED_LOAD, IsaKind.SHARED_STORE)


@dataclass(frozen=True)
class Turn:
    """The work of a block in one turn of its main loop.

    Args:
        tile: extents (m, n, k) of the product.
        multiplied: name of the operands' dtype.
        bytes: bytes of an element of A and of B in memory.
        warps: warps of the block.
        band: rows of tiles whose blocks run column by column.
        groups: number of groups of warps that take turns, each one phase later than the one before.
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
        matrix: clocks of the matrix units.
        vector: clocks of vector instructions.
        other: clocks of all other instructions.
        shared: clocks of LDS.
        concurrent: whether matrix and vector instructions run at the same time.
    """

    matrix: float
    vector: float
    other: float
    shared: float
    concurrent: bool

    @property
    def clocks(self) -> float:
        """Clocks of the slowest part."""
        units = max(self.matrix, self.vector) if self.concurrent else self.matrix + self.vector
        return max(units, self.other, self.shared)

    @staticmethod
    def together(phases: Sequence[Phase], share: float = 1.0) -> Phase:
        """Add up a share of each of some phases.

        Args:
            phases: one or more phases.
            share: the share of the warps in each phase.
        """
        names = ("matrix", "vector", "other", "shared")
        total = {name: share * sum(getattr(one, name) for one in phases) for name in names}
        return Phase(**total, concurrent=phases[0].concurrent)


@dataclass(frozen=True)
class Cost:
    """The clocks of a turn.

    Args:
        phases: the phases between barriers, of all warps.
        memory: clocks in which A and B come from memory.
        groups: number of groups of warps that take turns.
    """

    phases: tuple[Phase, ...]
    memory: float
    groups: int = 1

    @property
    def whole(self) -> Phase:
        """The turn without barriers."""
        return Phase.together(self.phases)

    @property
    def overlapped(self) -> float:
        """Clocks of a turn if other blocks fill the gaps."""
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
    """Return the cost of a turn of a kernel's main loop by the model above.

    Args:
        isa: the kernel's machine code.
        turn: the work of a block in a turn.
        conflicts: bank conflicts by the line of the listing.

    Raises:
        LaunchError: the kernel has no main loop, or the rates of the architecture are unknown.
    """
    arch = isa.arch
    if arch.rates is None or turn.multiplied not in arch.rates.tensor_flops:
        known = ", ".join(arch.rates.tensor_flops) if arch.rates else "none"
        raise LaunchError(f"no rate of {turn.multiplied} is known for {arch.name}; known: {known}")
    m, n, k = turn.tile
    matrix = 2 * m * n * k / arch.rates.tensor_flops[turn.multiplied]
    products = isa.main.mix[IsaKind.MATRIX]
    # The instructions after the last barrier belong to the phase at the beginning of the turn.
    parts: list[list[IsaLine]] = [[]]
    for line in isa.main.turn:
        parts[-1].append(line)
        if line.kind is IsaKind.BARRIER:
            parts.append([])
    if len(parts) > 1:
        parts[0] = parts.pop() + parts[0]
    # A SIMD unit of CDNA has 16 lanes, and takes four clocks for the 64 lanes of a wave; RDNA takes one.
    each = (4 if arch.lanes == 64 else 1) * turn.warps / arch.simds
    line_bytes = arch.banks * arch.bank_bytes
    phases = []
    for lines in parts:
        count = {kind: sum(line.kind is kind for line in lines) for kind in (IsaKind.MATRIX, IsaKind.VECTOR)}
        passes = 0.0
        for line in lines:
            met = (conflicts or {}).get(line.line)
            if line.kind in IN_LDS and met is not None and met.accesses:
                passes += line.accesses * met.passes / met.accesses
            elif line.kind in IN_LDS:
                passes += line.accesses * max(arch.lanes * line.bytes / line_bytes, 1)
        phases.append(
            Phase(
                matrix=count[IsaKind.MATRIX] * (matrix / products),
                vector=count[IsaKind.VECTOR] * each,
                other=(len(lines) - sum(count.values())) * each,
                shared=passes * turn.warps * line_bytes / arch.rates.shared_bytes,
                concurrent=MATRIX_CORES in arch.features,
            )
        )
    return Cost(tuple(phases), _memory(arch.rates, turn), turn.groups)


def _memory(rates: Rates, turn: Turn) -> float:
    """Return the clocks in which the tiles of all multiprocessors come from memory, each tile once."""
    board, (m, n, k) = rates.boards[0], turn.tile
    rows = min(turn.band, board.multiprocessors)
    columns = -(-board.multiprocessors // rows)
    moved = (rows * m * turn.bytes[0] + columns * n * turn.bytes[1]) * k
    return moved * board.clock_mhz / (board.memory_gbytes_per_s * 1e3)
