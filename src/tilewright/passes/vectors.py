"""Choosing the width of memory accesses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.copies import is_by_threads, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Op
from tilewright.passes.rewrite import Rewriter, rewrite_kernel


def resolve_vectors(kernel: Kernel) -> Kernel:
    """Give every copy without a vector width the widest one that is legal on both sides."""

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if is_by_threads(op) and op.vector is None:
            return (replace(op, vector=widest_vector(op)),)
        return None

    return rewrite_kernel(kernel, change)


def settle_async(kernel: Kernel) -> tuple[Kernel, tuple[str, ...]]:
    """Do at once what cannot be copied in the background: accesses of fewer than 4 bytes.

    An ordinary copy has completed where an asynchronous one may still be under way, so nothing that holds of
    the asynchronous copy fails for it.  Widths must be resolved.

    Returns:
        The kernel, and a note for each pair of tensors.
    """
    notes: list[str] = []

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if is_in_background(op) and op.vector and op.vector * op.source.dtype.bytes < 4:
            size = op.vector * op.source.dtype.bytes
            notes.append(
                f"{op.source.buffer} -> {op.target.buffer} is copied at once: "
                f"{size} byte{'s' * (size > 1)} at a time are too few for a copy in the background"
            )
            return (replace(op, engine=None, completion="none"),)
        return None

    return rewrite_kernel(kernel, change), tuple(dict.fromkeys(notes))
