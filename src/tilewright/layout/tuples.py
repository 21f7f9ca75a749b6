"""Nested tuples of integers: the shapes, strides and coordinates of layouts."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from tilewright.errors import LayoutError
from tilewright.layout.expr import mul
from tilewright.layout.nodes import Expr, Int

IntTuple: TypeAlias = Int | tuple["IntTuple", ...]


def canonical(value: Any) -> IntTuple:
    """A nested sequence of integers of any kind as nested tuples of plain integers.

    Raises:
        LayoutError: something in it is no integer.

    Example:
        >>> canonical([4, [2, True]])
        (4, (2, 1))
    """
    if isinstance(value, Expr):
        return value
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(canonical(part) for part in value)
    try:
        return operator.index(value)
    except TypeError:
        raise LayoutError(f"{value!r} is no integer and no tuple of integers") from None


def flat(value: IntTuple) -> tuple[Int, ...]:
    """The integers in order, without nesting.

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
    """The next integers of an iterator in the structure of ``profile``.

    Example:
        >>> unflatten(iter([1, 4, 8]), (4, (2, 3)))
        (1, (4, 8))
    """
    return tuple(unflatten(leaves, part) for part in profile) if isinstance(profile, tuple) else next(leaves)


def format_tuple(value: IntTuple) -> str:
    """CuTe's notation.

    Example:
        >>> format_tuple((4, (2, 3)))
        '(4,(2,3))'
    """
    return f"({','.join(map(format_tuple, value))})" if isinstance(value, tuple) else str(value)
