"""Decode vector instructions, which compute lanes from lanes."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.floats import COMPARISONS, FLOATS, narrow_pair, widen, widen_pair
from tilewright.amdgcn.integers import INTEGERS
from tilewright.amdgcn.lanes import DPP, Dpp, Permute16, ReadLane, WriteLane, counted
from tilewright.amdgcn.operands import EXEC, VCC, ListingOperand
from tilewright.amdgcn.packed import (
    PACKED,
    choices,
    dot_of_bytes,
    dot_of_halves,
    joined,
    mixed,
    packed_readers,
)
from tilewright.amdgcn.readers import DTYPES, SELECTS, MaskWriter, OperandReader, VectorWriter, words_read
from tilewright.amdgcn.state import InstructionSet, Waves
from tilewright.amdgcn.steps import Compute1, DecodedStep, OpcodeRow, row
from tilewright.amdgcn.text import Instruction

VECTOR: dict[str, OpcodeRow] = {**INTEGERS, **FLOATS}
_SUFFIX = re.compile(r"_(?:e32|e64_dpp|e64|dpp8|dpp|sdwa)$")
_COMPARE = re.compile(r"^v_cmp(x?)_(\w+)$")
_KNOWN = {
    *("op_sel", "clamp", "mul", "div", "dst_sel", "dst_unused", "src0_sel", "src1_sel"),
    *("row_mask", "bank_mask", "bound_ctrl", "fi", *DPP),
}


def bare(mnemonic: str) -> str:
    """Return a mnemonic without the suffix of its encoding."""
    return _SUFFIX.sub("", mnemonic)


def vector_step(instruction: Instruction, family: InstructionSet) -> DecodedStep | None:
    """Return the step of a vector instruction, or None for others."""
    name, operands = bare(instruction.mnemonic), instruction.operands
    if name == "v_readfirstlane_b32":
        return ReadLane(instruction, operands[0], operands[1], None)
    if name == "v_readlane_b32":
        return ReadLane(instruction, *operands)
    if name == "v_writelane_b32":
        return WriteLane(instruction, *operands)
    if name in ("v_permlane16_b32", "v_permlanex16_b32") and family.lanes == 32:
        return Permute16(instruction, name == "v_permlanex16_b32")
    if name in ("v_mbcnt_lo_u32_b32", "v_mbcnt_hi_u32_b32"):
        count = counted(family.lanes, "_hi_" in name)
        return _computed(instruction, family, name, row("u32 = u32 u32", count))
    if match := _COMPARE.match(name):
        return _comparison(instruction, family, match[2], bool(match[1]))
    if name not in VECTOR:
        return None
    if unknown := set(instruction.modifiers) - _KNOWN:
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {instruction.mnemonic}")
    return _computed(instruction, family, name, VECTOR[name])


def implied(index: int, family: InstructionSet) -> ListingOperand:
    """Return the mask of lanes that begins at a scalar register, as an operand."""
    return ListingOperand("", "s", index, family.lanes // 32)


def _computed(instruction: Instruction, family: InstructionSet, name: str, of: OpcodeRow) -> DecodedStep:
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
    modifiers = instruction.modifiers
    halves = choices(modifiers, "op_sel", len(kinds) + 1, 0)
    selects = [modifiers.get(f"src{i}_sel", "") for i in range(len(kinds))]
    readers = [
        OperandReader(item, kind, vector=True, high=bool(half), select=select)
        for item, kind, half, select in zip(sources, kinds, halves, selects, strict=False)
    ]
    to, kind, high = results[0], of.results[0], bool(halves[len(kinds)])
    if to.bank != "v":
        raise UnknownInstructionError(f"{to.text} is no vector register")
    writer = VectorWriter(to, kind, high, of.keeps or family.keeps_upper_half or high)
    if (part := modifiers.get("dst_sel", "DWORD")) != "DWORD":
        rest = modifiers.get("dst_unused", "")
        if rest == "UNUSED_SEXT":
            raise UnknownInstructionError("no meaning is known for dst_unused:UNUSED_SEXT")
        writer = PartWriter(to, kind, *SELECTS[part], rest == "UNUSED_PRESERVE")
    writers = [writer, *(MaskWriter(item) for item in results[1:])]
    step = Compute1(instruction, readers, writers, _scaled(of.compute, instruction, kind), of.track)
    return Dpp(step, modifiers, family.lanes) if any(name in modifiers for name in DPP) else step


class PartWriter(VectorWriter):
    """Writes a byte or a half of a register; the rest stays or becomes zero (SDWA)."""

    def __init__(self, item: ListingOperand, kind: str, first: int, bits: int, keeps_rest: bool) -> None:
        super().__init__(item, kind)
        self.partial = True
        self.first, self.part, self.keeps_rest = first, (1 << bits) - 1, keeps_rest

    def _merged(self, word: Any, old: Any) -> Any:
        placed = (word & np.uint32(self.part)) << np.uint32(self.first)
        if not self.keeps_rest:
            return placed
        return placed | (old & np.uint32(~(self.part << self.first) & 0xFFFFFFFF))


def _scaled(compute: Any, instruction: Instruction, kind: str) -> Any:
    """Return a function with the modifiers ``clamp``, ``mul`` and ``div``."""
    name, modifiers = bare(instruction.mnemonic), instruction.modifiers
    if not {"clamp", "mul", "div"} & set(modifiers):
        return compute
    if kind[0] == "f":
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
    if not re.match(r"^v_(add|sub)_(nc_)?[ui](16|32)$", name):
        raise UnknownInstructionError(f"no meaning is known for clamp of {name}")
    info = np.iinfo(DTYPES[kind])
    sign = -1 if "_sub_" in name else 1

    def saturated(a: Any, b: Any) -> Any:
        exact = a.astype(np.int64) + sign * b.astype(np.int64)
        return np.clip(exact, info.min, info.max).astype(info.dtype)

    return saturated


def _comparison(
    instruction: Instruction, family: InstructionSet, form: str, writes_exec: bool
) -> DecodedStep | None:
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
        OperandReader(item, kind, vector=True, high=bool(half), select=select)
        for item, kind, half, select in zip(operands, kinds, halves, selects, strict=True)
    ]
    if any(name in instruction.modifiers for name in DPP):
        raise UnknownInstructionError("no meaning is known for comparisons with lanes moved")
    writers = [MaskWriter(mask) for mask in reversed(masks)]
    both = compute if len(masks) == 1 else (lambda a, b: (compute(a, b),) * len(masks))
    return (ExecCompare if writes_exec else Compute1)(instruction, readers, writers, both)


class ExecCompare(Compute1):
    """A comparison that sets the mask of active lanes."""

    def run_tracked(self, waves: Waves) -> None:
        """Refuse undefined bits in a comparison's operands, so that the mask is defined."""
        waves.require_known(
            self.undefined_results(waves, self.results(waves)),
            "the mask of active lanes",
            self.why(waves),
            self,
        )
        self.run(waves)
        for writer in self.writers:
            writer.put_undefined(waves, None, "")


