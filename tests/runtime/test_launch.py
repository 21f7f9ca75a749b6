"""Kernels on the caller's arguments: numbers of every dtype, empty and overlapping arrays, one lookup."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime.arrays import describe, overlap
from tilewright.runtime.binding import spec_of

TARGETS = ("reference", "cpu")


@tw.kernel(X="N", Y="N")
def double(X, Y, *, tile=64):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((32,)))
    tw.copy(x + x, Y.tile((tile,), (n,)))


@tw.kernel(X="B M N", Y="B N M")
def transpose(X, Y, *, side=32):
    m, n = tw.block_index(tw.ceil_div(X.shape[1:], (side, side)))
    b = tw.batch_index(X.shape[0])
    turned = tw.shared((side, side), X.dtype)
    tw.copy(X[b].tile((side, side), (m, n)), turned, threads=(4, 8))
    tw.barrier()
    tw.copy(turned.permute(1, 0), Y[b].tile((side, side), (n, m)), threads=(4, 8))


def scaled_by(dtype: tw.DType) -> Any:
    @tw.kernel(X="N", alpha=dtype)
    def scaled(X, alpha):
        n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        part = X.tile((64,), (n,))
        x = tw.load(part.partition((32,)))
        tw.copy(x.to(dtype) * alpha, part)

    return scaled


NUMBERS = [tw.f64, tw.f32, tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2, tw.i64, tw.i32, tw.i16, tw.i8]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("dtype", [*NUMBERS, tw.u64, tw.u32, tw.u16, tw.u8], ids=str)
def test_numbers_of_every_dtype(dtype: tw.DType, target: str) -> None:
    kernel = scaled_by(dtype)
    for number in (3, np.int64(2), *((1.5, np.float32(0.25)) if dtype.is_float else ())):
        x = np.full(100, 2.0)
        assert kernel(x, number, target=target).target == target
        assert (x == 2 * float(number)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_that_become_infinite_or_0_are_refused(target: str) -> None:
    largest = ((tw.f16, 1e5, 65504.0), (tw.bf16, 1e39, 3.3895313892515355e38), (tw.f8e4m3, -500, -448.0))
    least = ((tw.f16, 1e-8, 5.960464477539063e-08), (tw.bf16, -1e-45, -9.183549615799121e-41))
    for dtype, number, nearest in (*largest, *least, (tw.f64, 10**400, float(np.finfo(np.float64).max))):
        x = np.ones(64)
        with pytest.raises(tw.LaunchError, match=rf"nearest legal choice: {re.escape(str(nearest))}$"):
            scaled_by(dtype)(x, number, target=target)
        assert (x == 1).all()
        scaled_by(dtype)(x, nearest, target=target)
        assert (x == nearest).all()
        scaled_by(dtype)(x, 0.0, target=target)
        assert (x == 0).all()


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(
    ("dtype", "number", "message"),
    [
        (tw.f32, "3", "alpha='3' must be a number"),
        (tw.f32, None, "alpha=None must be a number"),
        (tw.bf16, [1.0], r"alpha=\[1.0\] must be a number"),
        (tw.i8, 128, "alpha=128 does not fit i8, which holds -128 to 127"),
        (tw.u8, -1, "alpha=-1 does not fit u8, which holds 0 to 255"),
        (tw.i32, 2.5, "alpha=2.5 must be an integer"),
    ],
)
def test_numbers_that_a_dtype_does_not_hold(dtype: tw.DType, number: Any, message: str, target: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        scaled_by(dtype)(np.ones(64), number, target=target)


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 33, 65), (2, 0, 5), (0, 4, 4), (2, 64, 31)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.complex128, np.bool_], ids=lambda d: d.__name__)
def test_any_extents_and_strides(dtype: Any, shape: tuple[int, int, int], target: str) -> None:
    x = (9 * np.random.default_rng(0).standard_normal(shape)).astype(dtype)
    out_shape = (shape[0], shape[2], shape[1])
    for given in (x, np.asfortranarray(x), np.repeat(x, 2, axis=1)[:, ::2]):
        for y in (np.zeros(out_shape, dtype), np.zeros(out_shape[::-1], dtype).transpose(2, 1, 0)):
            assert transpose(given, y, target=target).target == target
            assert (y == x.transpose(0, 2, 1)).all()


@pytest.mark.parametrize("target", TARGETS)
def test_in_place(target: str) -> None:
    x = np.arange(1000, dtype=np.float32)
    double(x, x, target=target)
    assert (x == 2 * np.arange(1000)).all()


@pytest.mark.parametrize("strides", [(0,), (0, 4), (4, 4), (8, 4), (4, 0)], ids=str)
def test_an_output_whose_elements_lie_over_each_other(strides: tuple[int, ...]) -> None:
    shape = (5,) * len(strides)
    y = np.lib.stride_tricks.as_strided(np.zeros(100, np.float32), shape, strides)

    @tw.kernel
    def fill(Y):
        tile = Y.tile((8,) * len(shape), (0,) * len(shape))
        tw.copy(tw.fragment(tile.partition((8, 4)[: len(shape)]), fill=1), tile)

    with pytest.raises(tw.LaunchError, match="the same address"):
        fill(y, target="reference")


def test_a_stride_that_is_never_taken_may_be_huge() -> None:
    x = np.lib.stride_tricks.as_strided(np.full(4, 3.0, np.float32), (1, 4), (2**40, 4))
    assert spec_of(describe(x)).wide
    for target in TARGETS:
        assert tw.matmul(x, np.ones((4, 2), np.float32), target=target).tolist() == [[12.0, 12.0]]


def test_a_second_launch_is_one_lookup(monkeypatch: pytest.MonkeyPatch) -> None:
    bound = double.bind(tile=128)
    x = np.ones(300, np.float32)
    first = bound(x, np.empty_like(x), target="cpu")
    monkeypatch.setattr(type(bound), "_prepare", None)
    y = np.empty_like(x)
    assert bound(x.copy(), y, target="cpu") is first
    assert (y == 2).all()


def test_shapes_that_come_and_go_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilewright.runtime.plans.KEPT", 4)
    bound = double.bind(tile=96)
    for n in range(1, 20):
        x = np.ones(n, np.float32)
        bound(x, x, target="cpu")
        assert (x == 2).all()
    assert len(bound._plans) == 4


@pytest.mark.parametrize("target", TARGETS)
def test_a_grid_of_fewer_than_no_blocks(target: str) -> None:
    @tw.kernel(X="N")
    def idle(X, *, blocks):
        tw.block_index(blocks)

    idle(np.zeros(1), blocks=0, target=target)
    with pytest.raises(tw.LaunchError, match=r"kernel idle: a grid of \(-1,\) blocks"):
        idle(np.zeros(1), blocks=-1, target=target)


@pytest.mark.parametrize("name", ["größe", "double", "lambda"])
def test_names_that_c_does_not_take(name: str) -> None:
    def seven(X):
        part = X.tile((32,), (0,))
        tw.copy(tw.fragment(part.partition((32,)), fill=7), part)

    seven.__name__ = "<lambda>" if name == "lambda" else name
    kernel, x = tw.kernel(X="N")(seven), np.zeros(40)
    assert kernel(x, target="cpu").target == "cpu"
    assert x.tolist() == [7.0] * 32 + [0.0] * 8
    for arch in ("sm_80", "sm_90a"):
        kernel.compile(spec_of(describe(x)), target="cuda", arch=arch)


def test_compiling_for_an_unknown_target() -> None:
    with pytest.raises(tw.LaunchError, match="unknown target 'gpu'; choose one of reference, cpu, cuda"):
        double.compile(spec_of(describe(np.zeros(8))), spec_of(describe(np.zeros(8))), target="gpu")


class Index:
    """An integer of a foreign class: its text, or the error of its conversion to an index."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, value: int | None) -> None:
        self.value = value

    def __index__(self) -> int:
        if self.value is None:
            raise RuntimeError("it does not want to")
        return self.value

    def __float__(self) -> float:
        return float(self.__index__())


