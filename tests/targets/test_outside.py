"""Elements outside of an array read as `other=`, on every target."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.ir.kernel import SizeParam, TensorParam
from tilewright.runtime.native import find_toolchains
from tilewright.runtime.nvrtc import compile_text
from tilewright.symbolic.rebuilding import evaluate
from tilewright.targets import cuda, reference

from .cuda.emulation import Emulator

OTHERS = {
    tw.f64: -math.inf,
    tw.f32: math.nan,
    tw.f16: -math.inf,
    tw.bf16: 3.14159,
    tw.f8e4m3: -448,
    tw.f8e5m2: math.inf,
    tw.i64: -(2**40),
    tw.i32: -7,
    tw.i16: 300,
    tw.i8: -128,
    tw.u64: 2**64 - 1,
    tw.u32: 2**32 - 1,
    tw.u8: 255,
}
WAYS = ("fragment", "shared", "global")


@tw.kernel(X="M N", Y="P Q")
def padded(X, Y, *, way, other, vector=None):
    """Copy X with ``other`` around it to Y, through registers or shared memory, or directly."""
    m, n = tw.block_index(tw.ceil_div(Y.shape, (16, 32)))
    at, threads = (m, n), (16, 4)
    source, target = X.tile((16, 32), at), Y.tile((16, 32), at)
    if way == "fragment":
        part = source.partition(threads)
        tw.copy(tw.load(part, other=other, vector=vector), target)
    elif way == "shared":
        held = tw.shared((16, 32), X.dtype)
        tw.copy(source, held, threads=threads, other=other, vector=vector)
        tw.barrier()
        tw.copy(held, target, threads=(4, 16))
    else:
        tw.copy(source, target, threads=threads, other=other)


def numbers(dtype: DType, shape: tuple[int, int]) -> np.ndarray:
    drawn = np.random.default_rng(1).integers(0, 100, shape)
    return drawn.astype(dtype.numpy)


def wanted(x: np.ndarray, shape: tuple[int, int], dtype: DType, other: float) -> np.ndarray:
    made = np.full(shape, np.asarray(other).astype(dtype.numpy))
    made[: x.shape[0], : x.shape[1]] = x
    return made


def same(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(found.view(f"u{found.itemsize}"), expected.view(f"u{found.itemsize}"))


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_elements_outside_read_as_other(dtype: DType, way: str, target: str) -> None:
    x, y = numbers(dtype, (21, 37)), numbers(dtype, (40, 70))
    bound = padded.bind(way=way, other=OTHERS[dtype])
    assert bound(x, y, target=target).target == target
    same(y, wanted(x, y.shape, dtype, OTHERS[dtype]))


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return the CUDA kernels for rows of multiples of 8 elements, and their program for the host."""
    listings = {}
    for dtype in OTHERS:
        for way in WAYS:
            x, y = numbers(dtype, (21, 40)), numbers(dtype, (40, 72))
            listings[f"{dtype}_{way}"] = cuda.emit(
                padded.bind(way=way, other=OTHERS[dtype]).trace(x, y), "sm_90a"
            )
    return Emulator(listings, find_toolchains()[0], tmp_path_factory.mktemp("outside")), listings


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_the_text_for_cuda_reads_other_outside(dtype: DType, way: str, texts: Any) -> None:
    emulator, listings = texts
    name = f"{dtype}_{way}"
    kernel = listings[name].kernel
    given = {"X": numbers(dtype, (21, 40)), "Y": numbers(dtype, (40, 72))}
    env = reference.bind_sizes(kernel, given, {})
    packed: list[Any] = []
    for param in kernel.params:
        if isinstance(param, TensorParam):
            packed.append(ctypes.c_void_p(given[param.value.name].ctypes.data))
        elif isinstance(param, SizeParam):
            packed.append((ctypes.c_longlong if param.bits == 64 else ctypes.c_int)(env[param.sym]))
    emulator.run(name, [int(evaluate(axis.extent, env)) for axis in kernel.grid], kernel.threads, packed)
    same(given["Y"], wanted(given["X"], given["Y"].shape, dtype, OTHERS[dtype]))


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("dtype", OTHERS, ids=str)
def test_the_text_for_cuda_compiles(dtype: DType, texts: Any) -> None:
    for way in WAYS:
        listing = texts[1][f"{dtype}_{way}"]
        assert "load_or<" in listing.text
        assert compile_text(listing.text, "sm_90a", listing.entry)


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_a_row_softmax_over_a_cut_tile_sums_to_one(target: str) -> None:
    @tw.kernel(X="M N", Y="M N")
    def softmax(X, Y):
        m = tw.block_index(tw.ceil_div(X.shape[0], 8))
        x = tw.load(X.tile((8, 64), (m, 0)).partition((8, 4)), other=-math.inf)
        weights = tw.exp(x - tw.reduce_max(x, 1))
        tw.copy(weights / tw.reduce_sum(weights, 1), Y.tile((8, 64), (m, 0)))

    x = np.random.default_rng(0).standard_normal((13, 50)).astype(np.float32)
    y = np.full_like(x, 7)
    assert softmax(x, y, target=target).target == target
    wide = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    np.testing.assert_allclose(y, wide / wide.sum(1, keepdims=True), rtol=1e-5)


