"""Arithmetic of pairs of residues in which ``exp2(x + y) == exp2(x) * exp2(y)``, for kernels of attention.

A float is a pair of integers: one modulo the prime ``P``, one modulo the prime ``Q``, which divides ``P -
1``.  Sums and products act on both.  ``exp2`` raises ``BASE``, whose powers repeat after ``Q``, to the second
integer: so ``exp2(x + y)`` is ``exp2(x) * exp2(y)`` modulo ``P``.  The result is unknown modulo ``Q``, and so
are all numbers computed from it.  Functions, comparisons and results use the first integer.  Scaled weights
give the same averages to the last bit for any choice of the largest exponent and any order of the sums; a key
more or less changes them.

Minus infinity is a separate number, less than all others.  Sums and products with it are minus infinity, and
its power is 0.  The lowest finite number of f32 also counts as minus infinity, because running maxima begin
with it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.dtypes import f32, limits
from tilewright.functions.conversions import Array
from tilewright.targets.reference.residues import POISON, Ring, mixed, some_residue

P, Q = 4294967087, 2147483543
"""The largest prime of 32 bits that is twice a prime plus one, and that prime."""

BASE = 4
"""Base of the powers: a square, whose powers modulo P have period Q."""

UNKNOWN = np.uint64(2**32 - 1)
"""Second integer of a number that is unknown modulo Q."""

LOWEST = np.uint64((2**32 - 2) << 32 | (2**32 - 2))
"""The word of minus infinity."""

LEAST = limits(f32)[0]
"""The lowest finite number of f32."""

_FIRST, _SECOND = (np.asarray(modulus - 2, np.uint64) for modulus in (P, Q))
_P, _Q, _UP, _LOW = np.uint64(P), np.uint64(Q), np.uint64(32), np.uint64(2**32 - 1)
_HALF, _HALVES = np.uint64(16), np.uint64(2**16 - 1)


def pair(high: Array, low: Array) -> Array:
    """Return 64-bit words: ``high``, the integer modulo P, and ``low``, the integer modulo Q."""
    return np.asarray(high << _UP | low)


def first(words: Array) -> Array:
    """Return the integers modulo P."""
    return np.asarray(words) >> _UP


def second(words: Array) -> Array:
    """Return the integers modulo Q, or `UNKNOWN`."""
    return np.asarray(words) & _LOW


def word(integers: Array) -> Array:
    """Return the pairs of residues of unsigned integers of up to 64 bits."""
    return pair(integers % _P, integers % _Q)


def told(words: Array) -> Array:
    """Return the integers modulo P; poison stays poison."""
    return np.where(words == POISON, words, first(words))


def add(left: Array, right: Array) -> Array:
    """``left + right``."""
    return _combined(left, right, np.add)


def multiplied(left: Array, right: Array) -> Array:
    """``left * right``.

    Example:
        >>> seven = word(np.uint64(7))
        >>> int(multiplied(seven, seven)) == int(word(np.uint64(49)))
        True
    """
    return _combined(left, right, np.multiply)


def _combined(left: Array, right: Array, combine: Any) -> Array:
    unknown = (second(left) == UNKNOWN) | (second(right) == UNKNOWN)
    low = np.where(unknown, UNKNOWN, combine(second(left), second(right)) % _Q)
    made = pair(combine(first(left), first(right)) % _P, low)
    return np.where((left == LOWEST) | (right == LOWEST), LOWEST, made)


def negated(words: Array) -> Array:
    """``-words``."""
    unknown = second(words) == UNKNOWN
    made = pair((_P - first(words) % _P) % _P, np.where(unknown, UNKNOWN, (_Q - second(words) % _Q) % _Q))
    return np.where(words == LOWEST, embedded(math.inf), made)


def power(base: Array, exponent: Array, modulus: int) -> Array:
    """``base ** exponent`` of integers modulo a prime of 32 bits.

    Example:
        >>> int(power(np.asarray(3, np.uint64), np.asarray(5, np.uint64), 100))
        43
    """
    n = np.uint64(modulus)
    made, square = np.ones(np.broadcast(base, exponent).shape, np.uint64), np.asarray(base) % n
    for bit in range(32):
        made = np.where(exponent >> np.uint64(bit) & np.uint64(1), made * square % n, made)
        square = square * square % n
    return np.asarray(made)


def inverse(words: Array) -> Array:
    """``1 / words``; the inverse of 0 is 0."""
    known = power(second(words), _SECOND, Q)
    return pair(power(first(words), _FIRST, P), np.where(second(words) == UNKNOWN, UNKNOWN, known))


def exp2(words: Array) -> Array:
    """Return powers of two; a hash if the exponent is unknown modulo Q."""
    made = power(np.asarray(BASE, np.uint64), second(words), P)
    made = np.where(second(words) == UNKNOWN, mixed(first(words)) % _P, made)
    return pair(np.where(words == LOWEST, np.uint64(0), made), np.asarray(UNKNOWN))


def exp(words: Array) -> Array:
    """Return powers of e: ``exp2`` of the words times ``log2(e)``, which is rounded to f64."""
    return exp2(multiplied(words, embedded(math.log2(math.e))))


def matrix_product(a: Array, b: Array) -> Array:
    """``a @ b.T`` of pairs (m, k) and (n, k)."""
    known = [np.where(second(x) == UNKNOWN, np.uint64(0), second(x)) for x in (a, b)]
    rows, columns = ((second(x) == UNKNOWN).any(1) for x in (a, b))
    made = np.where(rows[:, None] | columns[None], UNKNOWN, _product(known[0], known[1], Q))
    return pair(_product(first(a), first(b), P), made)


def _product(a: Array, b: Array, modulus: int) -> Array:
    """Return ``a @ b.T`` modulo a prime, by halves of 16 bits: sums of 2**20 products are exact in f64."""
    n = np.uint64(modulus)
    high_a, high_b = ((x % n >> _HALF).astype(np.float64) for x in (a, b))
    low_a, low_b = ((x % n & _HALVES).astype(np.float64) for x in (a, b))
    middle = (high_a @ low_b.T).astype(np.uint64) + (low_a @ high_b.T).astype(np.uint64)
    total = (high_a @ high_b.T).astype(np.uint64) % n * np.uint64(2**32 % modulus) % n
    total += middle % n * np.uint64(2**16) % n + (low_a @ low_b.T).astype(np.uint64) % n
    return np.asarray(total % n)


def embedded(values: Any) -> Array:
    """Return integers or floats as pairs of residues.  +inf and NaN have hashed pairs, -inf is `LOWEST`."""

    def one(number: float | int) -> int:
        if number <= LEAST:
            return int(LOWEST)
        if not math.isfinite(number):
            return int(word(np.asarray(some_residue(repr(float(number))), np.uint64)))
        exact = Fraction(number)
        high, low = (exact.numerator * pow(exact.denominator, -1, modulus) % modulus for modulus in (P, Q))
        return high << 32 | low

    given = np.asarray(values)
    return np.array([one(number) for number in given.ravel().tolist()], np.uint64).reshape(given.shape)


def order(words: Array) -> Array:
    """Return keys for comparisons: a hash of the first integer, and 0 for minus infinity."""
    return np.where(np.asarray(words) == LOWEST, np.uint64(0), mixed(first(words)))


PAIRS = Ring(
    *(add, negated, multiplied, inverse, matrix_product, embedded),
    functions={"exp": exp, "exp2": exp2},
    word=lambda integers: word(np.asarray(integers)),
    told=told,
    key=first,
    order=order,
)
"""Pairs of integers modulo P and Q."""
