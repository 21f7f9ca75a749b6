"""Lowering of a synchronous multiply by an asynchronous atom."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeGuard

from tilewright.ir.async_ops import MmaAsync, MmaCommit, MmaFence, MmaWait
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Mma, Op
from tilewright.passes.rewrite import Rewriter, rewrite_kernel


def wait_for_multiplies(kernel: Kernel) -> Kernel:
    """Replace each `Mma` by an asynchronous atom with a fence, the multiply, a commit and a wait."""
    if not any(map(_is_asynchronous, kernel.walk())):
        return kernel

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not _is_asynchronous(op):
            return None
        at = op.location
        multiply = MmaAsync(op.a, op.b, op.c, op.mma, negative=op.negative, location=at)
        return (MmaFence(location=at), multiply, MmaCommit(location=at), MmaWait(0, location=at))

    return rewrite_kernel(kernel, change)


def _is_asynchronous(op: Op) -> TypeGuard[Mma]:
    return isinstance(op, Mma) and op.mma.atom.asynchronous
