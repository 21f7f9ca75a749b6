"""The passes of the CPU target, in their order."""

from __future__ import annotations

from typing import Any

from tilewright.errors import LaunchError, close_to, shown
from tilewright.ir.kernel import Kernel
from tilewright.passes.quotients import derive_inverses
from tilewright.targets.cpu.arch import ARCHS, Arch
from tilewright.targets.cpu.feed import feed_micro_kernels
from tilewright.targets.cpu.sequential import drop_threads


def architecture(name: Any) -> Arch:
    """The architecture of a name.

    Raises:
        LaunchError: no such architecture; lists the names.
    """
    if isinstance(name, Arch):
        return name
    if not isinstance(name, str) or name not in ARCHS:
        known = f"{', '.join(ARCHS)}{close_to(name, ARCHS)}"
        other = "; of a GPU: say target='cuda' too" if str(name).startswith("sm_") else ""
        raise LaunchError(f"unknown architecture {shown(name)} of the cpu target; known: {known}{other}")
    return ARCHS[name]


def lower(kernel: Kernel, arch: Arch | str) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel that the text spells, and a note for each choice that was made.

    1. One thread does the work of the block; accumulators lie in micro-tiles; synchronisation falls away.
    2. Operands of matrix multiplies lie in shared memory, widened, as rows of A and panels of B; those in
       registers as well.
    3. Sizes that addresses are divided by get an inverse, which the launcher computes.

    The text then fuses neighbouring operations on single elements, and leaves out what lies past an edge.
    """
    kernel, dropped = drop_threads(kernel, architecture(arch))
    kernel, fed = feed_micro_kernels(kernel)
    kernel = derive_inverses(kernel)
    return kernel, (*dropped, *fed)
