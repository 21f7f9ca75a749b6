"""The CUDA target: its rules, its pass order, and the text it emits."""

from tilewright.targets.arch import architecture
from tilewright.targets.cuda import asynchronous
from tilewright.targets.cuda.emit import emit
from tilewright.targets.cuda.legality import violations
from tilewright.targets.cuda.lowering import lower
from tilewright.targets.cuda.rules import CUDA_RULES

ASYNCHRONOUS = asynchronous
"""The rules of roles and what runs beside them; importing them adds them to `CUDA_RULES`."""

__all__ = ["ASYNCHRONOUS", "CUDA_RULES", "architecture", "emit", "lower", "violations"]