def test_a_multiply_of_what_reads_as_one_uses_all_of_it() -> None:
    """The CPU leaves out products that are 0 past the edge of K. These are not 0, as the checker says."""
    mma = tw.TiledMma(tw.atoms.fma(tw.f32, each=(4, 4)), warps=(1, 1), repeats=(1, 1))
    rows, columns, _ = mma.tile

    @tw.kernel(A="M K", B="N K", C="M N")
    def product(A, B, C):
        sA, sB = tw.shared((rows, 16), A.dtype), tw.shared((columns, 16), B.dtype)
        tw.copy(A.tile((rows, 16), (0, 0)), sA, threads=(8, 4), other=1)
        tw.copy(B.tile((columns, 16), (0, 0)), sB, threads=(8, 4), other=1)
        tw.barrier()
        acc = tw.accumulator(mma)
        tw.mma(sA, sB, acc)
        tw.copy(acc, C.tile((rows, columns), (0, 0)))

    rng = np.random.default_rng(3)
    a, b = (rng.integers(-4, 5, (extent, 9)).astype(np.float32) for extent in (rows, columns))
    c = np.full((rows, columns), np.nan, np.float32)
    assert product(a, b, c, target="cpu").target == "cpu"
    np.testing.assert_array_equal(c, a @ b.T + (16 - 9))
    assert {finding.kind.value for finding in product.check(a, b, c).findings} == {
        "element beyond an edge in a result"
    }


@pytest.mark.parametrize(
    ("dtype", "call", "message"),
    [
        (
            tw.f32,
            lambda p, s, t: tw.copy_async(p, s, threads=(8, 4), other=1),
            "copies in the background",
        ),
        (
            tw.f32,
            lambda p, s, t: tw.copy(tw.load(t), s, other=1),
            "has no elements outside",
        ),
        (tw.i32, lambda p, s, t: tw.load(t, other=0.5), "0.5 is no i32"),
        (tw.i8, lambda p, s, t: tw.load(t, other=-129), "-129 is not within -128 to 127"),
        (tw.f8e4m3, lambda p, s, t: tw.load(t, other=-math.inf), "f8e4m3 has no infinity for other=-inf"),
    ],
)
def test_what_has_no_meaning_is_refused(dtype: DType, call: Any, message: str) -> None:
    @tw.kernel(X="N N2")
    def kernel(X):
        part = X.tile((8, 32), (0, 0))
        call(part, tw.shared((8, 32), X.dtype), part.partition((8, 4)))

    with pytest.raises(tw.LegalityError) as refused:
        kernel(np.zeros((8, 30), dtype.numpy), target="reference")
    assert message in str(refused.value)


def test_what_is_no_number_is_refused() -> None:
    @tw.kernel(X="N")
    def kernel(X):
        tw.load(X.tile((32,), (0,)).partition((32,)), other="nan")

    with pytest.raises(tw.TraceError, match="other must be a number"):
        kernel.trace(np.zeros(30, np.float32))
