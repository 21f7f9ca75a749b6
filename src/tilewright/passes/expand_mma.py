"""Loading the operands of matrix multiplies into registers, one atom's depth at a time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir.fragment_ops import Redistribute
from tilewright.ir.indices import loop_index
from tilewright.ir.kernel import Kernel
from tilewright.ir.legality import widest_vector
from tilewright.ir.ops import Block, Copy, For, Fragment, Mma, Op, Reshape
from tilewright.ir.types import Value
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.symbolic.expr import mul
from tilewright.symbolic.nodes import Int
from tilewright.views.transforms import Tile


def expand_mma(kernel: Kernel, *, unroll: int = 64) -> Kernel:
    """Every `Mma` with an operand in shared memory: fragments, copies into them, and an `Mma` of fragments.

    They become a loop over K, one atom's depth per turn; an operand that is a fragment already gives the part
    of its registers that belongs to the turn.

    Args:
        kernel: the kernel.
        unroll: loops of up to this many turns ask to be unrolled.
    """

    def change(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if not isinstance(op, Mma) or (op.a.is_fragment and op.b.is_fragment):
            return None
        depth = op.mma.tile[2]
        extent = _depth(op.a)
        if extent == depth:
            return _step(op, rewriter, extent, None)
        index = loop_index(rewriter.names.unique("k_step"), 0, extent // depth, 1)
        body = Block(tuple(_step(op, rewriter, depth, index)))
        turns = extent // depth
        return (For(index, 0, turns, 1, body, unroll=turns <= unroll, location=op.location),)

    return rewrite_kernel(kernel, change)


def _depth(operand: Value) -> int:
    shape = operand.fragment.shape if operand.is_fragment else operand.tensor.shape
    assert isinstance(shape[1], int)
    return shape[1]


def _step(op: Mma, rewriter: Rewriter, depth: int, at: Int | None) -> list[Op]:
    ops: list[Op] = []
    loaded: list[Value] = []
    for operand, spread in ((op.a, op.mma.a(depth)), (op.b, op.mma.b(depth))):
        name = f"{operand.buffer.name}_frag"
        if operand.is_fragment:
            if at is not None:
                start = (0, mul(at, depth))
                part = rewriter.define(
                    Redistribute, name, op.location, source=operand, start=start, distribution=spread
                )
                ops.append(part)
                operand = part.result
            loaded.append(operand)
            continue
        source = operand
        if at is not None:
            tile = Tile((spread.shape[0], depth), (0, at))
            step = f"{operand.buffer.name}_step"
            view = rewriter.define(Reshape, step, op.location, source=operand, transform=tile)
            ops.append(view)
            source = view.result
        fragment = rewriter.define(Fragment, name, op.location, dtype=operand.dtype, distribution=spread)
        copy = Copy(source, fragment.result, location=op.location)
        ops += [fragment, replace(copy, vector=widest_vector(copy))]
        loaded.append(fragment.result)
    return [*ops, replace(op, a=loaded[0], b=loaded[1])]
