"""Vector instructions on two numbers in one register, sums of products of small numbers, and mixed formats.

``op_sel`` and ``op_sel_hi`` select the halves of the operands for the lower and the upper result; ``neg_lo``
and ``neg_hi`` negate them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.amdgcn.floats import fma, larger, smaller
from tilewright.amdgcn.operands import ListingOperand
from tilewright.amdgcn.readers import OperandReader
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import left, right

_TWO: dict[str, tuple[str, int, Any]] = {
    "add_f16": ("f16", 2, np.add),
    "mul_f16": ("f16", 2, np.multiply),
    "fma_f16": ("f16", 3, fma),
    "fmac_f16": ("f16", 3, fma),
    "max_f16": ("f16", 2, larger),
    "min_f16": ("f16", 2, smaller),
    "add_u16": ("u16", 2, np.add),
    "sub_u16": ("u16", 2, np.subtract),
    "add_i16": ("i16", 2, np.add),
    "sub_i16": ("i16", 2, np.subtract),
    "mul_lo_u16": ("u16", 2, np.multiply),
    "mad_u16": ("u16", 3, lambda a, b, c: a * b + c),
    "mad_i16": ("i16", 3, lambda a, b, c: a * b + c),
    "max_u16": ("u16", 2, np.maximum),
    "min_u16": ("u16", 2, np.minimum),
    "max_i16": ("i16", 2, np.maximum),
    "min_i16": ("i16", 2, np.minimum),
    "lshlrev_b16": ("u16", 2, lambda a, b: left(b, a)),
    "lshrrev_b16": ("u16", 2, lambda a, b: right(b, a)),
    "ashrrev_i16": ("i16", 2, lambda a, b: right(b, a)),
    "add_f32": ("f32", 2, np.add),
    "mul_f32": ("f32", 2, np.multiply),
    "fma_f32": ("f32", 3, fma),
    "mov_b32": ("u32", 2, lambda a, b: a),
}
PACKED = {f"v_pk_{name}": meaning for name, meaning in _TWO.items()}


def choices(modifiers: dict[str, str], name: str, count: int, default: int) -> list[int]:
    """Return the list of a modifier such as ``op_sel:[0,1]``, or its default for each operand."""
    spelled = modifiers.get(name)
    found = [] if spelled is None else [int(word) for word in spelled.strip("[]").split(",")]
    return (found + [default] * count)[:count]


class HalfReader(OperandReader):
    """Reads one half of an operand that holds two numbers.

    Args:
        item: the operand.
        kind: type of both numbers.
        high: read the upper half.
        negated: negate the number.
    """

    def __init__(self, item: ListingOperand, kind: str, high: bool, negated: bool) -> None:
        self.wide = kind.endswith("32")
        self.high_half, self.negated = bool(high), bool(negated)
        super().__init__(item, "u64" if self.wide else "u32", vector=True)
        self.of = np.dtype({"f16": "f2", "u16": "u2", "i16": "i2", "f32": "f4", "u32": "u4"}[kind])
        if self.constant is not None and item.bank == "float" and kind in ("f16", "f32"):
            raw = np.array(item.number, self.of).view(np.dtype(f"u{self.of.itemsize}"))
            self.constant = np.full((1, 1), raw, self.constant.dtype)

    def _modified(self, value: Array) -> Array:
        return value

    def __call__(self, waves: Waves) -> Array:
        """The numbers of the operand in the selected waves."""
        value = self._half(super().__call__(waves)).view(self.of)
        if self.negated:
            value = -value
        if self.item.absolute:
            value = np.abs(value)
        return -value if self.item.negative else value

    def _half(self, words: Array) -> Array:
        part = words >> words.dtype.type(32 if self.wide else 16) if self.high_half else words
        return part.astype(np.dtype(f"u{self.of.itemsize}"))

    def undefined(self, waves: Waves) -> Array | None:
        """Return the undefined bits of the numbers."""
        found = super().undefined(waves)
        return None if found is None else self._half(found)


def packed_readers(operands: list[ListingOperand], kind: str, modifiers: dict[str, str]) -> list[HalfReader]:
    """Return the readers of the lower numbers of all operands, then of the upper ones."""
    count = len(operands)
    readers = []
    for sel, neg, default in (("op_sel", "neg_lo", 0), ("op_sel_hi", "neg_hi", 1)):
        halves, negated = choices(modifiers, sel, count, default), choices(modifiers, neg, count, 0)
        readers += [
            HalfReader(item, kind, bool(half), bool(minus) and kind[0] == "f")
            for item, half, minus in zip(operands, halves, negated, strict=True)
        ]
    return readers


def joined(low: Any, high: Any) -> Any:
    """Return two numbers as one of twice their width."""
    bits = low.dtype.itemsize * 8
    wide = np.dtype(f"u{low.dtype.itemsize * 2}")
    narrow = np.dtype(f"u{low.dtype.itemsize}")
    lower, upper = (np.ascontiguousarray(part).view(narrow).astype(wide) for part in (low, high))
    return lower | (upper << wide.type(bits))


def mixed(a: Any, b: Any, c: Any) -> Any:
    """``a * b + c`` in f32; each operand is f16 or f32."""
    return fma(a.astype(np.float32), b.astype(np.float32), c.astype(np.float32))


def bytes_of(words: Any, signed: bool) -> Any:
    """Return the four bytes of words as integers, along a new last axis."""
    octets = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)
    return (octets.view(np.int8) if signed else octets).astype(np.int64)


def nibbles_of(words: Any, signed: bool) -> Any:
    """Return the eight numbers of 4 bits of words, the first in the lowest bits, along a new last axis."""
    parts = np.stack([(words >> np.uint32(4 * i)) & np.uint32(15) for i in range(8)], -1).astype(np.int64)
    return np.where(parts > 7, parts - 16, parts) if signed else parts


def dot_of_bytes(signs: tuple[bool, bool], clamp: bool = False) -> Callable[..., Any]:
    """Return the dot product of two words of four bytes, plus an integer."""

    def compute(a: Any, b: Any, c: Any) -> Any:
        total = (bytes_of(a, signs[0]) * bytes_of(b, signs[1])).sum(-1) + c.astype(np.int64)
        if clamp:
            low, high = (-(2**31), 2**31 - 1) if any(signs) else (0, 2**32 - 1)
            total = np.clip(total, low, high)
        return total.astype(np.uint32)

    return compute


def dot_of_halves(a_low: Any, b_low: Any, c: Any, a_high: Any, b_high: Any) -> Any:
    """Return the sum of two products of f16 and an f32, rounded after each (an assumed order)."""
    low = fma(a_low.astype(np.float32), b_low.astype(np.float32), c)
    return fma(a_high.astype(np.float32), b_high.astype(np.float32), low)
