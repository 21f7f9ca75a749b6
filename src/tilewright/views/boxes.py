"""Boxes: the part of its base tensor that a view covers, if a bulk copy can transfer it.

A bulk copy transfers a box of a whole tensor.  In each dimension the box has a start, a number of elements,
and a step between them.  Elements outside the tensor read as 0 and are not written, so only the edges of the
tensor may cut a box.  `View.base_coordinates` and the view's predicate decide whether the view is a box.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import NamedTuple

import numpy as np

from tilewright.arch import BULK
from tilewright.symbolic.expr import add, all_of, expand, floordiv, less, less_equal, mul, parts_of, prove
from tilewright.symbolic.nodes import (
    TRUE,
    And,
    Cond,
    Constant,
    FloorDiv,
    Int,
    Less,
    Mod,
    Sym,
    bounds,
    divisor,
)
from tilewright.symbolic.rebuilding import elements, evaluate, parts, substitute, symbols, with_elements
from tilewright.views.view import View

ROW_BYTES = BULK.span_bytes
"""Bytes of a row of the swizzle of bulk copies and async MMA, which permutes 16-byte chunks in 8 rows."""


class NoBox(NamedTuple):
    """The reason why a view is not a box, and the nearest box; ``{tensor}`` stands for the base tensor."""

    reason: str
    nearest: str = "tw.copy"


@dataclass(frozen=True)
class Box:
    """A box of a tensor.

    Args:
        starts: first coordinate of the box in each dimension of the tensor; may lie outside the tensor.
        sides: number of elements in each dimension.
        steps: distance between two of these elements, in elements of the dimension.
        order: the tensor's dimensions in the order of the box in shared memory, from slowest to fastest.
        is_swizzled: whether shared memory holds swizzled rows of 128 bytes; otherwise it holds one row.
        where: whether the rows that integers in memory choose exist; otherwise the whole box lies outside.
    """

    starts: tuple[Int, ...]
    sides: tuple[int, ...]
    steps: tuple[int, ...]
    order: tuple[int, ...]
    is_swizzled: bool = True
    where: Cond = TRUE

    @property
    def inner(self) -> int:
        """The dimension of the tensor that is contiguous in shared memory."""
        return self.order[-1]

    @property
    def spans(self) -> tuple[int, ...]:
        """Number of tensor elements that the box spans in each dimension, including those it skips."""
        return tuple(side * step for side, step in zip(self.sides, self.steps, strict=True))


@lru_cache(maxsize=1024)
def find_box(view: View, extents: tuple[Int, ...], order: tuple[int, ...]) -> Box | NoBox:
    """Return the box that a view covers, or the reason why it is not a box.

    Args:
        view: a view of a tensor.
        extents: the extents of that tensor.
        order: the view's dimensions in their order in shared memory, from slowest to fastest.

    Example:
        >>> from tilewright.views.transforms import Tile
        >>> M, m = Sym("M", 1), Sym("m", 0)
        >>> whole = View.strided((M, 512), (512, 1))
        >>> find_box(Tile((32, 64), (m, 3)).apply(whole), whole.shape, (0, 1))
        Box(starts=(32*m, 192), sides=(32, 64), steps=(1, 1), order=(0, 1), is_swizzled=True, where=True)
    """
    if not view.is_static:
        return NoBox(f"its shape {view.shape} is known at launch only", "a tile of a static shape")
    syms, index, conditions = _walk(view, order)
    chosen = dict.fromkeys(elements(index) + elements(conditions))
    if any(symbols(one.at) & set(syms) for one in chosen):
        text = "gathered rows may lie anywhere in {tensor}"
        return NoBox(text, "tw.index(...) of one of them, blocks of rows that hold a tile, or tw.copy")
    # An integer that chooses a whole tile is a start like any other.
    named = {one: Sym(f"{one.table.name}.{n}", one.low, one.high) for n, one in enumerate(chosen)}
    index = tuple(with_elements(place, named) for place in index)
    conditions = tuple(with_elements(part, named) for part in conditions)
    where: list[Cond] = []
    starts: list[Int] = []
    sides, steps = [1] * len(extents), [1] * len(extents)
    moved: dict[Sym, int] = {}
    for dim, place in enumerate(index):
        found = _affine(dim, place, syms)
        if isinstance(found, NoBox):
            return found
        starts.append(found[0])
        for sym, step in found[1].items():
            if sym in moved:
                return NoBox(
                    f"one dimension of the tile walks along dimensions {moved[sym]} and {dim} of {{tensor}}"
                )
            moved[sym], steps[dim], sides[dim] = dim, step, _extent(sym)
    if idle := [sym for sym in syms if sym not in moved]:
        return NoBox(f"{_extent(idle[0])} elements of the tile refer to one element of {{tensor}}")
    edges = [
        *zip(index, extents, (side * step for side, step in zip(sides, steps, strict=True)), strict=True)
    ]
    for part in conditions:
        if not any(_follows(part, *edge) for edge in edges):
            whole = _of_whole_tile(part, syms) if chosen else None
            if whole is not None and symbols(whole).isdisjoint(named.values()):
                where.append(whole)
                continue
            rule = "only edges may cut a box"
            text = f"elements of the tile are valid only if {part}, which is no edge of {{tensor}}; {rule}"
            return NoBox(text, "a tile that divides its tensor, or tw.copy")
    fast = [moved[sym] for sym in syms]
    slow = [dim for dim in range(len(extents)) if dim not in fast]
    begins = tuple(substitute(start, {sym: one for one, sym in named.items()}) for start in starts)
    return Box(begins, tuple(sides), tuple(steps), (*slow, *fast), where=all_of(*where))


def _of_whole_tile(part: Cond, walking: Sequence[Sym]) -> Cond | None:
    """Return a tile's condition for its first element if all elements of the tile agree on it; else None.

    They agree if the terms that do not walk along the tile add up to a multiple of a number that is larger
    than the change of the walking terms along the tile.
    """
    if not isinstance(part, Less):
        return None
    terms, constant = parts_of(expand(add(part.right, mul(part.left, -1))))
    walks = [(term, factor) for term, factor in terms if symbols(term) & set(walking)]
    if any(not isinstance(term, Sym) or factor > 0 for term, factor in walks):
        return None
    rest: Int = constant
    for pair in terms:
        rest = rest if pair in walks else add(rest, mul(*pair))
    reach = sum(-factor * (_extent(term) - 1) for term, factor in walks if isinstance(term, Sym))
    return less(0, rest) if reach == 0 or divisor(rest) > reach else None


def _extent(sym: Sym) -> int:
    assert sym.high is not None
    return int(sym.high) + 1


def _walk(view: View, order: Sequence[int]) -> tuple[tuple[Sym, ...], tuple[Int, ...], tuple[Cond, ...]]:
    """Return the iteration space of a view: its coordinates, with merged dimensions split into digits.

    A coordinate is split if it occurs in quotients and remainders.

    Returns:
        The coordinates and digits, slowest first; then the tensor's coordinates and the parts of the
        predicate, both written in these.
    """
    syms: list[Sym] = []
    instead: dict[Sym, Int] = {}
    for dim in order:
        sym, extent = view.coords[dim], view.shape[dim]
        assert isinstance(extent, int)
        instead[sym] = 0
        if extent == 1:
            continue
        bases = {
            part.right
            for place in view.base_coordinates
            for part in parts(place)
            if isinstance(part, FloorDiv | Mod) and part.left == sym and isinstance(part.right, int)
        }
        ends = (1, *sorted(bases), extent)
        if not bases or any(high % low for low, high in pairwise(ends[1:])):
            syms.append(sym)
            instead[sym] = sym
            continue
        digits = [Sym(f"{sym.name}.{n}", 0, high // low - 1) for n, (low, high) in enumerate(pairwise(ends))]
        for digit, low in zip(digits, ends, strict=False):
            instead[sym] = add(instead[sym], mul(digit, low))
        syms += reversed(digits)
    valid = substitute(view.valid, instead)
    conditions = () if valid == TRUE else valid.parts if isinstance(valid, And) else (valid,)
    index = tuple(expand(substitute(place, instead)) for place in view.base_coordinates)
    return tuple(syms), index, conditions


def _affine(dim: int, place: Int, walking: Sequence[Sym]) -> tuple[Int, dict[Sym, int]] | NoBox:
    """Return the start of a box in one tensor dimension, and the step of each symbol that moves along it."""
    terms, constant = parts_of(place)
    start: Int = constant
    moves: dict[Sym, int] = {}
    for term, factor in terms:
        if isinstance(term, Sym) and term in walking:
            moves[term] = factor
        elif symbols(term) & set(walking):
            text = f"the tile walks along dimension {dim} of {{tensor}} as {place}, not in equal steps"
            return NoBox(text, "tiles within one row of merged dimensions, or tw.copy")
        else:
            start = add(start, mul(term, factor))
    if len(moves) > 1:
        text = f"{len(moves)} dimensions of the tile walk along dimension {dim} of {{tensor}}"
        return NoBox(text, "a tile of extent 1 along all but one of them, or tw.copy")
    if any(step < 1 for step in moves.values()):
        return NoBox(f"the tile walks backwards along dimension {dim} of {{tensor}}")
    return start, moves


def _follows(part: Cond, place: Int, extent: Int, span: int) -> bool:
    """Return whether ``0 <= place < extent`` implies a condition."""
    if not isinstance(part, Less):  # a constant False, for example of a tile before the first
        outside = prove(less(place, 0)), prove(less_equal(extent, place))
        return part == Constant(False) and True in outside
    if _is_outermost(part, place, extent):
        return True
    gap = add(part.right, mul(part.left, -1), -1)  # not negative where the condition holds
    if symbols(gap).isdisjoint(symbols(place)):
        return False
    rests = [expand(add(gap, mul(place, -1))), expand(add(gap, place, 1, mul(extent, -1)))]
    if any(bounds(rest)[0] >= 0 for rest in rests) or _grows_along(gap, place):
        return True
    # A tile before the first has ``gap`` <= -1, and none of its places is inside the tensor.
    before = bounds(expand(add(place, mul(gap, -span))))[1] < span
    return before or any(prove(less_equal(0, rest)) is True for rest in rests)


def _grows_along(gap: Int, place: Int) -> bool:
    """Return whether ``place >= 0`` implies ``gap >= 0`` because both grow with the same integer.

    If ``p * gap - q * place >= least`` for positive p and q, then ``place >= 0`` gives ``p * gap >= least``.
    The negative values of the gap are at most ``first - step``, so a larger ``least`` excludes them.
    """
    terms, constant = parts_of(gap)
    step = divisor(add(gap, -constant))
    first = constant % step if step else constant
    place = _numerator(place)
    steps = dict(parts_of(place)[0])
    for term, factor in terms:
        other = steps.get(term, 0)
        if other * factor <= 0:
            continue
        shared = gcd(other, factor)
        p, q = abs(other) // shared, abs(factor) // shared
        if bounds(expand(add(mul(gap, p), mul(place, -q))))[0] > p * (first - step):
            return True
    return False


def _numerator(place: Int) -> Int:
    """Return an integer with the same sign test as a place: ``n // c + d >= 0`` iff ``n + c * d >= 0``."""
    terms, constant = parts_of(place)
    if len(terms) == 1 and terms[0][1] == 1:
        term = terms[0][0]
        if isinstance(term, FloorDiv) and isinstance(term.right, int) and term.right > 0:
            return _numerator(add(term.left, term.right * constant))
    return place


