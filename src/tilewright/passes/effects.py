"""Memory accesses of each operation, derived from the effects that it declares.

An operation names the operands that it reads and writes (`tilewright.ir.op.Op.roles`).  If its thread map is
known, the elements of each thread are known.  Otherwise every thread may touch every element.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import cast

from tilewright.ir.copies import Copy, is_in_background
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, If, Let, Mma, Op
from tilewright.ir.types import Value
from tilewright.passes.memory_instructions import may_be_by_matrices
from tilewright.symbolic.expr import negate
from tilewright.symbolic.nodes import Cond, Int, Sym
from tilewright.symbolic.rebuilding import substitute
from tilewright.threads.distribution import Distribution


@dataclass(frozen=True, eq=False)
class MemoryAccess:
    """One operation's access to one tensor in memory.

    Args:
        op: the operation.
        value: the tensor, or a view of one.
        writes: whether the access is a write; otherwise it is a read.
        spread: which thread touches which coordinates; None: any thread may touch any coordinate.
        by_warp: whether the lanes of a warp may access the tensor together, each lane for the others.
        in_background: whether the access is asynchronous and completes when its group is waited for.
        reduction: the function that combines values with those in memory; equal reductions may be reordered.
    """

    op: Op
    value: Value
    writes: bool
    spread: Distribution | None
    by_warp: bool = False
    in_background: bool = False
    reduction: str | None = None


@dataclass(frozen=True)
class PathStep:
    """One level of nesting on the path to an operation.

    Args:
        owner: the operation that has the block as a region; None for the kernel's body.
        block: the block.
        at: the index in the block of the operation, or of the operation that contains it.
    """

    owner: Op | None
    block: Block
    at: int

    @property
    def op(self) -> Op:
        """The operation at ``at`` in the block."""
        return self.block.ops[self.at]


@dataclass(frozen=True, eq=False)
class AccessingOp:
    """An operation that accesses memory.

    Args:
        op: the operation.
        way: the path from the kernel's body down to the operation.
        order: the operation's number in program order.
        accesses: the operation's memory accesses.
    """

    op: Op
    way: tuple[PathStep, ...]
    order: int
    accesses: tuple[MemoryAccess, ...]

    @property
    def is_in_background(self) -> bool:
        """Whether the operation is asynchronous: the threads continue before it completes."""
        return is_in_background(self.op)

    @cached_property
    def conditions(self) -> tuple[Cond, ...]:
        """The conditions of the branches around the operation, the outermost first."""
        branches = ((step.owner, step.block) for step in self.way if isinstance(step.owner, If))
        return tuple(
            branch.condition if block is branch.then else negate(branch.condition)
            for branch, block in branches
        )


def accesses(op: Op, lanes: int) -> Iterator[MemoryAccess]:
    """Yield the memory accesses that an operation declares by its roles and its type."""
    for writes, values in ((False, op.read), (True, op.written)):
        for value in values:
            if value.is_tensor:
                spread = _spread(op, value)
                by_warp = spread is not None and may_be_by_matrices(op, value, spread, lanes)
                reduction = op.reduction if isinstance(op, Copy) and writes else None
                yield MemoryAccess(op, value, writes, spread, by_warp, is_in_background(op), reduction)


def _spread(op: Op, value: Value) -> Distribution | None:
    match op:
        case Copy() if value in (op.source, op.target):
            return op.spread
        case Mma() if value in (op.a, op.b):
            depth = value.tensor.shape[1]
            if isinstance(depth, int):
                return op.mma.a(depth) if value is op.a else op.mma.b(depth)
    return None


def sites(kernel: Kernel) -> list[AccessingOp]:
    """Return every operation of a kernel that accesses memory, in program order."""
    return list(_sites(kernel.body, None, (), kernel.lanes, iter(range(10**9))))


def _sites(
    block: Block, owner: Op | None, way: tuple[PathStep, ...], lanes: int, count: Iterator[int]
) -> Iterator[AccessingOp]:
    for at, op in enumerate(block.ops):
        here = (*way, PathStep(owner, block, at))
        order = next(count)
        if found := tuple(accesses(op, lanes)):
            yield AccessingOp(op, here, order, found)
        for region in op.regions:
            yield from _sites(region, op, here, lanes, count)


@dataclass(frozen=True)
class Integers:
    """Known facts about the integers that a kernel's operations define.

    Args:
        named: the value of each named integer (`Let`), written in unnamed ones.
        read: for each integer that an operation reads (a variable, an integer in memory), the identity of the
            block of that operation.
        placed_cache: results of `all_placed`, because many pairs of operations ask the same question.
    """

    named: dict[Sym, Int]
    read: dict[Sym, int]
    placed_cache: dict[frozenset[tuple[Sym, Int]], dict[Sym, Int]] = field(default_factory=dict)

    @staticmethod
    def of(kernel: Kernel) -> Integers:
        """Collect the integers of a kernel."""
        found = Integers({}, {})
        found._add(kernel.body)
        return found

    def placed(self, value: Int, places: Mapping[Sym, Int]) -> Int:
        """Substitute the symbols of an integer by their replacements."""
        return cast("Int", substitute(substitute(value, self.named), places))

    def all_placed(self, places: Mapping[Sym, Int]) -> dict[Sym, Int]:
        """Extend replacements of symbols to the named integers that depend on them."""
        key = frozenset(places.items())
        if key not in self.placed_cache:
            named = {sym: substitute(value, places) for sym, value in self.named.items()}
            self.placed_cache[key] = {**places, **named}
        return self.placed_cache[key]

    def _add(self, block: Block) -> None:
        for op in block.ops:
            if isinstance(op, Let):
                self.named[op.result] = substitute(op.value, self.named)
            elif not isinstance(op, For):
                self.read.update({sym: id(block) for sym in op.results if isinstance(sym, Sym)})
            for region in op.regions:
                self._add(region)
