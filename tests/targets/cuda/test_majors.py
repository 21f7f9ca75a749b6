"""Operands of asynchronous MMA along K, M and N: right on the reference, compiled, or refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir import verify
from tilewright.ir.async_legality import SwizzledRows, swizzled_rows
from tilewright.layout.layout import row_major
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda
from tilewright.targets.target import CUDA
from tilewright.views.transforms import Merge, Permute, Swizzle
from tilewright.views.view import View

from .majors import CASES, bind


def stored(rng: np.random.Generator, rows: int, depth: int, along: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the array for the kernel, and the operand as rows x depth."""
    made = rng.standard_normal((rows, depth)).astype(ml_dtypes.bfloat16)
    return (np.ascontiguousarray(made.T) if along else made), made


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", CASES)
def test_the_reference_multiplies_and_finds_no_hazard(name: str) -> None:
    rng, along = np.random.default_rng(7), CASES[name]["along"]
    a, left = stored(rng, 136, 200, "m" in along)
    b, right = stored(rng, 152, 200, "n" in along)
    c = np.full((136, 152), np.nan, np.float32)
    bound = bind(**CASES[name])
    bound.check(a, b, c).raise_if_any()
    assert bound(a, b, c, target="reference").target == "reference"
    compare_gemm(left, right.T, c, Accumulation.of(bound.constants["mma"].atom)).raise_if_wrong()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", CASES)
