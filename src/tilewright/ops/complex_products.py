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
            if terms:
                re, im = re.to(number), im.to(number)
            if "turn" in terms:
                re, im = alpha_re * re - alpha_im * im, alpha_re * im + alpha_im * re
            elif "alpha" in terms:
                re, im = alpha_re * re, alpha_re * im
            if "c" in terms:
                added, added_im = c[(*batch, m, n)].to(number), c_im[(*batch, m, n)].to(number)
                if conjugates[2]:
                    added_im = -added_im
                if "turn c" in terms:
                    re = re + (beta_re * added - beta_im * added_im)
                    im = im + (beta_re * added_im + beta_im * added)
                else:
                    re, im = re + beta_re * added, im + beta_re * added_im
            out[(*batch, m, n)] = re
            out_im[(*batch, m, n)] = im

    return gemm_complex


NUMBERS = ("alpha_re", "alpha_im", "beta_re", "beta_im")


def _parameters(rank: int, operands: tuple[str, ...]) -> dict[str, str]:
    lead = "".join(f"B{dim} " for dim in range(rank))
    declared = {name: f"{lead}M K" if name.startswith("a") else f"{lead}K N" for name in operands}
    return declared | dict.fromkeys(RESULTS, f"{lead}M N")
