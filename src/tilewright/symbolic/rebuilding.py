"""Rebuilding and evaluating symbolic integers and conditions; guards on the sizes of a launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.symbolic.expr import (
    add,
    all_of,
    any_of,
    equal,
    expand,
    floordiv,
    less,
    maximum,
    minimum,
    mod,
    mul,
    negate,
    product,
    select,
    xor,
)
from tilewright.symbolic.nodes import (
    Add,
    And,
    Cond,
    Constant,
    Element,
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

_REBUILD: dict[type, Callable[..., Any]] = {
    Mul: product,
    FloorDiv: floordiv,
    Mod: mod,
    Xor: xor,
    Min: minimum,
    Max: maximum,
    Select: select,
    Less: less,
    Equal: equal,
    And: all_of,
    Or: any_of,
    Not: negate,
}
"""Constructors that take the direct parts of a node."""


def _inner(value: Any) -> Iterable[Any]:
    """Return the direct parts of an expression or condition; none of a leaf."""
    match value:
        case Sym() | Constant():
            return ()
        case Add():
            return (term for term, _ in value.terms)
        case Mul():
            return value.factors
        case And() | Or():
            return value.parts
        case Element():
            return (value.at,)
        case Expr() | Cond():
            return (getattr(value, name) for name in value.__match_args__)  # type: ignore[union-attr]
        case _:
            return ()


def _rebuilt(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return an expression or condition with changed direct parts, simplified again; a leaf as it is."""
    match value:
        case Add():
            terms = (mul(change(term), factor) for term, factor in value.terms)
            return add(value.constant, *terms)
        case Element():
            return Element(value.table, change(value.at), value.low, value.high)
        case _:
            build = _REBUILD.get(type(value))
            return value if build is None else build(*map(change, _inner(value)))


def rewrite(value: Any, change: Callable[[Sym], Int], only: Collection[Sym] | None = None) -> Any:
    """Rebuild an expression or condition with every `Sym` replaced by ``change(sym)``, simplifying again.

    Args:
        value: the expression or condition.
        change: gives the replacement of a symbol.
        only: the symbols that change; parts without them are kept as they are.
    """
    if type(value) is int:
        return value
    if only is not None and isinstance(value, Expr | Cond) and _symbols(value).isdisjoint(only):
        return value
    if isinstance(value, Sym):
        return change(value)
    return _rebuilt(value, lambda part: rewrite(part, change, only))


def substitute(value: Any, mapping: Mapping[Sym, Int]) -> Any:
    """Replace symbols by integers or expressions.

    Example:
        >>> i = Sym("i", 0, 7)
        >>> substitute(i * 4 + 1, {i: 2})
        9
    """
    if not isinstance(value, Expr | Cond):
        return value
    own = _symbols(value)
    pairs = tuple((sym, new) for sym, new in mapping.items() if sym in own)
    return _substituted(value, pairs) if pairs else value


@lru_cache(maxsize=16384)
def _substituted(value: Any, pairs: tuple[tuple[Sym, Int], ...]) -> Any:
    """`substitute`, cached: the emission of a kernel asks for most substitutions several times."""
    mapping = dict(pairs)
    return rewrite(value, lambda sym: mapping.get(sym, sym), mapping.keys())


def elements(value: Any) -> tuple[Element, ...]:
    """Return the integers in memory that an expression or condition contains, each once."""
    whole = value if isinstance(value, tuple) else (value,)
    return tuple(dict.fromkeys(element for each in whole for element in _elements(each)))


@lru_cache(maxsize=4096)
def _elements(value: Int | Cond) -> tuple[Element, ...]:
    return tuple(part for part in parts(value) if isinstance(part, Element))


def with_elements(value: Any, mapping: Mapping[Element, Int]) -> Any:
    """Replace integers in memory, for example by their names in another kernel.

    Example:
        >>> i, row = Sym("i", 0, 7), Sym("row", 0, 99)
        >>> at = Element(Sym("rows"), i, 0, 99)
        >>> 4 * at + i, with_elements(4 * at + i, {at: row})
        (4*rows[i] + i, 4*row + i)
    """
    return replaced(value, mapping) if elements(value) else value


def replaced(value: Any, mapping: Mapping[Any, Int]) -> Any:
    """Replace parts of an expression or condition, the largest first.

    Example:
        >>> i, j = Sym("i", 0, 63), Sym("j", 0, 7)
        >>> replaced((i // 8) % 2 + i, {i // 8: j})
        (j % 2) + i
    """
    if value in mapping:
        return mapping[value]
    return value if isinstance(value, Element) else _rebuilt(value, lambda part: replaced(part, mapping))


def split_elements(valid: Cond) -> tuple[Cond, Cond]:
    """Split a predicate: conditions without integers in memory, and conditions with them."""
    parts = valid.parts if isinstance(valid, And) else (valid,)
    return (
        all_of(*(part for part in parts if not elements(part))),
        all_of(*(part for part in parts if elements(part))),
    )


