"""Routes between two operations: the iterations in which one can follow the other, and the points between.

A route contains what every execution from the first to the second operation passes.  It omits operations in
branches and in loops that may have no iteration.  Operations in branches with exclusive conditions do not
follow each other: ``t % 2 == 0`` does not hold in two consecutive iterations.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import NamedTuple, TypeAlias

from tilewright.ir.ops import Block, For, Op
from tilewright.passes.effects import AccessingOp, Integers
from tilewright.symbolic.expr import add, all_of, less, mul, negate, prove
from tilewright.symbolic.nodes import And, Cond, FloorDiv, Int, Mod, Sym
from tilewright.symbolic.rebuilding import elements, evaluate, parts, substitute, symbols

MOST_TURNS = 8
"""Number of loop iterations that are distinguished; all later ones are treated together."""

MOST_CASES = 256
"""Maximum number of symbol values that are tried to decide whether conditions can hold together."""

FEW_TURNS = 4
"""Iterations that are followed in a loop on a route. More would give no new information."""


class Leg(NamedTuple):
    """Part of a route: operations ``low`` to ``high`` (excluded) of a block, executed several times."""

    block: Block
    low: int
    high: int
    times: int = 1


class Point(NamedTuple):
    """The point before an operation of a block, or at its end."""

    block: int
    at: int


Route: TypeAlias = tuple[Leg, ...]
Event: TypeAlias = "Point | Op"
"""An element of a route: a point, or the operation after it."""


class LoopPosition(NamedTuple):
    """Iterations of the loops around one of two operations, on the route out of them or into them.

    On the way out, a loop is "at its end" in its last iteration; on the way in, in its first.

    Args:
        level: the outermost loop that is not at its end.  Loops outside it are at their ends; loops inside it
            are in any iteration.  -1: all loops are at their ends.
        away: distance of that loop from its end, in iterations.
        is_least: whether the distance may be larger.
    """

    level: int = -1
    away: int = 0
    is_least: bool = False

    def is_within(self, other: LoopPosition) -> bool:
        """Return whether every execution in these iterations passes all that one in the others passes."""
        return other.level < 0 or (self.level == other.level and self.away >= other.away)


class Meeting(NamedTuple):
    """One way in which one operation can follow another.

    Args:
        route: the points and operations in between.
        before: replacements for the symbols of the first operation.
        after: replacements for the symbols of the second.
        turns: iterations of the loops out of the first, of the loop around both, and into the second.
    """

    route: Route
    before: dict[Sym, Int]
    after: dict[Sym, Int]
    turns: tuple[LoopPosition, LoopPosition, LoopPosition]

    def is_within(self, other: Meeting) -> bool:
        """Return whether everything that orders the other meeting also orders this one."""
        return all(mine.is_within(its) for mine, its in zip(self.turns, other.turns, strict=True))


def meetings(one: AccessingOp, other: AccessingOp, known: Integers, exact: bool) -> Iterator[list[Meeting]]:
    """Yield the ways in which ``other`` can follow ``one``, in families sorted from nearest to farthest.

    Args:
        one: an operation.
        other: another operation, or the same one.
        known: the integers of the kernel.
        exact: whether to distinguish iterations; otherwise only whether a loop went on in between.
    """
    level = _common(one, other)
    apart = one.way[level].at != other.way[level].at
    if apart and one.way[level].at < other.way[level].at:
        yield _family(_OpPair(one, other, level, None, known), exact)
    for depth in range(1, level + 1):
        if isinstance(one.way[depth].owner, For):
            yield _family(_OpPair(one, other, level, depth, known), exact)


def _common(one: AccessingOp, other: AccessingOp) -> int:
    """Return the level of the innermost block that contains both."""
    level = 0
    for (mine, its), (inner, its_inner) in pairwise(zip(one.way, other.way, strict=False)):
        if mine.at != its.at or inner.block is not its_inner.block:
            break
        level += 1
    return level


def _family(pair: _OpPair, exact: bool) -> list[Meeting]:
    outward, around, inward = pair.options(exact)
    made = sorted(product(outward, around, inward), key=lambda turns: sum(turn.away for turn in turns))
    return [meeting for turns in made if (meeting := pair.meeting(*turns)) is not None]


@dataclass
class _OpPair:
    """Two operations in the same iteration of all common loops, or in different iterations of one of them.

    Args:
        one: the first operation.
        other: the second operation.
        level: level of the innermost block that contains both.
        depth: level of the body of the loop whose later iteration contains the second; None: same iteration.
        known: the integers of the kernel.
    """

    one: AccessingOp
    other: AccessingOp
    level: int
    depth: int | None
    known: Integers

    outer: list[For] = field(default_factory=list)
    inner: list[For] = field(default_factory=list)

    def options(self, exact: bool) -> tuple[list[LoopPosition], list[LoopPosition], list[LoopPosition]]:
        """Return the iterations to distinguish: out of the first, of the common loop, into the second."""
        shared = self.level + 1 if self.depth is None else self.depth + 1
        self.outer = _loops(self.one, shared)
        self.inner = _loops(self.other, shared)
        around = [LoopPosition()] if self.depth is None else _counts(0, 1, MOST_TURNS if exact else 1)
        few = MOST_TURNS if exact and self.depth is None else 0
        return (
            [LoopPosition(), *(turns for at in range(len(self.outer)) for turns in _counts(at, 1, few))],
            around,
            [LoopPosition(), *(turns for at in range(len(self.inner)) for turns in _counts(at, 1, few))],
        )

    def meeting(self, outward: LoopPosition, around: LoopPosition, inward: LoopPosition) -> Meeting | None:
        """Return the meeting in these iterations; None if a loop is too short or a branch is not taken."""
        shared = self.one.way[: self.level + 1 if self.depth is None else self.depth]
        blocks = {id(step.block) for step in shared}
        apart = (sym for sym, block in self.known.read.items() if block not in blocks)
        before: dict[Sym, Int] = {sym: _renamed(sym, "before") for sym in apart}
        after: dict[Sym, Int] = {}
        if self.depth is not None:
            loop = self.one.way[self.depth].owner
            assert isinstance(loop, For)
            if not _turns_so_often(loop, around.away + 1):
                return None
            after[loop.index] = add(loop.index, mul(_away(loop, around, "around"), loop.step))
        for places, loops, turns, is_outward in (
            (before, self.outer, outward, True),
            (after, self.inner, inward, False),
        ):
            for at, loop in enumerate(loops):
                if not _turns_so_often(loop, turns.away + 1 if at == turns.level else 1):
                    return None
                start, stop = (self.known.placed(end, places) for end in (loop.start, loop.stop))
                places[loop.index] = _index(loop, start, stop, at, turns, is_outward)
        before, after = self.known.all_placed(before), self.known.all_placed(after)
        if self.one.conditions and self.other.conditions:  # the branches around both operations
            former = [substitute(condition, before) for condition in self.one.conditions]
            if not may_hold(
                [*former, *(substitute(condition, after) for condition in self.other.conditions)]
            ):
                return None
        route = self._route(outward, around, inward)
        return Meeting(route, before, after, (outward, around, inward))

    def _route(self, outward: LoopPosition, around: LoopPosition, inward: LoopPosition) -> Route:
        """Return the legs out of the first operation, around the common loop, and into the second."""
        one, other = self.one.way, self.other.way
        level = self.level if self.depth is None else self.depth
        legs: list[Leg] = []
        for step in reversed(one[level + 1 :]):
            legs.append(_rest(step.block, step.at + 1))
            if _turned(step.owner, self.outer, outward):
                legs.append(Leg(step.block, 0, len(step.block.ops), outward.away))
        block = one[level].block
        if self.depth is None:
            legs.append(Leg(block, one[level].at + 1, other[level].at))
        else:
            legs.append(_rest(block, one[level].at + 1))
            legs.append(Leg(block, 0, len(block.ops), around.away - 1))
            legs.append(Leg(block, 0, other[level].at))
        for step in other[level + 1 :]:
            if _turned(step.owner, self.inner, inward):
                legs.append(Leg(step.block, 0, len(step.block.ops), inward.away))
            legs.append(Leg(step.block, 0, step.at))
        return tuple(leg for leg in legs if leg.times)


def _rest(block: Block, low: int) -> Leg:
    return Leg(block, low, len(block.ops))


def _loops(site: AccessingOp, level: int) -> list[For]:
    """Return the loops around an operation, starting at a level, the outermost first."""
    return [step.owner for step in site.way[level:] if isinstance(step.owner, For)]


def _counts(level: int, least: int, most: int) -> list[LoopPosition]:
    """Return the iteration distances of a loop to distinguish, and one for all larger ones."""
    exact = [LoopPosition(level, count) for count in range(least, most + 1)]
    return [*exact, LoopPosition(level, most + 1, True)]


def _turned(owner: Op | None, loops: Sequence[For], turns: LoopPosition) -> bool:
    return turns.level >= 0 and owner is loops[turns.level]


def trips(loop: For) -> int | None:
    """Return the number of iterations of a loop, or None if it is unknown."""
    if isinstance(loop.start, int) and isinstance(loop.stop, int):
        return len(range(loop.start, loop.stop, loop.step))
    return None


def _turns_so_often(loop: For, count: int) -> bool:
    """Return whether a loop can have this many iterations."""
    known = trips(loop)
    return known is None or known >= count


def _away(loop: For, turns: LoopPosition, what: str) -> Int:
    return add(turns.away, Sym(f"{loop.index.name}_more_{what}")) if turns.is_least else turns.away


def _renamed(sym: Sym, what: str) -> Sym:
    return Sym(f"{sym.name}_{what}", sym.low, sym.high, sym.divisor)


def _index(loop: For, start: Int, stop: Int, at: int, turns: LoopPosition, is_outward: bool) -> Int:
    """Return the loop index: in one of the last iterations on the way out, one of the first on the way in."""
    what = "before" if is_outward else "after"
    if 0 <= turns.level < at:
        return _renamed(loop.index, what)
    away: Int = _away(loop, turns, what) if at == turns.level else 0
    if not is_outward:
        return add(start, mul(away, loop.step))
    known = trips(loop)
    if known is not None:
        return add(start, (known - 1) * loop.step, mul(away, -loop.step))
    return add(stop, -1, mul(away, -1)) if loop.step == 1 else _renamed(loop.index, what)


# ---------------------------------------------------------------- branches that exclude each other


def may_hold(conditions: Iterable[Cond]) -> bool:
    """Return whether conditions can hold together.

    A condition on integers in memory counts as true, because they may change between two reads.  So does a
    condition on a symbol without a short period.

    Example:
        >>> from tilewright.symbolic.expr import equal
        >>> t = Sym("t")
        >>> may_hold([equal(t % 2, 0), equal((t + 1) % 2, 0)]), may_hold([equal(t % 2, 0), equal(t % 3, 1)])
        (False, True)
    """
    whole = all_of(*(condition for condition in conditions if not elements(condition)))
    pieces = whole.parts if isinstance(whole, And) else (whole,)
    if prove(whole) is False or any(negate(piece) in pieces for piece in pieces):
        return False
    spans, tried = dict[Sym, int](), list[Cond]()
    for piece in pieces:
        periods = dict[Sym, int]()
        for sym in symbols(piece):
            divisions = {
                part: part.right
                for part in parts(piece)
                if isinstance(part, Mod | FloorDiv)
                and isinstance(part.right, int)
                and sym in symbols(part.left)
            }
            period = math.lcm(max(sym.divisor, 1), math.prod(divisions.values()))
            if substitute(piece, {sym: add(sym, period)}) == piece:
                periods[sym] = period
        if len(periods) == len(symbols(piece)):
            tried.append(piece)
            spans |= {sym: math.lcm(period, spans.get(sym, 1)) for sym, period in periods.items()}
    values: list[range] = []  # one period of each symbol, from its minimum
    for sym, period in spans.items():
        unit = max(sym.divisor, 1)
        low = -(-sym.low // unit) * unit
        values.append(range(low, low + period, unit))
    if math.prod(map(len, values)) > MOST_CASES:
        return True
    environments = (dict(zip(spans, some, strict=True)) for some in product(*values))
    return any(all(evaluate(piece, env) for piece in tried) for env in environments)


# ---------------------------------------------------------------- operations on a route


def passed(route: Route) -> Iterator[Event]:
    """Yield what every execution passes on a route, in order: points, and the operations after them."""
    for leg in route:
        for _ in range(leg.times):
            yield from _through(leg.block, leg.low, leg.high)


def _through(block: Block, low: int, high: int) -> Iterator[Event]:
    for at in range(low, high):
        yield Point(id(block), at)
        op = block.ops[at]
        yield op
        if isinstance(op, For) and prove(less(op.start, op.stop)) is True:
            for _ in range(min(trips(op) or 1, FEW_TURNS)):
                yield from _through(op.body, 0, len(op.body.ops))
    yield Point(id(block), high)
