"""Kernels over integers modulo a prime: the order of a sum changes nothing, a missing or added term does.

A float of any dtype is an integer modulo ``2**61 - 1``.  Sums, products and quotients are those of this
field, and conversions between floats change nothing.  So two kernels that compute the same polynomial of
their arrays give the same residues, to the last bit, for any grouping and order of its terms.  Kernels that
compute different polynomials give different residues for random arrays, except with a probability of about
the polynomial's degree over ``2**61``.

Functions that are no polynomials, such as ``exp``, are a hash of the residue: equal for equal arguments.
Over the pairs of `exponentials`, another `Ring`, ``exp`` is a power.  Comparisons and extremes use an order
of residues that is unrelated to their arithmetic.  Integers stay integers, and a conversion makes them
residues.  The unsigned bits of a float are a hash of it, too; a float made from unsigned bits is the number
that they encode.

Source: R. Freivalds, "Probabilistic machines can use less running time", 1977; J. T. Schwartz, "Fast
probabilistic algorithms for verification of polynomial identities", 1980.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from tilewright.dtypes import DType
from tilewright.errors import DTypeError
from tilewright.functions.conversions import Array
from tilewright.functions.table import COMPARISON, TAKE, looked_up
from tilewright.ir.mma import MmaAtom
from tilewright.targets.reference.numbers import Numbers

BITS = 61
PRIME = (1 << BITS) - 1
POISON = np.uint64(2**64 - 1)
"""The word of uninitialised memory, which is no residue."""

_WIDE = np.dtype(np.uint64)
_P, _BITS = np.uint64(PRIME), np.uint64(BITS)
_HALF, _LOW, _UP = np.uint64(31), np.uint64((1 << 31) - 1), np.uint64(30)
_REST = np.uint64((1 << 30) - 1)
_LIMB = 21
"""Bits of a third of a residue: products of two thirds are exact in f64, also summed over 2048 of them."""

_DEEPEST = 1 << 11


def reduced(values: Array) -> Array:
    """Return 64-bit integers modulo the prime."""
    once = (values & _P) + (values >> _BITS)
    return np.asarray(once - _P * (once >= _P))


def add(left: Array, right: Array) -> Array:
    """``left + right`` of residues."""
    return reduced(left + right)


def negated(values: Array) -> Array:
    """``-values`` of residues."""
    return np.where(values == 0, values, _P - values)


def multiplied(left: Array, right: Array) -> Array:
    """``left * right`` of residues, by halves of 31 bits.

    Example:
        >>> at = np.array([PRIME - 1, 3], np.uint64)
        >>> multiplied(at, at).tolist()
        [1, 9]
    """
    a, b = left >> _HALF, left & _LOW
    c, d = right >> _HALF, right & _LOW
    middle = a * d + b * c
    # Modulo the prime 2**61 is 1, so a * c * 2**62 is 2 * a * c, and middle * 2**31 is split at bit 30.
    total = reduced(np.uint64(2) * a * c) + reduced((middle >> _UP) + ((middle & _REST) << _HALF))
    return reduced(total + reduced(b * d))


def matrix_product(a: Array, b: Array) -> Array:
    """``a @ b.T`` of residues (m, k) and (n, k): nine exact products of thirds."""
    total = np.zeros((len(a), len(b)), np.uint64)
    mask = np.uint64((1 << _LIMB) - 1)
    for start in range(0, a.shape[1], _DEEPEST):
        left, right = (
            [((part >> np.uint64(i * _LIMB)) & mask).astype(np.float64) for i in range(3)]
            for part in (reduced(x[:, start : start + _DEEPEST]) for x in (a, b))
        )
        for place in range(5):
            pairs = ((i, place - i) for i in range(3) if 0 <= place - i < 3)
            part = reduced(np.asarray(sum((left[i] @ right[j].T).astype(np.uint64) for i, j in pairs)))
            by = np.uint64(place * _LIMB % BITS)  # a rotation multiplies by a power of two
            total = add(total, reduced(((part << by) & _P) | (part >> (_BITS - by))))
    return total


def residue(value: float | int) -> int:
    """Return a finite number as a residue: a fraction whose denominator is a power of two.

    Example:
        >>> residue(-1) == PRIME - 1, residue(0.5) * 2 % PRIME
        (True, 1)
    """
    exact = Fraction(value)
    return exact.numerator * pow(exact.denominator, -1, PRIME) % PRIME


def embedded(values: Any) -> Array:
    """Return integers or floats as residues; infinities and NaN have residues of their own."""
    given = np.asarray(values)
    if given.dtype.kind in "ui" and given.dtype.itemsize <= 8:
        whole = reduced(np.abs(given.astype(np.int64)).astype(np.uint64))
        return np.where(given < 0, negated(whole), whole) if given.dtype.kind == "i" else whole
    wide = given.astype(np.float64)
    found = [residue(x) if np.isfinite(x) else some_residue(repr(float(x))) for x in wide.ravel().tolist()]
    return np.array(found, np.uint64).reshape(wide.shape)


def some_residue(name: str) -> int:
    """Return a residue that stands for a name: a hash."""
    return int(mixed(np.uint64(zlib.crc32(name.encode()) + 1)))


def mixed(values: Any) -> Array:
    """Return a hash of residues; neighbouring residues have unrelated hashes.

    Source: S. Vigna's splitmix64.
    """
    with np.errstate(over="ignore"):
        z = np.asarray(values, np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return reduced(z ^ (z >> np.uint64(31)))


def inverse(values: Array) -> Array:
    """``1 / values`` of residues, as the power ``PRIME - 2``; the inverse of 0 is 0."""
    made, power, exponent = np.ones_like(values), values, PRIME - 2
    while exponent:
        if exponent & 1:
            made = multiplied(made, power)
        power, exponent = multiplied(power, power), exponent >> 1
    return made


@dataclass(frozen=True)
class Ring:
    """A ring that replaces floats, in words of 64 bits.

    Args:
        add: returns the sum of two words. ``negated``, ``multiplied``, ``inverse`` and ``matrix_product`` are
            functions of words, too.
        embedded: words of integers or floats.
        functions: functions of words, by name, that do not follow from sums, products and quotients.
        word: words for random integers below `PRIME`.
        told: the integers that a caller sees for words.
        key: the part of words that functions and comparisons use.
        order: key by which words are compared.
    """

    add: Callable[[Array, Array], Array]
    negated: Callable[[Array], Array]
    multiplied: Callable[[Array, Array], Array]
    inverse: Callable[[Array], Array]
    matrix_product: Callable[[Array, Array], Array]
    embedded: Callable[[Any], Array]
    functions: Mapping[str, Callable[..., Array]] = field(default_factory=dict)
    word: Callable[[Array], Array] = np.asarray
    told: Callable[[Array], Array] = np.asarray
    key: Callable[[Array], Array] = np.asarray
    order: Callable[[Array], Array] = mixed

    def function(self, name: str, operands: Sequence[Array]) -> Array:
        """Return a function of words; without a rule, a hash of its name and arguments."""
        known: dict[str, Callable[..., Array]] = {
            "add": self.add,
            "sub": lambda x, y: self.add(x, self.negated(y)),
            "mul": self.multiplied,
            "neg": self.negated,
            "fma": lambda x, y, z: self.add(self.multiplied(x, y), z),
            "div": lambda x, y: self.multiplied(x, self.inverse(y)),
            "min": self.least,
            "max": self.largest,
            **self.functions,
        }
        return known[name](*operands) if name in known else self.word(self.some(name, operands))

    def least(self, left: Array, right: Array) -> Array:
        """Return the smaller word in the order of the ring."""
        return np.where(self.order(left) <= self.order(right), left, right)

    def largest(self, left: Array, right: Array) -> Array:
        """Return the larger word in the order of the ring."""
        return np.where(self.order(left) <= self.order(right), right, left)

    def some(self, name: str, operands: Sequence[Array]) -> Array:
        """Return a hash of a function's name and arguments: integers below `PRIME`."""
        made: Array = np.asarray(np.uint64(some_residue(name)))
        for operand in map(self.key, operands):
            made = mixed(add(multiplied(made, np.asarray(3, np.uint64)), operand))
        return made

    def compare(self, name: str, left: Array, right: Array) -> Array:
        """Return the result of a comparison of words, such as ``"less"``."""
        if name in ("equal", "not_equal"):
            left, right = self.key(left), self.key(right)
        else:
            left, right = self.order(left), self.order(right)
        made: Array = getattr(np, name)(left, right)
        return made


