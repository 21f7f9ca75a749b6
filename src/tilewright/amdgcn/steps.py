"""An instruction that was decoded: what it touches, and how it acts on the selected waves."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.amdgcn.readers import Reader, Writer
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.text import Instruction

Compute = Callable[..., Any]
Track = Callable[[Sequence[Array], Sequence[Array | None]], Any]


class Step:
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


class Compute1(Step):
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
        readers: Sequence[Reader],
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
        """Which bits of each result are undefined."""
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
        """What undefined bits of its results come from."""
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


class Dual(Step):
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
