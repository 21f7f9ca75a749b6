"""Arithmetic of a kernel's integers with Python's semantics, and the checks on divisors and shifts."""

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
"""A symbol with a lower bound below this comes from a variable; sizes and indices have tighter bounds."""


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
    """Return whether a divisor is assumed positive.

    A divisor that depends on a variable is not.  If it depends only on the launch's sizes, the launcher
    checks it.  If it also depends on indices, for example the rest of a span at its last tile, the reference
    reports a divisor that is not positive.

    Raises:
        TraceError: the divisor is never positive.
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
    """Return whether a divisor may be negative and depends on variables."""
    return bounds(divisor)[0] < 0 and any(sym.low < FOUND for sym in symbols(divisor))


def _divisors(right: Int) -> tuple[Int, Int]:
    """Return two positive divisors: one for a positive divisor, one for a negative divisor.

    Range analysis of quotients assumes positive divisors, so the caller moves the sign to the dividend.  The
    second is 0 if the divisor is 0, which the reference reports.
    """
    return expr.maximum(right, 1), expr.select(expr.less(0, right), 1, expr.mul(right, -1))


def shift_count(count: object) -> int:
    """Return the number of bits by which an integer is shifted.

    Raises:
        TraceError: the number is not a constant, or is negative.
    """
    if not isinstance(count, int) or not 0 <= count < 64:
        raise TraceError(f"shift by {shown(count)}; the count is a constant, from 0 to 63", here())
    return count