MODULO_PRIME = Ring(add, negated, multiplied, inverse, matrix_product, embedded)
"""Integers modulo `PRIME`."""


class Residues(Numbers):
    """The arithmetic of a ring for floats of any dtype, in 64 bits each; integers stay integers."""

    in_bytes = False

    def __init__(self, ring: Ring = MODULO_PRIME) -> None:
        self.ring = ring

    def storage(self, dtype: DType) -> np.dtype[Any]:
        """Return the 64-bit dtype of words for a float.

        Raises:
            DTypeError: complex numbers, or several numbers in a byte.
        """
        if not dtype.is_float:
            return dtype.numpy
        if dtype.components > 1 or dtype.is_packed:
            near = "real floats of 8 bits and more, such as the planes of complex numbers"
            raise DTypeError(f"{dtype} has no residues modulo 2**61 - 1", near)
        return _WIDE

    def poison(self, dtype: DType, shape: int | tuple[int, ...]) -> Array:
        """Return the words that are no residues."""
        return np.full(shape, POISON, self.storage(dtype)) if dtype.is_float else super().poison(dtype, shape)

    def number(self, value: float | int, dtype: DType) -> Array:
        """Return a plain number as a word."""
        return self.ring.embedded(value) if dtype.is_float else super().number(value, dtype)

    def scalar(self, value: Array, dtype: DType) -> Array:
        """Return a number that the caller passed as a word."""
        return self.ring.embedded(value) if dtype.is_float else value

    def convert(self, values: Array, source: DType, target: DType) -> Array:
        """Keep floats; convert a float to an integer by a hash of its word."""
        if source.is_float and target.is_float:
            return values
        if target.is_float:
            return self.ring.embedded(values)
        if not source.is_float:
            return super().convert(values, source, target)
        if target.kind == "bool":
            return np.asarray(self.ring.key(values) != 0)
        return self.ring.some("to integer", [values]).astype(target.numpy)

    @np.errstate(over="ignore")
    def elementwise(
        self, function: str, operands: Sequence[Any], dtypes: Sequence[DType | None], result: DType
    ) -> Array:
        """Compute polynomials and quotients in the field, and other functions by a hash."""
        known = [dtype for dtype in dtypes if dtype is not None]
        if not result.is_float and not any(dtype.is_float for dtype in known):
            return super().elementwise(function, operands, dtypes, result)
        if function == "bitcast":
            # A float becomes a hash of its value, and unsigned bits the residue of their float.  So a kernel
            # may multiply by a power of 2 made from bits, and by its inverse, without a change.
            values, source = np.asarray(operands[0]), known[0]
            if source.is_float and result.kind == "uint":
                return self.ring.some("bits", [values]).astype(result.numpy)
            if result.is_float and source.kind == "uint":
                return self.ring.embedded(values.astype(source.numpy).view(result.numpy))
            raise DTypeError(f"bits of {source} as {result}: residues modulo 2**61 - 1 have none")
        if function in ("convert", "saturate"):
            kind, value = dtypes[0], operands[0]
            return self.ring.embedded(value) if kind is None else self.convert(value, kind, result)
        if function == "select":
            arms = [self._held(*pair) for pair in zip(operands[1:], dtypes[1:], strict=True)]
            return np.where(np.asarray(operands[0]), *arms)
        if function == TAKE:
            table = [self._held(*pair).item() for pair in zip(operands[1:], dtypes[1:], strict=True)]
            return looked_up(np.asarray(operands[0]), np.array(table, np.uint64))
        held = [self._held(*pair) for pair in zip(operands, dtypes, strict=True)]
        if function in COMPARISON:
            return self.ring.compare(function, *held)
        return self.ring.function(function, held)

    def _held(self, value: Any, kind: DType | None) -> Array:
        """Return an operand as words."""
        return np.asarray(value) if kind is not None and kind.is_float else self.ring.embedded(value)

    @np.errstate(over="ignore")
    def multiply_add(self, atom: MmaAtom, a: Array, b: Array, c: Array, negative: bool = False) -> Array:
        """Return exact sums of products."""
        if not atom.c_dtype.is_float:
            return super().multiply_add(atom, a, b, c, negative)
        kinds = (atom.a_dtype, a), (atom.b_dtype, b)
        made = self.ring.matrix_product(*(self._held(values, kind) for kind, values in kinds))
        return self.ring.add(self.ring.negated(made) if negative else made, c)

    @np.errstate(over="ignore")
    def reduce_into(self, dtype: DType, elements: Array, at: Array, values: Array, kind: str) -> None:
        """Combine elements of memory with values, one after the other."""
        if not dtype.is_float:
            super().reduce_into(dtype, elements, at, values, kind)
            return
        combine = self.combine(kind, dtype)
        for number, value in zip(at.ravel().tolist(), values.ravel(), strict=True):
            elements[number] = combine(elements[number], value)

    def widen(self, values: Array, dtype: DType) -> Array:
        """Return the values unchanged."""
        return values if dtype.is_float else super().widen(values, dtype)

    def narrowed(self, values: Array, dtype: DType) -> Array:
        """Return the values unchanged."""
        return values if dtype.is_float else super().narrowed(values, dtype)

    def combine(self, function: str, dtype: DType) -> Callable[[Array, Array], Array]:
        """Return the sum, minimum or maximum of residues."""
        if not dtype.is_float:
            return super().combine(function, dtype)
        name = "add" if function == "sum" else function
        return lambda left, right: self.ring.function(name, [left, right])
