"""A row for each mnemonic that computes results of its operands alone: kinds of both, and the meaning."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.amdgcn.steps import Compute, Track


@dataclass(frozen=True, slots=True)
class Row:
    """One instruction.

    Args:
        results: kinds of what it writes.
        operands: kinds of what it reads.
        compute: the results from the operands.
        track: undefined bits of the result; by default all, where any bit of an operand is undefined.
        accumulates: it also reads what it writes, as its last operand.
        keeps: on gfx9, too, a result of 16 bits leaves the other half as it was.
    """

    results: tuple[str, ...]
    operands: tuple[str, ...]
    compute: Compute
    track: Track | None = None
    accumulates: bool = False
    keeps: bool = False


def row(spelled: str, compute: Compute, track: Track | None = None, keeps: bool = False) -> Row:
    """A row from kinds as ``"f32 = f32 f32"``; ``+=`` for one that also reads what it writes."""
    results, accumulates, operands = spelled.partition("+=")
    if not accumulates:
        results, _, operands = spelled.partition("=")
    return Row(tuple(results.split()), tuple(operands.split()), compute, track, bool(accumulates), keeps)


def left(value: Any, by: Any) -> Any:
    """``value << by``, of which the amount's lower bits count."""
    bits = value.dtype.itemsize * 8
    return value << (by & by.dtype.type(bits - 1)).astype(value.dtype)


def right(value: Any, by: Any) -> Any:
    """``value >> by``, by its sign where it has one."""
    bits = value.dtype.itemsize * 8
    return value >> (by & by.dtype.type(bits - 1)).astype(value.dtype)


def field_of(value: Any, first: Any, count: Any) -> Any:
    """`count` bits of a word from bit `first` on, sign-extended where the word has a sign."""
    first, count = first.astype(np.int64) & 31, count.astype(np.int64) & 31
    wide = value.astype(np.int64) >> first
    part = wide & ((np.int64(1) << count) - 1)
    if value.dtype.kind == "i":
        sign = np.where(count > 0, np.int64(1) << np.maximum(count - 1, 0), 0)
        part = (part ^ sign) - sign
    return part.astype(value.dtype)
