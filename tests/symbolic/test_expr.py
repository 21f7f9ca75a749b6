"""Symbolic integers: random expressions against plain integers, canonical forms, proofs."""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import pytest

from tilewright.symbolic.expr import (
    add,
    all_of,
    any_of,
    ceil_div,
    equal,
    expand,
    floordiv,
    less,
    less_equal,
    maximum,
    minimum,
    mod,
    mul,
    negate,
    prove,
    select,
    xor,
)
from tilewright.symbolic.nodes import (
    FALSE,
    TRUE,
    And,
    Cond,
    Expr,
    Int,
    Less,
    Not,
    Select,
    Sym,
    bits,
    bounds,
    divisor,
)
from tilewright.symbolic.rebuilding import _substituted, evaluate, substitute, symbols
from tilewright.views.transforms import Swizzle

pytestmark = pytest.mark.in_turns(3)

Env: TypeAlias = dict[Sym, int]
Plain: TypeAlias = Callable[[Env], int]

K, M = Sym("K", 8, 64, divisor=8), Sym("M", 1, 9)
SYMBOLS = [
    *(K, M, Sym("i", 0, 7), Sym("one", 0, 0), Sym("k", 0, 31), Sym("n", -5, 6)),
    *(Sym("d", 0, 48, divisor=16), Sym("u"), Sym("odd", 3, 30, divisor=4)),
    *(Sym("t", 0, None, 1, K), Sym("s", 0, None, 1, M), Sym("q", 0, None, 1, ceil_div(K, 4))),
]
BY_NAME = {sym.name: sym for sym in SYMBOLS}
DIVISORS: list[Int] = [2, 3, 4, 8, 16, 64, K, M, K * M, K * 4, K + 1]


def values(rng: random.Random) -> Env:
    """Draw a value for every symbol, within the symbol's range and divisor."""
    env: Env = {}
    for sym in SYMBOLS:
        high = 40 if sym.high is None else sym.high
        if sym.stop is not None:
            high = min(high, evaluate(sym.stop, env) - 1)
        env[sym] = rng.choice([v for v in range(sym.low, high + 1) if v % sym.divisor == 0])
    return env


