"""Decode the instructions of a listing into steps that act on waves.  An unknown instruction is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewright.amdgcn.decode_memory import memory_step
from tilewright.amdgcn.decode_vector import SPECIAL, VECTOR, packed_step, vector_step
from tilewright.amdgcn.faults import ListingError, UnknownInstructionError
from tilewright.amdgcn.floats import COMPARISONS
from tilewright.amdgcn.machine_rules import require_instruction, require_registers, require_wait_states
from tilewright.amdgcn.matrix import Mfma, Wmma, mfma_shape, of_arch, wmma_shape
from tilewright.amdgcn.memory import ATOMICS
from tilewright.amdgcn.operands import EXEC, SCC, SGPR, VCC
from tilewright.amdgcn.scalars import SAVING, SCALAR_FLOATS, SCALARS, scalar_step
from tilewright.amdgcn.state import GFX9, GFX11, Array, InstructionSet, Waves, waited
from tilewright.amdgcn.steps import Compute1, DecodedStep, Dual
from tilewright.amdgcn.text import Instruction, KernelListing
from tilewright.errors import close_to

# ---------------------------------------------------------------- branches, barriers and waits


_NOTHING = """
buffer_gl0_inv buffer_gl1_inv buffer_inv buffer_wbl2 s_clause s_code_end s_dcache_inv s_dcache_wb
s_delay_alu s_icache_inv s_inst_prefetch s_nop s_sendmsg s_set_inst_prefetch_distance s_sethalt s_setprio
s_sleep s_ttracedata s_wait_idle s_waitcnt_depctr s_wakeup v_nop
"""
NOTHING = frozenset(_NOTHING.split())
"""Instructions for timing, caches and debugging, which change no register."""


class Nothing(DecodedStep):
    """An instruction that changes no register."""

    def run(self, waves: Waves) -> None:
        """Do nothing."""


class WaitStep(DecodedStep):
    """A wait for outstanding operations."""

    def __init__(self, instruction: Instruction) -> None:
        super().__init__(instruction)
        self.counts = waited(instruction.modifiers["all"], instruction.mnemonic)

    def run(self, waves: Waves) -> None:
        """Execute the instruction on the selected waves."""
        waves.waits.wait(self.counts, waves.at)


class End(DecodedStep):
    """The end of a wave."""

    ends = True


class BarrierStep(End):
    """A barrier: the waves of a block wait for each other."""


_CONDITIONS: dict[str, tuple[str, bool]] = {
    "s_cbranch_scc0": ("scc", False),
    "s_cbranch_scc1": ("scc", True),
    "s_cbranch_vccz": ("vcc", False),
    "s_cbranch_vccnz": ("vcc", True),
    "s_cbranch_execz": ("exec", False),
    "s_cbranch_execnz": ("exec", True),
}
BRANCHES = ("s_branch", *_CONDITIONS)


class Jump(DecodedStep):
    """A jump, unconditional or by a condition of each wave.

    Args:
        instruction: the parsed instruction.
        target: number of the instruction after the label.
        words: number of 32-bit registers of a lane mask.
    """

    ends = True

    def __init__(self, instruction: Instruction, target: int, words: int) -> None:
        self.target = target
        self.what, self.when = _CONDITIONS.get(instruction.mnemonic, ("", True))
        first = {"scc": SCC, "vcc": VCC, "exec": EXEC}.get(self.what, 0)
        count = 0 if not self.what else (1 if self.what == "scc" else words)
        self.registers = [*range(first, first + count)]
        super().__init__(instruction, [SGPR + register for register in self.registers])

    def jumps(self, waves: Waves) -> Array:
        """Return the mask of the selected waves that jump."""
        if not self.what:
            return np.ones(len(waves.mask), np.bool_)
        return np.asarray((waves.scalar[self.registers][:, waves.at] != 0).any(0) == self.when)

    def check(self, waves: Waves) -> None:
        """Refuse a branch that depends on undefined bits.

        Raises:
            UninitialisedError: it does.
        """
        waves.require_defined(self.reads, "a branch", self)


# ----------------------------------------------------------------
#
# Names of the instructions that the interpreter knows.


_OTHERS = """
s_endpgm s_barrier s_waitcnt s_waitcnt_vscnt v_readfirstlane_b32 v_readlane_b32 v_writelane_b32
v_mbcnt_lo_u32_b32 v_mbcnt_hi_u32_b32 v_permlane16_b32 v_permlanex16_b32 ds_bpermute_b32 ds_permute_b32
ds_swizzle_b32 s_load_b32 s_load_b64 s_load_b128 s_load_b256 s_load_b512 s_load_dword s_load_dwordx2
s_load_dwordx4 s_load_dwordx8 s_load_dwordx16 v_wmma_f32_16x16x16_f16 v_wmma_f32_16x16x16_bf16
v_wmma_f16_16x16x16_f16 v_wmma_bf16_16x16x16_bf16 v_wmma_i32_16x16x16_iu8 v_wmma_i32_16x16x16_iu4
v_mfma_f32_32x32x8_f16 v_mfma_f32_16x16x16_f16 v_mfma_f32_32x32x8_bf16_1k v_mfma_f32_16x16x16_bf16_1k
v_mfma_i32_32x32x16_i8 v_mfma_i32_16x16x32_i8 v_mfma_f32_32x32x2_f32 v_mfma_f32_16x16x4_f32
v_mfma_f64_16x16x4_f64 v_mfma_f32_32x32x16_fp8_fp8 v_mfma_f32_16x16x32_fp8_fp8 v_mfma_f32_32x32x16_bf8_bf8
v_mfma_f32_16x16x32_bf8_bf8 global_load_lds_dword s_getpc_b64
"""
_LOADS = """
dword dwordx2 dwordx3 dwordx4 ubyte sbyte ushort sshort ubyte_d16 short_d16 short_d16_hi b32 b64 b96 b128 u8
i8 u16 i16 d16_b16 d16_hi_b16 d16_u8 d16_hi_u8
"""
_STORES = """
dword dwordx2 dwordx3 dwordx4 byte short short_d16_hi byte_d16_hi b8 b16 b32 b64 b96 b128 d16_hi_b16
d16_hi_b8
"""
_LDS = """
read_b32 read_b64 read_b96 read_b128 read_u8 read_i8 read_u16 read_i16 read_u16_d16 read_u16_d16_hi
read2_b32 read2_b64 read2st64_b32 read2st64_b64 write_b8 write_b16 write_b32 write_b64 write_b96 write_b128
write2_b32 write2_b64 write2st64_b32 write2st64_b64 load_b32 load_b64 load_b96 load_b128 load_u8 load_i8
load_u16 load_i16 load_u16_d16 load_u16_d16_hi load_2addr_b32 load_2addr_b64 load_2addr_stride64_b32
load_2addr_stride64_b64 store_b8 store_b16 store_b32 store_b64 store_b96 store_b128 store_2addr_b32
store_2addr_b64 store_2addr_stride64_b32 store_2addr_stride64_b64
"""


def known_mnemonics() -> list[str]:
    """Return the mnemonics that the interpreter executes, without suffixes of their encoding."""
    names = {*VECTOR, *SPECIAL, *SCALARS, *SCALAR_FLOATS, *SAVING, *NOTHING, *BRANCHES, *_OTHERS.split()}
    names |= {f"v_{way}_{form}" for way in ("cmp", "cmpx") for form in COMPARISONS}
    for way, forms in (("load", _LOADS), ("store", _STORES)):
        names |= {
            f"{space}_{way}_{form}"
            for space in ("global", "flat", "scratch", "buffer")
            for form in forms.split()
        }
    names |= {f"ds_{form}" for form in _LDS.split()}
    names |= {f"global_atomic_{form}" for form in ATOMICS}
    return sorted(names)


# ---------------------------------------------------------------- decoding


FAMILIES = {
    **{f"gfx{number}": GFX11 for number in (*range(1100, 1104), *range(1150, 1154))},
    **{f"gfx{number}": GFX9 for number in ("90a", "940", "941", "942", "950")},
}
"""Instruction set of each architecture.  Tests cover gfx1151 and gfx942."""


def family_of(arch: str) -> InstructionSet:
    """Return the instruction set of an architecture.

    Raises:
        UnknownInstructionError: the architecture is not known.
    """
    if arch not in FAMILIES:
        raise UnknownInstructionError(f"the instructions of {arch!r} are not known{close_to(arch, FAMILIES)}")
    return replace(FAMILIES[arch], arch=arch)


def decode(kernel: KernelListing, family: InstructionSet) -> list[DecodedStep]:
    """Decode a kernel into steps, one for each instruction.

    Args:
        kernel: the parsed kernel.
        family: its instruction set.

    Raises:
        UnknownInstructionError: an instruction is not known; the message names the nearest known mnemonic.
        RegisterError: a register that the kernel does not declare, or a tuple that begins at an odd register.
        WaitStateError: an instruction follows another one sooner than hardware permits.
    """
    steps = [step_of(instruction, family, kernel.labels) for instruction in kernel.instructions]
    require_registers(kernel, family)
    if family.lanes == 64:  # gfx11 waits by itself
        require_wait_states(steps, family.arch)
    return steps


def step_of(
    instruction: Instruction, family: InstructionSet, labels: dict[str, int] | None = None
) -> DecodedStep:
    """Decode one instruction.

    Raises:
        UnknownInstructionError: the instruction, or this form of it, is not known.
    """
    try:
        step = _step(instruction, family, labels or {})
    except ListingError as error:
        if error.line:
            raise
        raise type(error)(error.message, *instruction.position) from None
    except (ValueError, IndexError, KeyError, TypeError) as error:
        why = "it takes other operands" if isinstance(error, TypeError) else error
        message = f"this form of {instruction.mnemonic!r} is not known ({why})"
        raise UnknownInstructionError(message, *instruction.position) from None
    if step is None:
        raise UnknownInstructionError(
            f"no meaning is known for {instruction.mnemonic!r} on {family.name}"
            f"{close_to(instruction.mnemonic, known_mnemonics())}",
            *instruction.position,
        )
    return step


def _step(instruction: Instruction, family: InstructionSet, labels: dict[str, int]) -> DecodedStep | None:
    name = instruction.mnemonic
    require_instruction(instruction, family.arch)
    if instruction.second is not None:
        parts = []
        for half in (replace(instruction, second=None), instruction.second):
            plain = replace(half, mnemonic=half.mnemonic.replace("v_dual_", "v_"))
            step = vector_step(plain, family) or packed_step(plain, family)
            if not isinstance(step, Compute1):
                raise UnknownInstructionError(f"no meaning is known for {half.mnemonic!r} in a double issue")
            parts.append(step)
        return Dual(instruction, *parts)
    if name in NOTHING:
        return Nothing(instruction)
    if name.startswith("s_waitcnt"):
        return WaitStep(instruction)
    if name == "s_endpgm":
        return End(instruction)
    if name == "s_barrier":
        return BarrierStep(instruction)
    if name in BRANCHES:
        label = instruction.operands[0].text
        if label not in labels:
            raise UnknownInstructionError(f"there is no label {label!r}{close_to(label, labels)}")
        return Jump(instruction, labels[label], family.lanes // 32)
    if (shape := wmma_shape(name)) and family.lanes == 32:
        return Wmma(instruction, shape)
    if (shape := mfma_shape(name)) and family.lanes == 64:
        return Mfma(instruction, of_arch(shape, family.arch))
    for decoder in (vector_step, scalar_step, memory_step, packed_step):
        if (step := decoder(instruction, family)) is not None:
            return step
    return None
