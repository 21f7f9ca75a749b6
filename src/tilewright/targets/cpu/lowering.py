"""The passes of the CPU target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.quotients import derive_inverses
from tilewright.targets.cpu.feed import feed_micro_kernels
from tilewright.targets.cpu.sequential import drop_threads
from tilewright.targets.target import CPU


def lower(kernel: Kernel, arch: Arch | str) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel that the text spells, and a note for each choice that was made.

    1. One thread does the work of the block; accumulators lie in micro-tiles; synchronisation falls away.
    2. Operands of matrix multiplies lie in shared memory, widened, as rows of A and panels of B; those in
       registers as well.
    3. Sizes that addresses are divided by get an inverse, which the launcher computes.

    The text then fuses neighbouring operations on single elements, and leaves out what lies past an edge.
    """
    kernel, dropped = drop_threads(kernel, CPU.architecture(arch))
    kernel, fed = feed_micro_kernels(kernel)
    kernel = derive_inverses(kernel)
    return kernel, (*dropped, *fed)
