"""Blocks of a grid, and iterations of a loop, that are equal up to their place: one represents the others.

A `TraitTable` has a row for each block, or for each iteration of one loop.  Its columns are the numbers that
decide control flow, predicates and places in shared memory: bounds of loops, conditions, stages and parities
of barriers, edges of tiles, and the elements for which a comparison of coordinates with integers holds (a
mask selects the elements beyond an edge).  Two rows with equal numbers are equal up to their place.  Numbers
that cannot be separated from the place make rows different.

Iterations that repeat with a period, such as the stages of a ring, are omitted in whole periods: the first
and the last iterations of a steady state run.  Barriers and rings end in the same state.  Warps that work
together must omit the same iterations, so all loops with the same iterations at one depth are compared
together, in all roles and in all blocks of a cluster.  The machine counts the omitted arrivals, waits and
meetings, which must balance at each barrier.  If they do not, or if anything is found, all iterations run
(`run`).  They also run if two iterations access an element of global memory that one of them writes
(`selection`), because places in global memory are not compared here.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import Role
from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import (
    Block,
    Elementwise,
    For,
    Gather,
    Let,
    Op,
    ReadIndex,
    Reshape,
    SetVariable,
    Variable,
)
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import add, all_of, expand, less, mul
from tilewright.symbolic.nodes import Add, And, Cond, Expr, Int, Less, Not, Or, Sym, bounds
from tilewright.symbolic.rebuilding import evaluate, substitute, symbols
from tilewright.targets.reference.footprint import own_spans
from tilewright.targets.reference.state import ClusterState, Warp

MOST_TURNS = 1 << 21
"""Largest number of rows times loop iterations around an operation that is examined one by one."""

MOST_AXES = 24
"""Largest number of array axes: NumPy allows few more."""


def named(kernel: Kernel) -> dict[Sym, Int]:
    """Return the values of a kernel's named integers (`tw.let`), written in unnamed ones."""
    found: dict[Sym, Int] = {}
    for op in kernel.walk():
        if isinstance(op, Let):
            found[op.result] = substitute(op.value, found)
    return found


COMPARED: dict[str, Callable[..., list[Cond]]] = {
    "less": lambda left, right: [less(left, right)],
    "less_equal": lambda left, right: [less(right, left)],
    "equal": lambda left, right: [less(left, right), less(right, left)],
    "not_equal": lambda left, right: [less(left, right), less(right, left)],
}
"""The conditions that decide each comparison."""

COMPUTED: dict[str, Callable[..., Int]] = {
    "add": add,
    "sub": lambda left, right: add(left, mul(right, -1)),
    "mul": mul,
    "neg": lambda value: mul(value, -1),
    "convert": lambda value: value,
}
"""The expressions of functions of integers."""


def masks(kernel: Kernel) -> dict[Value, list[Cond]]:
    """Return the conditions of each comparison of tile coordinates with integers, by its result."""
    ops = list(kernel.walk())
    changed = {value for op in ops for value in op.written}
    known: dict[Value, Int] = {}
    found: dict[Value, list[Cond]] = {}
    for op in ops:
        if isinstance(op, Coordinates) and op.result not in changed:
            known[op.result] = Sym(f"at{len(known)}", 0, op.distribution.shape[op.dim] - 1)
        if not isinstance(op, Elementwise):
            continue
        given = [known.get(one) if isinstance(one, Value) else one for one in op.operands_]
        if not all(isinstance(one, int | Expr) for one in given):
            continue
        if op.function in COMPARED:
            found[op.result] = COMPARED[op.function](*given)
        elif op.function in COMPUTED and op.result not in changed and not op.result.dtype.is_float:
            known[op.result] = COMPUTED[op.function](*given)
    return found


