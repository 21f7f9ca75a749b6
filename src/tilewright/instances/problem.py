"""The problem of an instance, three matrices in memory, and the rules for it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from tilewright.argument_checks import Count
from tilewright.calls import launches
from tilewright.dtypes import DType, dtype
from tilewright.errors import LaunchError
from tilewright.instances.instance_rules import multiple
from tilewright.instances.template import Template
from tilewright.instances.words import COLUMN, Check, checked, padded_dims, padding
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
        dtype: element type; None: the instance's.

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
        """Return the problem of three arrays of any framework.

        Raises:
            LaunchError: an argument is no array, or no matrix.
        """
        matrices = []
        for name, array in zip("ABC", (a, b, c), strict=True):
            info = array.info if isinstance(array, Specimen) else describe(array, f"GemmProblem, {name}")
            if len(info.shape) != 2:
                raise LaunchError(f"GemmProblem: {name} has shape {info.shape}", "a matrix")
            (rows, columns), (down, across) = info.shape, info.strides
            matrices.append(Matrix((rows, columns), (down, across), info.dtype))
        return cls(*matrices)

    @property
    def extents(self) -> tuple[int, int, int]:
        """Extents (M, N, K) of A and B."""
        (m, k), (_, n) = self.a.shape, self.b.shape
        return m, n, k


def packed(rows: int, columns: int, layout: str, stride: int) -> Matrix:
    """Return a matrix of a layout.

    Args:
        rows: number of rows.
        columns: number of columns.
        layout: ``"row"`` or ``"column"``.
        stride: elements from one row or column to the next; -1: its length.
    """
    long = rows if layout == COLUMN else columns
    step = long if stride == PACKED else stride
    return Matrix((rows, columns), (1, step) if layout == COLUMN else (step, 1))


# ---------------------------------------------------------------- rules: extents, strides, vectors, steps


MOST_BYTES = 2 << 30
"""Largest size of A and of B, whose offsets have 32 bits."""


def rules_of_problems(instance: Template, problem: GemmProblem) -> Iterator[Check]:
    """Yield the checks of an instance for a problem."""
    (m, k), (depth, n), (rows, columns) = problem.a.shape, problem.b.shape, problem.c.shape
    ok = k == depth and (rows, columns) == (m, n)
    value = f"A {m} x {k}, B {depth} x {n}, C {rows} x {columns}"
    near = f"B {k} x {n}, C {m} x {n}"
    yield checked("ProblemSize", ok, value, "A M x K, B K x N, C M x N", near)
    for letter, matrix in (("A", problem.a), ("B", problem.b), ("C", problem.c)):
        yield from _matrix(instance, letter, matrix)

    # Vectors are loaded and stored along the contiguous dimension in memory, padded or not.
    extents = dict(zip("MNK", problem.extents, strict=True))
    a, b = instance.transfers
    for name, letter, vector, field in (
        ("load of A", "A", a.src_scalar_per_vector, "a_block_transfer.src_scalar_per_vector"),
        ("load of B", "B", b.src_scalar_per_vector, "b_block_transfer.src_scalar_per_vector"),
        ("store of C", "C", instance.c_shuffle.scalar_per_vector, "c_shuffle.scalar_per_vector"),
    ):
        dim = instance.contiguous(letter)
        extent = extents[dim]
        near = f"{dim}={multiple(extent, vector)}, or {field}={gcd(extent, vector)}"
        limit = f"{dim} a multiple of {vector}, as it lies in memory"
        yield checked(f"vector {name}", extent % vector == 0, f"{dim}={extent}", limit, near)

    pads = padded_dims(instance.gemm_specialization)
    if instance.matrix == "xdl":  # for WMMA this follows from KPerBlock
        for letter, unit in zip("AB", instance.k1s, strict=True):
            near = f'K={multiple(k, unit)}, or gemm_specialization="{padding(pads + "K")}"'
            limit = f"K a multiple of {letter}K1={unit}, or padded"
            yield checked(f"{letter}K1", "K" in pads or k % unit == 0, f"K={k}", limit, near)
    padded = instance.padded(*problem.extents)
    for dim, given, extent, unit in zip("MNK", problem.extents, padded, instance.tile, strict=True):
        value = f"{dim}={given}" + (f", padded to {extent}" if extent != given else "")
        near = f'{dim}={multiple(extent, unit)}, or gemm_specialization="{padding(pads + dim)}"'
        limit = f"a multiple of {dim}PerBlock={unit}"
        yield checked(f"whole tiles along {dim}", extent % unit == 0, value, limit, near)

    depth, version = instance.k_per_block, instance.pipeline_version
    steps = -(-k // depth)
    paired = version == "v2" or instance.num_prefetch == 2
    limit = f"{'an even number' if paired else 'any number'} for {version} with "
    limit += f"NumPrefetch={instance.num_prefetch}"
    near = f'K={(steps + 1) * depth}, or num_prefetch=1 and pipeline_version="v1"'
    yield checked("steps along K", not paired or steps % 2 == 0, f"{steps} of {depth}", limit, near)
    for letter, dim, matrix, kind in zip("AB", "MN", (problem.a, problem.b), instance.dtypes, strict=True):
        taken = matrix.elems * kind.bytes
        near = f"parts of {letter} along {dim}, one launch for each"
        limit = f"at most {MOST_BYTES}"
        yield checked(f"{letter} in memory", taken <= MOST_BYTES, f"{taken} bytes", limit, near)


def _matrix(instance: Template, letter: str, matrix: Matrix) -> Iterator[Check]:
    """Check that a matrix has the instance's dtype and layout."""
    name = letter.lower()
    wanted = dtype(getattr(instance, f"{name}_dtype"))
    given = wanted if matrix.dtype is None else dtype(matrix.dtype)
    near = f'{name}_dtype="{given}", or {letter} of {wanted}'
    yield checked(f"{letter}DataType", given == wanted, given, str(wanted), near)

    layout = getattr(instance, f"{name}_layout")
    run, step = (0, 1) if layout == COLUMN else (1, 0)
    (extent, stride), (count, pitch) = ((matrix.shape[axis], matrix.strides[axis]) for axis in (run, step))
    ok = (stride == 1 or extent == 1) and (pitch >= extent or count == 1)
    what = "columns" if layout == COLUMN else "rows"
    value = f"{matrix.shape[0]} x {matrix.shape[1]}, strides {matrix.strides}"
    limit = f"{layout}-major: stride 1 within {what}, at least {extent} from one to the next"
    near = f"strides {(1, extent) if layout == COLUMN else (extent, 1)}"
    yield checked(f"{letter}Layout and Stride{letter}", ok, value, limit, near)
