"""Arithmetic of the kernel's integers as Python has it, and what of it is refused."""

from __future__ import annotations

from tilewright.errors import TraceError, shown
from tilewright.lang.source import here
from tilewright.lang.tracer import current
from tilewright.symbolic import expr
from tilewright.symbolic.guards import Guard
from tilewright.symbolic.nodes import Int
from tilewright.symbolic.ranges import bounds
from tilewright.symbolic.rebuilding import symbols

FOUND = -(2**62)
"""Integers that may be less than this are made of variables: of sizes and indices more is known."""


def total(left: Int, right: Int) -> Int:
    """``left + right``."""
    return expr.add(left, right)


def difference(left: Int, right: Int) -> Int:
    """``left - right``."""
    return expr.add(left, expr.mul(right, -1))


def product(left: Int, right: Int) -> Int:
    """``left * right``."""
    return expr.mul(left, right)


def quotient(left: Int, right: Int) -> Int:
    """``left // right`` as in Python: rounded down."""
    if isinstance(right, int) and right < 0:
        return expr.floordiv(expr.mul(left, -1), -right)
    if _is_positive(left, right, "//"):
        return expr.floordiv(left, right)
    above, below = _divisors(right)
    return expr.select(
        expr.less(0, right), expr.floordiv(left, above), expr.floordiv(expr.mul(left, -1), below)
    )


def rest(left: Int, right: Int) -> Int:
    """``left % right`` as in Python: with the sign of the divisor."""
    if isinstance(right, int) and right < 0:
        return expr.mul(expr.mod(expr.mul(left, -1), -right), -1)
    if _is_positive(left, right, "%"):
        return expr.mod(left, right)
    above, below = _divisors(right)
    negative = expr.mul(expr.mod(expr.mul(left, -1), below), -1)
    return expr.select(expr.less(0, right), expr.mod(left, above), negative)


def ceiling(left: Int, right: Int) -> Int:
    """``ceil(left / right)``."""
    if not _is_of_variables(right):
        return expr.ceil_div(left, right)
    return expr.mul(quotient(expr.mul(left, -1), right), -1)


def _is_positive(left: Int, right: Int, sign: str) -> bool:
    """Whether a divisor is taken for positive.

    What variables hold is not.  Where it depends on the launch's sizes alone, the launcher asks them; where
    on indices as well, such as what is left of a span at its last tile, the reference finds others.

    Raises:
        TraceError: it is never positive.
    """
    low, high = bounds(right)
    if high <= 0 and not _is_of_variables(right):
        raise TraceError(f"division of {left} by {right}; divisors must be positive", here())
    if low >= 0:
        return True
    if _is_of_variables(right):
        return False
    tracer = current()
    if symbols(right) <= tracer.sizes and len(tracer.region_ids) == 1:
        tracer.guards.append(
            Guard(expr.less(0, right), f"`{left} {sign} ({right})`: the divisor must be positive")
        )
    return True


def _is_of_variables(divisor: Int) -> bool:
    """Whether a divisor that may be negative is made of what variables hold."""
    return bounds(divisor)[0] < 0 and any(sym.low < FOUND for sym in symbols(divisor))


def _divisors(right: Int) -> tuple[Int, Int]:
    """What is divided by where a divisor is positive, and where it is not.

    All that is known of quotients supposes that divisors are positive, so the sign is that of the dividend.
    The second is 0 for 0, which the reference finds.
    """
    return expr.maximum(right, 1), expr.select(expr.less(0, right), 1, expr.mul(right, -1))


def shift_count(count: object) -> int:
    """By how many bits an integer is shifted.

    Raises:
        TraceError: it is no constant, or negative.
    """
    if not isinstance(count, int) or not 0 <= count < 64:
        raise TraceError(f"shift by {shown(count)}; the count is a constant, from 0 to 63", here())
    return count
