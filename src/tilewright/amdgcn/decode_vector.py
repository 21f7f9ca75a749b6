"""Decodes vector instructions that compute numbers of lanes from numbers of lanes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.amdgcn.compares import COMPARISONS
from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.floats import FLOATS
from tilewright.amdgcn.integers import INTEGERS
from tilewright.amdgcn.lanes import DPP, Dpp, Permute16, ReadLane, WriteLane, counted
from tilewright.amdgcn.operands import EXEC, VCC, Operand
from tilewright.amdgcn.packed import choices
from tilewright.amdgcn.readers import SELECTS, MaskWriter, Reader, VectorWriter, words_read
from tilewright.amdgcn.rows import Row, row
from tilewright.amdgcn.state import Family, Waves
from tilewright.amdgcn.steps import Compute1, Step
from tilewright.amdgcn.text import Instruction

VECTOR: dict[str, Row] = {**INTEGERS, **FLOATS}
_SUFFIX = re.compile(r"_(?:e32|e64_dpp|e64|dpp8|dpp|sdwa)$")
_COMPARE = re.compile(r"^v_cmp(x?)_(\w+)$")
_KNOWN = {
    "op_sel",
    "clamp",
    "mul",
    "div",
    "dst_sel",
    "dst_unused",
    "src0_sel",
    "src1_sel",
    "row_mask",
    "bank_mask",
    "bound_ctrl",
    "fi",
    *DPP,
}


def bare(mnemonic: str) -> str:
    """A mnemonic without what says how it is encoded."""
    return _SUFFIX.sub("", mnemonic)


def vector_step(instruction: Instruction, family: Family) -> Step | None:
    """The step of a vector instruction, or None for others."""
    name = bare(instruction.mnemonic)
    if (step := _between_lanes(instruction, name, family)) is not None:
        return step
    if match := _COMPARE.match(name):
        return _comparison(instruction, family, match.group(2), bool(match.group(1)))
    if name not in VECTOR:
        return None
    if unknown := set(instruction.modifiers) - _KNOWN:
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {instruction.mnemonic}")
    return _computed(instruction, family, name, VECTOR[name])


def _between_lanes(instruction: Instruction, name: str, family: Family) -> Step | None:
    operands = instruction.operands
    if name == "v_readfirstlane_b32":
        return ReadLane(instruction, operands[0], operands[1], None)
    if name == "v_readlane_b32":
        return ReadLane(instruction, *operands)
    if name == "v_writelane_b32":
        return WriteLane(instruction, *operands)
    if name in ("v_permlane16_b32", "v_permlanex16_b32") and family.lanes == 32:
        return Permute16(instruction, name == "v_permlanex16_b32")
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
        return _computed(
            instruction, family, name, row("u32 = u32 u32", counted(family.lanes, "_hi_" in name))
        )
    return None


def implied(index: int, family: Family) -> Operand:
    """The mask of lanes that begins at a scalar register, as an operand."""
    return Operand("", "s", index, family.lanes // 32)


def _computed(instruction: Instruction, family: Family, name: str, of: Row) -> Step:
    operands = list(instruction.operands)
    results = operands[: len(of.results)]
    sources = operands[len(of.results) :]
    if of.operands and of.operands[-1] == "mask" and len(sources) == len(of.operands) - 1:
        sources.append(implied(VCC, family))
    if of.results[-1] == "mask" and len(of.results) > 1 and results[1].bank not in ("s", "null"):
        raise UnknownInstructionError(f"{name} writes a mask of lanes, not {results[1].text}")
    kinds = of.operands
    if of.accumulates:
        sources, kinds = [*sources[: len(kinds)], results[0]], (*kinds, of.results[0])
    if len(sources) != len(kinds):
        raise UnknownInstructionError(f"{name} takes {len(kinds)} operands, not {len(sources)}")
    for item, kind in zip([*results, *sources], [*of.results, *kinds], strict=True):
        if kind != "mask" and item.bank in "vs" and item.count not in (1, words_read(kind)):
            raise UnknownInstructionError(f"{item.text} is not {kind}")
    halves = choices(instruction.modifiers, "op_sel", len(kinds) + 1, 0)
    selects = [instruction.modifiers.get(f"src{i}_sel", "") for i in range(len(kinds))]
    readers = [
        Reader(item, kind, vector=True, high=bool(half), select=select)
        for item, kind, half, select in zip(sources, kinds, halves, selects, strict=False)
    ]
    writers: list[Any] = [
        _writer(results[0], of.results[0], instruction, family, of.keeps, bool(halves[len(kinds)]))
    ]
    writers += [MaskWriter(item) for item in results[1:]]
    step = Compute1(instruction, readers, writers, _scaled(of.compute, instruction, of.results[0]), of.track)
    return _moved(step, instruction, family)


def _moved(step: Compute1, instruction: Instruction, family: Family) -> Step:
    if any(name in instruction.modifiers for name in DPP):
        return Dpp(step, instruction.modifiers, family.lanes)
    return step


def _writer(
    item: Operand, kind: str, instruction: Instruction, family: Family, keeps: bool, high: bool
) -> Any:
    if item.bank != "v":
        raise UnknownInstructionError(f"{item.text} is no vector register")
    select = instruction.modifiers.get("dst_sel", "DWORD")
    if select != "DWORD":
        keep = instruction.modifiers.get("dst_unused", "") == "UNUSED_PRESERVE"
        if instruction.modifiers.get("dst_unused") == "UNUSED_SEXT":
            raise UnknownInstructionError("no meaning is known for dst_unused:UNUSED_SEXT")
        return PartWriter(item, kind, *SELECTS[select], keep)
    return VectorWriter(item, kind, high, keeps or family.keeps_upper_half or high)


class PartWriter(VectorWriter):
    """Writes a byte or a half of a register; the rest stays or becomes zero (SDWA)."""

    def __init__(self, item: Operand, kind: str, first: int, bits: int, keeps_rest: bool) -> None:
        super().__init__(item, kind)
        self.partial = True
        self.first, self.part, self.keeps_rest = first, (1 << bits) - 1, keeps_rest

    def _merged(self, word: Any, old: Any) -> Any:
        placed = (word & np.uint32(self.part)) << np.uint32(self.first)
        if not self.keeps_rest:
            return placed
        return placed | (old & np.uint32(~(self.part << self.first) & 0xFFFFFFFF))


def _scaled(compute: Any, instruction: Instruction, kind: str) -> Any:
    modifiers = instruction.modifiers
    if not {"clamp", "mul", "div"} & set(modifiers):
        return compute
    if kind[0] != "f":
        return _saturated(compute, instruction, kind)
    factor = float(modifiers.get("mul", "1")) / float(modifiers.get("div", "1"))
    clamp = "clamp" in modifiers

    def scaled(*values: Any) -> Any:
        made = compute(*values)
        result = made[0] if isinstance(made, tuple) else made
        result = (result * result.dtype.type(factor)).astype(result.dtype)
        if clamp:
            result = np.where(np.isnan(result), 0, np.clip(result, 0, 1)).astype(result.dtype)
        return (result, *made[1:]) if isinstance(made, tuple) else result

    return scaled


def _saturated(compute: Any, instruction: Instruction, kind: str) -> Any:
    name = bare(instruction.mnemonic)
    if not re.match(r"^v_(add|sub)_(nc_)?[ui](16|32)$", name):
        raise UnknownInstructionError(f"no meaning is known for clamp of {name}")
    info = np.iinfo(np.dtype({"u": "u", "i": "i"}[kind[0]] + str(int(kind[1:]) // 8)))
    sign = -1 if "_sub_" in name else 1
    return lambda a, b: np.clip(a.astype(np.int64) + sign * b.astype(np.int64), info.min, info.max).astype(
        info.dtype
    )


def _comparison(instruction: Instruction, family: Family, form: str, writes_exec: bool) -> Step | None:
    if form not in COMPARISONS:
        return None
    kinds, compute = COMPARISONS[form]
    operands = list(instruction.operands)
    masks = [implied(EXEC, family)] if writes_exec else []
    if len(operands) == 3:
        masks.append(operands.pop(0))
    elif not writes_exec:
        masks.append(implied(VCC, family))
    selects = [instruction.modifiers.get(f"src{i}_sel", "") for i in range(2)]
    halves = choices(instruction.modifiers, "op_sel", 2, 0)
    readers = [
        Reader(item, kind, vector=True, high=bool(half), select=select)
        for item, kind, half, select in zip(operands, kinds, halves, selects, strict=True)
    ]
    if any(name in instruction.modifiers for name in DPP):
        raise UnknownInstructionError("no meaning is known for comparisons with lanes moved")
    writers = [MaskWriter(mask) for mask in reversed(masks)]
    both = compute if len(masks) == 1 else (lambda a, b: (compute(a, b),) * len(masks))
    return (ExecCompare if writes_exec else Compute1)(instruction, readers, writers, both)


class ExecCompare(Compute1):
    """A comparison that becomes the mask of active lanes."""

    def run_tracked(self, waves: Waves) -> None:
        """Refuses undefined bits of what is compared; the mask is defined then."""
        waves.require_known(
            self.undefined_results(waves, self.results(waves)),
            "the mask of active lanes",
            self.why(waves),
            self,
        )
        self.run(waves)
        for writer in self.writers:
            writer.put_undefined(waves, None, "")
