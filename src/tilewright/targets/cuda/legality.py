"""Requirements of a kernel that a CUDA architecture does not meet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import ASYNC_OPS, Role, RoleBarrier
from tilewright.ir.copies import BULK_VERBS, Copy, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Mma, Op
from tilewright.passes.memory_instructions import matrices_of
from tilewright.targets.atoms import TENSOR_CORE
from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.nvidia import ARCHITECTURES
from tilewright.targets.simt.legality import beyond, not_executed
from tilewright.targets.target import CUDA

# ---------------------------------------------------------------- registers that roles set
#
# A block is launched with the registers of its compiled kernel times its threads.  Roles that lower their
# count return registers to this pool, and roles that raise it wait until the pool has enough.  If it never
# has, ``setmaxnreg`` waits forever.  Source: PTX ISA, "Miscellaneous Instructions: setmaxnreg"; CUDA C++
# Programming Guide, "Compute Capabilities".


def too_many_in_roles(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    """Yield a violation if roles need more registers than a multiprocessor can give the block."""
    if 0 < kernel.threads <= arch.threads:
        most = min(_allocated(arch.thread_registers, arch), arch.registers_of_each(kernel.threads))
        reason = (
            f"{kernel.threads} threads of a multiprocessor's {arch.registers} start with at most {most} each"
        )
        yield from _check(kernel, arch, most, reason)


def too_many_as_compiled(kernel: Kernel, arch: Arch, compiled: int) -> list[Violation]:
    """Return the violation of `too_many_in_roles`, given the compiled kernel's registers per thread."""
    start = _allocated(compiled, arch)
    reason = f"{kernel.threads} threads start with the {start} registers for which the kernel was compiled"
    return list(_check(kernel, arch, start, reason))


def _allocated(registers: int, arch: Arch) -> int:
    return -(-registers // arch.register_unit) * arch.register_unit


def _check(kernel: Kernel, arch: Arch, start: int, reason: str) -> Iterator[Violation]:
    """Yield a violation unless the registers of all warps fit, if each thread starts with ``start``."""
    roles = [op for op in kernel.body.ops if isinstance(op, Role) and op.registers is not None]
    if not roles:
        return
    lanes, warps = kernel.lanes, -(-kernel.threads // kernel.lanes)
    wanted = [0] * warps
    for role in roles:
        for warp in range(role.first, min(role.first + role.warps, warps)):
            wanted[warp] = max(wanted[warp], role.registers or 0)
    wanted = [count or start for count in wanted]
    if lanes * sum(wanted) <= start * kernel.threads:
        return
    largest = max(roles, key=lambda role: role.registers or 0)
    parts = " + ".join(f"{count} x {lanes * len(list(same))}" for count, same in groupby(wanted))
    yield largest.violation(
        "registers",
        f"the roles take {parts} = {lanes * sum(wanted)} registers at once, and the block has "
        f"{start * kernel.threads}: {reason}; a role would wait for ever for registers of the others",
        _nearest(wanted, largest, start * kernel.threads // lanes, arch),
    )


def _nearest(wanted: Sequence[int], largest: Role, most: int, arch: Arch) -> str:
    """Suggest fewer registers for the warps that request the most."""
    top = largest.registers or 0
    greedy = sum(count == top for count in wanted)
    left, unit = most - sum(count for count in wanted if count != top), arch.register_unit
    fits = left // greedy // unit * unit
    return f"registers={fits} instead of {top}" if fits >= arch.role_registers[0] else "fewer warps"


# ---------------------------------------------------------------- the rules


SINCE_SM_90 = {op.name for op in ASYNC_OPS} - {Role.name, RoleBarrier.name} | {*BULK_VERBS}
"""The verbs of bulk copies, asynchronous MMA, dependent launches."""


def violations(kernel: Kernel, arch: Arch | str) -> list[Violation]:
    """Return every rule of an architecture that a kernel breaks, with the nearest legal choice.

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
        nearest = TENSOR_CORE.get(op.mma.atom.a_dtype.name)
        usable = None if nearest is None or nearest.feature not in arch.features else nearest
        yield from not_executed(op, arch, usable)
    elif op.verb in SINCE_SM_90 and "sm_90" not in arch.features:
        yield op.violation("target", f"{arch.name} has no {op.verb}", "sm_90a")
    elif is_in_background(op) and "cp_async" not in arch.features:
        yield op.violation("copy_async", f"{arch.name} has no asynchronous copies", "copy")
    elif isinstance(op, Copy) and op.engine == "matrix":
        how = op.matrices or matrices_of(op, stores="sm_90" in arch.features)
        text = f"{arch.name} moves no matrices of 8 rows of 16 bytes from {op.source} to {op.target}"
        if how is None:
            yield op.violation("engine", text, "engine='direct', or no engine= to let the target choose")
