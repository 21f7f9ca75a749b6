"""Registers that fragments certainly take: those alive at once where a matrix multiply stands."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import For, FragmentOp, Mma, Op
from tilewright.ir.types import Value


def too_many_registers(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    """The first matrix multiply whose fragments no thread can hold; what an atom loads is not even counted.

    Kernels with roles say themselves how many registers each role has; too many threads are refused as such.
    """
    if kernel.threads > arch.threads or any(isinstance(op, Role) for op in kernel.walk()):
        return
    limit = min(arch.thread_registers, arch.registers_of_each(kernel.threads))
    for op, alive in held_at_multiplies(kernel):
        taken = {value.name: registers_of(value) for value in alive}
        if sum(taken.values()) > limit:
            parts = ", ".join(f"{name} {count}" for name, count in taken.items())
            yield op.violation(
                "registers",
                f"{sum(taken.values())} registers per thread hold fragments here ({parts}); with "
                f"{kernel.threads} threads {arch.name} has {limit}",
                _nearest(op, sum(taken.values()), limit),
            )
            return


def registers_of(fragment: Value) -> int:
    """32-bit registers of a thread that a fragment takes."""
    return -(-fragment.fragment.distribution.size_values * fragment.dtype.bytes // 4)


def held_at_multiplies(kernel: Kernel) -> Iterator[tuple[Mma, list[Value]]]:
    """Each matrix multiply with the fragments, declared before it, that it or something later uses."""
    made: dict[Value, int] = {}
    used: dict[Value, int] = {}
    loops: list[tuple[int, int]] = []
    ops = list(kernel.walk())
    for at, op in enumerate(ops):
        if isinstance(op, For):
            loops.append((at, at + sum(1 for _ in op.body.walk())))
        # The rest, coordinates and what is computed of others, a compiler may compute again where it is used.
        for value in op.results if isinstance(op, FragmentOp) else ():
            made[value] = used[value] = at
        used.update((value, at) for value in op.operands if value in made)
    for value, last in used.items():
        # What a loop uses and something before it made stays until the loop's last turn.
        ends = [stop for start, stop in loops if made[value] < start <= last <= stop]
        used[value] = max([last, *ends])
    for at, op in enumerate(ops):
        if isinstance(op, Mma):
            yield op, [value for value in made if made[value] < at <= used[value]]


def _nearest(op: Op, taken: int, limit: int) -> str:
    """Fewer repeats per warp: the tile shrinks with them."""
    assert isinstance(op, Mma)
    repeats = list(op.mma.repeats)
    while taken > limit and max(repeats) > 1:
        axis = repeats.index(max(repeats))
        taken = taken * (repeats[axis] // 2) // repeats[axis]
        repeats[axis] //= 2
    rows, columns = (
        extent * warps * repeat
        for extent, warps, repeat in zip(op.mma.atom.shape, op.mma.warps, repeats, strict=False)
    )
    return f"repeats={tuple(repeats)}, which is a tile of {rows} x {columns}"
