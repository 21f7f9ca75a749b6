"""Decoded instructions, which act on the selected waves, and their undefined bits."""

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
        instruction: the parsed instruction.
        reads: registers that it reads.
        writes: registers that it writes.
    """

    loads: tuple[str, tuple[int, ...]] = ("", ())
    """Its stream of outstanding operations, and the registers that it loads without reading them."""
    ends = False
    """Whether it may change which instruction is next, or when."""

    def __init__(
        self, instruction: Instruction, reads: Sequence[int] = (), writes: Sequence[int] = ()
    ) -> None:
        self.instruction = instruction
        self.line, self.text = self.position = instruction.position
        self.reads, self.writes = tuple(reads), tuple(writes)
        self.touched = frozenset((*reads, *writes))

    def also_reads(self, *registers: int) -> None:
        """Add registers to those that it reads."""
        self.reads += registers
        self.touched |= {*registers}

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        raise NotImplementedError

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction when some register that it touches has undefined bits."""
        waves.require_defined(self.reads, self.instruction.mnemonic, self)
        self.run(waves)
        for register in self.writes:
            waves.put_undefined(register, None, "")


class Compute1(DecodedStep):
    """An instruction that computes results from operands.

    Args:
        instruction: the parsed instruction.
        readers: readers of the operands.
        writers: writers of the results.
        compute: the results, or the only one, from the operands.
        track: undefined bits of the results, from operands and their undefined bits.  By default, one
            undefined bit of an operand makes all bits undefined.
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
        """Return the results, before any is written."""
        made = self.compute(*[reader(waves) for reader in self.readers])
        return made if isinstance(made, tuple) else (made,)

    def write(self, waves: Waves, results: tuple[Any, ...]) -> None:
        """Write the results."""
        for writer, result in zip(self.writers, results, strict=True):
            writer(waves, result)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        self.write(waves, self.results(waves))

    def undefined_results(self, waves: Waves, results: tuple[Any, ...]) -> list[Array | None]:
        """Return the undefined bits of each result."""
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
        filled: list[Array | None] = []
        for result in results:
            every = np.broadcast_to(hit, np.broadcast_shapes(result.shape, np.shape(hit)))
            if result.dtype != np.bool_:
                unsigned = np.dtype(f"u{result.dtype.itemsize}")
                every = np.where(every, np.array(-1).astype(unsigned), np.array(0, unsigned))
            filled.append(every)
        return filled

    def why(self, waves: Waves) -> str:
        """Return the origin of undefined bits in its results."""
        bad = next((register for register in self.reads if register in waves.undefined), None)
        return "" if bad is None else waves.why(bad)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        results = self.results(waves)
        undefined = self.undefined_results(waves, results)
        why = self.why(waves) if any(bits is not None for bits in undefined) else ""
        mask, full = waves.mask, waves.full
        self.write(waves, results)
        changed, waves.mask, waves.full = (waves.mask, waves.full), mask, full
        for writer, bits in zip(self.writers, undefined, strict=True):
            writer.put_undefined(waves, bits, why)
        waves.mask, waves.full = changed


class Dual(DecodedStep):
    """Two instructions at once: both read before either writes."""

    def __init__(self, instruction: Instruction, first: Compute1, second: Compute1) -> None:
        super().__init__(instruction, first.reads + second.reads, first.writes + second.writes)
        self.parts = (first, second)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        made = [tuple(np.array(result) for result in part.results(waves)) for part in self.parts]
        for part, results in zip(self.parts, made, strict=True):
            part.write(waves, results)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        made = [tuple(np.array(result) for result in part.results(waves)) for part in self.parts]
        undefined = [
            (part.undefined_results(waves, results), part.why(waves))
            for part, results in zip(self.parts, made, strict=True)
        ]
        for part, results, (bits, why) in zip(self.parts, made, undefined, strict=True):
            part.write(waves, results)
            for writer, shadow in zip(part.writers, bits, strict=True):
                writer.put_undefined(waves, shadow, why)


# ----------------------------------------------------------------
#
# Rows of the opcode tables: kinds of operands and results, and the function between them.


@dataclass(frozen=True, slots=True)
class OpcodeRow:
    """One instruction.

    Args:
        results: kinds of its results.
        operands: kinds of its operands.
        compute: the results from the operands.
        track: undefined bits of the results, as `Compute1` takes it.
        accumulates: the first result is also the last operand.
        keeps: a result of 16 bits keeps the other half of its register, on gfx9 too.
    """

    results: tuple[str, ...]
    operands: tuple[str, ...]
    compute: Compute
    track: Track | None = None
    accumulates: bool = False
    keeps: bool = False


def row(spelled: str, compute: Compute, track: Track | None = None, keeps: bool = False) -> OpcodeRow:
    """Return the row of an opcode.

    Args:
        spelled: the kinds of its results and operands, such as ``"f32 = f32 f32"``; with ``+=`` the result is
            also an operand.
        compute: computes the results.
        track: as in `OpcodeRow`, and so is ``keeps``.
        keeps: likewise.
    """
    results, operands = spelled.replace("+=", "=").split("=")
    kinds = tuple(results.split()), tuple(operands.split())
    return OpcodeRow(*kinds, compute, track, "+=" in spelled, keeps)


def left(value: Any, by: Any) -> Any:
    """``value << by`` with the lower bits of the amount."""
    bits = value.dtype.itemsize * 8
    return value << (by & by.dtype.type(bits - 1)).astype(value.dtype)


def right(value: Any, by: Any) -> Any:
    """``value >> by``, arithmetic if the value is signed."""
    bits = value.dtype.itemsize * 8
    return value >> (by & by.dtype.type(bits - 1)).astype(value.dtype)


def field_of(value: Any, first: Any, count: Any) -> Any:
    """`count` bits of a word from bit `first` on, sign-extended if the word is signed."""
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
    """A word and its undefined bits.

    A bit of ``a & b`` or ``a | b`` that one defined operand decides is defined.

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
        """Return the word if only its lower bits are used."""
        return Partly(self.value, self.unknown & self.unknown.dtype.type((1 << bits) - 1))

    def moved(self, move: Callable[[Any, Any], Any], by: Partly) -> Partly:
        """Return the bits shifted by an amount.  An undefined amount makes all bits undefined."""
        unknown = move(self.unknown, by.value)
        if np.any(by.unknown):
            unknown = np.where(by.unknown != 0, np.array(-1).astype(unknown.dtype), unknown)
        return Partly(move(self.value, by.value), unknown)


def tracked(meaning: Callable[..., Partly]) -> Callable[[Sequence[Array], Sequence[Array | None]], Array]:
    """Return the undefined bits of a bitwise result, from its function on partly defined words."""

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
    """Return a sum, difference or product: undefined from the lowest undefined bit of an operand upwards."""
    unknown = words[0].unknown
    for word in words[1:]:
        unknown = unknown | word.unknown
    return Partly(words[0].value, ~unknown + unknown.dtype.type(1) | unknown)


def chosen(no: Partly, yes: Partly, mask: Partly) -> Partly:
    """Return one of two words by a mask; undefined if the mask or the chosen word is."""
    unknown = np.where(mask.value, yes.unknown, no.unknown)
    unknown = np.where(mask.unknown, np.array(-1).astype(unknown.dtype), unknown)
    return Partly(np.where(mask.value, yes.value, no.value), unknown)
