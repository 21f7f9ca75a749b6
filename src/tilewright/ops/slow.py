"""Warns once, at the caller's line, about products that are far slower than the hardware."""

from __future__ import annotations

import sys
import warnings

from tilewright.arch import Arch
from tilewright.errors import SlowWarning
from tilewright.ir.async_ops import MmaAsync
from tilewright.ir.mma import MmaAtom
from tilewright.ir.ops import Mma
from tilewright.runtime.executable import Executable
from tilewright.targets.atoms import multiplied_without_tensor_cores
from tilewright.targets.target import TARGETS
from tilewright.tracebacks import is_ours

_SAID: set[str] = set()


def warn_if_slow(atom: MmaAtom, arch: Arch) -> None:
    """Warn if an architecture has tensor cores for what the atom multiplies without; once for each dtype."""
    said = multiplied_without_tensor_cores(atom, arch.name, arch.features)
    if not said or atom.a_dtype.name in _SAID:
        return
    _SAID.add(atom.a_dtype.name)
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"matmul: {said}", SlowWarning, stacklevel=level)


def warn(executable: Executable) -> None:
    """Warn if the executable's instruction is slow for the dtype on the machine."""
    for op in executable.kernel.walk():
        if isinstance(op, Mma | MmaAsync):
            warn_if_slow(op.mma.atom, TARGETS[executable.target].architecture(executable.arch))
            return
