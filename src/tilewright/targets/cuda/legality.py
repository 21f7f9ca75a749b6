"""What a kernel asks of CUDA that an architecture does not have."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.errors import Violation
from tilewright.ir.async_ops import ASYNC_OPS, Role, RoleBarrier
from tilewright.ir.copies import BULK_VERBS, Copy, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Mma, Op
from tilewright.passes.memory_instructions import matrices_of
from tilewright.targets.atoms import TENSOR_CORE, is_listed
from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.cuda.role_registers import too_many_in_roles
from tilewright.targets.nvidia import ARCHITECTURES
from tilewright.targets.simt.legality import beyond
from tilewright.targets.target import CUDA

SINCE_SM_90 = {op.name for op in ASYNC_OPS} - {Role.name, RoleBarrier.name} | {*BULK_VERBS}
"""The verbs of bulk copies, asynchronous MMA, dependent launches."""


def violations(kernel: Kernel, arch: Arch | str) -> list[Violation]:
    """Every rule of an architecture that a kernel breaks, with the nearest legal choice.

    Args:
        kernel: the traced kernel.
        arch: the architecture, or its name.
    """
    chosen = CUDA.architecture(arch)
    found = [*beyond(kernel, chosen, DIALECT, ARCHITECTURES.values()), *too_many_in_roles(kernel, chosen)]
    for op in kernel.walk():
        found.extend(_operation(op, chosen))
    return found


def _operation(op: Op, arch: Arch) -> Iterator[Violation]:
    if isinstance(op, Mma):
        yield from _atom(op, arch)
    elif op.verb in SINCE_SM_90 and "sm_90" not in arch.features:
        yield op.violation("target", f"{arch.name} has no {op.verb}", "sm_90a")
    elif is_in_background(op) and "cp_async" not in arch.features:
        yield op.violation("copy_async", f"{arch.name} copies nothing in the background", "copy")
    elif isinstance(op, Copy) and op.engine == "matrix" and not _moves_matrices(op, arch):
        text = f"{arch.name} moves no matrices of 8 rows of 16 bytes from {op.source} to {op.target}"
        yield op.violation("engine", text, "engine='direct', or none: the target chooses")


def _moves_matrices(op: Copy, arch: Arch) -> bool:
    return (op.matrices or matrices_of(op, stores="sm_90" in arch.features)) is not None


def _atom(op: Mma, arch: Arch) -> Iterator[Violation]:
    atom = op.mma.atom
    if not is_listed(atom) or (atom.feature and atom.feature not in arch.features):
        nearest = TENSOR_CORE.get(atom.a_dtype.name)
        usable = nearest is not None and nearest.feature in arch.features and nearest != atom
        yield op.violation(
            "atom",
            f"{arch.name} does not execute {atom}",
            nearest.name if usable and nearest is not None else f"fma({_multiplied(atom.a_dtype)})",
        )
    elif max(atom.a_dtype.components, atom.b_dtype.components, atom.c_dtype.components) > 1:
        yield op.violation("atom", f"{atom} multiplies complex numbers", f"fma({atom.a_dtype.component})")


def _multiplied(dtype: DType) -> DType:
    return dtype.component
