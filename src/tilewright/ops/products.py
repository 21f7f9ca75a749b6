"""Dataflow kernels of `matmul`, `scaled_mm`, `grouped_matmul` and others; schedules expand them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from tilewright import dtypes
from tilewright.dtypes import DType
from tilewright.ops.ending import (
    NO_LATE_TERMS,
    Conversion,
    LateTerms,
    Output,
    RowScales,
    Saturation,
    Units,
    Wrapping,
    finishing,
)
from tilewright.ops.tiled_product import Algebra, EndingTerm, ProductOperand, TiledProduct, kernel_of
from tilewright.runtime.kernel import Kernel

WHOLE = (dtypes.i8, dtypes.u32, dtypes.u64)
"""Dtypes in which integers of all widths are multiplied; unsigned ones wrap in every language."""

BLOCK = 128
"""Places along K that share a scale of a block; also the rows, or columns, of a block."""

STORED = Output(("D",))
"""Stores the result."""


def output_dtype(dtype: DType) -> DType:
    """The dtype of ``a @ b`` for operands of ``dtype``: i32 for integers, f16 for fp8, else the same."""
    if dtype.kind == "int":
        return dtypes.i32
    return dtypes.f16 if dtype.bits == 8 else dtype


RARE = {"c": "C", "sums": "S", "multiply": "Y", "residual": "R", "dropout": ""}
"""Rare terms, and the kernels' names of their arrays. A kernel declares only the arrays of its own terms."""


def rare_arrays(lead: str, rare: Sequence[str]) -> dict[str, str]:
    """The declarations of the arrays of rare terms, whose axes are those of the result."""
    return {RARE[one]: f"{lead}m n" for one in rare if RARE[one]}


def rare_numbers(rare: Sequence[str], number: DType) -> dict[str, DType]:
    """The declarations of the numbers of rare terms.

    Args:
        rare: the terms.
        number: the dtype of beta, and of the factor of the elements that dropout keeps.
    """
    found = {"beta": number} if "c" in rare else {}
    if "dropout" in rare:
        found |= {"seed": dtypes.u64, "offset": dtypes.u64, "threshold": dtypes.u32, "scale": number}
    return found


def batches(rank: int) -> str:
    """Return the axes of batch dimensions, which precede those of a matrix."""
    return "".join(f"b{dim} " for dim in range(rank))


@lru_cache(maxsize=64)
def plain(rank: int, multiplied: DType | None = None) -> Kernel:
    """``D[..., m, n] = sum_k A[..., m, k] * B[..., k, n]``; integers wrap, and truth values are or'ed.

    Args:
        rank: number of batch dimensions.
        multiplied: the dtype in which operands are multiplied; None: their own.
    """
    lead = batches(rank)
    wrapped: list[EndingTerm] = [Wrapping("D")] if multiplied in WHOLE else []

    @kernel_of(A=f"{lead}m k", B=f"{lead}k n", D=f"{lead}m n")
    def gemm(*, precision: str) -> TiledProduct:
        a, b = ProductOperand(("A",), multiplied), ProductOperand(("B",), multiplied)
        return TiledProduct(a, b, [*wrapped, STORED], Algebra(precision=precision))

    return gemm


@lru_cache(maxsize=64)
def combined(rank: int, number: DType, multiplied: DType | None = None, rare: tuple[str, ...] = ()) -> Kernel:
    """``D = dropout(activation(alpha * A @ B + beta * C + bias) * Y) + residual``; ``terms`` selects terms.

    Args:
        rank: number of batch dimensions.
        number: the dtype in which all of it is computed, and of alpha and beta.
        multiplied: the dtype in which operands are multiplied; None: their own.
        rare: the terms of the call, among ``sums``, ``multiply`` and ``dropout``.
    """
    lead = batches(rank)
    arrays = {"A": f"{lead}m k", "B": f"{lead}k n", "C": f"{lead}m n", "bias": "n"}
    arrays |= dict.fromkeys("RD", f"{lead}m n") | rare_arrays(lead, rare)

    @kernel_of(**arrays, alpha=number, beta=number, **rare_numbers(rare, number))
    def gemm_combined(
        *, precision: str, terms: frozenset[str], activation: str | None, late: LateTerms = NO_LATE_TERMS
    ) -> TiledProduct:
        a, b = ProductOperand(("A",), multiplied), ProductOperand(("B",), multiplied)
        ending = [Conversion(number), *finishing(terms, activation, late), STORED]
        return TiledProduct(a, b, ending, Algebra(precision=precision))

    return gemm_combined


