"""Matrix multiplies against float64, element by element, on ragged shapes, strides, dtypes and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.runtime import native
from tilewright.targets.rules import EmittedText

pytestmark = pytest.mark.in_turns(3)

Machine = Callable[..., EmittedText]

RAGGED = [(129, 129, 67), (127, 61, 131), (1, 1, 1), (64, 96, 32), (65, 97, 33), (2, 200, 300), (200, 2, 17)]
FLOATS = [tw.f32, tw.f64, tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2]


@tw.kernel(A="M K", B="N K", C="M N")
def gemm(A, B, C, *, tile, mma):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=(4, 8))
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=(4, 8))
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def tiled(atom: tw.MmaAtom, tile: tuple[int, int, int]) -> dict[str, Any]:
    m, n, _ = atom.shape
    return {"tile": tile, "mma": tw.TiledMma(atom, repeats=(tile[0] // m, tile[1] // n))}


def random(shape: tuple[int, int], dtype: DType, seed: int, layout: str = "row") -> np.ndarray:
    """Return random values in an array with the requested layout; gaps hold NaN or garbage."""
    drawn = np.random.default_rng(seed)
    if dtype.is_float:
        values = drawn.uniform(-1, 1, shape).astype(np.float32).astype(dtype.numpy)
    else:
        values = drawn.integers(-128, 128, shape).astype(dtype.numpy)
    rows, columns = shape
    if layout == "column":
        made = np.empty((columns, rows), dtype.numpy).T
    elif layout == "odd":
        made = np.full((rows, columns + 3), -1, dtype.numpy)[:, :columns]
    elif layout == "strided":
        made = np.full((2 * rows, 3 * columns), -1, dtype.numpy)[::2, ::3]
    else:
        made = np.empty(shape, dtype.numpy)
    made[...] = values
    return made


def check(C: np.ndarray, A: np.ndarray, B: np.ndarray, acc: DType, out: DType) -> None:
    """Check elements: each of K products and sums rounds once in ``acc``, and the result once in ``out``."""
    a, b = A.astype(np.float64), B.astype(np.float64)
    exact, size = a @ b.T, np.abs(a) @ np.abs(b).T
    k = A.shape[1]
    bound = (k + 1) * acc.unit_roundoff * size
    bound = bound + out.unit_roundoff * (np.abs(exact) + bound) + 1e-300
    if not acc.is_float:
        bound = np.zeros_like(exact)
    error = np.abs(C.astype(np.float64) - exact)
    assert np.isfinite(C.astype(np.float64)).all()
    assert (error <= bound).all(), f"{(error - bound).max()} past the bound"


def output(shape: tuple[int, int], dtype: DType, layout: str = "row") -> np.ndarray:
    made = random(shape, dtype, 0, layout)
    made[...] = np.nan if dtype.is_float else 77
    return made


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", [*FLOATS, tw.i8], ids=str)
def test_ragged_shapes(machine: Machine, dtype: DType) -> None:
    """One text serves arrays of all extents."""
    atom = tw.atoms.fma(dtype)
    kernel = None
    for M, N, K in RAGGED:
        A, B = random((M, K), dtype, 1), random((N, K), dtype, 2)
        C = output((M, N), atom.c_dtype)
        kernel = kernel or gemm.trace(A, B, C, **tiled(atom, (48, 64, 32)))
        machine(kernel, {"A": A, "B": B, "C": C})
        check(C, A, B, atom.c_dtype, atom.c_dtype)


@pytest.mark.parametrize("shape", [(1, 1, 1), (64, 96, 32), (96, 128, 64), (50, 70, 30)], ids=str)
def test_what_is_known_of_extents_shapes_the_text(machine: Machine, shape: tuple[int, int, int]) -> None:
    M, N, K = shape
    A, B, C = random((M, K), tw.f32, 1), random((N, K), tw.f32, 2), output((M, N), tw.f32)
    machine(gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.f32), (48, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, tw.f32, tw.f32)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    "layouts",
    [
        *(f"{a} {b} row" for a in ("row", "column", "strided") for b in ("row", "column", "strided")),
        *("row odd column", "odd row strided", "column column column"),
    ],
)
def test_layouts(machine: Machine, layouts: str) -> None:
    M, N, K = 101, 83, 71
    layout_a, layout_b, layout_c = layouts.split()
    A, B = random((M, K), tw.f32, 1, layout_a), random((N, K), tw.f32, 2, layout_b)
    C = output((M, N), tw.f32, layout_c)
    machine(gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.f32), (48, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, tw.f32, tw.f32)


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", [tw.f16, tw.i8, tw.f64], ids=str)
@pytest.mark.parametrize("layout", ["column", "strided"])
def test_layouts_of_other_dtypes(machine: Machine, dtype: DType, layout: str) -> None:
    M, N, K = 101, 83, 71
    atom = tw.atoms.fma(dtype)
    A, B = random((M, K), dtype, 1, layout), random((N, K), dtype, 2, layout)
    C = output((M, N), atom.c_dtype)
    machine(gemm.trace(A, B, C, **tiled(atom, (48, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, atom.c_dtype, atom.c_dtype)


@pytest.mark.parametrize("out", [tw.f32, tw.f64, tw.f16, tw.bf16, tw.f8e5m2], ids=str)
def test_the_result_is_rounded_once(machine: Machine, out: DType) -> None:
    A, B = random((70, 50), tw.f16, 1), random((60, 50), tw.f16, 2)
    C = output((70, 60), out)
    machine(gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.f16), (48, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, tw.f32, out)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("dtype", [tw.f32, tw.i8], ids=str)
def test_every_architectures_text(machine: Machine, arch: str, dtype: DType) -> None:
    """The text names no instruction, so this processor runs all texts except those of bytes in 512 bits."""
    if dtype == tw.i8 and arch == "x86-64-v4":  # that text is compiled in test_text.py
        arch = native.host_arch()
    A, B = random((131, 67), dtype, 1), random((101, 67), dtype, 2, "column")
    C = output((131, 101), tw.atoms.fma(dtype).c_dtype)
    kernel = gemm.trace(A, B, C, **tiled(tw.atoms.fma(dtype), (48, 64, 32)))
    machine(kernel, {"A": A, "B": B, "C": C}, arch=arch)
    check(C, A, B, tw.atoms.fma(dtype).c_dtype, tw.atoms.fma(dtype).c_dtype)


@pytest.mark.parametrize("dtype", [tw.bf16, tw.i8], ids=str)
def test_every_toolchain(machine: Machine, toolchain: native.Toolchain, dtype: DType) -> None:
    A, B = random((131, 67), dtype, 1), random((101, 67), dtype, 2)
    C = output((131, 101), tw.atoms.fma(dtype).c_dtype)
    kernel = gemm.trace(A, B, C, **tiled(tw.atoms.fma(dtype), (48, 64, 32)))
    machine(kernel, {"A": A, "B": B, "C": C}, toolchain=toolchain)
    check(C, A, B, tw.atoms.fma(dtype).c_dtype, tw.atoms.fma(dtype).c_dtype)


@pytest.mark.parametrize("name", ["f16", "bf16", "i8"])
def test_tensor_core_atoms(machine: Machine, name: str) -> None:
    atom = tw.atoms.TENSOR_CORE[name]
    A, B = random((129, 67), atom.a_dtype, 1), random((129, 67), atom.a_dtype, 2)
    C = output((129, 129), atom.c_dtype)
    machine(gemm.trace(A, B, C, **tiled(atom, (64, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, atom.c_dtype, atom.c_dtype)


def test_tf32_rounds_its_inputs(machine: Machine) -> None:
    atom = tw.atoms.TENSOR_CORE["f32"]
    A, B = random((65, 40), tw.f32, 1), random((70, 40), tw.f32, 2)
    C = output((65, 70), tw.f32)
    machine(gemm.trace(A, B, C, **tiled(atom, (64, 64, 32))), {"A": A, "B": B, "C": C})

    def kept(values: np.ndarray) -> np.ndarray:
        return ((values.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(np.float32)

    check(C, kept(A), kept(B), tw.f32, tw.f32)
    assert not np.array_equal(kept(A), A)


def test_tf32_keeps_infinity_and_nan(machine: Machine) -> None:
    atom = tw.atoms.TENSOR_CORE["f32"]
    A, B = np.ones((16, 8), np.float32), np.ones((16, 8), np.float32)
    A[:3, 0] = np.array([0x7F800000, 0x7FFFFFFF, 0x7F800001], np.uint32).view(np.float32)
    C = output((16, 16), tw.f32)
    machine(gemm.trace(A, B, C, **tiled(atom, (16, 8, 8))), {"A": A, "B": B, "C": C})
    assert np.isposinf(C[0]).all()
    assert np.isnan(C[1:3]).all()
    assert (C[3:] == 8).all()


@pytest.mark.parametrize("dtype", [tw.f16, tw.bf16], ids=str)
def test_narrow_accumulators(machine: Machine, dtype: DType) -> None:
    atom = tw.atoms.fma(dtype, acc=dtype)
    A, B = random((70, 50), dtype, 1), random((60, 50), dtype, 2)
    C = output((70, 60), dtype)
    machine(gemm.trace(A, B, C, **tiled(atom, (48, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, dtype, dtype)


@pytest.mark.parametrize(
    "tile", [(4, 8, 1), (28, 8, 3), (20, 24, 5), (36, 40, 7), (132, 136, 9), (192, 256, 64)]
)
def test_tiles_of_every_size(machine: Machine, tile: tuple[int, int, int]) -> None:
    A, B = random((150, 70), tw.f32, 1), random((140, 70), tw.f32, 2)
    C = output((150, 140), tw.f32)

    @tw.kernel(A="M K", B="N K", C="M N")
    def plain(A, B, C, *, tile, mma):
        m, n = tw.block_index(tw.ceil_div(C.shape, tile[:2]))
        sA, sB = tw.shared((tile[0], tile[2]), A.dtype), tw.shared((tile[1], tile[2]), B.dtype)
        acc = tw.accumulator(mma)
        for k in tw.range(tw.ceil_div(A.shape[1], tile[2])):
            tw.copy(A.tile((tile[0], tile[2]), (m, k)), sA, threads=(1, 1))
            tw.copy(B.tile((tile[1], tile[2]), (n, k)), sB, threads=(1, 1))
            tw.barrier()
            tw.mma(sA, sB, acc)
            tw.barrier()
        tw.copy(acc, C.tile(tile[:2], (m, n)))

    machine(plain.trace(A, B, C, **tiled(tw.atoms.fma(tw.f32), tile)), {"A": A, "B": B, "C": C})
    check(C, A, B, tw.f32, tw.f32)


def test_integers_are_exact(machine: Machine) -> None:
    drawn = np.random.default_rng(0)
    kernel = None
    for _ in range(20):
        M, N, K = (int(n) for n in drawn.integers(1, 200, 3) | 1)
        A = drawn.integers(-8, 9, (M, K)).astype(np.float32)
        B = drawn.integers(-8, 9, (N, K)).astype(np.float32)
        C = output((M, N), tw.f32)
        kernel = kernel or gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.f32), (48, 64, 32)))
        machine(kernel, {"A": A, "B": B, "C": C})
        assert np.array_equal(C, A @ B.T)


def test_extreme_bytes_do_not_overflow(machine: Machine) -> None:
    A, B = np.full((64, 4096), -128, np.int8), np.full((64, 4096), -128, np.int8)
    C = output((64, 64), tw.i32)
    machine(gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.i8), (64, 64, 64))), {"A": A, "B": B, "C": C})
    assert (C == 128 * 128 * 4096).all()


def test_nothing_outside_the_result_is_written(machine: Machine) -> None:
    A, B = random((65, 40), tw.f32, 1), random((70, 40), tw.f32, 2)
    around = np.full((67, 75), 5, np.float32)
    C = around[1:66, 2:72]
    machine(gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.f32), (48, 64, 32))), {"A": A, "B": B, "C": C})
    check(C, A, B, tw.f32, tw.f32)
    C[...] = 5
    assert (around == 5).all()


def test_infinities_past_an_edge_do_not_leak(machine: Machine) -> None:
    """Rows of A past its edge are zeros; their products with an infinity must not reach C."""
    A, B = random((49, 33), tw.f32, 1), random((65, 33), tw.f32, 2)
    B[3, 5] = np.inf
    C = output((49, 65), tw.f32)
    machine(gemm.trace(A, B, C, **tiled(tw.atoms.fma(tw.f32), (48, 64, 32))), {"A": A, "B": B, "C": C})
    expected = A.astype(np.float64) @ B.astype(np.float64).T
    assert np.array_equal(np.isfinite(C), np.isfinite(expected))
