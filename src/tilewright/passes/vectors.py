"""Choice of the width of memory accesses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.arch import Arch
from tilewright.ir.copies import is_by_threads, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import AsyncCommit, AsyncWait, Op
from tilewright.passes.rewrite import Rewriter, rewrite_kernel


def resolve_vectors(kernel: Kernel) -> Kernel:
    """Give every copy without a vector width the widest legal width on both sides."""

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if is_by_threads(op) and op.vector is None:
            return (replace(op, vector=widest_vector(op)),)
        return None

    return rewrite_kernel(kernel, change)


def settle_async(kernel: Kernel, arch: Arch) -> tuple[Kernel, tuple[str, ...]]:
    """Make copies synchronous if the architecture cannot run them asynchronously: narrow ones, or all.

    An ordinary copy is complete earlier than an asynchronous one, so every guarantee of the asynchronous copy
    holds for it as well.  On an architecture without asynchronous copies, their commits and waits are
    dropped.  Widths must be resolved.

    Returns:
        The kernel, and a note for each pair of tensors.
    """
    notes: list[str] = []

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not arch.async_bytes and isinstance(op, AsyncCommit | AsyncWait):
            return ()
        if is_in_background(op) and op.vector and op.vector * op.source.dtype.bytes not in arch.async_bytes:
            size = op.vector * op.source.dtype.bytes
            why = f"{arch.name} copies nothing in the background"
            if arch.async_bytes:
                why = f"{size} byte{'s' * (size > 1)} at a time are too few for a copy in the background"
            notes.append(f"{op.source.buffer} -> {op.target.buffer} is copied at once: {why}")
            return (replace(op, engine=None, completion="none"),)
        return None

    return rewrite_kernel(kernel, change), tuple(dict.fromkeys(notes))