@lru_cache(maxsize=64)
def in_halves(rank: int, number: DType, rare: tuple[str, ...] = ()) -> Kernel:
    """The product of `combined` for operands that are split in halves.

    ``A[m, k] = (A1 + A2)[m, k] * p[m] ** 2`` and ``B[k, n] = (B1 + B2)[k, n] * q[n] ** 2``; see
    `Algebra.in_halves`.

    Args:
        rank: number of batch dimensions.
        number: the dtype in which all but the sums is computed, and of alpha and beta.
        rare: the terms of the call, among ``multiply`` and ``dropout``.
    """
    lead = batches(rank)
    arrays = {**dict.fromkeys(("A1", "A2"), f"{lead}m k"), **dict.fromkeys(("B1", "B2"), f"{lead}k n")}
    arrays |= {"p": f"{lead}m", "q": f"{lead}n", "C": f"{lead}m n", "bias": "n"}
    arrays |= dict.fromkeys("RD", f"{lead}m n") | rare_arrays(lead, rare)

    @kernel_of(**arrays, alpha=number, beta=number, **rare_numbers(rare, number))
    def gemm_in_halves(
        *, both: bool, terms: frozenset[str], activation: str | None, late: LateTerms = NO_LATE_TERMS
    ) -> TiledProduct:
        units = Units(f"p {lead}m new", "q")
        ending = [units, Conversion(number), *finishing(terms, activation, late), STORED]
        a, b = ProductOperand(("A1", "A2")), ProductOperand(("B1", "B2"))
        return TiledProduct(a, b, ending, Algebra().in_halves(both=both), waits=True)

    return gemm_in_halves


@lru_cache(maxsize=64)
def scaled(rank: int, rare: tuple[str, ...] = ()) -> Kernel:
    """``D = dropout(activation(alpha * scale_a * (A @ B) * scale_b + beta * C + bias) * Y) + R``.

    All but the sums is computed in f32.  A scale belongs to a row of A or to a column of B.  The result
    saturates if it has 8 bits.

    Args:
        rank: number of batch dimensions.
        rare: the terms of `RARE` that the call has.
    """
    lead = batches(rank)
    scales = {"scale_a": f"{lead}m", "scale_b": f"{lead}n"}

    @kernel_of(**_declared(lead, scales, rare))
    def gemm_scaled(
        *, multiplied: DType, terms: frozenset[str], activation: str | None, late: LateTerms = NO_LATE_TERMS
    ) -> TiledProduct:
        ending = [*_scaled(terms, "scale_a", "scale_b"), *_narrowed(terms - {"alpha"}, activation, late)]
        return TiledProduct(ProductOperand(("A",), multiplied), ProductOperand(("B",), multiplied), ending)

    return gemm_scaled


def _declared(lead: str, scales: Mapping[str, str], rare: Sequence[str]) -> dict[str, Any]:
    """The declarations of the kernels of `scaled_mm`."""
    arrays = {"A": f"{lead}m k", "B": f"{lead}k n", **scales, "bias": "n", "D": f"{lead}m n"}
    return {**arrays, **rare_arrays(lead, rare), "alpha": dtypes.f32, **rare_numbers(rare, dtypes.f32)}


def _scaled(terms: frozenset[str], rows: str, columns: str = "") -> list[EndingTerm]:
    """Sums in f32, times alpha and the scales of rows and columns, if there are any."""
    number, by_row, by_column = (name if name in terms else "" for name in ("alpha", rows, columns))
    return [Conversion(dtypes.f32), RowScales(number, by_row, by_column)]


def _narrowed(terms: frozenset[str], activation: str | None, late: LateTerms) -> list[EndingTerm]:
    """The terms after the scales, and a result that saturates if it has 8 bits."""
    return [*finishing(terms, activation, late), Saturation("D"), STORED]


@lru_cache(maxsize=64)
def scaled_in_groups(rank: int, rare: tuple[str, ...] = ()) -> Kernel:
    """`scaled` of ``A @ W``, where groups of rows of W have their own scales.

    ``W[k, n] = (B[k, n] - zero_b[k // group, n]) * scale_b[k // group, n]``, in the dtype of the
    multiplication, in which both steps are rounded.  With a table, ``table[B[k, n]]`` replaces ``B[k, n]``.

    Args:
        rank: number of batch dimensions; zero points and scales of groups have none.
        rare: the terms of `RARE` that the call has.
    """
    lead = batches(rank)
    scales = {"scale_a": f"{lead}m", "scale_b": "g n", "zero_b": "g n"}

    @kernel_of(**_declared(lead, scales, rare))
    def gemm_scaled_in_groups(
        *,
        multiplied: DType,
        group: int,
        terms: frozenset[str],
        activation: str | None,
        late: LateTerms = NO_LATE_TERMS,
        table: tuple[float, ...] = (),
    ) -> TiledProduct:
        zeros, factors = (f"{name} k/{group} n" if name in terms else "" for name in ("zero_b", "scale_b"))
        b = ProductOperand(("B",), multiplied, zeros, factors, table=table)
        ending = [*_scaled(terms, "scale_a"), *_narrowed(terms - {"alpha"}, activation, late)]
        return TiledProduct(ProductOperand(("A",), multiplied), b, ending)

    return gemm_scaled_in_groups


