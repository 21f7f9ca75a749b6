"""Boxes: which part of the tensor behind it a view is, if that is a box, cut at the tensor's edges alone.

A bulk copy walks a box of a whole tensor: in each dimension it begins somewhere and takes some elements, each
or every second, third ...; what lies outside of the tensor reads as 0 and is not written.  Whether a view is
such a box follows from the coordinates of the tensor behind it (`View.behind`) and from its predicate.
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
from tilewright.symbolic.arithmetic import parts_of
from tilewright.symbolic.expr import add, expand, floordiv, less, less_equal, mul, prove
from tilewright.symbolic.nodes import TRUE, And, Cond, Constant, FloorDiv, Int, Less, Mod, Sym
from tilewright.symbolic.ranges import bounds, divisor
from tilewright.symbolic.rebuilding import elements, evaluate, parts, substitute, symbols
from tilewright.views.view import View

ROW_BYTES = BULK.span_bytes
"""Rows of the swizzle of bulk copies and asynchronous MMA: 8 of them, with chunks of 16 bytes exchanged."""


class NoBox(NamedTuple):
    """Why a view is no box, and what would be one; ``{tensor}`` stands for the tensor behind it."""

    reason: str
    nearest: str = "tw.copy"


@dataclass(frozen=True)
class Box:
    """A box of a tensor.

    Args:
        starts: for each dimension of the tensor, where the box begins; may lie outside.
        sides: how many elements it takes there.
        steps: the distance between two of them, in elements of the dimension.
        order: the tensor's dimensions as the box lies in shared memory, from the slowest to the fastest.
        is_swizzled: whether it lies there in rows of 128 bytes under the swizzle, and not as one row.
    """

    starts: tuple[Int, ...]
    sides: tuple[int, ...]
    steps: tuple[int, ...]
    order: tuple[int, ...]
    is_swizzled: bool = True

    @property
    def inner(self) -> int:
        """The dimension of the tensor whose neighbours are neighbours in shared memory."""
        return self.order[-1]

    @property
    def spans(self) -> tuple[int, ...]:
        """How many elements of each dimension it reaches over."""
        return tuple(side * step for side, step in zip(self.sides, self.steps, strict=True))


@dataclass(frozen=True)
class _Walk:
    """What walks: coordinates of the view, or their digits, slowest first; each has ``Sym.high + 1`` values.

    Args:
        syms: the coordinates and digits.
        index: the tensor's coordinates over them.
        conditions: the parts of the predicate over them.
    """

    syms: tuple[Sym, ...]
    index: tuple[Int, ...]
    conditions: tuple[Cond, ...]


@lru_cache(maxsize=1024)
def find_box(view: View, extents: tuple[Int, ...], order: tuple[int, ...]) -> Box | NoBox:
    """The box that a view is.

    Args:
        view: of a tensor.
        extents: of that tensor.
        order: the view's dimensions as they lie in shared memory, from the slowest to the fastest.

    Example:
        >>> from tilewright.views.transforms import Tile
        >>> M, m = Sym("M", 1), Sym("m", 0)
        >>> whole = View.strided((M, 512), (512, 1))
        >>> find_box(Tile((32, 64), (m, 3)).apply(whole), whole.shape, (0, 1))
        Box(starts=(32*m, 192), sides=(32, 64), steps=(1, 1), order=(0, 1), is_swizzled=True)
    """
    if not view.is_static:
        return NoBox(f"its shape {view.shape} is known at launch only", "a tile of a static shape")
    if any(elements(part) for part in (*view.behind, view.valid)):
        text = "rows whose numbers lie in memory lie anywhere in {tensor}"
        return NoBox(text, "tw.index(...) of one of them, or tw.copy")
    walk = _walk(view, order)
    starts: list[Int] = []
    sides, steps = [1] * len(extents), [1] * len(extents)
    moved: dict[Sym, int] = {}
    for dim, place in enumerate(walk.index):
        found = _affine(dim, place, walk.syms)
        if isinstance(found, NoBox):
            return found
        starts.append(found[0])
        for sym, step in found[1].items():
            if sym in moved:
                return NoBox(
                    f"one dimension of the tile walks along dimensions {moved[sym]} and {dim} of {{tensor}}"
                )
            moved[sym], steps[dim], sides[dim] = dim, step, _extent(sym)
    if idle := [sym for sym in walk.syms if sym not in moved]:
        return NoBox(f"{_extent(idle[0])} elements of the tile are one element of {{tensor}}")
    if (cut := _other_edge(walk, extents, sides, steps)) is not None:
        text = f"elements of the tile exist only if {cut}, which is no edge of {{tensor}}"
        return NoBox(
            f"{text}: boxes are cut there alone", "a tile that divides what it is a tile of, or tw.copy"
        )
    fast = [moved[sym] for sym in walk.syms]
    slow = [dim for dim in range(len(extents)) if dim not in fast]
    return Box(tuple(starts), tuple(sides), tuple(steps), (*slow, *fast))


def _extent(sym: Sym) -> int:
    assert sym.high is not None
    return int(sym.high) + 1


def _walk(view: View, order: Sequence[int]) -> _Walk:
    """A coordinate that is only taken apart, as those of merged dimensions are, walks by its digits."""
    syms: list[Sym] = []
    instead: dict[Sym, Int] = {}
    for dim in order:
        sym, extent = view.coords[dim], view.shape[dim]
        assert isinstance(extent, int)
        instead[sym] = 0
        if extent == 1:
            continue
        ends = (1, *_bases(sym, extent, view.behind), extent)
        if len(ends) == 2:
            syms.append(sym)
            instead[sym] = sym
            continue
        digits = [Sym(f"{sym.name}.{n}", 0, high // low - 1) for n, (low, high) in enumerate(pairwise(ends))]
        for digit, low in zip(digits, ends, strict=False):
            instead[sym] = add(instead[sym], mul(digit, low))
        syms += reversed(digits)
    valid = substitute(view.valid, instead)
    conditions = () if valid == TRUE else valid.parts if isinstance(valid, And) else (valid,)
    return _Walk(tuple(syms), tuple(expand(substitute(place, instead)) for place in view.behind), conditions)


def _bases(sym: Sym, extent: int, index: Sequence[Int]) -> tuple[int, ...]:
    """By what a coordinate is divided, smallest first; nothing if that gives no digits."""
    found = {
        part.right
        for place in index
        for part in parts(place)
        if isinstance(part, FloorDiv | Mod) and part.left == sym and isinstance(part.right, int)
    }
    bases = tuple(sorted(found))
    return bases if all(high % low == 0 for low, high in pairwise((*bases, extent))) else ()


def _affine(dim: int, place: Int, walking: Sequence[Sym]) -> tuple[Int, dict[Sym, int]] | NoBox:
    """Where a box begins along a dimension of the tensor, and what walks along it by how much."""
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


def _other_edge(
    walk: _Walk, extents: Sequence[Int], sides: Sequence[int], steps: Sequence[int]
) -> Cond | None:
    """A condition that does not follow from lying inside of the tensor."""
    spans = [side * step for side, step in zip(sides, steps, strict=True)]
    known = list(zip(walk.index, extents, spans, strict=True))
    return next((part for part in walk.conditions if not any(_follows(part, *edge) for edge in known)), None)


def _follows(part: Cond, place: Int, extent: Int, span: int) -> bool:
    """Whether a condition holds wherever ``0 <= place < extent``."""
    if not isinstance(part, Less):  # known to be false, as that of a tile before the first
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
    # Of a tile before the first, ``gap`` <= -1, and no place is inside of the tensor.
    before = bounds(expand(add(place, mul(gap, -span))))[1] < span
    return before or any(prove(less_equal(0, rest)) is True for rest in rests)


def _grows_along(gap: Int, place: Int) -> bool:
    """Whether a gap is not negative where a place is not, because both grow with one integer.

    Where ``p * gap - q * place >= least``, for positive p and q, a place of 0 or more has ``p * gap >=
    least``; of the values that a gap takes, those below 0 are at most ``first - step``.
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
    """What is 0 or more exactly where a place is: of ``n // c + d`` that is ``n + c * d``."""
    terms, constant = parts_of(place)
    if len(terms) == 1 and terms[0][1] == 1:
        term = terms[0][0]
        if isinstance(term, FloorDiv) and isinstance(term.right, int) and term.right > 0:
            return _numerator(add(term.left, term.right * constant))
    return place


