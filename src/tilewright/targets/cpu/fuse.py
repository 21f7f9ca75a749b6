"""Neighbouring operations on single elements of fragments share one loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.ops import Block, Copy, Elementwise, Fill, For, FragmentOp, If, Op
from tilewright.ir.types import FragmentType, Value
from tilewright.threads.distribution import Distribution


@dataclass(frozen=True)
class Pointwise(Op):
    """Operations on single elements, done for one element after the other; exists only while text is emitted.

    Args:
        ops: in program order.
        distribution: of every fragment that they name.
        stored: the fragments whose new contents others read.
    """

    name = "pointwise"
    roles: ClassVar = {}
    ops: tuple[Op, ...]
    distribution: Distribution
    stored: tuple[Value, ...]


def _distribution(op: Op) -> Distribution | None:
    """The distribution of all fragments of an operation on single elements; None for other operations."""
    if not isinstance(op, Elementwise | Coordinates | Fill | Copy | FragmentOp):
        return None
    if isinstance(op, Elementwise):  # whose operands may be broadcast
        return op.result.type.distribution if isinstance(op.result.type, FragmentType) else None
    values = [v for v in (*op.operands, *op.results) if isinstance(v, Value)]
    if any(v.is_tensor for v in values) or (isinstance(op, FragmentOp) and op.fill is None):
        return None
    spreads = {v.type.distribution for v in values if isinstance(v.type, FragmentType)}
    return spreads.pop() if len(spreads) == 1 else None


def made_by(op: Op) -> Value:
    """The fragment that an operation on single elements gives new contents."""
    found: Value = op.results[0] if op.results else op.written[0]
    return found


def fuse(block: Block) -> Block:
    """The block with every run of operations on single elements as one `Pointwise`."""
    readers: Counter[Value] = Counter()
    for op in block.walk():
        readers.update(set(op.read))
    return _fused(block, readers)


def _fused(block: Block, readers: Counter[Value]) -> Block:
    ops: list[Op] = []
    for group in _groups(block):
        spread = _distribution(group[0])
        if spread is None:
            ops.append(_inside(group[0], readers))
            continue
        inside = Counter(value for op in group for value in set(op.read))
        made = dict.fromkeys(made_by(op) for op in group)
        own = {op.results[0] for op in group if isinstance(op, Elementwise | Coordinates)}
        # What the group does not define itself may be read before it is written, in the next turn of a loop.
        stored = tuple(v for v in made if v not in own or readers[v] > inside[v])
        ops.append(Pointwise(group, spread, stored, location=group[0].location))
    return Block(tuple(ops))


def _inside(op: Op, readers: Counter[Value]) -> Op:
    match op:
        case For():
            return replace(op, body=_fused(op.body, readers))
        case If():
            return replace(op, then=_fused(op.then, readers), otherwise=_fused(op.otherwise, readers))
        case _:
            return op


def _groups(block: Block) -> Iterator[tuple[Op, ...]]:
    run: list[Op] = []
    for op in block.ops:
        if isinstance(op, FragmentOp) and op.fill is None:
            yield (op,)  # declares only, so it may come before the run
            continue
        spread = _distribution(op)
        if run and (spread is None or spread != _distribution(run[0])):
            yield tuple(run)
            run = []
        if spread is None:
            yield (op,)
        else:
            run.append(op)
    if run:
        yield tuple(run)
