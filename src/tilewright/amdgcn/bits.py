"""Words of which some bits are undefined: which bits of a logical operation's result are."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.amdgcn.state import Array


@dataclass(frozen=True, slots=True)
class Partly:
    """A word and its undefined bits: a bit that the defined operand alone decides is defined.

    Args:
        value: the word.
        unknown: a 1 for each undefined bit.
    """

    value: Any
    unknown: Any

    def __and__(self, other: Partly) -> Partly:
        unknown = (self.unknown | other.unknown) & (self.value | self.unknown) & (other.value | other.unknown)
        return Partly(self.value & other.value, unknown)

    def __or__(self, other: Partly) -> Partly:
        return ~(~self & ~other)

    def __xor__(self, other: Partly) -> Partly:
        return Partly(self.value ^ other.value, self.unknown | other.unknown)

    def __invert__(self) -> Partly:
        return Partly(~self.value, self.unknown)

    def lower(self, bits: int) -> Partly:
        """Of which nothing but so many lower bits is used."""
        return Partly(self.value, self.unknown & self.unknown.dtype.type((1 << bits) - 1))

    def moved(self, move: Callable[[Any, Any], Any], by: Partly) -> Partly:
        """Bits moved by an amount; all are undefined where the amount is."""
        unknown = move(self.unknown, by.value)
        if np.any(by.unknown):
            unknown = np.where(by.unknown != 0, np.array(-1).astype(unknown.dtype), unknown)
        return Partly(move(self.value, by.value), unknown)


def tracked(meaning: Callable[..., Partly]) -> Callable[[Sequence[Array], Sequence[Array | None]], Array]:
    """The tracking of a result that is computed bit by bit, from its meaning on partly defined words."""

    def track(values: Sequence[Array], shadows: Sequence[Array | None]) -> Array:
        words = []
        for value, shadow in zip(values, shadows, strict=True):
            if value.dtype != np.bool_:
                value = value.view(np.dtype(f"u{value.dtype.itemsize}"))
            words.append(
                Partly(value, np.zeros((1,) * value.ndim, value.dtype) if shadow is None else shadow)
            )
        return np.asarray(meaning(*words).unknown)

    return track


def upward(*words: Partly) -> Partly:
    """A sum, a difference or a product: undefined from the lowest bit on that is so in an operand."""
    unknown = words[0].unknown
    for word in words[1:]:
        unknown = unknown | word.unknown
    return Partly(words[0].value, ~unknown + unknown.dtype.type(1) | unknown)


def chosen(no: Partly, yes: Partly, mask: Partly) -> Partly:
    """One of two words by a mask; undefined where the mask is and where the chosen word is."""
    unknown = np.where(mask.value, yes.unknown, no.unknown)
    unknown = np.where(mask.unknown, np.array(-1).astype(unknown.dtype), unknown)
    return Partly(np.where(mask.value, yes.value, no.value), unknown)
