"""Matrix instructions: WMMA of gfx11 and MFMA of gfx942.

The layouts of elements over lanes are AMD's tables.  AMD does not publish the order of the sums, nor where
they are rounded.  This module **assumes**: products of 16 and 8 bits are exact; all products of an
instruction and its C are added in f64 and rounded once, to f32, f16 or bf16; f32 and f64 take one fused
multiply-add for each k; integers are exact modulo 2³².  Subnormal numbers are not flushed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import UnknownInstructionError, UnreplicatedLanesError
from tilewright.amdgcn.floats import F16_VALUES, FP8_VALUES, bf16_bits, fma, from_bf16
from tilewright.amdgcn.operands import ListingOperand, constant_bits
from tilewright.amdgcn.packed import bytes_of, choices, nibbles_of
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import Instruction

BITS = {"f16": 16, "bf16": 16, "i8": 8, "iu8": 8, "iu4": 4, "f32": 32, "f64": 64}
BITS |= dict.fromkeys(FP8_VALUES, 8)


@dataclass(frozen=True, slots=True)
class MatrixShape:
    """Shape and dtypes of a matrix instruction.

    Args:
        m: rows of A, and columns of B.
        k: products of each sum.
        blocks: number of independent products.
        of_a: format of A.
        of_b: format of B.
        sums: format of C and D.
    """

    m: int
    k: int
    blocks: int
    of_a: str
    of_b: str
    sums: str


_WMMA = re.compile(r"^v_wmma_(f32|f16|bf16|i32)_16x16x16_(f16|bf16|iu8|iu4)$")
_MFMA = re.compile(
    r"^v_mfma_(f32|i32|f64)_(\d+)x\d+x(\d+)_?(?:(\d+)b_)?(f16|bf16(?:_1k)?|i8|f32|f64|(fp8|bf8)_(fp8|bf8))$"
)


def wmma_shape(mnemonic: str) -> MatrixShape | None:
    """Return the shape and dtypes of a WMMA, or None for other mnemonics."""
    match = _WMMA.match(mnemonic)
    return MatrixShape(16, 16, 1, match.group(2), match.group(2), match.group(1)) if match else None


def mfma_shape(mnemonic: str) -> MatrixShape | None:
    """Return the shape and dtypes of an MFMA, or None for other mnemonics.

    Example:
        >>> mfma_shape("v_mfma_f32_32x32x8_f16")
        MatrixShape(m=32, k=8, blocks=1, of_a='f16', of_b='f16', sums='f32')
    """
    match = _MFMA.match(mnemonic)
    if not match:
        return None
    sums, m, k, blocks, both, one, other = match.groups()
    kind = both.removesuffix("_1k")
    shape = MatrixShape(int(m), int(k), int(blocks or 1), one or kind, other or kind, sums)
    per_lane = shape.m * shape.k * shape.blocks // 64
    legal = shape.m in (4, 16, 32) and per_lane >= 1 and (sums != "f64" or shape.m == 16)
    return shape if legal else None


def of_arch(shape: MatrixShape, arch: str) -> MatrixShape:
    """Return the shape with the 8-bit formats of an architecture, which are the OCP's on gfx950.

    Example:
        >>> of_arch(MatrixShape(32, 16, 1, "fp8", "f16", "f32"), "gfx950").of_a
        'fp8_ocp'
    """
    if arch != "gfx950":
        return shape
    a, b = (f"{kind}_ocp" if kind in ("fp8", "bf8") else kind for kind in (shape.of_a, shape.of_b))
    return replace(shape, of_a=a, of_b=b)


def numbers(words: Array, kind: str, signed: bool = True) -> Array:
    """Return the numbers in a lane's registers, (…, registers) words, as (…, numbers) of f64 or int64."""
    flat = np.ascontiguousarray(words)
    if kind == "f16":
        return F16_VALUES[flat.view(np.uint16)].astype(np.float64)
    if kind == "bf16":
        return from_bf16(flat.view(np.uint16)).astype(np.float64)
    if kind in FP8_VALUES:
        return np.asarray(FP8_VALUES[kind][flat.view(np.uint8)].astype(np.float64))
    if kind in ("i8", "iu8"):
        return np.asarray(bytes_of(flat, signed).reshape(*flat.shape[:-1], -1))
    if kind == "iu4":
        return np.asarray(nibbles_of(flat, signed).reshape(*flat.shape[:-1], -1))
    return flat.view(np.float32 if kind == "f32" else np.float64)


