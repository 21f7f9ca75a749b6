"""What tells blocks apart, or the turns of a loop: everything that decides what they do, as numbers.

Rows are blocks, or turns of one loop.  Two rows are equal up to their place if all that decides their
control flow, their predicates and their places in shared memory is: bounds of loops, conditions, stages and
parities of barriers, where edges cut their tiles, and which elements a comparison of coordinates with
integers holds for: a mask decides which elements beyond an edge are used.  What cannot be separated from the
place makes rows different.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np

from tilewright.functions.conversions import Array
from tilewright.ir.async_ops import Role
from tilewright.ir.fragment_ops import Coordinates
from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Block, Elementwise, For, Let, Op, Reshape
from tilewright.ir.types import Memory, TensorType, Value
from tilewright.symbolic.expr import add, all_of, expand, less, mul
from tilewright.symbolic.nodes import Add, And, Cond, Expr, Int, Less, Not, Or, Sym
from tilewright.symbolic.ranges import bounds
from tilewright.symbolic.rebuilding import evaluate, substitute, symbols
from tilewright.targets.reference.extents import own_spans

MOST_TURNS = 1 << 21
"""Rows times turns of the loops around an operation, of which each is looked at by itself."""

MOST_AXES = 24
"""Of the numbers: NumPy has not many more."""


def named(kernel: Kernel) -> dict[Sym, Int]:
    """What a kernel's named integers stand for (`tw.let`), in terms of what has no name."""
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
"""By comparison, the conditions that it depends on."""

COMPUTED: dict[str, Callable[..., Int]] = {
    "add": add,
    "sub": lambda left, right: add(left, mul(right, -1)),
    "mul": mul,
    "neg": lambda value: mul(value, -1),
    "convert": lambda value: value,
}
"""What functions of integers are as expressions."""


def masks(kernel: Kernel) -> dict[Value, list[Cond]]:
    """Conditions of each comparison of coordinates of a tile with integers, by its result."""
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


class Rows:
    """Rows of a body of operations, and what is different in them.

    Every loop in the body whose turns can be told without running it is an axis of the numbers, and so are
    the groups of a role; the index of any other loop is unknown, but for its range.

    Args:
        body: the operations.
        own: for each symbol that differs between rows its values, one for each.
        env: the symbols that do not.
        lets: what named integers stand for.
        masks: the conditions of comparisons, by their results.
        roles: those around the body, whose groups execute it.
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
        """Numbers that are equal for rows which are not told apart; shape (rows, anything)."""
        for what, runs in self._decisive:
            for column in self._traits(what):
                yield self._flat(np.where(runs, column, -1))

    def apart(self, places: Sequence[Int]) -> list[Array]:
        """How far apart a row's accesses to one array lie, as far as that depends on the row.

        A row that writes and reads one element is not equal to one whose reads and writes lie apart.
        """
        shown = [substitute(place, self._lets) for place in places]
        own = [self._own(expand(substitute(place, self._env))) for place in shown]
        shifts = [shift[0] for shift in own if shift is not None]
        sizes = [np.broadcast(shifts[0], shift).size for shift in shifts]
        if len(shifts) < len(places) or max(sizes) > MOST_TURNS:
            return [self._flat(self._known[sym]) for each in shown for sym in self._mine(each)]
        return [self._flat(shift - shifts[0]) for shift in shifts[1:]]

    # ---------------------------------------------------------------- what is looked at

    def _collect(self, body: Block, runs: Array | bool, rows: int, seen: set[Value]) -> None:
        """Note what decides in a body, of whose turns there are so many rows."""
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
        """Make the groups of a role an axis: how many rows there are."""
        if role.index is None or not self._fits(rows, role.groups):
            return rows
        self._known[role.index] = self._along(np.arange(role.groups), self._axis())
        return rows * role.groups

    def _turns(self, loop: For, runs: Array | bool, rows: int) -> tuple[Array | bool, int]:
        """Make the turns of a loop an axis, if they can be told: which of them run, and how many rows."""
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
        """The next axis."""
        self._next += 1
        return self._next - 1

    def _along(self, values: Array, axis: int) -> Array:
        return np.asarray(values, np.int64).reshape((1,) * axis + (-1,) + (1,) * (self._axes - axis - 1))

    def _flat(self, column: Array) -> Array:
        whole = np.asarray(column, np.int64)
        whole = whole.reshape((1,) * (self._axes - whole.ndim) + whole.shape)
        return np.broadcast_to(whole, (self.count, *whole.shape[1:])).reshape(self.count, -1)

    def _mine(self, what: Any) -> frozenset[Sym]:
        """What an integer or condition is made of that is known row by row."""
        return frozenset(symbols(what) & self._known.keys())

    # ---------------------------------------------------------------- as numbers

    def _value(self, what: Any) -> Array:
        """The numbers of an integer or condition that is known row by row; none where no turn is."""
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
        """What a row adds to ``gap``, as far as it matters for the sign of the whole."""
        parts = self._own(gap)
        if parts is None:
            return [self._known[sym] for sym in self._mine(gap)]
        own, rest = parts
        low, high = self._range(rest)
        if low == -np.inf or high == np.inf:
            return [own]
        return [np.clip(own, -int(high) - 1, -int(low))]

    def _own(self, total: Int) -> tuple[Array, Int] | None:
        """What each row adds to a sum, and the rest of the sum; None if they cannot be separated."""
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

    def _range(self, value: Int) -> tuple[float, float]:
        """The range of an integer over loops and coordinates, for these sizes."""
        fixed: dict[Sym, Int] = {}
        for sym in symbols(value):
            stop = None if sym.stop is None else substitute(sym.stop, self._env)
            if sym not in self._env and isinstance(stop, int):
                fixed[sym] = Sym(sym.name, sym.low, max(stop - 1, sym.low), sym.divisor)
        return bounds(substitute(value, {**self._env, **fixed}))


def classes(columns: Iterable[Array], count: int) -> Array:
    """For each of ``count`` rows the number of its class: rows of one class are equal in all columns."""
    found = np.zeros((count, 1), np.int64)
    for column in columns:
        _, own = np.unique(column, axis=0, return_inverse=True)
        pairs = np.stack([found.reshape(-1), own.reshape(-1)], axis=1)
        found = np.unique(pairs, axis=0, return_inverse=True)[1]
    return found.reshape(-1)


def _decisive(op: Op, seen: set[Value]) -> Iterator[Any]:
    """Integers and conditions that decide what an operation does, and what it finds to be there."""
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
    """The integers and conditions of a field; how many read an element decides nothing."""
    if field == "readers" or (isinstance(held, Sym) and field in ("index", "result")):
        return
    if isinstance(held, Expr | Cond):
        yield held
    elif isinstance(held, tuple):
        for part in held:
            yield from _integers(part, field)
