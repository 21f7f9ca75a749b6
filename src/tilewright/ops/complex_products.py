"""The kernels of `complex_matmul`: products of complex numbers whose parts are real arrays."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from tilewright.dtypes import DType
from tilewright.lang.dataflow.loops import steps, tiles, zeros
from tilewright.runtime.decorator import kernel
from tilewright.runtime.kernel import Kernel

OPERANDS = ("a", "a_im", "b", "b_im")
"""The real and imaginary parts that are multiplied, by the names of their arrays."""

SUMS = ("a_sum", "b_sum")
"""Real and imaginary parts of operands, added up: what the third product of three multiplies."""

RESULTS = ("c", "c_im", "out", "out_im")
"""The parts of what is added and of what is written."""


@lru_cache(maxsize=64)
def four_products(rank: int, number: DType) -> Kernel:
    """``D = alpha * op(A) @ op(B) + beta * C`` by four products of real and imaginary parts.

    With ``op(A) = Ar + i sa Ai`` and ``op(B) = Br + i sb Bi``, where a sign is -1 of a conjugate, the sums
    are ``Ar Br - sa sb Ai Bi`` and ``sb Ar Bi + sa Ai Br``.

    Args:
        rank: how many dimensions of batches there are.
        number: the dtype in which alpha and beta are multiplied, and given.
    """
    declared: dict[str, Any] = {**_parameters(rank, OPERANDS), **dict.fromkeys(NUMBERS, number)}

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
    ) -> None:
        for *batch, m, n in tiles(out):
            re, im = zeros(), zeros()
            for k in steps(a.shape[-1]):
                at_a, at_b = (*batch, m, k), (*batch, k, n)
                re += a[at_a].matmul(b[at_b], precision=precision)
                if conjugates[0] == conjugates[1]:
                    re -= a_im[at_a].matmul(b_im[at_b], precision=precision)
                else:
                    re += a_im[at_a].matmul(b_im[at_b], precision=precision)
                if conjugates[1]:
                    im -= a[at_a].matmul(b_im[at_b], precision=precision)
                else:
                    im += a[at_a].matmul(b_im[at_b], precision=precision)
                if conjugates[0]:
                    im -= a_im[at_a].matmul(b[at_b], precision=precision)
                else:
                    im += a_im[at_a].matmul(b[at_b], precision=precision)
            numbers = (alpha_re, alpha_im), (beta_re, beta_im)
            at = (*batch, m, n)
            re, im = _finished((re, im), numbers, (c, c_im, at), number, terms, is_conjugate=conjugates[2])
            out[at] = re
            out_im[at] = im

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
    ) -> None:
        for *batch, m, n in tiles(out):
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
            numbers = (alpha_re, alpha_im), (beta_re, beta_im)
            at = (*batch, m, n)
            re, im = _finished((re, im), numbers, (c, c_im, at), number, terms, is_conjugate=conjugates[2])
            out[at] = re
            out_im[at] = im

    return gemm_complex_3m


def _finished(
    sums: tuple[Any, Any],
    numbers: tuple[tuple[Any, Any], tuple[Any, Any]],
    added: tuple[Any, Any, tuple[Any, ...]],
    number: DType,
    terms: frozenset[str],
    *,
    is_conjugate: bool,
) -> tuple[Any, Any]:
    """What becomes of the sums: ``alpha`` times them, and ``beta`` times what is added; see `TERMS`."""
    (re, im), ((alpha_re, alpha_im), (beta_re, beta_im)), (c, c_im, at) = sums, numbers, added
    if terms:
        re, im = re.to(number), im.to(number)
    if "turn" in terms:
        re, im = alpha_re * re - alpha_im * im, alpha_re * im + alpha_im * re
    elif "alpha" in terms:
        re, im = alpha_re * re, alpha_re * im
    if "c" in terms:
        c_re, c_im = c[at].to(number), c_im[at].to(number)
        if is_conjugate:
            c_im = -c_im
        if "turn c" in terms:
            return re + (beta_re * c_re - beta_im * c_im), im + (beta_re * c_im + beta_im * c_re)
        re, im = re + beta_re * c_re, im + beta_re * c_im
    return re, im


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


def _parameters(rank: int, operands: tuple[str, ...]) -> dict[str, str]:
    lead = "".join(f"B{dim} " for dim in range(rank))
    declared = {name: f"{lead}M K" if name.startswith("a") else f"{lead}K N" for name in operands}
    return declared | dict.fromkeys(RESULTS, f"{lead}M N")
