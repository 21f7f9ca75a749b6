"""Static rules of a listing that hardware does not check.

The architecture must have each instruction.  The kernel must declare each register, and a tuple of registers
must begin at a multiple of its unit.  Some pairs of instructions need wait states between them.  Wait states
are counted along the text: at a label, from the lines before it, not from the branches to it.

Source: AMD's ISA documents of CDNA 2 and 3, "Manually Inserted Wait States (NOPs)" and "Dependency
Resolution: Required Independent Instructions"; LLVM, `GCNHazardRecognizer.cpp`, for matrix instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from tilewright.amdgcn.faults import RegisterError, UnknownInstructionError, WaitStateError
from tilewright.amdgcn.matrix import Mfma
from tilewright.amdgcn.operands import AGPR, EXEC, M0, SGPR, TRAP, VCC
from tilewright.amdgcn.scalars import SCALAR_FLOATS
from tilewright.amdgcn.state import InstructionSet
from tilewright.amdgcn.steps import DecodedStep
from tilewright.amdgcn.text import Instruction, KernelListing

_OLD = ("gfx90a",)
_NEW = ("gfx940", "gfx941", "gfx942", "gfx950")
_LATEST = ("gfx950",)
_SCALAR_FLOATS = ("gfx1150", "gfx1151", "gfx1152", "gfx1153")

_HAVING: tuple[tuple[str, tuple[str, ...]], ...] = (
    (r"v_mfma_[fi]\d+_(32x32x16_b?f16|16x16x32_b?f16|32x32x32_i8|16x16x64_i8)", _LATEST),
    (r"v_mfma_\w+_\d+x\d+x\d+(f16|bf16|bf16_1k|i8|f32|f64)", _OLD),
    (r"v_mfma_\w+_\d+x\d+x\d+_\w+", _NEW),
    (r"v_cvt_\w*(fp8|bf8)\w*", ("gfx940", "gfx941", "gfx942")),
    (r"(v_lshl_add_u64|v_mov_b64)\w*", _NEW),
    (r"global_load_lds_dwordx[34]|v_bitop3_b(16|32)\w*", _LATEST),
    (r"global_load_lds_\w+", _NEW),
)
"""Architectures of gfx9 that have an instruction, by the pattern of its name.  Others lack it, or give the
same name to another instruction."""

LDS_BYTES = {"gfx950": 160 * 1024}
"""Bytes of LDS that a block can have.  All other architectures have 64 KiB."""


def require_instruction(instruction: Instruction, arch: str) -> None:
    """Refuse an instruction that the architecture lacks.

    Raises:
        UnknownInstructionError: the architecture lacks it, or its meaning there is not known.
    """
    name = instruction.mnemonic
    having: tuple[str, ...] = ()
    if arch.startswith("gfx9"):
        having = next((archs for form, archs in _HAVING if re.fullmatch(form, name)), ())
    elif name in SCALAR_FLOATS:
        having = _SCALAR_FLOATS
    if having and arch not in having:
        raise UnknownInstructionError(
            f"no meaning is known for {name!r} on {arch}; it is an instruction of {', '.join(having)}",
            *instruction.position,
        )


# ---------------------------------------------------------------- registers


def require_registers(kernel: KernelListing, family: InstructionSet) -> None:
    """Refuse a register that the kernel does not declare, or a misaligned tuple of registers.

    Raises:
        RegisterError: a register beyond the declared ones, or a tuple that begins at an odd register.
    """
    says = kernel.directives
    total = says.get("next_free_vgpr", AGPR)
    vectors = min(says.get("accum_offset", total), total) if family.lanes == 64 else total
    most = {"v": vectors, "a": total - vectors if "accum_offset" in says else AGPR}
    most["s"] = says.get("next_free_sgpr", TRAP) if family.lanes == 64 else TRAP
    for instruction in kernel.instructions:
        halves = (instruction,) if instruction.second is None else (instruction, instruction.second)
        for item in (item for half in halves for item in half.operands):
            if item.bank not in ("v", "s") or (item.bank == "s" and item.index >= VCC):
                continue
            bank = "a" if item.bank == "v" and item.index >= AGPR else item.bank
            first = item.index - AGPR if bank == "a" else item.index
            if first + item.count > most[bank]:
                fault = f"{item.text} is beyond the {most[bank]} registers that the kernel declares"
                raise RegisterError(fault, *instruction.position)
            if bank == "s":
                unit = 2 if item.count == 2 else 4 if item.count % 4 == 0 else 1
            else:
                unit = 2 if family.lanes == 64 else 1
            if item.count > 1 and first % unit:
                fault = f"{item.text} begins at no multiple of {unit}, which it must"
                raise RegisterError(fault, *instruction.position)


# ---------------------------------------------------------------- wait states


_MOST = 20
"""Upper bound of the wait states between two instructions, over all rules."""


def require_wait_states(steps: Sequence[DecodedStep], arch: str) -> None:
    """Compare each instruction with the `_MOST` wait states before it.

    Raises:
        WaitStateError: an instruction follows another one too soon.
        UnknownInstructionError: the operand of an ``s_nop`` is no number of 4 bits.
    """
    time = 0
    before: list[tuple[int, DecodedStep]] = []  # earlier instructions, each with its time
    for step in steps:
        name, operands = step.instruction.mnemonic, step.instruction.operands
        for then, earlier in before:
            needed, why = max(_needed(earlier, step, arch), default=(0, ""))
            missing = needed - (time - then - 1)
            if missing > 0:
                # One s_nop gives at most 16 wait states.
                nops = (f"s_nop {min(missing - given, 16) - 1}" for given in range(0, missing, 16))
                raise WaitStateError(
                    f"{why} of line {earlier.line} by {name} takes {needed} wait states between, and there "
                    f"are {time - then - 1}; nearest: {' and '.join(nops)} before it",
                    *step.position,
                )
        before = [(then, earlier) for then, earlier in before if time - then < _MOST]
        if name.startswith("v_") or (name.startswith("s_") and SGPR + M0 in step.writes):
            before.append((time, step))
        if name in ("s_branch", "s_endpgm", "s_setpc_b64"):
            before.clear()
        time += 1
        if name == "s_nop":
            if len(operands) != 1 or operands[0].bank != "constant" or not 0 <= operands[0].index < 16:
                raise UnknownInstructionError("s_nop takes a number from 0 to 15", *step.position)
            time += operands[0].index


def _needed(earlier: DecodedStep, step: DecodedStep, arch: str) -> Iterator[tuple[int, str]]:
    """Yield the wait states that must lie between two instructions, each with its reason."""
    name, operands, written = step.instruction.mnemonic, step.instruction.operands, {*earlier.writes}
    if isinstance(earlier, Mfma):
        # The matrix unit forwards sums that the next matrix instruction reads as its C.
        uses = (
            (*step.a.registers, *step.b.registers) if isinstance(step, Mfma) else (*step.reads, *step.writes)
        )
        if not written.isdisjoint(uses):
            # Three wait states more than the passes of the instruction.
            m, shape = earlier.shape.m, earlier.shape
            if shape.sums == "f64":
                states = 11 if m == 16 else 5
            elif shape.of_a == "f32":
                states = {32: 18, 16: 10, 4: 4}[m]
            else:
                states = ({32: 19, 16: 11, 4: 5} if arch in _OLD else {32: 11, 16: 7, 4: 5})[m]
            yield states, "a use of the sums"
        return
    if not earlier.instruction.mnemonic.startswith("v_"):
        if SGPR + M0 in written and "_lds_" in name:
            yield 1, "a use of m0"
        return
    memory = name.startswith(("global_", "buffer_", "flat_", "scratch_"))
    if memory and any(register >= SGPR for register in written.intersection(step.reads)):
        yield 5, "a use of a scalar register"
    if name.startswith("v_div_fmas") and SGPR + VCC in written:
        yield 4, "a use of vcc"
    if name.startswith(("v_readlane", "v_writelane")) and not written.isdisjoint(operands[2].registers):
        yield 4, "a use of a lane's number"
    lanes = ("quad_perm", "row_", "wave_", "bound_ctrl")
    if name.endswith("_dpp") or any(word.startswith(lanes) for word in step.instruction.modifiers):
        if not written.isdisjoint(operands[1].registers):
            yield 2, "a use by other lanes"
        if SGPR + EXEC in written:
            yield 5, "a use of exec"
