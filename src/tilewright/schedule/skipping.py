"""Masks that compare positions: the tiles of a result, and the steps along K, that they leave out.

``where(positions(m)[:, None] >= positions(n), acc, 0)`` needs only the product below the diagonal.  In each
row of tiles the needed tiles lie between two columns, which are linear in the number of the row.  So their
count has a closed form, needed tiles are numbered without gaps, and blocks take equal shares of them.  Other
tiles have higher numbers, and take no steps.

``where(positions(k) <= positions(m)[:, None], A[m, k], 0)`` is a triangular operand.  A tile needs only the
steps with an element that the mask keeps.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from tilewright.dataflow.nodes import (
    BATCH,
    ArrayPart,
    Integer,
    Literal,
    Map,
    Node,
    Position,
    Rearrange,
    Span,
    Sum,
)
from tilewright.dtypes import i32, i64
from tilewright.functions.table import CONVERSION
from tilewright.lang.control import let, var, when
from tilewright.lang.launch import derived
from tilewright.lang.scalars import Condition, Index, ceil_div, maximum, minimum
from tilewright.schedule.form import Form, integer_in
from tilewright.schedule.row_sums import RowSum
from tilewright.schedule.work import last_not_after, natural
from tilewright.symbolic.nodes import Int

# ---------------------------------------------------------------- comparisons of positions

COMPARED = {
    "less_equal": (False, 0),
    "less": (False, 1),
    "greater_equal": (True, 0),
    "greater": (True, 1),
}
"""Comparisons: whether the sides are exchanged, and by how much the larger side must be larger."""


class TileOfSpans(Protocol):
    """A tile of rows, columns and k: its place, its extents, and the integers that are known for it."""

    def integer(self, value: Int) -> Index:
        """The value of a flow's integer in the kernel's arguments."""

    def length(self, span: Span) -> Index:
        """Extent of the tile along a span."""

    def at(self, span: Span) -> Index:
        """Index of the tile along a span; of a batch, the index of its item."""

    def begin(self, span: Span) -> Index:
        """The first index of the block's group along a span; 0 without groups."""

    def extent(self, span: Span) -> Index:
        """Return the extent of a span; if the span is cut into groups, that of the block's group."""

    def loaded(self, part: ArrayPart) -> Index | None:
        """An integer in memory that is known for the whole tile; None for other parts of arrays."""


@dataclass(frozen=True)
class PositionSum:
    """A sum of positions, each times an integer, and of integers.

    Args:
        factors: the spans, each with the factor of its position.
        integers: the integers, each with its factor.
        parts: integers in memory, one for each index of a batch, each with its factor.
    """

    factors: tuple[tuple[Span, int], ...] = ()
    integers: tuple[tuple[Int, int], ...] = ()
    parts: tuple[tuple[ArrayPart, int], ...] = ()

    def plus(self, other: PositionSum, times: int = 1) -> PositionSum:
        """The sum of this and of ``times`` another."""
        factors = dict(self.factors)
        for span, factor in other.factors:
            factors[span] = factors.get(span, 0) + times * factor
        left = tuple(pair for pair in factors.items() if pair[1])
        integers = (*self.integers, *((value, times * factor) for value, factor in other.integers))
        return PositionSum(left, integers, (*self.parts, *((part, times * by) for part, by in other.parts)))

    def factor(self, span: Span) -> int:
        """The factor of the position along a span."""
        return dict(self.factors).get(span, 0)

    def constant(self, place: TileOfSpans) -> Index:
        """The sum of the integers."""
        found: Index = 0
        for value, factor in self.integers:
            found = found + factor * (value if isinstance(value, int) else place.integer(value))
        for part, factor in self.parts:
            held = place.loaded(part)
            assert held is not None, "integers of masks are loaded first"
            found = found + factor * held
        return found

    def ends(self, place: TileOfSpans, n: Span) -> tuple[Index, Index]:
        """The least and the largest value in a tile, without the position along a span."""
        low = high = self.constant(place)
        for span, factor in self.factors:
            if span == n:
                continue
            start, begin = place.begin(span), place.at(span) * place.length(span)
            last = start + minimum(begin + place.length(span), place.extent(span)) - 1
            begin = start + begin
            least, most = (begin, last) if factor > 0 else (last, begin)
            low, high = low + factor * least, high + factor * most
        return low, high