def test_it_compiles_without_spills_or_warnings(name: str) -> None:
    spec = tw.TensorSpec(tw.bf16, 2, 1, (8, 8), (8, 1), 16, False)
    out = tw.TensorSpec(tw.f32, 2, 1, (8, 8), (8, 1), 16, False)
    binary = compile_text(cuda.emit(bind(**CASES[name]).trace(spec, spec, out), "sm_90a").text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


def tile(*shape: int, bits: int = 3, base: int = 3) -> View:
    return Swizzle(bits, base, 3).apply(View.of(row_major(shape)))


def test_panels_are_recognised() -> None:
    assert swizzled_rows(tile(64, 64), 2) == SwizzledRows(1, 0)
    assert swizzled_rows(tile(128, 32, base=2), 4) == SwizzledRows(1, 0)
    k_panels = Merge(1, 2).apply(Permute((1, 0, 2)).apply(tile(2, 128, 64)))
    assert swizzled_rows(k_panels, 2) == SwizzledRows(1, 128 * 64)
    n_panels = Merge(0, 2).apply(Permute((0, 2, 1)).apply(tile(2, 32, 64)))
    assert swizzled_rows(n_panels, 2) == SwizzledRows(0, 32 * 64)
    assert swizzled_rows(Permute((1, 0)).apply(tile(32, 64)), 2) == SwizzledRows(0, 0)
    assert swizzled_rows(View.of(row_major((64, 64))), 2) is None
    assert swizzled_rows(tile(64, 64, bits=2), 2) is None
    assert swizzled_rows(tile(64, 128), 2) is None
    assert swizzled_rows(Merge(1, 2).apply(Permute((1, 0, 2)).apply(tile(2, 4, 64))), 2) is None


def test_atoms_that_end_inside_of_a_row_are_refused() -> None:
    spec = tw.TensorSpec(tw.bf16, 2, 1, (8, 8), (8, 1), 16, False)
    out = tw.TensorSpec(tw.f32, 2, 1, (8, 8), (8, 1), 16, False)
    kernel = bind("n", 1, n=32, repeats=(1, 4)).trace(spec, spec, out)
    [broken] = verify.violations(kernel)
    assert "runs along N in rows of 64; wgmma.m64n32k16.f32.bf16 takes 32" in broken.message
    assert broken.nearest == "an atom of 64"


@tw.kernel(A="B1 B2 B3 B4 B5 B6")
def a_box_of_six(A):
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.hopper.tma_load(
        A[0, 0, 0, 0].tile((64, 64), (0, 0)), tw.shared((64, 64), A.dtype, swizzle=128), full[0]
    )


@tw.kernel(A="P M K")
def a_box_of_three(A):
    full = tw.hopper.mbarrier(1, arrivals=1)
    columns = 128 // A.dtype.bytes
    held = tw.shared((64, columns), A.dtype, swizzle=128)
    tw.hopper.tma_load(A[0].tile(held.shape, (0, 0)), held, full[0])


def test_what_tma_copies() -> None:
    six = tw.TensorSpec(tw.bf16, 6, 5, (8,) * 6, (8,) * 5 + (1,), 16, False)
    [broken] = verify.violations(a_box_of_six.trace(six))
    assert (broken.message, broken.nearest) == (
        "A has 6 dimensions; TMA copies of at most 5 dimensions",
        "5 dimensions",
    )
    for element, refused in ((tw.bf16, False), (tw.i64, True), (tw.c64, True), (tw.i8, False)):
        spec = tw.TensorSpec(element, 3, 2, (16,) * 3, (16, 16, 1), 16, False)
        found = [violation.message for violation in verify.violations(a_box_of_three.trace(spec))]
        assert found == ([f"TMA does not support {element}"] if refused else [])


@tw.kernel(X="M N", Y="M N")
def rows_moved(X, Y, *, width, stored):
    """Y = X, one row after the other, in two stages without a swizzle."""
    m = tw.block_index(X.shape[0])
    held = tw.shared((2, 1, width), X.dtype)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    tw.hopper.arrive(full[0], expect_bytes=width * X.dtype.bytes)
    tw.hopper.tma_load(X.tile((1, width), (m, 0)), held[1], full[0])
    tw.hopper.wait(full[0], 0)
    if stored:
        tw.hopper.tma_store(held[1], Y.tile((1, width), (m, 0)))
    tw.copy(held[1], Y.tile((1, width), (m, 0)), threads=32)


def test_tma_brings_a_row_that_no_swizzle_scatters() -> None:
    x = np.random.default_rng(0).standard_normal((3, 84)).astype(np.float32)
    y = np.full_like(x, np.nan)
    bound = rows_moved.bind(width=96, stored=False)
    assert bound.check(x, y).is_clean
    assert bound(x, y, target="reference").target == "reference"
    assert (y == x).all()
    spec = tw.TensorSpec(tw.f32, 2, 1, (1, 4), (4, 1), 16, False)
    arch = CUDA.architecture("sm_90a")
    kernel, _ = cuda.lower(bound.trace(spec, spec), arch)
    [made] = kernel.tensor_maps
    assert (made.box, made.is_swizzled) == ((1, 96), False)
    text = tw.ir.print_kernel(kernel)
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


@pytest.mark.parametrize(
    ("width", "stored", "message"),
    [
        (34, False, "is not laid out in rows of 128 bytes"),  # the second stage begins off such a multiple
        (288, False, "spans 288 elements of dimension 1 of X; at most 256"),
        (96, True, "is not laid out in rows of 128 bytes"),
    ],
)
def test_rows_that_tma_does_not_bring(width: int, stored: bool, message: str) -> None:
    spec = tw.TensorSpec(tw.f32, 2, 1, (1, 4), (4, 1), 16, False)
    found = verify.violations(rows_moved.bind(width=width, stored=stored).trace(spec, spec))
    assert [violation for violation in found if message in violation.message]


@tw.kernel(X="M N")
def a_piece(X, *, width):
    m = tw.block_index(X.shape[0])
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.hopper.tma_load(X.tile((1, width), (m, 0)), tw.shared((1, width), X.dtype), full[0])


def test_rows_of_whole_units() -> None:
    spec = tw.TensorSpec(tw.f32, 2, 1, (1, 4), (4, 1), 16, False)
    [broken] = verify.violations(a_piece.bind(width=6).trace(spec))
    assert broken.message == "a row of 6 elements of X; bulk copies move multiples of 16 bytes"
    assert broken.nearest == "a row of 8 elements"
