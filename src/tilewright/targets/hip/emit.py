"""From a kernel to HIP text."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.targets.hip.lowering import lower
from tilewright.targets.hip.prelude import DIALECT
from tilewright.targets.hip.spelling import HIP_RULES
from tilewright.targets.listing import Listing
from tilewright.targets.simt.emit import emit_text
from tilewright.targets.target import HIP


def emit(kernel: Kernel, arch: Arch | str) -> Listing:
    """The HIP text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel that it spells.
    """
    chosen = HIP.architecture(arch)
    return emit_text(kernel, lower(kernel, chosen), chosen, HIP_RULES, DIALECT)