# ----------------------------------------------------------------
#
# Packed numbers, dot products, mixed formats, and 8-bit formats.


MIXED = tuple(f"v_{name}_{form}" for name in ("fma", "mad") for form in ("mix_f32", "mixlo_f16", "mixhi_f16"))
NARROWED = {"v_cvt_pk_fp8_f32": "fp8", "v_cvt_pk_bf8_f32": "bf8"}
WIDENED = {"v_cvt_f32_fp8": "fp8", "v_cvt_f32_bf8": "bf8"}
WIDENED_PAIRS = {"v_cvt_pk_f32_fp8": "fp8", "v_cvt_pk_f32_bf8": "bf8"}
DOTS = {
    "v_dot4_i32_i8": (True, True),
    "v_dot4_u32_u8": (False, False),
    "v_dot4c_i32_i8": (True, True),
    "v_dot4_i32_iu8": (False, False),
}
HALF_DOTS = ("v_dot2_f32_f16", "v_dot2c_f32_f16", "v_dot2acc_f32_f16")
BIT_TABLES = {"v_bitop3_b32": "u32", "v_bitop3_b16": "u16"}
SPECIAL = (*BIT_TABLES, *PACKED, *MIXED, *NARROWED, *WIDENED, *WIDENED_PAIRS, *DOTS, *HALF_DOTS)


def packed_step(instruction: Instruction, family: InstructionSet) -> DecodedStep | None:
    """Return the step of an instruction on packed or mixed numbers, or None for others."""
    name = bare(instruction.mnemonic)
    if name not in SPECIAL:
        return None
    modifiers = instruction.modifiers
    known = (
        {"bitop3"} if name in BIT_TABLES else {"op_sel", "op_sel_hi", "neg_lo", "neg_hi", "clamp", "src0_sel"}
    )
    if unknown := set(modifiers) - known:
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
    if "clamp" in modifiers and name not in DOTS:
        raise UnknownInstructionError(f"no meaning is known for clamp of {name}")
    if name in BIT_TABLES:
        # Each bit of the result is one of eight bits of a table, which three operand bits select.
        table = int(modifiers.get("bitop3", "0"), 0)
        to, *operands = instruction.operands

        def compute(a: Any, b: Any, c: Any) -> Any:
            found = a & ~a
            for line in (line for line in range(8) if table >> line & 1):
                found = found | (a if line & 4 else ~a) & (b if line & 2 else ~b) & (c if line & 1 else ~c)
            return found

        kind = BIT_TABLES[name]
        first, second, third = (OperandReader(item, kind, vector=True) for item in operands)
        return Compute1(instruction, [first, second, third], [VectorWriter(to, kind)], compute)
    if name in PACKED:
        return _packed(instruction, name)
    if name in MIXED:
        return _mixed(instruction, name)
    if name in DOTS or name in HALF_DOTS:
        return _dot(instruction, name)
    return _narrow(instruction, name, family)