def _is_outermost(part: Less, place: Int, extent: Int) -> bool:
    """Whether a condition on merged dimensions says that the place along the outermost one is inside of it.

    With ``c`` elements inside of it, ``left < c * extent`` if and only if ``left // c < extent``.
    """
    counts = (
        {factor for _, factor in parts_of(expand(part.right))[0]} if not isinstance(extent, int) else set()
    )
    if isinstance(extent, int) and isinstance(part.right, int) and extent and part.right % extent == 0:
        counts = {part.right // extent}
    inner = (c for c in counts if c > 1 and expand(add(part.right, mul(extent, -c))) == 0)
    return any(floordiv(part.left, c) == place for c in inner)


def _bends(view: View) -> bool:
    """Whether the distance between two elements may depend on integers of the program."""
    own = set(view.coords)
    taken_apart = (symbols(part) for part in parts(view.offset) if isinstance(part, FloorDiv | Mod))
    return any(found & own and found - own for found in taken_apart)


@lru_cache(maxsize=1024)
def swizzled_order(view: View, element_bytes: int) -> tuple[int, ...] | None:
    """A tile's dimensions, slowest first, if it lies in rows of 128 bytes under the swizzle of bulk copies.

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
    if not is_whole or _bends(view) or divisor(base) * element_bytes % (8 * ROW_BYTES):
        return None
    outer: dict[Sym, int] = dict.fromkeys(symbols(view.offset) - set(view.coords), 0)
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
