"""The algebra of layouts: coalesce, composition, complement, division, product, inverses.

Extents and strides may be symbolic if the divisibility that an operation needs can be proved.  An operation
whose condition is false or cannot be proved raises an error that names the condition: any result would be
wrong.  Views handle ragged tiling (`tilewright.views.transforms.Tile`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cmp_to_key
from typing import TypeAlias, cast

from tilewright.argument_checks import MOST_ENTRIES, is_integer, is_sequence, legal
from tilewright.calls import layouts
from tilewright.errors import LayoutError, shown
from tilewright.layout.layout import Layout
from tilewright.layout.tuples import DEEPEST, IntTuple, flat
from tilewright.symbolic.expr import add, ceil_div, equal, floordiv, less, less_equal, mod, mul, prove
from tilewright.symbolic.nodes import Expr, Int

# ---------------------------------------------------------------- modes as (extent, stride) pairs
# The building blocks of the layout algebra.


Pair: TypeAlias = tuple[Int, Int]


def pairs_of(layout: Layout) -> list[Pair]:
    """Return the modes of a layout as a flat list of pairs."""
    return list(zip(flat(layout.shape), flat(layout.stride), strict=True))


def from_pairs(pairs: Sequence[Pair]) -> Layout:
    """Build a layout from modes. One mode gives an unnested layout, an empty list gives ``1:0``."""
    if len(pairs) == 1:
        return Layout(*pairs[0])
    return Layout(tuple(n for n, _ in pairs), tuple(d for _, d in pairs)) if pairs else Layout(1, 0)


def coalesced(pairs: Sequence[Pair]) -> list[Pair]:
    """Return the same function in the fewest modes: drop extents of 1, join modes of one constant step."""
    joined: list[Pair] = []
    for extent, stride in pairs:
        if extent == 1:
            continue
        if joined and prove(equal(mul(*joined[-1]), stride)) is True:
            joined[-1] = (mul(joined[-1][0], extent), joined[-1][1])
        else:
            joined.append((extent, stride))
    return joined


def divides(by: Int, value: Int) -> bool | None:
    """Return whether ``by`` divides ``value``, or None if this is unknown."""
    rest = mod(value, by)
    return rest == 0 if isinstance(rest, int) else None


def nearest(value: Int, unit: Int) -> str:
    """Return the end of an error message: the multiples of ``unit`` around ``value``."""
    if not (isinstance(value, int) and isinstance(unit, int)):
        return ""
    below, above = value // unit * unit, -(-value // unit) * unit
    return f"; nearest legal: {above}" if below == 0 else f"; nearest legal: {below} or {above}"


def gaps_of(layout: Layout) -> tuple[list[Pair], Int]:
    """Return the modes that fill the gaps between the offsets of ``layout``, and the span of both."""
    gaps: list[Pair] = []
    span: Int = 1

    def compare(left: Pair, right: Pair) -> int:
        return _compare(layout, left[1], right[1])

    used = [(n, d) for n, d in pairs_of(layout) if n != 1 and d != 0]
    for extent, stride in sorted(used, key=cmp_to_key(compare)):
        if prove(less(0, stride)) is not True or divides(span, stride) is not True:
            raise LayoutError(
                f"{layout} has no complement: the stride {stride} is not known to be a positive multiple of "
                f"{span}, the span of the modes below it"
            )
        gaps.append((floordiv(stride, span), span))
        span = mul(extent, stride)
    return gaps, span


def _compare(layout: Layout, left: Int, right: Int) -> int:
    if left == right:
        return 0
    if prove(less_equal(left, right)) is True:
        return -1
    if prove(less_equal(right, left)) is True:
        return 1
    raise LayoutError(f"{layout} has no known complement: which is larger, the stride {left} or {right}?")


def compose(outer: Layout, inner: Layout) -> Layout:
    """``result(c) = outer(inner(c))``; see `tilewright.layout.algebra.composition`."""
    digits = coalesced(pairs_of(outer)) or [(1, 0)]
    used: list[Int] = [0] * len(digits)
    try:
        shape, stride = _through(digits, used, inner.shape, inner.stride)
        for (extent, _), reached in zip(digits, used, strict=True):
            if prove(less(reached, extent)) is not True:
                raise LayoutError(f"its modes together reach {reached}, along an extent of {extent}")
    except LayoutError as error:
        raise LayoutError(f"composition of {outer} with {inner}: {error}") from None
    return Layout(shape, stride)


def _through(
    digits: list[Pair], used: list[Int], shape: IntTuple, stride: IntTuple
) -> tuple[IntTuple, IntTuple]:
    """Map each mode of the inner layout through the outer one."""
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        made = [_through(digits, used, n, d) for n, d in zip(shape, stride, strict=True)]
        return tuple(n for n, _ in made), tuple(d for _, d in made)
    assert not isinstance(shape, tuple)
    assert not isinstance(stride, tuple)
    pieces = _pieces(digits, used, shape, stride)
    if len(pieces) == 1:
        return pieces[0]
    return tuple(n for n, _ in pieces), tuple(d for _, d in pieces)


def _pieces(digits: list[Pair], used: list[Int], rest: Int, step: Int) -> list[Pair]:
    """Map ``rest`` steps of ``step`` through the mixed-radix number that ``digits`` describe.

    ``used`` is the largest value that each digit has reached.  If all modes together stay inside every digit,
    no digit carries.  Only then is the sum of their images the image of their sum.
    """
    if prove(less_equal(0, step)) is not True:
        raise LayoutError(f"the stride {step} is not known to be positive or 0")
    pieces: list[Pair] = []
    for at, (extent, stride) in enumerate(digits):
        reach = mul(add(rest, -1), step)
        if at == len(digits) - 1 or prove(less(reach, extent)) is True:
            used[at] = add(used[at], reach)
            pieces.append((rest, mul(step, stride)))
            break
        if divides(extent, step) is True:
            step = floordiv(step, extent)
            continue
        if divides(step, extent) is not True:
            raise LayoutError(
                f"the stride {step} and the extent {extent}: neither is known to divide the other"
            )
        count = floordiv(extent, step)
        if divides(count, rest) is not True:
            raise LayoutError(
                f"the extent {rest} with stride {step} is not known to be a multiple of {count}, the number "
                f"of steps in an extent of {extent}{nearest(rest, count)}"
            )
        used[at] = add(used[at], mul(add(count, -1), step))
        pieces.append((count, mul(step, stride)))
        rest, step = floordiv(rest, count), 1
    return [piece for piece in pieces if piece[0] != 1] or pieces[:1]


Tiler: TypeAlias = Int | Layout | Sequence["Tiler"]
"""A divisor of a layout: a layout, an extent (packed), or a sequence of these, one per mode."""


def _divides(tiler: object, depth: int = 0) -> bool:
    """Return whether a value is a `Tiler`."""
    if is_sequence(tiler):
        parts = cast("Sequence[object]", tiler)
        few = depth < DEEPEST and len(parts) <= MOST_ENTRIES
        return few and all(_divides(part, depth + 1) for part in parts)
    return isinstance(tiler, Layout | Expr) or is_integer(tiler)


legal("Tiler", "a Layout, an extent, or a sequence of these, one per mode", "tilers", _divides)


@layouts
def make_layout(*layouts: Layout) -> Layout:
    """The layout whose modes are ``layouts``: ``result(c0, c1, ...) = sum(layouts[i](c_i))``.

    Example:
        >>> print(make_layout(Layout(4, 2), Layout((2, 3))))
        (4,(2,3)):(2,(1,2))
    """
    return Layout(tuple(l.shape for l in layouts), tuple(l.stride for l in layouts))


@layouts
def coalesce(layout: Layout, profile: object = None) -> Layout:
    """The same function of one index, in as few modes as possible.

    Args:
        layout: any layout.
        profile: a tuple with one entry per mode coalesces each mode separately; its entries may be tuples
            again.

    Raises:
        LayoutError: the length of the profile differs from the number of modes.

    Example:
        >>> print(coalesce(Layout((2, (1, 6)), (1, (6, 2)))))
        12:1
        >>> print(coalesce(Layout(((2, 2), (1, 6)), ((1, 2), (6, 4))), profile=(None, None)))
        (4,6):(1,4)
    """
    if isinstance(profile, tuple):
        if not isinstance(layout.shape, tuple) and any(isinstance(part, tuple) for part in profile):
            raise LayoutError(f"the profile {shown(profile)} is nested more deeply than the layout {layout}")
        if len(profile) != layout.rank:
            raise LayoutError(
                f"the profile {shown(profile)} has {len(profile)} entries, {layout} {layout.rank} modes"
            )
        return make_layout(*(coalesce(mode, part) for mode, part in zip(layout.modes, profile, strict=True)))
    return from_pairs(coalesced(pairs_of(layout)))


@layouts
def composition(outer: Layout, inner: Tiler) -> Layout:
    """Return ``result(c) = outer(inner(c))``, with the coordinates of ``inner``.

    Args:
        outer: the layout that is applied last.
        inner: a layout whose offsets are indices of ``outer``; or a tuple, applied mode by mode.

    Raises:
        LayoutError: an offset of ``inner`` lies outside ``outer``, or the composition is not a layout:
            strides and extents of ``inner`` do not divide along the modes of ``outer``, or this cannot be
            proved.

    Example:
        >>> print(composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1))))
        ((2,2),3):((24,2),8)
        >>> print(composition(Layout((12, (4, 8)), (59, (13, 1))), (Layout(3, 4), Layout(8, 2))))
        (3,(2,4)):(236,(26,1))
    """
    if isinstance(inner, Layout):
        return compose(outer, inner)
    if not isinstance(inner, Sequence):
        return compose(outer, Layout(inner))
    return _by_mode(composition, outer, inner)


@layouts
def complement(layout: Layout, size: Int | None = None) -> Layout:
    """The layout of the offsets that ``layout`` skips: together, both reach each of ``[0, size)`` once.

    Args:
        layout: an injective layout, apart from modes of stride 0.
        size: number of offsets to cover; default: the smallest legal number.

    Raises:
        LayoutError: a stride is not a multiple of the span of the modes below it, ``size`` is not a multiple
            of the whole span, or this cannot be proved.

    Example:
        >>> print(complement(Layout(4, 2), 24), complement(Layout((2, 2), (1, 6)), 24))
        (2,3):(1,8) (3,2):(2,12)
    """
    gaps, span = gaps_of(layout)
    total = span if size is None else size
    if divides(span, total) is not True:
        raise LayoutError(
            f"complement of {layout} in {total}: {total} is not known to be a multiple of {span}, "
            f"the span of one period{nearest(total, span)}"
        )
    return from_pairs(coalesced([*gaps, (floordiv(total, span), span)]))


@layouts
def logical_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``((tile), (rest))``: mode 0 runs through one tile, mode 1 through the tiles.

    Args:
        layout: the layout to divide.
        tiler: a layout (or an extent) that picks the elements of a tile; or a tuple, applied mode by mode.

    Raises:
        LayoutError: the tiles do not divide the layout, or this cannot be proved.

    Example:
        >>> print(logical_divide(Layout(24, 3), Layout(4, 2)))
        (4,(2,3)):(6,(3,24))
        >>> print(logical_divide(Layout((8, 6)), (4, 2)))
        ((4,2),(2,3)):((1,4),(8,16))
    """
    if isinstance(tiler, Layout):
        return composition(layout, make_layout(tiler, complement(tiler, layout.size)))
    if not isinstance(tiler, Sequence):
        return logical_divide(layout, Layout(tiler))
    return _by_mode(logical_divide, layout, tiler)