def _is_outermost(part: Less, place: Int, extent: Int) -> bool:
    """Return whether a condition on merged dimensions is the bound of the outermost one.

    If the inner dimensions have ``c`` elements, ``left < c * extent`` if and only if ``left // c < extent``.
    """
    counts = (
        {factor for _, factor in parts_of(expand(part.right))[0]} if not isinstance(extent, int) else set()
    )
    if isinstance(extent, int) and isinstance(part.right, int) and extent and part.right % extent == 0:
        counts = {part.right // extent}
    inner = (c for c in counts if c > 1 and expand(add(part.right, mul(extent, -c))) == 0)
    return any(floordiv(part.left, c) == place for c in inner)


@lru_cache(maxsize=1024)
def swizzled_order(view: View, element_bytes: int) -> tuple[int, ...] | None:
    """Return a tile's dimensions, slowest first, if the tile has the 128-byte swizzle of bulk copies.

    Element ``n`` of the tile in that order must lie at byte ``n*bytes ^ 16*(row % 8)`` from a boundary of
    1024 bytes on, with ``row = n*bytes // 128``; the fastest dimension is one row.

    Example:
        >>> from tilewright.views.transforms import Permute, Swizzle
        >>> tile = Swizzle(3, 3, 3).apply(View.strided((32, 64), (64, 1)))
        >>> swizzled_order(tile, 2), swizzled_order(Permute((1, 0)).apply(tile), 2)
        ((0, 1), (1, 0))
    """
    shape = tuple(extent for extent in view.shape if isinstance(extent, int))
    base = substitute(view.offset, dict.fromkeys(view.coords, 0))
    is_whole = len(shape) == view.rank > 0 and not elements(view.offset)
    own = set(view.coords)
    divided = [symbols(part) for part in parts(view.offset) if isinstance(part, FloorDiv | Mod)]
    # Then the distance between two elements may depend on integers of the program.
    bends = any(found & own and found - own for found in divided)
    if not is_whole or bends or divisor(base) * element_bytes % (8 * ROW_BYTES):
        return None
    outer: dict[Sym, int] = dict.fromkeys(symbols(view.offset) - own, 0)
    at = np.indices(shape, sparse=True)
    found = evaluate(view.offset, {**dict(zip(view.coords, at, strict=True)), **outer})
    found = np.broadcast_to((found - evaluate(base, outer)) * element_bytes, shape)
    steps = {
        dim: int(found[tuple(int(d == dim) for d in range(len(shape)))])
        for dim in range(len(shape))
        if shape[dim] > 1
    }
    order = sorted(range(len(shape)), key=lambda dim: (shape[dim] > 1, -steps.get(dim, 0)))
    count = np.arange(found.size).reshape([shape[dim] for dim in order]) * element_bytes
    wanted = count ^ 16 * (count // ROW_BYTES % 8)
    is_row = shape[order[-1]] * element_bytes == ROW_BYTES
    return tuple(order) if is_row and (found.transpose(order) == wanted).all() else None
