"""Products that are subtracted: right on the reference and the CPU, compiled for CUDA, printed, refused."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.checking.sample import operands
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import DeviceArray
from tilewright.runtime.nvrtc import FATAL, compile_text
from tilewright.targets import cuda

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(A="M K", B="N K", C="M N", D="M N")
def subtracted(A, B, C, D, *, mma, depth):
    """C = A Bᵀ by sums, D by sums of subtracted products, from operands in shared memory."""
    (tile_m, tile_n, _) = mma.tile
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    swizzle = 128 if mma.atom.asynchronous else None
    sA = tw.shared((tile_m, depth), A.dtype, swizzle=swizzle)
    sB = tw.shared((tile_n, depth), B.dtype, swizzle=swizzle)
    added, taken = tw.accumulator(mma), tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], depth)):
        tw.copy(A.tile((tile_m, depth), (m, k)), sA, threads=mma.threads)
        tw.copy(B.tile((tile_n, depth), (n, k)), sB, threads=mma.threads)
        if mma.atom.asynchronous:
            tw.hopper.fence_async()
        tw.barrier()
        tw.mma(sA, sB, added)
        tw.mma(sA, sB, taken, negative=True)
        tw.barrier()
    tw.copy(added, C.tile((tile_m, tile_n), (m, n)))
    tw.copy(taken, D.tile((tile_m, tile_n), (m, n)))


CASES = {
    "wgmma": ("bf16", tw.TiledMma(tw.atoms.wgmma("bf16", 64)), 64),
    "wgmma, tf32": ("f32", tw.TiledMma(tw.atoms.wgmma("f32", 64)), 32),
    "wgmma, fp8": ("f8e4m3", tw.TiledMma(tw.atoms.wgmma("f8e4m3", 64)), 128),
    "mma": ("f16", tw.TiledMma(tw.atoms.MMA_F16, (2, 2)), 32),
    "mma, tf32": ("f32", tw.TiledMma(tw.atoms.MMA_TF32, (2, 2)), 32),
    "multiply-adds": ("f32", tw.TiledMma(tw.atoms.fma("f32"), (2, 2), tile=(64, 64)), 8),
}


def computed(name, target):
    dtype, mma, depth = CASES[name]
    made = operands("random", tw.dtype(dtype), (72, 72, 104), layout="nt", seed=3)
    c, d = (np.full((72, 72), 99, np.float32) for _ in range(2))
    bound = subtracted.bind(mma=mma, depth=depth)
    if target == "reference":
        bound.check(made.a, made.b.T, c, d).raise_if_any()
    given = (made.a, made.b.T, c, d)
    there = [DeviceArray.of(one) for one in given] if target == "cuda" else given
    assert bound(*there, target=target).target == target
    if target == "cuda":
        CUDA_DRIVER.synchronize()
        c, d = (one.host() for one in there[2:])
    return made, c, d, Accumulation.of(mma.atom)


@pytest.mark.parametrize("name", CASES)
def test_the_reference_subtracts(name):
    made, c, d, how = computed(name, "reference")
    compare_gemm(made.a, made.b, c, how).raise_if_wrong()
    np.testing.assert_array_equal(d, -c)
    assert not compare_gemm(made.a, made.b, d, how).ok


@pytest.mark.parametrize("dtype", ["f32", "f64", "bf16"])
def test_the_cpu_subtracts(dtype):
    kind = tw.dtype(dtype)
    acc = "f64" if dtype == "f64" else "f32"
    made = operands("random", kind, (72, 136, 200), layout="nt", seed=3)
    c, d = (np.full((72, 136), 99, tw.dtype(acc).numpy) for _ in range(2))
    mma = tw.TiledMma(tw.atoms.fma(dtype, acc), tile=(64, 64))
    ran = subtracted.bind(mma=mma, depth=8)(made.a, made.b.T, c, d, target="cpu")
    assert ran.target == "cpu"
    compare_gemm(made.a, made.b, c, Accumulation.of(mma.atom)).raise_if_wrong()
    np.testing.assert_array_equal(d, -c)


@pytest.mark.parametrize("name", CASES)
def test_it_compiles_without_spills_or_warnings(name):
    dtype, mma, depth = CASES[name]
    arrays = [tw.like(kind, 256, 256) for kind in (dtype, dtype, "f32", "f32")]
    kernel = subtracted.bind(mma=mma, depth=depth).trace(*arrays, target="cuda", arch="sm_90a")
    text = cuda.emit(kernel, "sm_90a").text
    if mma.atom.asynchronous:
        assert "_negative(" in text
        assert ", 1, -1, 1" in text
    binary = compile_text(text, "sm_90a")
    assert binary.resources["spill_store_bytes"] == binary.resources["stack_bytes"] == 0
    assert not any(code in binary.log for code in FATAL)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_a_gpu_subtracts(name):
    made, c, d, how = computed(name, "cuda")
    compare_gemm(made.a, made.b, c, how).raise_if_wrong()
    np.testing.assert_array_equal(d, -c)


def test_it_prints_and_reads_back():
    arrays = [tw.like(kind, 256, 256) for kind in ("f16", "f16", "f32", "f32")]
    text = tw.ir.print_kernel(subtracted.bind(mma=CASES["mma"][1], depth=32).trace(*arrays))
    assert text.count("negative=True") == 1
    assert tw.ir.print_kernel(tw.ir.parse_kernel(text)) == text


def test_integers_are_refused():
    mma = tw.TiledMma(tw.atoms.wgmma("i8", 64))
    arrays = [np.ones((64, 128), kind) for kind in (np.int8, np.int8, np.int32, np.int32)]
    with pytest.raises(tw.LegalityError, match="lowest number has no negative"):
        subtracted.bind(mma=mma, depth=128)(*arrays, target="reference")
