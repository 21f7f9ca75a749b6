"""Whole kernels from a compiler's listing equal NumPy, element by element, on both instruction sets."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.amdgcn.compiled import ARCHS, listing, typed

from tilewright.amdgcn import ListingError, OutOfBoundsError, execute

F32 = np.float32
archs = pytest.mark.parametrize("arch", ARCHS)


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(14)


def run(arch: str, kernel: str, arguments: Sequence[Any], blocks: int, threads: int, **more: Any) -> None:
    execute(listing("programs", arch), typed(arguments), (blocks,), (threads,), kernel=kernel, **more)


@archs
@pytest.mark.parametrize("shape", [(256, 256, 256), (200, 136, 72), (1, 1, 8), (129, 300, 40)])
def test_gemm(arch: str, shape: tuple[int, int, int], random: np.random.Generator) -> None:
    m, n, k = shape
    a, b = (random.standard_normal((rows, k)).astype(np.float16) for rows in (m, n))
    c = np.full((m, n), np.nan, F32)
    begin = time.perf_counter()
    done = execute(listing("gemm", arch), typed([a, b, c, m, n, k]), (-(-n // 128), -(-m // 128)), (256,))
    assert time.perf_counter() - begin < 20  # about 0.3 s on a machine that is not busy
    wide = a.astype(np.float64), b.astype(np.float64)
    bound = (k + 1) * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]).T)
    assert np.all(np.abs(c - wide[0] @ wide[1].T) <= bound)
    matrix = [name for name in done.mnemonics if name.startswith(("v_wmma", "v_mfma"))]
    assert matrix == ["v_wmma_f32_16x16x16_f16" if arch == "gfx1151" else "v_mfma_f32_32x32x8_f16"]
    assert done.mnemonics[matrix[0]] == done.waves * 16 * -(-k // 32)


@archs
def test_elementwise(arch: str, random: np.random.Generator) -> None:
    n = 1000
    x, y = (random.standard_normal(n).astype(F32) for _ in range(2))
    out = np.full(n, np.nan, F32)
    run(arch, "axpy", [x, y, out, 1.5, n], 4, 256)
    exact = 1.5 * x.astype(np.float64) + y
    assert np.array_equal(out, exact.astype(F32))  # a fused multiply-add
    octets, copied = random.integers(0, 256, n).astype(np.uint8), np.zeros(n, np.uint8)
    run(arch, "copy_u8", [octets, copied, n], 4, 256)
    assert np.array_equal(copied, octets + np.uint8(1))
    halves, doubled = random.standard_normal(n).astype(np.float16), np.zeros(n, np.float16)
    run(arch, "copy_f16", [halves, doubled, n], 4, 256)
    assert np.array_equal(doubled, (2 * halves.astype(np.float64) + 1).astype(np.float16))


@archs
def test_strided_arrays_and_bytes_between_their_elements(arch: str, random: np.random.Generator) -> None:
    whole = random.standard_normal(40).astype(F32)
    out = np.zeros(40, F32)
    run(arch, "axpy", [whole[:20], whole[:20], out[10:30], 1.0, 20], 1, 256)
    assert np.array_equal(out[10:30], 2 * whole[:20])
    assert not out[:10].any()
    assert not out[30:].any()
    with pytest.raises(OutOfBoundsError, match="between the elements of argument 0"):
        run(arch, "axpy", [whole[::2], np.ones(20, F32), out[10:30], 1.0, 20], 1, 256)


@archs
def test_an_access_behind_an_array_is_found_with_its_line(arch: str) -> None:
    x, out = np.ones(100, F32), np.zeros(100, F32)
    with pytest.raises(OutOfBoundsError, match="after the end of argument 0") as found:
        run(arch, "axpy", [x, np.ones(101, F32), np.zeros(101, F32), 1.0, 101], 1, 256)
    assert "global_load" in found.value.text
    with pytest.raises(OutOfBoundsError, match=r"a store of 4 bytes .* of argument 2") as found:
        run(arch, "axpy", [np.ones(101, F32), np.ones(101, F32), out, 1.0, 101], 1, 256)
    assert "global_store" in found.value.text


@archs
def test_reduction_and_shuffles(arch: str, random: np.random.Generator) -> None:
    x, out = random.standard_normal(3000).astype(F32), np.full(3, np.nan, F32)
    run(arch, "reduce", [x, out, 3000], 3, 256)
    sums = [part.astype(np.float64).sum() for part in (x[:1024], x[1024:2048], x[2048:])]
    assert np.all(np.abs(out - sums) <= 12 * 2.0**-24 * np.abs(x).sum())
    x, out = random.integers(-100, 100, 128).astype(F32), np.full(128, np.nan, F32)
    run(arch, "shuffle", [x, out], 2, 64)
    assert np.array_equal(out.reshape(4, 32), np.repeat(x.reshape(4, 32).sum(1, keepdims=True), 32, 1))


@archs
@pytest.mark.parametrize("together", [1, 64])
def test_atomics(arch: str, together: int, random: np.random.Generator) -> None:
    n = 1000
    x, bins, total = random.integers(0, 1000, n).astype(np.int32), np.zeros(64, np.int32), np.zeros(1, F32)
    run(arch, "histogram", [x, bins, total, n], 4, 256, together=together)
    assert np.array_equal(bins, np.bincount(x & 63, minlength=64))
    assert total[0] == n
    counter, places = np.zeros(1, np.int32), np.full((5, 64), -1, np.int32)
    run(arch, "ticket", [counter, places], 5, 64, together=together)
    assert counter[0] == 5
    assert np.array_equal(np.sort(places[:, 0]), np.arange(5))
    assert (places == places[:, :1]).all()


@archs
def test_lanes_and_waves_that_diverge(arch: str, random: np.random.Generator) -> None:
    def steps(value: int) -> int:
        count = 0
        while value != 1:
            value, count = (3 * value + 1 if value % 2 else value // 2), count + 1
        return count

    x, out = random.integers(1, 200, 150).astype(np.uint32), np.zeros(150, np.uint32)
    run(arch, "collatz", [x, out, 150], 3, 64)
    assert out.tolist() == [steps(int(value)) for value in x]


@archs
def test_divisions(arch: str, random: np.random.Generator) -> None:
    n = 400
    a, b = ((random.standard_normal(n) * 10.0 ** random.integers(-38, 38, n)).astype(F32) for _ in range(2))
    a[:6], b[:6] = [0, 1, np.inf, np.nan, -0.0, 1e-45], [0, 0, np.inf, 1, 5, 3]
    c, d = random.integers(-(2**31), 2**31, n).astype(np.int32), random.integers(1, 1000, n).astype(np.int32)
    d[::2] *= -1
    quotients, whole, wide = np.zeros(n, F32), np.zeros(n, np.int32), np.zeros(n, np.uint64)
    run(arch, "divide", [a, b, quotients, c, d, whole, wide, n], 7, 64)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(quotients, a / b)  # the compiler's division is rounded right
    truncated = np.trunc(c / d).astype(np.int64)
    assert np.array_equal(whole, (truncated + (c - truncated * d)).astype(np.int32))
    product = c.view(np.uint32).astype(np.uint64) * d.view(np.uint32).astype(np.uint64) + np.uint64(5)
    assert np.array_equal(wide, product)


@archs
def test_functions_and_f64(arch: str, random: np.random.Generator) -> None:
    n = 300
    a, out, doubles = random.standard_normal(n).astype(F32), np.zeros(n, F32), np.zeros(n)
    run(arch, "softish", [a, out, doubles, n], 5, 64)
    wide = a.astype(np.float64)
    exact = np.exp(wide) + np.log(wide**2 + 1) + np.abs(wide)
    assert np.all(np.abs(out - exact) <= 8 * 2.0**-24 * exact)
    assert np.array_equal(doubles, wide * 1.5 + np.arange(n))


@archs
def test_scratch_memory(arch: str, random: np.random.Generator) -> None:
    a, out = random.integers(-50, 50, 80).astype(F32), np.zeros(64, F32)
    run(arch, "spill", [a, out, 3], 1, 64)
    assert np.array_equal(out, [sum(a[t + ((i * 5 + 3) & 15)] * i for i in range(16)) for t in range(64)])


@archs
def test_conversions(arch: str, random: np.random.Generator) -> None:
    n = 200
    a = (random.standard_normal(n) * 100).astype(F32)
    halves, brains = np.zeros(n, np.float16), np.zeros(n, ml_dtypes.bfloat16)
    eights, octets = np.zeros(n, np.uint16), np.zeros(n, np.int8)
    run(arch, "narrow", [a, halves, brains, eights, octets, n], 4, 64)
    assert np.array_equal(halves, a.astype(np.float16))
    assert np.array_equal(brains, a.astype(ml_dtypes.bfloat16))
    assert np.array_equal(octets, a.astype(np.int32).astype(np.int8))
    if arch == "gfx942":
        pair = [(x * a).astype(ml_dtypes.float8_e4m3fnuz).view(np.uint8) for x in (F32(1), F32(2))]
        assert np.array_equal(eights.view(np.uint8).reshape(n, 2), np.stack(pair, 1))


def test_arguments_that_are_not_the_kernels() -> None:
    x = np.ones(10, F32)
    with pytest.raises(ListingError, match="takes 5 arguments, not 2"):
        run("gfx942", "axpy", [x, x], 1, 64)
    with pytest.raises(ListingError, match="argument 4 takes 4 bytes, not 8"):
        run("gfx942", "axpy", [x, x, x, 1.0, np.int64(3)], 1, 64)
    with pytest.raises(ListingError, match=r"'axpi'.*did you mean 'axpy'"):
        run("gfx942", "axpi", [x, x], 1, 64)


@archs
def test_buffers_read_zeros_beyond_their_bytes_and_store_nothing_there(
    arch: str, random: np.random.Generator
) -> None:
    """128 lanes have four numbers each; descriptors end inside a lane's four, at 203 and 301."""
    x, y = random.standard_normal(203).astype(F32), np.full(301, np.nan, F32)
    execute(listing("buffers", arch), typed([x, y, 4 * 203, 4 * 301]), (2,), (64,))
    padded = np.concatenate([x, np.zeros(512 - 203, F32)])
    assert np.array_equal(y, (padded + (padded + F32(1)))[:301])
    second = np.full(1024, np.nan, F32)
    execute(listing("buffers", arch), typed([x, second, 4 * 203, 4 * 1024]), (2,), (64,))
    assert np.array_equal(second[512:1024:4], padded[1::4])
    with pytest.raises(OutOfBoundsError, match="argument 0"):
        execute(listing("buffers", arch), typed([x[:100], y, 4 * 203, 4 * 301]), (2,), (64,))


@archs
def test_a_number_without_a_dtype_is_refused(arch: str) -> None:
    """Metadata has only its size: ``2`` for a float would be read as the bits of an integer."""
    x, out = np.ones(8, F32), np.zeros(8, F32)
    for wrong in (2, 2.0, True):
        with pytest.raises(ListingError, match=r"argument 3.*4 bytes.*np\.float32\(2\) or np\.int32\(2\)"):
            execute(listing("programs", arch), [x, x, out, wrong, np.int32(8)], (1,), (64,), kernel="axpy")
    with pytest.raises(ListingError, match="argument 3 takes 4 bytes, not 8"):
        run(arch, "axpy", [x, x, out, np.float64(2), 8], 1, 64)
    run(arch, "axpy", [x, x, out, np.float32(2), 8], 1, 64)
    assert np.array_equal(out, 3 * x)
