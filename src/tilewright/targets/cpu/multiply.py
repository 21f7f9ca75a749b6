"""Multiplies gathered with what belongs to them: the copy that packs B, and the zeros that sums begin with.

B is packed one panel at a time, just before the panel is multiplied: it is then in the first-level cache, and
the room of one panel is enough for all.  Sums that begin with 0 are not read the first time, so that nobody
has to write the zeros.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Copy, Fill, For, Fragment, If, Mma, Op, Reshape, Shared
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import equal, less_equal, prove
from tilewright.symbolic.nodes import FALSE, TRUE, Cond
from tilewright.targets.cpu.linear import panels, same_place


@dataclass(frozen=True)
class Multiply(Op):
    """A multiply with what is done along with it; exists only while text is emitted.

    Args:
        mma: the multiply.
        packing: the copy that fills its operand B, one panel before it is multiplied.
        begins: when the accumulator counts as 0, whatever it holds.
    """

    name = "multiply"
    roles: ClassVar = {}
    mma: Mma
    packing: Copy | None = None
    begins: Cond = FALSE

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return (*self.mma.operands, *(() if self.packing is None else self.packing.operands))

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return (*self.mma.read, *(() if self.packing is None else self.packing.read))

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return (*self.mma.written, *(() if self.packing is None else self.packing.written))


def gather(kernel: Kernel) -> Block:
    """The kernel's operations with every multiply as a `Multiply`."""
    return _gathered(kernel.body, _once_used(kernel))


def panel_elems(op: Multiply) -> int:
    """Elements of one panel of B."""
    depth = op.mma.b.tensor.shape[1]
    assert isinstance(depth, int)
    return op.mma.mma.atom.shape[1] * depth


def _once_used(kernel: Kernel) -> frozenset[Value]:
    """The shared tensors that one copy writes and one operation reads."""
    counts: dict[Value, list[int]] = {op.result: [0, 0] for op in kernel.walk() if isinstance(op, Shared)}
    for op in kernel.walk():
        for at, values in enumerate((op.written, op.read)):
            for buffer in {value.buffer for value in values} & counts.keys():
                counts[buffer][at] += 1
    return frozenset(buffer for buffer, found in counts.items() if found == [1, 1])


def _gathered(block: Block, once: frozenset[Value]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        match op:
            case Mma():
                ops.append(_multiply(op, ops, once))
            case For():
                ops.append(replace(op, body=_gathered(op.body, once)))
            case If():
                then, otherwise = _gathered(op.then, once), _gathered(op.otherwise, once)
                ops.append(replace(op, then=then, otherwise=otherwise))
            case _:
                ops.append(op)
    return Block(_without_zeros(ops))


# ---------------------------------------------------------------- packing


def _multiply(op: Mma, before: list[Op], once: frozenset[Value]) -> Multiply:
    """The multiply; the copy that packs B for it is taken out of what comes before."""
    for at in range(len(before) - 1, -1, -1):
        copy = before[at]
        if isinstance(copy, Reshape):
            continue
        if not isinstance(copy, Copy) or not _is_local(copy.target):
            break
        if same_place(copy.target, op.b):
            later = before[at + 1 :]
            if _packs(copy, op, once) and all(copy.source.buffer not in _buffers(o) for o in later):
                del before[at]
                return Multiply(op, copy, location=op.location)
            break
    return Multiply(op, location=op.location)


def _packs(copy: Copy, op: Mma, once: frozenset[Value]) -> bool:
    """Whether a copy may be made panel by panel: nothing else needs what it writes."""
    if op.b.buffer not in once or copy.reduction is not None or copy.source.is_fragment:
        return False
    view, columns = op.b.tensor.view, op.mma.atom.shape[1]
    found = panels(view, columns)
    return (
        view.valid == TRUE
        and found is not None
        and (found.row_stride, found.k_stride) == (1, columns)
        and op.a.buffer is not op.b.buffer
    )


def _is_local(value: Value) -> bool:
    return isinstance(value.type, TensorType) and value.type.memory is Memory.SHARED


def _buffers(op: Op) -> set[Value]:
    return {value.buffer for value in op.written}


# ---------------------------------------------------------------- zeros


def _without_zeros(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The operations of a block; accumulators that multiplies find cleared are cleared by them."""
    found = [(op,) for op in ops]
    for at, op in enumerate(ops):
        cleared = _cleared(op)
        user = next((n for n in range(at + 1, len(ops)) if cleared and _touches(ops[n], cleared)), None)
        if cleared is None or user is None:
            continue
        begun, left = _begun(found[user][0], cleared)
        if begun is not None:
            found[user] = (begun,)
            declared = (replace(op, fill=None),) if isinstance(op, Fragment) else ()
            zeros = If(left, Block((Fill(cleared, 0, location=op.location),)), location=op.location)
            found[at] = declared if left == FALSE else (*declared, zeros)
    return tuple(op for several in found for op in several)


def _cleared(op: Op) -> Value | None:
    """The fragment that an operation fills with 0."""
    if isinstance(op, Fragment) and op.fill == 0:
        return op.result
    if isinstance(op, Fill) and not isinstance(op.value, Value) and op.value == 0:
        return op.target
    return None


def _touches(op: Op, value: Value) -> bool:
    return any(value in one.operands for one in (op, *(o for r in op.regions for o in r.walk())))


def _begun(op: Op, cleared: Value) -> tuple[Op | None, Cond]:
    """An operation that takes the fragment for 0 itself, and when it leaves the zeros to be written."""
    if isinstance(op, Multiply) and _only_sums(op, cleared):
        return replace(op, begins=TRUE), FALSE
    if not isinstance(op, For):
        return None, TRUE
    users = [one for one in op.body.walk() if cleared in one.operands]
    if len(users) != 1 or not isinstance(user := users[0], Multiply) or not _only_sums(user, cleared):
        return None, TRUE
    if not any(one is user for one in op.body.ops):
        return None, TRUE
    begun = replace(user, begins=equal(op.index, op.start))
    body = Block(tuple(begun if one is user else one for one in op.body.ops))
    empty = less_equal(op.stop, op.start)
    known = prove(empty)
    return replace(op, body=body), empty if known is None else TRUE if known else FALSE


def _only_sums(op: Multiply, value: Value) -> bool:
    """Whether a multiply adds to a fragment and does nothing else with it, having not begun it yet."""
    return op.begins == FALSE and op.mma.c == value and value not in (op.mma.a, op.mma.b)
