"""Symbolic integers: expressions with range, divisor and width, kept in a canonical form.

An `Int` is a Python integer or an `Expr`.  Every constructor here simplifies, so that equal index
arithmetic usually becomes an equal expression: sums are flattened to ``constant + sum(coefficient * term)``
with terms in a fixed order, constants are folded, and floor division and modulo cancel where ranges and
divisors allow it.  A `Cond` is a truth value over these integers.

Equality of expressions (``==``) is structural.  To ask whether two values are equal, use
`prove(equal(a, b))`.

    >>> k = Sym("k", 0, 9, divisor=4)
    >>> (k * 8 + 3) // 8, (k * 8 + 3) % 8
    (k, 3)
    >>> bounds(k * 8 + 3), divisor(k * 8)
    ((3, 67), 32)
"""

from __future__ import annotations

import math

from tilewright.symbolic.arithmetic import (
    add,
    ceil_div,
    expand,
    floordiv,
    lowest,
    maximum,
    minimum,
    mod,
    mul,
    parts_of,
    product,
    xor,
)
from tilewright.symbolic.nodes import (
    FALSE,
    TRUE,
    Add,
    And,
    Cond,
    Constant,
    Equal,
    Expr,
    FloorDiv,
    Int,
    Less,
    Not,
    Or,
    Select,
    Sym,
    bits,
    bounds,
    divisor,
)

__all__ = [
    "FALSE",
    "TRUE",
    "And",
    "Cond",
    "Expr",
    "Int",
    "Less",
    "Not",
    "Select",
    "Sym",
    "add",
    "all_of",
    "any_of",
    "bits",
    "bounds",
    "ceil_div",
    "divisor",
    "equal",
    "expand",
    "floordiv",
    "less",
    "less_equal",
    "maximum",
    "minimum",
    "mod",
    "mul",
    "negate",
    "product",
    "prove",
    "select",
    "xor",
]


def select(cond: Cond, left: Int, right: Int) -> Int:
    """``left`` where ``cond`` holds, else ``right``."""
    known = prove(cond)
    if known is not None:
        return left if known else right
    return left if left == right else Select(cond, left, right)


def less(left: Int, right: Int) -> Cond:
    """``left < right``, folded where it can be proved."""
    return _fold(Less(left, right))


def less_equal(left: Int, right: Int) -> Cond:
    """``left <= right``, folded where it can be proved."""
    return less(left, add(right, 1))


def equal(left: Int, right: Int) -> Cond:
    """``left == right``, folded where it can be proved."""
    return _fold(Equal(left, right))


def _fold(cond: Cond) -> Cond:
    known = prove(cond)
    return cond if known is None else Constant(known)


def all_of(*parts: Cond) -> Cond:
    """The conjunction, flattened and without duplicates."""
    flat: dict[Cond, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, And) else (part,):
            if piece == FALSE:
                return FALSE
            if piece != TRUE:
                flat[piece] = None
    return TRUE if not flat else next(iter(flat)) if len(flat) == 1 else And(tuple(flat))


def any_of(*parts: Cond) -> Cond:
    """The disjunction, flattened and without duplicates."""
    flat: dict[Cond, None] = {}
    for part in parts:
        for piece in part.parts if isinstance(part, Or) else (part,):
            if piece == TRUE:
                return TRUE
            if piece != FALSE:
                flat[piece] = None
    return FALSE if not flat else next(iter(flat)) if len(flat) == 1 else Or(tuple(flat))


def negate(part: Cond) -> Cond:
    """The negation."""
    if isinstance(part, Constant):
        return Constant(not part.value)
    if isinstance(part, Less):
        return less_equal(part.right, part.left)
    return part.part if isinstance(part, Not) else Not(part)


# ---------------------------------------------------------------- questions


def prove(cond: Cond) -> bool | None:
    """Return True or False if ranges, divisors and symbolic upper bounds prove it, else None."""
    match cond:
        case Constant():
            return cond.value
        case Less():
            if isinstance(cond.left, int) and isinstance(cond.right, int):
                return cond.left < cond.right
            gap = expand(add(cond.right, mul(cond.left, -1)))
            if lowest(gap) >= 1:
                return True
            return False if lowest(expand(mul(gap, -1))) >= 0 else None
        case Equal():
            gap = expand(add(cond.right, mul(cond.left, -1)))
            if gap == 0:
                return True
            if lowest(gap) >= 1 or lowest(mul(gap, -1)) >= 1:
                return False
            parts, constant = parts_of(gap)
            common = math.gcd(*(factor * divisor(term) for term, factor in parts))
            return False if common and constant % common else None
        case And():
            known = [prove(part) for part in cond.parts]
            return False if False in known else None if None in known else True
        case Or():
            known = [prove(part) for part in cond.parts]
            return True if True in known else None if None in known else False
        case Not():
            part = prove(cond.part)
            return None if part is None else not part
        case _:
            raise TypeError(f"not a condition: {cond!r}")


def within(place: Int, extent: Int, at: Int | None, length: int | None) -> Cond:
    """Return the condition that a place in the tile ``at`` lies within an extent.

    If the extent is written as a number of whole tiles, ``length * (extent // length)``, a tile lies inside
    as a whole or not at all.  The condition then compares the number of the tile.

    Args:
        place: the place.
        extent: the extent.
        at: the number of the tile; None: the extent is not cut into tiles.
        length: length of a tile.

    Example:
        >>> m, i, at = Sym("m", 0, 1000), Sym("i", 0, 31), Sym("at", 0, 40)
        >>> within(add(mul(at, 32), i), mul(floordiv(m, 32), 32), at, 32) == less(at, floordiv(m, 32))
        True
        >>> within(add(mul(at, 32), i), m, at, 32) == less(add(mul(at, 32), i), m)
        True
    """
    if at is None or length is None or not isinstance(extent, Add) or extent.constant:
        return less(place, extent)
    is_cut = all(isinstance(term, FloorDiv) and count % length == 0 for term, count in extent.terms)
    return less(at, floordiv(extent, length)) if is_cut else less(place, extent)
