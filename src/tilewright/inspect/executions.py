"""Counts the executions of operations by all blocks of a launch, from the sizes alone.

A case is a set of values for the block's index and the iterations of the enclosing loops. Cases are kept
apart only if the number of executions of a wanted operation depends on them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.errors import UnknownCountError
from tilewright.ir.async_ops import Role
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, For, If, Let, Op
from tilewright.runtime.binding import Binding
from tilewright.symbolic.nodes import Cond, Int, Sym
from tilewright.symbolic.rebuilding import evaluate, symbols

Integers = np.ndarray[Any, np.dtype[np.int64]]

MOST_CASES = 1 << 22
"""Largest number of cases, which take about a second."""


def executions(kernel: Kernel, binding: Binding, wanted: Callable[[Op], bool]) -> Iterator[tuple[Op, int]]:
    """Yield each wanted operation, with the number of its executions by all blocks of a launch.

    Args:
        kernel: traced or lowered.
        binding: the integers of the launch.
        wanted: selects operations without regions.

    Raises:
        UnknownCountError: the number depends on more than sizes and indices.
    """
    lets = {op.result: op.value for op in kernel.walk() if isinstance(op, Let)}
    walk = _ExecutionWalk(wanted, lets)
    yield from walk.through(kernel.body, _blocks(kernel, binding, walk.deciding(kernel.body)))


@dataclass(frozen=True)
class _Cases:
    """The cases in which a region is executed.

    Args:
        fixed: integers that are equal in all cases.
        values: other integers, one per case.
        times: number of occurrences of each case.
    """

    fixed: Mapping[Sym, int]
    values: Mapping[Sym, Integers]
    times: Integers

    def of(self, value: Int | Cond, where: Op) -> Any:
        """Evaluate an integer or a condition in each case.

        Raises:
            UnknownCountError: it depends on a symbol that is neither a size nor an index.
        """
        try:
            found = evaluate(value, {**self.fixed, **self.values})
        except KeyError as error:
            (unknown,) = error.args
            message = f"how often this runs depends on {unknown.name}, which is neither a size nor an index"
            raise UnknownCountError(message, where.location) from None
        return np.broadcast_to(found, self.times.shape)

    def grouped(self, op: Role, deciding: Collection[Sym]) -> _Cases:
        """Return the cases of the body of a role: one for each group, if the group is in ``deciding``."""
        if op.index is None or op.index not in deciding:
            return replace(self, times=self.times * op.groups)
        values = {sym: np.repeat(value, op.groups) for sym, value in self.values.items()}
        values[op.index] = np.tile(np.arange(op.groups), len(self.times))
        return _Cases(self.fixed, values, np.repeat(self.times, op.groups))

    def repeated(self, op: For, deciding: Collection[Sym]) -> _Cases:
        """Return the cases of the body of a loop: one per iteration, if its index is in ``deciding``."""
        start, stop = self.of(op.start, op), self.of(op.stop, op)
        trips = np.maximum(-((start - stop) // op.step), 0)
        if op.index not in deciding:
            return replace(self, times=self.times * trips)
        outer = [sym for sym in self.values if sym in deciding]
        (start, trips, *columns), times = _grouped(
            [start, trips, *(self.values[sym] for sym in outer)], self.times
        )
        total = int(trips.sum())
        if total > MOST_CASES:
            message = f"how often this runs may differ among {total} iterations; {MOST_CASES} are tried"
            raise UnknownCountError(message, op.location)
        number = np.arange(total) - np.repeat(np.cumsum(trips) - trips, trips)
        values = {sym: np.repeat(column, trips) for sym, column in zip(outer, columns, strict=True)}
        values[op.index] = np.repeat(start, trips) + number * op.step
        return _Cases(self.fixed, values, np.repeat(times, trips))


def _grouped(columns: Sequence[Integers], times: Integers) -> tuple[list[Integers], Integers]:
    """Merge equal rows, and add up their numbers of occurrences."""
    key, size = np.zeros_like(times), 1
    for column in columns if len(times) else ():
        low, span = int(column.min()), int(column.max() - column.min()) + 1
        key, size = key * span + (column - low), size * span
    if size > 2**62:  # the key may have overflowed
        return list(columns), times
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    together = np.zeros(len(first), dtype=np.int64)
    np.add.at(together, which, times)
    return [column[first] for column in columns], together


def _blocks(kernel: Kernel, binding: Binding, deciding: Collection[Sym]) -> _Cases:
    """Return the cases of all blocks of a launch."""
    fixed = {param.sym: binding.sizes[param.sym.name] for param in kernel.sizes}
    cases = _Cases(fixed, {}, np.ones(1, dtype=np.int64))
    for number, (axis, extent) in enumerate(zip(kernel.grid, binding.grid, strict=False)):
        members = [member for member in kernel.cluster if member.axis == number]
        if not {axis.sym, *(member.sym for member in members)} & set(deciding):
            cases = replace(cases, times=cases.times * extent)
            continue
        if (total := len(cases.times) * extent) > MOST_CASES:
            message = f"how often copies run may differ among {total} blocks; {MOST_CASES} are tried"
            raise UnknownCountError(message, None)
        index = np.tile(np.arange(extent), len(cases.times))
        values = {sym: np.repeat(value, extent) for sym, value in cases.values.items()}
        values |= {axis.sym: index, **{member.sym: index % member.extent for member in members}}
        cases = _Cases(fixed, values, np.repeat(cases.times, extent))
    return cases


@dataclass(frozen=True)
class _ExecutionWalk:
    """A walk over the regions of a kernel.

    Args:
        wanted: selects operations.
        lets: the value of each named integer.
    """

    wanted: Callable[[Op], bool]
    lets: Mapping[Sym, Int]

    def deciding(self, block: Block) -> set[Sym]:
        """Return the symbols on which the number of executions of wanted operations in a region depends."""
        found: set[Sym] = set()
        for op in block.walk():
            if isinstance(op, For) and self.holds(op):
                found |= symbols(op.start) | symbols(op.stop)
            elif isinstance(op, If) and self.holds(op):
                found |= symbols(op.condition)
        while more := set().union(*(symbols(self.lets.get(sym)) for sym in found)) - found:
            found |= more
        return found

    def holds(self, op: Op) -> bool:
        """Return whether the regions of an operation have wanted operations."""
        return any(self.wanted(inner) for region in op.regions for inner in region.walk())

    def through(self, block: Block, cases: _Cases) -> Iterator[tuple[Op, int]]:
        """Yield the wanted operations of a region that is executed in these cases."""
        deciding = self.deciding(block)
        for op in block.ops:
            if self.wanted(op):
                yield op, int(cases.times.sum())
            elif isinstance(op, Let) and op.result in deciding:
                cases = replace(cases, values={**cases.values, op.result: cases.of(op.value, op)})
            elif not self.holds(op):
                continue
            elif isinstance(op, For):
                yield from self.through(op.body, cases.repeated(op, self.deciding(op.body)))
            elif isinstance(op, If):
                taken = cases.of(op.condition, op).astype(bool)
                for block_of, which in ((op.then, taken), (op.otherwise, ~taken)):
                    values = {sym: value[which] for sym, value in cases.values.items()}
                    chosen = replace(cases, values=values, times=cases.times[which])
                    yield from self.through(block_of, chosen)
            elif isinstance(op, Role):  # its operations have the number of threads of a group
                yield from self.through(op.body, cases.grouped(op, self.deciding(op.body)))
            else:
                for region in op.regions:
                    yield from self.through(region, cases)
