"""Scalar instructions: they compute scalar registers and the scalar condition."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewright.amdgcn.faults import UnknownInstructionError
from tilewright.amdgcn.floats import COMPARISONS, FLOATS, fma
from tilewright.amdgcn.integers import (
    INTEGERS,
    borrow,
    carry,
    leading,
    leading_signs,
    mask_bits,
    reversed_bits,
    trailing,
)
from tilewright.amdgcn.operands import EXEC, SCC, SGPR, ListingOperand
from tilewright.amdgcn.readers import OperandReader, ScalarWriter
from tilewright.amdgcn.state import Array, InstructionSet, Waves
from tilewright.amdgcn.steps import Compute1, DecodedStep, chosen, field_of, left, right, tracked
from tilewright.amdgcn.text import PROGRAM, Instruction

U64 = np.uint64


@dataclass(frozen=True, slots=True)
class ScalarRow:
    """One scalar instruction.

    Args:
        result: kind of its result; ``""`` for a comparison.
        operands: kinds of its operands; ``scc`` for the condition.
        compute: the result, or the result and the condition if `condition` is ``"computed"``.
        condition: new value of the condition: ``""`` (unchanged), ``"nonzero"`` (of the result) or
            ``"computed"``.
        track: undefined bits of the result.
        accumulates: the result is also the first operand.
    """

    result: str
    operands: tuple[str, ...]
    compute: Any
    condition: str = ""
    track: Any = None
    accumulates: bool = False


def _row(spelled: str, compute: Any, condition: str = "", track: Any = None) -> ScalarRow:
    accumulates = "+=" in spelled
    result, _, operands = spelled.replace("+=", "=").partition("=")
    return ScalarRow(result.strip(), tuple(operands.split()), compute, condition, track, accumulates)


def _signed_overflow(function: Any) -> Any:
    def compute(a: Any, b: Any) -> Any:
        exact = function(a.astype(np.int64), b.astype(np.int64))
        return exact.astype(np.int32), (exact != exact.astype(np.int32))

    return compute


def whole_quads(a: Any) -> Any:
    """Set all four bits of each quad that has a 1."""
    unit = a.dtype.type
    ones = unit(0x1111111111111111 & ((1 << (a.dtype.itemsize * 8)) - 1))
    return ((a | (a >> unit(1)) | (a >> unit(2)) | (a >> unit(3))) & ones) * unit(15)


def _field(a: Any, b: Any) -> Any:
    """``s_bfe``: bits 4:0 of the second operand give the first bit (5:0 of 64 bits), bits 22:16 the count."""
    if a.dtype.itemsize == 4:
        count = (b >> b.dtype.type(16)) & b.dtype.type(127)
        whole = count >= 32
        return np.where(whole, right(a, b.astype(a.dtype)), field_of(a, b, count)).astype(a.dtype)
    first, count = b.astype(np.int64) & 63, (b.astype(np.int64) >> 16) & 127
    part = a.astype(U64) >> first.astype(U64)
    ones = (U64(1) << np.minimum(count, 63).astype(U64)) - U64(1)
    part = part & np.where(count >= 64, U64(0xFFFFFFFFFFFFFFFF), ones)
    if a.dtype.kind == "i":
        upper = U64(1) << (count - 1).clip(0, 63).astype(U64)
        sign = np.where((count > 0) & (count < 64), upper, U64(0))
        part = (part ^ sign) - sign
    return part.astype(a.dtype)


LOGIC: dict[str, Any] = {
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "xor": lambda a, b: a ^ b,
    "andn2": lambda a, b: a & ~b,
    "orn2": lambda a, b: a | ~b,
    "nand": lambda a, b: ~(a & b),
    "nor": lambda a, b: ~(a | b),
    "xnor": lambda a, b: ~(a ^ b),
}
COMPARED: dict[str, Any] = {
    "eq": np.equal,
    "lg": np.not_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "lt": np.less,
    "le": np.less_equal,
}
_MOVED = tracked(lambda a: a)


def _sized(width: int) -> dict[str, ScalarRow]:
    u, i = f"u{width}", f"i{width}"
    rows = {
        f"s_mov_b{width}": _row(f"{u} = {u}", lambda a: a, track=_MOVED),
        f"s_cmov_b{width}": _row(f"{u} += {u} scc", lambda old, a, c: np.where(c != 0, a, old)),
        f"s_not_b{width}": _row(f"{u} = {u}", np.invert, "nonzero", _MOVED),
        f"s_wqm_b{width}": _row(f"{u} = {u}", whole_quads, "nonzero"),
        f"s_lshl_b{width}": _row(f"{u} = {u} u32", lambda a, b: left(a, b.astype(a.dtype)), "nonzero"),
        f"s_lshr_b{width}": _row(f"{u} = {u} u32", lambda a, b: right(a, b.astype(a.dtype)), "nonzero"),
        f"s_ashr_i{width}": _row(f"{i} = {i} u32", lambda a, b: right(a, b.astype(a.dtype)), "nonzero"),
        f"s_bfe_u{width}": _row(f"{u} = {u} u32", _field, "nonzero"),
        f"s_bfe_i{width}": _row(f"{i} = {i} u32", _field, "nonzero"),
        f"s_bfm_b{width}": _row(f"{u} = u32 u32", lambda a, b: mask_bits(a, b, width)),
        f"s_brev_b{width}": _row(f"{u} = {u}", reversed_bits),
        f"s_bcnt1_i32_b{width}": _row(
            f"u32 = {u}", lambda a: np.bitwise_count(a).astype(np.uint32), "nonzero"
        ),
        f"s_bcnt0_i32_b{width}": _row(
            f"u32 = {u}", lambda a: np.bitwise_count(~a).astype(np.uint32), "nonzero"
        ),
        f"s_ff1_i32_b{width}": _row(f"u32 = {u}", trailing),
        f"s_flbit_i32_b{width}": _row(f"u32 = {u}", leading),
        f"s_cselect_b{width}": _row(
            f"{u} = {u} {u} scc",
            lambda a, b, c: np.where(c != 0, a, b),
            track=tracked(lambda a, b, c: chosen(b, a, c)),
        ),
        f"s_bitset1_b{width}": _row(f"{u} += u32", lambda old, a: old | left(np.ones_like(old), a)),
        f"s_bitset0_b{width}": _row(f"{u} += u32", lambda old, a: old & ~left(np.ones_like(old), a)),
        f"s_bitcmp1_b{width}": _row(
            f"= {u} u32", lambda a, b: right(a, b.astype(a.dtype)) & a.dtype.type(1) == 1
        ),
        f"s_bitcmp0_b{width}": _row(
            f"= {u} u32", lambda a, b: right(a, b.astype(a.dtype)) & a.dtype.type(1) == 0
        ),
    }
    for name, function in LOGIC.items():
        rows[f"s_{name}_b{width}"] = _row(f"{u} = {u} {u}", function, "nonzero", tracked(function))
    for old, new in (("andn2", "and_not1"), ("orn2", "or_not1")):
        rows[f"s_{new}_b{width}"] = rows[f"s_{old}_b{width}"]
    rows[f"s_ctz_i32_b{width}"] = rows[f"s_ff1_i32_b{width}"]
    rows[f"s_clz_i32_u{width}"] = rows[f"s_flbit_i32_b{width}"]
    return rows


def _rows() -> dict[str, ScalarRow]:
    rows = {**_sized(32), **_sized(64)}
    rows |= {
        "s_add_u32": _row("u32 = u32 u32", carry, "computed"),
        "s_addc_u32": _row("u32 = u32 u32 scc", carry, "computed"),
        "s_sub_u32": _row("u32 = u32 u32", borrow, "computed"),
        "s_subb_u32": _row("u32 = u32 u32 scc", borrow, "computed"),
        "s_add_i32": _row("i32 = i32 i32", _signed_overflow(np.add), "computed"),
        "s_sub_i32": _row("i32 = i32 i32", _signed_overflow(np.subtract), "computed"),
        "s_addk_i32": _row("i32 += i32", _signed_overflow(np.add), "computed"),
        "s_absdiff_i32": _row(
            "i32 = i32 i32", lambda a, b: np.abs(a.astype(np.int64) - b).astype(np.int32), "nonzero"
        ),
        "s_abs_i32": _row(
            "i32 = i32",
            lambda a: np.where(a < 0, (-a.astype(np.int64)).astype(np.int32), a).astype(np.int32),
            "nonzero",
        ),
        "s_mul_i32": _row("u32 = u32 u32", np.multiply),
        "s_mulk_i32": _row("u32 += u32", np.multiply),
        "s_movk_i32": _row("i32 = i32", lambda a: a),
        "s_cmovk_i32": _row("i32 += i32 scc", lambda old, a, c: np.where(c != 0, a, old)),
        "s_sext_i32_i8": _row("i32 = u32", lambda a: a.astype(np.uint8).view(np.int8).astype(np.int32)),
        "s_sext_i32_i16": _row("i32 = u32", lambda a: a.astype(np.uint16).view(np.int16).astype(np.int32)),
        "s_flbit_i32": _row("u32 = i32", leading_signs),
        "s_pack_ll_b32_b16": _row(
            "u32 = u32 u32", lambda a, b: (a & np.uint32(0xFFFF)) | (b << np.uint32(16))
        ),
        "s_pack_lh_b32_b16": _row(
            "u32 = u32 u32", lambda a, b: (a & np.uint32(0xFFFF)) | (b & np.uint32(0xFFFF0000))
        ),
        "s_pack_hh_b32_b16": _row(
            "u32 = u32 u32", lambda a, b: (a >> np.uint32(16)) | (b & np.uint32(0xFFFF0000))
        ),
        "s_pack_hl_b32_b16": _row("u32 = u32 u32", lambda a, b: (a >> np.uint32(16)) | (b << np.uint32(16))),
    }
    rows["s_cls_i32"] = rows["s_flbit_i32"]
    for by in range(1, 5):
        rows[f"s_lshl{by}_add_u32"] = _row(
            *("u32 = u32 u32", lambda a, b, by=by: carry(a.astype(U64) << U64(by), b), "computed")
        )
    for kind in ("u32", "i32"):
        rows[f"s_mul_hi_{kind}"] = _row(f"{kind} = {kind} {kind}", INTEGERS[f"v_mul_hi_{kind}"].compute)
        rows[f"s_min_{kind}"] = _row(
            f"{kind} = {kind} {kind}", lambda a, b: (np.minimum(a, b), a < b), "computed"
        )
        rows[f"s_max_{kind}"] = _row(
            f"{kind} = {kind} {kind}", lambda a, b: (np.maximum(a, b), a >= b), "computed"
        )
        for name, function in COMPARED.items():
            rows[f"s_cmp_{name}_{kind}"] = _row(f"= {kind} {kind}", function)
            rows[f"s_cmpk_{name}_{kind}"] = _row(f"= {kind} {kind}", function)
    for name in ("eq", "lg"):
        rows[f"s_cmp_{name}_u64"] = _row("= u64 u64", COMPARED[name])
    return rows


SCALARS = _rows()
_SAVED: dict[str, Any] = {
    **LOGIC,
    "and_not1": LOGIC["andn2"],
    "or_not1": LOGIC["orn2"],
    **dict.fromkeys(("andn1", "and_not0"), lambda a, b: ~a & b),
    **dict.fromkeys(("orn1", "or_not0"), lambda a, b: ~a | b),
}
SAVING = {
    f"s_{name}_saveexec_b{width}": (function, width)
    for name, function in _SAVED.items()
    for width in (32, 64)
}
"""Instructions that save the mask of active lanes, then combine it with their operand, which comes first."""


# ---------------------------------------------------------------- scalar floating point (gfx11.5)


def _float_rows() -> dict[str, ScalarRow]:
    rows: dict[str, ScalarRow] = {}
    for kind in ("f32", "f16"):
        for name in ("add", "sub", "mul", "min", "max", "ceil", "floor", "trunc", "rndne", "fmamk", "fmaak"):
            of = FLOATS[f"v_{name}_{kind}"]
            rows[f"s_{name}_{kind}"] = ScalarRow(kind, of.operands, of.compute)
        rows[f"s_fmac_{kind}"] = _row(f"{kind} += {kind} {kind}", lambda c, a, b: fma(a, b, c))
        for form, (kinds, compute) in COMPARISONS.items():
            name, _, of_kind = form.rpartition("_")
            if of_kind == kind and name not in ("class", "f", "t", "tru"):
                rows[f"s_cmp_{form}"] = ScalarRow("", kinds, compute)
    for form in ("f32_u32", "f32_i32", "u32_f32", "i32_f32", "f16_f32", "f32_f16"):
        of = FLOATS[f"v_cvt_{form}"]
        rows[f"s_cvt_{form}"] = ScalarRow(form[:3], of.operands, of.compute)
    packed = FLOATS["v_cvt_pk_rtz_f16_f32"]
    rows["s_cvt_pk_rtz_f16_f32"] = ScalarRow("u32", packed.operands, packed.compute)
    rows["s_cvt_hi_f32_f16"] = ScalarRow(
        "f32", ("u32",), lambda a: (a >> np.uint32(16)).astype(np.uint16).view(np.float16).astype(np.float32)
    )
    return rows


SCALAR_FLOATS = _float_rows()


# ---------------------------------------------------------------- decoding


CONDITION = ListingOperand("scc", "s", SCC, 1)


def scalar_step(instruction: Instruction, family: InstructionSet) -> DecodedStep | None:
    """Return the step of a scalar instruction, or None for others."""
    name = instruction.mnemonic
    if name in SAVING:
        function, width = SAVING[name]
        return SaveExec(instruction, function, width)
    if name == "s_getpc_b64":
        here = ListingOperand("the program", "constant", PROGRAM)
        moved = replace(instruction, operands=(*instruction.operands, here))
        return _step(moved, SCALARS["s_mov_b64"])
    if name in SCALAR_FLOATS and family.lanes == 32:
        return _step(instruction, SCALAR_FLOATS[name])
    return _step(instruction, SCALARS[name]) if name in SCALARS else None


_IMMEDIATE = re.compile(r"^s_(?:addk|mulk|movk|cmovk|cmpk_\w+)_(i32|u32)$")
"""Instructions with a constant of 16 bits, which is sign-extended if it is signed."""


def _step(instruction: Instruction, of: ScalarRow) -> DecodedStep:
    name, operands = instruction.mnemonic, list(instruction.operands)
    if match := _IMMEDIATE.match(name):
        for place, item in enumerate(operands):
            if item.bank == "constant":
                value = item.index & 0xFFFF
                extended = value - 0x10000 if value & 0x8000 and match[1] == "i32" else value
                operands[place] = replace(item, index=extended)
    results = [operands.pop(0)] if of.result else []
    sources, kinds = operands, list(of.operands)
    if of.accumulates:
        sources, kinds = [*results, *operands], [of.result, *kinds]
    if kinds and kinds[-1] == "scc":
        sources.append(CONDITION)
        kinds[-1] = "u32"
    if len(sources) != len(kinds):
        raise UnknownInstructionError(f"{name} takes {len(kinds)} operands, not {len(sources)}")
    readers = [OperandReader(item, kind, vector=False) for item, kind in zip(sources, kinds, strict=True)]
    for item in (*sources, *results):
        if item.bank == "v":
            raise UnknownInstructionError(f"{item.text} is no scalar")
    writers = [ScalarWriter(item, of.result) for item in results]
    compute, track = of.compute, of.track
    if not of.condition and of.result:
        return Compute1(instruction, readers, writers, compute, track)
    writers.append(ScalarWriter(CONDITION, "u32"))

    def compare(*values: Any) -> Any:
        return compute(*values).astype(np.uint32)

    def with_flag(*values: Any) -> Any:
        made, flag = compute(*values)
        return made, flag.astype(np.uint32)

    def with_nonzero(*values: Any) -> Any:
        made = compute(*values)
        return made, (made != 0).astype(np.uint32)

    def track_both(values: Sequence[Array], shadows: Sequence[Array | None]) -> Any:
        bits = track(values, shadows)
        return bits, np.where(bits != 0, np.uint32(0xFFFFFFFF), np.uint32(0))

    if not of.result:
        return Compute1(instruction, readers, writers, compare, track)
    computed = with_flag if of.condition == "computed" else with_nonzero
    return Compute1(instruction, readers, writers, computed, track and track_both)


class SaveExec(DecodedStep):
    """Saves the mask of active lanes, then combines it with an operand."""

    def __init__(self, instruction: Instruction, function: Any, width: int) -> None:
        to, source = instruction.operands
        kind = f"u{width}"
        mask = ListingOperand("exec", "s", EXEC, width // 32)
        self.function = function
        self.readers = [OperandReader(source, kind, vector=False), OperandReader(mask, kind, vector=False)]
        self.writers = [ScalarWriter(item, kind) for item in (to, mask, CONDITION)]
        reads = [*self.readers[0].registers, *self.readers[1].registers]
        super().__init__(instruction, reads, [r for writer in self.writers for r in writer.registers])

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        given, mask = (np.array(reader(waves)) for reader in self.readers)
        made = np.broadcast_to(self.function(given, mask), mask.shape)
        for writer, value in zip(self.writers, (mask, made, (made != 0).astype(np.uint32)), strict=True):
            writer(waves, value)

    def run_tracked(self, waves: Waves) -> None:
        """Execute the instruction, and track undefined bits of its results."""
        waves.require_defined([r for r in self.reads if r != SGPR + EXEC], "the mask of active lanes", self)
        self.run(waves)
        for writer in self.writers:
            writer.put_undefined(waves, None, "")
