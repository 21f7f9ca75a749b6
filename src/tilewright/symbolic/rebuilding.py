"""Rebuilding and evaluating symbolic integers and conditions; guards on the sizes of a launch."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
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
    FloorDiv: floordiv,
    Mod: mod,
    Xor: xor,
    Min: minimum,
    Max: maximum,
    Select: select,
    Less: less,
    Equal: equal,
    Not: negate,
}


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
    match value:
        case Sym():
            return change(value)
        case Add():
            terms = (mul(rewrite(term, change, only), factor) for term, factor in value.terms)
            return add(value.constant, *terms)
        case Mul():
            return product(*(rewrite(factor, change, only) for factor in value.factors))
        case Element():
            return replace(value, at=rewrite(value.at, change, only))
        case And():
            return all_of(*(rewrite(part, change, only) for part in value.parts))
        case Or():
            return any_of(*(rewrite(part, change, only) for part in value.parts))
        case Expr() | Cond() if type(value) in _REBUILD:
            return _REBUILD[type(value)](*(rewrite(part, change, only) for part in _operands(value)))
        case _:
            return value


def substitute(value: Any, mapping: Mapping[Sym, Int]) -> Any:
    """Replace symbols by integers or expressions.

    Example:
        >>> i = Sym("i", 0, 7)
        >>> substitute(i * 4 + 1, {i: 2})
        9
    """
    return rewrite(value, lambda sym: mapping.get(sym, sym), mapping.keys()) if mapping else value


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
    match value:
        case Add():
            return add(value.constant, *(mul(replaced(t, mapping), f) for t, f in value.terms))
        case Mul():
            return product(*(replaced(factor, mapping) for factor in value.factors))
        case And():
            return all_of(*(replaced(part, mapping) for part in value.parts))
        case Or():
            return any_of(*(replaced(part, mapping) for part in value.parts))
        case Element():
            return value
        case Expr() | Cond() if not isinstance(value, Sym | Constant):
            return _REBUILD[type(value)](*(replaced(part, mapping) for part in _operands(value)))
        case _:
            return value


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
    match value:
        case Sym():
            return frozenset((value,))
        case Add():
            return _union(term for term, _ in value.terms)
        case Mul():
            return _union(value.factors)
        case And() | Or():
            return _union(value.parts)
        case Element():
            return _symbols(value.at)
        case Expr() | Cond():
            return _union(_operands(value))
        case _:
            return frozenset()


def parts(value: Any) -> Iterator[Any]:
    """Yield an expression or condition and all its parts, outer before inner."""
    yield value
    match value:
        case Add():
            inner: Iterable[Any] = (term for term, _ in value.terms)
        case Mul():
            inner = value.factors
        case And() | Or():
            inner = value.parts
        case Element():
            inner = (value.at,)
        case Expr() | Cond() if not isinstance(value, Sym | Constant):
            inner = _operands(value)
        case _:
            return
    for part in inner:
        yield from parts(part)


def _union(values: Iterable[Int | Cond]) -> frozenset[Sym]:
    return frozenset().union(*map(_symbols, values))


def _operands(value: Expr | Cond) -> list[Any]:
    return [getattr(value, f.name) for f in fields(value)]  # type: ignore[arg-type]


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
