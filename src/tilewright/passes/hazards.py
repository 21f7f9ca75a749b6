"""Hazards: pairs of accesses that need an ordering operation, with the threads and routes concerned.

The overlap test decides whether two accesses touch a common element, and in which threads: proven, or
assumed.  Integers on which both accesses depend in the same way cancel.  For integers that index a ring (``k
% stages``), one period is tried.  If neither helps, the two accesses are compared as wholes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property, lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.ir.kernel import Kernel
from tilewright.ir.ops import Barrier, Op, WarpBarrier
from tilewright.ir.types import Memory, Value
from tilewright.passes.effects import AccessingOp, Integers, MemoryAccess, sites
from tilewright.passes.routes import Event, Meeting, Point, Route, meetings, passed
from tilewright.symbolic.expr import add, equal, expand, floordiv, mul, prove
from tilewright.symbolic.nodes import Cond, FloorDiv, Int, Mod, Sym, bounds, divisor
from tilewright.symbolic.rebuilding import elements, evaluate, parts, substitute, symbols

# ---------------------------------------------------------------- overlap test


Array: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]
Places: TypeAlias = Mapping[Sym, Int]
"""Replacements for the symbols of an access in a comparison with another access."""

MOST_CASES = 256
"""Maximum number of symbol values that are tried for one pair of accesses."""


class Reach(IntEnum):
    """The set of threads among which an element passes; it decides what must order two accesses."""

    NOBODY = 0
    """The accesses have no common element."""
    THREAD = 1
    """Each thread touches only elements that it touched itself."""
    WARP = 2
    """Threads touch elements of other threads in their warp."""
    BLOCK = 3
    """Threads touch elements of other warps."""


class Touched(NamedTuple):
    """The elements of an access, with the first and the last thread that touches each."""

    elements: Array
    first: Array
    last: Array


class Overlaps:
    """Compares accesses, and caches the elements that they touch.

    Args:
        threads: threads of the block.
        lanes: threads of a warp.
    """

    def __init__(self, threads: int, lanes: int) -> None:
        self.threads, self.lanes = threads, lanes
        self._known: dict[tuple[Any, ...], Touched] = {}
        self._reaches: dict[tuple[int, int], Reach] = {}

    def reach(self, one: MemoryAccess, other: MemoryAccess, at_one: Places, at_other: Places) -> Reach:
        """Return how far an element may travel between two accesses to one buffer: thread, warp or block.

        Args:
            one: an access.
            other: another access, or the same one at another time.
            at_one: replacements for the symbols of the first.
            at_other: replacements for the symbols of the second.
        """
        if one.reduction is not None and one.reduction == other.reduction:
            return Reach.NOBODY
        pair = _AccessPair(one, other, at_one, at_other)
        if pair.is_apart():
            return Reach.NOBODY
        most = Reach.THREAD if self.threads == 1 else Reach.BLOCK if self.threads > self.lanes else Reach.WARP
        if not pair.is_known:
            return most
        found = Reach.NOBODY
        for env in pair.cases():
            found = max(found, self._compare(pair, env))
            if found >= most:
                break
        return found

    def _compare(self, pair: _AccessPair, env: Mapping[Sym, int]) -> Reach:
        one, other = (self._elements(side, env) for side in pair.sides)
        key = id(one), id(other)  # `_known` keeps both alive
        if key not in self._reaches:
            self._reaches[key] = self._reach_of(one, other)
        return self._reaches[key]

    def _reach_of(self, one: Touched, other: Touched) -> Reach:
        if not len(one.elements) or not len(other.elements):
            return Reach.NOBODY
        if one.elements[-1] < other.elements[0] or other.elements[-1] < one.elements[0]:
            return Reach.NOBODY
        common, mine, its = np.intersect1d(
            one.elements, other.elements, assume_unique=True, return_indices=True
        )
        if not len(common):
            return Reach.NOBODY
        first = np.minimum(one.first[mine], other.first[its])
        last = np.maximum(one.last[mine], other.last[its])
        if (first == last).all():
            return Reach.THREAD
        return Reach.WARP if (first // self.lanes == last // self.lanes).all() else Reach.BLOCK

    def _elements(self, side: _AccessSide, env: Mapping[Sym, int]) -> Touched:
        own = {sym: value for sym, value in env.items() if sym in side.free}
        key = (id(side.access), side.places, side.valid, tuple(own.items()))  # in the order of `env`
        if key in self._known:
            return self._known[key]
        spread = side.access.spread
        assert spread is not None
        table = spread.table[: self.threads]
        mapping: dict[Sym, Any] = {
            **own,
            **dict(zip(side.access.value.tensor.view.coords, np.moveaxis(table, -1, 0), strict=True)),
        }
        shape = table.shape[:-1]
        total = np.zeros(shape, np.int64)
        for place in side.places:
            total = total * (1 << 20) + np.asarray(evaluate(place, mapping), np.int64)
        wanted = np.ones(shape, bool)
        if symbols(side.valid) <= {*side.coords}:  # other symbols have one trial value or one period
            wanted &= np.asarray(evaluate(side.valid, mapping), bool)
        if side.access.writes:  # of threads that hold copies of the same values, the first writes
            rest = np.arange(len(table))
            for mode in spread.threads:
                if mode.dim is None:
                    wanted &= (rest % mode.extent == 0)[:, None]
                rest = rest // mode.extent
        threads = np.broadcast_to(np.arange(len(table))[:, None], shape)[wanted]
        found, at = np.unique(total[wanted], return_inverse=True)
        low = threads // self.lanes * self.lanes if side.access.by_warp else threads
        high = low + self.lanes - 1 if side.access.by_warp else threads
        first, last = np.full(len(found), self.threads), np.full(len(found), -1)
        np.minimum.at(first, at.reshape(-1), low)
        np.maximum.at(last, at.reshape(-1), high)
        self._known[key] = Touched(found, first, last)
        return self._known[key]


class _AccessSide:
    """One of two accesses: its element positions, written in its coordinates and the symbols of the pair."""

    def __init__(self, access: MemoryAccess, at: Places) -> None:
        self.access = access
        kind = access.value.tensor
        view = kind.view
        self.coords = view.coords
        places: tuple[Int, ...] = (view.offset,) if kind.memory is Memory.SHARED else view.base_coordinates
        if kind.dtype.is_packed:  # neighbours share a byte
            places = tuple(floordiv(place, kind.dtype.per_byte) for place in places)
        self.places: tuple[Int, ...] = tuple(substitute(place, at) for place in places)
        self.valid: Cond = substitute(view.valid, at)
        # Coordinates do not show which elements share a byte of global memory.
        is_unseen = kind.dtype.is_packed and kind.memory is not Memory.SHARED
        self.is_known = access.spread is not None and not is_unseen and not elements((*places, view.valid))
        self.free: set[Sym] = {sym for place in self.places for sym in symbols(place)} - set(self.coords)

    def shift(self, sym: Sym, by: int) -> tuple[Int, ...]:
        """Return the change of each position when a symbol grows."""
        moved = (substitute(place, {sym: add(sym, by)}) for place in self.places)
        return tuple(expand(add(m, mul(p, -1))) for m, p in zip(moved, self.places, strict=True))

    @property
    def base(self) -> tuple[Int, ...]:
        """The positions if all coordinates are 0."""
        zero = dict.fromkeys(self.coords, 0)
        return tuple(substitute(place, zero) for place in self.places)

    @property
    def within(self) -> tuple[Int, ...]:
        """The distances of the positions from `base`."""
        pairs = zip(self.places, self.base, strict=True)
        return tuple(expand(add(place, mul(base, -1))) for place, base in pairs)


@lru_cache(maxsize=4096)
def _divisions(place: Int) -> tuple[tuple[int, frozenset[Sym]], ...]:
    """Return the divisors in a position, each with the symbols that are divided."""
    divided = (part for part in parts(place) if isinstance(part, Mod | FloorDiv))
    return tuple(
        (part.right, frozenset(symbols(part.left))) for part in divided if isinstance(part.right, int)
    )


class _AccessPair:
    """Two accesses to one buffer, and the possible values of their symbols."""

    def __init__(self, one: MemoryAccess, other: MemoryAccess, at_one: Places, at_other: Places) -> None:
        self.sides = _AccessSide(one, at_one), _AccessSide(other, at_other)
        self.is_known = all(side.is_known for side in self.sides)
        self.spans: dict[Sym, Sequence[int]] = {}
        if self.is_known:
            self._settle()

    def is_apart(self) -> bool:
        """Return whether ranges and divisors alone prove that the accesses share no element."""
        one, other = self.sides
        if elements((*one.places, *other.places)) or len(one.places) != len(other.places):
            return False
        theirs = {sym: Sym(f"{sym.name}'", sym.low, sym.high) for sym in other.coords}
        return any(
            prove(equal(mine, substitute(its, theirs))) is False
            for mine, its in zip(one.places, other.places, strict=True)
        )

    def cases(self) -> Iterator[dict[Sym, int]]:
        """Yield symbol values that cover all possible cases."""
        for values in itertools.product(*self.spans.values()):
            yield dict(zip(self.spans, values, strict=True))

    def _settle(self) -> None:
        """Choose the symbol values to try.

        If they are unknown or too many, compare tiles of one grid as equal tiles; give up on any others.
        """
        for sym in sorted(self.sides[0].free | self.sides[1].free, key=str):
            span = self._span(sym)
            if span is None:
                break
            self.spans[sym] = span
        else:
            if math.prod(map(len, self.spans.values())) <= MOST_CASES:
                return
        self.spans = {}
        # Both are tiles of one grid if each starts at a multiple of an extent and fits it.
        unit, most = [0] * len(self.sides[0].places), [0.0] * len(self.sides[0].places)
        self.is_known = True
        for side in self.sides:
            for dim, (within, base) in enumerate(zip(side.within, side.base, strict=True)):
                low, high = bounds(within)
                self.is_known &= not symbols(within) - set(side.coords) and low >= 0
                unit[dim], most[dim] = math.gcd(unit[dim], divisor(base)), max(most[dim], high)
        self.is_known &= all(not step or high < step for step, high in zip(unit, most, strict=True))
        if self.is_known:  # make positions relative to the first coordinate, and drop its symbols
            for side in self.sides:
                side.places, side.free = side.within, set()

    def _span(self, sym: Sym) -> Sequence[int] | None:
        unit = max(sym.divisor, 1)
        low = -(-sym.low // unit) * unit
        if self._shifts_alike(sym, unit):
            return (low,)
        places = (place for side in self.sides for place in side.places)
        divisors = {by for place in places for by, of in _divisions(place) if sym in of}
        most = math.prod(divisors)
        period = math.lcm(unit, *([most] if most <= MOST_CASES else divisors))
        most = MOST_CASES * unit
        if period <= most and self._shifts_alike(sym, period):
            high = low + period
            return range(low, high if sym.high is None else max(min(high, sym.high + 1), low + 1), unit)
        if sym.high is not None and sym.high - low < most:
            return range(low, sym.high + 1, unit)
        return None

    def _shifts_alike(self, sym: Sym, by: int) -> bool:
        """Return whether all positions of both accesses change by the same amount when a symbol grows."""
        one, other = (side.shift(sym, by) for side in self.sides)
        return one == other and all(isinstance(step, int) for step in one)


# ---------------------------------------------------------------- hazards


@dataclass(frozen=True, eq=False)
class Hazard:
    """Two accesses whose order other threads or asynchronous copies may violate.

    Args:
        tensor: the tensor that both access.
        before: the operation that comes first.
        after: the operation that comes second.
        writes: whether the first writes, and whether the second does.
        reach: the set of threads among which elements pass.
        in_background: whether the first is asynchronous and completes when its group is waited for.
        route: the operations and points that every execution passes in between.
    """

    tensor: Value
    before: AccessingOp
    after: AccessingOp
    writes: tuple[bool, bool]
    reach: Reach
    in_background: bool
    route: Route

    @cached_property
    def events(self) -> tuple[Event, ...]:
        """The operations and points in between, in order."""
        return tuple(passed(self.route))

    @cached_property
    def points(self) -> dict[int, Point]:
        """The points in between, by their index among the events."""
        return {number: event for number, event in enumerate(self.events) if isinstance(event, Point)}

    @property
    def needs_barrier(self) -> bool:
        """Whether threads must meet at a barrier in between."""
        return self.reach > Reach.THREAD

    def is_met(self, op: Op) -> bool:
        """Return whether all threads concerned meet at an operation."""
        return isinstance(op, Barrier) or (isinstance(op, WarpBarrier) and self.reach <= Reach.WARP)

    @property
    def has_barrier(self) -> bool:
        """Whether all threads concerned meet at an operation in between."""
        return any(isinstance(event, Op) and self.is_met(event) for event in self.events)

    def __str__(self) -> str:
        first, second = ("written" if writes else "read" for writes in self.writes)
        among = ["", "", " by other lanes", " by other threads"][self.reach]
        return (
            f"{self.tensor}, {first} by {self.before.op.verb} at {line_of(self.before.op)}, is {second} by "
            f"{self.after.op.verb} at {line_of(self.after.op)}{among}"
        )


def line_of(op: Op) -> str:
    """Return the author's line of an operation, for notes and messages."""
    return "an unknown line" if op.location is None else str(op.location.frame)


