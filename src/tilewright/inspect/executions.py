"""How often all blocks of a launch execute an operation: from the sizes alone, nothing is run.

A case is what holds wherever a region is executed: the block's index, the iterations of the loops around.
Cases are told apart only as far as they decide how often something that is asked for is executed.
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
"""How many are told apart at once, in about a second."""


def executions(kernel: Kernel, binding: Binding, wanted: Callable[[Op], bool]) -> Iterator[tuple[Op, int]]:
    """Each operation that is wanted, with how often all blocks of a launch together execute it.

    Args:
        kernel: traced or lowered.
        binding: the integers of the launch.
        wanted: which operations; they have no regions.

    Raises:
        UnknownCountError: that depends on more than sizes and indices.
    """
    lets = {op.result: op.value for op in kernel.walk() if isinstance(op, Let)}
    walk = _ExecutionWalk(wanted, lets)
    yield from walk.through(kernel.body, _blocks(kernel, binding, walk.deciding(kernel.body)))


@dataclass(frozen=True)
class _Cases:
    """The cases in which a region is executed.

    Args:
        fixed: the integers that are the same in all.
        values: those that are not, one per case.
        times: how often each case occurs.
    """

    fixed: Mapping[Sym, int]
    values: Mapping[Sym, Integers]
    times: Integers

    def of(self, value: Int | Cond, where: Op) -> Any:
        """An integer or a condition in each case.

        Raises:
            UnknownCountError: it depends on what is neither a size nor an index.
        """
        try:
            found = evaluate(value, {**self.fixed, **self.values})
        except KeyError as error:
            (unknown,) = error.args
            message = f"how often this runs depends on {unknown.name}, which is neither a size nor an index"
            raise UnknownCountError(message, where.location) from None
        return np.broadcast_to(found, self.times.shape)

    def naming(self, op: Let) -> _Cases:
        """With a named integer."""
        return replace(self, values={**self.values, op.result: self.of(op.value, op)})

    def where(self, condition: Integers) -> _Cases:
        """Those in which a condition holds."""
        values = {sym: value[condition] for sym, value in self.values.items()}
        return replace(self, values=values, times=self.times[condition])

    def grouped(self, op: Role, deciding: Collection[Sym]) -> _Cases:
        """In the body of a role: a case for each group, if ``deciding``, what decides there, names it."""
        if op.index is None or op.index not in deciding:
            return replace(self, times=self.times * op.groups)
        values = {sym: np.repeat(value, op.groups) for sym, value in self.values.items()}
        values[op.index] = np.tile(np.arange(op.groups), len(self.times))
        return _Cases(self.fixed, values, np.repeat(self.times, op.groups))

    def repeated(self, op: For, deciding: Collection[Sym]) -> _Cases:
        """In the body of a loop; a case for each iteration, if ``deciding``, what decides there, names it."""
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
    """Equal rows as one, with how often they occur together."""
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
    """All blocks of a launch."""
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
        wanted: which operations are asked for.
        lets: the value of each named integer.
    """

    wanted: Callable[[Op], bool]
    lets: Mapping[Sym, Int]

    def deciding(self, block: Block) -> set[Sym]:
        """The symbols on which it depends how often what is wanted in a region is executed."""
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
        """Whether there is something wanted in its regions."""
        return any(self.wanted(inner) for region in op.regions for inner in region.walk())

    def through(self, block: Block, cases: _Cases) -> Iterator[tuple[Op, int]]:
        """What is wanted in a region that is executed in these cases."""
        deciding = self.deciding(block)
        for op in block.ops:
            if self.wanted(op):
                yield op, int(cases.times.sum())
            elif isinstance(op, Let) and op.result in deciding:
                cases = cases.naming(op)
            elif not self.holds(op):
                continue
            elif isinstance(op, For):
                yield from self.through(op.body, cases.repeated(op, self.deciding(op.body)))
            elif isinstance(op, If):
                taken = cases.of(op.condition, op).astype(bool)
                yield from self.through(op.then, cases.where(taken))
                yield from self.through(op.otherwise, cases.where(~taken))
            elif isinstance(op, Role):  # its operations say how many threads of a group take part
                yield from self.through(op.body, cases.grouped(op, self.deciding(op.body)))
            else:
                for region in op.regions:
                    yield from self.through(region, cases)