def linear(node: Node) -> PositionSum | None:
    """A value as a sum of positions and integers; None for other values."""
    match node:
        case Rearrange(argument=argument):
            return linear(argument)
        case Map(function=function, given=(argument,)) if function in CONVERSION and node.dtype in (i32, i64):
            return linear(argument)  # narrower integers wrap
        case Map(function="add" | "sub", given=(left, right)):
            sides = linear(left), linear(right)
            if sides[0] is None or sides[1] is None:
                return None
            return sides[0].plus(sides[1], 1 if node.function == "add" else -1)
        case Position(span=span):
            return PositionSum(factors=((span, 1),))
        case Literal(value=value) if not node.dtype.is_float:
            return PositionSum(integers=((int(value), 1),))
        case Integer(value=whole) if not node.dtype.is_float:
            return PositionSum(integers=((whole, 1),))
        case ArrayPart() if node.dtype in (i32, i64) and not node.operand.transforms:
            if [span.kind for span in node.at] == [BATCH]:
                return PositionSum(parts=((node, 1),))
    return None


@dataclass(frozen=True)
class Comparison:
    """``line >= 0``, where the position along a span enters with the factor 1 or -1.

    Args:
        line: the sum of positions and integers.
        rises: whether later positions along the span make it true; otherwise earlier ones do.
    """

    line: PositionSum
    rises: bool

    def end(self, place: TileOfSpans, n: Span) -> Index:
        """One more than the last position along the span at which it holds in some row of the tile."""
        return self.line.ends(place, n)[1] + 1

    def first(self, place: TileOfSpans, n: Span) -> Index:
        """The first position along the span at which it holds in some row of the tile."""
        return 0 - self.line.ends(place, n)[1]

    def cuts(self, place: TileOfSpans, n: Span) -> Condition | bool:
        """Whether it may be false somewhere in the tile of a step."""
        low, begin = self.line.ends(place, n)[0], place.at(n) * place.length(n) + place.begin(n)
        return begin + low < 0 if self.rises else low < begin + place.length(n) - 1


def comparisons(node: Node, n: Span) -> Iterator[Comparison | None]:
    """The comparisons of a mask with the position along a span; None for anything else."""
    if isinstance(node, Rearrange):
        yield from comparisons(node.argument, n)
    elif isinstance(node, Map) and node.function == "and":
        for one in node.given:
            yield from comparisons(one, n)
    elif isinstance(node, Map) and node.function in COMPARED:
        turned, by = COMPARED[node.function]
        small, large = (linear(side) for side in (node.given[::-1] if turned else node.given))
        line = None if small is None or large is None else large.plus(small, -1)
        if line is None or line.factor(n) not in (1, -1):
            yield None
        else:
            yield Comparison(line.plus(PositionSum(integers=((-by, 1),))), rises=line.factor(n) > 0)
    else:
        yield None


def all_comparisons(node: Node, n: Span) -> tuple[Comparison, ...]:
    """The comparisons of a mask that is their conjunction; () for any other mask."""
    found = tuple(comparisons(node, n))
    return known_comparisons(node, n) if None not in found else ()


def known_comparisons(node: Node, n: Span) -> tuple[Comparison, ...]:
    """The comparisons among the conditions that a mask requires; other conditions are left out."""
    return tuple(one for one in comparisons(node, n) if one is not None)


# ---------------------------------------------------------------- the comparisons in the masks of a product


def kept_results(form: Form, n: Span) -> tuple[Comparison, ...]:
    """The comparisons that hold wherever a sum enters a result, as bounds of the position along a span.

    Args:
        form: the form of the computation.
        n: the span of the columns, or of the rows.
    """
    found = _common([_above(store.value, n, {}) for store in form.stores])
    return _of_tiles(form, found or (), (form.m, form.n))


