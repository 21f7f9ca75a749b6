"""The passes of the CUDA target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.common import IDLE_WAITS, INVERSES, OPERANDS, PACKED, SHARED_PLAN, WIDTHS
from tilewright.passes.expand_mma import wait_for_multiplies
from tilewright.passes.memory_instructions import settle_async
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.relayout import relayout_shared
from tilewright.targets.cuda.tensor_maps import derive_tensor_maps
from tilewright.targets.simt.banks import spread_over_banks
from tilewright.targets.simt.matrices import choose_engines

PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "at-once",
        "Multiplies by asynchronous atoms that nobody waits for get their fence, commit and wait.",
        lambda kernel, arch: wait_for_multiplies(kernel),
    ),
    Pass(
        "swizzles",
        "Shared tensors get a swizzle where their accesses would meet in one bank.",
        lambda kernel, arch: relayout_shared(kernel, spread_over_banks),
    ),
    WIDTHS,
    Pass(
        "settle-async",
        "Asynchronous copies too narrow for the hardware are done at once.",
        lambda kernel, arch: settle_async(kernel, arch),
    ),
    OPERANDS,
    Pass(
        "engines",
        "Copies whose engine nobody has said go by ldmatrix and stmatrix where these fit, else directly.",
        lambda kernel, arch: choose_engines(kernel, stores="sm_90" in arch.features),
    ),
    SHARED_PLAN,
    IDLE_WAITS,
    Pass(
        "tensor-maps",
        "Boxes that TMA copies get tensor maps.",
        lambda kernel, arch: derive_tensor_maps(kernel),
    ),
    INVERSES,
)


def lower(kernel: Kernel, arch: Arch) -> Passed:
    """The kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, arch, PASSES)
