"""Arithmetic of the kernel's integers as Python has it, and what of it is refused."""

from __future__ import annotations

from tilewright.errors import TraceError, shown
from tilewright.ir.kernel import Guard
from tilewright.lang.source import here
from tilewright.lang.tracer import current
from tilewright.layout import expr
from tilewright.layout.nodes import Int
from tilewright.layout.ranges import bounds
from tilewright.layout.walk import symbols


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
    """``left // right`` as in Python: rounded down, for constant divisors of either sign."""
    if isinstance(right, int) and right < 0:
        return expr.floordiv(expr.mul(left, -1), -right)
    return expr.floordiv(left, _divisor(left, right, "//"))


def rest(left: Int, right: Int) -> Int:
    """``left % right`` as in Python: with the sign of the divisor."""
    if isinstance(right, int) and right < 0:
        return expr.mul(expr.mod(expr.mul(left, -1), -right), -1)
    return expr.mod(left, _divisor(left, right, "%"))


def _divisor(left: Int, right: Int, sign: str) -> Int:
    """A divisor of an integer of the kernel.

    It is positive, as all that is known of quotients supposes.  Where that depends on the launch's sizes, the
    launcher asks them; where it depends on what only the running kernel knows, the reference finds others.

    Raises:
        TraceError: it is never positive.
    """
    if bounds(right)[1] <= 0:
        raise TraceError(f"division of {left} by {right}; divisors must be positive", here())
    if bounds(right)[0] >= 0:
        return right
    tracer = current()
    if symbols(right) <= tracer.sizes and len(tracer.region_ids) == 1:
        tracer.guards.append(
            Guard(expr.less(0, right), f"`{left} {sign} ({right})`: the divisor must be positive")
        )
    return right


def shift_count(count: object) -> int:
    """By how many bits an integer is shifted.

    Raises:
        TraceError: it is no constant, or negative.
    """
    if not isinstance(count, int) or not 0 <= count < 64:
        raise TraceError(f"shift by {shown(count)}; the count is a constant, from 0 to 63", here())
    return count
