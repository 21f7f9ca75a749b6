"""The kernels of `complex_matmul`: products of complex numbers whose parts are real arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from tilewright.dtypes import DType, f32
from tilewright.ops.complex_parts import paired, parted
from tilewright.ops.contraction import Contraction, Ending
from tilewright.ops.ending import Addend, Alpha, Conversion, Output, Units, times
from tilewright.ops.products import batches, rare_numbers
from tilewright.ops.tiled_product import (
    Algebra,
    EndingTerm,
    KernelArrays,
    ProductOperand,
    TiledProduct,
    Tiles,
    kernel_of,
)
from tilewright.runtime.kernel import Kernel

OPERANDS = ("a", "a_im", "b", "b_im")
"""The real and imaginary parts that are multiplied, by the names of their arrays."""

SUMS = ("a_sum", "b_sum")
"""Sums of real and imaginary parts of operands, which the third of three products multiplies."""

HALVES = ("a1", "a2", "a1_im", "a2_im", "b1", "b2", "b1_im", "b2_im")
"""Both halves of the parts of the operands."""

RESULTS = ("c", "c_im", "out", "out_im")
"""The parts of the addend and of the result."""

FACTOR = ("multiply", "multiply_im")
"""The parts of the factor of the result. A kernel declares them only if the call has them."""

TERMS = ("alpha", "turn", "c", "turn c")
"""Terms after the sums: a factor alpha other than 1, an imaginary part of alpha, an addend, an imaginary part
of beta."""

NUMBERS = ("alpha_re", "alpha_im", "beta_re", "beta_im")

Pairs: TypeAlias = tuple[DType | None, DType | None]
"""Dtypes of the parts of the addend, and of the result, if they are interleaved in one array."""

APART: Pairs = (None, None)
"""Real and imaginary parts are separate arrays."""

Together: TypeAlias = tuple[str, str]
"""The axes of A, and of B, without batches, if one array has both parts as a last dimension; otherwise "".

The last axis is contiguous in memory, so that copies of neighbouring threads are neighbours.
"""

Conjugates: TypeAlias = tuple[bool, bool, bool]
"""Whether A, B, and the addend are conjugated."""


@dataclass(frozen=True)
class PairAddend(Addend):
    """Adds both parts of the first array, which holds pairs whose parts have the given dtype."""

    part: DType = f32

    def _read(self, arrays: KernelArrays) -> Tiles:
        return parted(arrays.tile(self.arrays[0]), self.part)


@dataclass(frozen=True)
class ComplexFactor(EndingTerm):
    """Multiplies by complex numbers.

    Args:
        conjugate: whether it multiplies by the conjugates.
        part: dtype of the parts if they are interleaved in the first array of `FACTOR`; None: each array has
            one part.
    """

    conjugate: bool = False
    part: DType | None = None

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Multiply by the factor."""
        read: Tiles = [arrays.tile(one) for one in FACTOR[: 1 if self.part else 2]]
        read = parted(read[0], self.part) if self.part else read
        re, im = (one.to(values[0].dtype) for one in read)
        return times([re, -im if self.conjugate else im], values)


@dataclass(frozen=True)
class PairOutput(EndingTerm):
    """Stores both results to one array of pairs, whose parts have the given dtype."""

    array: str
    part: DType

    def emit(self, values: Tiles, arrays: KernelArrays) -> Tiles:
        """Store both parts as one array of pairs."""
        arrays.store(self.array, paired(values[0], values[1], self.part))
        return values


def by_four(conjugates: Conjugates) -> Algebra:
    """The algebra of complex products by four real ones.

    With ``op(A) = Ar + i sa Ai`` and ``op(B) = Br + i sb Bi``, where the sign of a conjugate is -1, the sums
    are ``Ar Br - sa sb Ai Bi`` and ``sb Ar Bi + sa Ai Br``.

    Args:
        conjugates: which operands are conjugated.
    """
    sa, sb = ((-1) ** one for one in conjugates[:2])
    return Algebra(((0, 0, 0, 1), (1, 1, 0, -sa * sb), (0, 1, 1, sb), (1, 0, 1, sa)), (((0, 1),), ((1, 1),)))


