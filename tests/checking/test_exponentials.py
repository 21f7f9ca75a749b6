"""Pairs of residues have the laws of powers that averages weighted by exponentials need."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import tilewright as tw
from tilewright.ops.attending.flow import BySoftmax, Scores, attention
from tilewright.schedule.schedule import Schedule
from tilewright.targets.reference.exponentials import (
    BASE,
    LOWEST,
    PAIRS,
    UNKNOWN,
    P,
    Q,
    exp2,
    first,
    matrix_product,
    second,
    told,
    word,
)
from tilewright.targets.reference.residues import POISON
from tilewright.testing import compare_algebra, residues

rng = np.random.default_rng(5)


def drawn(*shape: int) -> Any:
    """Return integers below 2**61 as Python's, and as pairs."""
    integers = rng.integers(0, 2**61, shape, np.uint64)
    return integers.astype(object), word(integers)


def same(words: Any, integers: Any) -> None:
    assert (first(words).astype(object) == integers % P).all()
    assert (second(words).astype(object) == integers % Q).all()


def test_primes_and_the_order_of_the_base() -> None:
    assert P == 2 * Q + 1
    assert all(pow(3, n - 1, n) == 1 == pow(5, n - 1, n) for n in (P, Q))
    assert all(n % small for n in (P, Q) for small in range(2, 2**16 + 1))
    assert pow(BASE, Q, P) == 1 != BASE


def test_sums_products_and_quotients_of_both_integers() -> None:
    (x, a), (y, b) = drawn(50), drawn(50)
    same(PAIRS.add(a, b), x + y)
    same(PAIRS.multiplied(a, b), x * y)
    same(PAIRS.negated(a), -x)
    same(PAIRS.multiplied(PAIRS.function("div", [a, b]), b), x)
    (left, c), (right, d) = drawn(7, 90), drawn(5, 90)
    same(matrix_product(c, d), left @ right.T)
    same(PAIRS.embedded([0.5, -3.0]), np.array([pow(2, -1, P * Q), -3], object))


def test_powers_are_powers() -> None:
    (_, a), (_, b) = drawn(50), drawn(50)
    for function in ("exp2", "exp"):
        power = PAIRS.functions[function]
        both = PAIRS.multiplied(power(a), power(b))
        assert (power(PAIRS.add(a, b)) == both).all()
        assert (second(both) == UNKNOWN).all()
    assert first(exp2(word(np.uint64(1)))) == BASE
    again = exp2(both)
    assert (first(again) != first(exp2(a))).all()
    assert (again == exp2(both)).all()


def test_minus_infinity() -> None:
    _, a = drawn(50)
    lowest = PAIRS.embedded(-math.inf)
    assert lowest == LOWEST
    assert (PAIRS.add(a, lowest) == LOWEST).all()
    assert (PAIRS.function("max", [a, np.broadcast_to(lowest, a.shape)]) == a).all()
    assert (PAIRS.function("min", [a, np.broadcast_to(lowest, a.shape)]) == LOWEST).all()
    assert PAIRS.compare("less", lowest, a).all()
    assert first(exp2(lowest)) == 0
    assert PAIRS.negated(lowest) != LOWEST
    assert told(np.array([POISON, a[0]])).tolist() == [POISON, a[0] >> np.uint64(32)]


def test_tiles_of_attention_are_the_same_over_pairs_alone() -> None:
    """Residues of one prime have no powers; another scale, or a missing key, gives another average."""
    shapes = ((1, 40, 16), (50, 16), (50, 24), (1, 40, 24))
    like = [tw.like("f16", 1, 1, *shape) for shape in shapes] + [tw.like("f32", 1, 1, 1, 40)]
    # Subtracts first: an exponent chosen by a comparison is no polynomial.
    words = {"scores": Scores(causal=False), "between": BySoftmax(power=0.0), "with_lse": False}
    ways = [
        attention.bind(
            **words,
            schedule=Schedule(tw.atoms.MMA_F16, (32, keys, 16), (2, 1), width=24, resident=True),
        )
        for keys in (16, 32)
    ]
    numbers = {"exponent": 0.25, "diagonal": 0}
    compare_algebra(*ways, *like, **numbers, exponentials=True).raise_if_wrong()
    assert not compare_algebra(*ways, *like, **numbers).ok
    one, other = (
        residues(ways[0], *like, exponent=exponent, diagonal=0, exponentials=True)["O"]
        for exponent in (0.25, 0.5)
    )
    assert (one != other).all()