@layouts
def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``((tile0, tile1, ...), (rest0, rest1, ...))``: `logical_divide` with the tiles' modes gathered.

    Raises:
        LayoutError: as `logical_divide`.

    Example:
        >>> print(zipped_divide(Layout((8, 6)), (4, 2)))
        ((4,2),(2,3)):((1,8),(4,16))
    """
    tile, rest = _gathered(logical_divide(layout, tiler), tiler)
    return make_layout(tile, rest)


@layouts
def tiled_divide(layout: Layout, tiler: Tiler) -> Layout:
    """``((tile0, tile1, ...), rest0, rest1, ...)``: `zipped_divide` with the rest at the top.

    Raises:
        LayoutError: as `logical_divide`.

    Example:
        >>> print(tiled_divide(Layout((8, 6)), (4, 2)))
        ((4,2),2,3):((1,8),4,16)
    """
    tile, rest = zipped_divide(layout, tiler).modes
    return make_layout(tile, *rest.modes)


@layouts
def logical_product(layout: Layout, tiler: Tiler) -> Layout:
    """``(layout, copies)``: mode 1 arranges copies of ``layout`` by ``tiler``, without overlap.

    Args:
        layout: the layout to repeat.
        tiler: the layout (or the number) of the copies; or a tuple, applied mode by mode.

    Raises:
        LayoutError: the copies do not form a layout, or this cannot be proved.

    Example:
        >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6)))
        ((2,2),(2,3)):((4,1),(2,8))
    """
    if isinstance(tiler, Layout):
        gaps, span = gaps_of(layout)
        copies = ceil_div(mul(layout.size, tiler.cosize), span)
        free = from_pairs(coalesced([*gaps, (copies, span)]))
        return make_layout(layout, composition(free, tiler))
    if not isinstance(tiler, Sequence):
        return logical_product(layout, Layout(tiler))
    return _by_mode(logical_product, layout, tiler)


@layouts
def blocked_product(layout: Layout, tiler: Layout) -> Layout:
    """A grid of copies of ``layout``, each copy contiguous in the grid: modes ``(layout_i, tiler_i)``.

    Raises:
        LayoutError: as `logical_product`.

    Example:
        >>> print(blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4))))
        ((2,3),(5,4)):((5,10),(1,30))
    """
    inner, outer = _aligned_product(layout, tiler)
    return make_layout(*(make_layout(a, b) for a, b in zip(inner.modes, outer.modes, strict=True)))


@layouts
def raked_product(layout: Layout, tiler: Layout) -> Layout:
    """A grid of copies of ``layout``, the copies interleaved: modes ``(tiler_i, layout_i)``.

    Raises:
        LayoutError: as `logical_product`.

    Example:
        >>> print(raked_product(Layout((2, 5), (5, 1)), Layout((3, 4))))
        ((3,2),(4,5)):((10,5),(30,1))
    """
    inner, outer = _aligned_product(layout, tiler)
    return make_layout(*(make_layout(b, a) for a, b in zip(inner.modes, outer.modes, strict=True)))


@layouts
def right_inverse(layout: Layout) -> Layout:
    """The largest layout with ``layout(result(i)) == i``: it covers the consecutive offsets from 0.

    Example:
        >>> print(right_inverse(Layout((4, 8), (8, 1))))
        (8,4):(4,1)
    """
    places: list[tuple[Int, Int, Int]] = []
    place: Int = 1
    for extent, stride in pairs_of(layout):
        places.append((extent, stride, place))
        place = mul(place, extent)
    found: list[Pair] = []
    span: Int = 1
    while following := [at for at in places if at[0] != 1 and prove(equal(at[1], span)) is True]:
        extent, stride, place = following[0]
        places.remove(following[0])
        found.append((extent, place))
        span = mul(extent, stride)
    return from_pairs(coalesced(found))


@layouts
def left_inverse(layout: Layout) -> Layout:
    """A layout with ``result(layout(i)) == i``, for an injective ``layout``.

    Raises:
        LayoutError: the layout has no complement (see `complement`).

    Example:
        >>> layout = Layout((4, 8), (16, 2))
        >>> print(left_inverse(layout), left_inverse(layout)(layout(3, 2)))
        (2,8,4):(32,4,1) 11
    """
    return right_inverse(make_layout(layout, complement(layout)))


def _by_mode(verb: Callable[[Layout, Tiler], Layout], layout: Layout, tiler: Sequence[Tiler]) -> Layout:
    """Apply ``verb`` to each mode with its entry of ``tiler``; modes without an entry do not change."""
    if len(tiler) > layout.rank:
        raise LayoutError(f"tiler {shown(tiler)} for the layout {layout}, which has {layout.rank} modes")
    split = [verb(mode, part) for mode, part in zip(layout.modes, tiler, strict=False)]
    return make_layout(*split, *layout.modes[len(tiler) :])


def _gathered(divided: Layout, tiler: Tiler) -> tuple[Layout, Layout]:
    """Return the tile and the rest of a divided layout, each gathered from all modes."""
    if isinstance(tiler, Layout) or not isinstance(tiler, Sequence):
        tile, rest = divided.modes
        return tile, rest
    parts = [_gathered(mode, part) for mode, part in zip(divided.modes, tiler, strict=False)]
    return make_layout(*(tile for tile, _ in parts)), make_layout(
        *(rest for _, rest in parts), *divided.modes[len(tiler) :]
    )


def _aligned_product(layout: Layout, tiler: Layout) -> tuple[Layout, Layout]:
    """Return `logical_product` of two layouts, padded to equal rank with modes of extent 1."""
    rank = max(layout.rank, tiler.rank)
    padded = [make_layout(*l.modes, *[Layout(1, 0)] * (rank - l.rank)) for l in (layout, tiler)]
    inner, outer = logical_product(*padded).modes
    return inner, outer
