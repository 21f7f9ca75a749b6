"""The HIP target: its architectures, its pass order, and the text it emits for AMD GPUs."""

from tilewright.targets.hip.emit import HIP_RULES, PASSES, emit, lower, violations
from tilewright.targets.target import HIP

architecture = HIP.architecture

__all__ = ["HIP_RULES", "PASSES", "architecture", "emit", "lower", "violations"]
