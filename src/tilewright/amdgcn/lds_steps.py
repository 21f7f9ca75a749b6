"""Loads, stores and atomics of LDS, and loads from global memory that go there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.amdgcn.access import Access
from tilewright.amdgcn.atomics import apply
from tilewright.amdgcn.memory import Address, GlobalStep, typed_values, words_of
from tilewright.amdgcn.operands import M0, SGPR, Operand
from tilewright.amdgcn.state import Array, Waves
from tilewright.amdgcn.text import Instruction

UNWRITTEN = "loaded from LDS that nothing was stored to"


class LdsStep(GlobalStep):
    """Loads from LDS, or stores to it, at one or two offsets from the lane's address.

    Args:
        instruction: as the listing has it.
        address: the operand that holds the lane's address.
        access: what each lane loads or stores at each offset.
        offsets: in bytes.
        destination: the registers that are loaded.
        data: the registers that are stored, for each offset.
    """

    def __init__(
        self,
        instruction: Instruction,
        address: Operand,
        access: Access,
        offsets: Sequence[int],
        destination: Sequence[int] = (),
        data: Sequence[int] = (),
    ) -> None:
        super().__init__(instruction, Address(address, None, {}), access, destination, data)
        self.loads = ("lds", self.loads[1])
        self.offsets = tuple(offsets)

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        base = self.address(waves).astype(np.int64)
        flight = waves.waits.issue("lds", waves.at, self.destination, self.line, self.text)
        each = self.access.registers
        found: list[Array] = []
        unknown: list[Array] = []
        for number, offset in enumerate(self.offsets):
            address = (base + offset) & 0xFFFFFFFF  # a base may be negative
            places = waves.lds.places(waves, address, self.access.size, self)
            waves.lds.record(waves, places, self.access.size, self, flight, bool(self.data))
            if self.data:
                self._store(waves, places, self.data[number * each : (number + 1) * each])
            else:
                found += waves.lds.load(places, self.access.size)
                unknown += waves.lds.unknown.load(places, self.access.size)
        if self.destination:
            some = any(np.where(waves.mask, word, 0).any() for word in unknown)
            self.put(waves, found, unknown if some else None, f"{UNWRITTEN} (line {self.line})")

    def _store(self, waves: Waves, places: Array, data: Sequence[int]) -> None:
        size = self.access.size
        waves.lds.store(places, size, self.words(waves, data), waves.mask)
        bits = [np.zeros((1, 1), np.uint32) if word is None else word for word in self.unknown(waves, data)]
        waves.lds.unknown.store(places, size, bits, waves.mask)


class LdsAtomic(GlobalStep):
    """An atomic on LDS."""

    def __init__(
        self,
        instruction: Instruction,
        address: Operand,
        dtype: str,
        function: Any,
        destination: Sequence[int],
        data: Sequence[int],
    ) -> None:
        super().__init__(
            instruction,
            Address(address, None, instruction.modifiers),
            Access(np.dtype(dtype).itemsize),
            destination,
            data,
        )
        self.loads = ("lds", self.loads[1])
        self.dtype, self.function = dtype, function

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        if not waves.undefined.isdisjoint(self.data):
            self.require_known(waves)
        places = waves.lds.places(waves, self.address(waves).astype(np.int64), self.access.size, self)
        flight = waves.waits.issue("lds", waves.at, self.destination, self.line, self.text)
        waves.lds.record(waves, places, self.access.size, self, flight, writes=True, atomic=True)
        old = apply(
            waves.lds,
            places,
            self.dtype,
            self.function,
            typed_values(self.words(waves), self.dtype),
            waves.mask,
        )
        if self.destination:
            unknown = waves.lds.unknown.load(places, self.access.size)
            some = any(np.where(waves.mask, word, 0).any() for word in unknown)
            self.put(waves, words_of(old), unknown if some else None, f"{UNWRITTEN} (line {self.line})")


class LoadToLds(GlobalStep):
    """A load from global memory into LDS: to a place that m0 says, one lane behind another."""

    def __init__(self, instruction: Instruction, address: Address, access: Access) -> None:
        super().__init__(instruction, address, access)
        self.reads = (*self.reads, SGPR + M0)
        self.touched = frozenset((*self.touched, SGPR + M0))

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        size = self.access.size
        waves.require_defined((SGPR + M0,), "an address in LDS", self.line, self.text)
        places = waves.arrays.places(self.address(waves), size, waves.mask, "a load", self.line, self.text)
        words = waves.arrays.load(places, size)
        first = (waves.scalar[M0, waves.at] & np.uint32(0xFFFF)).astype(np.int64)[
            :, None
        ] + self.address.offset
        to = waves.lds.places(waves, first + np.arange(waves.lanes) * max(size, 4), size, self)
        flight = waves.waits.issue("vm", waves.at, (), self.line, self.text)
        waves.lds.record(waves, to, size, self, flight, writes=True)
        waves.lds.store(to, size, words, waves.mask)
        waves.lds.unknown.store(to, size, [np.zeros((1, 1), np.uint32)] * len(words), waves.mask)
