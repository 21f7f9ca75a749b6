"""Requirements of a kernel that an architecture or a dialect does not meet."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir.async_ops import Role
from tilewright.ir.copies import REDUCTIONS, Copy
from tilewright.ir.fragment_ops import PrefixOp, ReduceOp
from tilewright.ir.kernel import Kernel
from tilewright.ir.mma import MmaAtom
from tilewright.ir.ops import Elementwise, For, FragmentOp, Mma, Op, Shared
from tilewright.ir.types import Value
from tilewright.passes.shared_plan import plan_shared
from tilewright.targets.atoms import is_listed
from tilewright.targets.simt.dialect import SimtDialect

# ----------------------------------------------------------------
#
# Registers: a lower bound from the fragments alive at one matrix multiply.


def too_many_registers(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    """Report the first matrix multiply whose fragments no thread can hold, even without loaded operands.

    Kernels with roles set the registers of each role themselves.  Another rule refuses too many threads.
    """
    if kernel.threads > arch.threads or any(isinstance(op, Role) for op in kernel.walk()):
        return
    limit = min(arch.thread_registers, arch.registers_of_each(kernel.threads))
    for op, alive in held_at_multiplies(kernel):
        taken = {value.name: registers_of(value) for value in alive}
        if sum(taken.values()) > limit:
            parts = ", ".join(f"{name} {count}" for name, count in taken.items())
            rule = f"with {kernel.threads} threads {arch.name} has {limit}"
            text = f"{sum(taken.values())} registers per thread hold fragments here ({parts}); {rule}"
            yield op.violation("registers", text, _nearest(op, sum(taken.values()), limit))
            return


def registers_of(fragment: Value) -> int:
    """Return the 32-bit registers of a thread that a fragment takes."""
    return -(-fragment.fragment.distribution.size_values * fragment.dtype.bytes // 4)


def held_at_multiplies(kernel: Kernel) -> Iterator[tuple[Mma, list[Value]]]:
    """Yield each matrix multiply with the fragments alive there: declared before it, used there or later."""
    made: dict[Value, int] = {}
    used: dict[Value, int] = {}
    loops: list[tuple[int, int]] = []
    ops = list(kernel.walk())
    for at, op in enumerate(ops):
        if isinstance(op, For):
            loops.append((at, at + sum(1 for _ in op.body.walk())))
        # A compiler may recompute all other values (coordinates and derived values) at each use.
        for value in op.results if isinstance(op, FragmentOp) else ():
            made[value] = used[value] = at
        used.update((value, at) for value in op.operands if value in made)
    for value, last in used.items():
        # A fragment declared before a loop and used in it is alive until the loop's last iteration.
        ends = [stop for start, stop in loops if made[value] < start <= last <= stop]
        used[value] = max([last, *ends])
    for at, op in enumerate(ops):
        if isinstance(op, Mma):
            yield op, [value for value in made if made[value] < at <= used[value]]


def _nearest(op: Op, taken: int, limit: int) -> str:
    """Suggest fewer repeats per warp, and thus a smaller tile."""
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
    return f"repeats={tuple(repeats)}, a tile of {rows} x {columns}"


# ---------------------------------------------------------------- the rules


def beyond(
    kernel: Kernel, arch: Arch, dialect: SimtDialect, others: Iterable[Arch] = ()
) -> Iterator[Violation]:
    """Yield every limit that a kernel exceeds: threads, grid, clusters, shared memory, registers, functions.

    Args:
        kernel: the traced kernel.
        arch: the architecture.
        dialect: the target's spelling, which says how it reduces into memory.
        others: the target's architectures; messages name those that could run it.
    """
    yield from _launch(kernel, arch)
    yield from _clusters(kernel, arch, others)
    yield from _shared(kernel, arch)
    yield from too_many_registers(kernel, arch)
    for op in kernel.walk():
        yield from _operation(op, arch, dialect)
        plan = op.plan.runs if isinstance(op, PrefixOp) else op.plan if isinstance(op, ReduceOp) else None
        if plan is not None and kernel.threads % kernel.lanes and plan.lanes:
            whole = -(-kernel.threads // kernel.lanes) * kernel.lanes
            text = f"lanes exchange values in whole warps; the block has {kernel.threads} threads"
            yield op.violation(op.name, text, f"{whole}")


def _launch(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    if kernel.threads > arch.threads:
        text = f"{kernel.threads} threads per block; {arch.name} has at most {arch.threads}"
        yield Violation("threads", text, f"{arch.threads} threads")
    if kernel.lanes not in (arch.lanes, *arch.other_lanes):
        text = f"the kernel is written for warps of {kernel.lanes} lanes, {arch.name} has {arch.lanes}"
        yield Violation("warp size", text, f"atoms of {arch.lanes} lanes")
    if len(kernel.grid) > len(arch.grid):
        yield Violation(
            "grid", f"the grid has {len(kernel.grid)} axes, at most {len(arch.grid)}", "join axes to one"
        )
    for axis, most, letter in zip(kernel.grid, arch.grid, "xyz", strict=False):
        if isinstance(axis.extent, int) and axis.extent > most:
            text = f"{axis.extent} blocks along grid axis {letter} ({axis.sym.name}), at most {most}"
            yield Violation("grid", text, "make it the first axis" if letter != "x" else f"{most} blocks")


def _clusters(kernel: Kernel, arch: Arch, others: Iterable[Arch]) -> Iterator[Violation]:
    blocks = math.prod(member.extent for member in kernel.cluster)
    if blocks > 1 and arch.cluster == 1:
        able = ", ".join(other.name for other in others if other.cluster > 1) or "no clusters"
        yield Violation("cluster", f"clusters of {blocks} blocks; {arch.name} has no clusters", able)
    elif blocks > arch.cluster:
        text = f"clusters of {blocks} blocks; {arch.name} has at most {arch.cluster}"
        yield Violation("cluster", text, f"{arch.cluster} blocks")
    for member in kernel.cluster:
        if member.axis < len(kernel.grid):
            extent = kernel.grid[member.axis].extent
            if isinstance(extent, int) and extent % member.extent:
                nearest = -(-extent // member.extent) * member.extent
                text = f"{extent} blocks along axis {member.axis} are no multiple of {member.extent}"
                yield Violation("cluster", text, f"{nearest} blocks")


def _shared(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    total = kernel.shared_bytes
    if total <= arch.shared_bytes or (total := plan_shared(kernel)[0].shared_bytes) <= arch.shared_bytes:
        return
    tensors = [op for op in kernel.walk() if isinstance(op, Shared)]
    largest = max(tensors, key=lambda op: op.elems * op.dtype.bytes)
    parts = ", ".join(f"{op.result} {op.elems * op.dtype.bytes}" for op in tensors)
    room = arch.shared_bytes - (total - largest.elems * largest.dtype.bytes)
    fewer = 1 << max(room // largest.dtype.bytes, 0).bit_length() >> 1
    nearest = f"{largest.result} of {fewer} elements" if fewer else "fewer stages or smaller tiles for all"
    text = f"{total} bytes of shared memory ({parts}); {arch.name} has {arch.shared_bytes}"
    yield largest.violation("shared bytes", text, nearest)


def _operation(op: Op, arch: Arch, dialect: SimtDialect) -> Iterator[Violation]:
    if isinstance(op, Copy) and op.reduction is not None:
        known = dialect.atomics.get((op.reduction, op.target.dtype.name), ())
        is_kind = op.target.dtype.name in REDUCTIONS.get(op.reduction, ())
        if is_kind and not any(one.feature in ("", *arch.features) for one in known):
            text = f"{arch.name} has no {op.reduction!r} of {op.target.dtype} in memory"
            yield op.violation("reduction", text, "a target of f32")
    elif isinstance(op, Elementwise):
        dtypes = [op.result.dtype, *(v.dtype for v in op.operands_ if isinstance(v, Value))]
        if bad := [dtype for dtype in dtypes if dtype.components > 1]:
            yield op.violation(
                "dtype", f"{op.function} of {bad[0]} is not available", f"two {bad[0].component}"
            )


def not_executed(op: Mma, arch: Arch, usable: MmaAtom | None) -> Iterator[Violation]:
    """Yield a violation if an architecture does not execute a multiply's atom, or its complex numbers.

    Args:
        op: the multiply.
        arch: the architecture.
        usable: the matrix instruction that the error suggests; None: the architecture has none.
    """
    atom = op.mma.atom
    lanes = f"fma({atom.a_dtype.component})"
    if not is_listed(atom) or (atom.feature and atom.feature not in arch.features):
        instead = lanes if usable is None or usable == atom else usable.name
        yield op.violation("atom", f"{arch.name} does not execute {atom}", instead)
    elif max(atom.a_dtype.components, atom.b_dtype.components, atom.c_dtype.components) > 1:
        yield op.violation("atom", f"{atom} multiplies complex numbers", lanes)