def expression(rng: random.Random, depth: int) -> tuple[Int, Plain]:
    """Draw a random expression, and the same as a function of plain integers."""
    if depth == 0 or rng.random() < 0.12:
        if rng.random() < 0.85:
            sym = rng.choice(SYMBOLS)
            return sym, lambda env: env[sym]
        constant = rng.randint(-4, 70)
        return constant, lambda env: constant
    (a, plain_a), (b, plain_b) = expression(rng, depth - 1), expression(rng, depth - 1)
    by = rng.choice(DIVISORS)
    factor = rng.choice([1, 1, -1, 2, 4, 8, 16, 3])
    swizzle = rng.choice([Swizzle(3, 3, 3), Swizzle(2, 3, 2), Swizzle(1, 2, 1)])
    cases: list[tuple[Callable[[], Int], Plain]] = [
        (lambda: add(a, mul(b, factor)), lambda env: plain_a(env) + factor * plain_b(env)),
        (lambda: add(a, mul(b, -factor)), lambda env: plain_a(env) - factor * plain_b(env)),
        (lambda: mul(a, factor), lambda env: plain_a(env) * factor),
        (lambda: mul(a, b), lambda env: plain_a(env) * plain_b(env)),
        (lambda: floordiv(a, by), lambda env: plain_a(env) // evaluate(by, env)),
        (lambda: mod(a, by), lambda env: plain_a(env) % evaluate(by, env)),
        (lambda: xor(a, b), lambda env: plain_a(env) ^ plain_b(env)),
        (lambda: swizzle.offset(a), lambda env: swizzle.offset(plain_a(env))),
        (lambda: minimum(a, b), lambda env: min(plain_a(env), plain_b(env))),
        (lambda: maximum(a, b), lambda env: max(plain_a(env), plain_b(env))),
        (
            lambda: select(less(a, b), b, a),
            lambda env: plain_b(env) if plain_a(env) < plain_b(env) else plain_a(env),
        ),
    ]
    build, plain = rng.choice([*cases, cases[4], cases[5], cases[4], cases[5]])
    return build(), plain


BINARY: dict[type, Callable[[Int, Int], Int]] = {
    ast.Add: add,
    ast.Sub: lambda a, b: add(a, mul(b, -1)),
    ast.Mult: mul,
    ast.FloorDiv: floordiv,
    ast.Mod: mod,
    ast.BitXor: xor,
}
CALLS: dict[str, Callable[..., Any]] = {"min": minimum, "max": maximum, "select": select}


def parse(node: ast.AST) -> Any:
    match node:
        case ast.Expression(body):
            return parse(body)
        case ast.Constant(value):
            return value
        case ast.Name(name):
            return BY_NAME[name]
        case ast.UnaryOp(ast.USub(), operand):
            return mul(parse(operand), -1)
        case ast.BinOp(left, op, right):
            return BINARY[type(op)](parse(left), parse(right))
        case ast.Call(ast.Name(name), arguments):
            return CALLS[name](*map(parse, arguments))
        case ast.Compare(left, [ast.Lt()], [right]):
            return less(parse(left), parse(right))
    raise TypeError(ast.dump(node))


@pytest.mark.parametrize("seed", range(6))
def test_random_expressions(seed: int) -> None:
    """Constructors, evaluation, substitution, expansion and text agree; bounds and divisor are true."""
    rng = random.Random(seed)
    for _ in range(700):
        value, plain = expression(rng, rng.randint(1, 4))
        (low, high), exact = bounds(value), divisor(value)
        expanded = expand(value)
        assert parse(ast.parse(str(value), mode="eval")) == value
        for env in (values(rng) for _ in range(4)):
            expected = plain(env)
            assert evaluate(value, env) == expected, value
            assert evaluate(expanded, env) == expected, value
            assert substitute(value, env) == expected, value
            assert low <= expected <= high, value
            assert expected % exact == 0 if exact else expected == 0, value


@pytest.mark.parametrize("seed", range(3))
def test_random_conditions(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(300):
        (a, plain_a), (b, plain_b) = (expression(rng, rng.randint(1, 3)) for _ in range(2))
        cases: list[tuple[Cond, Callable[[Env], bool]]] = [
            (less(a, b), lambda env, a=plain_a, b=plain_b: a(env) < b(env)),
            (less_equal(a, b), lambda env, a=plain_a, b=plain_b: a(env) <= b(env)),
            (equal(a, b), lambda env, a=plain_a, b=plain_b: a(env) == b(env)),
            (negate(less(a, b)), lambda env, a=plain_a, b=plain_b: a(env) >= b(env)),
            (negate(equal(a, b)), lambda env, a=plain_a, b=plain_b: a(env) != b(env)),
            (
                all_of(less(a, b), less(-8, a)),
                lambda env, a=plain_a, b=plain_b: -8 < a(env) < b(env),
            ),
            (
                any_of(less(a, b), negate(equal(a, 3))),
                lambda env, a=plain_a, b=plain_b: a(env) < b(env) or a(env) != 3,
            ),
        ]
        for cond, plain in cases:
            known = prove(cond)
            for env in (values(rng) for _ in range(3)):
                expected = plain(env)
                assert bool(evaluate(cond, env)) == expected, cond
                assert substitute(cond, env).value == expected, cond
                assert known in (None, expected), cond


def test_arrays_evaluate_like_integers() -> None:
    rng = random.Random(1)
    envs = [values(rng) for _ in range(20)]
    stacked = {sym: np.array([env[sym] for env in envs]) for sym in SYMBOLS}
    for _ in range(200):
        value, plain = expression(rng, 3)
        got = np.broadcast_to(evaluate(value, stacked), (20,))
        assert got.tolist() == [plain(env) for env in envs], value


i, j = Sym("i", 0, 7), Sym("j", 0, 31)
N, H, W = Sym("N", 1), Sym("H", 1), Sym("W", 1)
x, y = Sym("x"), Sym("y", 0, None, 1, W)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (i + i * 3 - 4, "4*i - 4"),
        (i - i, "0"),
        ((x // 4) * 4 + x % 4 - x, "0"),
        ((x // 4) * 4 + x % 4, "x"),
        ((x // 12) * 12 + ((x // 4) % 3) * 4 + x % 4, "x"),
        ((x // W) * W + x % W, "x"),
        ((x // (H * W)) * H * W + ((x // W) % H) * W + x % W, "x"),
        ((K // 8) * 8, "K"),
        ((x * 8 + i) // 64, "x // 8"),
        ((x * 8 + i) % 64, "8*(x % 8) + i"),
        ((x * 8 + i) % K, "((8*x) % K) + i"),
        ((x * W + y) // W, "x"),
        ((x * W + y) % W, "y"),
        ((x * K * 2 + 5) // (K * 2), "x"),
        ((x // 4) // 8, "x // 32"),
        ((x % 32) % 8, "x % 8"),
        (xor(x * 8 + i, j * 8), "i + ((8*j) ^ (8*x))"),
        (-K * M, "-K*M"),
        (ceil_div(N, 32) * 32, "32*((N + 31) // 32)"),
        (minimum(i, j + 8), "i"),
        (maximum(i, j + 8), "j + 8"),
        (expand((x + 1) * (W + 2)), "2*x + W*x + W + 2"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_canonical_forms(value: Int, text: str) -> None:
    assert str(value) == text


@pytest.mark.parametrize(
    ("cond", "known"),
    [
        (less(i, 8), True),
        (less(i, 7), None),
        (less(8, i), False),
        (less(y, W), True),
        (less(y * 4 + 3, W * 4), True),
        (less(y * N, W * N), True),
        (less(Sym("k", 0, None, 1, K // 8) * 8 + i, K), True),
        (equal(K * 2, 3), False),
        (equal(K, 8), None),
        (equal(H * W, W * H), True),
        (less(Sym("m", 4, None, divisor=16), 17), None),
        (less(Sym("m", 4, None, divisor=16), 16), False),
        (any_of(less(i, 3), less(i, 8)), True),
        (all_of(less(i, 3), less(9, i)), False),
    ],
    ids=str,
)
def test_proofs(cond: Cond, known: bool | None) -> None:
    assert prove(cond) is known
    if known is not None:
        assert cond == (TRUE if known else FALSE)


def test_conditions_read_well() -> None:
    assert str(all_of(less(i, 3), negate(equal(j, 2)))) == "i < 3 and not (j == 2)"
    assert str(any_of(all_of(less(i, 3), less(j, 2)), less(j, 9))) == "(i < 3 and j < 2) or j < 9"
    assert all_of() == TRUE
    assert any_of() == FALSE
    assert negate(negate(equal(i, 3))) == equal(i, 3)
    assert isinstance(negate(equal(i, 3)), Not)
    assert negate(less(i, 3)) == less_equal(3, i) == Less(3, i + 1)
    assert all_of(less(i, 3), all_of(less(i, 3), less(j, 2))) == And((less(i, 3), less(j, 2)))
    assert isinstance(select(less(i, 3), i, j), Select)


def test_width() -> None:
    assert bits(i * 1000) == 32
    assert bits(x) == bits(Sym("big", 0, 2**31)) == 64
    assert bits(Sym("least", -(2**31), 2**31 - 1)) == 32


def test_symbols_and_substitution() -> None:
    value = select(less(i, W), x // W, minimum(j, 40 - i))
    assert symbols(value) == {i, W, x, j}
    assert symbols(7) == symbols((i, j)) == set()
    assert substitute(value, {i: 2, W: 5, x: 23}) == 4
    assert substitute(i + j, {i: j, j: i}) == i + j


def test_symbols_that_a_value_lacks_do_not_matter_to_the_cache() -> None:
    made = substitute(x // 7 + i, {x: 23, W: 5})
    before = _substituted.cache_info()
    assert substitute(x // 7 + i, {x: 23, W: 6, j: 1}) is made
    after = _substituted.cache_info()
    assert (after.hits, after.misses) == (before.hits + 1, before.misses)
    assert substitute(x // 7 + i, {x: 24}) == 3 + i
    assert substitute(W, {x: 23}) is W


@pytest.mark.parametrize("misuse", [lambda: bool(i + 1), lambda: bool(less(i, 3)), lambda: not i])
def test_no_truth_value_by_accident(misuse: Callable[[], object]) -> None:
    with pytest.raises(TypeError, match="no truth value"):
        misuse()


@pytest.mark.parametrize("by", [0, -4, Sym("z", -3, 0)])
def test_division_needs_a_positive_divisor(by: Int) -> None:
    for verb in (floordiv, mod):
        with pytest.raises(ValueError, match="must be positive"):
            verb(x, by)


def test_operators_take_integers_on_either_side() -> None:
    env = {K: 24, i: 5}
    for value, expected in [
        (100 - K, 76),
        (100 // K, 4),
        (100 % K, 4),
        (3 ^ i, 6),
        (i ^ 3, 6),
        (-i, -5),
        (7 * i, 35),
        (2 + i, 7),
    ]:
        assert isinstance(value, Expr)
        assert evaluate(value, env) == expected
