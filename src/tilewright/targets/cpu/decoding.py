"""Operands that are computed as their panels are packed, of the elements of a tile and of arrays beside it.

A schedule with ``staging="panels"`` loads the elements and what lies beside them into fragments, computes the
operand there, and writes it.  No registers hold a tile: of what lies between memory and a panel of B one
`Decoding` is made, which does all of it for one panel after the other, just before each is multiplied.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from tilewright.dtypes import DType, bf16, f4e2m1, f16, f32
from tilewright.ir.ops import Copy, Elementwise, Op
from tilewright.ir.packed_ops import Unpack
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import add, expand, mul
from tilewright.symbolic.nodes import Int, Sym
from tilewright.symbolic.rebuilding import substitute, symbols
from tilewright.targets.cpu.linear import slowest_first

FUNCTIONS = ("convert", "add", "sub", "mul")
"""What an operand may be computed by."""

KINDS = (f16, bf16, f32)
"""In what dtypes."""

LEAST_RUN = 8
"""Neighbours along K that have the elements beside them in common, a multiple of which there must be."""


@dataclass(frozen=True)
class Decoding(Op):
    """A copy of what is computed of elements in memory; exists only while text is emitted.

    Args:
        elements: the copy of the operand's own elements, or of the bytes that hold them, to a fragment.
        held: the fragment of the elements.
        packed: the dtype of elements that share bytes; None: they do not.
        dim: along which neighbours share bytes.
        beside: the copies of the arrays beside it, to fragments.
        ops: what is computed, in program order.
        made: the operand.
        target: where it goes.
        run: neighbours along K that have the same elements beside them.
    """

    name = "decoding"
    roles: ClassVar = {}
    elements: Copy
    held: Value
    packed: DType | None
    dim: int
    beside: tuple[Copy, ...]
    ops: tuple[Elementwise, ...]
    made: Value
    target: Value
    run: int

    @property
    def source(self) -> Value:
        """The tensor of the elements, or of their bytes."""
        return self.elements.source

    @property
    def operands(self) -> tuple[Value, ...]:
        """See `Op.operands`."""
        return (*self.read, self.target)

    @property
    def read(self) -> tuple[Value, ...]:
        """See `Op.read`."""
        return tuple(copy.source for copy in (self.elements, *self.beside))

    @property
    def written(self) -> tuple[Value, ...]:
        """See `Op.written`."""
        return (self.target,)


def decoding_of(
    copy: Copy, before: Sequence[Op], readers: Mapping[Value, Sequence[Op]]
) -> tuple[Decoding, list[Op]] | None:
    """What a copy of a fragment to panels writes, as one operation; None where it is none of those known.

    Args:
        copy: from the fragment.
        before: what comes before it in its block.
        readers: who reads each fragment.

    Returns:
        The operation, and those that it is made of.
    """
    chain = _Chain(before)
    if not chain.follow(copy.source) or not chain.ops or not chain.is_closed(copy, readers):
        return None
    unpack = chain.unpacks[0] if chain.unpacks else None
    elements = next((one for one in chain.loads if not _is_still(one, LEAST_RUN)), None)
    if elements is None or len(chain.unpacks) > 1 or (unpack and unpack.source is not elements.target):
        return None
    beside = tuple(one for one in chain.loads if one is not elements)
    run = _common_run(beside, copy.target.tensor.shape[1])
    order = slowest_first(elements.source.tensor.view)
    if not run or order is None or (unpack and (order[-1] != unpack.dim or not _is_known(unpack.packed))):
        return None
    held = unpack.target if unpack else elements.target
    kind, dim = (unpack.packed, unpack.dim) if unpack else (None, order[-1])
    ops = tuple(chain.ops)
    made = Decoding(
        elements, held, kind, dim, beside, ops, copy.source, copy.target, run, location=copy.location
    )
    return made, chain.taken


def _is_known(packed: DType) -> bool:
    """Whether codes are taken apart here: integers, and the one float of 4 bits."""
    return not packed.is_float or packed == f4e2m1


@dataclass
class _Chain:
    """What leads to a fragment.

    Args:
        before: the operations of the block.
        loads: the copies of arrays that it begins with.
        unpacks: what takes bytes apart.
        ops: what is computed.
        taken: all of them.
    """

    before: Sequence[Op]
    loads: list[Copy] = field(default_factory=list)
    unpacks: list[Unpack] = field(default_factory=list)
    ops: list[Elementwise] = field(default_factory=list)
    taken: list[Op] = field(default_factory=list)

    def follow(self, value: Value) -> bool:
        """Find what makes a fragment, and what that is made of; whether all of it is known."""
        makers = [op for op in self.before if _makes(op, value)]
        if len(makers) != 1:
            return False
        (maker,) = makers
        if any(maker is one for one in self.taken):
            return True
        if isinstance(maker, Copy) and _is_far(maker):
            self.loads.append(maker)
        elif isinstance(maker, Unpack) and self.follow(maker.source):
            self.unpacks.append(maker)
        elif isinstance(maker, Elementwise) and self._is_computed(maker):
            self.ops.append(maker)
        else:
            return False
        self.taken.append(maker)
        return True

    def _is_computed(self, op: Elementwise) -> bool:
        """Whether it is a function that is known, of fragments that are."""
        if op.function not in FUNCTIONS or op.result.dtype not in KINDS:
            return False
        return all(isinstance(one, Value) and one.is_fragment and self.follow(one) for one in op.operands_)

    def is_closed(self, copy: Copy, readers: Mapping[Value, Sequence[Op]]) -> bool:
        """Whether nothing else reads its fragments, nor writes what is loaded before they are computed."""
        own = (copy, *self.taken)
        made = {value for op in self.taken for value in (*op.written, *op.results)}
        for value in made:
            if not all(any(reader is one for one in own) for reader in readers.get(value, ())):
                return False
        loaded = {load.source.buffer for load in self.loads}
        others = (op for op in self.before if not any(op is one for one in own))
        return not any(loaded & {value.buffer for value in op.written} for op in others)


def _makes(op: Op, value: Value) -> bool:
    """Whether an operation gives a fragment its contents."""
    return op.result is value if isinstance(op, Elementwise) else value in op.written


def _is_far(copy: Copy) -> bool:
    """Whether a copy reads an array, zeros past its edge, as it is."""
    kind = copy.source.type
    is_far = isinstance(kind, TensorType) and kind.memory is Memory.GLOBAL and kind.view.rank == 2
    return is_far and copy.reduction is None and copy.other == 0 and copy.source.dtype == copy.target.dtype


def _common_run(beside: Sequence[Copy], depth: Int) -> int:
    """How many neighbours along K have the same elements of arrays beside an operand; 0 if these are few."""
    assert isinstance(depth, int)
    if depth % LEAST_RUN:
        return 0
    runs = (run for run in range(depth, 0, -LEAST_RUN) if depth % run == 0)
    return next((run for run in runs if all(_is_still(one, run) for one in beside)), 0)


def _is_still(copy: Copy, run: int) -> bool:
    """Whether so many neighbours along K are one element of what a copy reads."""
    view = copy.source.tensor.view
    depth = view.shape[1]
    if depth == 1:
        return True
    assert isinstance(depth, int)
    which, inner = Sym("which", 0, -(-depth // run) - 1), Sym("inner", 0, run - 1)
    offset = substitute(view.offset, {view.coords[1]: add(mul(which, run), inner)})
    return inner not in symbols(expand(offset))