def kept_steps(form: Form) -> tuple[Comparison, ...]:
    """The comparisons that hold for every product that is not 0, as bounds of the position along K."""
    found = []
    if len(form.depths) > 1 or form.row_sums:  # sums of rows take every step
        return ()
    for product in form.products:
        sides = (form.rows_m[product.a], form.rows_n[product.b])
        kept = [one for factor in sides for one in _zero_elsewhere(factor.view, factor.depth)]
        found.append(tuple(kept))
    return _of_tiles(form, _common(found) or (), (form.m, form.n, form.a.depth))


def is_masked(form: Form) -> bool:
    """Whether masks leave out tiles or steps."""
    return bool(kept_results(form, form.n) or kept_steps(form))


def _of_tiles(form: Form, found: tuple[Comparison, ...], spans: tuple[Span, ...]) -> tuple[Comparison, ...]:
    """The comparisons of these spans alone; none with groups or lists, whose tiles no launch knows."""
    if form.lists or form.flow.cut:
        return ()
    lines = [(one, {span for span, _ in one.line.factors}) for one in found if not one.line.parts]
    return tuple(one for one, varies in lines if varies <= {*spans})


def _above(node: Node, n: Span, known: dict[int, Any]) -> tuple[Comparison, ...] | None:
    """The comparisons under which sums enter a value; None if no sum enters."""
    if id(node) in known:
        found: tuple[Comparison, ...] | None = known[id(node)]
        return found
    match node:
        case Sum() | RowSum():
            found = ()
        case Map(function="select", given=(mask, value, other)):
            if _above(mask, n, known) is not None:
                found = ()
            elif _above(other, n, known) is None:
                below, compared = _above(value, n, known), known_comparisons(mask, n)
                found = None if below is None else (*compared, *below)
            elif _above(value, n, known) is None:
                below, compared = _above(other, n, known), all_comparisons(mask, n)
                opposite = (  # `line < 0` is `-1 - line >= 0`
                    Comparison(PositionSum(integers=((-1, 1),)).plus(one.line, -1), not one.rises)
                    for one in compared
                    if len(compared) == 1
                )
                found = None if below is None else (*opposite, *below)
            else:
                found = _common([_above(one, n, known) for one in (value, other)])
        case _:
            found = _common([_above(one, n, known) for one in node.arguments])
    known[id(node)] = found
    return found


def _common(found: Sequence[tuple[Comparison, ...] | None]) -> tuple[Comparison, ...] | None:
    """The comparisons that hold for all of several values; None for no values."""
    given = [one for one in found if one is not None]
    if not given:
        return None
    return tuple(one for one in given[0] if all(one in other for other in given[1:]))


def _zero_elsewhere(node: Node, k: Span) -> tuple[Comparison, ...]:
    """The comparisons that hold wherever an operand is not 0: the masks of ``select(mask, value, 0)``."""
    match node:
        case Rearrange(argument=argument):
            return _zero_elsewhere(argument, k)
        case Map(function="select", given=(mask, value, Literal(value=0))):
            return (*known_comparisons(mask, k), *_zero_elsewhere(value, k))
        case Map(function=function, given=(argument,)) if function in CONVERSION or function == "neg":
            return _zero_elsewhere(argument, k)
    return ()


# ---------------------------------------------------------------- the needed tiles in a row of tiles

MOST_ROWS = 1 << 26
"""Most rows of tiles, so that sums along them fit 64 bits."""


def few(value: Index) -> Index:
    """The value, clipped to 0 ... `MOST_ROWS`, as a variable of the kernel."""
    clipped = minimum(maximum(value, 0), MOST_ROWS)
    return clipped if isinstance(clipped, int) else let(clipped)


