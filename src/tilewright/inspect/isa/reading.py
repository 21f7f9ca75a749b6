"""What a compiler's listing contains, measured, and the gates that a kernel's main loop must pass."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.amdgcn import ListingError, read_listing
from tilewright.arch import Arch
from tilewright.errors import LaunchError
from tilewright.inspect.isa.instructions import Body, IsaKind, IsaLine, ListingLoop, amd_line, find_loops
from tilewright.runtime.hip import resources_in, threads_in
from tilewright.targets.amd import limits
from tilewright.targets.target import HIP

LOADS = (IsaKind.TO_SHARED, IsaKind.GLOBAL_LOAD)
"""What brings operands from global memory."""


@dataclass(frozen=True)
class Isa:
    """The machine code of a kernel.

    Args:
        arch: the architecture that it was compiled for.
        kernel: its name.
        whole: all of its instructions.
        loops: of it.
        resources: what it takes, by the names that ``executable.resources`` has.
        limits: warps of a SIMD that each resource leaves room for.
        labels: for lines of the listing with an instruction that may be jumped to, the label before it.
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
            LaunchError: no loop has any.
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
        """The loop in which another role of the block loads what the main loop multiplies, if one does."""
        if self.main.of(*LOADS):
            return None
        best = max(self.loops, key=lambda loop: len(loop.of(*LOADS)), default=None)
        return best if best and best.of(*LOADS) else None

    @property
    def limited_by(self) -> tuple[str, ...]:
        """The resources that leave room for the fewest warps."""
        fewest = min(self.limits.values())
        return tuple(name for name, warps in self.limits.items() if warps == fewest)


