"""Whether a pass over an operand before the product pays: to widen narrow weights, or to reorder."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from tilewright.arch import Arch
from tilewright.dtypes import PACKED, DType
from tilewright.ops.scales import SIXTEEN_BITS, widens_groups
from tilewright.runtime.arrays import ArrayInfo
from tilewright.schedule.panels_ring import depth_for
from tilewright.targets.target import Target

WIDENED_ROWS = {True: 6144, False: 2048}
"""From how many rows on it pays, for weights that are contiguous along K and for others.

On an H200 both ways took the same time for 4096 and for 1024 rows; at 8192 and 4096 the pass gained a sixth.
"""

WIDENED_ELEMENTS = 1 << 22
"""Of the weights; the launch of a pass over fewer takes longer than the pass."""


def pays_widened(infos: Mapping[str, ArrayInfo], multiplied: DType, features: frozenset[str]) -> bool:
    """Whether it takes less time to widen operand B before the product than on the way.

    Args:
        infos: the arrays of a product.
        multiplied: the dtype of the multiplication.
        features: of the machine.
    """
    a, b = infos["a"], infos["b"]
    narrow = b.dtype.bits == 8 and multiplied in SIXTEEN_BITS and a.dtype == multiplied
    if "wgmma" not in features or not narrow or len(b.shape) < 2 or prod(b.shape) < WIDENED_ELEMENTS:
        return False
    return prod(a.shape[:-1]) // prod(b.shape[:-2]) >= WIDENED_ROWS[b.strides[-2] == 1]


SHORT_DEPTH, MANY_ROWS = 32, 512
"""Tiles less deep, as groups of 136 or 2056 neighbours need, take longer than a pass for so many rows.

On a Zen 4 1024 rows of 512 columns in groups of 2056 took 54 ms in tiles 8 deep and 47 behind a pass, 512
rows 27 in both ways.
"""

GROUPED_ROWS = 257
"""The same for weights of 4 bits in groups: up to 256 rows they are one kernel without being asked for.

On an H200 a product of 128 rows with 8192 by 8192 weights took 78 us without the pass and 101 with it, one of
256 rows 148 and 110: ``prepass=True`` is the faster one from about 192 rows on.
"""


def pays_widened_groups(
    infos: Mapping[str, ArrayInfo], multiplied: DType, features: frozenset[str], target: Target
) -> bool:
    """The same for weights in groups; on a GPU those of more than 4 bits are widened on the way.

    Processors decode weights while they pack panels, which took less time than a pass for any number of rows
    where tiles are deep.  Groups that only short tiles divide take the pass for many rows, and those of a few
    neighbours, which would be decoded one by one, for any.

    Args:
        infos: the arrays of a product.
        multiplied: the dtype of the multiplication.
        features: of the machine.
        target: the machine's.
    """
    a, b = infos["a"], infos["b"]
    if not target.warps:
        groups = next((infos[name].shape[0] for name in ("scale_b", "zero_b") if name in infos), 1)
        depth = depth_for([b.shape[0] // max(groups, 1)])
        is_slow = depth < SHORT_DEPTH and (not depth or prod(a.shape[:-1]) >= MANY_ROWS)
        return target.machine_code and is_slow and widens_groups(infos, multiplied)
    if "wgmma" not in features or prod(b.shape) < WIDENED_ELEMENTS or prod(a.shape[:-1]) < GROUPED_ROWS:
        return False
    return b.dtype in PACKED and widens_groups(infos, multiplied)


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
        moved_bytes: bytes that the prepass reads and writes.
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