@tw.kernel(X="N", by=tw.f32, i=int)
def with_integer(X, by, i, *, used, tile=32):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    part = X.tile((tile,), (n,))
    if used:
        with tw.when(n < i):
            tw.copy(tw.load(part.partition((32,))) + by, part)
    else:
        tw.copy(tw.load(part.partition((32,))) + 1.0, part)


NO_INTEGERS = (
    *(np.array([2, 3]), np.array(2), np.zeros((0,), np.int32), [1, 2], [1], (1, 2), {}, set(), "a", b"1"),
    *(None, 1.5, np.float32(2), 1j, True, np.True_, object, np, Index(None), tw.f32, float("nan")),
    *(2**31, -(2**31) - 1, 10**400, np.uint32(2**31), Index(2**40)),
)


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize("target", TARGETS)
def test_what_is_no_integer_of_32_bits_is_refused_whether_it_is_used_or_not(target: str, used: bool) -> None:
    kernel, x = with_integer.bind(used=used), np.zeros(70, np.float32)
    kernel(x, 1.0, 2, target=target)
    calls = [
        lambda value: kernel(x, 1.0, value, target=target),
        lambda value: kernel(x, i=value, by=1.0, target=target),
        lambda value: with_integer(x, 1.0, value, used=used, target=target),
        lambda value: kernel.prepare(x, 1.0, value, target=target),
    ]
    if target == "reference":
        calls += [lambda value: kernel.check(x, 1.0, value), lambda value: kernel.check_sizes(x, 1.0, value)]
    before = x.copy()
    for value in NO_INTEGERS:
        for call in calls:
            with pytest.raises(
                tw.LaunchError, match=r"kernel with_integer: i=(?s:.*) (must be an integer|does not fit)"
            ):
                call(value)
    for value in (np.array([1.0, 2.0]), "a", [1], {}, None, 1j, Index(None), 10**400):
        with pytest.raises(tw.LaunchError, match=r"by=(?s:.*) must be a number"):
            kernel(x, value, 2, target=target)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("target", TARGETS)
def test_an_integer_that_changes_is_read_anew_by_each_launch(target: str) -> None:
    kernel, x, turns = with_integer.bind(used=True), np.zeros(96, np.float32), Index(1)
    kernel(x, 1.0, turns, target=target)
    np.testing.assert_array_equal(x, np.repeat([1, 0, 0], 32))
    turns.value = 2
    kernel(x, 1.0, turns, target=target)
    np.testing.assert_array_equal(x, np.repeat([2, 1, 0], 32))
    for value in (np.int8(3), np.uint64(3), 3):
        kernel(x, 1.0, value, target=target)
    np.testing.assert_array_equal(x, np.repeat([5, 4, 3], 32))


def test_overlap() -> None:
    x = np.zeros((8, 8), np.float32)
    parts = {
        "left": x[:, :4],
        "right": x[:, 4:],
        "odd": x[1::2],
        "even": x[::2],
        "turned": x.T,
        "other": x + 1,
    }
    common = {
        (a, b) for a in parts for b in parts if a < b and overlap(describe(parts[a]), describe(parts[b]))
    }
    assert common == {
        *(("left", "odd"), ("even", "left"), ("odd", "right"), ("even", "right")),
        *(("left", "turned"), ("right", "turned"), ("odd", "turned"), ("even", "turned")),
    }
    assert not overlap(describe(x[:0]), describe(x))
