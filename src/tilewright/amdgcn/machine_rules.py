"""Static rules of a listing that hardware does not check.

The architecture must have each instruction.  The kernel must declare each register, and a tuple of registers
must begin at a multiple of its unit.  Some pairs of instructions need wait states between them.  Wait states
are counted along the text: at a label, from the lines before it, not from the branches to it.

Source: AMD's ISA documents of CDNA 2 and 3, "Manually Inserted Wait States (NOPs)" and "Dependency
Resolution: Required Independent Instructions"; LLVM, `GCNHazardRecognizer.cpp`, for matrix instructions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

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
"""Instructions that some architectures of gfx9 lack, or mean otherwise: by pattern, those that have them."""

LDS_BYTES = {"gfx950": 160 * 1024}
"""Bytes of LDS that a block can have; 64 KiB of all other architectures."""


def require_instruction(instruction: Instruction, arch: str) -> None:
    """Refuse an instruction that an architecture of the family lacks, or whose meaning there is not known.

    Raises:
        UnknownInstructionError: the architecture lacks it, or its meaning is not known.
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
            instruction.line,
            instruction.text,
        )


def require_machine_rules(
    kernel: KernelListing, steps: Sequence[DecodedStep], family: InstructionSet
) -> None:
    """Refuse a kernel that breaks the rules of registers or of wait states.

    Raises:
        RegisterError: a register beyond those that the kernel declares, or a tuple that begins at an odd one.
        WaitStateError: an instruction follows another one too soon.
    """
    _require_registers(kernel, family)
    if family.lanes == 64:  # gfx11 waits by itself
        _require_wait_states(steps, family.arch)


# ---------------------------------------------------------------- registers


def _require_registers(kernel: KernelListing, family: InstructionSet) -> None:
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
            fault = ""
            if first + item.count > most[bank]:
                fault = f"{item.text} is beyond the {most[bank]} registers that the kernel declares"
            elif item.count > 1 and first % _unit(bank, item.count, family):
                unit = _unit(bank, item.count, family)
                fault = f"{item.text} begins at no multiple of {unit}, as such a tuple must"
            if fault:
                raise RegisterError(fault, instruction.line, instruction.text)


def _unit(bank: str, count: int, family: InstructionSet) -> int:
    """The multiple at which a tuple of registers begins."""
    if bank == "s":
        return 2 if count == 2 else 4 if count % 4 == 0 else 1
    return 2 if family.lanes == 64 else 1


# ---------------------------------------------------------------- wait states


def _require_wait_states(steps: Sequence[DecodedStep], arch: str) -> None:
    """Compare each instruction with the `_MOST` wait states before it."""
    time = 0
    before: list[tuple[int, DecodedStep]] = []  # earlier instructions, each with its time
    for step in steps:
        name = step.instruction.mnemonic
        for then, earlier in before:
            needed, why = max(_needed(earlier, step, arch), default=(0, ""))
            missing = needed - (time - then - 1)
            if missing > 0:
                # One s_nop gives 16 wait states at most.
                nops = (f"s_nop {min(missing - given, 16) - 1}" for given in range(0, missing, 16))
                raise WaitStateError(
                    f"{why} of line {earlier.line} by {name} takes {needed} wait states between, and there "
                    f"are {time - then - 1}; nearest: {' and '.join(nops)} before it",
                    step.line,
                    step.text,
                )
        before = [(then, earlier) for then, earlier in before if time - then < _MOST]
        if name.startswith("v_") or (name.startswith("s_") and SGPR + M0 in step.writes):
            before.append((time, step))
        if name in ("s_branch", "s_endpgm", "s_setpc_b64"):
            before.clear()
        time += _states_of_nop(step.instruction) if name == "s_nop" else 1


def _states_of_nop(instruction: Instruction) -> int:
    """The wait states that an ``s_nop`` gives.

    Raises:
        UnknownInstructionError: its operand is no number of 4 bits.
    """
    operands = instruction.operands
    if len(operands) != 1 or operands[0].bank != "constant" or not 0 <= operands[0].index < 16:
        raise UnknownInstructionError("s_nop takes a number from 0 to 15", instruction.line, instruction.text)
    return operands[0].index + 1


_MOST = 20
"""Wait states after which no rule asks for more."""


def _needed(earlier: DecodedStep, step: DecodedStep, arch: str) -> Iterator[tuple[int, str]]:
    """The wait states that must lie between two instructions, each with its reason."""
    name, written = step.instruction.mnemonic, {*earlier.writes}
    reads = written.intersection(step.reads)
    if isinstance(earlier, Mfma):
        if _reads_result(step, written) or (not isinstance(step, Mfma) and written & {*step.writes}):
            yield _matrix_states(earlier, arch), "a use of the sums"
        return
    if not earlier.instruction.mnemonic.startswith("v_"):
        if SGPR + M0 in written and "_lds_" in name:
            yield 1, "a use of m0"
        return
    if _is_memory(name) and any(register >= SGPR for register in reads):
        yield 5, "a use of a scalar register"
    if name.startswith("v_div_fmas") and SGPR + VCC in written:
        yield 4, "a use of vcc"
    if name.startswith(("v_readlane", "v_writelane")) and _any_in(
        step.instruction.operands[2].registers, written
    ):
        yield 4, "a use of a lane's number"
    if _is_dpp(step.instruction):
        if _any_in(step.instruction.operands[1].registers, written):
            yield 2, "a use by other lanes"
        if SGPR + EXEC in written:
            yield 5, "a use of exec"


def _any_in(registers: Iterable[int], written: set[int]) -> bool:
    return not written.isdisjoint(registers)


def _reads_result(step: DecodedStep, written: set[int]) -> bool:
    """Whether sums of a matrix instruction are read; those that go into the next one are passed on inside."""
    if isinstance(step, Mfma):
        return _any_in((*step.a.registers, *step.b.registers), written)
    return _any_in(step.reads, written)


def _matrix_states(step: Mfma, arch: str) -> int:
    """The fewest wait states before sums may be used: three more than the passes of the instruction."""
    shape = step.shape
    if shape.sums == "f64":
        return 11 if shape.m == 16 else 5
    if shape.of_a == "f32":
        return {32: 18, 16: 10, 4: 4}[shape.m]
    return {32: 19, 16: 11, 4: 5}[shape.m] if arch in _OLD else {32: 11, 16: 7, 4: 5}[shape.m]


def _is_memory(name: str) -> bool:
    return name.startswith(("global_", "buffer_", "flat_", "scratch_"))


def _is_dpp(instruction: Instruction) -> bool:
    words = ("quad_perm", "row_", "wave_", "bound_ctrl")
    return instruction.mnemonic.endswith("_dpp") or any(
        word.startswith(words) for word in instruction.modifiers
    )
