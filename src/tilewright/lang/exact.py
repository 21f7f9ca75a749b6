"""Arithmetic of the kernel's integers as Python has it, and what of it is refused."""

from __future__ import annotations

from tilewright.errors import TraceError
from tilewright.lang.source import here
from tilewright.layout import expr
from tilewright.layout.nodes import Int
from tilewright.layout.ranges import bounds


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
    """A divisor of an integer of the kernel, which is not negative.

    Raises:
        TraceError: it is 0, or may be negative when the kernel runs.
    """
    if right == 0:
        raise TraceError(f"division of {left} by 0; divisors must be positive", here())
    if bounds(right)[0] < 0:
        raise TraceError(
            f"{left} {sign} ({right}): the divisor may be negative when the kernel runs; nearest legal "
            f"choice: {left} {sign} tw.maximum({right}, 1)",
            here(),
        )
    return right


def shift_count(count: object) -> int:
    """By how many bits an integer is shifted.

    Raises:
        TraceError: it is no constant, or negative.
    """
    if not isinstance(count, int) or count < 0:
        raise TraceError(f"shift by {count}; the count is a constant that is not negative", here())
    return count
