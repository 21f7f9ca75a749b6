"""The kernels of `matmul` and its kin: what is computed, in tiles; a schedule says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

from tilewright import dtypes
from tilewright.dataflow.nodes import EXACT, SUMMED
from tilewright.dtypes import DType
from tilewright.lang.asynchrony import prior_grid_wait
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.lang.exact_functions import bitcast
from tilewright.lang.exact_functions import round as nearest
from tilewright.lang.functions import gelu, relu, sigmoid, silu, tanh
from tilewright.lang.launch import require
from tilewright.lang.scalars import ceil_div
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Kernel

FP8 = {dtypes.f8e4m3, dtypes.f8e5m2}

WHOLE = (dtypes.i8, dtypes.u32, dtypes.u64)
"""Dtypes in which integers of all widths are multiplied; unsigned ones wrap in every language."""

BLOCK = 128
"""Places along K that have a scale in common where scales belong to blocks; rows and columns likewise."""

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": relu,
    "gelu": gelu,
    "gelu_tanh": partial(gelu, approximate=True),
    "silu": silu,
    "sigmoid": sigmoid,
    "tanh": tanh,
}
"""What may be done to each element at the end, by name."""


def output_dtype(dtype: DType) -> DType:
    """The dtype of ``a @ b`` for operands of ``dtype``: i32 for integers, f16 for fp8, else the same."""
    if dtype.kind == "int":
        return dtypes.i32
    return dtypes.f16 if dtype.bits == 8 else dtype


@lru_cache(maxsize=64)
def plain(rank: int, multiplied: DType | None = None) -> Kernel:
    """``D[..., m, n] = sum_k A[..., m, k] * B[..., k, n]``; integers wrap, and truth values are or'ed.

    Args:
        rank: how many dimensions of batches there are.
        multiplied: the dtype in which operands are multiplied; None: their own.
    """
    lead = _lead(rank)

    @kernel(A=f"{lead}M K", B=f"{lead}K N", D=f"{lead}M N")
    def gemm(A: Any, B: Any, D: Any, *, precision: str) -> None:
        for *batch, m, n in tiles(D):
            acc = zeros()
            for k in steps(A.shape[-1]):
                a, b = _multiplied(multiplied, A[(*batch, m, k)], B[(*batch, k, n)])
                acc += a.matmul(b, precision=precision)
            D[(*batch, m, n)] = _wrapped(acc, D.dtype) if multiplied in WHOLE else acc

    return gemm


def _multiplied(dtype: DType | None, *operands: Any) -> list[Any]:
    """Operands in the dtype in which they are multiplied; None: their own."""
    return [value if dtype in (None, value.dtype) else value.to(dtype) for value in operands]


def _wrapped(value: Any, dtype: DType) -> Any:
    """The lowest bits of sums of integers; of truth values, whether any product is true."""
    return value != 0 if dtype == dtypes.boolean else value.to(dtype)


@lru_cache(maxsize=64)
def combined(rank: int, number: DType, multiplied: DType | None = None) -> Kernel:
    """``D = activation(alpha * A @ B + beta * C + bias) + residual``, of which ``terms`` says what there is.

    Args:
        rank: how many dimensions of batches there are.
        number: the dtype in which all of it is computed, and of alpha and beta.
        multiplied: the dtype in which operands are multiplied; None: their own.
    """
    lead = _lead(rank)
    results = dict.fromkeys(("C", "R", "D"), f"{lead}M N")
    declared: dict[str, Any] = {"A": f"{lead}M K", "B": f"{lead}K N", "bias": "N"}

    @kernel(**declared, **results, alpha=number, beta=number)
    def gemm_combined(
        A: Any,
        B: Any,
        C: Any,
        bias: Any,
        R: Any,
        D: Any,
        alpha: Any,
        beta: Any,
        *,
        precision: str,
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        for *batch, m, n in tiles(D):
            acc = zeros()
            for k in steps(A.shape[-1]):
                a, b = _multiplied(multiplied, A[(*batch, m, k)], B[(*batch, k, n)])
                acc += a.matmul(b, precision=precision)
            at = (*batch, m, n)
            D[at] = _finished(acc.to(number), terms, activation, alpha, beta, C[at], bias[n], R[at])

    return gemm_combined


@lru_cache(maxsize=64)
def in_halves(rank: int, number: DType) -> Kernel:
    """``D = activation(alpha * A @ B + beta * C + bias) + residual`` of numbers that are split in halves.

    ``A[m, k] = (A1 + A2)[m, k] * p[m] ** 2`` and ``B[k, n] = (B1 + B2)[k, n] * q[n] ** 2``.  The product of
    the second halves is left out; that of the first, which is the largest, is added last.

    Args:
        rank: how many dimensions of batches there are.
        number: the dtype in which all but the sums is computed, and of alpha and beta.
    """
    lead = _lead(rank)
    results = dict.fromkeys(("C", "R", "D"), f"{lead}M N")
    left, right = dict.fromkeys(("A1", "A2"), f"{lead}M K"), dict.fromkeys(("B1", "B2"), f"{lead}K N")
    units = {"p": f"{lead}M", "q": f"{lead}N", "bias": "N"}

    @kernel(**left, **right, **units, **results, alpha=number, beta=number)
    def gemm_in_halves(
        A1: Any,
        A2: Any,
        B1: Any,
        B2: Any,
        p: Any,
        q: Any,
        C: Any,
        bias: Any,
        R: Any,
        D: Any,
        alpha: Any,
        beta: Any,
        *,
        both: bool,
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        for *batch, m, n in tiles(D):
            prior_grid_wait()
            acc = zeros(precision=SUMMED if both else EXACT)
            for k in steps(A1.shape[-1]):
                a = [half[(*batch, m, k)] for half in (A1, A2)]
                b = [half[(*batch, k, n)] for half in (B1, B2)]
                acc = with_halves(acc, a, b, both=both)
            unit = p[(*batch, m, None)] * q[(*batch, n)]
            at = (*batch, m, n)
            value = (acc * unit * unit).to(number)  # the square of the unit may be out of range
            D[at] = _finished(value, terms, activation, alpha, beta, C[at], bias[n], R[at])

    return gemm_in_halves


def with_halves(acc: Any, a: Sequence[Any], b: Sequence[Any], *, both: bool) -> Any:
    """A sum, with the products of the halves of two tiles added, the largest last.

    Args:
        acc: the sum.
        a: first and second halves of the tile on the left.
        b: those of the tile on the right.
        both: whether second halves are multiplied too; the product of two of them is left out.
    """
    if both:
        acc += a[1] @ b[0]
        acc += a[0] @ b[1]
    acc += a[0] @ b[0]
    return acc


def _finished(
    value: Any,
    terms: frozenset[str],
    activation: str | None,
    alpha: Any = None,
    beta: Any = None,
    c: Any = None,
    bias: Any = None,
    residual: Any = None,
) -> Any:
    """What is done with the sums; ``terms`` says what there is."""
    if "alpha" in terms:
        value = alpha * value
    if "c" in terms:
        value = value + beta * c.to(value.dtype)
    if "bias" in terms:
        value = value + bias.to(value.dtype)
    if activation is not None:
        value = ACTIVATIONS[activation](value)
    if "residual" in terms:
        value = value + residual.to(value.dtype)
    return value


@lru_cache(maxsize=64)
def scaled(rank: int) -> Kernel:
    """``D = activation(alpha * scale_a * (A @ B) * scale_b + bias)``, computed in f32 from the sums on.

    A scale is a number for each row of A, or for each column of B.  The result saturates where it has 8 bits.

    Args:
        rank: how many dimensions of batches there are.
    """
    lead = _lead(rank)
    declared: dict[str, Any] = {"scale_a": f"{lead}M", "scale_b": f"{lead}N", "bias": "N"}

    @kernel(A=f"{lead}M K", B=f"{lead}K N", **declared, D=f"{lead}M N", alpha=dtypes.f32)
    def gemm_scaled(
        A: Any,
        B: Any,
        scale_a: Any,
        scale_b: Any,
        bias: Any,
        D: Any,
        alpha: Any,
        *,
        multiplied: DType,
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        for *batch, m, n in tiles(D):
            acc = zeros()
            for k in steps(A.shape[-1]):
                acc += _widened(A[(*batch, m, k)], multiplied) @ _widened(B[(*batch, k, n)], multiplied)
            by_row = scale_a[(*batch, m)] if "scale_a" in terms else None
            by_column = scale_b[(*batch, n)] if "scale_b" in terms else None
            value = _times_scales(acc.to(dtypes.f32), alpha if "alpha" in terms else None, by_row, by_column)
            value = _finished(value, terms - {"alpha"}, activation, bias=bias[n])
            D[(*batch, m, n)] = saturated(value, D.dtype)

    return gemm_scaled


def _times_scales(value: Any, number: Any = None, by_row: Any = None, by_column: Any = None) -> Any:
    """Sums in f32 times at most two scales, without overflow or underflow on the way.

    Each of two scales is split in two factors near its square root, the first a power of 2.  The sums are
    multiplied by the first factor of one scale times the second of the other, then by the other two.  Both
    products are finite if the scales are, and near the square root of the product of the scales, so that the
    value between is between the sum and the result.

    Args:
        value: the sums (m, n).
        number: a scale of all of them, or None.
        by_row: a scale for each row, or None.
        by_column: a scale for each column, or None.
    """
    given = (number, None if by_row is None else by_row[:, None], by_column)
    scales = [one.to(dtypes.f32) for one in given if one is not None]
    if len(scales) < 2:
        return value * scales[0] if scales else value
    (first, second), (other, rest) = map(_split, scales)
    return value * (first * rest) * (second * other)


def _split(scale: Any) -> tuple[Any, Any]:
    """Two factors of a scale in f32 near its square root; the first is a power of 2, and not below it."""
    exponent = bitcast(scale, dtypes.u32) >> 23 & 0xFF
    power = exponent + (EXPONENT_BIAS + 1) >> 1 << 23
    return bitcast(power, dtypes.f32), scale * bitcast(2 * EXPONENT_BIAS * 2**23 - power, dtypes.f32)


EXPONENT_BIAS = 127
"""Of the exponent of an f32, which begins at bit 23."""


@lru_cache(maxsize=64)
def scaled_in_groups(rank: int) -> Kernel:
    """``D = activation(alpha * scale_a * (A @ W) + bias)``, where groups of rows of W have their own scales.

    ``W[k, n] = (B[k, n] - zero_b[k // group, n]) * scale_b[k // group, n]``, in the dtype of the
    multiplication, in which both steps are rounded; from the sums on it is as `scaled`.

    Args:
        rank: how many dimensions of batches there are; B has none.
    """
    lead = _lead(rank)
    declared: dict[str, Any] = {"scale_a": f"{lead}M", "scale_b": "G N", "zero_b": "G N", "bias": "N"}

    @kernel(A=f"{lead}M K", B=f"{lead}K N", **declared, D=f"{lead}M N", alpha=dtypes.f32)
    def gemm_scaled_in_groups(
        A: Any,
        B: Any,
        scale_a: Any,
        scale_b: Any,
        zero_b: Any,
        bias: Any,
        D: Any,
        alpha: Any,
        *,
        multiplied: DType,
        group: int,
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        depth = A.shape[-1]
        require(depth % group == 0, f"K must be a multiple of {group}")
        require(scale_b.shape[0] == ceil_div(depth, group), f"a group of {group} has one scale")
        for *batch, m, n in tiles(D):
            acc = zeros()
            for k in steps(depth):
                weights = _widened(B[(*batch, k, n)], multiplied)
                if "zero_b" in terms:
                    weights = weights - _widened(zero_b[k // group, n], multiplied)
                if "scale_b" in terms:
                    weights = weights * _widened(scale_b[k // group, n], multiplied)
                acc += _widened(A[(*batch, m, k)], multiplied) @ weights
            by_row = scale_a[(*batch, m)] if "scale_a" in terms else None
            value = _times_scales(acc.to(dtypes.f32), alpha if "alpha" in terms else None, by_row)
            value = _finished(value, terms - {"alpha"}, activation, bias=bias[n])
            D[(*batch, m, n)] = saturated(value, D.dtype)

    return gemm_scaled_in_groups


@lru_cache(maxsize=64)
def scaled_by_blocks(rank: int) -> Kernel:
    """``D = activation(alpha * sum over blocks of K of scale_a * scale_b * (A @ B) + bias)``.

    A scale belongs to `BLOCK` places along K, and to so many rows of A, or columns of B, as are shared.

    Args:
        rank: how many dimensions of batches there are.
    """
    lead = _lead(rank)
    declared: dict[str, Any] = {"scale_a": f"{lead}MA KA", "scale_b": f"{lead}KB NB", "bias": "N"}

    @kernel(A=f"{lead}M K", B=f"{lead}K N", **declared, D=f"{lead}M N", alpha=dtypes.f32)
    def gemm_scaled_by_blocks(
        A: Any,
        B: Any,
        scale_a: Any,
        scale_b: Any,
        bias: Any,
        D: Any,
        alpha: Any,
        *,
        multiplied: DType,
        shared: tuple[int, int],
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        (rows, columns), blocks = shared, ceil_div(A.shape[-1], BLOCK)
        if "scale_a" in terms:
            require(scale_a.shape[-1] == blocks, "a column of scale_a for each block of K")
            require(scale_a.shape[-2] == ceil_div(D.shape[-2], rows), "a row of scale_a for its rows of A")
        if "scale_b" in terms:
            require(scale_b.shape[-2] == blocks, "a row of scale_b for each block of K")
            require(scale_b.shape[-1] == ceil_div(D.shape[-1], columns), "a column of scale_b for those of B")
        for *batch, m, n in tiles(D):
            acc = zeros()
            for k in steps(A.shape[-1]):
                a, b = _widened(A[(*batch, m, k)], multiplied), _widened(B[(*batch, k, n)], multiplied)
                by_row = scale_a[(*batch, m // rows, k // BLOCK)] if "scale_a" in terms else None
                by_column = scale_b[(*batch, k // BLOCK, n // columns)] if "scale_b" in terms else None
                acc += a.matmul(b, scales=(by_row, by_column))
            D[(*batch, m, n)] = saturated(_finished(acc, terms, activation, alpha, bias=bias[n]), D.dtype)

    return gemm_scaled_by_blocks


def _widened(value: Any, dtype: DType) -> Any:
    """An operand in the dtype in which it is multiplied; both kinds of fp8 are multiplied as they are."""
    as_it_is = value.dtype == dtype or {value.dtype, dtype} <= FP8
    return value if as_it_is else value.to(dtype)


def saturated(value: Any, dtype: DType) -> Any:
    """A result of 8 bits is the nearest number that there is; of wider ones infinity is among them."""
    if dtype.bits > 8:
        return value
    return (value if dtype.is_float else nearest(value)).to(dtype, saturate=True)


@lru_cache(maxsize=64)
def grouped(number: DType) -> Kernel:
    """``D[m, n] = activation(sum_k A[m, k] * B[g, k, n] + bias[g, n])``, where row ``m`` is of group ``g``.

    Args:
        number: the dtype in which all but the sums is computed.
    """

    @kernel(A="T K", B="G K N", ends="G", bias="G N", D="T N")
    def gemm_grouped(
        A: Any,
        B: Any,
        ends: Any,
        bias: Any,
        D: Any,
        *,
        precision: str,
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        for g, m, n in tiles(D, groups=ends):
            acc = zeros()
            for k in steps(A.shape[-1]):
                acc += A[m, k].matmul(B[g, k, n], precision=precision)
            value = acc.to(number) if terms else acc
            D[m, n] = _finished(value, terms, activation, bias=bias[g, n])

    return gemm_grouped


@lru_cache(maxsize=64)
def each(number: DType) -> Kernel:
    """``D[g, m, n] = activation(sum_k A[g, m, k] * B[g, k, n] + bias[g, n])``, as of one array for each list.

    Args:
        number: the dtype in which all but the sums is computed.
    """

    @kernel(A="G M K", B="G K N", bias="G N", D="G M N")
    def gemm_each(
        A: Any,
        B: Any,
        bias: Any,
        D: Any,
        *,
        precision: str,
        terms: frozenset[str],
        activation: str | None,
    ) -> None:
        for g, m, n in tiles(D):
            acc = zeros()
            for k in steps(A.shape[-1]):
                acc += A[g, m, k].matmul(B[g, k, n], precision=precision)
            value = acc.to(number) if terms else acc
            D[g, m, n] = _finished(value, terms, activation, bias=bias[g, n])

    return gemm_each


def _lead(rank: int) -> str:
    return "".join(f"B{dim} " for dim in range(rank))
