"""Nested tuples of integers: the shapes, strides and coordinates of layouts."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

from tilewright.argument_checks import MOST_ENTRIES, is_integer, is_sequence
from tilewright.errors import LayoutError, shown
from tilewright.symbolic.expr import mul
from tilewright.symbolic.nodes import Expr, Int

IntTuple: TypeAlias = Int | tuple["IntTuple", ...]

DEEPEST = 32
"""Maximum nesting depth of a shape. More than a few levels are a mistake."""


def canonical(value: Any) -> IntTuple:
    """Convert a nested sequence of integers of any kind to nested tuples of plain integers.

    Raises:
        LayoutError: the sequence contains something that is not an integer.

    Example:
        >>> canonical([4, [2, True]])
        (4, (2, 1))
    """
    return _canonical(value, 0, value)


def _canonical(value: Any, depth: int, whole: Any) -> IntTuple:
    if isinstance(value, Expr):
        return value
    if is_sequence(value):
        if depth == DEEPEST or len(value) > MOST_ENTRIES:
            raise LayoutError(
                f"{shown(value)} has more than {DEEPEST} levels or more than {MOST_ENTRIES} entries; "
                "layouts have fewer"
            )
        return tuple(_canonical(part, depth + 1, whole) for part in value)
    if isinstance(value, bool | np.bool_):
        return int(value)
    if is_integer(value):
        return operator.index(value)
    if isinstance(value, int):
        raise LayoutError(f"{shown(value)}: integers of layouts have at most 64 bits")
    where = "" if value is whole else f" in {shown(whole)}"
    raise LayoutError(f"{shown(value)}{where} is neither an integer nor a tuple of integers")


def integers(what: str, values: Any, count: int | None = None, meaning: str = "") -> tuple[int, ...]:
    """Convert a sequence of positive integers of any kind to a tuple of plain integers.

    Args:
        what: the name of the argument.
        values: the value of the argument.
        count: the required number of integers; default: any number.
        meaning: what the integers stand for, for the error message.

    Raises:
        LayoutError: the value is anything else; the message names the nearest legal choice if one exists.

    Example:
        >>> integers("warps", np.array([2, 4]), 2)
        (2, 4)
        >>> integers("warps", 4, 2, "rows and columns of a grid")
        Traceback (most recent call last):
        tilewright.errors.LayoutError: warps=4 must be two positive integers, rows and columns of a grid; \
nearest legal choice: warps=(4, 1)
    """
    single = isinstance(values, str) or (isinstance(values, np.ndarray) and values.ndim == 0)
    several = isinstance(values, Iterable) and not single
    given = list(values) if several else [values]
    whole = [int(value) for value in given if _whole(value)]
    if several and len(whole) == len(given) and min(whole, default=1) > 0 and count in (None, len(whole)):
        return tuple(whole)
    words = "two positive integers" if count == 2 else "positive integers"
    message = f"{what}={shown(values)} must be {words}{meaning and ', '}{meaning}"
    if not all(_near(value) for value in given):
        raise LayoutError(message)
    near = tuple(max(int(value), 1) for value in given)
    raise LayoutError(message, f"{what}={near if count is None else (near + (1,) * count)[:count]}")


def integer(what: str, value: Any, meaning: str = "") -> int:
    """Convert a positive integer of any kind to a plain one; see `integers`.

    Example:
        >>> integer("vector", np.int8(4))
        4
    """
    if _whole(value) and value > 0:
        return int(value)
    nearest = f"{what}={max(int(value), 1)}" if _near(value) else None
    raise LayoutError(f"{what}={shown(value)} must be a positive integer{meaning and ', '}{meaning}", nearest)


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _near(value: Any) -> bool:
    """Return whether a value is a number close to a 64-bit integer."""
    known = isinstance(value, int | float | np.integer | np.floating)
    return known and bool(-(2**63) < value < 2**63)


def flat(value: IntTuple) -> tuple[Int, ...]:
    """Return the integers of a nested tuple in order, without nesting.

    Example:
        >>> flat((4, (2, (3, 5))))
        (4, 2, 3, 5)
    """
    return tuple(leaf for part in value for leaf in flat(part)) if isinstance(value, tuple) else (value,)


def product(value: IntTuple) -> Int:
    """The product of all integers; 1 for an empty tuple.

    Example:
        >>> product((4, (2, 3)))
        24
    """
    total: Int = 1
    for leaf in flat(value):
        total = mul(total, leaf)
    return total


def depth(value: IntTuple) -> int:
    """The number of nested parentheses.

    Example:
        >>> depth(4), depth((4, 2)), depth((4, (2, 3)))
        (0, 1, 2)
    """
    return 1 + max((depth(part) for part in value), default=0) if isinstance(value, tuple) else 0


def congruent(left: IntTuple, right: IntTuple) -> bool:
    """Whether two nested tuples have the same structure.

    Example:
        >>> congruent((4, (2, 3)), (1, (4, 8))), congruent((4, 2), (1, (4, 8)))
        (True, False)
    """
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(congruent, left, right))
    return not isinstance(left, tuple) and not isinstance(right, tuple)


def unflatten(leaves: Iterator[Int], profile: IntTuple) -> IntTuple:
    """Take integers from an iterator and nest them like ``profile``.

    Example:
        >>> unflatten(iter([1, 4, 8]), (4, (2, 3)))
        (1, (4, 8))
    """
    return tuple(unflatten(leaves, part) for part in profile) if isinstance(profile, tuple) else next(leaves)


def format_tuple(value: IntTuple) -> str:
    """Format a nested tuple in CuTe's notation.

    Example:
        >>> format_tuple((4, (2, 3)))
        '(4,(2,3))'
    """
    return f"({','.join(map(format_tuple, value))})" if isinstance(value, tuple) else str(value)
