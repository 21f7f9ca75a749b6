"""Moving fragments by ``ldmatrix`` and ``stmatrix``: when the maps fit, and which lane names which row.

Source: PTX ISA, "Warp-level matrix load instruction: ldmatrix", "Warp-level matrix store instruction:
stmatrix", which is the same the other way round.  A matrix is 8 rows of 16 bytes; lane
``8*q + r`` gives the address of row ``r`` of matrix ``q``, and lane ``4*g + t`` receives the four bytes at
``4*t`` of row ``g`` of every matrix.  With ``.trans``, for 2-byte elements, it receives elements ``2*t`` and
``2*t + 1`` of column ``g``.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.dtypes import DType
from tilewright.ir.ops import Copy
from tilewright.ir.types import Memory
from tilewright.symbolic.nodes import TRUE
from tilewright.targets.simt.thread_values import take
from tilewright.threads.distribution import Distribution, Mode, merge
from tilewright.views.view import View


@dataclass(frozen=True)
class MatrixLoad:
    """How a fragment is loaded by ``ldmatrix``, or stored by ``stmatrix``.

    Args:
        count: matrices of one instruction.
        transposed: whether it is the ``.trans`` form.
        lanes: the rows whose addresses the threads give, as modes of the thread index.
        values: the matrices of further instructions, as modes.
        word: elements in four bytes.
    """

    count: int
    transposed: bool
    lanes: tuple[Mode, ...]
    values: tuple[Mode, ...]
    word: int

    @property
    def matrices(self) -> str:
        """The name of the prelude's function, less the ``ld`` or ``st`` that it begins with."""
        return f"matrix_x{self.count}{'_trans' if self.transposed else ''}"


def matrix_load(view: View, spread: Distribution, dtype: DType) -> MatrixLoad | None:
    """How ``ldmatrix`` loads a fragment of this distribution from a view of shared memory; None if it cannot.

    Args:
        view: the shared tensor.
        spread: the fragment's distribution.
        dtype: their element type.
    """
    if dtype.bytes not in (1, 2, 4) or view.valid != TRUE or len(spread.threads) < 2:
        return None
    word = 4 // dtype.bytes
    across, down, *warps = spread.threads
    values = list(spread.values)
    if word > 1 and (not values or values.pop(0) != Mode(word, across.dim, 1)):
        return None
    fits = (across.extent, across.step, down.extent, down.step) == (4, word, 8, 1)
    if not fits or across.dim is None or down.dim is None or across.dim == down.dim:
        return None
    for transposed in (False, True) if dtype.bytes == 2 else (False,):
        run, rows = (down.dim, across.dim) if transposed else (across.dim, down.dim)
        width = 16 // dtype.bytes
        steps = [mode.step for mode in (*values, *warps) if mode.dim == run and mode.extent > 1]
        if any(step % width for step in steps) or view.vector_width(run, width) < width:
            continue
        for count in (4, 2, 1):
            if split := take(merge(values), count):
                idle = (Mode(4 // count, None, 0),)
                lanes = (Mode(8, rows, 1), *split[0], *idle, *warps)
                return MatrixLoad(count, transposed, lanes, split[1], word)
    return None


def loads_by_matrix(op: Copy) -> MatrixLoad | None:
    """How a copy is done by ``ldmatrix``, if it can be."""
    source, target = op.source, op.target
    if not target.is_fragment or not source.is_tensor or source.dtype != target.dtype:
        return None
    if source.tensor.memory is not Memory.SHARED:
        return None
    return matrix_load(source.tensor.view, target.fragment.distribution, source.dtype)


def stores_by_matrix(op: Copy, features: frozenset[str]) -> MatrixLoad | None:
    """How a copy is done by ``stmatrix``, if it can be, on an architecture of these features."""
    source, target = op.source, op.target
    if "sm_90" not in features or not source.is_fragment or not target.is_tensor:
        return None
    spread = source.fragment.distribution
    if target.tensor.memory is not Memory.SHARED or spread.copies > 1:
        return None
    return matrix_load(target.tensor.view, spread, target.dtype)
