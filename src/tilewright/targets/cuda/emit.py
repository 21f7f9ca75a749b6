"""From a kernel to CUDA C++ text."""

from __future__ import annotations

from dataclasses import replace

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Mma
from tilewright.targets.atoms import multiplied_without_tensor_cores
from tilewright.targets.cuda.lowering import lower
from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.cuda.spelling import CUDA_RULES
from tilewright.targets.listing import Listing
from tilewright.targets.simt.emit import emit_text
from tilewright.targets.target import CUDA


def emit(kernel: Kernel, arch: Arch | str) -> Listing:
    """The CUDA C++ text of a kernel, which includes no header.

    Args:
        kernel: the traced kernel; it must break no rule.
        arch: the architecture, or its name.

    Returns:
        The text, with the lowered kernel that it spells.
    """
    chosen = CUDA.architecture(arch)
    made = emit_text(kernel, lower(kernel, chosen), chosen, CUDA_RULES, DIALECT)
    return replace(made, notes=(*made.notes, *_slow_multiplies(kernel, chosen)))


def _slow_multiplies(kernel: Kernel, arch: Arch) -> list[str]:
    """What is multiplied without the tensor cores that the architecture has for it."""
    atoms = dict.fromkeys(op.mma.atom for op in kernel.walk() if isinstance(op, Mma))
    said = (multiplied_without_tensor_cores(atom, arch.name, arch.features) for atom in atoms)
    return list(dict.fromkeys(filter(None, said)))
