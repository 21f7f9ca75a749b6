"""Two copies that follow each other, of arrays that may lie side by side: parts of complex numbers.

Where they do, one loop copies both: it reads or writes whole lines once, and the compiler makes vector code
of it, which picks the parts of a vector apart, or puts them together.  Only the running kernel knows; where
they do not, each is copied as any other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.kernel import Kernel, Stride
from tilewright.ir.ops import Block, Copy, For, If, Op, Reshape
from tilewright.ir.types import Memory, Value
from tilewright.symbolic.nodes import TRUE, Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.cpu.emitter import Side
from tilewright.targets.cpu.loops import coalesced, in_pairs, nest


@dataclass(frozen=True)
class Twins(Op):
    """Two copies of equal tiles of two arrays; exists only while text is emitted.

    Args:
        copies: both, in program order.
        steps: the strides of the second array, each with that of the first that it is to equal.
    """

    name = "twins"
    roles: ClassVar = {}
    copies: tuple[Copy, Copy]
    steps: tuple[tuple[Sym, Sym], ...]

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return tuple(value for one in self.copies for value in one.operands)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return tuple(value for one in self.copies for value in one.read)

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return tuple(value for one in self.copies for value in one.written)


def pair(block: Block, kernel: Kernel) -> Block:
    """The block with copies that follow each other as `Twins`, where their arrays may lie side by side."""
    ops: list[Op] = []
    for op in block.ops:
        match op:
            case For():
                ops.append(replace(op, body=pair(op.body, kernel)))
            case If():
                ops.append(replace(op, then=pair(op.then, kernel), otherwise=pair(op.otherwise, kernel)))
            case _:
                ops.append(op)
    return Block(paired(ops, kernel))


def paired(ops: Sequence[Op], kernel: Kernel) -> tuple[Op, ...]:
    """Operations of one block, of which two copies that follow each other are `Twins` where they may be."""
    found: list[Op] = []
    for op in ops:
        at = len(found)
        while at and isinstance(found[at - 1], Reshape):  # which only names parts of arrays
            at -= 1
        before = found[at - 1] if at else None
        both = _twins(before, op, kernel) if isinstance(before, Copy) and isinstance(op, Copy) else None
        if both is None:
            found.append(op)
        else:
            found[at - 1 :] = [*found[at:], both]
    return tuple(found)


def _twins(first: Copy, second: Copy, kernel: Kernel) -> Twins | None:
    """Two copies as one operation, if they copy the same elements of two arrays, as far as anybody knows."""
    if first.reduction or second.reduction or first.other != second.other:
        return None
    ends = [(first.source, second.source), (first.target, second.target)]
    far = [pair for pair in ends if all(_is_far(value) for value in pair)]
    near = [pair for pair in ends if not any(_is_far(value) for value in pair)]
    if len(far) != 1 or len(near) != 1:
        return None
    (one, other), (inner, beside) = far[0], near[0]
    kinds = (inner.type, inner.dtype) == (beside.type, beside.dtype) and inner.buffer is not beside.buffer
    if one.buffer is other.buffer or one.dtype != other.dtype or not kinds:
        return None
    steps = _steps(kernel, one.buffer, other.buffer)
    left, right = one.tensor.view, other.tensor.view
    as_first = (substitute(right.offset, steps), right.valid)
    if left.shape != right.shape or as_first != (left.offset, left.valid):
        return None
    used = symbols(right.offset)
    return Twins(
        (first, second),
        tuple((name, known) for name, known in steps.items() if name in used),
        location=first.location,
    )


def _is_far(value: Value) -> bool:
    """Whether a value lies in an array, not in the thread's own memory."""
    return value.is_tensor and value.tensor.memory is Memory.GLOBAL


def _steps(kernel: Kernel, first: Value, second: Value) -> Mapping[Sym, Sym]:
    """The strides of one array that only a launch knows, each with that of another array."""
    known = {size.source: size.sym for size in kernel.sizes if isinstance(size.source, Stride)}
    return {
        sym: known[Stride(first.name, source.dim)]
        for source, sym in known.items()
        if source.tensor == second.name and Stride(first.name, source.dim) in known
    }


def step_of(sides: tuple[Side, Side], far: int) -> Sym | None:
    """The stride along the innermost loop of a copy, which only the running kernel knows; None: it is known.

    Args:
        sides: source and target.
        far: which of them is not in the thread's own memory.
    """
    views = coalesced((sides[0].view, sides[1].view))
    shape = [extent for extent in views[1].shape if isinstance(extent, int)]
    found = in_pairs(nest(shape, views, (TRUE, TRUE), str, far))
    return None if found is None else found[0]
