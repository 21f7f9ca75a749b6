"""Index symbols: what a loop's or a grid axis' span tells about its index."""

from __future__ import annotations

import math

from tilewright.layout.expr import add
from tilewright.layout.nodes import Int, Sym
from tilewright.layout.ranges import bounds, divisor


def loop_index(name: str, start: Int, stop: Int, step: int) -> Sym:
    """The index symbol of ``for name in range(start, stop, step)``, with all that the span tells."""
    low, high = bounds(start)[0], bounds(add(stop, -1))[1]
    exact = divisor(start) if start != 0 else step
    return Sym(
        name,
        int(low) if low > -float("inf") else -(2**31),
        int(max(high, low)) if high < float("inf") else None,
        max(1, math.gcd(exact, step)),
        stop,
    )


def grid_index(name: str, extent: Int) -> Sym:
    """The index symbol of a grid axis."""
    high = bounds(extent)[1]
    return Sym(name, 0, int(max(high - 1, 0)) if high < float("inf") else None, 1, extent)


def named_integer(name: str, value: Int) -> Sym:
    """The symbol of `Let`: what is known of its value."""
    low, high = bounds(value)
    return Sym(
        name,
        int(low) if low > -float("inf") else -(2**31),
        int(high) if high < float("inf") else None,
        max(divisor(value), 1),
    )
