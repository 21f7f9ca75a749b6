"""The kernels of `complex_matmul`: products of complex numbers whose parts are real arrays."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from tilewright.dataflow.nodes import EXACT, SUMMED
from tilewright.dtypes import DType
from tilewright.lang.asynchrony import prior_grid_wait
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.ops.complex_pairs import paired, parted
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Kernel

OPERANDS = ("a", "a_im", "b", "b_im")
"""The real and imaginary parts that are multiplied, by the names of their arrays."""

SUMS = ("a_sum", "b_sum")
"""Real and imaginary parts of operands, added up: what the third product of three multiplies."""

HALVES = ("a1", "a2", "a1_im", "a2_im", "b1", "b2", "b1_im", "b2_im")
"""Both halves of the parts of the operands."""

RESULTS = ("c", "c_im", "out", "out_im")
"""The parts of what is added and of what is written."""


Pairs: TypeAlias = tuple[DType | None, DType | None]
"""Of what is added and of what is written the dtype of the parts, if both lie side by side as one array."""

APART: Pairs = (None, None)
"""Real and imaginary parts are arrays of their own."""

Together: TypeAlias = tuple[bool, bool]
"""Whether A, and B, is one array with a last dimension of both parts."""


@lru_cache(maxsize=64)
def four_products(rank: int, number: DType, together: Together = (False, False)) -> Kernel:
    """``D = alpha * op(A) @ op(B) + beta * C`` by four products of real and imaginary parts.

    With ``op(A) = Ar + i sa Ai`` and ``op(B) = Br + i sb Bi``, where a sign is -1 of a conjugate, the sums
    are ``Ar Br - sa sb Ai Bi`` and ``sb Ar Bi + sa Ai Br``.

    Args:
        rank: how many dimensions of batches there are.
        number: the dtype in which alpha and beta are multiplied, and given.
        together: of which operands both parts are one array, which is given twice.
    """
    declared: dict[str, Any] = {**_parameters(rank, OPERANDS), **dict.fromkeys(NUMBERS, number)}
    for name in (name for name in OPERANDS if together[name.startswith("b")]):
        declared[name] += " P"

    @kernel(**declared)
    def gemm_complex(
        a: Any,
        a_im: Any,
        b: Any,
        b_im: Any,
        c: Any,
        c_im: Any,
        out: Any,
        out_im: Any,
        alpha_re: Any,
        alpha_im: Any,
        beta_re: Any,
        beta_im: Any,
        *,
        precision: str,
        terms: frozenset[str],
        conjugates: tuple[bool, bool, bool],
        pairs: Pairs = APART,
    ) -> None:
        numbers = (alpha_re, alpha_im), (beta_re, beta_im)
        ending = Ending((c, c_im), (out, out_im), numbers, number, terms, conjugates[2], pairs)
        for *batch, m, n in tiles(out):
            prior_grid_wait()
            re, im = zeros(), zeros()
            for k in steps(a.shape[rank + 1]):
                of_a = _operand(a, a_im, (*batch, m, k), together=together[0])
                of_b = _operand(b, b_im, (*batch, k, n), together=together[1])
                re, im = _summed((re, im), of_a, of_b, conjugates, precision)
            ending.store((re, im), (*batch, m, n))

    return gemm_complex


@lru_cache(maxsize=64)
def three_products(rank: int, number: DType) -> Kernel:
    """`four_products` by three, ``Ar Br``, ``Ai Bi`` and ``(Ar + sa Ai) (Br + sb Bi)``, of sums made before.

    With ``s = sa sb`` the sums are ``P1 - s P2`` and ``P3 - P1 - s P2``: what the third product has too much
    is taken away again, so that the imaginary parts lose the bits by which they are smaller than it.

    Args:
        rank: how many dimensions of batches there are.
        number: the dtype in which alpha and beta are multiplied, and given.
    """
    declared: dict[str, Any] = {
        **_parameters(rank, (*OPERANDS, *SUMS)),
        **dict.fromkeys(NUMBERS, number),
    }

    @kernel(**declared)
    def gemm_complex_3m(
        a: Any,
        a_im: Any,
        b: Any,
        b_im: Any,
        a_sum: Any,
        b_sum: Any,
        c: Any,
        c_im: Any,
        out: Any,
        out_im: Any,
        alpha_re: Any,
        alpha_im: Any,
        beta_re: Any,
        beta_im: Any,
        *,
        precision: str,
        terms: frozenset[str],
        conjugates: tuple[bool, bool, bool],
        pairs: Pairs = APART,
    ) -> None:
        numbers = (alpha_re, alpha_im), (beta_re, beta_im)
        ending = Ending((c, c_im), (out, out_im), numbers, number, terms, conjugates[2], pairs)
        for *batch, m, n in tiles(out):
            prior_grid_wait()
            first, second, third = zeros(), zeros(), zeros()
            for k in steps(a.shape[-1]):
                at_a, at_b = (*batch, m, k), (*batch, k, n)
                first += a[at_a].matmul(b[at_b], precision=precision)
                second += a_im[at_a].matmul(b_im[at_b], precision=precision)
                third += a_sum[at_a].matmul(b_sum[at_b], precision=precision)
            if conjugates[0] == conjugates[1]:
                re, im = first - second, third - first - second
            else:
                re, im = first + second, third - first + second
            ending.store((re, im), (*batch, m, n))

    return gemm_complex_3m


@lru_cache(maxsize=64)
def products_of_halves(rank: int, number: DType, *, both: bool = True) -> Kernel:
    """`four_products` of parts that are split in halves, of each of which three products are added up.

    ``Ar[m, k] = (a1 + a2)[m, k] * p[m] ** 2``, and so are ``Ai`` of ``a1_im`` and ``a2_im``, with the same
    ``p``; of B likewise, with ``q[n]``.  Products of two second halves are left out; those of two first ones,
    which are the largest, are added last.

    Args:
        rank: how many dimensions of batches there are.
        number: the dtype in which all but the sums is computed, and of alpha and beta.
        both: whether there are second halves; else only the products of first ones are added up.
    """
    lead = _lead(rank)
    units = {"p": f"{lead}M", "q": f"{lead}N"}
    sums, multiplied = (SUMMED, ((1, 0), (0, 1), (0, 0))) if both else (EXACT, ((0, 0),))
    declared: dict[str, Any] = {**_parameters(rank, HALVES), **units, **dict.fromkeys(NUMBERS, number)}

    @kernel(**declared)
    def gemm_complex_halves(
        a1: Any,
        a2: Any,
        a1_im: Any,
        a2_im: Any,
        b1: Any,
        b2: Any,
        b1_im: Any,
        b2_im: Any,
        p: Any,
        q: Any,
        c: Any,
        c_im: Any,
        out: Any,
        out_im: Any,
        alpha_re: Any,
        alpha_im: Any,
        beta_re: Any,
        beta_im: Any,
        *,
        terms: frozenset[str],
        conjugates: tuple[bool, bool, bool],
        pairs: Pairs = APART,
    ) -> None:
        re_a, im_a, re_b, im_b = (a1, a2), (a1_im, a2_im), (b1, b2), (b1_im, b2_im)
        numbers = (alpha_re, alpha_im), (beta_re, beta_im)
        ending = Ending((c, c_im), (out, out_im), numbers, number, terms, conjugates[2], pairs)
        for *batch, m, n in tiles(out):
            prior_grid_wait()
            re, im = zeros(precision=sums), zeros(precision=sums)
            for k in steps(a1.shape[-1]):
                at_a, at_b = (*batch, m, k), (*batch, k, n)
                for i, j in multiplied:
                    of_a, of_b = (re_a[i][at_a], im_a[i][at_a]), (re_b[j][at_b], im_b[j][at_b])
                    re, im = _summed((re, im), of_a, of_b, conjugates, EXACT)
            unit = p[(*batch, m, None)] * q[(*batch, n)]
            re, im = re * unit * unit, im * unit * unit  # the square of the unit may be out of range
            ending.store((re, im), (*batch, m, n))

    return gemm_complex_halves


def _summed(
    sums: tuple[Any, Any],
    a: tuple[Any, Any],
    b: tuple[Any, Any],
    conjugates: tuple[bool, bool, bool],
    precision: str,
) -> tuple[Any, Any]:
    """The sums of real and of imaginary parts, with those of the product of two tiles added."""
    (re, im), (re_a, im_a), (re_b, im_b) = sums, a, b
    re += re_a.matmul(re_b, precision=precision)
    if conjugates[0] == conjugates[1]:
        re -= im_a.matmul(im_b, precision=precision)
    else:
        re += im_a.matmul(im_b, precision=precision)
    if conjugates[1]:
        im -= re_a.matmul(im_b, precision=precision)
    else:
        im += re_a.matmul(im_b, precision=precision)
    if conjugates[0]:
        im -= im_a.matmul(re_b, precision=precision)
    else:
        im += im_a.matmul(re_b, precision=precision)
    return re, im


@dataclass(frozen=True)
class Ending:
    """What is done with the sums of a kernel.

    Args:
        added: real and imaginary parts of what is added.
        written: those of the result.
        numbers: those of alpha and of beta.
        number: the dtype in which these are multiplied.
        terms: what is done; see `TERMS`.
        is_conjugate: whether the conjugate is added.
        pairs: of what is added and of the result the dtype of the parts, if both lie side by side.
    """

    added: tuple[Any, Any]
    written: tuple[Any, Any]
    numbers: tuple[tuple[Any, Any], tuple[Any, Any]]
    number: DType
    terms: frozenset[str]
    is_conjugate: bool
    pairs: Pairs

    def store(self, sums: tuple[Any, Any], at: tuple[Any, ...]) -> None:
        """Finish the sums of a tile, and store them."""
        added = _parts(*self.added, at, self.pairs[0])
        finished = _finished(
            sums, self.numbers, added, self.number, self.terms, is_conjugate=self.is_conjugate
        )
        _store(*self.written, at, finished, self.pairs[1])


def _finished(
    sums: tuple[Any, Any],
    numbers: tuple[tuple[Any, Any], tuple[Any, Any]],
    added: tuple[Any, Any],
    number: DType,
    terms: frozenset[str],
    *,
    is_conjugate: bool,
) -> tuple[Any, Any]:
    """What becomes of the sums: ``alpha`` times them, and ``beta`` times what is added; see `TERMS`."""
    (re, im), ((alpha_re, alpha_im), (beta_re, beta_im)) = sums, numbers
    if terms:
        re, im = re.to(number), im.to(number)
    if "turn" in terms:
        re, im = alpha_re * re - alpha_im * im, alpha_re * im + alpha_im * re
    elif "alpha" in terms:
        re, im = alpha_re * re, alpha_re * im
    if "c" in terms:
        c_re, c_im = (part.to(number) for part in added)
        if is_conjugate:
            c_im = -c_im
        if "turn c" in terms:
            return re + (beta_re * c_re - beta_im * c_im), im + (beta_re * c_im + beta_im * c_re)
        re, im = re + beta_re * c_re, im + beta_re * c_im
    return re, im


def _operand(re: Any, im: Any, at: tuple[Any, ...], *, together: bool) -> tuple[Any, Any]:
    """Real and imaginary parts of a tile of an operand, which are one array if they lie together."""
    return (re[(*at, 0)], re[(*at, 1)]) if together else (re[at], im[at])


def _parts(re: Any, im: Any, at: tuple[Any, ...], part: DType | None) -> tuple[Any, Any]:
    """A tile of an array, of which both parts lie side by side if their dtype is given."""
    return (re[at], im[at]) if part is None else parted(re[at], part)


def _store(re: Any, im: Any, at: tuple[Any, ...], values: tuple[Any, Any], part: DType | None) -> None:
    """Store a tile, both parts side by side if their dtype is given."""
    if part is not None:
        re[at] = paired(*values, part)
        return
    re[at], im[at] = values


def terms_of(alpha: complex, beta: complex, *, adds: bool) -> frozenset[str]:
    """What is done with the sums, by the names of `TERMS`.

    Args:
        alpha: what they are multiplied by.
        beta: what is added is multiplied by it.
        adds: whether anything is added.
    """
    asked = (alpha != 1, alpha.imag != 0, adds, adds and beta.imag != 0)
    return frozenset(term for term, is_wanted in zip(TERMS, asked, strict=True) if is_wanted)


TERMS = ("alpha", "turn", "c", "turn c")
"""Alpha is not 1; it has an imaginary part; something is added; beta has an imaginary part."""

NUMBERS = ("alpha_re", "alpha_im", "beta_re", "beta_im")


def _lead(rank: int) -> str:
    return "".join(f"B{dim} " for dim in range(rank))


def _parameters(rank: int, operands: tuple[str, ...]) -> dict[str, str]:
    lead = _lead(rank)
    declared = {name: f"{lead}M K" if name.startswith("a") else f"{lead}K N" for name in operands}
    return declared | dict.fromkeys(RESULTS, f"{lead}M N")