class TraitTable:
    """A table of the numbers that distinguish the executions of a body of operations, with a row for each.

    Each loop in the body with iterations that are known before a run is an axis of the numbers, and so are
    the groups of a role.  Of any other loop index, only the range is known.

    Args:
        body: the operations.
        own: values of each symbol that differs between rows, one per row.
        env: the values of the other symbols.
        lets: the values of named integers.
        masks: the conditions of comparisons, by their results.
        roles: the roles around the body.
    """

    def __init__(
        self,
        body: Block,
        own: Mapping[Sym, Array],
        env: Mapping[Sym, int],
        lets: Mapping[Sym, Int],
        masks: Mapping[Value, Sequence[Cond]],
        roles: Sequence[Role] = (),
    ) -> None:
        self._env, self._lets, self._masks = env, lets, masks
        self.count = len(next(iter(own.values())))
        self._axes = 1 + len(roles) + sum(isinstance(op, For | Role) for op in body.walk())
        self._axes = min(MOST_AXES, self._axes)
        self._known = {sym: self._along(values, 0) for sym, values in own.items()}
        self._next = 1
        self._decisive: list[tuple[Any, Array | bool]] = []
        count = self.count
        for role in roles:
            count = self._groups(role, count)
        self._collect(body, True, count, set())

    def columns(self) -> Iterator[Array]:
        """Yield the numbers that distinguish rows; shape (rows, anything)."""
        for what, runs in self._decisive:
            for column in self._traits(what):
                yield self._flat(np.where(runs, column, -1))

    def apart(self, places: Sequence[Int]) -> list[Array]:
        """Return the row-dependent parts of the distances between a row's accesses to one array.

        A row that writes and reads one element is not equal to one whose reads and writes lie apart.
        """
        shown = [substitute(place, self._lets) for place in places]
        own = [self._own(expand(substitute(place, self._env))) for place in shown]
        shifts = [shift[0] for shift in own if shift is not None]
        sizes = [np.broadcast(shifts[0], shift).size for shift in shifts]
        if len(shifts) < len(places) or max(sizes) > MOST_TURNS:
            return [self._flat(self._known[sym]) for each in shown for sym in self._mine(each)]
        return [self._flat(shift - shifts[0]) for shift in shifts[1:]]

    # ---------------------------------------------------------------- collecting integers and conditions

    def _collect(self, body: Block, runs: Array | bool, rows: int, seen: set[Value]) -> None:
        """Collect the integers and conditions that determine the steps of a body of ``rows`` rows."""
        for op in body.ops:
            deciding = self._masks.get(op.result, ()) if isinstance(op, Elementwise) else _decisive(op, seen)
            self._decisive += [(substitute(what, self._lets), runs) for what in deciding]
            inside, count = runs, rows
            if isinstance(op, For):
                inside, count = self._turns(op, runs, rows)
            elif isinstance(op, Role):
                count = self._groups(op, rows)
            for region in op.regions:
                self._collect(region, inside, count, set(seen))

    def _groups(self, role: Role, rows: int) -> int:
        """Make the groups of a role an axis; return the number of rows."""
        if role.index is None or not self._fits(rows, role.groups):
            return rows
        self._known[role.index] = self._along(np.arange(role.groups), self._axis())
        return rows * role.groups

    def _turns(self, loop: For, runs: Array | bool, rows: int) -> tuple[Array | bool, int]:
        """Make the known iterations of a loop an axis; return which of them run, and the number of rows."""
        ends = [substitute(end, self._lets) for end in (loop.start, loop.stop)]
        if not all(symbols(end) <= self._known.keys() | self._env.keys() for end in ends):
            return runs, rows
        start, stop = (self._value(end) for end in ends)
        most = max(0, -(-int(np.max(stop - start)) // loop.step))
        if not self._fits(rows, most):
            return runs, rows
        index = start + self._along(np.arange(most) * loop.step, self._axis())
        self._known[loop.index] = index
        return np.asarray(runs & (index < stop)), rows * most

    def _fits(self, rows: int, turns: int) -> bool:
        return self._next < self._axes and rows * turns <= MOST_TURNS

    def _axis(self) -> int:
        """Return the next axis."""
        self._next += 1
        return self._next - 1

    def _along(self, values: Array, axis: int) -> Array:
        return np.asarray(values, np.int64).reshape((1,) * axis + (-1,) + (1,) * (self._axes - axis - 1))

    def _flat(self, column: Array) -> Array:
        whole = np.asarray(column, np.int64)
        whole = whole.reshape((1,) * (self._axes - whole.ndim) + whole.shape)
        return np.broadcast_to(whole, (self.count, *whole.shape[1:])).reshape(self.count, -1)

    def _mine(self, what: Any) -> frozenset[Sym]:
        """Return the symbols of an integer or condition that are known for each row."""
        return frozenset(symbols(what) & self._known.keys())

    # ---------------------------------------------------------------- their numbers

    def _value(self, what: Any) -> Array:
        """Return the values of an integer or condition that is known for each row."""
        with np.errstate(divide="ignore"):
            return np.asarray(evaluate(what, {**self._env, **self._known}), np.int64)

    def _traits(self, what: Any) -> list[Array]:
        if not self._mine(what):
            return []
        if symbols(what) <= self._known.keys() | self._env.keys():
            return [self._value(what)]
        match what:
            case And() | Or():
                return [column for part in what.parts for column in self._traits(part)]
            case Not():
                return self._traits(what.part)
            case Less():
                return self._clipped(expand(add(what.right, mul(what.left, -1), -1)))
            case Expr() if (parts := self._own(expand(what))) is not None:
                return [parts[0]]
        return [self._known[sym] for sym in self._mine(what)]

    def _clipped(self, gap: Int) -> list[Array]:
        """Return each row's part of ``gap``, clipped to values that can decide the sign of the whole."""
        parts = self._own(gap)
        if parts is None:
            return [self._known[sym] for sym in self._mine(gap)]
        own, rest = parts
        fixed: dict[Sym, Int] = {}  # ranges of loops and coordinates, for these sizes
        for sym in symbols(rest):
            stop = None if sym.stop is None else substitute(sym.stop, self._env)
            if sym not in self._env and isinstance(stop, int):
                fixed[sym] = Sym(sym.name, sym.low, max(stop - 1, sym.low), sym.divisor)
        low, high = bounds(substitute(rest, {**self._env, **fixed}))
        if low == -np.inf or high == np.inf:
            return [own]
        return [np.clip(own, -int(high) - 1, -int(low))]

    def _own(self, total: Int) -> tuple[Array, Int] | None:
        """Return each row's part of a sum, and the rest of the sum; None if they cannot be separated."""
        terms = total.terms if isinstance(total, Add) else ((total, 1),)
        constant = total.constant if isinstance(total, Add) else 0
        own: Any = np.full((1,) * self._axes, constant, np.int64)
        rest: Int = 0
        for term, times in terms:
            if symbols(term) <= self._known.keys() | self._env.keys():
                own = own + times * self._value(term)
            elif self._mine(term):
                return None
            else:
                rest = add(rest, mul(term, times))
        return own, rest


def classes(columns: Iterable[Array], count: int) -> Array:
    """Return the number of each row's class: rows of one class are equal in all columns."""
    found = np.zeros((count, 1), np.int64)
    for column in columns:
        _, own = np.unique(column, axis=0, return_inverse=True)
        pairs = np.stack([found.reshape(-1), own.reshape(-1)], axis=1)
        found = np.unique(pairs, axis=0, return_inverse=True)[1]
    return found.reshape(-1)


def _decisive(op: Op, seen: set[Value]) -> Iterator[Any]:
    """Yield the integers and conditions that determine an operation's steps and its elements."""
    if isinstance(op, Reshape):
        for _, span in own_spans(op):
            yield all_of(less(-1, span.low), less(add(span.high, -1), span.extent))
    elif not isinstance(op, Let | Elementwise):
        yield from (part for field in fields(op) for part in _integers(getattr(op, field.name), field.name))
    for value in op.operands:
        if isinstance(value.type, TensorType) and value not in seen:
            seen.add(value)
            yield value.type.view.valid
            if value.type.memory is Memory.SHARED:
                yield value.type.view.offset


def _integers(held: Any, field: str) -> Iterator[Any]:
    """Yield the integers and conditions of a field, except the number of readers, which changes no access."""
    if field == "readers" or (isinstance(held, Sym) and field in ("index", "result")):
        return
    if isinstance(held, Expr | Cond):
        yield held
    elif isinstance(held, tuple):
        for part in held:
            yield from _integers(part, field)


# ---------------------------------------------------------------- blocks


def block_symbols(kernel: Kernel, indices: Array) -> dict[Sym, Array]:
    """Return the values of the grid's symbols in many blocks, one for each row of indices."""
    found = {axis.sym: indices[:, at] for at, axis in enumerate(kernel.grid)}
    return found | {member.sym: indices[:, member.axis] % member.extent for member in kernel.cluster}


def fixed_symbols(kernel: Kernel) -> set[Sym]:
    """Return the symbols with values before a block begins: the kernel's sizes, and the block's place."""
    sizes = {param.sym for param in kernel.sizes}
    return sizes | {axis.sym for axis in kernel.grid} | {member.sym for member in kernel.cluster}


def all_blocks(extents: Sequence[int]) -> Array:
    """Return every block index as a row, x fastest."""
    grids = np.indices(tuple(reversed(extents))).reshape(len(extents), math.prod(extents))
    return np.ascontiguousarray(grids[::-1].T)


def representatives(kernel: Kernel, env: Mapping[Sym, int], extents: Sequence[int]) -> Array | None:
    """Return representatives of all blocks: the first of each class, its neighbours, and the last.

    Returns:
        Rows of block indices in the order of the grid; None if the classes are unknown.
    """
    lets, placed = named(kernel), {axis.sym for axis in kernel.grid} | {each.sym for each in kernel.cluster}
    for op in kernel.walk():
        if isinstance(op, ReadIndex | Gather):
            return None  # equal blocks may read different integers
        if isinstance(op, Variable | SetVariable):
            value = op.initial if isinstance(op, Variable) else op.value
            if symbols(substitute(value, lets)) & placed:
                return None  # a mutable integer may differ between blocks
    if not extents:
        return np.zeros((1, 0), np.int64)  # one block
    blocks = all_blocks(extents)
    try:
        rows = TraitTable(kernel.body, block_symbols(kernel, blocks), env, lets, masks(kernel))
        columns = [*rows.columns(), *(column for places in _places(kernel) for column in rows.apart(places))]
    except ZeroDivisionError:  # a run reports it
        return None
    return blocks[sorted(set(_chosen(blocks, classes(columns, len(blocks)), extents)))]


def _chosen(blocks: Array, alike: Array, extents: Sequence[int]) -> Iterator[int]:
    steps = [int(np.prod(extents[:axis], dtype=np.int64)) for axis in range(len(extents))]
    _, first = np.unique(alike, return_index=True)
    last = len(alike) - 1 - np.unique(alike[::-1], return_index=True)[1]
    for low, high in zip(first.tolist(), last.tolist(), strict=True):
        yield low
        yield high
        for axis, step in enumerate(steps):
            if blocks[low, axis] + 1 < extents[axis] and alike[low + step] == alike[low]:
                yield low + step


def _places(kernel: Kernel) -> Iterable[list[Int]]:
    """Return, for each written array, the offsets of all views of its accesses."""
    found: dict[Value, list[Int]] = {}
    written = {value.buffer for op in kernel.walk() for value in op.written}
    accessed = dict.fromkeys(value for op in kernel.walk() for value in (*op.read, *op.written))
    for value in accessed:
        if value.is_tensor and value.buffer in written and value.tensor.memory is Memory.GLOBAL:
            found.setdefault(value.buffer, []).append(value.tensor.view.offset)
    return found.values()


# ---------------------------------------------------------------- iterations


BEFORE, AFTER = 2, 1
"""Periods that run before the omitted ones, and the fewest periods after them.  Accesses to one place in
memory are at most a period apart, so each meets the previous one and the next one."""


@dataclass(frozen=True)
class Gap:
    """Omitted iterations of a loop.

    Args:
        first: number of the first one.
        period: number of iterations after which they repeat.
        periods: number of omitted periods.
    """

    first: int
    period: int
    periods: int

    @property
    def resume(self) -> int:
        """Number of the first iteration that runs again."""
        return self.first + self.period * self.periods


def gap(alike: Sequence[int] | Array) -> Gap | None:
    """Return the longest gap in iterations, given the class of each; None if all iterations run.

    Example:
        >>> gap([0, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 3])
        Gap(first=5, period=2, periods=2)
        >>> gap([0, 1, 2, 3, 4])
    """
    turns = np.asarray(alike)
    best: Gap | None = None
    for period in range(1, len(turns) // (BEFORE + AFTER + 1) + 1):
        # Runs of iterations that equal those one period earlier.
        ends = np.flatnonzero(np.diff(np.concatenate([[0], turns[period:] == turns[:-period], [0]])))
        for first, end in ends.reshape(-1, 2).tolist():
            periods = (end - first + period) // period - BEFORE - AFTER
            if periods > 0 and (best is None or periods * period > best.periods * best.period):
                best = Gap(first + BEFORE * period, period, periods)
    return best


class OmittedIterations:
    """Finds the iterations that the loops of a kernel can omit, and counts them.

    Args:
        kernel: the kernel.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.left_out = 0
        """Number of omitted iterations of all warps."""
        self.is_balanced = True
        self._lets, self._masks = named(kernel), masks(kernel)
        self._loops = {id(loop): (loop, around) for loop, around in _loops(kernel.body, ())}
        self._fixed = fixed_symbols(kernel)
        self._can = not kernel.splits_cluster_barriers
        self._known: dict[Hashable, Gap | None] = {}

    def gap(self, warp: Warp, loop: For, turns: range) -> Gap | None:
        """Return the iterations that a warp omits from a loop."""
        if not self._can or len(turns) <= BEFORE + AFTER:
            return None
        outer = tuple(warp.env[each.index] for each in self._loops[id(loop)][1] if isinstance(each, For))
        key = warp.block.cluster.blocks[0].index, outer, turns
        if key not in self._known:
            try:
                self._known[key] = self._found(warp, outer, turns)
            except ZeroDivisionError:  # a run reports it
                self._known[key] = None
        return self._known[key]

    def _found(self, warp: Warp, outer: Sequence[int], turns: range) -> Gap | None:
        """Return the gap of all loops with these iterations at this depth, in all blocks of the cluster."""
        columns: list[Array] = []
        for loop, around in self._loops.values():
            loops = [each.index for each in around if isinstance(each, For)]
            if len(loops) != len(outer):
                continue
            roles = [each for each in around if isinstance(each, Role)]
            for block in warp.block.cluster.blocks:
                env = {sym: block.warps[0].env[sym] for sym in self._fixed}
                env |= dict(zip(loops, outer, strict=True))
                if self._turns(loop, env) == turns:
                    if any(isinstance(op, SetVariable) for op in loop.body.walk()):
                        return None
                    own = {loop.index: np.asarray(turns)}
                    columns += TraitTable(loop.body, own, env, self._lets, self._masks, roles).columns()
        return gap(classes(columns, len(turns))) if columns else None

    def _turns(self, loop: For, env: Mapping[Sym, int]) -> range | None:
        """Return the iterations of a loop; None if they are unknown before a run."""
        ends = [substitute(end, self._lets) for end in (loop.start, loop.stop)]
        if not all(symbols(end) <= env.keys() for end in ends):
            return None
        start, stop = (int(evaluate(end, env)) for end in ends)
        return range(start, stop, loop.step)

    def leave_out(self, warp: Warp, found: Gap, before: Mapping[Any, int]) -> None:
        """Count the omitted steps of a warp; each omitted period has the steps done since ``before``."""
        once = Counter(warp.steps)
        once.subtract(before)
        for step, count in once.items():
            warp.steps[step] += count * found.periods
            warp.left_out[step] += count * found.periods
        self.left_out += found.periods * found.period

    def check_balance(self, cluster: ClusterState) -> None:
        """Note whether the omitted steps of the warps of a cluster balance."""
        warps = cluster.barrier.warps
        stages = (stage for b in cluster.blocks for each in b.mbarriers.values() for stage in each)
        phases: dict[Hashable, int] = {}
        for stage in stages:
            came = sum(warp.left_out["arrive", stage.slot] for warp in warps)
            phases[stage.slot] = came // stage.arrivals
            self.is_balanced &= came % (2 * stage.arrivals) == 0  # phases of both parities
        for warp in warps:
            for (kind, place), left in [(step, warp.left_out[step]) for step in warp.steps]:
                if kind == "wait":
                    self.is_balanced &= left == phases[place]
                elif kind == "meet":
                    self.is_balanced &= left == phases.setdefault(("meet", place), left)


def _loops(body: Block, around: tuple[Op, ...]) -> Iterator[tuple[For, tuple[Op, ...]]]:
    """Yield every loop, with the operations around it."""
    for op in body.ops:
        if isinstance(op, For):
            yield op, around
        for region in op.regions:
            yield from _loops(region, (*around, op))
