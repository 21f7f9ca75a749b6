"""Mutants of background operations: waits, arrivals, phases, bytes, fences, groups, coordinates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from functools import partial
from itertools import pairwise

from tilewright.ir import async_ops as ops
from tilewright.ir.builder import make
from tilewright.ir.copies import Copy, is_bulk, is_bulk_load
from tilewright.ir.kernel import Kernel
from tilewright.ir.op import Block, Op
from tilewright.ir.ops import Barrier, Reshape
from tilewright.ir.types import BarrierType, Value
from tilewright.symbolic.expr import add, all_of, less, mod, mul
from tilewright.symbolic.rebuilding import substitute
from tilewright.views.view import View

Change = Callable[[Op], tuple[Op, ...]]


def remade(op: Op, **changes: object) -> Op:
    """Return the operation with other attributes, and with a result that follows from them."""
    [result] = op.results
    assert isinstance(result, Value)
    kept = {f.name: getattr(op, f.name) for f in fields(op) if f.name not in ("location", "result")}
    return make(type(op), result.name, op.location, **{**kept, **changes})


def changed(**changes: object) -> Change:
    """Return a change that replaces attributes."""
    return lambda op: (replace(op, **changes),)


def asynchronous_changes(op: Op) -> Iterator[tuple[str, Change]]:
    """Yield every small change of an asynchronous operation."""
    match op:
        case ops.MBarrier():
            for by in (1, -1):
                yield (
                    f"arrivals {by:+}",
                    lambda op, by=by: (remade(op, arrivals=op.arrivals + by),),
                )
            yield "one stage fewer", lambda op: (remade(op, stages=op.stages - 1),)
        case ops.Wait():
            yield "removed", lambda op: ()
            yield "other parity", lambda op: (replace(op, parity=add(1, mul(op.parity, -1))),)
            if op.parity != 0:
                yield "always parity 0", changed(parity=0)
            yield from _other_stages()
        case ops.Arrive():
            yield "removed", lambda op: ()
            yield "twice", lambda op: (op, op)
            yield f"each {_other(op.each)}", lambda op: (replace(op, each=_other(op.each)),)
            yield from _other_stages()
            if op.block is not None:
                yield "its own block", changed(block=None)
                yield "the next block", lambda op: (replace(op, block=add(op.block, 1)),)
            if op.expect_bytes:
                for by in (16, -16, -op.expect_bytes):
                    yield f"bytes {by:+}", changed(expect_bytes=op.expect_bytes + by)
        case Copy(engine="bulk"):
            yield "removed", lambda op: ()
            for dim in range(op.ends[0].buffer.tensor.view.rank):
                for by in (8, -8):
                    yield f"coordinate {dim} {by:+}", _moved(dim, by)
            if is_bulk_load(op):
                yield "twice", lambda op: (op, op)
                yield from _other_stages()
                if op.multicast:
                    yield "to one block", changed(multicast=())
        case ops.BulkWait() | ops.MmaWait():
            yield "removed", lambda op: ()
            yield "one more pending", lambda op: (replace(op, pending=op.pending + 1),)
            if op.pending:
                yield "one fewer pending", lambda op: (replace(op, pending=op.pending - 1),)
        case ops.RoleBarrier():
            yield "removed", lambda op: ()
            for by in (32, -32, -op.threads // 2):
                yield f"threads {by:+}", changed(threads=op.threads + by)
            yield "another number", changed(number=op.number + 1)
        case ops.ClusterBarrier():
            yield "removed", lambda op: ()
            yield "of the block alone", lambda op: (Barrier(location=op.location),)
        case ops.Role():
            yield "removed", lambda op: ()
            yield "one warp fewer", lambda op: (replace(op, count=op.count - 1),)
            yield "one warp later", lambda op: (replace(op, first=op.first + 1),)
            yield "for all warps around it", lambda op: op.body.ops
        case ops.BulkCommit() | ops.FenceAsync() | ops.MmaFence() | ops.MmaAsync() | ops.MmaCommit():
            yield "removed", lambda op: ()
            if isinstance(op, ops.MmaCommit | ops.MmaAsync):
                yield "twice", lambda op: (op, op)
        case _:
            return


def swaps(kernel: Kernel) -> Iterator[tuple[str, Callable[[], Kernel]]]:
    """Yield the kernel with two neighbouring operations swapped, if one of them is asynchronous."""
    counts: dict[str, int] = {}
    numbers: dict[int, str] = {}
    blocks = [kernel.body]
    for op in kernel.walk():
        counts[op.verb] = counts.get(op.verb, -1) + 1
        numbers[id(op)] = f"{op.verb} {counts[op.verb]}"
        blocks.extend(op.regions)
    for block in blocks:
        for at, (one, other) in enumerate(pairwise(block.ops)):
            apart = not (one.results or other.results or isinstance(one, ops.Role))
            if apart and any(isinstance(op, ops.ASYNC_OPS) or is_bulk(op) for op in (one, other)):
                swapped = Block((*block.ops[:at], other, one, *block.ops[at + 2 :]))
                name = f"{numbers[id(one)]}: after {numbers[id(other)]}"
                yield name, partial(_with_body, kernel, block, swapped)


def _with_body(kernel: Kernel, old: Block, new: Block) -> Kernel:
    return replace(kernel, body=_with_block(kernel.body, old, new))


def _with_block(block: Block, old: Block, new: Block) -> Block:
    if block is old:
        return new
    return Block(tuple(_with_region(op, old, new) for op in block.ops))


def _with_region(op: Op, old: Block, new: Block) -> Op:
    regions = {f.name: v for f in fields(op) if isinstance(v := getattr(op, f.name), Block)}
    return replace(op, **{name: _with_block(v, old, new) for name, v in regions.items()}) if regions else op


def _other(each: str) -> str:
    return "role" if each == "warp" else "warp"


def _other_stages() -> Iterator[tuple[str, Change]]:
    yield "next stage", lambda op: (replace(op, stage=add(op.stage, 1)),)
    yield "next stage, around", _turned_stage


def _turned_stage(op: Op) -> tuple[Op, ...]:
    kind = op.barrier.type
    assert isinstance(kind, BarrierType)
    return (replace(op, stage=mod(add(op.stage, 1), kind.stages)),)


@dataclass(frozen=True)
class Moved:
    """A transform that gives one view."""

    view: View

    def apply(self, view: View) -> View:
        """See `Transform.apply`."""
        return self.view


def _moved(dim: int, by: int) -> Change:
    """The box begins at another place along one dimension of its tensor; the tensor's edges cut it."""

    def change(op: Copy) -> tuple[Op, ...]:
        side, _ = op.ends
        view, whole = side.tensor.view, side.buffer.tensor.view
        index = tuple(add(i, by) if d == dim else i for d, i in enumerate(view.base_coordinates))
        places = dict(zip(whole.coords, index, strict=True))
        inside = (all_of(less(-1, i), less(i, n)) for i, n in zip(index, whole.shape, strict=True))
        moved = replace(view, offset=substitute(whole.offset, places), valid=all_of(*inside), index=index)
        value = Value(f"{side.name}_moved", replace(side.tensor, view=moved), side.buffer)
        end = {"source" if side is op.source else "target": value}
        return Reshape(value, side.buffer, Moved(moved), location=op.location), replace(op, **end)

    return change
