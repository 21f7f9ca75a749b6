"""From the instructions of a listing to steps that act on waves; what is unknown is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from tilewright.amdgcn.decode_memory import memory_step
from tilewright.amdgcn.decode_packed import packed_step
from tilewright.amdgcn.decode_scalar import scalar_step
from tilewright.amdgcn.decode_vector import vector_step
from tilewright.amdgcn.faults import ListingError, UnknownInstructionError, nearest
from tilewright.amdgcn.flow import BRANCHES, NOTHING, Barrier, Branch, End, Nothing, Wait
from tilewright.amdgcn.known import known_mnemonics
from tilewright.amdgcn.machine_rules import require_instruction, require_machine_rules
from tilewright.amdgcn.matrix import Mfma, Wmma, mfma_shape, of_arch, wmma_shape
from tilewright.amdgcn.state import GFX9, GFX11, Family
from tilewright.amdgcn.steps import Compute1, Dual, Step
from tilewright.amdgcn.text import Instruction, KernelListing

FAMILIES = {
    **dict.fromkeys(
        ("gfx1100", "gfx1101", "gfx1102", "gfx1103", "gfx1150", "gfx1151", "gfx1152", "gfx1153"), GFX11
    ),
    **dict.fromkeys(("gfx90a", "gfx940", "gfx941", "gfx942", "gfx950"), GFX9),
}
"""The instruction sets of architectures by their names; gfx1151 and gfx942 are those that are tested."""

Decoder = Callable[[Instruction, Family], Step | None]
_DECODERS: tuple[Decoder, ...] = (vector_step, scalar_step, memory_step, packed_step)


def family_of(arch: str) -> Family:
    """The instruction set of an architecture.

    Raises:
        UnknownInstructionError: none that is known here.
    """
    if arch not in FAMILIES:
        raise UnknownInstructionError(f"the instructions of {arch!r} are not known{nearest(arch, FAMILIES)}")
    return replace(FAMILIES[arch], arch=arch)


def decode(kernel: KernelListing, family: Family) -> list[Step]:
    """The steps of a kernel.

    Args:
        kernel: as it was read.
        family: its instruction set.

    Returns:
        One step for each instruction.

    Raises:
        UnknownInstructionError: an instruction without a meaning here; names the line and the nearest known
            mnemonic.
        RegisterError: a register that the kernel does not declare, or a tuple that begins at an odd one.
        HazardError: an instruction follows another one sooner than hardware permits.
    """
    steps = [step_of(instruction, family, kernel.labels) for instruction in kernel.instructions]
    require_machine_rules(kernel, steps, family)
    return steps


def step_of(instruction: Instruction, family: Family, labels: dict[str, int] | None = None) -> Step:
    """The step of one instruction.

    Raises:
        UnknownInstructionError: it has no meaning here.
    """
    try:
        step = _step(instruction, family, labels or {})
    except ListingError as error:
        if error.line:
            raise
        raise type(error)(error.message, instruction.line, instruction.text) from None
    except (ValueError, IndexError, KeyError, TypeError) as error:
        why = "it takes other operands" if isinstance(error, TypeError) else error
        raise UnknownInstructionError(
            f"this form of {instruction.mnemonic!r} is not known ({why})",
            instruction.line,
            instruction.text,
        ) from None
    if step is None:
        raise UnknownInstructionError(
            f"no meaning is known for {instruction.mnemonic!r} on {family.name}"
            f"{nearest(instruction.mnemonic, known_mnemonics())}",
            instruction.line,
            instruction.text,
        )
    return step


def _step(instruction: Instruction, family: Family, labels: dict[str, int]) -> Step | None:
    name = instruction.mnemonic
    require_instruction(instruction, family.arch)
    if instruction.second is not None:
        return _dual(instruction, family)
    if name in NOTHING:
        return Nothing(instruction)
    if name.startswith("s_waitcnt"):
        return Wait(instruction)
    if name == "s_endpgm":
        return End(instruction)
    if name == "s_barrier":
        return Barrier(instruction)
    if name in BRANCHES:
        return _branch(instruction, family, labels)
    if (shape := wmma_shape(name)) and family.lanes == 32:
        return Wmma(instruction, shape)
    if (shape := mfma_shape(name)) and family.lanes == 64:
        return Mfma(instruction, of_arch(shape, family.arch))
    for decoder in _DECODERS:
        if (step := decoder(instruction, family)) is not None:
            return step
    return None


def _branch(instruction: Instruction, family: Family, labels: dict[str, int]) -> Step:
    label = instruction.operands[0].text
    if label not in labels:
        raise UnknownInstructionError(f"there is no label {label!r}{nearest(label, labels)}")
    return Branch(instruction, labels[label], family.lanes // 32)


def _dual(instruction: Instruction, family: Family) -> Step:
    assert instruction.second is not None
    halves: Sequence[Instruction] = (replace(instruction, second=None), instruction.second)
    parts = []
    for half in halves:
        plain = replace(half, mnemonic=half.mnemonic.replace("v_dual_", "v_"))
        step = vector_step(plain, family) or packed_step(plain, family)
        if not isinstance(step, Compute1):
            raise UnknownInstructionError(f"no meaning is known for {half.mnemonic!r} in a double issue")
        parts.append(step)
    return Dual(instruction, parts[0], parts[1])
