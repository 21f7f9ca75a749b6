"""Decodes loads, stores and atomics."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.amdgcn.access import Access, access_of
from tilewright.amdgcn.atomics import ATOMICS, COMPARING
from tilewright.amdgcn.buffers import BufferStep
from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.lanes import Exchange
from tilewright.amdgcn.lds_steps import LdsAtomic, LdsStep, LoadToLds
from tilewright.amdgcn.memory import (
    Address,
    FlatStep,
    GlobalAtomic,
    GlobalLoad,
    GlobalStore,
    ScalarLoad,
    ScratchStep,
)
from tilewright.amdgcn.state import Family
from tilewright.amdgcn.steps import Step
from tilewright.amdgcn.text import Instruction

_MEMORY = re.compile(r"^(global|flat|scratch)_(load|store)_(\w+)$")
_BUFFER = re.compile(r"^buffer_(load|store)_(\w+)$")
_ATOMIC = re.compile(r"^global_atomic_(\w+)$")
_SCALAR = re.compile(r"^s_load_(\w+)$")
_PAIR = re.compile(r"^ds_(?:(read|write)2(st64)?|(load|store)_2addr(_stride64)?)_(b32|b64)$")
_LDS = re.compile(r"^ds_(read|write|load|store)_(\w+)$")
_LDS_ATOMIC = re.compile(r"^ds_(\w+?)(_rtn)?(_[a-z]+\d+)$")
_HINTS = {"glc", "slc", "dlc", "sc0", "sc1", "nt", "offset"}


def memory_step(instruction: Instruction, family: Family) -> Step | None:
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


def _vector(instruction: Instruction, space: str, way: str, access: Access) -> Step:
    steps: dict[str, Any] = {"scratch": ScratchStep, "flat": FlatStep}
    loads = way == "load"
    address = _address(instruction, 1 if loads else 0, 2)
    registers = instruction.operands[0 if loads else 1].registers
    if len(registers) != access.registers:
        raise UnknownInstructionError(
            f"{instruction.mnemonic} takes {access.registers} registers, not {len(registers)}"
        )
    of = steps.get(space, GlobalLoad if loads else GlobalStore)
    made: Step = of(instruction, address, access, registers if loads else (), () if loads else registers)
    return made


def operation(name: str) -> tuple[str, Any] | None:
    """The type and the meaning of an atomic by its name."""
    if name in COMPARING:
        return COMPARING[name], None
    return ATOMICS.get(name)


def _atomic(instruction: Instruction, name: str) -> Step | None:
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


def _lds(instruction: Instruction, name: str) -> Step | None:
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


def _lds_atomic(instruction: Instruction, name: str) -> Step | None:
    match = _LDS_ATOMIC.match(name)
    found = operation(match.group(1) + match.group(3)) if match else None
    if match is None or found is None:
        return None
    dtype, function = found
    operands = list(instruction.operands)
    destination = operands.pop(0).registers if match.group(2) else ()
    data = tuple(register for item in operands[1:] for register in item.registers)
    if function is None:
        # gfx9 names what is compared first, gfx11 what is stored.
        stored_first = "cmpstore" in name
        function = (
            _swapped_if_equal
            if stored_first
            else (lambda old, compared, new: _swapped_if_equal(old, new, compared))
        )
    return LdsAtomic(instruction, operands[0], dtype, function, destination, data)
