"""Wrong kernels and what their authors are told, word for word.

`pytest tests/lang/test_golden.py --update-golden` writes the messages anew; read the diff as a user would.
"""

# ruff: noqa: F841

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import tilewright as tw
from tilewright.errors import LegalityError
from tilewright.ir.verify import violations

from .kernels import CONSTANTS, DIMS, MMA, basic_gemm, spec, trace


def message(kernel: Callable[..., Any], declared: dict[str, Any], **given: Any) -> str:
    """Return messages of tracing and of the legality report."""
    try:
        traced = trace(kernel, declared, **given)
    except tw.TilewrightError as error:
        return f"{type(error).__name__}: {error}\n"
    return f"LegalityError: {LegalityError(traced.name, 'reference', violations(traced))}\n"


# ---------------------------------------------------------------- wrong constants or arrays


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("vector_of_unaligned_rows", {"A": spec(extents=1, strides=1), "B": spec(extents=4, strides=4)}),
        ("vector_of_columns", {"A": spec(unit_dim=0)}),
        ("alignment", {"A": spec(align=4)}),
        (
            "repeats",
            {"tile": (128, 64, 32), "threads": (32, 4), "mma": tw.TiledMma(MMA.atom, (2, 2), (8, 8))},
        ),
        ("threads", {"threads": (48, 4)}),
        ("dtype", {"A": spec(tw.f32), "B": spec(tw.bf16)}),
    ],
)
def test_basic_gemm(name: str, given: dict[str, Any], golden: Callable[[str, str], None]) -> None:
    golden(message(basic_gemm, DIMS, **{"C": spec(tw.f32), **CONSTANTS, **given}), f"{name}.txt")


# ---------------------------------------------------------------- kernels


def many_rules_at_once(A, C, n):
    sA = tw.shared((64, 32), A.dtype, layout=tw.row_major((64, 32), 40), elems=64 * 32)
    tw.copy(A.tile((32, 64), (0, n)), sA, threads=(16, 4))
    tw.copy(A.tile((64, 32), (0, n)), sA)  # by all threads, which breaks no rule
    tw.copy_async(A.tile((64, 32), (0, n)), sA, threads=(64, 4), vector=1)
    x = tw.fragment(tw.blocked((64, 32), (8, 4), (1, 0)), tw.f16, 0)
    y = tw.fragment(tw.blocked((64, 32), (4, 8), (1, 0)), tw.f16, 0)
    z = x + y
    count = tw.fragment(tw.blocked((64, 32), (8, 4), (1, 0)), tw.i32, 0.5)
    tw.copy(z, C.tile((64, 32), (0, n)), threads=(4, 8))


def carried(A, C, n):
    total = tw.fragment(tw.blocked((8, 8), (8, 4), (1, 0)), tw.f16, 0)
    for k in tw.range(tw.ceil_div(A.shape[1], 8)):
        part = A.tile((8, 8), (n, k)).partition((8, 4))
        total = total + tw.load(part)
    tw.copy(total, C.tile((8, 8), (n, 0)))


def phase(A, C, n):
    stages = [tw.shared((8, 8), A.dtype), tw.shared((8, 8), A.dtype)]
    phase = 0
    for k in tw.range(n):
        tw.copy(A.tile((8, 8), (0, k)), stages[phase], threads=(8, 4))
        phase = 1 - phase


def python_if(A, C, n):
    m = tw.block_index(tw.ceil_div(A.shape[0], 8))
    if m == 0:
        tw.copy(A.tile((8, 8), (m, 0)), C.tile((8, 8), (m, 0)), threads=(8, 4))


def early_exit(A, C, n):
    m = tw.block_index(tw.ceil_div(A.shape[0], 8))
    with tw.when(m >= n):
        return
    tw.copy(A.tile((8, 8), (m, 0)), C.tile((8, 8), (m, 0)), threads=(8, 4))


def first_tile(A, n):
    for k in tw.range(n):
        tile = A.tile((8, 8), (0, k))
        break
    return tile


def left_loop(A, C, n):
    tw.copy(first_tile(A, n), C.tile((8, 8), (0, 0)), threads=(8, 4))


def last_tile(A, n):
    for k in tw.range(n):
        tile = A.tile((8, 8), (0, k)).partition((8, 4))
        loaded = tw.load(tile)
    return tile, loaded, k


def used_after_its_loop(A, C, n):
    tile, loaded, k = last_tile(A, n)
    tw.copy(tile, C.tile((8, 8), (0, 0)))
    tw.copy(loaded, C.tile((8, 8), (0, k)))


def shifted(A, C, n):
    for row in tw.range(n):
        tw.copy(A[row % 0], C[row], threads=(32,))


def symbolic_shared(A, C, n):
    sA = tw.shared((n, 32), A.dtype)


KERNELS = [
    many_rules_at_once,
    carried,
    phase,
    python_if,
    early_exit,
    left_loop,
    used_after_its_loop,
    shifted,
    symbolic_shared,
]


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_kernel(kernel: Callable[..., Any], golden: Callable[[str, str], None]) -> None:
    golden(message(kernel, {"A": "M K", "C": "M N", "n": int}), f"{kernel.__name__}.txt")
