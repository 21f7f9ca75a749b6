"""Decodes instructions on packed numbers, small sums of products, mixed formats, and 8-bit formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.amdgcn.decode_vector import bare
from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.floats import narrow_pair, widen, widen_pair
from tilewright.amdgcn.packed import (
    PACKED,
    both_halves,
    choices,
    dot_of_bytes,
    dot_of_halves,
    mixed,
    mixed_readers,
    mov_pair,
    packed_readers,
    rounded_to_half,
)
from tilewright.amdgcn.readers import Reader, VectorWriter
from tilewright.amdgcn.state import Family
from tilewright.amdgcn.steps import Compute1, Step
from tilewright.amdgcn.text import Instruction

MIXED = (
    "v_fma_mix_f32",
    "v_fma_mixlo_f16",
    "v_fma_mixhi_f16",
    "v_mad_mix_f32",
    "v_mad_mixlo_f16",
    "v_mad_mixhi_f16",
)
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


def packed_step(instruction: Instruction, family: Family) -> Step | None:
    """The step of such an instruction, or None for others."""
    name = bare(instruction.mnemonic)
    if name not in SPECIAL:
        return None
    if name in BIT_TABLES:
        return _by_table(instruction, BIT_TABLES[name])
    if unknown := set(instruction.modifiers) - {
        "op_sel",
        "op_sel_hi",
        "neg_lo",
        "neg_hi",
        "clamp",
        "src0_sel",
    }:
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {name}")
    if "clamp" in instruction.modifiers and name not in DOTS:
        raise UnknownInstructionError(f"no meaning is known for clamp of {name}")
    if name in PACKED:
        return _packed(instruction, name)
    if name in MIXED:
        return _mixed(instruction, name)
    if name in DOTS or name in HALF_DOTS:
        return _dot(instruction, name)
    return _narrow(instruction, name, family)


def _by_table(instruction: Instruction, kind: str) -> Step:
    """Each bit of the result from the three bits of the operands, by a table of eight."""
    if unknown := set(instruction.modifiers) - {"bitop3"}:
        raise UnknownInstructionError(f"no meaning is known for {sorted(unknown)} of {instruction.mnemonic}")
    table = int(instruction.modifiers.get("bitop3", "0"), 0)
    to, first, second, third = instruction.operands

    def compute(a: Any, b: Any, c: Any) -> Any:
        found = a & ~a
        for row in (row for row in range(8) if table >> row & 1):
            found = found | (a if row & 4 else ~a) & (b if row & 2 else ~b) & (c if row & 1 else ~c)
        return found

    readers = [Reader(item, kind, vector=True) for item in (first, second, third)]
    return Compute1(instruction, readers, [VectorWriter(to, kind)], compute)


def _packed(instruction: Instruction, name: str) -> Step:
    kind, count, function = PACKED[name]
    to, *operands = instruction.operands
    if name == "v_pk_fmac_f16":
        operands = [*operands, to]
    if len(operands) != count:
        raise UnknownInstructionError(f"{name} takes {count} operands, not {len(operands)}")
    readers = packed_readers(operands, kind, instruction.modifiers)
    writer = VectorWriter(to, "u64" if kind.endswith("32") else "u32")
    if name == "v_pk_mov_b32":  # `op_sel` chooses the half of both operands, one for each result
        return Compute1(instruction, readers[:2], [writer], mov_pair, _halves_tracked(1, kind))
    compute = both_halves(function, count)
    return Compute1(instruction, readers, [writer], compute, _halves_tracked(count, kind))


def _halves_tracked(count: int, kind: str) -> Any:
    """Each result is undefined where an operand of its own half is."""
    bits = int(kind[1:])
    narrow, wide = np.dtype(f"u{bits // 8}"), np.dtype(f"u{bits // 4}")

    def track(values: Any, shadows: Any) -> Any:
        shape = np.broadcast_shapes(*(value.shape for value in values))
        parts = []
        for half in (shadows[:count], shadows[count:]):
            hit = np.zeros(shape, np.bool_)
            for shadow in half:
                if shadow is not None:
                    hit = hit | (shadow != 0)
            parts.append(np.where(hit, np.array(-1).astype(narrow), np.array(0, narrow)).astype(wide))
        return parts[0] | (parts[1] << wide.type(bits))

    return track


def _mixed(instruction: Instruction, name: str) -> Step:
    to, *operands = instruction.operands
    readers = mixed_readers(operands, instruction.modifiers)
    if name.endswith("_f32"):
        return Compute1(instruction, readers, [VectorWriter(to, "f32")], mixed)
    writer = VectorWriter(to, "f16", high="mixhi" in name, keeps=True)
    return Compute1(instruction, readers, [writer], lambda a, b, c: rounded_to_half(mixed(a, b, c)))


def _dot(instruction: Instruction, name: str) -> Step:
    to, *operands = instruction.operands
    if len(operands) == 2:
        operands = [*operands, to]
    writer = VectorWriter(to, "u32")
    if name in HALF_DOTS:
        if instruction.modifiers.keys() & {"op_sel", "neg_lo", "neg_hi"}:
            raise UnknownInstructionError(f"no meaning is known for the modifiers of {name}")
        low = packed_readers(operands[:2], "f16", {})
        readers = [*low[:2], Reader(operands[2], "f32", vector=True), *low[2:]]
        return Compute1(instruction, readers, [VectorWriter(to, "f32")], dot_of_halves)
    signs = DOTS[name]
    if name == "v_dot4_i32_iu8":
        negated = choices(instruction.modifiers, "neg_lo", 3, 0)
        signs = bool(negated[0]), bool(negated[1])
    compute = dot_of_bytes(signs, "clamp" in instruction.modifiers)
    return Compute1(instruction, [Reader(item, "u32", vector=True) for item in operands], [writer], compute)


def _narrow(instruction: Instruction, name: str, family: Family) -> Step:
    if family.lanes != 64:
        raise UnknownInstructionError(f"{family.name} has no {name}")
    to, *operands = instruction.operands
    upper = choices(instruction.modifiers, "op_sel", 3, 0)
    if name in NARROWED:
        readers = [Reader(item, "f32", vector=True) for item in operands]
        writer = VectorWriter(to, "u16", high=bool(upper[2]), keeps=True)
        return Compute1(instruction, readers, [writer], narrow_pair(NARROWED[name]))
    select = instruction.modifiers.get("src0_sel", "")
    if name in WIDENED:
        byte = int(select[-1]) if select.startswith("BYTE_") else 0
        if select and not select.startswith("BYTE_"):
            raise UnknownInstructionError(f"no meaning is known for src0_sel:{select} of {name}")
        return Compute1(
            instruction,
            [Reader(operands[0], "u32", vector=True)],
            [VectorWriter(to, "f32")],
            widen(WIDENED[name], byte),
        )
    high = select == "WORD_1" or bool(upper[0])
    reader = Reader(operands[0], "u16", vector=True, high=high)
    return Compute1(instruction, [reader], [VectorWriter(to, "u64")], widen_pair(WIDENED_PAIRS[name]))
