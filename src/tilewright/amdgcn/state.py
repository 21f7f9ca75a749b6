"""What the waves of some blocks hold: registers, which bits of them are defined, masks of lanes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.amdgcn.faults import UninitialisedError
from tilewright.amdgcn.operands import EXEC, SCALARS, SGPR
from tilewright.amdgcn.waits import Waits

Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
ALL = np.uint32(0xFFFFFFFF)
WHOLE = slice(None)


@dataclass(frozen=True, slots=True)
class Family:
    """What distinguishes the instruction sets here.

    Args:
        name: ``gfx11`` or ``gfx9``.
        lanes: of a wave.
        counts_stores_apart: stores have a counter of their own (vscnt).
        keeps_upper_half: results of 16 bits leave the upper half of their register as it was.
        most_of_lds: what the counter of LDS and scalar loads counts at most.
        arch: the architecture, such as ``gfx942``.
    """

    name: str
    lanes: int
    counts_stores_apart: bool
    keeps_upper_half: bool
    most_of_lds: int
    arch: str = ""


GFX11 = Family("gfx11", 32, counts_stores_apart=True, keeps_upper_half=True, most_of_lds=63)
GFX9 = Family("gfx9", 64, counts_stores_apart=False, keeps_upper_half=False, most_of_lds=15)


def bits_of(mask: Array) -> Words:
    """Masks of lanes, (waves, lanes) of bool, as words of 32 lanes: (waves, lanes / 32)."""
    packed = np.packbits(mask, axis=-1, bitorder="little")
    return packed.view(np.uint32)


def lanes_of(words: Array) -> npt.NDArray[np.bool_]:
    """Words of 32 lanes, (waves, words), as masks (waves, 32 · words)."""
    held = np.ascontiguousarray(words, dtype=np.uint32).view(np.uint8)
    return np.unpackbits(held, axis=-1, bitorder="little").view(np.bool_)


class Waves:
    """The registers of waves that are executed together.

    Instructions act on the waves that are selected (`at`), in the lanes that are active (`mask`).

    Args:
        family: of the instruction set.
        count: how many waves.
        vectors: how many vector registers are used, by their numbers.
    """

    def __init__(self, family: Family, count: int, vectors: Iterable[int]) -> None:
        self.family, self.count, self.lanes = family, count, family.lanes
        self.words = family.lanes // 32
        self.vector: dict[int, Words] = {i: np.zeros((count, family.lanes), np.uint32) for i in vectors}
        self.scalar = np.zeros((SCALARS, count), np.uint32)
        self.undefined: set[int] = {*self.vector, *range(SGPR, SGPR + SCALARS)}
        self.shadow: dict[int, Words] = {}
        self.origin: dict[int, str] = {}
        self.waits = Waits(count, {"vm": 63, "lds": family.most_of_lds})
        self.at: Any = WHOLE
        self.whole = True
        self.mask: Any = np.ones((count, family.lanes), np.bool_)
        self.full = True
        self.arrays: Any = None
        self.lds: Any = None
        self.scratch: Any = None
        self.scratch_unknown: Any = None
        self.scratch_size = 0

    def select(self, waves: Array) -> None:
        """Which waves the next instructions act on."""
        self.whole = len(waves) == self.count
        self.at = WHOLE if self.whole else waves
        self.read_exec()

    def read_exec(self) -> None:
        """Takes the mask of active lanes from the register that holds it."""
        words = self.scalar[EXEC : EXEC + self.words, self.at]
        self.full = bool((words == ALL).all())
        self.mask = lanes_of(words.T)

    def selected(self) -> Array:
        """Numbers of the selected waves."""
        return np.arange(self.count) if self.whole else np.asarray(self.at)

    def put(self, register: int, value: Array) -> None:
        """Writes a vector register in the active lanes of the selected waves."""
        held = self.vector[register]
        if self.whole:
            if self.full:
                held[...] = value
            else:
                np.copyto(held, value, where=self.mask)
        elif self.full:
            held[self.at] = value
        else:
            held[self.at] = np.where(self.mask, value, held[self.at])

    def put_scalar(self, register: int, value: Array) -> None:
        """Writes a scalar register of the selected waves; the mask of active lanes follows."""
        self.scalar[register, self.at] = value
        if EXEC <= register < EXEC + self.words:
            self.read_exec()

    def undefined_bits(self, register: int) -> Words | None:
        """Which bits of a register are undefined in the selected waves; none if all are defined."""
        if register not in self.undefined:
            return None
        shadow = self.shadow.get(register)
        count = self.count if self.whole else len(self.at)
        if register < SGPR:
            return np.full((count, self.lanes), ALL) if shadow is None else shadow[self.at]
        return np.full(count, ALL) if shadow is None else shadow[self.at]

    def put_undefined(self, register: int, bits: Array | None, why: str) -> None:
        """Says which bits of a register are undefined where a result was written."""
        if bits is None and register not in self.undefined:
            return
        vector = register < SGPR
        shadow = self.shadow.get(register)
        if shadow is None:
            shape = (self.count, self.lanes) if vector else (self.count,)
            shadow = np.full(shape, ALL if register in self.undefined else np.uint32(0))
            self.shadow[register] = shadow
        new: Any = np.uint32(0) if bits is None else bits
        if vector and not self.full:
            new = np.where(self.mask, new, shadow[self.at])
        shadow[self.at] = new
        if shadow.any():
            self.undefined.add(register)
            if bits is not None and np.any(bits) and why:
                self.origin[register] = why
        else:
            self.undefined.discard(register)
            del self.shadow[register]

    def require_defined(self, registers: Iterable[int], what: str, line: int, text: str) -> None:
        """Refuses undefined bits in the active lanes of registers.

        Raises:
            UninitialisedError: there are some; says what depends on them.
        """
        for register in registers:
            bits = self.undefined_bits(register)
            if bits is None:
                continue
            bad = bits if register >= SGPR else np.where(self.mask, bits, 0)
            if bad.any():
                raise UninitialisedError(
                    f"{what} depends on {register_name(register)}, {self.why(register)} ({self._where(bad)})",
                    line,
                    text,
                )

    def require_known(self, undefined: Iterable[Array | None], what: str, why: str, step: Any) -> None:
        """Refuses undefined bits in the active lanes of numbers.

        Raises:
            UninitialisedError: there are some; says what depends on them.
        """
        for bits in undefined:
            if bits is not None and (bad := np.where(self.mask, bits, 0)).any():
                message = f"{what} depends on a number that is undefined: {why} ({self._where(bad)})"
                raise UninitialisedError(message, step.line, step.text)

    def why(self, register: int) -> str:
        """What a register's undefined bits come from."""
        return self.origin.get(register, "which was never written")

    def _where(self, bad: Array) -> str:
        found = np.argwhere(bad)[0]
        wave = self.selected()[found[0]]
        return f"wave {wave}" + (f", lane {found[1]}" if len(found) > 1 else "")


def register_name(register: int) -> str:
    """How a listing spells the register of a number."""
    if register < 512:
        return f"v{register}"
    if register < SGPR:
        return f"a{register - 512}"
    special = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi", 128: "scc"}
    return special.get(register - SGPR, f"s{register - SGPR}")
