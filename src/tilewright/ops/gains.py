"""Whether a launch that brings operands into another order is paid back by the faster product behind it."""

from __future__ import annotations

from tilewright.arch import Arch

LAUNCH_US = 4.0
"""What one more kernel takes before it does anything."""

DENSE_SHARE = 0.7
"""Of the highest rate, what is reached on dense operands: measured on an H200, in f16 and tf32, 0.44 to 0.52
at 1024, where a launch counts, 0.67 to 0.78 at 2048 to 8192; by multiply-adds of f32 0.66 to 0.69."""


def gains(flops: float, kind: str, moved_bytes: float, share: float, machine: tuple[Arch, int]) -> bool:
    """Whether a product is estimated to be faster with operands that are dense, and written so before.

    Args:
        flops: additions and multiplications of the product.
        kind: what is multiplied.
        moved_bytes: what is read and written before.
        share: of the highest rate, what is reached on the operands as they are.
        machine: its architecture, and how many processors there are.
    """
    arch, processors = machine
    if arch.rates is None:
        return False
    board = arch.rates.boards[0]
    units = arch.rates.tensor_flops if kind in arch.rates.tensor_flops else arch.rates.fma_flops
    work = flops / (units[kind] * (processors or board.multiprocessors) * board.clock_mhz)
    copied = moved_bytes / (board.copied_gbytes_per_s or board.memory_gbytes_per_s) / 1e3
    return work / DENSE_SHARE + copied + LAUNCH_US < work / share
