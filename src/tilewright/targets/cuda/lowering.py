"""The passes of the CUDA target, in their order."""

from __future__ import annotations

from tilewright.arch import Arch
from tilewright.ir.kernel import Kernel
from tilewright.passes.expand_mma import expand_mma
from tilewright.passes.quotients import derive_inverses
from tilewright.passes.relayout import relayout_shared
from tilewright.passes.vectors import resolve_vectors, settle_async
from tilewright.targets.cuda.banks import spread_over_banks
from tilewright.targets.cuda.tensor_maps import derive_tensor_maps


def lower(kernel: Kernel, arch: Arch) -> tuple[Kernel, tuple[str, ...]]:
    """The kernel that the text spells, and a note for each choice that was made.

    1. Shared tensors get a swizzle where their accesses would meet in one bank.
    2. Copies get the widest accesses that are legal.
    3. Asynchronous copies too narrow for the hardware are done at once.
    4. Matrix multiplies load their operands into registers.
    5. Boxes that TMA copies get tensor maps.
    6. Sizes that addresses are divided by get an inverse, which the launcher computes.
    """
    kernel, re_laid_out = relayout_shared(kernel, spread_over_banks)
    kernel = resolve_vectors(kernel)
    kernel, at_once = settle_async(kernel)
    kernel = expand_mma(kernel)
    kernel = derive_tensor_maps(kernel)
    kernel = derive_inverses(kernel)
    return kernel, (*re_laid_out, *at_once)
