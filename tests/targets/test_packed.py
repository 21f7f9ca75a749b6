"""Elements of 4 bits on every target: moved as bytes, converted when they are loaded and stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType
from tilewright.inspect.report import movements
from tilewright.ir.packed_ops import Pack, Unpack
from tilewright.runtime.gpu_memory import DeviceArray

from .poisoned import TARGETS, Poisoned

pytestmark = pytest.mark.in_turns(3)

KINDS = [tw.i4, tw.u4, tw.f4e2m1]
SHAPES = [(64, 128), (45, 74), (3, 2), (33, 62)]
VALUES = {
    tw.i4: [0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1],
    tw.u4: [*range(16)],
    tw.f4e2m1: [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6],
}
"""What each pattern of bits stands for.  Source: OCP Microscaling Formats (MX) Specification, FP4."""


@tw.kernel(W="N K", Y="N K")
def widen(W, Y):
    n, k = tw.block_index(tw.ceil_div(W.shape, (32, 64)))
    x = tw.load(W.tile((32, 64), (n, k)).partition(128), element=Y.dtype)
    tw.copy(x, Y.tile((32, 64), (n, k)))


@tw.kernel(X="N K", W="N K")
def narrow(X, W):
    n, k = tw.block_index(tw.ceil_div(W.shape, (32, 64)))
    x = tw.load(X.tile((32, 64), (n, k)).partition((16, 8)))
    tw.copy(x, W.tile((32, 64), (n, k)))


@tw.kernel(W="N K", V="N K")
def through_shared(W, V):
    n, k = tw.block_index(tw.ceil_div(W.shape, (32, 64)))
    held = tw.shared((32, 64), W.dtype)
    tw.copy_async(W.tile((32, 64), (n, k)), held, threads=64)
    tw.async_commit()
    tw.async_wait()
    tw.barrier()
    tw.copy(held, V.tile((32, 64), (n, k)), threads=64)


@tw.kernel(A="M K", B="N K", C="M N")
def mixed_gemm(A, B, C, *, mma):
    m, n = tw.block_index(tw.ceil_div(C.shape, (64, 64)))
    sA, sB = tw.shared((64, 32), A.dtype), tw.shared((64, 32), B.dtype)
    acc = tw.accumulator(mma)
    for k in tw.range(tw.ceil_div(A.shape[1], 32)):
        tw.copy(A.tile((64, 32), (m, k)), sA, threads=mma.threads)
        tw.copy(B.tile((64, 32), (n, k)), sB, threads=mma.threads)
        tw.barrier()
        b = tw.load(sB, tw.operand_b(mma, 32), element=A.dtype)
        tw.mma(sA, b, acc)
        tw.barrier()
    tw.copy(acc, C.tile((64, 64), (m, n)))


class Placed:
    """Host arrays inside of poison, or copies of them on the GPU, with canaries."""

    def __init__(self, target: str) -> None:
        self.target = target
        self._held: list[tuple[Poisoned, Any]] = []

    def __call__(self, values: np.ndarray, element: DType) -> Any:
        """Return an array of these values, with any strides."""
        held = Poisoned(values.shape, element)
        held.array[...] = values
        given = DeviceArray.of(held.array) if self.target == "cuda" else held.array
        self._held.append((held, given))
        return given

    def read(self, given: Any) -> np.ndarray:
        """Return the contents of an array, after checking that nothing around any array was written."""
        assert all(held.is_intact() for held, _ in self._held)
        return given.host() if self.target == "cuda" else given

    def run(self, kernel: Callable[..., Any], *arguments: Any) -> None:
        assert kernel(*arguments, target=self.target).target == self.target


def random_bytes(shape: tuple[int, int], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (shape[0], shape[1] // 2), np.uint8)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_every_pattern_of_bits_is_its_number(kind: DType) -> None:
    every = np.arange(256, dtype=np.uint8).reshape(1, 256)
    low, high = (tw.unpack(every, kind).astype(np.float64)[0, part::2] for part in (0, 1))
    values = np.array(VALUES[kind], np.float64)
    assert np.array_equal(low, np.tile(values, 16))
    assert np.array_equal(high, np.repeat(values, 16))
    assert np.array_equal(np.signbit(low), np.signbit(np.tile(values, 16)))
    assert np.array_equal(tw.pack(tw.unpack(every, kind), kind), every)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_numbers_are_loaded(target: str, shape: tuple[int, int], kind: DType) -> None:
    place, given = Placed(target), random_bytes(shape, 1)
    want = tw.unpack(given, kind).astype(np.float64)
    for wider in (tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.i8, tw.i32, tw.f64):
        if kind == tw.f4e2m1 and not wider.is_float:
            continue
        y = place(np.full(shape, 99), wider)
        place.run(widen, tw.packed(place(given, tw.u8), kind), y)
        assert np.array_equal(place.read(y).astype(np.float64), want), wider


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_numbers_are_rounded_as_they_are_stored(target: str, shape: tuple[int, int], kind: DType) -> None:
    place, rng = Placed(target), np.random.default_rng(2)
    x = (rng.standard_normal(shape) * 5).astype(np.float32)
    x.flat[:: max(x.size // 40, 1)] = np.resize([np.inf, -np.inf, 0.25, -0.75, 1.25, 2.5, 3.5, 5, -5, 7.9], 1)
    at = rng.integers(0, x.size, 30)
    x.flat[at] = np.resize([np.inf, -np.inf, 0.25, -0.75, 1.25, 2.5, -3.5, 5, -5, 7.9, -0.0, 6.0], 30)
    w = place(np.full((shape[0], shape[1] // 2), 0xA5), tw.u8)
    place.run(narrow, place(x, tw.f32), tw.packed(w, kind))
    values, low_high = np.array(VALUES[kind], np.float64), (min(VALUES[kind]), max(VALUES[kind]))
    inside = np.clip(x.astype(np.float64), *low_high)
    found = tw.unpack(place.read(w), kind).astype(np.float64)
    if not kind.is_float:
        assert np.array_equal(found, np.trunc(inside))
        return
    off = np.abs(values[None, :] - inside.reshape(-1, 1))
    least = off.min(axis=1)
    assert np.array_equal(np.abs(found - inside).ravel(), least)
    tied = (off == least[:, None]).sum(axis=1) > 1 + (np.abs(inside).ravel() == 0)  # two zeros are one number
    codes = np.stack((place.read(w) & 15, place.read(w) >> 4), -1).reshape(-1)
    assert tied.any() or x.size < 10
    assert not (codes[tied] & 1).any(), "ties go to the even pattern"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_bytes_are_moved_as_they_are(target: str, shape: tuple[int, int], kind: DType) -> None:
    place, given = Placed(target), random_bytes(shape, 3)
    moved, numbers = place(np.full_like(given, 0xA5), tw.u8), place(np.full(shape, np.nan), tw.f32)
    w = tw.packed(place(given, tw.u8), kind)
    place.run(through_shared, w, tw.packed(moved, kind))
    assert np.array_equal(place.read(moved), given)
    place.run(through_shared, w, numbers)
    assert np.array_equal(place.read(numbers), tw.unpack(given, kind).astype(np.float32))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_product_with_operands_of_four_bits(target: str, kind: DType) -> None:
    place, rng = Placed(target), np.random.default_rng(4)
    (m, n, k), given = (70, 75, 70), random_bytes((75, 70), 5)
    a = (rng.integers(-8, 9, (m, k)) / 4).astype(np.float16)
    c = place(np.full((m, n), np.nan), tw.f32)
    mma = tw.TiledMma(tw.atoms.MMA_F16, warps=(2, 2), repeats=(2, 4))
    place.run(mixed_gemm.bind(mma=mma), place(a, tw.f16), tw.packed(place(given, tw.u8), kind), c)
    # Sums of few multiples of 1/8 below 2**20: exact in f32, whatever their order.
    assert np.array_equal(place.read(c), a.astype(np.float64) @ tw.unpack(given, kind).astype(np.float64).T)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_the_text_for_cuda_compiles_and_moves_words(kind: DType) -> None:
    w, y = tw.like(kind, 64, 128), tw.like("f16", 64, 128)
    made = widen.compile(W=w, Y=y, target="cuda", arch="sm_90a")
    assert any(isinstance(op, Unpack) for op in made.kernel.walk()) or "numbers of" in made.source
    assert "16 bytes at a time" in made.source
    assert made.resources["spill_store_bytes"] == 0
    back = narrow.compile(X=tw.like("f32", 64, 128), W=w, target="cuda", arch="sm_90a")
    assert "W_bytes, 4 bytes at a time" in back.source


def in_vectors_of(vector: int) -> Any:
    @tw.kernel(W="N K", V="N K")
    def moved(W, V):
        held = tw.shared((32, 64), W.dtype)
        tw.copy_async(W.tile((32, 64), (0, 0)), held, threads=64, vector=vector)
        tw.async_commit()
        tw.async_wait()
        tw.barrier()
        tw.copy(held, V.tile((32, 64), (0, 0)), threads=64)

    return moved


def test_accesses_of_16_bytes_have_32_elements() -> None:
    w = tw.like("i4", 32, 64)
    made = in_vectors_of(32).compile(W=w, V=w, target="cuda", arch="sm_90a")
    assert "W_bytes -> held_bytes, 16 bytes at a time, in the background" in made.source


@pytest.mark.parametrize("columns", [128, 96, 80])
def test_a_ragged_edge_does_not_narrow_accesses(columns: int) -> None:
    w, y = tw.like("i4", 45, columns), tw.like("f16", 45, columns)
    assert "W_held, 8 bytes at a time" in widen.compile(W=w, Y=y, target="cuda", arch="sm_90a").source
    assert "W_bytes, 4 bytes at a time" in narrow.compile(W=w, X=y, target="cuda", arch="sm_90a").source


def test_sectors_are_counted_of_bytes() -> None:
    def factor(kind: str, columns: int) -> float | None:
        @tw.kernel(W="N K")
        def rows(W):
            held = tw.shared((32, columns), W.dtype)
            tw.copy(W.tile((32, columns), (0, 0)), held, threads=(32, 4))

        w = tw.like(kind, 64, columns)
        made = rows.compile(W=w, target="cuda", arch="sm_90a")
        return movements(made.kernel, "cuda", traced=rows.trace(W=w))[0].sectors

    assert factor("i4", 64) == factor("u8", 32)


@pytest.mark.parametrize(
    ("vector", "message"),
    [(4, "vector 4 of i4 is 2 bytes.*no vector"), (64, "vector 64 makes accesses of 32 bytes.*vector=32")],
)
def test_accesses_of_other_widths_are_refused(vector: int, message: str) -> None:
    w = tw.like("i4", 32, 64)
    with pytest.raises(tw.LegalityError, match=f"(?s){message}"):
        in_vectors_of(vector).compile(W=w, V=w, target="cuda", arch="sm_90a")


@pytest.mark.parametrize("target", TARGETS)
def test_the_side_that_shares_bytes_decides_who_moves_what(target: str) -> None:
    @tw.kernel(W="N K", Y="N K")
    def turned(W, Y):
        at = tw.block_index(tw.ceil_div(W.shape, (16, 32)))
        tw.copy(W.tile((16, 32), at), Y.tile((16, 32), at), threads=32)

    place, given = Placed(target), random_bytes((35, 42), 8)
    y = place(np.full((42, 35), np.nan), tw.f32)
    columns = y.T if target != "cuda" else DeviceArray.of(place.read(y).T)
    place.run(turned, tw.packed(place(given, tw.u8), tw.i4), columns)
    assert np.array_equal(place.read(columns), tw.unpack(given, tw.i4).astype(np.float32))


def test_the_edge_is_known_of_numbers_that_shared_a_byte() -> None:
    @tw.kernel(X="N K", Y="N L")
    def largest(X, Y):
        held = tw.shared((32, 64), tw.i4)
        tw.copy(X.tile((32, 64), (0, 0)), held, threads=32)
        tw.barrier()
        x = tw.load(held.partition((32, 1)), element=tw.f32)
        tw.copy(tw.reduce_max(x, 1), Y.tile((32, 1), (0, 0)))

    y = np.zeros((32, 1), np.float32)
    for columns in (1, 2, 61, 62):
        report = largest.check(np.full((32, columns), -1, np.float32), y)
        assert "beyond the edge of an array" in str(report), columns
    assert largest.check(np.full((32, 64), -1, np.float32), y).is_clean


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(0, 70), (35, 0)])
def test_arrays_without_elements(target: str, shape: tuple[int, int]) -> None:
    place = Placed(target)
    given, y = np.zeros((shape[0], shape[1] // 2), np.uint8), place(np.zeros(shape), tw.f32)
    place.run(widen, tw.packed(place(given, tw.u8), tw.i4), y)
    assert tw.unpack(given, tw.i4).shape == shape
    assert tw.pack(np.zeros(shape), tw.f4e2m1).shape == given.shape


def test_what_is_packed_shows_itself_whatever_it_is() -> None:
    assert repr(tw.packed([1, 2], tw.i4)) == "<i4 packed in list>"
    assert repr(tw.packed(np.zeros((4, 3), np.uint8), tw.i4)) == "<i4 packed in ndarray (4, 3)>"


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("swizzle", [128, tw.Swizzle(2, 4, 3), tw.Swizzle(3, 3, 3)], ids=str)
def test_swizzled_rows_of_shared_memory(target: str, swizzle: int | tw.Swizzle) -> None:
    @tw.kernel(W="N K", Y="N K")
    def swizzled(W, Y):
        n, _ = tw.block_index(tw.ceil_div(W.shape, (16, 256)))
        held = tw.shared((16, 256), W.dtype, swizzle=swizzle)
        tw.copy(W.tile((16, 256), (n, 0)), held, threads=64)
        tw.barrier()
        tw.copy(held, Y.tile((16, 256), (n, 0)), threads=128)

    place, given = Placed(target), random_bytes((45, 202), 6)
    y = place(np.full((45, 202), np.nan), tw.f32)
    place.run(swizzled, tw.packed(place(given, tw.u8), tw.i4), y)
    assert np.array_equal(place.read(y), tw.unpack(given, tw.i4).astype(np.float32))


def test_a_base_tile_holds_16_bytes_of_each_thread() -> None:
    for kind, elements in ((tw.i4, 32), (tw.u8, 16), (tw.f32, 4)):
        assert tw.base_tile((32, 256), kind).size_values == elements


def test_a_lowered_kernel_addresses_bytes_only() -> None:
    from tilewright.passes.packed import copy_bytes

    traced = narrow.trace(X=tw.like("f32", 45, 74), W=tw.like("i4", 45, 74))
    lowered = list(copy_bytes(traced).walk())
    assert any(isinstance(op, Pack) for op in lowered)
    assert not any(op.name == "copy" and value.dtype.is_packed for op in lowered for value in op.operands)
