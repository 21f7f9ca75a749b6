"""The CUDA target: its rules, its pass order, and the text it emits."""

from tilewright.targets.cuda import asynchronous, pairs
from tilewright.targets.cuda.emit import PASSES, emit, lower
from tilewright.targets.cuda.legality import too_many_as_compiled, violations
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.target import CUDA

FURTHER = (asynchronous, pairs)
"""Rules of roles, of bulk copies, of pairs of numbers; importing them adds them to the table."""

architecture = CUDA.architecture

__all__ = [
    "CUDA_RULES",
    "FURTHER",
    "PASSES",
    "architecture",
    "emit",
    "lower",
    "too_many_as_compiled",
    "violations",
]
