"""Symbolic integers: expressions with range, divisor and width, kept in a canonical form.

An `Int` is a Python integer or an `Expr`.  Every constructor here simplifies, so that equal index
arithmetic usually becomes an equal expression: sums are flattened to ``constant + sum(coefficient * term)``
with terms in a fixed order, constants are folded, and floor division and modulo cancel where ranges and
divisors allow it.  A `Cond` is a truth value over these integers.

Division and modulo split off what the divisor divides, and drop low parts that cannot carry: with ``g``
dividing both ``high`` and ``by``, and ``0 <= low < g``,

    (high + low) // by == high // by        (high + low) % by == high % by + low

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
from collections.abc import Mapping
from functools import lru_cache

from tilewright.errors import LayoutError
from tilewright.symbolic.nodes import (
    FALSE,
    INFINITY,
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
    Max,
    Min,
    Mod,
    Mul,
    Not,
    Or,
    Select,
    Sym,
    Xor,
    bounds,
    builds,
    divisor,
)
from tilewright.symbolic.spelling import format_int


@builds
def add(*values: Int) -> Int:
    """The sum of integers."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    terms: dict[Expr, int] = {}
    constant = 0
    for value in values:
        parts, offset = parts_of(value)
        constant += offset
        for term, factor in parts:
            terms[term] = terms.get(term, 0) + factor
    return _sum(terms, constant)


@builds
def mul(left: Int, right: Int) -> Int:
    """The product of two integers; constants distribute over sums, symbolic factors do not."""
    if not isinstance(left, Expr):
        left, right = right, left
    if not isinstance(left, Expr):
        return int(left) * int(right)  # type: ignore[arg-type]
    if not isinstance(right, Expr):
        parts, constant = parts_of(left)
        if right in (0, 1):
            return left if right else 0
        return _sum({term: factor * right for term, factor in parts}, constant * right)
    scale = 1
    factors: list[Expr] = []
    for value in (left, right):
        factor, rest = _primitive(value)
        scale *= factor
        factors.extend(_factors(rest))
    return mul(Mul(tuple(sorted(factors, key=_order))), scale)


def product(*factors: Int) -> Int:
    """Return the product of integers."""
    total: Int = 1
    for factor in factors:
        total = mul(total, factor)
    return total


@builds
def floordiv(left: Int, right: Int) -> Int:
    """``floor(left / right)`` for a positive ``right``."""
    _check_positive("floor division by", right)
    if isinstance(left, int) and isinstance(right, int):
        return left // right
    if right == 1:
        return left
    quotient, rest = _split(left, right)
    made: Int | None = _digit(rest, right)
    if made is None:
        high, low = _low_part(rest, divisor(right))
        common = _common_factor(rest, right)
        if low != 0:
            made = floordiv(high, right)
        elif isinstance(rest, FloorDiv):
            made = floordiv(rest.left, mul(rest.right, right))
        elif common > 1:
            made = floordiv(_split(rest, common)[0], floordiv(right, common))
        elif isinstance(rest, Xor) and _is_power(right):
            made = xor(floordiv(rest.left, right), floordiv(rest.right, right))
        else:
            made = FloorDiv(rest, right)
    return add(quotient, made)


@builds
def mod(left: Int, right: Int) -> Int:
    """``left - right * floor(left / right)`` for a positive ``right``."""
    _check_positive("modulo", right)
    if isinstance(left, int) and isinstance(right, int):
        return left % right
    if right == 1:
        return 0
    rest = _reduce(left, right) if isinstance(right, int) else _split(left, right)[1]
    if isinstance(rest, int) and isinstance(right, int):
        return rest % right
    if _digit(rest, right) == 0:
        return rest
    high, low = _low_part(rest, divisor(right))
    if low != 0:
        return add(mod(high, right), low)
    common = _common_factor(rest, right)
    if common > 1:
        quotient, low = _split(rest, common)
        return add(mul(mod(quotient, floordiv(right, common)), common), low)
    if isinstance(rest, Mod) and mod(rest.right, right) == 0:
        return mod(rest.left, right)
    if isinstance(rest, Xor) and _is_power(right):
        return xor(mod(rest.left, right), mod(rest.right, right))
    return Mod(rest, right)


