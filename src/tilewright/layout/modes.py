"""Modes as (extent, stride) pairs: the building blocks of the layout algebra."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key
from typing import TypeAlias

from tilewright.errors import LayoutError
from tilewright.layout.layout import Layout
from tilewright.layout.tuples import IntTuple, flat
from tilewright.symbolic.expr import add, equal, floordiv, less, less_equal, mod, mul, prove
from tilewright.symbolic.nodes import Int

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
                f"{span}, which is what the modes below it span"
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
                f"the extent {rest} with stride {step} is not known to be a multiple of {count}, which is "
                f"what fits into an extent of {extent}{nearest(rest, count)}"
            )
        used[at] = add(used[at], mul(add(count, -1), step))
        pieces.append((count, mul(step, stride)))
        rest, step = floordiv(rest, count), 1
    return [piece for piece in pieces if piece[0] != 1] or pieces[:1]
