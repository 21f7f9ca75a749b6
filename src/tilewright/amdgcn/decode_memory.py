"""Decode loads, stores and atomics into steps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.lanes import Exchange
from tilewright.amdgcn.memory import (
    ATOMICS,
    COMPARING,
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
    typed_values,
    words_of,
)
from tilewright.amdgcn.operands import M0, SGPR, ListingOperand
from tilewright.amdgcn.state import Array, InstructionSet, Waves
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import Instruction

# ---------------------------------------------------------------- steps that access LDS
#
# This includes loads from global memory straight into LDS.


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
        address: ListingOperand,
        access: AccessForm,
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
        address: ListingOperand,
        dtype: str,
        function: Any,
        destination: Sequence[int],
        data: Sequence[int],
    ) -> None:
        super().__init__(
            instruction,
            Address(address, None, instruction.modifiers),
            AccessForm(np.dtype(dtype).itemsize),
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
    """A load from global memory into LDS, at the address in m0, lane after lane."""

    def __init__(self, instruction: Instruction, address: Address, access: AccessForm) -> None:
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


# ---------------------------------------------------------------- decoding


_MEMORY = re.compile(r"^(global|flat|scratch)_(load|store)_(\w+)$")
_BUFFER = re.compile(r"^buffer_(load|store)_(\w+)$")
_ATOMIC = re.compile(r"^global_atomic_(\w+)$")
_SCALAR = re.compile(r"^s_load_(\w+)$")
_PAIR = re.compile(r"^ds_(?:(read|write)2(st64)?|(load|store)_2addr(_stride64)?)_(b32|b64)$")
_LDS = re.compile(r"^ds_(read|write|load|store)_(\w+)$")
_LDS_ATOMIC = re.compile(r"^ds_(\w+?)(_rtn)?(_[a-z]+\d+)$")
_HINTS = {"glc", "slc", "dlc", "sc0", "sc1", "nt", "offset"}


def memory_step(instruction: Instruction, family: InstructionSet) -> DecodedStep | None:
    """The step of an instruction that accesses memory, or None for others."""
    name = instruction.mnemonic
    if name.startswith("ds_"):
        return _lds(instruction, name)
    if match := _SCALAR.match(name):
        access = access_of(match.group(1))
        return None if access is None or access.size < 4 else ScalarLoad(instruction, access)
    if match := _ATOMIC.match(name):
        return _atomic(instruction, match.group(1))
    if (match := _BUFFER.match(name)) and (access := access_of(match.group(2))):
        data, vector, descriptor, scalar = instruction.operands
        ends = (data.registers, ()) if match.group(1) == "load" else ((), data.registers)
        return BufferStep(instruction, vector, descriptor, scalar, access, *ends)
    if match := re.match(r"^global_load_lds_(\w+)$", name):
        access = access_of(match.group(1))
        return None if access is None else LoadToLds(instruction, _address(instruction, 0, 1), access)
    if match := _MEMORY.match(name):
        access = access_of(match.group(3))
        if access is None:
            return None
        if unknown := set(instruction.modifiers) - _HINTS:
            raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
        return _vector(instruction, match.group(1), match.group(2), access)
    return None


def _address(instruction: Instruction, vector: int, scalar: int) -> Address:
    operands = instruction.operands
    return Address(
        operands[vector], operands[scalar] if scalar < len(operands) else None, instruction.modifiers
    )


def _vector(instruction: Instruction, space: str, way: str, access: AccessForm) -> DecodedStep:
    steps: dict[str, Any] = {"scratch": ScratchStep, "flat": FlatStep}
    loads = way == "load"
    address = _address(instruction, 1 if loads else 0, 2)
    registers = instruction.operands[0 if loads else 1].registers
    if len(registers) != access.registers:
        raise UnknownInstructionError(
            f"{instruction.mnemonic} takes {access.registers} registers, not {len(registers)}"
        )
    of = steps.get(space, GlobalLoad if loads else GlobalStore)
    made: DecodedStep = of(
        instruction, address, access, registers if loads else (), () if loads else registers
    )
    return made


def operation(name: str) -> tuple[str, Any] | None:
    """The type and the meaning of an atomic by its name."""
    if name in COMPARING:
        return COMPARING[name], None
    return ATOMICS.get(name)


def _atomic(instruction: Instruction, name: str) -> DecodedStep | None:
    found = operation(name)
    if found is None:
        return None
    dtype, function = found
    gives = bool({"sc0", "glc"} & set(instruction.modifiers))
    operands = instruction.operands
    destination = operands[0].registers if gives else ()
    first = 1 if gives else 0
    address = _address(instruction, first, first + 2)
    if function is None:
        function = _swapped_if_equal
    return GlobalAtomic(instruction, address, dtype, function, destination, operands[first + 1].registers)


def _swapped_if_equal(old: Any, new: Any, compared: Any) -> Any:
    return np.where(old == compared, new, old)


def _lds(instruction: Instruction, name: str) -> DecodedStep | None:
    operands, modifiers = instruction.operands, instruction.modifiers
    if unknown := set(modifiers) - ({"offset0", "offset1"} if _PAIR.match(name) else {"offset"}):
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
    for form in ("bpermute", "permute", "swizzle"):
        if name == f"ds_{form}_b32":
            return Exchange(instruction, form)
    if match := _PAIR.match(name):
        access = access_of(match.group(5))
        assert access is not None
        unit = access.size * (64 if match.group(2) or match.group(4) else 1)
        offsets = [int(modifiers.get(f"offset{i}", "0"), 0) * unit for i in (0, 1)]
        if (match.group(1) or match.group(3)) in ("read", "load"):
            return LdsStep(instruction, operands[1], access, offsets, operands[0].registers)
        data = (*operands[1].registers, *operands[2].registers)
        return LdsStep(instruction, operands[0], access, offsets, (), data)
    if (match := _LDS.match(name)) and (access := access_of(match.group(2))):
        offset = int(modifiers.get("offset", "0"), 0)
        if match.group(1) in ("read", "load"):
            return LdsStep(instruction, operands[1], access, [offset], operands[0].registers)
        return LdsStep(instruction, operands[0], access, [offset], (), operands[1].registers)
    return _lds_atomic(instruction, name)


def _lds_atomic(instruction: Instruction, name: str) -> DecodedStep | None:
    match = _LDS_ATOMIC.match(name)
    found = operation(match.group(1) + match.group(3)) if match else None
    if match is None or found is None:
        return None
    dtype, function = found
    operands = list(instruction.operands)
    destination = operands.pop(0).registers if match.group(2) else ()
    data = tuple(register for item in operands[1:] for register in item.registers)
    if function is None:
        # gfx9 names the comparand first, gfx11 the stored number.
        stored_first = "cmpstore" in name
        function = (
            _swapped_if_equal
            if stored_first
            else (lambda old, compared, new: _swapped_if_equal(old, new, compared))
        )
    return LdsAtomic(instruction, operands[0], dtype, function, destination, data)
