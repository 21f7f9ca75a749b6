"""The CUDA target: its rules, its pass order, and the text it emits."""

from tilewright.targets.cuda import asynchronous, bulk_copies, packed_words, pairs
from tilewright.targets.cuda.emit import emit
from tilewright.targets.cuda.legality import violations
from tilewright.targets.cuda.lowering import PASSES, lower
from tilewright.targets.cuda.role_registers import too_many_as_compiled
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.target import CUDA

FURTHER = (asynchronous, bulk_copies, packed_words, pairs)
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