@dataclass(frozen=True)
class TileBoundary:
    """A line through a grid of tiles; its column is ``(slope * row + offset) // unit``, in 0 ... ``most``.

    Args:
        slope: elements by which it moves from a row to the next; not negative.
        offset: its place in the first row, in elements.
        unit: columns of a tile.
        most: the number of columns of tiles.
        at_launch: whether the launcher computes sums along the boundary, from sizes alone.
    """

    slope: int
    offset: Index
    unit: int
    most: Index
    at_launch: bool = False

    def at(self, row: Index) -> Index:
        """The column in a row."""
        return minimum(maximum(self.slope * row + self.offset, 0) // self.unit, self.most)

    def before(self, row: Index) -> Index:
        """The sum of the columns in the rows before a row."""
        if isinstance(self.offset, int) and self.offset < self.unit and not self.slope:
            return 0
        if not self.slope:
            return row * self.at(0)
        named = derived if self.at_launch else few
        begin = named(minimum(ceil_div(maximum(0 - self.offset, 0), self.slope), row))
        reached = ceil_div(maximum(self.most * self.unit - self.offset, 0), self.slope)
        end = named(maximum(minimum(reached, row), begin))
        inside = floor_sum(end - begin, self.unit, self.slope, maximum(self.slope * begin + self.offset, 0))
        return inside + self.most * (row - end)


def floor_sum(count: Index, unit: int, slope: int, offset: Index) -> Index:
    """The sum of ``(slope * i + offset) // unit`` for ``i`` in ``range(count)``, in Euclid's steps.

    Args:
        count: the number of terms.
        unit: the divisor, positive.
        slope: the factor, not negative.
        offset: the first dividend, not negative.

    Example:
        >>> floor_sum(4, 3, 2, 5), sum((2 * i + 5) // 3 for i in range(4))
        (9, 9)
    """
    found = count * (count - 1) // 2 * (slope // unit) + count * (offset // unit)
    slope, offset = slope % unit, offset % unit
    if slope:
        most = slope * count + offset
        found = found + floor_sum(most // unit, slope, unit, most % unit)
    return found


def square(tile: tuple[int, int]) -> int:
    """The side of the smallest square of whole tiles, if one extent of a tile divides the other; else 0.

    Example:
        >>> square((128, 256)), square((128, 64)), square((128, 192))
        (256, 128, 0)
    """
    least, most = sorted(tile)
    return most if most % least == 0 else 0


@dataclass(frozen=True)
class NeededTiles:
    """The needed tiles of a grid, as a range of columns in each row, and a number for each tile.

    Needed tiles have the first numbers, in bands of rows.  A band begins with the columns that all of its
    rows need, column by column.  The other needed tiles of each row follow.  Unneeded tiles come last, row by
    row.

    Args:
        begin: the first needed column in each row.
        end: one more than the last, not before ``begin``.
        rows: rows of tiles.
        columns: columns of tiles.
        band: rows of a band.
        mirrored: whether the boundaries descend, so that rows are counted from the last one.
        turned: whether rows and columns are exchanged.
    """

    begin: TileBoundary
    end: TileBoundary
    rows: Index
    columns: Index
    band: int
    mirrored: bool
    turned: bool

    @staticmethod
    def of(
        form: Form,
        arguments: Mapping[str, Any],
        tile: tuple[int, int],
        tiles: tuple[Index, Index],
        band: tuple[int, bool],
    ) -> NeededTiles | None:
        """The needed tiles of a product; None if they do not lie between two parallel lines.

        Args:
            form: the form of the computation, as the schedule multiplies it.
            arguments: the kernel's arguments, by name.
            tile: rows and columns of a tile.
            tiles: number of tiles along the rows and the columns.
            band: rows of tiles in a band, and whether they are columns.
        """
        turned = band[1]
        (m, rows, high), (n, columns, wide) = sorted(
            zip((form.m, form.n), tiles, tile, strict=True), key=lambda one: (one[0] == form.m) == turned
        )
        kept = kept_results(form, n)
        rising, falling = ([one for one in kept if one.rises == rises] for rises in (True, False))
        slopes = [-one.line.factor(m) * one.line.factor(n) for one in kept]
        are_parallel = not {1, -1} <= {*slopes} and {*slopes} <= {-1, 0, 1}
        if not kept or len(rising) > 1 or len(falling) > 1 or not are_parallel:
            return None
        mirrored, place = -1 in slopes, _Integers(form, arguments)
        offsets: list[Index] = [0, columns * wide]
        moves = [0, 0]
        for which, one in [*((0, one) for one in rising), *((1, one) for one in falling)]:
            factor, constant = one.line.factor(m), one.line.constant(place)
            # The largest value of the line in a row of tiles bounds the columns of that row.
            constant = constant + (high - 1 if factor > 0 else 0)
            offsets[which] = 0 - constant if one.rises else constant + 1
            moves[which] = (-1 if one.rises else 1) * factor * high
            if mirrored:  # row i is row (rows - 1 - i)
                offsets[which] = offsets[which] + moves[which] * (rows - 1)
                moves[which] = -moves[which]
        first, last = offsets
        if rising and falling:  # a range that is empty everywhere has no tiles
            if moves[0] != moves[1]:
                return None
            first = let(minimum(first, last))
        begin = TileBoundary(moves[0], first, wide, columns)
        end = TileBoundary(moves[1], last + wide - 1, wide, columns)
        return NeededTiles(begin, end, rows, columns, max(band[0], 1), mirrored, turned)

    @staticmethod
    def below_diagonal(
        tile: tuple[int, int], tiles: tuple[Index, Index], band: tuple[int, bool]
    ) -> NeededTiles:
        """The tiles of the square blocks on and below the diagonal; see `square`.

        Args:
            tile: rows and columns of a tile.
            tiles: number of tiles along the rows and the columns.
            band: number of rows of tiles in a band; if true, bands consist of columns instead.
        """
        (rows, columns), (high, wide), side = tiles, tile, square(tile)
        assert side, "the rules refuse other tiles"
        if band[1]:  # in a column of tiles, those from the diagonal block on are needed
            begin, end = TileBoundary(wide, 0, high, rows), TileBoundary(0, rows * high, high, rows)
            return NeededTiles(begin, end, columns, rows, max(band[0], 1), False, True)
        begin, end = TileBoundary(0, 0, wide, columns), TileBoundary(high, side, wide, columns)
        return NeededTiles(begin, end, rows, columns, max(band[0], 1), False, False)

    @property
    def needed(self) -> Index:
        """The number of needed tiles."""
        return self._before(self.rows)

    def place(self, number: Index, needed: Index) -> tuple[Index, Index]:
        """The row and the column of tiles of a number.

        Args:
            number: the number.
            needed: the number of needed tiles.
        """
        is_other = let(minimum(maximum(number + 1 - needed, 0), 1))
        row, column = var(0), var(0)
        with when(is_other == 0):
            r, c = self._needed(number)
            row.set(r)
            column.set(c)
        with when(is_other == 1):
            r, c = self._other(natural(number - needed))
            row.set(r)
            column.set(c)
        m, n = natural(row.get()), let(natural(column.get()))
        m = let(self.rows - 1 - m if self.mirrored else m)
        return (n, m) if self.turned else (m, n)

    @property
    def needed_at_launch(self) -> Index:
        """The number of needed tiles, which the launcher computes from sizes alone."""
        begin, end = (replace(one, at_launch=True) for one in (self.begin, self.end))
        return derived(natural(replace(self, begin=begin, end=end).needed))

    def _before(self, row: Index) -> Index:
        """Needed tiles in the rows before a row."""
        return self.end.before(row) - self.begin.before(row)

    def _needed(self, number: Index) -> tuple[Index, Index]:
        """The place of a needed tile."""
        bands = ceil_div(self.rows, self.band)

        def first(band: Index) -> Index:
            """The number of the first tile of a band."""
            return self._before(minimum(band * self.band, self.rows))

        top = let(last_not_after(number, bands, first) * self.band)
        before = let(natural(self._before(top)))
        at, count = let(natural(number - before)), let(natural(minimum(self.rows - top, self.band)))
        left = let(self.begin.at(top + count - 1))  # columns left ... right are needed by all rows
        width = let(natural(self.end.at(top) - left))
        whole = width * count
        is_whole = let(minimum(maximum(whole - at, 0), 1))
        rest = let(natural(at - whole))

        def left_of(row: Index) -> Index:
            """Tiles in the rows before a row of the band, outside of the columns that all rows need."""
            own = minimum(row, count)
            return self._before(top + own) - before - own * width

        row = let(last_not_after(rest, self.band, left_of)) if self.band > 1 else 0
        past = let(natural(rest - left_of(row)))
        begin = let(self.begin.at(top + row))
        jumps = minimum(maximum(past + 1 - maximum(left - begin, 0), 0), 1)
        of_whole, is_rest = is_whole * (left + at // maximum(count, 1)), 1 - is_whole
        column = of_whole + is_rest * (begin + past + jumps * width)
        return let(top + is_whole * (at % maximum(count, 1)) + is_rest * row), let(column)

    def _other(self, number: Index) -> tuple[Index, Index]:
        """The place of a tile that is not needed."""

        def first(row: Index) -> Index:
            """The number of the first tile of a row that is not needed."""
            return row * self.columns - self._before(row)

        row = let(last_not_after(number, self.rows, first))
        at = let(natural(number - first(row)))
        begin, end = let(self.begin.at(row)), self.end.at(row)
        return row, let(at + minimum(maximum(at + 1 - begin, 0), 1) * (end - begin))


class _Integers:
    """The integers of a flow, for comparisons without a tile.

    Args:
        form: the form of the computation.
        arguments: the kernel's arguments, by name.
    """

    def __init__(self, form: Form, arguments: Mapping[str, Any]) -> None:
        self.form, self.arguments = form, arguments

    def integer(self, value: Int) -> Index:
        """The value of a flow's integer in the kernel's arguments."""
        return integer_in(self.form.flow, self.arguments, value)

    def length(self, span: Span) -> Index:
        """1: no tile has an extent."""
        return 1

    def at(self, span: Span) -> Index:
        """0: no tile has a place."""
        return 0

    def begin(self, span: Span) -> Index:
        """0: there are no groups."""
        return 0

    def extent(self, span: Span) -> Index:
        """The extent of a span."""
        return self.integer(span.extent)

    def loaded(self, part: ArrayPart) -> Index | None:
        """None: nothing was loaded."""
        return None


class ResultTile(_Integers):
    """A tile of the result.

    Args:
        form: the form of the computation.
        arguments: the kernel's arguments, by name.
        at: its place along the rows and the columns, in tiles.
        lengths: its extents.
    """

    def __init__(
        self, form: Form, arguments: Mapping[str, Any], at: tuple[Index, Index], lengths: tuple[Index, Index]
    ) -> None:
        super().__init__(form, arguments)
        self.places = dict(zip((form.m, form.n), zip(at, lengths, strict=True), strict=True))

    def length(self, span: Span) -> Index:
        """Extent of the tile along a span."""
        return self.places[span][1]

    def at(self, span: Span) -> Index:
        """Index of the tile along a span."""
        return self.places[span][0]


@dataclass(frozen=True)
class Skips:
    """The masks of a product, and the tiles and steps that they leave out.

    Args:
        form: the form of the computation, as the schedule multiplies it.
        arguments: the kernel's arguments, by name.
        results: comparisons that hold wherever a sum enters a result.
        steps: comparisons that hold wherever a product is not 0.
    """

    form: Form
    arguments: Mapping[str, Any]
    results: tuple[Comparison, ...]
    steps: tuple[Comparison, ...]

    @staticmethod
    def of(form: Form, arguments: Mapping[str, Any]) -> Skips | None:
        """Return the tiles and steps that the masks of a product leave out; None without these masks."""
        results, steps = kept_results(form, form.n), kept_steps(form)
        return Skips(form, arguments, results, steps) if results or steps else None

    def range_of_k(
        self, at: tuple[Index, Index], lengths: tuple[Index, Index], depth: Index
    ) -> tuple[Index, Index]:
        """The k that a tile of the result needs, from the first to one after the last.

        Args:
            at: the place of the tile along the rows and the columns.
            lengths: its extents.
            depth: the extent of K.
        """
        tile = ResultTile(self.form, self.arguments, at, lengths)
        first, end = self._range(self.steps, tile, self.form.a.depth, 0, depth)
        if self.results:
            low, columns = at[1] * lengths[1], tile.integer(self.form.n.extent)
            high = minimum(low + lengths[1], columns)
            begin, stop = self._range(self.results, tile, self.form.n, low, high)
            end = end * minimum(maximum(stop - begin, 0), 1)
        return first, end

    def _range(
        self, kept: tuple[Comparison, ...], tile: ResultTile, span: Span, first: Index, end: Index
    ) -> tuple[Index, Index]:
        """The positions along a span at which all comparisons may hold."""
        for one in kept:
            if one.rises:
                first = maximum(first, one.first(tile, span))
            else:
                end = minimum(end, maximum(one.end(tile, span), 0))
        return first, end
