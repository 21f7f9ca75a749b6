"""The machine code of a kernel, read from a compiler's listing, and the gates for its main loop."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.amdgcn import ListingError, read_listing
from tilewright.arch import Arch
from tilewright.errors import LaunchError
from tilewright.inspect.isa.instructions import Body, IsaKind, IsaLine, ListingLoop, amd_line, find_loops
from tilewright.runtime.hip import resources_in, threads_in
from tilewright.targets.amd import limits
from tilewright.targets.target import HIP

LOADS = (IsaKind.TO_SHARED, IsaKind.GLOBAL_LOAD)
"""Kinds of instructions that load operands from global memory."""


@dataclass(frozen=True)
class Isa:
    """The machine code of a kernel.

    Args:
        arch: the architecture that it was compiled for.
        kernel: its name.
        whole: all of its instructions.
        loops: its loops.
        resources: its resources, by the names of ``executable.resources``.
        limits: the number of warps per SIMD that each resource allows.
        labels: the labels of jump targets, by the line of the listing.
    """

    arch: Arch
    kernel: str
    whole: Body
    loops: tuple[ListingLoop, ...]
    resources: Mapping[str, int]
    limits: Mapping[str, int]
    labels: Mapping[int, str] = field(default_factory=dict)

    @property
    def main(self) -> ListingLoop:
        """The loop with the most matrix instructions, without the loops in it.

        Raises:
            LaunchError: no loop has matrix instructions.
        """
        best = max(self.loops, key=lambda loop: loop.mix[IsaKind.MATRIX], default=None)
        if best is None or not best.mix[IsaKind.MATRIX]:
            matrix = self.whole.mix[IsaKind.MATRIX]
            raise LaunchError(
                f"{self.kernel} for {self.arch.name} has no main loop: {matrix} matrix instructions, none of "
                f"them in one of its {len(self.loops)} loops; nearest: a product of f16 or bf16, along a K "
                "that is not known when it is compiled"
            )
        return best

    @property
    def loading(self) -> ListingLoop | None:
        """The loop in which another role of the block loads the operands of the main loop, or None."""
        if self.main.of(*LOADS):
            return None
        best = max(self.loops, key=lambda loop: len(loop.of(*LOADS)), default=None)
        return best if best and best.of(*LOADS) else None

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that allow the fewest warps."""
        fewest = min(self.limits.values())
        return tuple(name for name, warps in self.limits.items() if warps == fewest)


def read_isa(assembly: str, kernel: str = "") -> Isa:
    """Read the machine code of a kernel from a compiler's listing for an AMD GPU.

    Args:
        assembly: the listing, e.g. ``executable.assembly``.
        kernel: its name, if the listing has several.

    Raises:
        LaunchError: the text is no listing, or the architecture is unknown.
        ToolchainError: the metadata lacks the kernel's resources.
    """
    try:
        read = read_listing(assembly)
        found = read.kernel(kernel)
    except ListingError as error:
        raise LaunchError(f"no listing for an AMD GPU: {error}") from error
    arch, said = HIP.architecture(read.arch), found.record.fields
    lines = [amd_line(one) for one in found.instructions]
    return isa_of(found.name, arch, lines, found.labels, resources_in(said, arch), threads_in(said))


def isa_of(
    kernel: str,
    arch: Arch,
    lines: Sequence[IsaLine],
    labels: Mapping[str, int],
    resources: Mapping[str, int],
    threads: int,
) -> Isa:
    """Return the machine code of a kernel with its loops.

    Args:
        kernel: its name.
        arch: the architecture.
        lines: its instructions.
        labels: the index of the instruction after each label.
        resources: its resources.
        threads: threads of a block.
    """
    jumped_to = {line.jumps for line in lines}
    used = {name: at for name, at in labels.items() if name in jumped_to and at < len(lines)}
    room = limits(arch, resources["registers"], resources.get("shared_bytes", 0), threads)
    names = {lines[at].line: name for name, at in used.items()}
    return Isa(arch, kernel, Body(tuple(lines)), find_loops(lines, used), resources, room, names)


# ---------------------------------------------------------------- gates
#
# A gate limits a property of the main loop that keeps matrix cores from being busy.


@dataclass(frozen=True)
class Gates:
    """Limits for a kernel: its registers and warps, and one turn of its main loop.

    Args:
        matrix_per_load: fewest matrix instructions per load of global memory.
        loads: number of loads of global memory; None: any.
        global_bytes: fewest bytes of one lane's access to global memory.
        shared_load_bytes: fewest bytes of one lane's load from shared memory.
        shared_store_bytes: fewest bytes of one lane's store to shared memory.
        spills: most spilled registers, in memory or in lanes of other registers.
        barriers: most barriers.
        flushes_per_barrier: most cache invalidations per barrier.
        waits_for_loads: most waits for loads of the same turn before its last matrix instruction; the next
            turn multiplies these loads, and they should be in flight until then.
        loads_behind_matrix: most loads of global memory after the first matrix instruction; earlier loads
            are in flight while the whole tile is multiplied.
        registers: most vector registers of a thread; None: any.
        warps: fewest warps per SIMD.
    """

    matrix_per_load: float = 4
    loads: int | None = None
    global_bytes: int = 16
    shared_load_bytes: int = 16
    shared_store_bytes: int = 16
    spills: int = 0
    barriers: int = 2
    flushes_per_barrier: float = 0
    waits_for_loads: int = 0
    loads_behind_matrix: int = 0
    registers: int | None = None
    warps: int = 1


