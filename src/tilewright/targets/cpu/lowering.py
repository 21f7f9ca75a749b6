"""The passes of the CPU target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.common import INVERSES, PACKED
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.targets.cpu.feed import feed_micro_kernels
from tilewright.targets.cpu.sequential import drop_threads
from tilewright.targets.target import CPU

PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "one-thread",
        "One thread does the work of the block; accumulators lie in micro-tiles; synchronisation falls away.",
        drop_threads,
    ),
    Pass(
        "operands",
        "Operands of matrix multiplies lie in shared memory, widened, as rows of A and panels of B.",
        lambda kernel, arch: feed_micro_kernels(kernel),
    ),
    INVERSES,
)
"""The text then fuses neighbouring operations on single elements, and leaves out what lies past an edge."""


def lower(kernel: Kernel, arch: Arch | str) -> Passed:
    """The kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, CPU.architecture(arch), PASSES)
