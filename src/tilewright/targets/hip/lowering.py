"""The passes of the HIP target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.by_address import deal_by_address
from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.packed import copy_bytes
from tilewright.passes.pipeline import Pass, Passed, run_passes
from tilewright.passes.quotients import derive_inverses
from tilewright.passes.relayout import relayout_shared
from tilewright.passes.shared_plan import plan_shared
from tilewright.passes.vectors import resolve_vectors
from tilewright.targets.simt.banks import Serving, spread_over_banks


def _spread(kernel: Kernel, arch: Arch) -> Passed:
    serving = Serving(arch.lanes, matrices=False, pairs=False, by_address=bool(arch.async_bytes))
    return relayout_shared(kernel, lambda op, using: spread_over_banks(op, using, serving))


PASSES: tuple[Pass, ...] = (
    Pass(
        "packed",
        "Elements of less than a byte are copied as bytes, and converted in registers.",
        lambda kernel, arch: copy_bytes(kernel),
    ),
    Pass(
        "swizzles",
        "Shared tensors get a swizzle where their accesses would meet in one bank.",
        _spread,
    ),
    Pass(
        "widths",
        "Copies get the widest accesses that are legal.",
        lambda kernel, arch: resolve_vectors(kernel),
    ),
    Pass(
        "by-address",
        "Copies in the background are dealt out by address in shared memory; others are done at once.",
        lambda kernel, arch: deal_by_address(kernel, arch),
    ),
    Pass(
        "operands",
        "Matrix multiplies load their operands into registers.",
        lambda kernel, arch: expand_mma(kernel),
    ),
    Pass(
        "shared-plan",
        "Tensors in shared memory whose lives do not meet lie in the same bytes.",
        lambda kernel, arch: plan_shared(kernel),
    ),
    Pass(
        "inverses",
        "Sizes that addresses are divided by get an inverse, which the launcher computes.",
        lambda kernel, arch: derive_inverses(kernel),
    ),
)


def lower(kernel: Kernel, arch: Arch) -> Passed:
    """The kernel that the text spells, and a note for each choice that was made."""
    return run_passes(kernel, arch, PASSES)