def hazards(kernel: Kernel, buffers: Collection[str] | None = None) -> list[Hazard]:
    """Return the hazards of a kernel: each pair of accesses that needs an order, on each route between them.

    If one route passes everything that another route passes, only the shorter one is returned.

    Args:
        kernel: the kernel.
        buffers: names of the buffers to examine; None: all.
    """
    found, known = sites(kernel), Integers.of(kernel)
    overlaps = Overlaps(kernel.threads, kernel.lanes)
    made: list[Hazard] = []
    for one, other in itertools.product(found, found):
        pairs = [  # accesses to one buffer, at least one of them a write
            (mine, its)
            for mine in one.accesses
            if buffers is None or mine.value.buffer.name in buffers
            for its in other.accesses
            if mine.value.buffer is its.value.buffer and (mine.writes or its.writes)
        ]
        if pairs:
            made += _between(one, other, pairs, known, overlaps)
    return made


def _between(
    one: AccessingOp,
    other: AccessingOp,
    pairs: list[tuple[MemoryAccess, MemoryAccess]],
    known: Integers,
    overlaps: Overlaps,
) -> Iterator[Hazard]:
    least = Reach.THREAD if one.is_in_background else Reach.WARP
    for family in meetings(one, other, known, one.is_in_background):
        seen: list[tuple[Meeting, Reach]] = []
        for meeting in family:
            before = max((reach for former, reach in seen if meeting.is_within(former)), default=Reach.NOBODY)
            if before is Reach.BLOCK:
                continue
            reach, mine, its = max(
                ((overlaps.reach(*pair, meeting.before, meeting.after), *pair) for pair in pairs),
                key=lambda each: each[0],
            )
            if reach >= least and reach > before:
                seen.append((meeting, reach))
                tensor, writes = mine.value.buffer, (mine.writes, its.writes)
                yield Hazard(tensor, one, other, writes, reach, one.is_in_background, meeting.route)
