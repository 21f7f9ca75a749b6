"""State of the waves of some blocks: registers, defined bits, lane masks, and outstanding operations."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.amdgcn.faults import ListingParseError, MissingWaitError, UninitialisedError
from tilewright.amdgcn.operands import EXEC, SCALARS, SGPR

# ---------------------------------------------------------------- wait counters
#
# A register must not be touched before a wait for the operation that loads it.  Operations of one counter
# finish in the order of issue.  Scalar loads finish in any order, so only a wait for zero covers them.  A
# flat access counts as memory and as LDS, and is done when both are.  A counter has a largest value: issue
# stalls until the counter is below it.


Counts = npt.NDArray[np.int64]
STREAMS = ("vm", "vs", "lds", "smem")
"""Loads from memory; stores, if they have a counter of their own; LDS accesses; scalar loads."""
COUNTERS = {"vmcnt": ("vm",), "lgkmcnt": ("lds",), "vscnt": ("vs",), "expcnt": ()}
"""The streams of each counter that finish in the order of issue."""
IN_ANY_ORDER = {"vmcnt": (), "lgkmcnt": ("smem",), "vscnt": (), "expcnt": ()}
"""The streams of each counter that finish in any order."""
SPELLED = {"vm": "vmcnt", "vs": "vscnt", "lds": "lgkmcnt", "smem": "lgkmcnt"}
"""The counter of each stream."""
_PART = re.compile(r"(vmcnt|lgkmcnt|expcnt|vscnt)\((\d+)\)")


@dataclass(slots=True, eq=False)
class Outstanding:
    """The outstanding operation of one instruction.

    Args:
        stream: its counter, one of `STREAMS`.
        numbers: its place in the stream, for each wave; 0 for waves that did not issue it.
        registers: registers that it loads.
        step: the instruction.
    """

    stream: str
    numbers: Counts
    registers: tuple[int, ...]
    step: Any


MOST_LEFT = 63
"""Largest value of the widest wait counter, which has 6 bits."""


def waited(operands: str, mnemonic: str = "s_waitcnt") -> dict[str, int]:
    """Return the largest permitted value of each counter, from the operands of a wait.

    Example:
        >>> waited("vmcnt(3) lgkmcnt(0)")
        {'vmcnt': 3, 'lgkmcnt': 0}
        >>> waited("null, 0x0", "s_waitcnt_vscnt")
        {'vscnt': 0}
    """
    if mnemonic != "s_waitcnt":
        counts = {mnemonic.removeprefix("s_waitcnt_"): int(operands.rpartition(",")[2].strip(), 0)}
    elif parts := _PART.findall(operands):
        counts = {name: int(count[:9]) for name, count in parts}
    elif operands.strip() == "0":
        return dict.fromkeys(COUNTERS, 0)
    else:
        raise ListingParseError(f"a wait for {operands!r} is not understood")
    for name, count in counts.items():
        if not 0 <= count <= MOST_LEFT:
            raise ListingParseError(f"a wait until {count} of {name} are left; counters go to {MOST_LEFT}")
    return counts


class Waits:
    """Outstanding loads into registers of waves.

    Args:
        waves: number of waves.
        limits: largest value of each counter.
    """

    def __init__(self, waves: int, limits: dict[str, int]) -> None:
        self.limits = limits
        self.issued: dict[str, Counts] = {stream: np.zeros(waves, np.int64) for stream in STREAMS}
        self.done: dict[str, Counts] = {stream: np.zeros(waves, np.int64) for stream in STREAMS}
        self.flights: list[Outstanding] = []
        self.pending: dict[int, list[Outstanding]] = {}

    def issue(self, stream: str, at: Any, registers: tuple[int, ...], step: Any) -> Outstanding:
        """Count an instruction of the waves `at` that loads registers."""
        self.issued[stream][at] += 1
        if (limit := self.limits.get(stream)) is not None:
            self._finish(stream, self.issued[stream][at] - limit, at)
        numbers = np.zeros_like(self.issued[stream])
        numbers[at] = self.issued[stream][at]
        flight = Outstanding(stream, numbers, registers, step)
        if registers:
            self.flights.append(flight)
            for register in registers:
                self.pending.setdefault(register, []).append(flight)
        return flight

    def wait(self, counts: dict[str, int], at: Any) -> None:
        """Let the waves `at` wait until each counter is at most its given value."""
        for counter, left in counts.items():
            for stream in COUNTERS[counter]:
                self._finish(stream, self.issued[stream][at] - left, at)
            if left == 0:
                for stream in IN_ANY_ORDER[counter]:
                    self._finish(stream, self.issued[stream][at], at)
        self.retire()

    def _finish(self, stream: str, until: Counts, at: Any) -> None:
        self.done[stream][at] = np.maximum(self.done[stream][at], until)

    def on_way(self, flight: Outstanding) -> npt.NDArray[np.bool_]:
        """Return the mask of the waves whose operation is still outstanding."""
        return flight.numbers > self.done[flight.stream]

    def retire(self) -> None:
        """Forget operations that are done in all waves."""
        left = [flight for flight in self.flights if self.on_way(flight).any()]
        if len(left) < len(self.flights):
            self.flights = left
            self.pending = {}
            for flight in left:
                for register in flight.registers:
                    self.pending.setdefault(register, []).append(flight)

    def check(self, step: Any, at: Any) -> None:
        """Refuse to touch a register while a load into it is outstanding.

        A load of the same stream may load the same register again, because both arrive in order.

        Args:
            step: the instruction.
            at: waves that execute it.

        Raises:
            MissingWaitError: a wait is missing or too weak.
        """
        stream, reloads = step.loads
        for register in step.touched:
            for flight in self.pending.get(register, ()):
                if flight.stream == stream and register in reloads:
                    continue
                waves = self.on_way(flight)[at]
                if not waves.any():
                    continue
                newer = self.issued[flight.stream][at] - flight.numbers[at]
                raise MissingWaitError(
                    f"{register_name(register)} is used before what line {flight.step.line} "
                    f"({flight.step.text}) loads into it is waited for: {SPELLED[flight.stream]} must be at "
                    f"most {int(newer[waves].min()) if flight.stream in ('vm', 'lds') else 0} here",
                    *step.position,
                )


# ---------------------------------------------------------------- waves


Array = npt.NDArray[Any]
Words = npt.NDArray[np.uint32]
ALL = np.uint32(0xFFFFFFFF)
WHOLE = slice(None)


@dataclass(frozen=True, slots=True)
class InstructionSet:
    """Properties of an instruction set.

    Args:
        name: ``gfx11`` or ``gfx9``.
        lanes: lanes of a wave.
        counts_stores_apart: stores have their own counter (vscnt).
        keeps_upper_half: results of 16 bits keep the upper half of their register.
        most_of_lds: largest value of the counter of LDS and scalar loads.
        arch: the architecture, such as ``gfx942``.
    """

    name: str
    lanes: int
    counts_stores_apart: bool
    keeps_upper_half: bool
    most_of_lds: int
    arch: str = ""


GFX11 = InstructionSet("gfx11", 32, counts_stores_apart=True, keeps_upper_half=True, most_of_lds=63)
GFX9 = InstructionSet("gfx9", 64, counts_stores_apart=False, keeps_upper_half=False, most_of_lds=15)


def bits_of(mask: Array) -> Words:
    """Return masks of lanes, (waves, lanes) of bool, as words of 32 lanes: (waves, lanes / 32)."""
    return np.packbits(mask, axis=-1, bitorder="little").view(np.uint32)


def lanes_of(words: Array) -> npt.NDArray[np.bool_]:
    """Return words of 32 lanes, (waves, words), as masks (waves, 32 · words)."""
    held = np.ascontiguousarray(words, dtype=np.uint32).view(np.uint8)
    return np.unpackbits(held, axis=-1, bitorder="little").view(np.bool_)


class Waves:
    """The registers of waves that are executed together.

    Instructions act on the waves that are selected (`at`), in the lanes that are active (`mask`).

    Args:
        family: the instruction set.
        count: number of waves.
        vectors: numbers of the vector registers that the kernel uses.
    """

    def __init__(self, family: InstructionSet, count: int, vectors: Iterable[int]) -> None:
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
        """Select the waves on which the next instructions act."""
        self.whole = len(waves) == self.count
        self.at = WHOLE if self.whole else waves
        self.read_exec()

    def read_exec(self) -> None:
        """Take the mask of active lanes from the register that holds it."""
        words = self.scalar[EXEC : EXEC + self.words, self.at]
        self.full = bool((words == ALL).all())
        self.mask = lanes_of(words.T)

    @contextmanager
    def masked(self, mask: Array) -> Iterator[None]:
        """Make other lanes active within the with block."""
        before = self.mask, self.full
        self.mask, self.full = mask, bool(mask.all())
        yield
        self.mask, self.full = before

    def selected(self) -> Array:
        """Return the numbers of the selected waves."""
        return np.arange(self.count) if self.whole else np.asarray(self.at)

    def put(self, register: int, value: Array) -> None:
        """Write a vector register in the active lanes of the selected waves."""
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
        """Write a scalar register of the selected waves; the mask of active lanes follows."""
        self.scalar[register, self.at] = value
        if EXEC <= register < EXEC + self.words:
            self.read_exec()

    def undefined_bits(self, register: int) -> Words | None:
        """Return the undefined bits of a register in the selected waves, or None."""
        if register not in self.undefined:
            return None
        shadow = self.shadow.get(register)
        count = self.count if self.whole else len(self.at)
        if register < SGPR:
            return np.full((count, self.lanes), ALL) if shadow is None else shadow[self.at]
        return np.full(count, ALL) if shadow is None else shadow[self.at]

    def put_undefined(self, register: int, bits: Array | None, why: str) -> None:
        """Note the undefined bits of a result in the active lanes of a register."""
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

    def require_defined(self, registers: Iterable[int], what: str, step: Any) -> None:
        """Refuse undefined bits in the active lanes of registers.

        Raises:
            UninitialisedError: some are undefined; the message says that `what` depends on them.
        """
        for register in registers:
            bits = self.undefined_bits(register)
            if bits is None:
                continue
            bad = bits if register >= SGPR else np.where(self.mask, bits, 0)
            if bad.any():
                raise UninitialisedError(
                    f"{what} depends on {register_name(register)}, {self.why(register)} ({self._where(bad)})",
                    *step.position,
                )

    def require_known(self, undefined: Iterable[Array | None], what: str, why: str, step: Any) -> None:
        """Refuse undefined bits in the active lanes of numbers.

        Raises:
            UninitialisedError: some are undefined; the message says that `what` depends on them.
        """
        for bits in undefined:
            if bits is not None and (bad := np.where(self.mask, bits, 0)).any():
                message = f"{what} depends on a number that is undefined: {why} ({self._where(bad)})"
                raise UninitialisedError(message, *step.position)

    def why(self, register: int) -> str:
        """Return the origin of a register's undefined bits."""
        return self.origin.get(register, "which was never written")

    def _where(self, bad: Array) -> str:
        found = np.argwhere(bad)[0]
        wave = self.selected()[found[0]]
        return f"wave {wave}" + (f", lane {found[1]}" if len(found) > 1 else "")


def register_name(register: int) -> str:
    """Return a register's name in a listing, from its number."""
    if register < 512:
        return f"v{register}"
    if register < SGPR:
        return f"a{register - 512}"
    special = {106: "vcc_lo", 107: "vcc_hi", 124: "m0", 126: "exec_lo", 127: "exec_hi", 128: "scc"}
    return special.get(register - SGPR, f"s{register - SGPR}")