@builds
def xor(left: Int, right: Int) -> Int:
    """Bitwise exclusive or."""
    if not isinstance(left, Expr):
        left, right = right, left
    if not isinstance(left, Expr):
        return int(left) ^ int(right)  # type: ignore[arg-type]
    if right == 0:
        return left
    if left == right:
        return 0
    for value, other in ((left, right), (right, left)):
        high, low = _low_part(value, divisor(other) & -divisor(other))
        if low != 0:
            return add(xor(high, other), low)
    for value, other in ((left, right), (right, left)):
        # Split off the bits above those of the other operand.
        least, most = bounds(other)
        if least < 0 or most == INFINITY:
            continue
        unit = 1 << int(most).bit_length()
        parts, constant = parts_of(value)
        above = {term: factor for term, factor in parts if (factor * divisor(term)) % unit == 0}
        high = _sum(above, constant - constant % unit)
        if high != 0:
            rest = {term: factor for term, factor in parts if term not in above}
            return add(high, xor(_sum(rest, constant % unit), other))
    first, second = (left, right) if isinstance(right, int) else sorted((left, right), key=_order)
    return Xor(first, second)


def minimum(left: Int, right: Int) -> Int:
    """The smaller of two integers."""
    return Min(left, right) if (known := _at_most(left, right)) is None else left if known else right


def maximum(left: Int, right: Int) -> Int:
    """The larger of two integers."""
    return Max(left, right) if (known := _at_most(left, right)) is None else right if known else left


def ceil_div(left: Int, right: Int) -> Int:
    """``ceil(left / right)`` for a positive ``right``: the number of tiles of size ``right`` over ``left``.

    Example:
        >>> ceil_div(67, 32), ceil_div(Sym("K", 1, divisor=64), 32)
        (3, K // 32)
    """
    if isinstance(right, int) and right > 0 and divisor(left) % right == 0:
        return floordiv(left, right)
    return floordiv(add(left, right, -1), right)


@lru_cache(maxsize=16384)
def expand(value: Int) -> Int:
    """Distribute symbolic products over sums, so that differences cancel."""
    if isinstance(value, Add):
        return add(value.constant, *(mul(expand(term), factor) for term, factor in value.terms))
    if isinstance(value, Mul):
        total: Int = 1
        for factor in map(expand, value.factors):
            (left, left_constant), (right, right_constant) = parts_of(total), parts_of(factor)
            pieces: list[Int] = [left_constant * right_constant]
            pieces += [mul(mul(a, b), x * y) for a, x in left for b, y in right]
            pieces += [mul(a, x * right_constant) for a, x in left]
            pieces += [mul(b, y * left_constant) for b, y in right]
            total = add(*pieces)
        return total
    return value


def lowest(value: Int, depth: int = 4) -> float:
    """Return a lower bound that also uses symbolic upper bounds: ``-x*y`` is at least ``-(x.stop - 1)*y``."""
    low = bounds(value)[0]
    if low >= 1 or depth == 0:
        return low
    for term, factor in parts_of(value)[0]:
        factors = _factors(term)
        if factor > 0 or any(bounds(other)[0] < 0 for other in factors):
            continue
        for at, sym in enumerate(factors):
            if isinstance(sym, Sym) and sym.stop is not None:
                largest = product(add(sym.stop, -1), *factors[:at], *factors[at + 1 :])
                replaced = expand(add(value, mul(term, -factor), mul(largest, factor)))
                low = max(low, lowest(replaced, depth - 1))
    return low


def parts_of(value: Int) -> tuple[tuple[tuple[Expr, int], ...], int]:
    """Return the terms of a sum with their coefficients, and its constant."""
    if isinstance(value, Expr):
        return (value.terms, value.constant) if isinstance(value, Add) else (((value, 1),), 0)
    return (), int(value)


# ---------------------------------------------------------------- sums and products


@lru_cache(maxsize=16384)
def _order(term: Expr) -> tuple[str, str]:
    return (type(term).__name__, format_int(term))


