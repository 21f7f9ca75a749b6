"""GEMMs of every dtype, with 32 and with 64 lanes per warp, against the comparator."""

from __future__ import annotations

import time

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.dtypes import dtype
from tilewright.errors import LegalityError
from tilewright.lang.program import Program
from tilewright.lang.specs import TensorSpec
from tilewright.targets.atoms import MMA_BF16, MMA_F16, MMA_F16_F16, MMA_I8, MMA_TF32, fma
from tilewright.targets.reference import run


def gemm(A, B, C, *, tile, threads, mma, vector=1):
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sA = tw.shared((tile_m, tile_k), A.dtype)
    sB = tw.shared((tile_n, tile_k), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        tw.copy(A.tile((tile_m, tile_k), (m, k)), sA, threads=threads, vector=vector)
        tw.copy(B.tile((tile_n, tile_k), (n, k)), sB, threads=threads, vector=vector)
        tw.barrier()
        tw.mma(sA, sB, acc)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def register_gemm(A, B, C, *, tile, threads, mma):
    """As `gemm`, with both operands loaded into registers first."""
    tile_m, tile_n, tile_k = tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], tile_k)):
        a = tw.load(A.tile((tile_m, tile_k), (m, k)), tw.operand_a(mma, tile_k))
        b = tw.load(B.tile((tile_n, tile_k), (n, k)), tw.operand_b(mma, tile_k))
        tw.mma(a, b, acc)
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def spec(array):
    strides = [stride // array.itemsize for stride in array.strides]
    unit = next((dim for dim in reversed(range(array.ndim)) if strides[dim] == 1), None)
    extents = tuple(int(np.gcd(n, 32)) for n in array.shape)
    multiples = tuple(1 if dim == unit else int(np.gcd(s, 32)) for dim, s in enumerate(strides))
    return TensorSpec(dtype(array.dtype), array.ndim, unit, extents, multiples, 16, False)


def operands(m, n, k, element):
    rng = np.random.default_rng(m + n + k)
    if not element.is_float:
        return [rng.integers(-100, 100, (rows, k)).astype(element.numpy) for rows in (m, n)]
    return [rng.standard_normal((rows, k)).astype(element.numpy) for rows in (m, n)]


def multiply(function, a, b, out, *, lanes=None, check=True, **constants):
    element = dtype(out)
    c = np.full((len(a), len(b)), np.nan if element.is_float else 77, element.numpy)
    arrays = {"A": a, "B": b, "C": c}
    specs = {name: spec(array) for name, array in arrays.items()}
    program = Program(function, {"A": "M K", "B": "N K", "C": "M N"})
    report = run(program.trace(specs, constants), arrays, lanes=lanes, check=check)
    report.raise_if_any()
    return c, report


ATOMS = {
    "f32": (fma(tw.f32, each=(2, 2)), fma(tw.f32, lanes=(8, 8), each=(2, 2))),
    "f16": (MMA_F16, fma(tw.f16, lanes=(8, 8), each=(2, 2))),
    "f16 in f16": (MMA_F16_F16, fma(tw.f16, tw.f16, lanes=(8, 8), each=(2, 2))),
    "bf16": (MMA_BF16, fma(tw.bf16, lanes=(8, 8), each=(2, 2))),
    "tf32": (MMA_TF32, None),
    "i8": (MMA_I8, fma(tw.i8, lanes=(8, 8), each=(2, 2))),
    "f64": (fma(tw.f64, each=(2, 2)), fma(tw.f64, lanes=(8, 8), each=(2, 2))),
}
CASES = [
    (name, lanes) for name, pair in ATOMS.items() for lanes, atom in zip((32, 64), pair, strict=True) if atom
]


def tiled(name, lanes):
    atom = ATOMS[name][lanes == 64]
    m, n, _ = atom.shape
    warps = (2, 2) if lanes == 32 else (2, 1)
    return tw.TiledMma(atom, warps, (64 // (m * warps[0]), 64 // (n * warps[1])))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("name", "lanes"), CASES)
@pytest.mark.parametrize("shape", [(129, 129, 67), (64, 64, 96), (7, 1, 33), (65, 130, 1)], ids=str)
def test_products_are_right_and_clean(name, lanes, shape) -> None:
    mma = tiled(name, lanes)
    a, b = operands(*shape, mma.atom.a_dtype)
    c, report = multiply(
        gemm, a, b, mma.atom.c_dtype, lanes=lanes, tile=(64, 64, 32), threads=(32, 4), mma=mma
    )
    compare_gemm(a, b.T, c, Accumulation.of(mma.atom)).raise_if_wrong()
    assert report.uncovered == {"C": 0}


@pytest.mark.parametrize(("name", "lanes"), CASES)
def test_operands_in_registers(name, lanes) -> None:
    mma = tiled(name, lanes)
    a, b = operands(70, 60, 67, mma.atom.a_dtype)
    c, _ = multiply(
        register_gemm, a, b, mma.atom.c_dtype, lanes=lanes, tile=(64, 64, 32), threads=(32, 4), mma=mma
    )
    compare_gemm(a, b.T, c, Accumulation.of(mma.atom)).raise_if_wrong()


@pytest.mark.parametrize("layout", ["rows", "columns", "mixed", "padded"])
def test_any_strides(layout) -> None:
    mma = tiled("f16", 32)
    a, b = operands(70, 60, 67, tw.f16)
    if layout == "columns":
        a, b = np.asfortranarray(a), np.asfortranarray(b)
    elif layout == "mixed":
        a = np.asfortranarray(a)
    elif layout == "padded":
        a, b = (np.concatenate([x, x], axis=1)[:, :67] for x in (a, b))
    c, _ = multiply(gemm, a, b, tw.f16, tile=(64, 64, 32), threads=(32, 4), mma=mma)
    compare_gemm(a, b.T, c, Accumulation.of(mma.atom)).raise_if_wrong()


@pytest.mark.parametrize("out", ["f32", "f16", "bf16"])
def test_the_accumulator_is_rounded_once_into_the_output(out) -> None:
    mma = tiled("f16", 32)
    a, b = operands(64, 64, 96, tw.f16)
    wide, _ = multiply(gemm, a, b, "f32", tile=(64, 64, 32), threads=(32, 4), mma=mma)
    c, _ = multiply(gemm, a, b, out, tile=(64, 64, 32), threads=(32, 4), mma=mma)
    np.testing.assert_array_equal(c, wide.astype(dtype(out).numpy))


def test_integers_are_exact_and_wrap() -> None:
    mma = tiled("i8", 32)
    a, b = np.full((64, 32), -128, np.int8), np.full((64, 32), -128, np.int8)
    c, _ = multiply(gemm, a, b, "i32", tile=(64, 64, 32), threads=(32, 4), mma=mma)
    assert (c == 32 * 128 * 128).all()
    c, _ = multiply(gemm, a, b, "i8", tile=(64, 64, 32), threads=(32, 4), mma=mma)
    assert (c == 0).all()


def test_tf32_rounds_its_inputs_away_from_ties() -> None:
    mma = tiled("tf32", 32)
    a, b = np.zeros((64, 32), np.float32), np.zeros((64, 32), np.float32)
    a[:, 0], b[:, 0] = 1 + 2.0**-11, 1.0
    c, _ = multiply(gemm, a, b, "f32", tile=(64, 64, 32), threads=(32, 4), mma=mma)
    assert (c == 1 + 2.0**-10).all()


def test_products_of_complex_numbers() -> None:
    rng = np.random.default_rng(3)
    a, b = (
        (rng.standard_normal((32, 16)) + 1j * rng.standard_normal((32, 16))).astype(np.complex64)
        for _ in "ab"
    )
    mma = tw.TiledMma(fma(tw.c64, tw.c64, each=(2, 2)), (2, 1), (2, 2))
    c = np.zeros((32, 32), np.complex64)
    specs = {name: spec(array) for name, array in (("A", a), ("B", b), ("C", c))}
    program = Program(gemm, {"A": "M K", "B": "N K", "C": "M N"})
    kernel = program.trace(specs, {"tile": (32, 32, 16), "threads": (16, 4), "mma": mma})
    run(kernel, {"A": a, "B": b, "C": c}).raise_if_any()
    np.testing.assert_allclose(c, a @ b.T, rtol=1e-5)


def test_an_instruction_of_another_warp_size_is_refused() -> None:
    a, b = operands(64, 64, 32, tw.f16)
    with pytest.raises(LegalityError, match="executed by 32 lanes together; warps have 64"):
        multiply(gemm, a, b, "f32", lanes=64, tile=(64, 64, 32), threads=(32, 4), mma=tiled("f16", 32))


def test_more_threads_than_the_block_has_are_refused() -> None:
    a, b = operands(64, 64, 32, tw.f32)
    program = Program(gemm, {"A": "M K", "B": "N K", "C": "M N"})
    specs = {name: spec(array) for name, array in (("A", a), ("B", b), ("C", a @ b.T))}
    kernel = program.trace(specs, {"tile": (64, 64, 32), "threads": (32, 4), "mma": tiled("f32", 32)})
    small = type(kernel)(**{**vars(kernel), "threads": 64})
    with pytest.raises(LegalityError, match="takes 128 threads; the block has 64"):
        run(small, {"A": a, "B": b, "C": a @ b.T})


def test_no_k_at_all_gives_zeros() -> None:
    mma = tiled("f32", 32)
    c, _ = multiply(
        gemm,
        np.zeros((5, 0), np.float32),
        np.zeros((9, 0), np.float32),
        "f32",
        tile=(64, 64, 32),
        threads=(32, 4),
        mma=mma,
    )
    assert (c == 0).all()


def test_checking_is_fast() -> None:
    mma = tw.TiledMma(MMA_F16, (4, 2), (2, 8))
    a, b = operands(128, 128, 96, tw.f16)
    start = time.perf_counter()
    _, report = multiply(gemm, a, b, "f32", tile=(128, 128, 32), threads=(64, 4), mma=mma, vector=8)
    assert time.perf_counter() - start < 2
    assert report.counters.barriers == 6
