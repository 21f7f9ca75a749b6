"""The CPU target: freestanding C++ text, one thread per block, micro-kernels for matrix multiplies."""

from tilewright.arch import PROCESSORS
from tilewright.targets.cpu.emit import CPU_RULES, PASSES, emit, lower
from tilewright.targets.cpu.legality import violations, why_stuck

__all__ = ["CPU_RULES", "PASSES", "PROCESSORS", "emit", "lower", "violations", "why_stuck"]