def _factors(term: Expr) -> tuple[Expr, ...]:
    return term.factors if isinstance(term, Mul) else (term,)


def _as_expr(value: Int) -> Expr:
    return value if isinstance(value, Expr) else Add((), value)


def _sum(terms: Mapping[Expr, int], constant: int) -> Int:
    kept = {term: factor for term, factor in terms.items() if factor}
    while _rejoin(kept):
        pass
    if any(isinstance(term, Add) for term in kept):
        return add(constant, *(mul(term, factor) for term, factor in kept.items()))
    if not kept:
        return constant
    if constant == 0 and len(kept) == 1:
        [(term, factor)] = kept.items()
        if factor == 1:
            return term
    return Add(tuple(sorted(kept.items(), key=lambda item: _order(item[0]))), constant)


def _rejoin(terms: dict[Expr, int]) -> bool:
    """Join one quotient with its remainder, in place; return whether there was a pair to join.

    ``by*k*(x // by) + k*(x % by)`` is ``k*x``, and ``by*k*((x // by) % n) + k*(x % by)`` is
    ``k*(x % (by*n))``, for any product ``k``.  If by divides x, the term ``x % by`` is absent.
    """
    for term in terms:
        for digit in _factors(term):
            match digit:
                case FloorDiv(left, by):
                    if _join(terms, term, digit, left, by, None):
                        return True
                case Mod(FloorDiv(left, by), count):
                    if _join(terms, term, digit, left, by, count):
                        return True
    return False


def _join(terms: dict[Expr, int], term: Expr, digit: Expr, left: Int, by: Int, count: Int | None) -> bool:
    others = _without(_factors(term), (digit,))
    times, rest = _split(product(terms[term], *(others or ())), by)
    if rest != 0:
        return False
    parts, constant = parts_of(mul(mod(left, by), times))
    if constant or any(terms.get(part) != factor for part, factor in parts):
        return False
    for done in (term, *(part for part, _ in parts)):
        del terms[done]
    joined = _as_expr(mul(left if count is None else mod(left, mul(by, count)), times))
    terms[joined] = terms.get(joined, 0) + 1
    if not terms[joined]:
        del terms[joined]
    return True