def by_three(conjugates: Conjugates) -> Algebra:
    """The algebra of complex products by three real ones.

    They are ``P1 = Ar Br``, ``P2 = Ai Bi`` and ``P3 = (Ar + sa Ai) (Br + sb Bi)``.

    With ``s = sa sb`` the sums are ``P1 - s P2`` and ``P3 - P1 - s P2``.  The subtractions cancel leading
    bits of ``P3``: an imaginary part that is ``2**n`` times smaller than ``P3`` loses n bits.

    Args:
        conjugates: which operands are conjugated.
    """
    sign = -1 if conjugates[0] == conjugates[1] else 1
    rows = tuple((part, part, part, 1) for part in range(3))
    return Algebra(rows, (((0, 1), (1, sign)), ((2, 1), (0, -1), (1, sign))))


@lru_cache(maxsize=64)
def four_products(
    rank: int, number: DType, together: Together = ("", ""), rare: tuple[str, ...] = ()
) -> Kernel:
    """``D = dropout((alpha * op(A) @ op(B) + beta * C) * multiply)``; see `by_four`.

    Args:
        rank: number of batch dimensions.
        number: the dtype of alpha and beta, and of the multiplications by them.
        together: operands whose parts are one array, which is passed twice.
        rare: the arrays of `FACTOR` and the term ``"dropout"`` that the call has.
    """
    declared = _declared(rank, OPERANDS, number, rare)
    for name in (name for name in OPERANDS if together[name.startswith("b")]):
        declared[name] = f"{batches(rank)}{together[name.startswith('b')]} re"
    a, b = (
        ProductOperand((name, f"{name} {declared[name]}".replace(" re", " im") if axes else f"{name}_im"))
        for name, axes in zip("ab", together, strict=True)
    )

    @kernel_of(**declared)
    def gemm_complex(
        *,
        precision: str,
        terms: frozenset[str],
        conjugates: Conjugates,
        pairs: Pairs = APART,
        late: Ending = (),
    ) -> TiledProduct:
        algebra = replace(by_four(conjugates), precision=precision)
        ending = _ending(number, terms, conjugates, pairs, late)
        return TiledProduct(a, b, ending, algebra, out="out", waits=True)

    return gemm_complex


@lru_cache(maxsize=256)
def contracted(made: Contraction, number: DType, rare: tuple[str, ...] = ()) -> Kernel:
    """`four_products` of the arrays of a contraction.

    Args:
        made: the contraction; its arrays have the names in `OPERANDS`, `RESULTS` and `FACTOR`.
        number: the dtype in which alpha and beta are multiplied, and given.
        rare: as for `four_products`.
    """
    names = (*OPERANDS, *RESULTS, *(name for name in FACTOR if name in rare))
    axes = {name: made.of(name).axes for name in names}

    @kernel_of(**axes, **dict.fromkeys(NUMBERS, number), **rare_numbers(rare, number))
    def gemm_complex_contraction(
        *,
        precision: str,
        terms: frozenset[str],
        conjugates: Conjugates,
        pairs: Pairs = APART,
        late: Ending = (),
    ) -> TiledProduct:
        algebra = replace(by_four(conjugates), precision=precision)
        a, b = ProductOperand(OPERANDS[:2]), ProductOperand(OPERANDS[2:])
        ending = _ending(number, terms, conjugates, pairs, late)
        return TiledProduct(a, b, ending, algebra, out="out")

    return gemm_complex_contraction


@lru_cache(maxsize=64)
def three_products(rank: int, number: DType, rare: tuple[str, ...] = ()) -> Kernel:
    """`four_products` by three products; a prepass has written the sums of parts.  See `by_three`.

    Args:
        rank: number of batch dimensions.
        number: the dtype in which alpha and beta are multiplied, and given.
        rare: as for `four_products`.
    """

    @kernel_of(**_declared(rank, (*OPERANDS, *SUMS), number, rare))
    def gemm_complex_3m(
        *,
        precision: str,
        terms: frozenset[str],
        conjugates: Conjugates,
        pairs: Pairs = APART,
        late: Ending = (),
    ) -> TiledProduct:
        algebra = replace(by_three(conjugates), precision=precision)
        a, b = (ProductOperand((name, f"{name}_im", f"{name}_sum")) for name in "ab")
        ending = _ending(number, terms, conjugates, pairs, late)
        return TiledProduct(a, b, ending, algebra, out="out", waits=True)

    return gemm_complex_3m


