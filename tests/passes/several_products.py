"""A kernel that multiplies several pairs of tiles in shared memory, in a given order."""

from __future__ import annotations

from typing import Any, TypeAlias

import tilewright as tw
from tilewright.ir.kernel import Kernel

Order: TypeAlias = tuple[tuple[str, str, str, bool], ...]
"""Products: both operands, the sums they are added to, and whether they are subtracted; or barriers."""

COMPLEX: Order = (
    ("A", "B", "C", False),
    ("A2", "B2", "C", True),
    ("A", "B2", "D", False),
    ("A2", "B", "D", False),
)
"""Those of complex numbers."""

BARRIER = ("barrier", "", "", False)
DEPTH = 8


@tw.kernel(A="M K", A2="M K", B="N K", B2="N K", C="M N", D="M N")
def several(A: Any, A2: Any, B: Any, B2: Any, C: Any, D: Any, *, mma: tw.TiledMma, order: Order) -> None:
    """``C`` and ``D`` are the sums of the products in ``order``."""
    rows, columns = mma.tile[:2]
    m, n = tw.block_index(tw.ceil_div(C.shape, (rows, columns)))
    sides = ((A, m, rows), (A2, m, rows), (B, n, columns), (B2, n, columns))
    held = [tw.shared((extent, DEPTH), array.dtype) for array, _, extent in sides]
    named = dict(zip(("A", "A2", "B", "B2"), held, strict=True))
    sums = {"C": tw.accumulator(mma), "D": tw.accumulator(mma)}
    for k in tw.range(tw.ceil_div(A.shape[1], DEPTH)):
        for (array, at, extent), tile in zip(sides, held, strict=True):
            tw.copy(array.tile((extent, DEPTH), (at, k)), tile, threads=mma.threads)
        tw.barrier()
        for product in order:
            if product == BARRIER:
                tw.barrier()
            else:
                left, right, total, negative = product
                tw.mma(named[left], named[right], sums[total], negative=negative)
        tw.barrier()
    tw.copy(sums["C"], C.tile((rows, columns), (m, n)))
    tw.copy(sums["D"], D.tile((rows, columns), (m, n)))


def traced(order: Order, mma: tw.TiledMma) -> Kernel:
    """Trace the kernel for f32 matrices whose rows begin at multiples of 16 bytes."""
    spec = tw.TensorSpec(tw.f32, 2, 1, (1, 4), (4, 1), 16, False)
    return several.bind(mma=mma, order=order).trace(*(spec,) * 6)