def symbols(value: Any) -> set[Sym]:
    """Return the symbols of an expression or condition; the empty set for any other value."""
    return set(_symbols(value)) if isinstance(value, Expr | Cond) else set()


@lru_cache(maxsize=16384)
def _symbols(value: Int | Cond) -> frozenset[Sym]:
    if isinstance(value, Sym):
        return frozenset((value,))
    return frozenset().union(*map(_symbols, _inner(value)))


def parts(value: Any) -> Iterator[Any]:
    """Yield an expression or condition and all its parts, outer before inner."""
    yield value
    for part in _inner(value):
        yield from parts(part)


def evaluate(value: Any, env: Mapping[Sym, Any]) -> Any:
    """Return the value of an expression or condition; ``env`` may hold integers or NumPy integer arrays.

    Raises:
        ZeroDivisionError: a divisor is 0 or negative.
    """
    rule = _EVALUATE.get(type(value))
    return value if rule is None else rule(value, env)


def _sum(value: Add, env: Mapping[Sym, Any]) -> Any:
    total: Any = value.constant
    arrays: Any = None  # added separately, because each operation on arrays is a pass over memory
    for term, factor in value.terms:
        found = evaluate(term, env)
        found = found if factor == 1 else found * factor
        if not isinstance(found, np.ndarray):
            total = total + found
        else:
            arrays = found if arrays is None else arrays + found
    return total if arrays is None else arrays + total


def _extreme(value: Min | Max, env: Mapping[Sym, Any]) -> Any:
    left, right = evaluate(value.left, env), evaluate(value.right, env)
    return _choose(left < right, *((left, right) if isinstance(value, Min) else (right, left)))


def _divisor(value: Int, env: Mapping[Sym, Any]) -> Any:
    """Evaluate a divisor, which all rules about quotients assume to be positive."""
    found = evaluate(value, env)
    if isinstance(found, int) and found < 0:
        raise ZeroDivisionError(f"the divisor {value} is {found}; divisors are positive")
    return found


def _array(value: Any) -> Any:
    return np.asarray(value, dtype=bool)


def _all(parts: Iterable[Any]) -> Any:
    total: Any = True
    for part in parts:
        total = _array(part) & total
    return total


def _choose(cond: Any, left: Any, right: Any) -> Any:
    if isinstance(cond, bool):
        return left if cond else right
    return np.where(cond, left, right)


_EVALUATE: dict[type, Callable[[Any, Mapping[Sym, Any]], Any]] = {
    Sym: lambda value, env: env[value],
    Add: _sum,
    Mul: lambda value, env: math.prod(evaluate(factor, env) for factor in value.factors),
    FloorDiv: lambda value, env: evaluate(value.left, env) // _divisor(value.right, env),
    Mod: lambda value, env: evaluate(value.left, env) % _divisor(value.right, env),
    Xor: lambda value, env: evaluate(value.left, env) ^ evaluate(value.right, env),
    Min: _extreme,
    Max: _extreme,
    Select: lambda value, env: _choose(
        evaluate(value.cond, env), evaluate(value.left, env), evaluate(value.right, env)
    ),
    Element: lambda value, env: env[value.table](evaluate(value.at, env)),
    Constant: lambda value, env: value.value,
    Less: lambda value, env: evaluate(value.left, env) < evaluate(value.right, env),
    Equal: lambda value, env: evaluate(value.left, env) == evaluate(value.right, env),
    And: lambda value, env: _all(evaluate(part, env) for part in value.parts),
    Or: lambda value, env: ~_all(~_array(evaluate(part, env)) for part in value.parts),
    Not: lambda value, env: ~_array(evaluate(value.part, env)),
}
"""Evaluation of each class of nodes; any other value evaluates to itself."""


def slope(value: Int, sym: Sym) -> Int | None:
    """Return the increase of an integer per unit of a symbol; None if it is not constant.

    Example:
        >>> i, j = Sym("i", 0, 7), Sym("j", 0, 7)
        >>> slope(i * 5 + j, i), slope(i * j, i), slope(i // 2, i)
        (5, j, None)
    """
    step = expand(add(substitute(value, {sym: add(sym, 1)}), mul(value, -1)))
    return None if sym in symbols(step) else step


# ---------------------------------------------------------------- conditions on the sizes of a launch


@dataclass(frozen=True)
class Guard:
    """A condition on the sizes that the launcher checks.

    Args:
        condition: over the sizes.
        message: the error for the caller, with a ``{}`` for each value.
        values: integers over the sizes that the message names.
    """

    condition: Cond
    message: str
    values: tuple[Int, ...] = ()

    def broken(self, env: Mapping[Sym, int]) -> str | None:
        """Return the message if these sizes break the condition, else None.

        Args:
            env: the known sizes.
        """
        if not symbols(self.condition) <= env.keys() or evaluate(self.condition, env):
            return None
        if not self.values:
            return self.message  # an author's text, which may contain braces
        return self.message.format(*(evaluate(value, env) for value in self.values))
