"""Which accesses to shared memory a GPU may serve by an instruction of the whole warp.

By ``ldmatrix`` and ``stmatrix`` each lane names a row and moves elements of other lanes.  A target decides
how a copy is done; here it is what any of them may do, so that a kernel that is clean is so on all.

Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
stmatrix".
"""

from __future__ import annotations

from tilewright.ir.ops import Op
from tilewright.ir.types import Value
from tilewright.passes.matrices import may_be_by_matrices
from tilewright.threads.distribution import Distribution


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
            self._known[key] = may_be_by_matrices(op, value, spread, self._lanes)
        return self._known[key]