@dataclass(frozen=True)
class Breach:
    """One gate that a kernel does not pass.

    Args:
        gate: the field of `Gates`.
        value: the value of the kernel.
        limit: the limit of the gate.
        where: the instructions that count, and their numbers; may be empty.
    """

    gate: str
    value: float
    limit: float
    where: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sign = "at least" if self.gate in _LEAST else "exactly" if self.gate == "loads" else "at most"
        where = ", ".join(f"{count} {name}" for name, count in self.where)
        return f"{self.gate}: {self.value:g}, {sign} {self.limit:g}" + (f" ({where})" if where else "")


_LEFT = re.compile(r"(?:vmcnt\(|loadcnt(?:_dscnt)?\s+)(\w+)")
"""Pattern of a wait; its group is the number of loads of global memory that may stay in flight."""

_LEAST = ("matrix_per_load", "global_bytes", "shared_load_bytes", "shared_store_bytes", "warps")


def broken(isa: Isa, gates: Gates) -> tuple[Breach, ...]:
    """Return the gates that a kernel does not pass.

    Args:
        isa: the kernel's machine code.
        gates: the limits.

    Raises:
        LaunchError: the kernel has no main loop.

    Example:
        >>> print(Breach("global_bytes", 2, 16, (("global_load_u16", 32),)))
        global_bytes: 2, at least 16 (32 global_load_u16)
    """
    found: list[Breach] = []  # in the order of the main loop's gates, registers and warps
    main, turn = isa.main, isa.main.turn
    loads = main.of(*LOADS)
    if (share := main.matrix_per_load) < gates.matrix_per_load:
        lines = main.of(IsaKind.MATRIX, *LOADS)
        found.append(Breach("matrix_per_load", share, gates.matrix_per_load, _counted(lines)))
    if gates.loads is not None and len(loads) != gates.loads:
        found.append(Breach("loads", len(loads), gates.loads, _counted(loads)))
    for name, kinds in (
        ("global_bytes", (*LOADS, IsaKind.GLOBAL_STORE)),
        ("shared_load_bytes", (IsaKind.SHARED_LOAD,)),
        ("shared_store_bytes", (IsaKind.SHARED_STORE,)),
    ):
        limit = getattr(gates, name)
        if narrow := [line for line in main.of(*kinds) if line.bytes < limit]:
            found.append(Breach(name, min(line.bytes for line in narrow), limit, _counted(narrow)))

    kept = main.of(IsaKind.STACK, IsaKind.LANE)
    words = sum(isa.resources.get(name, 0) for name in ("stack_bytes", "spill_store_bytes")) // 4
    spills = max(isa.resources.get("spilled_registers", 0), words, len(kept))
    barriers, flushes = main.of(IsaKind.BARRIER), main.of(IsaKind.FLUSH)
    last = max(at for at, line in enumerate(turn) if line.kind is IsaKind.MATRIX)
    loaded, waits = 0, []
    for line in turn[:last]:
        loaded += line.kind in LOADS
        if (left := _LEFT.search(line.text)) and line.kind is IsaKind.WAIT and int(left[1], 0) < loaded:
            waits.append(line)
    first = next(at for at, line in enumerate(turn) if line.kind is IsaKind.MATRIX)
    late = [line for line in turn[first:] if line.kind in LOADS]
    for name, value, found_in in (
        ("spills", spills, kept),
        ("barriers", len(barriers), barriers),
        ("flushes_per_barrier", main.flushes_per_barrier, flushes),
        ("waits_for_loads", len(waits), waits),
        ("loads_behind_matrix", len(late), late),
    ):
        if value > getattr(gates, name):
            found.append(Breach(name, value, getattr(gates, name), _counted(found_in)))

    registers, warps = isa.resources["registers"], min(isa.limits.values())
    if gates.registers is not None and registers > gates.registers:
        found.append(Breach("registers", registers, gates.registers, (("registers", registers),)))
    if warps < gates.warps:
        found.append(
            Breach("warps", warps, gates.warps, tuple((name, isa.limits[name]) for name in isa.limited_by))
        )
    return tuple(found)


def _counted(lines: Iterable[IsaLine]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(line.mnemonic for line in lines).items())
