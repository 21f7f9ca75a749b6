"""Philox 4x32-10, a random number generator that is a function of a key and a counter; in NumPy."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np

from tilewright.calls import launches
from tilewright.dtypes import DType, u64
from tilewright.errors import LaunchError, shown
from tilewright.functions.function import Function

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
"""Factors of the first and the third word of the counter, in every round."""

WEYL = (0x9E3779B9, 0xBB67AE85)
"""Increments of the two halves of the key between rounds."""

_LOW = np.uint64((1 << 32) - 1)
_HALF = np.uint64(32)


def rounds(counter: tuple[Array, ...], key: tuple[Any, Any]) -> tuple[Array, ...]:
    """Encrypt a counter of four words to four random words.

    Args:
        counter: four arrays of numbers below ``2**32``.
        key: two numbers, or arrays of them, below ``2**32``.

    Example:
        The first of the published answers:

        >>> zero = np.zeros(1, np.uint64)
        >>> [hex(int(word[0])) for word in rounds((zero, zero, zero, zero), (0, 0))]
        ['0x6627e8d5', '0xe169c58d', '0xbc57ac4c', '0x9b00dbd8']
    """
    words = [np.asarray(word, np.uint64) for word in counter]
    for turn in range(ROUNDS):
        steps = (np.uint64(turn * step) for step in WEYL)
        low, high = ((np.asarray(own, np.uint64) + step) & _LOW for own, step in zip(key, steps, strict=True))
        first, second = (words[2 * i] * np.uint64(MULTIPLIERS[i]) for i in range(2))
        words = [
            (second >> _HALF) ^ words[1] ^ low,
            second & _LOW,
            (first >> _HALF) ^ words[3] ^ high,
            first & _LOW,
        ]
    return tuple(words)


def _random_bits(index: Array, seed: Array, offset: Array) -> Array:
    """NumPy meaning of the row ``random_bits``: bits in the lower half of u64."""
    index, seed, offset = np.broadcast_arrays(index, seed, offset)
    block = index >> np.uint64(2)
    counter = (block & _LOW, block >> _HALF, offset & _LOW, offset >> _HALF)
    words = rounds(counter, (seed & _LOW, seed >> _HALF))
    return np.asarray(np.choose((index & np.uint64(3)).astype(np.intp), words))


def _u64(kind: DType) -> str:
    return "" if kind == u64 else "needs u64; convert first"


RANDOM = (
    Function("random_bits", 3, _u64, _random_bits, non_negative=True),
    Function(
        *("random_at_least", 4, _u64),
        lambda index, seed, offset, threshold: np.asarray(_random_bits(index, seed, offset) >= threshold),
        gives="truth",
    ),
)

PIECES = {
    "random_words": f"""\
void random_words(
    unsigned long long block, unsigned long long seed, unsigned long long offset, unsigned* words) {{
  // Philox 4x32-{ROUNDS}: the four words of the counter (block, offset).
  unsigned w0 = (unsigned)block, w1 = (unsigned)(block >> 32);
  unsigned w2 = (unsigned)offset, w3 = (unsigned)(offset >> 32);
  unsigned low = (unsigned)seed, high = (unsigned)(seed >> 32);
  for (int turn = 0; turn < {ROUNDS}; ++turn) {{
    const unsigned long long first = {MULTIPLIERS[0]}ull * w0, second = {MULTIPLIERS[1]}ull * w2;
    w0 = (unsigned)(second >> 32) ^ w1 ^ low;
    w1 = (unsigned)second;
    w2 = (unsigned)(first >> 32) ^ w3 ^ high;
    w3 = (unsigned)first;
    low += {WEYL[0]}u;
    high += {WEYL[1]}u;
  }}
  words[0] = w0;
  words[1] = w1;
  words[2] = w2;
  words[3] = w3;
}}""",
    "random_bits": """\
unsigned long long random_bits(
    unsigned long long index, unsigned long long seed, unsigned long long offset) {
  unsigned words[4];
  random_words(index >> 2, seed, offset, words);
  const unsigned which = (unsigned)index & 3;
  return which < 2 ? which == 0 ? words[0] : words[1] : which == 2 ? words[2] : words[3];
}""",
    "random_at_least": """\
bool random_at_least(unsigned long long index, unsigned long long seed, unsigned long long offset,
    unsigned long long threshold) {
  return random_bits(index, seed, offset) >= threshold;
}""",
    "four_at_least": """\
unsigned four_at_least(unsigned long long index, unsigned long long seed, unsigned long long offset,
    unsigned long long threshold) {
  // A bit for each of four neighbours; the index of the first is a multiple of 4.
  unsigned words[4];
  random_words(index >> 2, seed, offset, words);
  return (words[0] >= threshold ? 1u : 0u) | (words[1] >= threshold ? 2u : 0u)
      | (words[2] >= threshold ? 4u : 0u) | (words[3] >= threshold ? 8u : 0u);
}""",
}
"""The generator in C++: functions without qualifiers, by name."""


@launches
def philox(index: Any, seed: Any, offset: Any = 0) -> Array:
    """Compute with NumPy the 32 random bits for each index that `tw.random_bits` computes in a kernel.

    Args:
        index: integers, not negative.
        seed: the key, an integer from 0 to ``2**64 - 1``.
        offset: the upper half of the counter, an integer from 0 to ``2**64 - 1``.

    Returns:
        An array of u32 of the shape of ``index``.

    Raises:
        LaunchError: the seed, the offset or an index is not an integer, or lies outside its range.

    Example:
        >>> kept = philox(np.arange(100_000), seed=1) >= 2**32 // 10
        >>> bool(abs(kept.mean() - 0.9) < 0.003)
        True
    """
    try:
        place = np.asarray(index)
    except (ValueError, MemoryError) as error:
        why = "does not fit the memory" if isinstance(error, MemoryError) else "is no array"
        raise LaunchError(f"philox: index={shown(index)} {why}", "an array of integers from 0 on") from None
    if place.dtype.kind not in "iu" or (place < 0).any():
        raise LaunchError(f"philox: index={shown(index)}", "integers from 0 on")
    for name, number in (("seed", seed), ("offset", offset)):
        if isinstance(number, bool) or not isinstance(number, int | np.integer):
            raise LaunchError(f"philox: {name}={shown(number)}", "an integer")
        if not 0 <= number < 2**64:
            nearest = min(max(int(number), 0), 2**64 - 1)
            raise LaunchError(f"philox: {name}={shown(number)}", nearest)
    place = place.astype(np.uint64)
    key, upper = (np.asarray(number, np.uint64) for number in (seed, offset))
    return _random_bits(place, key, upper).astype(np.uint32)
