"""Legality of elements narrower than a byte: they can only be stored in memory and copied."""

from __future__ import annotations

from collections.abc import Iterator

from tilewright.errors import Violation
from tilewright.ir.copies import Copy
from tilewright.ir.op import Op
from tilewright.ir.packed_ops import in_memory_order
from tilewright.ir.types import BarrierType, Value, VariableType

KEEPS = ("shared", "view", "gather", "peer", "partition", "as_bytes", "copy")
"""Operations with packed operands or results."""


def is_packed(value: object) -> bool:
    """Return whether a value holds elements narrower than a byte."""
    if not isinstance(value, Value) or isinstance(value.type, VariableType | BarrierType):
        return False
    return value.dtype.is_packed


def verify_packed(op: Op) -> Iterator[Violation]:
    """Yield the rules of packed elements that an otherwise legal operation breaks."""
    yield from _verify_use(op)
    if isinstance(op, Copy):
        yield from _verify_copy(op)


def _verify_use(op: Op) -> Iterator[Violation]:
    """Refuse an operation that does more than store and copy packed elements."""
    found = next((v for v in (*op.results, *op.operands) if is_packed(v)), None)
    if found is not None and (op.name not in KEEPS or found.is_fragment):
        what = "kept in registers" if found.is_fragment else f"an operand of {op.verb}"
        yield op.violation(
            "packed",
            f"elements of {found.dtype} share bytes in memory; {found} cannot be {what}",
            f"tw.load(tensor, element=tw.{'f16' if found.dtype.is_float else 'i8'}), which converts them",
        )


def _verify_copy(op: Copy) -> Iterator[Violation]:
    """Check a copy of packed elements: one thread must move whole bytes, synchronously or by `copy_async`."""
    sides = [value for value in (op.source, op.target) if is_packed(value) and value.is_tensor]
    if not sides:
        return
    kind = sides[0].dtype
    if len(sides) == 2 and op.source.dtype != op.target.dtype:
        yield op.violation(
            "packed",
            f"{op.source} is {op.source.dtype}, {op.target} is {op.target.dtype}",
            "through a fragment of a wider type",
        )
    if op.engine == "bulk":
        nearest = "the array of bytes itself, of u8, or tw.copy"
        yield op.violation("packed", f"{op.verb} of packed {kind}", nearest)
        return
    if op.reduction is not None:
        nearest = f"tw.load(tensor, element=tw.{op.target.dtype}), and a copy of what it gives"
        yield op.violation("packed", f"reduction={op.reduction!r} of packed {kind} in memory", nearest)
        return
    if op.other != 0:
        yield op.violation("packed", f"other={op.other} of packed {kind}", "other=0")
        return
    spread = in_memory_order(op.spread) if op.target.is_fragment else op.spread
    dim, run = spread.vector()
    each = kind.per_byte
    steps = [mode.step for mode in (*spread.threads, *spread.values) if mode.dim == dim]
    if run % each or (op.vector or each) % each or any(step % each for step in steps if step != 1):
        taken = run if run % each else op.vector
        yield op.violation(
            "packed",
            f"each thread takes {taken} neighbours of {kind} along dimension {dim}: {each} share a byte, "
            "which one thread must move as a whole",
            f"runs of {each} or more along the dimension that is contiguous, and vectors that are a multiple",
        )
        return
    for side in sides:
        if obstacle := side.tensor.view.vector_obstacle(dim, each):
            apart = f"{each} neighbours of {kind} along dimension {dim} of {side} do not share a byte"
            view = side.tensor.view
            others = (d for d in range(view.rank) if d != dim and not view.vector_obstacle(d, each))
            along = next(others, None)
            nearest = "tiles and slices that begin and end at whole bytes, along the contiguous dimension"
            if along is not None:
                nearest = f"vector_dim={along}, along which they do"
            yield op.violation("packed", f"{apart}: {obstacle}", nearest)
