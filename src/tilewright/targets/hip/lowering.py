"""The passes of the HIP target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.by_address import deal_by_address
from tilewright.passes.common import IDLE_WAITS, INVERSES, OPERANDS, PACKED, SHARED_PLAN, WIDTHS
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.relayout import relayout_shared
from tilewright.targets.simt.banks import Serving, spread_over_banks


def _spread(kernel: Kernel, arch: Arch) -> Passed:
    serving = Serving(
        *(arch.lanes, arch.banks, arch.read_order),
        matrices=False,
        pairs=False,
        by_address=bool(arch.async_bytes),
    )
    return relayout_shared(kernel, lambda op, using: spread_over_banks(op, using, serving))


PASSES: tuple[Pass, ...] = (
    PACKED,
    Pass(
        "swizzles",
        "Shared tensors get a swizzle where their accesses would meet in one bank.",
        _spread,
    ),
    WIDTHS,
    Pass(
        "by-address",
        "Copies in the background are dealt out by address in shared memory; others are done at once.",
        lambda kernel, arch: deal_by_address(kernel, arch),
    ),
    OPERANDS,
    SHARED_PLAN,
    IDLE_WAITS,
    INVERSES,
)


def lower(kernel: Kernel, arch: Arch) -> Passed:
    """The kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, arch, PASSES)
