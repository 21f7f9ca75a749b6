"""Readers of operands and writers of results, with their undefined bits.

A kind names the type of an operand: ``u32``, ``i32``, ``f32``, ``u16``, ``i16``, ``f16``, ``u64``, ``i64``,
``f64``, ``mask`` (one bit for each lane), ``pk16`` (two numbers of 16 bits), ``wN`` (N words).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import ListingParseError
from tilewright.amdgcn.operands import EXEC, SCC, SGPR, ListingOperand, constant_bits
from tilewright.amdgcn.state import Array, Waves, bits_of, lanes_of

DTYPES = {
    kind: np.dtype(name)
    for kind, name in {
        "u32": "u4", "i32": "i4", "f32": "f4", "u16": "u2", "i16": "i2", "f16": "f2",
        "u64": "u8", "i64": "i8", "f64": "f8", "pk16": "u4",
    }.items()
}  # fmt: skip
UNSIGNED = {2: np.uint16, 4: np.uint32, 8: np.uint64}
Words = Callable[[Waves, int], Array]
SELECTS = {f"BYTE_{i}": (8 * i, 8) for i in range(4)} | {f"WORD_{i}": (16 * i, 16) for i in range(2)}
"""First bit and number of bits of the parts of a register, by their names in SDWA."""


def words_read(kind: str) -> int:
    """Return the number of 32-bit registers of an operand of a kind."""
    if kind.startswith("w") and kind[1:].isdigit():
        return int(kind[1:])
    return 2 if kind.endswith("64") else 1


class OperandReader:
    """Reads one operand.

    Args:
        item: the operand.
        kind: type of its numbers.
        vector: return numbers of lanes, (waves, lanes) or (waves, 1); else numbers of waves, (waves,).
        high: read the upper 16 bits.
        select: part of the register to read (SDWA), or ``""``.
    """

    def __init__(
        self, item: ListingOperand, kind: str, vector: bool, high: bool = False, select: str = ""
    ) -> None:
        self.item, self.kind, self.vector = item, kind, vector
        self.high = high or item.half == "h"
        self.select = select if select != "DWORD" else ""
        self.registers = item.registers
        count = words_read(kind)
        if self.registers and kind != "mask" and item.count != count:
            self.registers = tuple(range(self.registers[0], self.registers[0] + count))
        self.constant: Array | None = None
        if item.bank in ("constant", "float", "null"):
            bits = 0 if item.bank == "null" else constant_bits(item, kind)
            if kind == "mask":
                self.constant = lanes_of(
                    np.array([[bits & 0xFFFFFFFF, (bits >> 32) & 0xFFFFFFFF]], np.uint32)
                )
            else:
                dtype = DTYPES.get(kind, np.dtype("u4"))
                shape = (1, 1) if vector else (1,)
                self.constant = self._modified(np.full(shape, bits, UNSIGNED[dtype.itemsize]).view(dtype))
        elif not self.registers:
            raise ListingParseError(f"operand {item.text!r} is neither registers nor a number")

    def __call__(self, waves: Waves) -> Array:
        """The numbers of the operand in the selected waves."""
        if self.constant is not None:
            return self.constant
        return self._modified(self._typed(waves, self.word))

    def word(self, waves: Waves, register: int) -> Array:
        """Return one register of the operand, as words."""
        if register < SGPR:
            return np.asarray(waves.vector[register][waves.at])
        held: Array = waves.scalar[register - SGPR, waves.at]
        return held[:, None] if self.vector else held

    def _typed(self, waves: Waves, word: Words) -> Array:
        if self.kind == "mask":
            words = waves.scalar[[register - SGPR for register in self.registers]][:, waves.at]
            return lanes_of(words.T)
        low, dtype = word(waves, self.registers[0]), DTYPES[self.kind]
        if self.select:
            first, bits = SELECTS[self.select]
            part = (low >> np.uint32(first)) & np.uint32((1 << bits) - 1)
            if self.item.signed:
                wide = part.astype(np.int64)
                part = (wide - ((wide >> (bits - 1)) << bits)).astype(np.uint32)
            return part.astype(UNSIGNED[dtype.itemsize]).view(dtype)
        if dtype.itemsize == 8:
            high = word(waves, self.registers[1]) if len(self.registers) > 1 else np.zeros_like(low)
            return (low.astype(np.uint64) | (high.astype(np.uint64) << np.uint64(32))).view(dtype)
        if dtype.itemsize == 2:
            return (low >> np.uint32(16) if self.high else low).astype(np.uint16).view(dtype)
        return np.ascontiguousarray(low).view(dtype)

    def _modified(self, value: Array) -> Array:
        if value.dtype.kind == "u":  # moved bits: the sign of a float is its upper bit
            sign = np.array(1 << (8 * value.dtype.itemsize - 1), value.dtype)
            value = value & ~sign if self.item.absolute else value
            return value ^ sign if self.item.negative else value
        if self.item.absolute:
            value = np.abs(value)
        return -value if self.item.negative else value

    def undefined(self, waves: Waves) -> Array | None:
        """Return the undefined bits of the numbers, as unsigned integers, or bools for masks."""
        if self.constant is not None or all(register not in waves.undefined for register in self.registers):
            return None
        if self.kind == "mask":
            none = np.zeros(waves.scalar[0, waves.at].shape, np.uint32)
            parts = [waves.undefined_bits(register) for register in self.registers]
            return lanes_of(np.stack([none if part is None else part for part in parts], -1))

        def word(of: Waves, register: int) -> Array:
            bits = of.undefined_bits(register)
            if bits is None:
                return np.zeros_like(self.word(of, register))
            return bits[:, None] if register >= SGPR and self.vector else bits

        found = self._typed(waves, word)
        return found.view(UNSIGNED[found.dtype.itemsize])


def words_of(values: Array) -> list[Array]:
    """Return numbers as words of 32 bits."""
    bits = np.ascontiguousarray(values).view(UNSIGNED[values.dtype.itemsize])
    if bits.dtype.itemsize == 8:
        return [bits.astype(np.uint32), (bits >> np.uint64(32)).astype(np.uint32)]
    return [bits.astype(np.uint32, copy=False)]


class VectorWriter:
    """Writes a result to vector registers, in the active lanes.

    Args:
        item: the operand to write.
        kind: type of the result.
        high: write a result of 16 bits to the upper half.
        keeps: keep the other half of the register; else set it to zero.
    """

    def __init__(self, item: ListingOperand, kind: str, high: bool = False, keeps: bool = True) -> None:
        if item.bank != "v":
            raise ListingParseError(f"operand {item.text!r} is no vector register to write to")
        self.registers = item.registers
        self.keeps = keeps or item.half != ""
        self.high = high or item.half == "h"
        self.partial = kind in ("u16", "i16", "f16")

    def _merged(self, word: Array, old: Array) -> Array:
        if self.high:
            return (word << np.uint32(16)) | (old & np.uint32(0xFFFF) if self.keeps else np.uint32(0))
        return word | (old & np.uint32(0xFFFF0000)) if self.keeps else word

    def __call__(self, waves: Waves, value: Array) -> None:
        """Write the result."""
        words = words_of(value)
        if self.partial:
            words = [self._merged(words[0], waves.vector[self.registers[0]][waves.at])]
        for register, word in zip(self.registers, words, strict=True):
            waves.put(register, word)

    def put_undefined(self, waves: Waves, bits: Array | None, why: str) -> None:
        """Note the undefined bits of the result."""
        if self.partial and (bits is not None or self.registers[0] in waves.undefined):
            count = waves.count if waves.whole else len(waves.at)
            old = waves.undefined_bits(self.registers[0])
            old = np.zeros((count, waves.lanes), np.uint32) if old is None else old
            new = np.zeros(1, np.uint32) if bits is None else words_of(bits)[0]
            merged = self._merged(new, old)
            waves.put_undefined(self.registers[0], np.broadcast_to(merged, old.shape), why)
            return
        words = [None] * len(self.registers) if bits is None else words_of(bits)
        for register, word in zip(self.registers, words, strict=True):
            waves.put_undefined(register, word, why)


class ScalarWriter:
    """Writes a result to scalar registers."""

    def __init__(self, item: ListingOperand, kind: str) -> None:
        if len(item.registers) == 1 and words_read(kind) == 2 and item.index != SCC:  # which takes one bit
            raise ListingParseError(f"operand {item.text!r} is one register, and 64 bits are written to it")
        self.registers = item.registers

    def __call__(self, waves: Waves, value: Array) -> None:
        """Write the result, (waves,)."""
        if not self.registers:
            return
        bits = np.ascontiguousarray(value).view(UNSIGNED[value.dtype.itemsize])
        if bits.dtype.itemsize == 8:
            waves.scalar[self.registers[1] - SGPR, waves.at] = (bits >> np.uint64(32)).astype(np.uint32)
        elif len(self.registers) > 1:
            waves.scalar[self.registers[1] - SGPR, waves.at] = 0
        waves.put_scalar(self.registers[0] - SGPR, bits.astype(np.uint32))

    def put_undefined(self, waves: Waves, bits: Array | None, why: str) -> None:
        """Note the undefined bits of the result."""
        for place, register in enumerate(self.registers):
            part = None
            if bits is not None:
                part = (bits.astype(np.uint64) >> np.uint64(32 * place)).astype(np.uint32)
            waves.put_undefined(register, part, why)


class MaskWriter:
    """Writes a bit for each lane to scalar registers; the bits of inactive lanes become 0."""

    def __init__(self, item: ListingOperand) -> None:
        self.registers = item.registers

    def __call__(self, waves: Waves, value: Array) -> None:
        """Write the result, bools of (waves, lanes)."""
        words = bits_of(value & waves.mask)
        for place, register in reversed(list(enumerate(self.registers))):
            waves.scalar[register - SGPR, waves.at] = words[:, place]
        if self.registers and self.registers[0] == SGPR + EXEC:
            waves.read_exec()

    def put_undefined(self, waves: Waves, bits: Array | None, why: str) -> None:
        """Note the undefined bits of the mask."""
        words = None if bits is None else bits_of(np.asarray(bits, np.bool_) & waves.mask)
        for place, register in enumerate(self.registers):
            waves.put_undefined(register, None if words is None else words[:, place], why)


Writer = Any
