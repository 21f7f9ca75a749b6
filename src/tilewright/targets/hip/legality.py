"""What a kernel asks of HIP that an architecture does not have."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import ASYNC_OPS
from tilewright.ir.copies import BULK_VERBS, Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Elementwise, Mma, Op
from tilewright.ir.types import Value
from tilewright.targets.atoms import is_listed
from tilewright.targets.hip.arch import ARCHITECTURES
from tilewright.targets.hip.prelude import DIALECT, MISSING
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.simt.arithmetic import called
from tilewright.targets.simt.legality import beyond
from tilewright.targets.target import CPU, CUDA, HIP, REFERENCE

NOT_ON_AMD = {op.name for op in ASYNC_OPS} | {*BULK_VERBS}
"""The verbs of roles, of bulk copies, of asynchronous MMA, of dependent launches."""


def violations(kernel: Kernel, arch: Arch | str) -> list[Violation]:
    """Every rule of an architecture that a kernel breaks, with the nearest legal choice.

    Args:
        kernel: the traced kernel.
        arch: the architecture, or its name.
    """
    chosen = HIP.architecture(arch)
    found = list(beyond(kernel, chosen, DIALECT, ARCHITECTURES.values()))
    for op in kernel.walk():
        found.extend(_operation(op, chosen))
    return found


def _operation(op: Op, arch: Arch) -> Iterator[Violation]:
    if isinstance(op, Mma):
        yield from _atom(op, arch)
    elif isinstance(op, Elementwise):
        yield from _function(op, arch)
    elif op.verb in NOT_ON_AMD:
        others = f"target {CUDA.name} or {REFERENCE.name}"
        yield op.violation("target", f"{arch.name} has no {op.verb}", others)
    elif isinstance(op, Copy) and op.engine == "matrix":
        text = f"{arch.name} moves no matrices from {op.source} to {op.target} at once"
        yield op.violation("engine", text, "engine='direct', or none: the target chooses")


def _function(op: Elementwise, arch: Arch) -> Iterator[Violation]:
    kinds = [value.dtype.computed for value in op.operands_ if isinstance(value, Value)]
    if kinds and called(op.function, kinds[0]) in MISSING:
        text = f"there is no {op.function} of {kinds[0]} for {arch.name}, whose text includes no library"
        others = f"target {CUDA.name} or {CPU.name}" + (", or f32" if kinds[0].bits == 64 else "")
        yield op.violation("function", text, others)


def _atom(op: Mma, arch: Arch) -> Iterator[Violation]:
    atom = op.mma.atom
    if not is_listed(atom) or (atom.feature and atom.feature not in arch.features):
        usable = nearest(atom.a_dtype, atom.c_dtype, arch.features)
        instead = f"fma({atom.a_dtype.component})" if usable is None or usable == atom else usable.name
        yield op.violation("atom", f"{arch.name} does not execute {atom}", instead)
    elif max(atom.a_dtype.components, atom.b_dtype.components, atom.c_dtype.components) > 1:
        yield op.violation("atom", f"{atom} multiplies complex numbers", f"fma({atom.a_dtype.component})")
