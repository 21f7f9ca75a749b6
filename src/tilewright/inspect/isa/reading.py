"""From a compiler's listing to what is measured of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tilewright.amdgcn import ListingError, read_listing
from tilewright.arch import Arch
from tilewright.errors import LaunchError
from tilewright.inspect.isa.instructions import IsaLine, Kind, amd_line
from tilewright.inspect.isa.loops import Body, Loop, find_loops
from tilewright.runtime.amdgcn_resources import resources_in, threads_in
from tilewright.targets.simt.occupancy import limits
from tilewright.targets.target import HIP

LOADS = (Kind.TO_SHARED, Kind.GLOBAL_LOAD)
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
    loops: tuple[Loop, ...]
    resources: Mapping[str, int]
    limits: Mapping[str, int]
    labels: Mapping[int, str] = field(default_factory=dict)

    @property
    def main(self) -> Loop:
        """The loop with the most matrix instructions, without the loops in it.

        Raises:
            LaunchError: no loop has any.
        """
        best = max(self.loops, key=lambda loop: loop.mix[Kind.MATRIX], default=None)
        if best is None or not best.mix[Kind.MATRIX]:
            matrix = self.whole.mix[Kind.MATRIX]
            raise LaunchError(
                f"{self.kernel} for {self.arch.name} has no main loop: {matrix} matrix instructions, none of "
                f"them in one of its {len(self.loops)} loops; nearest: a product of f16 or bf16, along a K "
                "that is not known when it is compiled"
            )
        return best

    @property
    def loading(self) -> Loop | None:
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
