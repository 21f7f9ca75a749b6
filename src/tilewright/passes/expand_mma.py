"""Expansion of matrix multiplies: load operands into registers, one step of K at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeGuard

from tilewright.dtypes import DType
from tilewright.ir.async_ops import MmaAsync, MmaCommit, MmaFence, MmaWait
from tilewright.ir.fragment_ops import Redistribute
from tilewright.ir.integer_ops import loop_index
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Block, Copy, Elementwise, For, FragmentOp, Mma, Op, Reshape
from tilewright.ir.types import Value
from tilewright.passes.pipeline import Pass
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.symbolic.expr import mul
from tilewright.symbolic.nodes import Int
from tilewright.threads.distribution import Distribution, Mode
from tilewright.views.transforms import Tile
from tilewright.views.view import View

MOST_UNROLLED = 64
"""Largest number of iterations of a loop that requests unrolling."""

MOST_MULTIPLY_ADDS = 1024
"""Most multiply-adds of a thread in the unrolled loop of several products.

With 2048, complex products on an H200 took up to 1.3 times as long: a thread needs more registers, and a
multiprocessor reads all instructions of a cold kernel from memory.
"""

MOST_IN_BLOCK = 2048
"""Most multiply-adds of a thread in the unrolled loops of one block of operations.

With 8192, NVRTC 13.0 took 69 s and spilled 18 KB of each thread: it moved the loads of all loops up.
"""


def expand_mma(kernel: Kernel) -> Kernel:
    """Replace each `Mma` that has an operand in shared memory by copies to fragments and an `Mma` of these.

    The result is a loop over K, with `step_depth` elements of K per iteration.  An operand that is already a
    fragment contributes the registers of this iteration.  To subtract a product, the pass negates A and adds.
    Consecutive multiplies by atoms of depth 1 that share operands become one loop; each iteration loads a
    shared operand once for all of them.

    Args:
        kernel: the kernel.
    """
    blocks = [*_blocks(kernel.body)]
    runs = {id(op): run for block in blocks for run in _runs(block) for op in run}
    loops: dict[int, int] = {}  # number of loops that share `MOST_MULTIPLY_ADDS`, by the `id` of a multiply
    for block in blocks:
        ops = [op for op in block.ops if _is_shallow(op)]
        if sum(depth_of(op.a) * op.mma.c().size_values for op in ops) > MOST_IN_BLOCK:
            count = sum(op is runs.get(id(op), (op,))[0] for op in ops)
            loops |= dict.fromkeys(map(id, ops), count)

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Mma):
            return None
        if op.a.is_fragment and op.b.is_fragment:
            return _negated(op, rewriter) if op.negative else None
        run = runs.get(id(op), (op,))
        if op is not run[0]:
            return ()  # the first multiply of the run emitted the loop for all
        depth, extent = max(map(step_depth, run)), depth_of(op.a)
        if extent == depth:
            return _step(run, rewriter, extent, None)
        index = loop_index(rewriter.names.unique("k_step"), 0, extent // depth, 1)
        body = Block(tuple(_step(run, rewriter, depth, index)))
        turns = extent // depth
        factor: bool | int = turns <= MOST_UNROLLED
        each = depth * sum(one.mma.c().size_values for one in run)  # multiply-adds of a thread
        count = loops.get(id(op), 1)
        if (len(run) > 1 or count > 1) and turns * each > (most := MOST_MULTIPLY_ADDS // count):
            factor = 1 << max((most // each).bit_length() - 1, 0)
        return (For(index, 0, turns, 1, body, unroll=factor, location=op.location),)

    return rewrite_kernel(kernel, change)


OPERANDS = Pass(
    "operands",
    "Matrix multiplies load their operands into registers.",
    lambda kernel, arch: expand_mma(kernel),
)


def _blocks(block: Block) -> Iterator[Block]:
    """A block and all blocks inside it."""
    yield block
    for op in block.ops:
        for inner in op.regions:
            yield from _blocks(inner)


def _runs(block: Block) -> Iterator[tuple[Mma, ...]]:
    """Find runs of consecutive multiplies by atoms of depth 1 that share operands."""
    for fits, ops in groupby(block.ops, _is_shallow):
        run = tuple(op for op in ops if isinstance(op, Mma))
        operands = [operand for op in run for operand in (op.a, op.b)]
        alike = len({(op.mma, depth_of(op.a)) for op in run}) == 1
        if fits and alike and len({*operands}) < len(operands):
            yield run


def _is_shallow(op: Op) -> TypeGuard[Mma]:
    """Return whether an operation multiplies two operands in shared memory by an atom of depth 1."""
    return isinstance(op, Mma) and op.mma.tile[2] == 1 and op.a.is_tensor and op.b.is_tensor


ACCESS_BYTES = 16
"""Bytes of the widest access of a thread."""

MOST_DEPTH = 4
"""Largest K step of atoms of depth 1. The registers of a step grow in proportion to it."""


def step_depth(op: Mma) -> int:
    """Return how many elements of K are loaded into registers at once.

    This is normally the atom's depth.  For atoms of depth 1 with K contiguous in shared memory, it is the
    number of k in one access of 16 bytes: an access for a single k would read a single element.

    Args:
        op: a matrix multiply with an operand in shared memory.
    """
    depth, extent = op.mma.tile[2], depth_of(op.a)
    if depth > 1:
        return depth
    widths = [
        k_width(operand.tensor.view, spread(1), operand.dtype, extent)
        for operand, spread in ((op.a, op.mma.a), (op.b, op.mma.b))
        if operand.is_tensor
    ]
    return max(widths)


def k_width(view: View, spread: Distribution, dtype: DType, extent: int) -> int:
    """Return how many consecutive k one access reads; 1 if accesses along M or N are as wide.

    Args:
        view: the view of the operand.
        spread: the distribution of an atom of depth 1.
        dtype: the element type.
        extent: the extent of K.
    """
    most = min(MOST_DEPTH, max(ACCESS_BYTES // dtype.bytes, 1), extent & -extent)
    dim, run = spread.vector()
    along = view.vector_width(dim, min(run & -run, most)) if dim == 0 else 1
    return max(view.vector_width(1, most), 1) if along < most else 1


def loaded_as(op: Mma, operand: Value, depth: int, view: View | None = None) -> Distribution:
    """Return the distribution in which an operand is loaded from shared memory.

    This is the distribution of the multiply.  If accesses are vectors along K, it is one in which
    neighbouring registers hold consecutive k.

    Args:
        op: the multiply.
        operand: one of its operands.
        depth: number of elements of K that are loaded.
        view: the view of the operand in memory; default: its own.
    """
    of = op.mma.a if operand is op.a else op.mma.b
    spread, lies = of(depth), view or operand.tensor.view
    width = k_width(lies, of(1), operand.dtype, depth) if op.mma.tile[2] == 1 and depth > 1 else 1
    if width == 1:
        return spread
    *values, along_k = spread.values
    further = (Mode(along_k.extent // width, 1, width),) if along_k.extent > width else ()
    return replace(spread, values=(Mode(width, 1, 1), *values, *further))


def depth_of(operand: Value) -> int:
    """Return the extent of K of an operand of a multiply."""
    shape = operand.fragment.shape if operand.is_fragment else operand.tensor.shape
    assert isinstance(shape[1], int)
    return shape[1]


def _step(run: Sequence[Mma], rewriter: Rewriter, depth: int, at: Int | None) -> list[Op]:
    """Return the operations of one iteration of multiplies that share a loop."""
    ops: list[Op] = []
    loaded: dict[tuple[Value, bool], Value] = {}
    for op in run:
        for operand in (op.a, op.b):
            key = operand, operand is op.a
            if key not in loaded:
                made, loaded[key] = _loaded(op, operand, rewriter, depth, at)
                ops += made
        whole = replace(op, a=loaded[op.a, True], b=loaded[op.b, False])
        ops += _negated(whole, rewriter) if op.negative else (whole,)
    return ops


def _loaded(
    op: Mma, operand: Value, rewriter: Rewriter, depth: int, at: Int | None
) -> tuple[list[Op], Value]:
    """Return the fragment of an operand in one iteration, and the operations that make it."""
    spread, name = (op.mma.a if operand is op.a else op.mma.b)(depth), f"{operand.buffer.name}_frag"
    if operand.is_fragment:
        if at is None:
            return [], operand
        start = (0, mul(at, depth))
        part = rewriter.define(
            Redistribute, name, op.location, source=operand, start=start, distribution=spread
        )
        return [part], part.result
    ops: list[Op] = []
    source = operand
    if at is not None:
        tile = Tile((spread.shape[0], depth), (0, at))
        step = f"{operand.buffer.name}_step"
        view = rewriter.define(Reshape, step, op.location, source=operand, transform=tile)
        ops.append(view)
        source = view.result
    read = loaded_as(op, operand, depth)
    fragment = rewriter.define(FragmentOp, name, op.location, dtype=operand.dtype, distribution=read)
    copy = Copy(source, fragment.result, location=op.location)
    ops += [fragment, replace(copy, vector=widest_vector(copy))]
    held = fragment.result
    if read != spread:
        renamed = rewriter.define(
            Redistribute, name, op.location, source=held, start=(0, 0), distribution=spread
        )
        ops.append(renamed)
        held = renamed.result
    return ops, held


def _negated(op: Mma, rewriter: Rewriter) -> tuple[Op, ...]:
    """Replace a subtracted product of fragments: negate A, then add the product."""
    name = f"{op.a.buffer.name}_negated"
    made = rewriter.define(Elementwise, name, op.location, function="neg", operands_=(op.a,))
    return made, replace(op, a=made.result, negative=False)


# ---------------------------------------------------------------- synchronous use of asynchronous atoms


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
