"""Requirements of a kernel that an AMD architecture does not meet."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import ASYNC_OPS, Role, RoleBarrier
from tilewright.ir.copies import BULK_VERBS, Copy
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Mma, Op
from tilewright.targets.amd import ARCHITECTURES
from tilewright.targets.hip.prelude import DIALECT
from tilewright.targets.matrix_cores import nearest
from tilewright.targets.simt.legality import beyond, not_executed
from tilewright.targets.target import CUDA, HIP, REFERENCE

NOT_ON_AMD = {op.name for op in ASYNC_OPS} - {Role.name, RoleBarrier.name} | {*BULK_VERBS}
"""The verbs of transaction barriers, of bulk copies, of asynchronous MMA, of dependent launches."""


def violations(kernel: Kernel, arch: Arch | str) -> list[Violation]:
    """Return every rule of an architecture that a kernel breaks, with the nearest legal choice.

    Args:
        kernel: the traced kernel.
        arch: the architecture, or its name.
    """
    chosen = HIP.architecture(arch)
    found = list(beyond(kernel, chosen, DIALECT, ARCHITECTURES.values()))
    for op in kernel.walk():
        found.extend(_operation(op, chosen, kernel.threads))
    return found


def _operation(op: Op, arch: Arch, threads: int) -> Iterator[Violation]:
    if isinstance(op, Mma):
        atom = op.mma.atom
        yield from not_executed(op, arch, nearest(atom.a_dtype, atom.c_dtype, arch.features))
    elif op.verb in NOT_ON_AMD:
        others = f"target {CUDA.name} or {REFERENCE.name}"
        yield op.violation("target", f"{arch.name} has no {op.verb}", others)
    elif isinstance(op, Role) and op.registers is not None:
        text = (
            f"registers={op.registers} for a role; on {arch.name} all waves of a kernel have the same number"
        )
        yield op.violation("registers", text, "registers=None")
    elif isinstance(op, RoleBarrier) and op.threads != threads:
        text = (
            f"a barrier of {op.threads} threads; on {arch.name} a barrier is for all {threads} threads "
            "of a block"
        )
        yield op.violation("role_barrier", text, f"threads={threads}")
    elif isinstance(op, Copy) and op.engine == "matrix":
        text = f"{arch.name} has no matrix copy from {op.source} to {op.target}"
        yield op.violation("engine", text, "engine='direct', or no engine= to let the target choose")
