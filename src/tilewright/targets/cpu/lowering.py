"""The passes of the CPU target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.packed import copy_bytes
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.quotients import derive_inverses
from tilewright.targets.cpu.feed import feed_micro_kernels
from tilewright.targets.cpu.sequential import drop_threads
from tilewright.targets.target import CPU

PASSES: tuple[Pass, ...] = (
    Pass(
        "packed",
        "Elements of less than a byte are copied as bytes, and converted in registers.",
        lambda kernel, arch: copy_bytes(kernel),
    ),
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
    Pass(
        "inverses",
        "Sizes that addresses are divided by get an inverse, which the launcher computes.",
        lambda kernel, arch: derive_inverses(kernel),
    ),
)
"""The text then fuses neighbouring operations on single elements, and leaves out what lies past an edge."""


def lower(kernel: Kernel, arch: Arch | str) -> Passed:
    """The kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, CPU.architecture(arch), PASSES)
