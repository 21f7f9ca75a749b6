"""The problem that an instance is asked to compute: three matrices as they lie in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError
from tilewright.instances.words import COLUMN
from tilewright.kinds import Count
from tilewright.runtime.arrays import describe
from tilewright.runtime.specimens import Specimen

PACKED = -1
"""The stride of a matrix whose rows, or columns, follow each other without a gap."""


@launches
@dataclass(frozen=True)
class Matrix:
    """A matrix in memory: its shape, strides and dtype.

    Args:
        shape: rows and columns.
        strides: elements from one row to the next, and from one column to the next.
        dtype: element type; None: that of the instance.

    Example:
        >>> import tilewright as tw
        >>> tw.ck.Matrix((100, 64), (80, 1)).elems
        7984
    """

    shape: tuple[Count, Count]
    strides: tuple[int, int]
    dtype: DType | str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(map(int, self.shape)))
        object.__setattr__(self, "strides", tuple(map(int, self.strides)))
        if self.dtype is not None:
            object.__setattr__(self, "dtype", dtype(self.dtype))

    @property
    def elems(self) -> int:
        """Elements of memory from its first element to its last."""
        steps = zip(self.shape, self.strides, strict=True)
        return 1 + sum((extent - 1) * abs(stride) for extent, stride in steps)


@launches
@dataclass(frozen=True)
class GemmProblem:
    """``C (M, N) = A (M, K) @ B (K, N)``: the problem that an instance solves.

    Args:
        a: A.
        b: B.
        c: C.

    Example:
        >>> import tilewright as tw
        >>> matrix = tw.ck.Matrix((64, 64), (64, 1))
        >>> tw.ck.GemmProblem(matrix, matrix, matrix).extents
        (64, 64, 64)
    """

    a: Matrix
    b: Matrix
    c: Matrix

    @classmethod
    def of(cls, a: Any, b: Any, c: Any) -> GemmProblem:
        """The problem of three arrays, of any framework.

        Raises:
            LaunchError: what is no array, or no matrix.
        """
        return cls(*(_of_array(name, array) for name, array in zip("ABC", (a, b, c), strict=True)))

    @property
    def extents(self) -> tuple[int, int, int]:
        """(M, N, K) as A and B have them."""
        (m, k), (_, n) = self.a.shape, self.b.shape
        return m, n, k


def _of_array(name: str, array: Any) -> Matrix:
    info = array.info if isinstance(array, Specimen) else describe(array, f"GemmProblem, {name}")
    if len(info.shape) != 2:
        raise LaunchError(f"GemmProblem: {name} has shape {info.shape}; nearest legal choice: a matrix")
    (rows, columns), (down, across) = info.shape, info.strides
    return Matrix((rows, columns), (down, across), info.dtype)


def packed(rows: int, columns: int, layout: str, stride: int) -> Matrix:
    """A matrix of a layout.

    Args:
        rows: how many.
        columns: how many.
        layout: ``"row"`` or ``"column"``.
        stride: elements from one row to the next, or from one column to the next; -1: as many as it has.
    """
    long = rows if layout == COLUMN else columns
    step = long if stride == PACKED else stride
    return Matrix((rows, columns), (1, step) if layout == COLUMN else (step, 1))
