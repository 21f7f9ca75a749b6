"""Atomic operations: the lanes one after another, in the order of waves and lanes (an assumed order)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn.rounding import bf16_bits, from_bf16, larger, smaller
from tilewright.amdgcn.space import Space
from tilewright.amdgcn.state import Array


def _inc(old: Any, value: Any) -> Any:
    return np.where(old >= value, old.dtype.type(0), old + old.dtype.type(1))


def _dec(old: Any, value: Any) -> Any:
    return np.where((old == 0) | (old > value), value, old - old.dtype.type(1))


def _pair(function: Any) -> Any:
    """A function of the lower and of the upper 16 bits of words."""

    def both(old: Any, value: Any) -> Any:
        low, high = (
            function(*((x >> np.uint32(s)).astype(np.uint16) for x in (old, value))).astype(np.uint32)
            for s in (0, 16)
        )
        return low | (high << np.uint32(16))

    return both


def _add_half(a: Any, b: Any) -> Any:
    return (a.view(np.float16) + b.view(np.float16)).view(np.uint16)


def _add_bf16(a: Any, b: Any) -> Any:
    return bf16_bits(from_bf16(a) + from_bf16(b))


_PLAIN: dict[str, Any] = {
    "add": np.add,
    "sub": np.subtract,
    "rsub": lambda old, value: value - old,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "swap": lambda old, value: value,
    "inc": _inc,
    "dec": _dec,
}
_ORDERED = {"min": np.minimum, "max": np.maximum}


def _table() -> dict[str, tuple[str, Any]]:
    """The dtype and the meaning of each operation, by what follows ``atomic_`` or ``ds_``."""
    table: dict[str, tuple[str, Any]] = {}
    for name, function in _PLAIN.items():
        table[name], table[f"{name}_x2"] = ("u4", function), ("u8", function)
        for bits, dtype in (("32", "u4"), ("64", "u8")):
            for letter in "ubi":
                table[f"{name}_{letter}{bits}"] = (dtype, function)
    for name, function in _ORDERED.items():
        for letter, sign in (("u", "u"), ("s", "i")):
            table[f"{letter}{name}"], table[f"{letter}{name}_x2"] = (
                (f"{sign}4", function),
                (f"{sign}8", function),
            )
        for letter in "ui":
            table[f"{name}_{letter}32"], table[f"{name}_{letter}64"] = (
                (f"{letter}4", function),
                (f"{letter}8", function),
            )
    for bits, dtype in (("32", "f4"), ("64", "f8")):
        table[f"add_f{bits}"] = (dtype, np.add)
        table[f"max_f{bits}"], table[f"min_f{bits}"] = (dtype, larger), (dtype, smaller)
    table["pk_add_f16"], table["pk_add_bf16"] = ("u4", _pair(_add_half)), ("u4", _pair(_add_bf16))
    for name in ("storexchg_b32", "wrxchg_b32"):
        table[name] = ("u4", _PLAIN["swap"])
    for name in ("storexchg_b64", "wrxchg_b64"):
        table[name] = ("u8", _PLAIN["swap"])
    return table


ATOMICS = _table()
COMPARING = {
    "cmpswap": "u4", "cmpswap_x2": "u8", "cmpswap_b32": "u4", "cmpswap_b64": "u8",
    "cmpst_b32": "u4", "cmpst_b64": "u8", "cmpstore_b32": "u4", "cmpstore_b64": "u8",
}  # fmt: skip
"""Operations that store where what is there equals a number."""


def apply(space: Space, places: Array, dtype: str, function: Any, values: list[Array], mask: Array) -> Array:
    """Performs an operation in each active lane in turn.

    Args:
        space: the memory.
        places: of the lanes.
        dtype: of the numbers.
        function: the new number from the old one and those of the lane.
        values: numbers of the lanes.
        mask: which lanes are active.

    Returns:
        The old numbers.
    """
    size = np.dtype(dtype).itemsize
    view = space.octets.view(dtype)
    at = places[mask] // size
    given = [np.broadcast_to(value, mask.shape)[mask] for value in values]
    old = np.zeros(at.shape, dtype)
    left = np.arange(len(at))
    while len(left):
        _, first = np.unique(at[left], return_index=True)
        turn = left[first]
        old[turn] = view[at[turn]]
        view[at[turn]] = function(old[turn], *(value[turn] for value in given))
        left = np.delete(left, first)
    result = np.zeros(mask.shape, dtype)
    result[mask] = old
    return result
