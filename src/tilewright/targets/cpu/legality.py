"""The rules of the CPU target, and what to write instead of the operations that it refuses."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.arch import Arch
from tilewright.errors import Violation
from tilewright.ir import async_ops, copies
from tilewright.ir.copies import BULK_VERBS, is_bulk
from tilewright.ir.deadlocks import first_wait
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Elementwise, Mma, Op
from tilewright.ir.signal_ops import Await
from tilewright.ir.types import ScalarType, Value
from tilewright.targets.target import CPU

INSTEAD: dict[str, str] = {
    async_ops.Role.name: "the same operations for all warps",
    **dict.fromkeys(BULK_VERBS, "tw.copy"),
    async_ops.MmaAsync.name: "tw.mma",
    async_ops.MmaFence.name: "tw.mma, without a fence",
    async_ops.MmaCommit.name: "tw.mma, without a commit",
    async_ops.MmaWait.name: "tw.mma, without a wait",
    async_ops.BulkCommit.name: "tw.copy, without a commit",
    async_ops.BulkWait.name: "tw.copy, without a wait",
    async_ops.FenceAsync.name: "tw.copy, without a fence",
    async_ops.ClusterArrive.name: "nothing here, and tw.barrier instead of the wait",
    async_ops.Peer.name: "a tw.workspace, which all blocks can access",
    copies.ByMap.name: "the view itself; tw.copy moves its tiles",
    copies.AcquireMap.name: "tw.copy, without a tensor map",
    async_ops.PriorGridWait.name: "two launches in order, without a wait",
    async_ops.LaunchDependents.name: "two launches in order, without a signal",
}
"""Replacements of asynchronous operations, by name; ``tw.barrier`` if the name is missing."""


def violations(kernel: Kernel, arch: Arch | str) -> list[Violation]:
    """Return every rule of the target that a kernel breaks, with the nearest legal choice.

    Args:
        kernel: the traced kernel.
        arch: the architecture, or its name.

    Raises:
        LaunchError: no such architecture.
    """
    CPU.architecture(arch)
    found: list[Violation] = []
    seen: set[str] = set()  # each kind of asynchronous operation is reported once, at its first line
    for op in kernel.walk():
        if (isinstance(op, async_ops.ASYNC_OPS) or is_bulk(op)) and op.verb not in seen:
            seen.add(op.verb)
            text = f"{op.verb} runs on cuda and reference; on a CPU, one thread runs the whole block"
            found.append(op.violation("target", text, INSTEAD.get(op.verb, "tw.barrier")))
    return [*found, *endless_waits(kernel), *(broken for op in kernel.walk() for broken in _operation(op))]


def _operation(op: Op) -> Iterator[Violation]:
    values = [v for v in (*op.operands, *op.results) if isinstance(v, Value)]
    dtypes = [v.dtype for v in values if v.is_tensor or v.is_fragment or isinstance(v.type, ScalarType)]
    complex_dtype = next((dtype for dtype in dtypes if dtype.components > 1), None)
    if isinstance(op, Mma):
        atom = op.mma.atom
        if complex_dtype is None and atom.c_dtype.is_float != (
            atom.a_dtype.is_float and atom.b_dtype.is_float
        ):
            text = f"{atom} multiplies {atom.a_dtype} by {atom.b_dtype} into {atom.c_dtype}"
            yield op.violation("atom", text, "an accumulator of the same kind as the operands")
    if complex_dtype is None:
        return
    if isinstance(op, Mma | Elementwise):
        yield op.violation(
            "dtype",
            f"the cpu target moves {complex_dtype} but does not compute with it",
            f"two {complex_dtype.component}: a.real and a.imag as arrays of their own, or tw.complex_matmul",
        )


# ---------------------------------------------------------------- counters between blocks
#
# A block may wait only for blocks with lower numbers.  Threads take blocks in order, so those have started,
# and the lowest running block never waits.  A wait for a higher number may never end: if all threads wait for
# some seconds, the launch stops with an error that names the line.


ORDER = "blocks run in order, and on a CPU a block may wait only for blocks of lower numbers"


def waits(kernel: Kernel) -> list[Await]:
    """Return the waits of a kernel, in program order."""
    return [op for op in kernel.walk() if isinstance(op, Await)]


def endless_waits(kernel: Kernel) -> Iterator[Violation]:
    """Yield a wait that never ends: one of the first block, which has no block before it."""
    op = first_wait(kernel)
    if op is not None:
        text = f"the first block waits until {op.counter} is {op.value}; {ORDER}"
        yield op.violation("counter", text, "a wait for 0 in the first block, or a GPU")


def why_stuck(kernel: Kernel, number: int) -> str:
    """Return the message for a launch whose wait with this number did not end."""
    op: Op = waits(kernel)[number - 1]
    where = "" if op.location is None else f"\n{op.location.excerpt()}"
    return (
        f"kernel {kernel.name}: all threads that run blocks waited, and none can go on; {ORDER}: "
        f"nearest legal choice: number the blocks so that each waits for those before it{where}"
    )
