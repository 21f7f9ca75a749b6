"""Symbolic integers: expressions with range, divisor and width, kept in a canonical form.

An `Int` is a Python integer or an `Expr`.  Every constructor here simplifies, so that equal index
arithmetic usually becomes an equal expression: sums are flattened to ``constant + sum(coefficient * term)``
with terms in a fixed order, constants are folded, and floor division and modulo cancel where ranges and
divisors allow it.  A `Cond` is a truth value over such integers.

Equality of expressions (``==``) is structural.  To ask whether two values are
equal, use `prove(equal(a, b))`.

    >>> k = Sym("k", 0, 9, divisor=4)
    >>> (k * 8 + 3) // 8, (k * 8 + 3) % 8
    (k, 3)
    >>> bounds(k * 8 + 3), divisor(k * 8)
    ((3, 75), 32)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

from tilewright.layout.nodes import (
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
)
from tilewright.layout.ranges import bounds, divisor
from tilewright.layout.spelling import format_int

# ---------------------------------------------------------------- constructors


def _order(term: Expr) -> tuple[str, str]:
    return (type(term).__name__, format_int(term))


def _terms(value: Int) -> tuple[tuple[tuple[Expr, int], ...], int]:
    if isinstance(value, Expr):
        return (value.terms, value.constant) if isinstance(value, Add) else (((value, 1),), 0)
    return (), int(value)


def _sum(terms: Mapping[Expr, int], constant: int) -> Int:
    kept = {term: factor for term, factor in terms.items() if factor}
    for term in list(kept):
        if term in kept and isinstance(term, FloorDiv) and isinstance(term.right, int):
            _rejoin(kept, term, term.right)
    if any(isinstance(term, Add) for term in kept):
        return add(constant, *(mul(term, factor) for term, factor in kept.items()))
    if not kept:
        return constant
    if constant == 0 and len(kept) == 1:
        [(term, factor)] = kept.items()
        if factor == 1:
            return term
    return Add(tuple(sorted(kept.items(), key=lambda item: _order(item[0]))), constant)


def _rejoin(terms: dict[Expr, int], quotient: FloorDiv, by: int) -> None:
    """Fold ``by*k*(x // by) + k*(x % by)`` to ``k*x``, in place; also without remainder if by divides x."""
    factor = terms[quotient]
    if factor % by:
        return
    remainder = mod(quotient.left, by)
    if not isinstance(remainder, int) and terms.get(remainder) == factor // by:
        del terms[remainder]
    elif remainder != 0:
        return
    del terms[quotient]
    terms[quotient.left] = terms.get(quotient.left, 0) + factor // by


def add(*values: Int) -> Int:
    """The sum of integers."""
    if all(isinstance(value, int) for value in values):
        return sum(values)
    terms: dict[Expr, int] = {}
    constant = 0
    for value in values:
        parts, offset = _terms(value)
        constant += offset
        for term, factor in parts:
            terms[term] = terms.get(term, 0) + factor
    return _sum(terms, constant)


def mul(left: Int, right: Int) -> Int:
    """The product of two integers; constants distribute over sums, symbolic factors do not."""
    if not isinstance(left, Expr):
        left, right = right, left
    if not isinstance(left, Expr):
        return int(left) * int(right)  # type: ignore[arg-type]
    if not isinstance(right, Expr):
        parts, constant = _terms(left)
        return _sum({term: factor * int(right) for term, factor in parts}, constant * int(right))
    scale = 1
    factors: list[Expr] = []
    for value in (left, right):
        factor, rest = _primitive(value)
        scale *= factor
        factors.extend(rest.factors if isinstance(rest, Mul) else (rest,))
    return mul(Mul(tuple(sorted(factors, key=_order))), scale)


def _primitive(value: Expr) -> tuple[int, Expr]:
    """Split off the constant factor of a sum: ``4*a + 8`` is ``4`` and ``a + 2``."""
    if not isinstance(value, Add):
        return 1, value
    common = math.gcd(value.constant, *(factor for _, factor in value.terms))
    if common <= 1:
        return 1, value
    rest = _sum({t: f // common for t, f in value.terms}, value.constant // common)
    assert isinstance(rest, Expr)
    return common, rest


def _split(value: Expr, by: int) -> tuple[Int, Int]:
    """``value == by * quotient + rest``; quotient has every term whose coefficient ``by`` divides."""
    parts, constant = _terms(value)
    quotient: dict[Expr, int] = {}
    rest: dict[Expr, int] = {}
    for term, factor in parts:
        if factor % by == 0:
            quotient[term] = factor // by
        else:
            rest[term] = factor
    return _sum(quotient, constant // by), _sum(rest, constant % by)


def _symbolic_factor(value: Expr, by: Expr) -> tuple[Int, Int]:
    """``value == by * quotient + rest`` for a symbolic ``by`` that appears as a factor."""
    parts, constant = _terms(value)
    quotient: Int = 0
    rest: Int = constant
    for term, factor in parts:
        factors = list(term.factors) if isinstance(term, Mul) else [term]
        if by in factors:
            factors.remove(by)
            quotient = add(quotient, mul(_product(*factors), factor))
        else:
            rest = add(rest, mul(term, factor))
    return quotient, rest


def floordiv(left: Int, right: Int) -> Int:
    """``floor(left / right)`` for a positive ``right``."""
    if isinstance(right, int):
        if right <= 0:
            raise ValueError(f"floor division by {right}; the divisor must be positive")
        if not isinstance(left, Expr):
            return left // right
        if right == 1:
            return left
        quotient, rest = _split(left, right)
        if not isinstance(rest, Expr):
            return quotient
        low, high = bounds(rest)
        if low > -INFINITY and high < INFINITY and low // right == high // right:
            return add(quotient, int(low // right))
        exact = divisor(add(rest, -_terms(rest)[1]))
        if _terms(rest)[1] and exact % right == 0:
            return add(quotient, _quotient(add(rest, -_terms(rest)[1]), right), _terms(rest)[1] // right)
        return add(quotient, _quotient(rest, right))
    if left == right:
        return 1
    if isinstance(left, Expr):
        factor, rest = _symbolic_factor(left, right)
        if prove(all_of(less_equal(0, rest), less(rest, right))):
            return factor
        return FloorDiv(left, right)
    low, _ = bounds(right)
    if 0 <= left < low:
        return 0
    return FloorDiv(_as_expr(left), right)


def _quotient(left: Int, right: int) -> Int:
    if not isinstance(left, Expr):
        return left // right
    if isinstance(left, FloorDiv) and isinstance(left.right, int):
        return floordiv(left.left, left.right * right)
    common = math.gcd(right, *(factor for _, factor in _terms(left)[0]))
    if common > 1:
        return floordiv(_split(left, common)[0], right // common)
    return FloorDiv(left, right)


def _as_expr(value: Int) -> Expr:
    return value if isinstance(value, Expr) else Add((), value)


def mod(left: Int, right: Int) -> Int:
    """``left - right * floor(left / right)`` for a positive ``right``."""
    if isinstance(right, int):
        if right <= 0:
            raise ValueError(f"modulo {right}; the divisor must be positive")
        if not isinstance(left, Expr):
            return left % right
        if right == 1:
            return 0
        parts, constant = _terms(left)
        kept = {t: f % right for t, f in parts if (f * divisor(t)) % right}
        rest = _sum(kept, constant % right)
        if not isinstance(rest, Expr):
            return rest % right
        low, high = bounds(rest)
        if low >= 0 and high < right:
            return rest
        common = math.gcd(right, *kept.values())
        if common > 1:
            quotient, remainder = _split(rest, common)
            return add(mul(mod(quotient, right // common), common), remainder)
        if isinstance(rest, Mod) and isinstance(rest.right, int) and rest.right % right == 0:
            return mod(rest.left, right)
        return Mod(rest, right)
    if left == right:
        return 0
    if isinstance(left, Expr):
        _, rest = _symbolic_factor(left, right)
        if prove(all_of(less_equal(0, rest), less(rest, right))):
            return rest
        return Mod(left, right)
    low, _ = bounds(right)
    return left if 0 <= left < low else Mod(_as_expr(left), right)


def xor(left: Int, right: Int) -> Int:
    """Bitwise exclusive or of two non-negative integers."""
    if not isinstance(left, Expr):
        left, right = right, left
    if not isinstance(left, Expr):
        return int(left) ^ int(right)  # type: ignore[arg-type]
    if right == 0:
        return left
    if left == right:
        return 0
    unit = divisor(right) & -divisor(right)
    if unit > 1:
        high, low = _split(left, unit)
        least, most = bounds(low)
        if low != 0 and least >= 0 and most < unit:
            return add(xor(mul(high, unit), right), low)
    return Xor(left, right)


def minimum(left: Int, right: Int) -> Int:
    """The smaller of two integers."""
    if prove(less_equal(left, right)):
        return left
    return right if prove(less_equal(right, left)) else Min(left, right)


def maximum(left: Int, right: Int) -> Int:
    """The larger of two integers."""
    if prove(less_equal(left, right)):
        return right
    return left if prove(less_equal(right, left)) else Max(left, right)


def ceil_div(left: Int, right: Int) -> Int:
    """``ceil(left / right)`` for a positive ``right``: the number of tiles of size ``right`` over ``left``.

    Example:
        >>> ceil_div(67, 32), ceil_div(Sym("K", 1, divisor=64), 32)
        (3, K // 32)
    """
    if isinstance(right, int) and divisor(left) % right == 0:
        return floordiv(left, right)
    return floordiv(add(left, add(right, -1)), right)


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
    """True or False where that follows from ranges, divisors and symbolic upper bounds, else None."""
    match cond:
        case Constant():
            return cond.value
        case Less():
            if isinstance(cond.left, int) and isinstance(cond.right, int):
                return cond.left < cond.right
            gap = expand(add(cond.right, mul(cond.left, -1)))
            if _lowest(gap) >= 1:
                return True
            return False if _lowest(expand(mul(gap, -1))) >= 0 else None
        case Equal():
            gap = expand(add(cond.right, mul(cond.left, -1)))
            if gap == 0:
                return True
            if _lowest(gap) >= 1 or _lowest(mul(gap, -1)) >= 1:
                return False
            parts, constant = _terms(gap)
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


def _lowest(value: Int, depth: int = 4) -> float:
    """A lower bound that also uses symbolic upper bounds: ``-x*y`` is at least ``-(x.stop - 1)*y``."""
    low = bounds(value)[0]
    if low > -INFINITY or depth == 0:
        return low
    for term, factor in _terms(value)[0]:
        factors = term.factors if isinstance(term, Mul) else (term,)
        if factor > 0 or any(bounds(other)[0] < 0 for other in factors):
            continue
        for at, sym in enumerate(factors):
            if isinstance(sym, Sym) and sym.stop is not None:
                largest = _product(add(sym.stop, -1), *factors[:at], *factors[at + 1 :])
                replaced = expand(add(value, mul(term, -factor), mul(largest, factor)))
                low = max(low, _lowest(replaced, depth - 1))
    return low


def _product(*factors: Int) -> Int:
    total: Int = 1
    for factor in factors:
        total = mul(total, factor)
    return total


@lru_cache(maxsize=16384)
def expand(value: Int) -> Int:
    """Distribute symbolic products over sums, so that differences cancel."""
    if isinstance(value, Add):
        return add(value.constant, *(mul(expand(term), factor) for term, factor in value.terms))
    if isinstance(value, Mul):
        total: Int = 1
        for factor in value.factors:
            grown = expand(factor)
            left, left_constant = _terms(total)
            right, right_constant = _terms(grown)
            pieces: list[Int] = [left_constant * right_constant]
            pieces += [mul(mul(a, b), x * y) for a, x in left for b, y in right]
            pieces += [mul(a, x * right_constant) for a, x in left]
            pieces += [mul(b, y * left_constant) for b, y in right]
            total = add(*pieces)
        return total
    return value
