"""Decoded instructions: what each touches, and how it acts on the selected waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewright.amdgcn.readers import OperandReader, Writer
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.text import Instruction

Compute = Callable[..., Any]
Track = Callable[[Sequence[Array], Sequence[Array | None]], Any]


class DecodedStep:
    """An instruction that acts on waves.

    Args:
        instruction: as the listing has it.
        reads: registers that it reads.
        writes: registers that it writes.
    """

    loads: tuple[str, tuple[int, ...]] = ("", ())
    ends = False
    """It may change which instruction is next, or when."""

    def __init__(self, instruction: Instruction, reads: Sequence[int], writes: Sequence[int]) -> None:
        self.instruction = instruction
        self.line, self.text = instruction.line, instruction.text
        self.reads, self.writes = tuple(reads), tuple(writes)
        self.touched = frozenset((*reads, *writes))

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        raise NotImplementedError

    def run_tracked(self, waves: Waves) -> None:
        """Acts where some register that it touches has undefined bits."""
        waves.require_defined(self.reads, f"{self.instruction.mnemonic}", self.line, self.text)
        self.run(waves)
        for register in self.writes:
            waves.put_undefined(register, None, "")


class Compute1(DecodedStep):
    """Results that are computed of operands.

    Args:
        instruction: as the listing has it.
        readers: of the operands.
        writers: of the results.
        compute: the results, or the only one, from the operands.
        track: which bits of the results are undefined, from operands and their undefined bits; by default
            all bits are where any of an operand is.
    """

    def __init__(
        self,
        instruction: Instruction,
        readers: Sequence[OperandReader],
        writers: Sequence[Writer],
        compute: Compute,
        track: Track | None = None,
    ) -> None:
        reads = [register for reader in readers for register in reader.registers]
        writes = [register for writer in writers for register in writer.registers]
        super().__init__(instruction, reads, writes)
        self.readers, self.writers = list(readers), list(writers)
        self.compute, self.track = compute, track

    def results(self, waves: Waves) -> tuple[Any, ...]:
        """The results, before any is written."""
        made = self.compute(*[reader(waves) for reader in self.readers])
        return made if isinstance(made, tuple) else (made,)

    def write(self, waves: Waves, results: tuple[Any, ...]) -> None:
        """Writes the results."""
        for writer, result in zip(self.writers, results, strict=True):
            writer(waves, result)

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        self.write(waves, self.results(waves))

    def undefined_results(self, waves: Waves, results: tuple[Any, ...]) -> list[Array | None]:
        """Undefined bits of each result."""
        shadows = [reader.undefined(waves) for reader in self.readers]
        if all(shadow is None for shadow in shadows):
            return [None] * len(results)
        if self.track is not None:
            made = self.track([reader(waves) for reader in self.readers], shadows)
            return list(made) if isinstance(made, tuple) else [made] * len(results)
        hit: Any = False
        for shadow in shadows:
            if shadow is not None:
                hit = hit | (shadow != 0)
        return [_filled(result, hit) for result in results]

    def why(self, waves: Waves) -> str:
        """The origin of undefined bits in its results."""
        bad = next((register for register in self.reads if register in waves.undefined), None)
        return "" if bad is None else waves.why(bad)

    def run_tracked(self, waves: Waves) -> None:
        """Acts, and says which bits of what it writes are undefined."""
        results = self.results(waves)
        undefined = self.undefined_results(waves, results)
        why = self.why(waves) if any(bits is not None for bits in undefined) else ""
        mask, full = waves.mask, waves.full
        self.write(waves, results)
        changed, waves.mask, waves.full = (waves.mask, waves.full), mask, full
        for writer, bits in zip(self.writers, undefined, strict=True):
            writer.put_undefined(waves, bits, why)
        waves.mask, waves.full = changed


def _filled(result: Array, hit: Array) -> Array:
    """All bits of a result, where something of its operands is undefined."""
    shape = np.broadcast_shapes(result.shape, np.shape(hit))
    if result.dtype == np.bool_:
        return np.broadcast_to(hit, shape)
    unsigned = np.dtype(f"u{result.dtype.itemsize}")
    return np.where(np.broadcast_to(hit, shape), np.array(-1).astype(unsigned), np.array(0, unsigned))


class Dual(DecodedStep):
    """Two instructions at once: both read before either writes."""

    def __init__(self, instruction: Instruction, first: Compute1, second: Compute1) -> None:
        super().__init__(instruction, first.reads + second.reads, first.writes + second.writes)
        self.parts = (first, second)

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        made = [tuple(np.array(result) for result in part.results(waves)) for part in self.parts]
        for part, results in zip(self.parts, made, strict=True):
            part.write(waves, results)

    def run_tracked(self, waves: Waves) -> None:
        """Acts, and says which bits of what it writes are undefined."""
        made = [tuple(np.array(result) for result in part.results(waves)) for part in self.parts]
        bits = [
            part.undefined_results(waves, results) for part, results in zip(self.parts, made, strict=True)
        ]
        why = [part.why(waves) for part in self.parts]
        for part, results, undefined, reason in zip(self.parts, made, bits, why, strict=True):
            part.write(waves, results)
            for writer, shadow in zip(part.writers, undefined, strict=True):
                writer.put_undefined(waves, shadow, reason)


# ----------------------------------------------------------------
#
# One row per mnemonic that computes results from its operands.
#
# A row has the kinds of both and the function.


@dataclass(frozen=True, slots=True)
class OpcodeRow:
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


def row(spelled: str, compute: Compute, track: Track | None = None, keeps: bool = False) -> OpcodeRow:
    """A row from kinds as ``"f32 = f32 f32"``; ``+=`` for one that also reads what it writes."""
    results, accumulates, operands = spelled.partition("+=")
    if not accumulates:
        results, _, operands = spelled.partition("=")
    return OpcodeRow(
        tuple(results.split()), tuple(operands.split()), compute, track, bool(accumulates), keeps
    )


def left(value: Any, by: Any) -> Any:
    """``value << by`` with the lower bits of the amount."""
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


# ----------------------------------------------------------------
#
# Defined bits of the results of logical operations.


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
        """The undefined bits among the lower bits that are used."""
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
