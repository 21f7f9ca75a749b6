"""The problem of an instance, three matrices in memory, and whether the instance can compute it."""

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
from tilewright.instances.words import COLUMN, Check, padded_dims, padding
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


# ---------------------------------------------------------------- rules: extents, strides, vectors, steps


MOST_BYTES = 2 << 30
"""Of A and of B each, whose offsets have 32 bits."""


def rules_of_problems(instance: Template, problem: GemmProblem) -> Iterator[Check]:
    """All answers about an instance and a problem."""
    yield _extents(problem)
    for letter, matrix in (("A", problem.a), ("B", problem.b), ("C", problem.c)):
        yield from _matrix(instance, letter, matrix)
    yield from _vectors(instance, problem)
    yield from _whole_k1(instance, problem)
    # The kernel works on whole tiles only.
    padded = instance.padded(*problem.extents)
    for dim, given, extent, unit in zip("MNK", problem.extents, padded, instance.tile, strict=True):
        ok = extent % unit == 0
        value = f"{dim}={given}" + (f", padded to {extent}" if extent != given else "")
        near = f'{dim}={multiple(extent, unit)}, or gemm_specialization="{_with(instance, dim)}"'
        limit = f"a multiple of {dim}PerBlock={unit}"
        yield Check(f"whole tiles along {dim}", ok, value, limit, "" if ok else near)
    yield _steps(instance, problem)
    for letter, matrix in (("A", problem.a), ("B", problem.b)):
        yield _size(instance, letter, matrix)


def _extents(problem: GemmProblem) -> Check:
    """The matrices agree in M, N and K."""
    (m, k), (depth, n), (rows, columns) = problem.a.shape, problem.b.shape, problem.c.shape
    ok = k == depth and (rows, columns) == (m, n)
    value = f"A {m} x {k}, B {depth} x {n}, C {rows} x {columns}"
    near = "" if ok else f"B {k} x {n}, C {m} x {n}"
    return Check("ProblemSize", ok, value, "A M x K, B K x N, C M x N", near)


def _matrix(instance: Template, letter: str, matrix: Matrix) -> Iterator[Check]:
    """A matrix has the instance's dtype and layout."""
    name = letter.lower()
    wanted = dtype(getattr(instance, f"{name}_dtype"))
    given = wanted if matrix.dtype is None else dtype(matrix.dtype)
    near = "" if given == wanted else f'{name}_dtype="{given}", or {letter} of {wanted}'
    yield Check(f"{letter}DataType", given == wanted, str(given), str(wanted), near)

    layout = getattr(instance, f"{name}_layout")
    run, step = (0, 1) if layout == COLUMN else (1, 0)
    (extent, stride), (count, pitch) = ((matrix.shape[axis], matrix.strides[axis]) for axis in (run, step))
    ok = (stride == 1 or extent == 1) and (pitch >= extent or count == 1)
    what = "columns" if layout == COLUMN else "rows"
    value = f"{matrix.shape[0]} x {matrix.shape[1]}, strides {matrix.strides}"
    limit = f"{layout}-major: stride 1 within {what}, at least {extent} from one to the next"
    near = "" if ok else f"strides {(1, extent) if layout == COLUMN else (extent, 1)}"
    yield Check(f"{letter}Layout and Stride{letter}", ok, value, limit, near)


def _vectors(instance: Template, problem: GemmProblem) -> Iterator[Check]:
    """What is contiguous is loaded and stored in whole vectors, of what lies in memory, padded or not."""
    m, n, k = problem.extents
    extents = {"M": m, "N": n, "K": k}
    a, b = instance.transfers
    asked = (
        ("load of A", "A", a.src_scalar_per_vector, "a_block_transfer.src_scalar_per_vector"),
        ("load of B", "B", b.src_scalar_per_vector, "b_block_transfer.src_scalar_per_vector"),
        ("store of C", "C", instance.c_shuffle.scalar_per_vector, "c_shuffle.scalar_per_vector"),
    )
    for name, letter, vector, field in asked:
        dim = instance.contiguous(letter)
        extent = extents[dim]
        ok = extent % vector == 0
        near = f"{dim}={multiple(extent, vector)}, or {field}={gcd(extent, vector)}"
        limit = f"{dim} a multiple of {vector}, as it lies in memory"
        yield Check(f"vector {name}", ok, f"{dim}={extent}", limit, "" if ok else near)


def _whole_k1(instance: Template, problem: GemmProblem) -> Iterator[Check]:
    """K of whole AK1 and BK1, unless K is padded; what WMMA asks of K1 follows from KPerBlock."""
    if instance.matrix != "xdl":
        return
    k, is_padded = problem.extents[2], "K" in padded_dims(instance.gemm_specialization)
    for letter, unit in zip("AB", instance.k1s, strict=True):
        ok = is_padded or k % unit == 0
        near = f'K={multiple(k, unit)}, or gemm_specialization="{_with(instance, "K")}"'
        limit = f"K a multiple of {letter}K1={unit}, or padded"
        yield Check(f"{letter}K1", ok, f"K={k}", limit, "" if ok else near)


def _with(instance: Template, dim: str) -> str:
    """The specialization that pads one more dimension."""
    return padding(padded_dims(instance.gemm_specialization) + dim)


def _steps(instance: Template, problem: GemmProblem) -> Check:
    """The pipeline takes so many steps along K."""
    depth = instance.k_per_block
    steps = -(-problem.extents[2] // depth)
    paired = instance.pipeline_version == "v2" or instance.num_prefetch == 2
    ok = not paired or steps % 2 == 0
    which = f"{instance.pipeline_version} with NumPrefetch={instance.num_prefetch}"
    limit = f"{'an even number' if paired else 'any number'} for {which}"
    near = f'K={(steps + 1) * depth}, or num_prefetch=1 and pipeline_version="v1"'
    return Check("steps along K", ok, f"{steps} of {depth}", limit, "" if ok else near)


def _size(instance: Template, letter: str, matrix: Matrix) -> Check:
    """Offsets within a matrix fit 32 bits."""
    kind = dtype(getattr(instance, f"{letter.lower()}_dtype"))
    taken = matrix.elems * kind.bytes
    dim = "M" if letter == "A" else "N"
    near = "" if taken <= MOST_BYTES else f"parts of {letter} along {dim}, one launch for each"
    return Check(f"{letter} in memory", taken <= MOST_BYTES, f"{taken} bytes", f"at most {MOST_BYTES}", near)
