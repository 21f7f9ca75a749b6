"""Which accesses to shared memory a GPU may serve by an instruction of the whole warp.

By ``ldmatrix`` and ``stmatrix`` each lane names a row and moves elements of other lanes.  A target decides
how a copy is done; here it is what any of them may do, so that a kernel that is clean is so on all.

Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
stmatrix".
"""

from __future__ import annotations

from tilewright.ir.legality import LARGEST_ACCESS_BYTES, widest_vector
from tilewright.ir.ops import Copy, Op
from tilewright.ir.types import Value
from tilewright.passes.matrices import may_be_by_matrices
from tilewright.threads.distribution import Distribution


class Vectors:
    """Remembers for each access how many elements it moves at once."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, Value | None], int] = {}

    def of_copy(self, op: Copy) -> int:
        """The vector of a copy: the one that it names, or the widest that is legal."""
        key = (id(op), None)
        if key not in self._known:
            self._known[key] = widest_vector(op, op.spread) if op.vector is None else op.vector
        return self._known[key]

    def of_operand(self, op: Op, value: Value, spread: Distribution) -> int:
        """The widest vector by which an operand of a multiply is read from memory.

        Args:
            op: the multiply.
            value: the operand.
            spread: who holds what of it.
        """
        key = (id(op), value)
        if key not in self._known:
            dim, run = spread.vector()
            widest = min(run & -run, max(LARGEST_ACCESS_BYTES // value.dtype.bytes, 1))
            self._known[key] = value.tensor.view.vector_width(dim, widest)
        return self._known[key]


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
