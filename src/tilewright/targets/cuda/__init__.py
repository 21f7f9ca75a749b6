"""The CUDA target: its rules, its pass order, and the text it emits."""

from tilewright.targets.arch import architecture
from tilewright.targets.cuda.emit import emit
from tilewright.targets.cuda.legality import violations
from tilewright.targets.cuda.lowering import lower
from tilewright.targets.cuda.rules import CUDA_RULES

__all__ = ["CUDA_RULES", "architecture", "emit", "lower", "violations"]