def read_isa(assembly: str, kernel: str = "") -> Isa:
    """The machine code of a kernel from the listing that a compiler wrote for an AMD GPU.

    Args:
        assembly: the listing, e.g. ``executable.assembly``.
        kernel: which, where there are several.

    Raises:
        LaunchError: it is no such listing, or one for an architecture that is not known here.
        ToolchainError: its metadata does not say what the kernel takes.
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
    """The machine code of a kernel from its instructions.

    Args:
        kernel: its name.
        arch: the architecture.
        lines: its instructions.
        labels: which instruction follows each label.
        resources: what it takes.
        threads: of a block.
    """
    jumped_to = {line.jumps for line in lines}
    used = {name: at for name, at in labels.items() if name in jumped_to and at < len(lines)}
    room = limits(arch, resources["registers"], resources.get("shared_bytes", 0), threads)
    names = {lines[at].line: name for name, at in used.items()}
    return Isa(arch, kernel, Body(tuple(lines)), find_loops(lines, used), resources, room, names)


# ---------------------------------------------------------------- gates
#
# A gate names something that the main loop of a kernel must not have if it is to keep matrix cores busy.


@dataclass(frozen=True)
class Gates:
    """What is asked of a kernel; all but registers and warps of its main loop, where instructions count once.

    Args:
        matrix_per_load: fewest matrix instructions for each load of global memory.
        loads: of global memory in a turn; None for any number.
        global_bytes: fewest bytes of one lane's access to global memory.
        shared_load_bytes: fewest bytes that one lane loads from shared memory at once.
        shared_store_bytes: fewest bytes that one lane stores there at once.
        spills: most registers that are kept in memory, or in lanes of others within the loop.
        barriers: most barriers in a turn.
        flushes_per_barrier: most instructions that invalidate caches, for each barrier.
        waits_for_loads: most waits for what the turn itself loads before its last matrix instruction; it is
            multiplied in the next one, and should be on its way until then.
        loads_behind_matrix: most loads of global memory that a turn issues after its first matrix
            instruction; those before it are on their way while the whole tile is multiplied.
        registers: most vector registers of a thread; None for any number.
        warps: fewest warps that a SIMD executes in turns.
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
        value: what was found.
        limit: what the gate asks for.
        where: the instructions that are meant, and how often each stands there; may be empty.
    """

    gate: str
    value: float
    limit: float
    where: tuple[tuple[str, int], ...] = ()

    def __str__(self) -> str:
        sign = "at least" if self.gate in _LEAST else "exactly" if self.gate == "loads" else "at most"
        where = ", ".join(f"{count} {name}" for name, count in self.where)
        return f"{self.gate}: {self.value:g}, {sign} {self.limit:g}" + (f" ({where})" if where else "")


_LEAST = ("matrix_per_load", "global_bytes", "shared_load_bytes", "shared_store_bytes", "warps")


def broken(isa: Isa, gates: Gates) -> tuple[Breach, ...]:
    """What a kernel breaks of what is asked of it; empty if it passes all gates.

    Args:
        isa: the kernel's machine code.
        gates: what is asked.

    Raises:
        LaunchError: the kernel has no main loop.

    Example:
        >>> print(Breach("global_bytes", 2, 16, (("global_load_u16", 32),)))
        global_bytes: 2, at least 16 (32 global_load_u16)
    """
    return tuple(one for gate in _GATES for one in gate(isa, gates))


_LEFT = re.compile(r"(?:vmcnt\(|loadcnt(?:_dscnt)?\s+)(\w+)")
"""In a wait, how many loads of global memory may still be on their way behind it."""


def _matrix(isa: Isa, gates: Gates) -> Iterator[Breach]:
    if (found := isa.main.matrix_per_load) < gates.matrix_per_load:
        matrix = isa.main.of(IsaKind.MATRIX, IsaKind.GLOBAL_LOAD, IsaKind.TO_SHARED)
        yield Breach("matrix_per_load", found, gates.matrix_per_load, _counted(matrix))


def _loads(isa: Isa, gates: Gates) -> Iterator[Breach]:
    loads = isa.main.of(IsaKind.GLOBAL_LOAD, IsaKind.TO_SHARED)
    if gates.loads is not None and len(loads) != gates.loads:
        yield Breach("loads", len(loads), gates.loads, _counted(loads))


def _widths(isa: Isa, gates: Gates) -> Iterator[Breach]:
    to_global = (IsaKind.GLOBAL_LOAD, IsaKind.GLOBAL_STORE, IsaKind.TO_SHARED)
    for name, limit, kinds in (
        ("global_bytes", gates.global_bytes, to_global),
        ("shared_load_bytes", gates.shared_load_bytes, (IsaKind.SHARED_LOAD,)),
        ("shared_store_bytes", gates.shared_store_bytes, (IsaKind.SHARED_STORE,)),
    ):
        narrow = [line for line in isa.main.of(*kinds) if line.bytes < limit]
        if narrow:
            yield Breach(name, min(line.bytes for line in narrow), limit, _counted(narrow))


def _spills(isa: Isa, gates: Gates) -> Iterator[Breach]:
    kept = isa.main.of(IsaKind.STACK, IsaKind.LANE)
    registers = isa.resources.get("spilled_registers", 0)
    words = sum(isa.resources.get(name, 0) for name in ("stack_bytes", "spill_store_bytes")) // 4
    if (found := max(registers, words, len(kept))) > gates.spills:
        yield Breach("spills", found, gates.spills, _counted(kept))


def _barriers(isa: Isa, gates: Gates) -> Iterator[Breach]:
    barriers, flushes = isa.main.of(IsaKind.BARRIER), isa.main.of(IsaKind.FLUSH)
    if len(barriers) > gates.barriers:
        yield Breach("barriers", len(barriers), gates.barriers, _counted(barriers))
    if (found := isa.main.flushes_per_barrier) > gates.flushes_per_barrier:
        yield Breach("flushes_per_barrier", found, gates.flushes_per_barrier, _counted(flushes))


def _waits(isa: Isa, gates: Gates) -> Iterator[Breach]:
    turn = isa.main.turn
    last = max(at for at, line in enumerate(turn) if line.kind is IsaKind.MATRIX)
    loads, waits = 0, []
    for line in turn[:last]:
        loads += line.kind in (IsaKind.GLOBAL_LOAD, IsaKind.TO_SHARED)
        if (found := _LEFT.search(line.text)) and line.kind is IsaKind.WAIT and int(found[1], 0) < loads:
            waits.append(line)
    if len(waits) > gates.waits_for_loads:
        yield Breach("waits_for_loads", len(waits), gates.waits_for_loads, _counted(waits))


def _order(isa: Isa, gates: Gates) -> Iterator[Breach]:
    turn = isa.main.turn
    first = next(at for at, line in enumerate(turn) if line.kind is IsaKind.MATRIX)
    late = [line for line in turn[first:] if line.kind in (IsaKind.GLOBAL_LOAD, IsaKind.TO_SHARED)]
    if len(late) > gates.loads_behind_matrix:
        yield Breach("loads_behind_matrix", len(late), gates.loads_behind_matrix, _counted(late))


def _registers(isa: Isa, gates: Gates) -> Iterator[Breach]:
    found = isa.resources["registers"]
    if gates.registers is not None and found > gates.registers:
        yield Breach("registers", found, gates.registers, (("registers", found),))


def _occupancy(isa: Isa, gates: Gates) -> Iterator[Breach]:
    if (found := min(isa.limits.values())) < gates.warps:
        limited = tuple((name, isa.limits[name]) for name in isa.limited_by)
        yield Breach("warps", found, gates.warps, limited)


_GATES: tuple[Callable[[Isa, Gates], Iterator[Breach]], ...] = (
    *(_matrix, _loads, _widths, _spills, _barriers, _waits, _order, _registers, _occupancy),
)


def _counted(lines: Iterable[IsaLine]) -> tuple[tuple[str, int], ...]:
    return tuple(Counter(line.mnemonic for line in lines).items())
