"""The counters of what is on its way: a register is not touched before a wait for what loads into it.

Operations of one counter come back in the order in which they were issued, but for scalar loads, which come
back in any order: only a wait for zero is one for them. Flat accesses count with those of memory and with
those of LDS, and have come when both have. No more are on their way than a counter can count.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tilewright.amdgcn.faults import ListingParseError, MissingWaitError

Counts = npt.NDArray[np.int64]
STREAMS = ("vm", "vs", "lds", "smem")
"""Loads from memory, stores where these count apart, LDS, scalar loads."""
COUNTERS = {"vmcnt": ("vm",), "lgkmcnt": ("lds",), "vscnt": ("vs",), "expcnt": ()}
IN_ANY_ORDER = {"vmcnt": (), "lgkmcnt": ("smem",), "vscnt": (), "expcnt": ()}
SPELLED = {"vm": "vmcnt", "vs": "vscnt", "lds": "lgkmcnt", "smem": "lgkmcnt"}
_PART = re.compile(r"(vmcnt|lgkmcnt|expcnt|vscnt)\((\d+)\)")


@dataclass(slots=True, eq=False)
class Flight:
    """What one instruction has on its way.

    Args:
        stream: of which it is one.
        numbers: its place in the stream, for each wave; 0 for waves that did not issue it.
        registers: it loads into.
        line: of the listing.
        text: of the instruction.
    """

    stream: str
    numbers: Counts
    registers: tuple[int, ...]
    line: int
    text: str


MOST_LEFT = 63
"""What the widest counter of a wait counts to: it has 6 bits."""


def waited(operands: str, mnemonic: str = "s_waitcnt") -> dict[str, int]:
    """How many may be left of each counter, from the operands of a wait.

    Example:
        >>> waited("vmcnt(3) lgkmcnt(0)")
        {'vmcnt': 3, 'lgkmcnt': 0}
        >>> waited("null, 0x0", "s_waitcnt_vscnt")
        {'vscnt': 0}
    """
    if mnemonic != "s_waitcnt":
        return _counted({mnemonic.removeprefix("s_waitcnt_"): int(operands.rpartition(",")[2].strip(), 0)})
    parts = _PART.findall(operands)
    if not parts and operands.strip() == "0":
        return dict.fromkeys(COUNTERS, 0)
    if not parts:
        raise ListingParseError(f"a wait for {operands!r} is not understood")
    return _counted({name: int(count[:9]) for name, count in parts})


def _counted(counts: dict[str, int]) -> dict[str, int]:
    for name, count in counts.items():
        if not 0 <= count <= MOST_LEFT:
            raise ListingParseError(f"a wait until {count} of {name} are left; counters go to {MOST_LEFT}")
    return counts


class Waits:
    """What is on its way to the registers of waves.

    Args:
        waves: how many.
        limits: the most that each counter counts.
    """

    def __init__(self, waves: int, limits: dict[str, int]) -> None:
        self.limits = limits
        self.issued: dict[str, Counts] = {stream: np.zeros(waves, np.int64) for stream in STREAMS}
        self.done: dict[str, Counts] = {stream: np.zeros(waves, np.int64) for stream in STREAMS}
        self.flights: list[Flight] = []
        self.pending: dict[int, list[Flight]] = {}

    def issue(self, stream: str, at: Any, registers: tuple[int, ...], line: int, text: str) -> Flight:
        """One more instruction of a stream, of the waves `at`, that loads into registers."""
        self.issued[stream][at] += 1
        if (limit := self.limits.get(stream)) is not None:
            self._finish(stream, self.issued[stream][at] - limit, at)
        numbers = np.zeros_like(self.issued[stream])
        numbers[at] = self.issued[stream][at]
        flight = Flight(stream, numbers, registers, line, text)
        if registers:
            self.flights.append(flight)
            for register in registers:
                self.pending.setdefault(register, []).append(flight)
        return flight

    def wait(self, counts: dict[str, int], at: Any) -> None:
        """Waits of the waves `at` until at most so many are left of each counter."""
        for counter, left in counts.items():
            for stream in COUNTERS[counter]:
                self._finish(stream, self.issued[stream][at] - left, at)
            if left == 0:
                for stream in IN_ANY_ORDER[counter]:
                    self._finish(stream, self.issued[stream][at], at)
        self.retire()

    def _finish(self, stream: str, until: Counts, at: Any) -> None:
        self.done[stream][at] = np.maximum(self.done[stream][at], until)

    def on_way(self, flight: Flight) -> npt.NDArray[np.bool_]:
        """The waves to which it is still on its way."""
        return flight.numbers > self.done[flight.stream]

    def retire(self) -> None:
        """Forgets what has come to all waves."""
        left = [flight for flight in self.flights if self.on_way(flight).any()]
        if len(left) < len(self.flights):
            self.flights = left
            self.pending = {}
            for flight in left:
                for register in flight.registers:
                    self.pending.setdefault(register, []).append(flight)

    def check(
        self,
        touched: Iterable[int],
        at: Any,
        line: int,
        text: str,
        name: Any,
        loads: tuple[str, tuple[int, ...]] = ("", ()),
    ) -> None:
        """Refuses to touch a register that something is on its way to.

        Args:
            touched: registers that an instruction reads or writes.
            at: the waves that execute it.
            line: of the instruction.
            text: of the instruction.
            name: spells a register.
            loads: the stream of the instruction, and the registers it loads into without reading them: what
                comes in order may come into the same register.

        Raises:
            MissingWaitError: a wait is missing or too weak.
        """
        for register in touched:
            for flight in self.pending.get(register, ()):
                if flight.stream == loads[0] and register in loads[1]:
                    continue
                waves = self.on_way(flight)[at]
                if not waves.any():
                    continue
                newer = self.issued[flight.stream][at] - flight.numbers[at]
                raise MissingWaitError(
                    f"{name(register)} is used before what line {flight.line} ({flight.text}) "
                    f"loads into it is waited for: {SPELLED[flight.stream]} must be at most "
                    f"{int(newer[waves].min()) if flight.stream in ('vm', 'lds') else 0} here",
                    line,
                    text,
                )
