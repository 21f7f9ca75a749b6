"""The algebra of layouts: coalesce, composition, complement, division, product, inverses.

Extents and strides may be symbolic if the divisibility that an operation needs can be proved.  An operation
whose condition is false or cannot be proved raises an error that names the condition: any result would be
wrong.  Views handle ragged tiling (`tilewright.views.transforms.Tile`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, cast

from tilewright.calls import layouts
from tilewright.errors import LayoutError, shown
from tilewright.kinds import MOST_ENTRIES, is_integer, is_sequence, legal
from tilewright.layout.layout import Layout
from tilewright.layout.modes import Pair, coalesced, compose, divides, from_pairs, gaps_of, nearest, pairs_of
from tilewright.layout.tuples import DEEPEST
from tilewright.symbolic.expr import ceil_div, equal, floordiv, mul, prove
from tilewright.symbolic.nodes import Expr, Int

Tiler: TypeAlias = Int | Layout | Sequence["Tiler"]
"""A divisor of a layout: a layout, an extent (packed), or a sequence of these, one per mode."""


def _divides(tiler: object, depth: int = 0) -> bool:
    """Return whether a value is a `Tiler`."""
    if is_sequence(tiler):
        parts = cast(Sequence[object], tiler)
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
            f"which is what one period spans{nearest(total, span)}"
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