def multiplied(a: Array, b: Array, c: Array, kind: str) -> Array:
    """``C + A @ Bᵀ`` by the assumed order: A (…, m, k), B (…, n, k), C (…, m, n)."""
    if kind in ("f32", "f64"):
        for k in range(a.shape[-1]):
            c = fma(a[..., :, None, k], b[..., None, :, k], c)
        return c
    if a.dtype == np.int64:
        product = (a.astype(np.float64) @ b.astype(np.float64).swapaxes(-1, -2)).astype(np.int64)
        return product + c.astype(np.int64)
    return a @ b.swapaxes(-1, -2) + c.astype(np.float64)


class MatrixStep(DecodedStep):
    """The base of matrix instructions.

    Args:
        instruction: the parsed instruction.
        shape: shape and dtypes.
    """

    def __init__(self, instruction: Instruction, shape: MatrixShape) -> None:
        self.shape = shape
        self.d, self.a, self.b, self.c = instruction.operands[:4]
        reads = (*self.a.registers, *self.b.registers, *self.c.registers)
        super().__init__(instruction, reads, self.d.registers)

    def stacked(self, waves: Waves, item: ListingOperand) -> Array:
        """Return the registers of an operand: (waves, lanes, registers)."""
        return np.stack([waves.vector[register][waves.at] for register in item.registers], -1)

    def undefined(self, waves: Waves, item: ListingOperand) -> Array | None:
        """Return which registers of an operand have undefined bits, (waves, lanes, registers), or None."""
        found = [waves.undefined_bits(register) for register in item.registers]
        if all(bits is None for bits in found):
            return None
        none = np.zeros(waves.mask.shape, np.uint32)
        return np.asarray(np.stack([none if bits is None else bits for bits in found], -1) != 0)

    def sums_in(self, waves: Waves, dtype: Any) -> Array:
        """Return C as registers of lanes, (waves, lanes, registers), in its own type."""
        if self.c.registers:
            return self.stacked(waves, self.c).view(dtype)
        of = np.dtype(dtype)
        kind = {"f": "f32", "i": "u32"}[of.kind] if of.itemsize == 4 else "f64"
        constant = np.array(constant_bits(self.c, kind), f"u{of.itemsize}").view(dtype)
        return np.full((*waves.mask.shape, len(self.d.registers) * 4 // of.itemsize), constant)

    def put(self, waves: Waves, words: Array) -> None:
        """Write D, (waves, lanes, registers) words, in all lanes."""
        for place, register in enumerate(self.d.registers):
            waves.put(register, words[..., place])

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track which bits of its results are undefined."""
        undefined = [self.undefined(waves, item) for item in (self.a, self.b, self.c)]
        bad = next((register for register in self.reads if register in waves.undefined), None)
        why = "" if bad is None else waves.why(bad)
        self.run(waves)
        reached = [part for part in self.reach(*undefined) if part is not None]
        with waves.masked(np.ones_like(waves.mask)):
            for place, register in enumerate(self.d.registers):
                bits = None
                if reached:
                    hit = reduce(np.bitwise_or, (part[..., place] for part in reached))
                    bits = np.where(hit, np.uint32(0xFFFFFFFF), np.uint32(0))
                waves.put_undefined(register, bits, why)

    def reach(
        self, a: Array | None, b: Array | None, c: Array | None
    ) -> tuple[Array | None, Array | None, Array | None]:
        """Return the registers of D, (waves, lanes, registers), that depend on undefined bits of A, B, C."""
        raise NotImplementedError


class Wmma(MatrixStep):
    """A 16 × 16 × 16 product of a wave of 32 lanes.

    Both halves of the wave must hold the same rows of A and columns of B.
    """

    def __init__(self, instruction: Instruction, shape: MatrixShape) -> None:
        super().__init__(instruction, shape)
        self.narrow = shape.sums in ("f16", "bf16")
        self.shift = np.uint32(16 * choices(instruction.modifiers, "op_sel", 3, 0)[2])
        negated = choices(instruction.modifiers, "neg_lo", 3, 0)
        self.integer = shape.of_a.startswith("iu")
        self.signs = bool(negated[0]), bool(negated[1])
        self.clamp = "clamp" in instruction.modifiers
        others = {"op_sel", "op_sel_hi", "clamp", *(["neg_lo"] if self.integer else [])}
        if unknown := set(instruction.modifiers) - others:
            raise UnknownInstructionError(
                f"no meaning is known for {sorted(unknown)} of {instruction.mnemonic}", *self.position
            )
        needed = 16 * BITS[shape.of_a] // 32
        if (len(self.a.registers), len(self.b.registers), len(self.d.registers)) != (needed, needed, 8):
            raise UnknownInstructionError(
                f"{instruction.mnemonic} takes {needed} registers of A and B, and 8 of D", *self.position
            )

    def _operand(self, waves: Waves, item: ListingOperand, name: str, signed: bool) -> Array:
        words = self.stacked(waves, item)
        if not (words[:, :16] == words[:, 16:]).all():
            wave, lane, register = np.argwhere(words[:, :16] != words[:, 16:])[0]
            raise UnreplicatedLanesError(
                f"lanes {lane} and {lane + 16} of wave {waves.selected()[wave]} hold different numbers "
                f"of {name} in v{item.registers[register]}: both halves of a wave must hold the same",
                *self.position,
            )
        return numbers(words[:, :16], self.shape.of_a, signed)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        if not waves.full:
            raise UnreplicatedLanesError("a WMMA is executed without all lanes active", *self.position)
        a = self._operand(waves, self.a, "A", self.signs[0])
        b = self._operand(waves, self.b, "B", self.signs[1])
        kind = {"f32": np.float32, "i32": np.int32}.get(self.shape.sums, np.uint32)
        held = self.sums_in(waves, kind)
        if self.narrow:
            half = (held >> self.shift).astype(np.uint16)
            c = F16_VALUES[half] if self.shape.sums == "f16" else from_bf16(half)
        else:
            c = held
        matrix = c.reshape(-1, 2, 16, 8).transpose(0, 3, 1, 2).reshape(-1, 16, 16)
        with np.errstate(all="ignore"):
            total = multiplied(a, b, matrix, self.shape.of_a)
        lanes = total.reshape(-1, 8, 2, 16).transpose(0, 2, 3, 1).reshape(-1, 32, 8)
        if self.shape.sums == "f32":
            words = lanes.astype(np.float32).view(np.uint32)
        elif self.shape.sums == "i32":
            words = (np.clip(lanes, -(2**31), 2**31 - 1) if self.clamp else lanes).astype(np.uint32)
        else:
            if self.shape.sums == "f16":
                half = lanes.astype(np.float16).view(np.uint16)
            else:
                half = bf16_bits(lanes.astype(np.float32))
            old = self.stacked(waves, self.d)
            words = (half.astype(np.uint32) << self.shift) | (old & ~(np.uint32(0xFFFF) << self.shift))
        self.put(waves, words)

    def reach(
        self, a: Array | None, b: Array | None, c: Array | None
    ) -> tuple[Array | None, Array | None, Array | None]:
        """Return the registers of D that depend on undefined bits of A, B and C."""
        rows = columns = None
        if a is not None:
            row = a[:, :16].any(-1)  # (waves, 16)
            rows = np.repeat(row.reshape(-1, 8, 2).transpose(0, 2, 1), 16, axis=1)
        if b is not None:
            columns = np.repeat(np.tile(b[:, :16].any(-1), (1, 2))[..., None], 8, axis=-1)
        return rows, columns, c


class Mfma(MatrixStep):
    """A product of a wave of 64 lanes; all lanes take part, active or not."""

    def __init__(self, instruction: Instruction, shape: MatrixShape) -> None:
        super().__init__(instruction, shape)
        self.per_lane = shape.m * shape.k * shape.blocks // 64
        self.registers = shape.m * shape.m * shape.blocks // 64
        place = self._places().reshape(-1)
        self.to_matrix, self.to_lanes = np.argsort(place), place
        zero = {name for name in ("cbsz", "abid", "blgp") if instruction.modifiers.get(name, "0") != "0"}
        if zero:
            raise UnknownInstructionError(
                f"no meaning is known for {sorted(zero)} of {instruction.mnemonic}", *self.position
            )
        expected = (
            self.per_lane * BITS[shape.of_a] // 32,
            self.registers * (2 if shape.sums == "f64" else 1),
        )
        if (len(self.a.registers), len(self.d.registers)) != expected or len(self.b.registers) != expected[0]:
            raise UnknownInstructionError(
                f"{instruction.mnemonic} takes {expected[0]} registers of A and B, and {expected[1]} of D",
                *self.position,
            )

    def _places(self) -> Array:
        """Return the element of (blocks, rows, columns) in each register of each lane."""
        lane, register = np.meshgrid(np.arange(64), np.arange(self.registers), indexing="ij")
        m = self.shape.m
        column, group = lane % m, lane // m
        if m == 4:
            block, row = group, register
        elif self.shape.sums == "f64":
            block, row = np.zeros_like(lane), 4 * register + group
        elif m == 16:
            block, row = register // 4, 4 * group + register % 4
        else:
            block, row = register // 16, 8 * (register % 16 // 4) + 4 * group + register % 4
        return np.asarray((block * m + row) * m + column)

    def _grouped(self, values: Array) -> Array:
        """Return numbers of lanes, (waves, 64, per lane), as (waves, blocks, rows, k)."""
        groups = values.reshape(-1, 64 // self.shape.m, self.shape.m, self.per_lane)
        if self.shape.blocks > 1:
            return groups
        return groups.swapaxes(1, 2).reshape(-1, 1, self.shape.m, self.shape.k)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        a = self._grouped(numbers(self.stacked(waves, self.a), self.shape.of_a))
        b = self._grouped(numbers(self.stacked(waves, self.b), self.shape.of_b))
        kind = {"f32": np.float32, "i32": np.int32, "f64": np.float64}[self.shape.sums]
        held = self.sums_in(waves, kind)
        c = held.reshape(len(held), -1)[:, self.to_matrix].reshape(
            -1, self.shape.blocks, self.shape.m, self.shape.m
        )
        with np.errstate(all="ignore"):
            total = multiplied(a, b, c, self.shape.of_a)
            total = total.astype(np.uint32) if kind == np.int32 else total.astype(kind)
        lanes = total.reshape(len(held), -1)[:, self.to_lanes].reshape(-1, 64, self.registers)
        with waves.masked(np.ones_like(waves.mask)):
            self.put(waves, np.ascontiguousarray(lanes).view(np.uint32))

    def reach(
        self, a: Array | None, b: Array | None, c: Array | None
    ) -> tuple[Array | None, Array | None, Array | None]:
        """Return the registers of D that depend on undefined bits of A, B and C."""
        found: list[Array | None] = []
        for bits, axis in ((a, -1), (b, -2)):
            if bits is None:
                found.append(None)
                continue
            some = np.repeat(np.asarray(bits.any(-1))[..., None], self.per_lane, axis=-1)
            hit: Array = np.asarray(self._grouped(np.asarray(some)).any(-1))
            shape = (len(hit), self.shape.blocks, self.shape.m, self.shape.m)
            spread = np.broadcast_to(np.expand_dims(hit, axis), shape)
            lanes = spread.reshape(len(hit), -1)[:, self.to_lanes].reshape(-1, 64, self.registers)
            found.append(np.repeat(lanes, len(self.d.registers) // self.registers, axis=-1))
        return found[0], found[1], c
