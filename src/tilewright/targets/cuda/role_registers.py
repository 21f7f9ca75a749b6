"""The registers that roles set must fit what the block was launched with: else `setmaxnreg` waits for ever.

A block is launched with the registers that its kernel was compiled for, times its threads.  Roles that give
registers up return them to that pool, roles that ask for more wait until the pool has them.

Source: PTX ISA, "Miscellaneous Instructions: setmaxnreg"; CUDA C++ Programming Guide, "Compute Capabilities".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel


def too_many_in_roles(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    """Roles whose registers exceed what a multiprocessor can launch the block with."""
    if 0 < kernel.threads <= arch.threads:
        most = min(_allocated(arch.thread_registers, arch), arch.registers_of_each(kernel.threads))
        reason = f"{kernel.threads} threads of a multiprocessor's {arch.registers} start with at most {most}"
        yield from _check(kernel, arch, most, reason)


def too_many_as_compiled(kernel: Kernel, arch: Arch, compiled: int) -> list[Violation]:
    """The same for the registers per thread that the kernel was compiled to."""
    start = _allocated(compiled, arch)
    reason = f"{kernel.threads} threads start with the {start} that the kernel was compiled for"
    return list(_check(kernel, arch, start, reason))


def _allocated(registers: int, arch: Arch) -> int:
    return -(-registers // arch.register_unit) * arch.register_unit


def _check(kernel: Kernel, arch: Arch, start: int, reason: str) -> Iterator[Violation]:
    """Whether the registers of all warps fit, of which each thread has ``start`` in the beginning."""
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
        f"{start * kernel.threads}: {reason}; a role would wait for the others' for ever",
        _nearest(wanted, largest, start * kernel.threads // lanes, arch),
    )


def _nearest(wanted: Sequence[int], largest: Role, most: int, arch: Arch) -> str:
    """Fewer registers for the warps that ask for the most."""
    top = largest.registers or 0
    greedy = sum(count == top for count in wanted)
    left, unit = most - sum(count for count in wanted if count != top), arch.register_unit
    fits = left // greedy // unit * unit
    return f"registers={fits} instead of {top}" if fits >= arch.role_registers[0] else "fewer warps"