@lru_cache(maxsize=64)
def products_of_halves(rank: int, number: DType, *, both: bool = True, rare: tuple[str, ...] = ()) -> Kernel:
    """`four_products` of parts that are split in halves; see `Algebra.in_halves`.

    ``Ar[m, k] = (a1 + a2)[m, k] * p[m] ** 2`` and ``Ai[m, k] = (a1_im + a2_im)[m, k] * p[m] ** 2``.  The
    parts of B have the unit ``q[n]``.

    Args:
        rank: number of batch dimensions.
        number: the dtype in which all but the sums is computed, and of alpha and beta.
        both: whether there are second halves; otherwise only products of first halves are added up.
        rare: as for `four_products`.
    """
    lead = batches(rank)

    @kernel_of(**_declared(rank, HALVES, number, rare, p=f"{lead}m", q=f"{lead}n"))
    def gemm_complex_halves(
        *, terms: frozenset[str], conjugates: Conjugates, pairs: Pairs = APART, late: Ending = ()
    ) -> TiledProduct:
        algebra = by_four(conjugates).in_halves(both=both)
        ending = [Units(f"p {lead}m new", "q"), *_ending(number, terms, conjugates, pairs, late)]
        return TiledProduct(
            ProductOperand(HALVES[:4]), ProductOperand(HALVES[4:]), ending, algebra, out="out", waits=True
        )

    return gemm_complex_halves


def _declared(
    rank: int, operands: tuple[str, ...], number: DType, rare: tuple[str, ...], **units: str
) -> dict[str, Any]:
    """The axes of operands, units, results and factors, and the dtypes of numbers."""
    lead = batches(rank)
    found = {name: f"{lead}m k" if name.startswith("a") else f"{lead}k n" for name in operands}
    names = (*RESULTS, *(name for name in FACTOR if name in rare))
    numbers = {**dict.fromkeys(NUMBERS, number), **rare_numbers(rare, number)}
    return {**found, **units, **dict.fromkeys(names, f"{lead}m n"), **numbers}


def _ending(
    number: DType, terms: frozenset[str], conjugates: Conjugates, pairs: Pairs, late: Ending
) -> list[EndingTerm]:
    """``alpha`` times the sums plus ``beta`` times the addend, the late terms, and the stores.

    Args:
        number: the dtype in which alpha and beta are multiplied.
        terms: the terms of `TERMS` that the call has.
        conjugates: which operands are conjugated; the last element is for the addend.
        pairs: dtype of the parts of the addend, and of the result, if they are interleaved.
        late: the terms after the addend.
    """
    found: list[EndingTerm] = [Conversion(number)] if terms or late else []
    if terms & {"alpha", "turn"}:
        found.append(Alpha(NUMBERS[: 1 + ("turn" in terms)]))
    of_c, of_out = pairs
    if "c" in terms:
        words = ("c", "c_im"), NUMBERS[2 : 3 + ("turn c" in terms)], conjugates[2]
        found.append(Addend(*words) if of_c is None else PairAddend(*words, of_c))
    found += late
    return [*found, Output(("out", "out_im")) if of_out is None else PairOutput("out", of_out)]


def terms_of(alpha: complex, beta: complex, *, adds: bool) -> frozenset[str]:
    """Return the terms of `TERMS` that follow the sums.

    Args:
        alpha: factor of the sums.
        beta: factor of the addend.
        adds: whether there is an addend.
    """
    asked = (alpha != 1, alpha.imag != 0, adds, adds and beta.imag != 0)
    return frozenset(term for term, is_wanted in zip(TERMS, asked, strict=True) if is_wanted)
