"""Decodes scalar instructions that compute."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.amdgcn.constants import PROGRAM
from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.operands import EXEC, SCC, SGPR, Operand
from tilewright.amdgcn.readers import Reader, ScalarWriter
from tilewright.amdgcn.scalar_floats import SCALAR_FLOATS
from tilewright.amdgcn.scalars import SAVING, SCALARS, ScalarRow
from tilewright.amdgcn.state import Array, Family, Waves
from tilewright.amdgcn.steps import Compute1, Step
from tilewright.amdgcn.text import Instruction

CONDITION = Operand("scc", "s", SCC, 1)


def scalar_step(instruction: Instruction, family: Family) -> Step | None:
    """The step of a scalar instruction, or None for others."""
    name = instruction.mnemonic
    if name in SAVING:
        function, width = SAVING[name]
        return SaveExec(instruction, function, width)
    if name == "s_getpc_b64":
        here = Operand("the program", "constant", PROGRAM)
        moved = replace(instruction, operands=(*instruction.operands, here))
        return _step(moved, SCALARS["s_mov_b64"])
    if name in SCALAR_FLOATS and family.lanes == 32:
        return _step(instruction, SCALAR_FLOATS[name])
    return _step(instruction, SCALARS[name]) if name in SCALARS else None


def _step(instruction: Instruction, of: ScalarRow) -> Step:
    operands = [_immediate(instruction.mnemonic, item) for item in instruction.operands]
    kinds = list(of.operands)
    results: list[Operand] = []
    if of.result:
        results.append(operands.pop(0))
    sources = [*(results if of.accumulates else ()), *operands]
    if of.accumulates:
        kinds = [of.result, *kinds]
    if kinds and kinds[-1] == "scc":
        sources.append(CONDITION)
        kinds[-1] = "u32"
    if len(sources) != len(kinds):
        raise UnknownInstructionError(
            f"{instruction.mnemonic} takes {len(kinds)} operands, not {len(sources)}"
        )
    readers = [Reader(item, kind, vector=False) for item, kind in zip(sources, kinds, strict=True)]
    for item in (*sources, *results):
        if item.bank == "v":
            raise UnknownInstructionError(f"{item.text} is no scalar")
    writers = [ScalarWriter(item, of.result) for item in results]
    compute, track = of.compute, of.track
    if not of.result:
        writers.append(ScalarWriter(CONDITION, "u32"))
        return Compute1(instruction, readers, writers, lambda *v: compute(*v).astype(np.uint32), track)
    if of.condition:
        writers.append(ScalarWriter(CONDITION, "u32"))
        return Compute1(
            instruction, readers, writers, _with_condition(compute, of.condition), _and_condition(track)
        )
    return Compute1(instruction, readers, writers, compute, track)


_IMMEDIATE = re.compile(r"^s_(?:addk|mulk|movk|cmovk|cmpk_\w+)_(i32|u32)$")


def _immediate(name: str, item: Operand) -> Operand:
    """The constant of an instruction that holds 16 bits of it, extended by its sign where it has one."""
    if (match := _IMMEDIATE.match(name)) is None or item.bank != "constant":
        return item
    value = item.index & 0xFFFF
    return replace(item, index=value - 0x10000 if value & 0x8000 and match[1] == "i32" else value)


def _with_condition(compute: Any, condition: str) -> Any:
    if condition == "computed":
        return lambda *values: tuple(
            part if place == 0 else part.astype(np.uint32) for place, part in enumerate(compute(*values))
        )

    def nonzero(*values: Any) -> Any:
        made = compute(*values)
        return made, (made != 0).astype(np.uint32)

    return nonzero


def _and_condition(track: Any) -> Any:
    if track is None:
        return None

    def both(values: Sequence[Array], shadows: Sequence[Array | None]) -> Any:
        bits = track(values, shadows)
        return bits, np.where(bits != 0, np.uint32(0xFFFFFFFF), np.uint32(0))

    return both


class SaveExec(Step):
    """Saves the mask of active lanes, then combines it with an operand."""

    def __init__(self, instruction: Instruction, function: Any, width: int) -> None:
        to, source = instruction.operands
        kind = f"u{width}"
        mask = Operand("exec", "s", EXEC, width // 32)
        self.function = function
        self.readers = [Reader(source, kind, vector=False), Reader(mask, kind, vector=False)]
        self.writers = [ScalarWriter(item, kind) for item in (to, mask, CONDITION)]
        reads = [*self.readers[0].registers, *self.readers[1].registers]
        super().__init__(instruction, reads, [r for writer in self.writers for r in writer.registers])

    def run(self, waves: Waves) -> None:
        """Acts on the selected waves."""
        given, mask = (np.array(reader(waves)) for reader in self.readers)
        made = np.broadcast_to(self.function(given, mask), mask.shape)
        for writer, value in zip(self.writers, (mask, made, (made != 0).astype(np.uint32)), strict=True):
            writer(waves, value)

    def run_tracked(self, waves: Waves) -> None:
        """Acts, and says which bits of what it writes are undefined."""
        waves.require_defined(
            [r for r in self.reads if r != SGPR + EXEC], "the mask of active lanes", self.line, self.text
        )
        self.run(waves)
        for writer in self.writers:
            writer.put_undefined(waves, None, "")
