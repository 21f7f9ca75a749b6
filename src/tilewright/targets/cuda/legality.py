"""What a kernel asks of CUDA that an architecture does not have."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.errors import Violation
from tilewright.ir.async_ops import ASYNC_OPS, Role, RoleBarrier
from tilewright.ir.copies import BULK_VERBS, Copy, is_in_background
from tilewright.ir.fragment_ops import Reduce
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Elementwise, Mma, Op, Shared
from tilewright.ir.types import Value
from tilewright.passes.shared_plan import plan_shared
from tilewright.targets.atoms import TENSOR_CORE, is_listed
from tilewright.targets.cuda.prelude import DIALECT
from tilewright.targets.cuda.registers import too_many_registers
from tilewright.targets.cuda.role_registers import too_many_in_roles
from tilewright.targets.simt.matrices import matrices_of
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
    found = [*_launch(kernel, chosen), *_clusters(kernel, chosen), *_shared(kernel, chosen)]
    found += [*too_many_registers(kernel, chosen), *too_many_in_roles(kernel, chosen)]
    for op in kernel.walk():
        found.extend(_operation(op, chosen))
        if isinstance(op, Reduce) and kernel.threads % chosen.lanes and op.plan.lanes:
            whole = -(-kernel.threads // chosen.lanes) * chosen.lanes
            text = f"lanes exchange values in whole warps; the block has {kernel.threads} threads"
            found.append(op.violation("reduce", text, f"{whole}"))
    return found


def _launch(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    if kernel.threads > arch.threads:
        yield Violation(
            "threads",
            f"{kernel.threads} threads per block; {arch.name} has at most {arch.threads}",
            f"{arch.threads} threads",
        )
    in_background = any(isinstance(op, Mma) and _is_asynchronous(op) for op in kernel.walk())
    if kernel.lanes != arch.lanes and not in_background:
        yield Violation(
            "warp size",
            f"the kernel is written for warps of {kernel.lanes} lanes, {arch.name} has {arch.lanes}",
            f"atoms of {arch.lanes} lanes",
        )
    if len(kernel.grid) > len(arch.grid):
        yield Violation(
            "grid", f"the grid has {len(kernel.grid)} axes, at most {len(arch.grid)}", "join axes to one"
        )
    for axis, most, letter in zip(kernel.grid, arch.grid, "xyz", strict=False):
        if isinstance(axis.extent, int) and axis.extent > most:
            yield Violation(
                "grid",
                f"{axis.extent} blocks along grid axis {letter} ({axis.sym.name}), at most {most}",
                "make it the first axis" if letter != "x" else f"{most} blocks",
            )


def _clusters(kernel: Kernel, arch: Arch) -> Iterator[Violation]:
    blocks = math.prod(member.extent for member in kernel.cluster)
    if blocks > 1 and "cluster" not in arch.features:
        yield Violation("cluster", f"clusters of {blocks} blocks; {arch.name} has no clusters", "sm_90a")
    elif blocks > arch.cluster:
        yield Violation(
            "cluster",
            f"clusters of {blocks} blocks; {arch.name} has at most {arch.cluster}",
            f"{arch.cluster} blocks",
        )
    for member in kernel.cluster:
        if member.axis < len(kernel.grid):
            extent = kernel.grid[member.axis].extent
            if isinstance(extent, int) and extent % member.extent:
                nearest = -(-extent // member.extent) * member.extent
                yield Violation(
                    "cluster",
                    f"{extent} blocks along axis {member.axis} are no multiple of {member.extent}",
                    f"{nearest} blocks",
                )


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
    yield largest.violation(
        "shared bytes",
        f"{total} bytes of shared memory ({parts}); {arch.name} has {arch.shared_bytes}",
        nearest,
    )


def _operation(op: Op, arch: Arch) -> Iterator[Violation]:
    if isinstance(op, Mma):
        yield from _atom(op, arch)
    elif op.verb in SINCE_SM_90 and "sm_90" not in arch.features:
        yield op.violation("target", f"{arch.name} has no {op.verb}", "sm_90a")
    elif is_in_background(op) and "cp_async" not in arch.features:
        yield op.violation("copy_async", f"{arch.name} copies nothing in the background", "copy")
    elif isinstance(op, Copy) and op.engine == "matrix":
        if (op.matrices or matrices_of(op, stores="sm_90" in arch.features)) is None:
            text = f"{arch.name} moves no matrices of 8 rows of 16 bytes from {op.source} to {op.target}"
            yield op.violation("engine", text, "engine='direct', or none: the target chooses")
    elif isinstance(op, Copy) and op.reduction is not None:
        known = DIALECT.atomics.get((op.reduction, op.target.dtype.name), ())
        if known and not any(one.feature in ("", *arch.features) for one in known):
            text = f"{arch.name} has no {op.reduction!r} of {op.target.dtype} in memory"
            yield op.violation("reduction", text, "a target of f32")
    elif isinstance(op, Elementwise):
        dtypes = [op.result.dtype, *(v.dtype for v in op.operands_ if isinstance(v, Value))]
        if bad := [dtype for dtype in dtypes if dtype.components > 1]:
            yield op.violation(
                "dtype", f"{op.function} of {bad[0]} is not available", f"two {bad[0].component}"
            )


def _atom(op: Mma, arch: Arch) -> Iterator[Violation]:
    atom = op.mma.atom
    if _is_asynchronous(op) and atom.feature in arch.features:
        yield op.violation(
            "atom",
            f"{atom} multiplies in the background, which tw.mma does not wait for",
            "tw.hopper.mma_async(a, b, acc) after tw.hopper.mma_fence, then tw.hopper.mma_commit and "
            "tw.hopper.mma_wait",
        )
        return
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


def _is_asynchronous(op: Mma) -> bool:
    """Whether the atom is one of asynchronous multiplies."""
    return op.mma.atom.asynchronous


def _multiplied(dtype: DType) -> DType:
    return dtype.component
