"""The CPU target: freestanding C++ text, one thread per block, micro-kernels for matrix multiplies."""

from tilewright.arch import PROCESSORS
from tilewright.targets.cpu.emit import PASSES, emit, lower
from tilewright.targets.cpu.legality import violations, why_stuck
from tilewright.targets.cpu.spelling import CPU_RULES

__all__ = ["CPU_RULES", "PASSES", "PROCESSORS", "emit", "lower", "violations", "why_stuck"]
