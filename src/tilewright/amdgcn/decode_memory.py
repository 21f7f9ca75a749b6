"""Decode loads, stores and atomics into steps."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.lanes import Exchange
from tilewright.amdgcn.memory import (
    ATOMICS,
    HINTS,
    UNWRITTEN,
    AccessForm,
    Address,
    BufferStep,
    FlatStep,
    GlobalAtomic,
    GlobalLoad,
    GlobalStep,
    GlobalStore,
    ScalarLoad,
    ScratchStep,
    access_of,
    apply,
    swap_if_equal,
    typed_values,
)
from tilewright.amdgcn.operands import M0, SGPR, ListingOperand
from tilewright.amdgcn.readers import words_of
from tilewright.amdgcn.space import NONE_UNKNOWN
from tilewright.amdgcn.state import Array, InstructionSet, Waves
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import Instruction

# ---------------------------------------------------------------- steps that access LDS
#
# This includes loads from global memory straight into LDS.


class LdsStep(GlobalStep):
    """Loads from LDS, or stores to it, at one or two offsets from the lane's address.

    Args:
        instruction: the parsed instruction.
        address: operand with the lane's address.
        access: width of one load or store of a lane.
        offsets: bytes from the address, one or two.
        destination: registers that are loaded.
        data: registers that are stored, for each offset.
    """

    stream = "lds"

    def __init__(
        self,
        instruction: Instruction,
        address: ListingOperand,
        access: AccessForm,
        offsets: Sequence[int],
        destination: Sequence[int] = (),
        data: Sequence[int] = (),
    ) -> None:
        super().__init__(instruction, Address(address, None, {}), access, destination, data)
        self.offsets = tuple(offsets)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        base = self.address(waves).astype(np.int64)
        flight = waves.waits.issue("lds", waves.at, self.destination, self)
        lds, size, each = waves.lds, self.access.size, self.access.registers
        found: list[Array] = []
        unknown: list[Array] = []
        for number, offset in enumerate(self.offsets):
            address = (base + offset) & 0xFFFFFFFF  # a base may be negative
            places = lds.places(waves, address, size, self)
            lds.record(waves, places, size, self, flight, bool(self.data))
            if self.data:
                data = self.data[number * each : (number + 1) * each]
                lds.store(places, size, self.words(waves, data), waves.mask)
                bits = [NONE_UNKNOWN if word is None else word for word in self.unknown(waves, data)]
                lds.unknown.store(places, size, bits, waves.mask)
            else:
                found += lds.load(places, size)
                unknown += lds.unknown.load(places, size)
        if self.destination:
            self.put(waves, found, unknown, f"{UNWRITTEN} (line {self.line})")


class LdsAtomic(GlobalAtomic):
    """An atomic on LDS."""

    stream = "lds"

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        self.require_known(waves)
        size = self.access.size
        places = waves.lds.places(waves, self.address(waves).astype(np.int64), size, self)
        flight = waves.waits.issue("lds", waves.at, self.destination, self)
        waves.lds.record(waves, places, size, self, flight, writes=True, atomic=True)
        values = typed_values(self.words(waves), self.dtype)
        old = apply(waves.lds, places, self.dtype, self.function, values, waves.mask)
        if self.destination:
            unknown = waves.lds.unknown.load(places, size)
            self.put(waves, words_of(old), unknown, f"{UNWRITTEN} (line {self.line})")


class LoadToLds(GlobalStep):
    """A load from global memory into LDS, at the address in m0, lane after lane."""

    def __init__(self, instruction: Instruction, address: Address, access: AccessForm) -> None:
        super().__init__(instruction, address, access)
        self.also_reads(SGPR + M0)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        size = self.access.size
        waves.require_defined((SGPR + M0,), "an address in LDS", self)
        places = waves.arrays.places(self.address(waves), size, waves.mask, "a load", self)
        words = waves.arrays.load(places, size)
        m0 = (waves.scalar[M0, waves.at] & np.uint32(0xFFFF)).astype(np.int64)
        offsets = m0[:, None] + self.address.offset + np.arange(waves.lanes) * max(size, 4)
        to = waves.lds.places(waves, offsets, size, self)
        flight = waves.waits.issue("vm", waves.at, (), self)
        waves.lds.record(waves, to, size, self, flight, writes=True)
        waves.lds.store(to, size, words, waves.mask)
        waves.lds.unknown.store(to, size, [NONE_UNKNOWN] * len(words), waves.mask)


# ---------------------------------------------------------------- decoding


_MEMORY = re.compile(r"^(global|flat|scratch)_(load|store)_(\w+)$")
_BUFFER = re.compile(r"^buffer_(load|store)_(\w+)$")
_ATOMIC = re.compile(r"^global_atomic_(\w+)$")
_SCALAR = re.compile(r"^s_load_(\w+)$")
_PAIR = re.compile(r"^ds_(?:(read|write)2(st64)?|(load|store)_2addr(_stride64)?)_(b32|b64)$")
_LDS = re.compile(r"^ds_(read|write|load|store)_(\w+)$")
_LDS_ATOMIC = re.compile(r"^ds_(\w+?)(_rtn)?(_[a-z]+\d+)$")


def memory_step(instruction: Instruction, family: InstructionSet) -> DecodedStep | None:
    """Return the step of an instruction that accesses memory, or None for others."""
    name, operands, modifiers = instruction.mnemonic, instruction.operands, instruction.modifiers

    def address(vector: int, scalar: int) -> Address:
        return Address(operands[vector], operands[scalar] if scalar < len(operands) else None, modifiers)

    if name.startswith("ds_"):
        return _lds_step(instruction, name)
    if match := _SCALAR.match(name):
        access = access_of(match[1])
        return None if access is None or access.size < 4 else ScalarLoad(instruction, access)
    if match := _ATOMIC.match(name):
        if match[1] not in ATOMICS:
            return None
        first = 1 if {"sc0", "glc"} & set(modifiers) else 0  # the first operand takes the old number
        old, data = operands[0].registers if first else (), operands[first + 1].registers
        return GlobalAtomic(instruction, address(first, first + 2), *ATOMICS[match[1]], old, data)
    if (match := _BUFFER.match(name)) and (access := access_of(match[2])):
        item, vector, descriptor, scalar = operands
        ends = (item.registers, ()) if match[1] == "load" else ((), item.registers)
        return BufferStep(instruction, vector, descriptor, scalar, access, *ends)
    if match := re.match(r"^global_load_lds_(\w+)$", name):
        access = access_of(match[1])
        return None if access is None else LoadToLds(instruction, address(0, 1), access)
    if (match := _MEMORY.match(name)) is None or (access := access_of(match[3])) is None:
        return None
    if unknown := set(modifiers) - HINTS:
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
    loads = match[2] == "load"
    registers = operands[0 if loads else 1].registers
    if len(registers) != access.registers:
        raise UnknownInstructionError(f"{name} takes {access.registers} registers, not {len(registers)}")
    spaces: dict[str, type[GlobalStep]] = {"scratch": ScratchStep, "flat": FlatStep}
    step = spaces.get(match[1], GlobalLoad if loads else GlobalStore)
    ends = (registers, ()) if loads else ((), registers)
    return step(instruction, address(1 if loads else 0, 2), access, *ends)


def _lds_step(instruction: Instruction, name: str) -> DecodedStep | None:
    operands, modifiers = instruction.operands, instruction.modifiers
    if unknown := set(modifiers) - ({"offset0", "offset1"} if _PAIR.match(name) else {"offset"}):
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
    for form in ("bpermute", "permute", "swizzle"):
        if name == f"ds_{form}_b32":
            return Exchange(instruction, form)
    if match := _PAIR.match(name):
        access = access_of(match[5])
        assert access is not None
        unit = access.size * (64 if match[2] or match[4] else 1)
        offsets = [int(modifiers.get(f"offset{i}", "0"), 0) * unit for i in (0, 1)]
        if (match[1] or match[3]) in ("read", "load"):
            return LdsStep(instruction, operands[1], access, offsets, operands[0].registers)
        data = (*operands[1].registers, *operands[2].registers)
        return LdsStep(instruction, operands[0], access, offsets, (), data)
    if (match := _LDS.match(name)) and (access := access_of(match[2])):
        offsets = [int(modifiers.get("offset", "0"), 0)]
        if match[1] in ("read", "load"):
            return LdsStep(instruction, operands[1], access, offsets, operands[0].registers)
        return LdsStep(instruction, operands[0], access, offsets, (), operands[1].registers)
    if (match := _LDS_ATOMIC.match(name)) is None or match[1] + match[3] not in ATOMICS:
        return None
    dtype, function = ATOMICS[match[1] + match[3]]
    destination = operands[0].registers if match[2] else ()
    vector, *sources = operands[1:] if match[2] else operands
    data = tuple(register for item in sources for register in item.registers)
    if function is swap_if_equal and "cmpstore" not in name:  # gfx9 names the comparand before the new number
        function = lambda old, seen, new: swap_if_equal(old, new, seen)  # noqa: E731
    return LdsAtomic(instruction, Address(vector, None, modifiers), dtype, function, destination, data)
