"""Memory instructions of copies: their vector width, and ``ldmatrix`` and ``stmatrix``.

Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
stmatrix", which is the same in the other direction.  A matrix is 8 rows of 16 bytes; lane ``8*q + r`` gives
the address of row ``r`` of matrix ``q``, and lane ``4*g + t`` receives the four bytes at ``4*t`` of row ``g``
of every matrix.  With ``.trans``, for 2-byte elements, it receives elements ``2*t`` and ``2*t + 1`` of column
``g``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.arch import Arch
from tilewright.dtypes import DType
from tilewright.ir.copies import Copy, Matrices, is_by_threads, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import AsyncCommit, AsyncWait, Mma, Op
from tilewright.ir.types import Memory, Value
from tilewright.passes.pipeline import Pass
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.symbolic.nodes import TRUE
from tilewright.threads.distribution import Distribution, Mode, merge, take
from tilewright.views.view import View


def resolve_vectors(kernel: Kernel) -> Kernel:
    """Give every copy without a vector width the widest legal width on both sides."""

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if is_by_threads(op) and op.vector is None:
            return (replace(op, vector=widest_vector(op)),)
        return None

    return rewrite_kernel(kernel, change)


WIDTHS = Pass(
    "widths",
    "Copies get the widest accesses that are legal.",
    lambda kernel, arch: resolve_vectors(kernel),
)


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
            why = f"{arch.name} has no asynchronous copies"
            if arch.async_bytes:
                why = f"{size} byte{'s' * (size > 1)} at a time are too few for an asynchronous copy"
            notes.append(f"{op.source.buffer} -> {op.target.buffer} is copied synchronously: {why}")
            return (replace(op, engine=None, completion="none"),)
        return None

    return rewrite_kernel(kernel, change), tuple(dict.fromkeys(notes))


# ---------------------------------------------------------------- ldmatrix and stmatrix


MATRIX_LANES = 32
"""Lanes of the warps that have these instructions."""


def matrix_load(view: View, spread: Distribution, dtype: DType) -> Matrices | None:
    """Return how ``ldmatrix`` loads a fragment of this distribution from shared memory; None if it cannot.

    Args:
        view: the shared tensor.
        spread: the fragment's distribution.
        dtype: the element type of both.
    """
    if dtype.bytes not in (1, 2, 4) or view.valid != TRUE or len(spread.threads) < 2:
        return None
    word = 4 // dtype.bytes
    across, down, *warps = spread.threads
    values = list(spread.values)
    if word > 1 and (not values or values.pop(0) != Mode(word, across.dim, 1)):
        return None
    fits = (across.extent, across.step, down.extent, down.step) == (4, word, 8, 1)
    if not fits or across.dim is None or down.dim is None or across.dim == down.dim:
        return None
    for transposed in (False, True) if dtype.bytes == 2 else (False,):
        run, rows = (down.dim, across.dim) if transposed else (across.dim, down.dim)
        width = 16 // dtype.bytes
        steps = [mode.step for mode in (*values, *warps) if mode.dim == run and mode.extent > 1]
        if any(step % width for step in steps) or view.vector_width(run, width) < width:
            continue
        for count in (4, 2, 1):
            if split := take(merge(values), count):
                idle = (Mode(4 // count, None, 0),)
                lanes = (Mode(8, rows, 1), *split[0], *idle, *warps)
                return Matrices(count, transposed, lanes, split[1], word)
    return None


def matrices_of(op: Copy, *, stores: bool) -> Matrices | None:
    """Return how the matrix engine executes a copy whose engine is not chosen yet; None if it cannot.

    Args:
        op: the copy.
        stores: whether the architecture also has matrix stores.
    """
    if op.engine not in (None, "matrix") or op.reduction is not None:
        return None
    source, target = op.source, op.target
    if any(v.is_tensor and (v.tensor.block is not None or v.tensor.indices) for v in (source, target)):
        return None  # matrix rows must be in the block's own shared memory, at known addresses
    match op.way:
        case ("shared", "registers") if source.dtype == target.dtype:
            return matrix_load(source.tensor.view, target.fragment.distribution, source.dtype)
        case ("registers", "shared") if stores and source.fragment.distribution.copies == 1:
            return matrix_load(target.tensor.view, source.fragment.distribution, target.dtype)
    return None


def may_be_by_matrices(op: Op, value: Value, spread: Distribution, lanes: int) -> bool:
    """Return whether lanes of a warp may access a tensor for each other on some target.

    Args:
        op: the operation.
        value: the tensor, one of its operands.
        spread: the distribution of the access.
        lanes: threads of a warp.
    """
    if lanes != MATRIX_LANES or value.tensor.memory is not Memory.SHARED:
        return False
    match op:
        case Copy():
            return op.engine == "matrix" or matrices_of(op, stores=True) is not None
        case Mma():
            return matrix_load(value.tensor.view, spread, value.dtype) is not None
        case _:
            return False