def _primitive(value: Expr) -> tuple[int, Expr]:
    """Split off the constant factor of a sum and its first sign: ``8 - 4*a`` is ``-4`` and ``a - 2``."""
    if not isinstance(value, Add) or not value.terms:
        return 1, value
    common = math.gcd(value.constant, *(factor for _, factor in value.terms))
    if value.terms[0][1] < 0:
        common = -common
    if common == 1:
        return 1, value
    return common, _as_expr(_sum({t: f // common for t, f in value.terms}, value.constant // common))


# ---------------------------------------------------------------- division


def _check_positive(what: str, right: Int) -> None:
    if bounds(right)[1] <= 0:
        raise LayoutError(f"{what} {right}; the divisor must be positive")


def _split(value: Int, by: Int) -> tuple[Int, Int]:
    """Split ``value == by * quotient + rest``; the quotient takes every term with the factor ``by``."""
    parts, constant = parts_of(value)
    if isinstance(by, int):
        divided = {term: factor // by for term, factor in parts if factor % by == 0}
        rest = {term: factor for term, factor in parts if factor % by}
        return _sum(divided, constant // by), _sum(rest, constant % by)
    scale, base = _primitive(by)
    if isinstance(value, Expr):
        factor, same = _primitive(value)
        if same == base and factor % scale == 0:
            return factor // scale, 0
    quotient: Int = 0
    remainder: Int = constant
    for term, factor in parts:
        left_over = _without(_factors(term), _factors(base))
        if left_over is not None and factor % scale == 0:
            quotient = add(quotient, mul(product(*left_over), factor // scale))
        else:
            remainder = add(remainder, mul(term, factor))
    return quotient, remainder


def _without(factors: tuple[Expr, ...], removed: tuple[Expr, ...]) -> list[Expr] | None:
    left_over = list(factors)
    for factor in removed:
        if factor not in left_over:
            return None
        left_over.remove(factor)
    return left_over


def _reduce(left: Int, right: int) -> Int:
    """Drop multiples of ``right``; coefficients and the constant are then in ``[0, right)``."""
    parts, constant = parts_of(left)
    return _sum({t: f % right for t, f in parts if (f * divisor(t)) % right}, constant % right)


def _is_power(value: Int) -> bool:
    """Return whether a value is a known power of two."""
    return isinstance(value, int) and value & (value - 1) == 0


def _digit(rest: Int, right: Int) -> int | None:
    """Return ``rest // right`` if ranges prove that it is one number."""
    if isinstance(right, int):
        low, high = bounds(rest)
        known = low > -INFINITY and high < INFINITY and low // right == high // right
        return int(low // right) if known else None
    if rest == 0:
        return 0
    inside = lowest(rest) >= 0 and lowest(expand(add(right, mul(rest, -1)))) >= 1
    return 0 if inside else None


def _low_part(value: Int, by: int) -> tuple[Int, Int]:
    """Split ``value == high + low``, ``0 <= low < unit``; unit divides high and by, and low may be 0."""
    if by <= 1:
        return value, 0
    parts, constant = parts_of(value)
    units = {math.gcd(by, factor * divisor(term)) for term, factor in parts} | {by}
    units.discard(1)
    for unit in sorted(units, reverse=True):
        high = {term: factor for term, factor in parts if (factor * divisor(term)) % unit == 0}
        low = _sum({term: factor for term, factor in parts if term not in high}, constant % unit)
        least, most = bounds(low)
        if low != 0 and least >= 0 and most < unit:
            return _sum(high, constant - constant % unit), low
    return value, 0


def _common_factor(rest: Int, right: Int) -> int:
    """Return the largest integer that is a factor of ``right`` and of every coefficient of ``rest``."""
    scale = right if isinstance(right, int) else _primitive(right)[0]
    parts, constant = parts_of(rest)
    # The constant does not count: the part that the factor does not divide stays in the remainder.
    return math.gcd(scale, *(factor for _, factor in parts)) if parts else math.gcd(scale, constant)


def _at_most(left: Int, right: Int) -> bool | None:
    """Return whether ``left <= right`` is proved."""
    if isinstance(left, int) and isinstance(right, int):
        return left <= right
    gap = expand(add(right, mul(left, -1)))
    if lowest(gap) >= 0:
        return True
    return False if lowest(expand(mul(gap, -1))) >= 0 else None


# ---------------------------------------------------------------- conditions


def select(cond: Cond, left: Int, right: Int) -> Int:
    """``left`` if ``cond`` holds, else ``right``."""
    known = prove(cond)
    if known is not None:
        return left if known else right
    return left if left == right else Select(cond, left, right)


def less(left: Int, right: Int) -> Cond:
    """``left < right``; a constant if ranges and divisors decide it."""
    return _fold(Less(left, right))


def less_equal(left: Int, right: Int) -> Cond:
    """``left <= right``; a constant if ranges and divisors decide it."""
    return less(left, add(right, 1))


def equal(left: Int, right: Int) -> Cond:
    """``left == right``; a constant if ranges and divisors decide it."""
    return _fold(Equal(left, right))


def _fold(cond: Cond) -> Cond:
    known = prove(cond)
    return cond if known is None else Constant(known)


def all_of(*parts: Cond) -> Cond:
    """The conjunction, flattened and without duplicates."""
    return _joined(And, parts, neutral=TRUE)


def any_of(*parts: Cond) -> Cond:
    """The disjunction, flattened and without duplicates."""
    return _joined(Or, parts, neutral=FALSE)


def _joined(kind: type[And | Or], parts: tuple[Cond, ...], neutral: Constant) -> Cond:
    """Join conditions; ``neutral`` changes nothing, and its negation decides alone."""
    pieces = (piece for part in parts for piece in (part.parts if isinstance(part, kind) else (part,)))
    flat = tuple(dict.fromkeys(piece for piece in pieces if piece != neutral))
    if (decisive := Constant(not neutral.value)) in flat:
        return decisive
    return neutral if not flat else flat[0] if len(flat) == 1 else kind(flat)


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
