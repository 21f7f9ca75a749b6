"""What is known of a symbolic integer: its range, its divisor, its width."""

from __future__ import annotations

import math
from functools import lru_cache

from tilewright.symbolic.nodes import (
    INFINITY,
    Add,
    Element,
    FloorDiv,
    Int,
    Max,
    Min,
    Mod,
    Mul,
    Select,
    Sym,
    Xor,
)


@lru_cache(maxsize=16384)
def bounds(value: Int) -> tuple[float, float]:
    """Smallest and largest possible value; infinite where nothing is known.  Finite bounds are exact ints."""
    match value:
        case Sym():
            unit = max(value.divisor, 1)
            most = INFINITY if value.high is None else value.high // unit * unit
            return -(-value.low // unit) * unit, most
        case Add():
            low: float = value.constant
            high: float = value.constant
            for term, factor in value.terms:
                a, b = (_times(end, factor) for end in bounds(term))
                low, high = low + min(a, b), high + max(a, b)
            return low, high
        case Mul():
            low = high = 1
            for factor_expr in value.factors:
                ends = [_times(x, y) for x in (low, high) for y in bounds(factor_expr)]
                low, high = min(ends), max(ends)
            return low, high
        case FloorDiv():
            low, high = bounds(value.left)
            a, b = bounds(value.right)
            a = max(a, 1)
            ends = [_floor(x, y) for x in (low, high) for y in (a, b)]
            return min(ends), max(ends)
        case Mod():
            _, high = bounds(value.right)
            low_left, high_left = bounds(value.left)
            return 0, min(high - 1, high_left if low_left >= 0 else high - 1)
        case Xor():
            return _xor(*bounds(value.left), *bounds(value.right))
        case Min() | Max():
            pick = min if isinstance(value, Min) else max
            (a, b), (c, d) = bounds(value.left), bounds(value.right)
            return pick(a, c), pick(b, d)
        case Select():
            (a, b), (c, d) = bounds(value.left), bounds(value.right)
            return min(a, c), max(b, d)
        case Element():
            return value.low, value.high
        case _:
            return value, value  # type: ignore[return-value]


def _times(a: float, b: float) -> float:
    return 0 if a == 0 or b == 0 else a * b


def _floor(a: float, b: float) -> float:
    if abs(a) == INFINITY:
        return a
    if b == INFINITY:
        return 0 if a >= 0 else -1
    return a // b


def _xor(*ends: float) -> tuple[float, float]:
    """Exclusive or stays within the bits of its operands; it is negative only if just one of them is."""
    if max(map(abs, ends)) == INFINITY:
        return (0 if min(ends) >= 0 else -INFINITY), INFINITY
    span = 1 << max(int(max(end, -1 - end)).bit_length() for end in ends)
    return (0 if min(ends) >= 0 else -span), span - 1


@lru_cache(maxsize=16384)
def divisor(value: Int) -> int:
    """The largest known integer that divides every value; 0 for the constant 0."""
    match value:
        case Sym():
            return value.low if value.low == value.high and value.low >= 0 else value.divisor
        case Add():
            return math.gcd(value.constant, *(factor * divisor(term) for term, factor in value.terms))
        case Mul():
            return math.prod(divisor(factor) for factor in value.factors)
        case FloorDiv():
            known = divisor(value.left)
            return known // value.right if isinstance(value.right, int) and known % value.right == 0 else 1
        case Mod():
            return math.gcd(divisor(value.left), divisor(value.right))
        case Xor():
            both = math.gcd(divisor(value.left), divisor(value.right))
            return both & -both
        case Min() | Max() | Select():
            return math.gcd(divisor(value.left), divisor(value.right))
        case Element():
            return 1
        case _:
            return abs(int(value))  # type: ignore[arg-type]


def bits(value: Int) -> int:
    """Width of the signed integer that holds every value: 32, or 64 where 32 cannot be proved."""
    low, high = bounds(value)
    return 32 if low >= -(2**31) and high < 2**31 else 64