@lru_cache(maxsize=64)
def scaled_by_blocks(rank: int, rare: tuple[str, ...] = ()) -> Kernel:
    """`scaled` of the sum over blocks of K of ``scale_a * scale_b * (A @ B)``.

    A scale belongs to `BLOCK` places along K, and to ``shared`` rows of A or columns of B.

    Args:
        rank: number of batch dimensions.
        rare: the terms of `RARE` that the call has.
    """
    lead = batches(rank)
    scales = {"scale_a": f"{lead}ma ka", "scale_b": f"{lead}kb nb"}

    @kernel_of(**_declared(lead, scales, rare))
    def gemm_scaled_by_blocks(
        *,
        multiplied: DType,
        shared: tuple[int, int],
        terms: frozenset[str],
        activation: str | None,
        late: LateTerms = NO_LATE_TERMS,
    ) -> TiledProduct:
        rows, columns = shared
        of_a, of_b = f"scale_a {lead}m/{rows} k/{BLOCK}", f"scale_b {lead}k/{BLOCK} n/{columns}"
        a = ProductOperand(("A",), multiplied, scales=of_a if "scale_a" in terms else "")
        b = ProductOperand(("B",), multiplied, scales=of_b if "scale_b" in terms else "")
        return TiledProduct(a, b, _narrowed(terms, activation, late))

    return gemm_scaled_by_blocks


@lru_cache(maxsize=64)
def grouped(number: DType, rare: tuple[str, ...] = ()) -> Kernel:
    """``D = dropout(activation(alpha * A @ B[g] + beta * C + bias[g]) * Y) + R`` of the rows of each group.

    Args:
        number: the dtype in which all but the sums is computed.
        rare: the terms of the call, among ``alpha`` and those of `RARE`.
    """
    arrays = {"A": "t k", "B": "g k n", "ends": "g", "bias": "g n"}
    terms = tuple(one for one in rare if one != "alpha")
    arrays |= {**dict.fromkeys(rare_arrays("", terms), "t n"), "D": "t n"}
    alpha = {"alpha": number} if "alpha" in rare else {}

    @kernel_of(**arrays, **alpha, **rare_numbers(terms, number))
    def gemm_grouped(
        *, precision: str, terms: frozenset[str], activation: str | None, late: LateTerms = NO_LATE_TERMS
    ) -> TiledProduct:
        changed: list[EndingTerm] = [Conversion(number)] if terms else []
        ending = [*changed, *finishing(terms, activation, late, axes="m n"), Output(("D m n",))]
        algebra = Algebra(precision=precision)
        return TiledProduct(
            ProductOperand(("A m k",)), ProductOperand(("B",)), ending, algebra, out="D m n", ends="ends"
        )

    return gemm_grouped


@lru_cache(maxsize=64)
def grouped_along_k(number: DType, rare: tuple[str, ...] = ()) -> Kernel:
    """``D[g] = dropout(activation(alpha * A[:, k] @ B[k] + beta * C + bias[g]) * Y) + R``, k in group g.

    Args:
        number: the dtype in which all but the sums is computed.
        rare: the terms of the call, among ``alpha``, ``bias`` and those of `RARE`.
    """
    terms = tuple(one for one in rare if one in RARE)
    arrays = {"A": "m k", "B": "k n", "ends": "g", **({"bias": "g n"} if "bias" in rare else {})}
    arrays |= {**rare_arrays("g ", terms), "D": "g m n"}
    alpha = {"alpha": number} if "alpha" in rare else {}

    @kernel_of(**arrays, **alpha, **rare_numbers(terms, number))
    def gemm_grouped_along_k(
        *, precision: str, terms: frozenset[str], activation: str | None, late: LateTerms = NO_LATE_TERMS
    ) -> TiledProduct:
        changed: list[EndingTerm] = [Conversion(number)] if terms else []
        ending = [*changed, *finishing(terms, activation, late), STORED]
        algebra = Algebra(precision=precision)
        return TiledProduct(
            ProductOperand(("A",)), ProductOperand(("B",)), ending, algebra, ends_along_k="ends"
        )

    return gemm_grouped_along_k


@lru_cache(maxsize=64)
def each(number: DType) -> Kernel:
    """``D[g, m, n] = activation(sum_k A[g, m, k] * B[g, k, n] + bias[g, n])``, the product of lists.

    It is traced with one array for each list.

    Args:
        number: the dtype in which all but the sums is computed.
    """

    @kernel_of(A="g m k", B="g k n", bias="g n", D="g m n")
    def gemm_each(*, precision: str, terms: frozenset[str], activation: str | None) -> TiledProduct:
        changed: list[EndingTerm] = [Conversion(number)] if terms else []
        ending = [*changed, *finishing(terms, activation), STORED]
        return TiledProduct(
            ProductOperand(("A",)), ProductOperand(("B",)), ending, Algebra(precision=precision)
        )

    return gemm_each