def _packed(instruction: Instruction, name: str) -> DecodedStep:
    kind, count, function = PACKED[name]
    to, *operands = instruction.operands
    if name == "v_pk_fmac_f16":
        operands = [*operands, to]
    if len(operands) != count:
        raise UnknownInstructionError(f"{name} takes {count} operands, not {len(operands)}")
    readers = packed_readers(operands, kind, instruction.modifiers)
    writer = VectorWriter(to, "u64" if kind.endswith("32") else "u32")
    if name == "v_pk_mov_b32":
        # The first operand gives the lower result, the second the upper; `op_sel` selects a half of each.
        readers, count, function = readers[:2], 1, lambda a: a

    def compute(*values: Any) -> Any:
        low, high = function(*values[:count]), function(*values[count:])
        return joined(*np.broadcast_arrays(low, high))

    bits = int(kind[1:])
    narrow, wide = np.dtype(f"u{bits // 8}"), np.dtype(f"u{bits // 4}")

    def track(values: Any, shadows: Any) -> Any:
        """Return the undefined bits of each half, from the operands of this half."""
        shape = np.broadcast_shapes(*(value.shape for value in values))
        parts = []
        for half in (shadows[:count], shadows[count:]):
            hit = np.zeros(shape, np.bool_)
            for shadow in half:
                if shadow is not None:
                    hit = hit | (shadow != 0)
            parts.append(np.where(hit, np.array(-1).astype(narrow), np.array(0, narrow)).astype(wide))
        return parts[0] | (parts[1] << wide.type(bits))

    return Compute1(instruction, readers, [writer], compute, track)


def _mixed(instruction: Instruction, name: str) -> DecodedStep:
    to, *operands = instruction.operands
    sixteen = choices(instruction.modifiers, "op_sel_hi", len(operands), 0)  # operands in f16; others in f32
    upper = choices(instruction.modifiers, "op_sel", len(operands), 0)
    readers = [
        OperandReader(item, "f16" if half else "f32", vector=True, high=bool(high))
        for item, half, high in zip(operands, sixteen, upper, strict=True)
    ]
    if name.endswith("_f32"):
        return Compute1(instruction, readers, [VectorWriter(to, "f32")], mixed)
    writer = VectorWriter(to, "f16", high="mixhi" in name, keeps=True)
    return Compute1(instruction, readers, [writer], lambda a, b, c: mixed(a, b, c).astype(np.float16))


def _dot(instruction: Instruction, name: str) -> DecodedStep:
    to, *operands = instruction.operands
    if len(operands) == 2:
        operands = [*operands, to]
    if name in HALF_DOTS:
        if instruction.modifiers.keys() & {"op_sel", "neg_lo", "neg_hi"}:
            raise UnknownInstructionError(f"no meaning is known for the modifiers of {name}")
        halves = packed_readers(operands[:2], "f16", {})
        sums = OperandReader(operands[2], "f32", vector=True)
        return Compute1(
            instruction, [*halves[:2], sums, *halves[2:]], [VectorWriter(to, "f32")], dot_of_halves
        )
    signs = DOTS[name]
    if name == "v_dot4_i32_iu8":
        negated = choices(instruction.modifiers, "neg_lo", 3, 0)
        signs = bool(negated[0]), bool(negated[1])
    compute = dot_of_bytes(signs, "clamp" in instruction.modifiers)
    readers = [OperandReader(item, "u32", vector=True) for item in operands]
    return Compute1(instruction, readers, [VectorWriter(to, "u32")], compute)


def _narrow(instruction: Instruction, name: str, family: InstructionSet) -> DecodedStep:
    if family.lanes != 64:
        raise UnknownInstructionError(f"{family.name} has no {name}")
    to, *operands = instruction.operands
    upper = choices(instruction.modifiers, "op_sel", 3, 0)
    if name in NARROWED:
        readers = [OperandReader(item, "f32", vector=True) for item in operands]
        writer = VectorWriter(to, "u16", high=bool(upper[2]), keeps=True)
        return Compute1(instruction, readers, [writer], narrow_pair(NARROWED[name]))
    select = instruction.modifiers.get("src0_sel", "")
    if name in WIDENED:
        byte = int(select[-1]) if select.startswith("BYTE_") else 0
        if select and not select.startswith("BYTE_"):
            raise UnknownInstructionError(f"no meaning is known for src0_sel:{select} of {name}")
        reader = OperandReader(operands[0], "u32", vector=True)
        return Compute1(instruction, [reader], [VectorWriter(to, "f32")], widen(WIDENED[name], byte))
    high = select == "WORD_1" or bool(upper[0])
    reader = OperandReader(operands[0], "u16", vector=True, high=high)
    return Compute1(instruction, [reader], [VectorWriter(to, "u64")], widen_pair(WIDENED_PAIRS[name]))
