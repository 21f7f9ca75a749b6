"""Elements narrower than a byte: copies become byte copies, with conversions in registers.

Only this module addresses anything below a byte.  A tensor keeps its layout in elements.  A copy views it as
bytes; each byte holds neighbours along the dimension of the copy's vectors.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeGuard

from tilewright.dtypes import DType, u8
from tilewright.functions.table import TAKE
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Copy, Elementwise, FragmentOp, Op
from tilewright.ir.packed_ops import AsBytes, Pack, Unpack, in_memory_order, is_packed, map_in_bytes
from tilewright.ir.types import Value
from tilewright.passes.pipeline import Pass
from tilewright.passes.rewrite import Rewriter, rewrite_kernel
from tilewright.threads.distribution import Distribution


def copy_bytes(kernel: Kernel) -> Kernel:
    """Replace every copy of packed elements by copies of bytes; return the same kernel if it has none."""
    return rewrite_kernel(kernel, _changed) if any(map(_moves_packed, kernel.walk())) else kernel


PACKED = Pass(
    "packed",
    "Elements of less than a byte are copied as bytes, and converted in registers.",
    lambda kernel, arch: copy_bytes(kernel),
)


def look_up_packed(kernel: Kernel, is_quick: Callable[[Unpack], bool]) -> Kernel:
    """Join the unpacking of codes and their look-up in a table to one operation.

    Args:
        kernel: the kernel, after `copy_bytes`.
        is_quick: whether a target has instructions for the operation.
    """
    found: dict[Value, Unpack] = {}
    takes: dict[Value, Elementwise] = {}
    uses = Counter(value for op in kernel.walk() for value in (*op.read, *op.written))
    for op in kernel.walk():
        if isinstance(op, Unpack) and op.packed.kind == "uint" and uses[op.target] == 2:
            found[op.target] = op
        elif isinstance(op, Elementwise) and op.function == TAKE and op.operands_[0] in found:
            codes, table = op.operands_[0], op.table
            assert isinstance(codes, Value), "a fragment"
            whole = replace(found[codes], table=table)
            if len(table) == 1 << whole.packed.bits and is_quick(replace(whole, target=op.result)):
                takes[codes] = op

    results = {op.result for op in takes.values()}

    def changed(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
        if isinstance(op, Elementwise | FragmentOp) and (op.result in results or op.result in takes):
            return ()
        if not isinstance(op, Unpack) or op.target not in takes:
            return None
        take = takes[op.target]
        spread = op.target.fragment.distribution
        made = rewriter.define(
            FragmentOp, take.result.name, take.location, dtype=take.result.dtype, distribution=spread
        )
        rewriter.values[take.result] = made.result
        return made, replace(op, target=made.result, table=take.table)

    return rewrite_kernel(kernel, changed) if takes else kernel


def _moves_packed(op: Op) -> TypeGuard[Copy]:
    return isinstance(op, Copy) and (is_packed(op.source) or is_packed(op.target))


def _changed(op: Op, rewriter: Rewriter) -> Iterable[Op] | None:
    return _Parts(op, rewriter).parts() if _moves_packed(op) else None


class _Parts:
    """The replacement of one copy of packed elements.

    Args:
        op: the copy.
        rewriter: makes operations.
    """

    def __init__(self, op: Copy, rewriter: Rewriter) -> None:
        self.op, self.rewriter = op, rewriter
        self.kind = (op.source if is_packed(op.source) else op.target).dtype
        self.spread = in_memory_order(op.spread) if op.target.is_fragment else op.spread
        self.dim = self.spread.vector()[0]
        self.bytes = map_in_bytes(self.spread, self.kind.per_byte)
        self.vector = None if op.vector is None else op.vector // self.kind.per_byte
        self.made: list[Op] = []

    def parts(self) -> list[Op]:
        """Return the operations: copy bytes between memories, or copy bytes and convert them in registers."""
        op = self.op
        if is_packed(op.source) and is_packed(op.target):
            ends = (self._seen(op.source), self._seen(op.target))
            self._copy(op, *ends, distribution=self.bytes, vector=self.vector)
        elif is_packed(op.source):
            numbers = op.target if op.target.is_fragment else self._held(op.target.dtype, self.spread)
            held = self._held(u8, self.bytes)
            self._copy(op, self._seen(op.source), held, distribution=None, vector=self.vector)
            self.made.append(Unpack(held, numbers, self.kind, self.dim, location=op.location))
            if numbers is not op.target:
                self._copy(op, numbers, op.target, distribution=None, vector=op.vector)
        else:
            numbers = op.source
            if op.source.is_tensor:
                numbers = self._held(op.source.dtype, self.spread)
                self._copy(op, op.source, numbers, distribution=None, vector=op.vector)
            held = self._held(u8, self.bytes)
            self.made.append(Pack(numbers, held, self.kind, self.dim, location=op.location))
            self._copy(op, held, self._seen(op.target), distribution=None, vector=self.vector)
        return self.made

    def _copy(self, op: Copy, source: Value, target: Value, **more: Distribution | int | None) -> None:
        self.made.append(replace(op, source=source, target=target, **more))  # type: ignore[arg-type]

    def _seen(self, value: Value) -> Value:
        """Return a tensor of packed elements viewed as bytes."""
        name = f"{value.buffer.name}_bytes"
        op = self.rewriter.define(AsBytes, name, self.op.location, source=value, dim=self.dim)
        self.made.append(op)
        return op.result

    def _held(self, dtype: DType, spread: Distribution) -> Value:
        """Return a new fragment."""
        name = f"{(self.op.source if self.op.source.is_tensor else self.op.target).buffer.name}_held"
        op = self.rewriter.define(FragmentOp, name, self.op.location, dtype=dtype, distribution=spread)
        self.made.append(op)
        return op.result
