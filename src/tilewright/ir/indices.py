"""Index symbols: ranges and divisors of the indices of loops and grid axes."""

from __future__ import annotations

import math

from tilewright.symbolic.expr import add
from tilewright.symbolic.nodes import Int, Mul, Sym
from tilewright.symbolic.ranges import bits, bounds, divisor
from tilewright.symbolic.rebuilding import parts

VARIABLE = -(2**63), 2**63 - 1
"""Smallest and largest integer that a variable holds."""

COUNTED = 2**31
"""Upper bound of loop indices over sizes and of named integers. Derived integers may have 64 bits."""


def is_product(value: Int) -> bool:
    """Return whether an integer contains a product of sizes: it may exceed 32 bits although each size fits.

    Example:
        >>> m, n = Sym("m", 0, 2**31 - 1), Sym("n", 0, 2**31 - 1)
        >>> is_product(m * n + 1), is_product(4 * m), is_product(m % 64 * (n % 64))
        (True, False, False)
    """
    return bits(value) == 64 and any(isinstance(part, Mul) and bits(part) == 64 for part in parts(value))


def loop_index(name: str, start: Int, stop: Int, step: int) -> Sym:
    """Return the index symbol of ``for name in range(start, stop, step)``, with its range and divisor."""
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
    """Return the index symbol of a grid axis."""
    high = bounds(extent)[1]
    return Sym(name, 0, int(max(high - 1, 0)) if high < float("inf") else None, 1, extent)


def named_integer(name: str, value: Int) -> Sym:
    """Return the symbol of `Let`, with the known range and divisor of its value."""
    low, high = bounds(value)
    return Sym(
        name,
        int(low) if low > -float("inf") else -(2**31),
        int(high) if high < float("inf") else None,
        max(divisor(value), 1),
    )
