"""Which accesses to shared memory a GPU may serve by an instruction of the whole warp.

By ``ldmatrix`` and ``stmatrix`` each lane names a row and moves elements of other lanes.  A target decides
how a copy is done; here it is what any of them may do, so that a kernel that is clean is so on all.

Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
stmatrix".
"""

from __future__ import annotations

from tilewright.ir.ops import Copy, Mma, Op
from tilewright.ir.types import Memory, Value
from tilewright.targets.simt.matrices import matrices_of, matrix_load
from tilewright.threads.distribution import Distribution

MATRIX_LANES = 32
"""Lanes of the warps that have these instructions."""


class Engines:
    """Remembers for each access whether it may be one of the whole warp.

    Args:
        lanes: threads per warp.
    """

    def __init__(self, lanes: int) -> None:
        self._lanes = lanes
        self._known: dict[tuple[int, Value], bool] = {}

    def by_warp(self, op: Op, value: Value, spread: Distribution) -> bool:
        """Whether the lanes of a warp may access a tensor together, each for the others.

        Args:
            op: the operation.
            value: the tensor, one of its operands.
            spread: who holds what.
        """
        key = (id(op), value)
        if key not in self._known:
            self._known[key] = self._lanes == MATRIX_LANES and _may_be(op, value, spread)
        return self._known[key]


def _may_be(op: Op, value: Value, spread: Distribution) -> bool:
    if value.tensor.memory is not Memory.SHARED:
        return False
    match op:
        case Copy():
            return op.engine == "matrix" or matrices_of(op, stores=True) is not None
        case Mma():
            return matrix_load(value.tensor.view, spread, value.dtype) is not None
        case _:
            return False
