"""What a run covered: sizes, blocks, operations that never ran, loops too short to come round their ring."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tilewright.ir.async_ops import Arrive, MBarrier, Wait
from tilewright.ir.copies import is_bulk_load
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, If, Let, Op
from tilewright.ir.types import Memory, TensorType
from tilewright.symbolic.nodes import Int, Mod, Sym
from tilewright.symbolic.rebuilding import parts, substitute, symbols
from tilewright.targets.reference.findings import describe

SHOWN = 8
"""How many operations and loops the head of a report names."""


@dataclass
class Trail:
    """What has run so far.

    Args:
        ran: the operations, by identity.
        trips: the most iterations that any warp made of each loop, by identity.
        took: which ways conditions went, by the identity of the `tw.when`.
    """

    ran: set[int] = field(default_factory=set)
    trips: dict[int, int] = field(default_factory=dict)
    took: dict[int, set[bool]] = field(default_factory=dict)

    def turned(self, loop: For, trips: int) -> None:
        """A warp ran a loop."""
        self.trips[id(loop)] = max(trips, self.trips.get(id(loop), 0))


@dataclass(frozen=True)
class ShortLoop:
    """A loop that no warp ran often enough for its ring to come round twice.

    Args:
        place: the author's line.
        trips: the most iterations of any warp.
        stages: stages of the longest ring that the loop steps through.
    """

    place: str
    trips: int
    stages: int

    @property
    def needed(self) -> int:
        """Iterations after which every stage has been used again, and once more."""
        return 2 * self.stages + 1

    def __str__(self) -> str:
        times = f"{self.trips} time{'s' * (self.trips != 1)}"
        ring = f"its ring of {self.stages} stages" if self.stages > 1 else "its one stage"
        return f"the loop at {self.place} ran {times}; {ring} needs {self.needed} to be used twice over"


@dataclass(frozen=True)
class Coverage:
    """What "no findings" is about: see `Report`.

    Args:
        sizes: the kernel's sizes, by name.
        grid: blocks along each axis of the grid.
        blocks: how many blocks ran to their end.
        threads: threads per block.
        lanes: threads per warp.
        left_out: why blocks did not run, and what is known of them; empty if all ran.
        idle: operations that never ran, each with its line; of a nested block that never ran the first.
        short: loops that were too short for their ring.
        ways: which ways each `tw.when` without `tw.otherwise` went that was reached, by its line.
    """

    sizes: tuple[tuple[str, int], ...] = ()
    grid: tuple[int, ...] = ()
    blocks: int = 0
    threads: int = 1
    lanes: int = 1
    left_out: str = ""
    idle: tuple[str, ...] = ()
    short: tuple[ShortLoop, ...] = ()
    ways: Mapping[str, frozenset[bool]] = field(default_factory=dict, hash=False)

    def lines(self) -> Iterator[str]:
        """The head of a report, in sentences."""
        total = math.prod(self.grid)
        ran = f"{self.blocks} of {total}" if self.blocks != total else f"{total}"
        sizes = f", for {', '.join(f'{name} = {size}' for name, size in self.sizes)}" if self.sizes else ""
        yield (
            f"ran {ran} block{'s' * (total != 1)} of {self.threads} threads in warps of {self.lanes}{sizes}"
        )
        if self.left_out:
            yield self.left_out
        yield from _some([f"never ran: {what}" for what in self.idle], "operations that never ran")
        yield from _some([str(loop) for loop in self.short], "short loops")


def _some(lines: list[str], what: str) -> list[str]:
    rest = len(lines) - SHOWN
    return lines if rest <= 0 else [*lines[:SHOWN], f"and {rest} more {what}"]


def place(op: Op) -> str:
    """Where an operation was written, innermost line first."""
    return "an unknown line" if op.location is None else str(op.location)


def idle(kernel: Kernel, trail: Trail) -> tuple[str, ...]:
    """The operations of a kernel that have not run."""
    return tuple(dict.fromkeys(_idle(kernel.body, trail)))


def _idle(block: Block, trail: Trail) -> Iterator[str]:
    for op in block.ops:
        if id(op) not in trail.ran:
            more = sum(1 for _ in block.walk()) - 1
            behind = f", with {more} other operation{'s' * (more != 1)} beside it" if more else ""
            yield f"{describe(op)} at {place(op)}{behind}"
            return
        for region in op.regions:
            yield from _idle(region, trail)


def ways(kernel: Kernel, trail: Trail) -> dict[str, frozenset[bool]]:
    """Which ways conditions went whose other way has no operations that `idle` would name."""
    found: dict[str, frozenset[bool]] = {}
    for op in kernel.walk():
        if isinstance(op, If) and not op.otherwise.ops and id(op) in trail.took:
            found[place(op)] = found.get(place(op), frozenset()) | trail.took[id(op)]
    return found


def short_loops(kernel: Kernel, trail: Trail) -> tuple[ShortLoop, ...]:
    """Loops over memory that is used again, of fewer iterations than show what comes of it."""
    found = []
    for op in kernel.walk():
        if isinstance(op, For) and not (isinstance(op.start, int) and isinstance(op.stop, int)):
            loop = ShortLoop(place(op), trail.trips.get(id(op), 0), stages_of(op))
            if loop.stages and loop.trips < loop.needed:
                found.append(loop)
    return tuple(dict.fromkeys(found))


def stages_of(loop: For) -> int:
    """Stages of the longest ring that a loop steps through; 1 if it writes shared memory; else 0.

    A ring is what is indexed by a remainder of the loop's index: shared memory, or transaction barriers.  The
    remainder may have a name (`tw.let`).
    """
    longest = 0
    lets: dict[Sym, Int] = {}
    for op in loop.body.walk():
        if isinstance(op, Let):
            lets[op.result] = substitute(op.value, lets)
        for value in op.operands:
            if isinstance(value.type, TensorType) and value.type.memory is Memory.SHARED:
                longest = max(longest, _remainder(substitute(value.type.view.offset, lets), loop.index))
                longest = max(longest, int(value in op.written))
        if isinstance(op, Arrive | Wait) or is_bulk_load(op):
            longest = max(longest, _remainder(substitute(op.stage, lets), loop.index))
    return longest


def _remainder(value: object, index: Sym) -> int:
    rings = (part for part in parts(value) if isinstance(part, Mod) and index in symbols(part.left))
    return max((ring.right for ring in rings if isinstance(ring.right, int)), default=0)


def rings(kernel: Kernel) -> int:
    """Stages of the longest ring of a kernel: of its loops, or of its transaction barriers; at least 1."""
    loops = (stages_of(op) for op in kernel.walk() if isinstance(op, For))
    barriers = (op.stages for op in kernel.walk() if isinstance(op, MBarrier))
    return max((1, *loops, *barriers))


def covered(
    kernel: Kernel,
    env: Mapping[Sym, int],
    trail: Trail,
    grid: tuple[int, ...],
    blocks: int,
    lanes: int,
    left_out: str,
) -> Coverage:
    """What a run has covered, for the head of its report."""
    strides = {param.sym for param in kernel.sizes if "stride" in param.sym.name}
    sizes = tuple((sym.name, env[sym]) for sym in extents(kernel) if sym in env and sym not in strides)
    return Coverage(
        sizes,
        grid,
        blocks,
        kernel.threads,
        lanes,
        left_out,
        idle(kernel, trail),
        short_loops(kernel, trail),
        ways(kernel, trail),
    )


def extents(kernel: Kernel) -> tuple[Sym, ...]:
    """The symbols that the kernel's arrays have as extents, in the order of the parameters."""
    shapes = (value.tensor.shape for value in kernel.tensors)
    return tuple(dict.fromkeys(extent for shape in shapes for extent in shape if isinstance(extent, Sym)))
