"""Conversions between element types: every narrow bit pattern, and one rounding everywhere."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tilewright as tw
from tilewright.dtypes import DType, boolean, holds
from tilewright.functions import conversions
from tilewright.runtime import native
from tilewright.targets.rules import EmittedText

Machine = Callable[..., EmittedText]

# Casting what does not fit is what these tests do.
pytestmark = [pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning"), pytest.mark.in_turns(3)]

NARROW = [tw.f16, tw.bf16, tw.f8e4m3, tw.f8e5m2, tw.f8e4m3fnuz, tw.f8e5m2fnuz]
FLOATS = [tw.f64, tw.f32, *NARROW]
INTEGERS = [tw.i64, tw.i32, tw.i16, tw.i8, tw.u64, tw.u32, tw.u16, tw.u8]


@tw.kernel(X="N", Y="N")
def convert(X, Y):
    n = tw.block_index(tw.ceil_div(X.shape[0], 1024))
    x = tw.load(X.tile((1024,), (n,)).partition((32,)))
    tw.copy(x.to(Y.dtype), Y.tile((1024,), (n,)))


@tw.kernel(X="N", Y="N")
def copy(X, Y):
    n = tw.block_index(tw.ceil_div(X.shape[0], 1024))
    tw.copy(X.tile((1024,), (n,)), Y.tile((1024,), (n,)), threads=(32,))


@tw.kernel(X="N", **dict.fromkeys("ABCDEFGH", "N"))
def to_all(X, A, B, C, D, E, F, G, H):
    n = tw.block_index(tw.ceil_div(X.shape[0], 1024))
    x = tw.load(X.tile((1024,), (n,)).partition((32,)))
    for Y in (A, B, C, D, E, F, G, H):
        tw.copy(x, Y.tile((1024,), (n,)))


def converted_to_all(machine: Machine, x: np.ndarray, targets: list[DType]) -> list[np.ndarray]:
    """Convert to up to eight types in one kernel."""
    padded = [*targets, *([targets[-1]] * (8 - len(targets)))]
    made = {
        name: np.full(x.size, 99, np.uint8).astype(t.numpy)
        for name, t in zip("ABCDEFGH", padded, strict=True)
    }
    machine(to_all.trace(x, *made.values()), {"X": x, **made})
    return list(made.values())[: len(targets)]


def converted(
    machine: Machine, x: np.ndarray, target: DType, kernel: tw.Kernel = convert, **options: object
) -> np.ndarray:
    y = np.full(x.size, 99, np.uint8).astype(target.numpy)
    machine(kernel.trace(x, y), {"X": x, "Y": y}, **options)
    return y


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(f"u{values.itemsize}")


def patterns(dtype: DType) -> np.ndarray:
    """Return every bit pattern of a type of at most 16 bits."""
    return np.arange(1 << dtype.bits, dtype=f"u{dtype.bytes}").view(dtype.numpy)


def assert_same(made: np.ndarray, expected: np.ndarray) -> None:
    """Check that bits are equal, except for the payload of NaN."""
    nan = np.isnan(expected.astype(np.float64))
    assert np.array_equal(np.isnan(made.astype(np.float64)), nan)
    assert np.array_equal(bits(made)[~nan], bits(expected)[~nan])


def hard_f32(target: DType) -> np.ndarray:
    """Return every number of a narrow type, every midpoint of neighbours, and their neighbours in f32."""
    every = patterns(target).astype(np.float32)
    finite = np.unique(every[np.isfinite(every)])
    between = ((finite[:-1].astype(np.float64) + finite[1:].astype(np.float64)) / 2).astype(np.float32)
    past = finite[-1] * np.float32([1, 1.01, 1.03, 1.0625, 1.5, 2, 4])
    points = np.concatenate([finite, between, past, -past])
    near = [np.nextafter(points, np.float32(np.inf)), np.nextafter(points, np.float32(-np.inf))]
    special = np.array([0x7F800000, 0xFF800000, 0x7FC00000, 0xFFC00000, 0x7F800001, 0x80000000, 1], np.uint32)
    return np.concatenate([points, *near, special.view(np.float32)])


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_pattern_widens_exactly(machine: Machine, dtype: DType, toolchain: native.Toolchain) -> None:
    x = patterns(dtype)
    for wide in (tw.f32, tw.f64):
        assert_same(converted(machine, x, wide, toolchain=toolchain), x.astype(wide.numpy))


@pytest.mark.parametrize("narrow", [*NARROW, tw.i8, tw.u8, tw.i16, tw.u16], ids=str)
def test_what_a_dtype_holds_converts_exactly(narrow: DType) -> None:
    """Infinities and NaN are included."""
    x = patterns(narrow)
    number = x[~np.isnan(x.astype(np.float64))]
    for wide in (*FLOATS, *INTEGERS):
        there = number.astype(wide.numpy).astype(np.float64)
        keeps = np.array_equal(there, number.astype(np.float64))
        has_nan = len(number) == len(x) or wide.is_float
        assert holds(wide, narrow) == (keeps and has_nan), wide


@tw.kernel(X="M N", Y="M N")
def copy_rows(X, Y):
    m, n = tw.block_index(tw.ceil_div(X.shape, (33, 32)))
    rows = tw.shared((33, 32), Y.dtype)
    tw.copy(X.tile((33, 32), (m, n)), rows, threads=(1, 32))
    tw.barrier()
    tw.copy(rows, Y.tile((33, 32), (m, n)), threads=(1, 32))


@pytest.mark.parametrize("dtype", [tw.f8e4m3, tw.f8e5m2], ids=str)
@pytest.mark.parametrize(("kernel", "shape"), [(copy, (3072,)), (copy, (1200,)), (copy_rows, (40, 64))])
def test_every_pattern_widens_by_tables(
    machine: Machine, dtype: DType, kernel: tw.Kernel, shape: tuple[int, ...], toolchain: native.Toolchain
) -> None:
    """The number of rows is odd, and the last tile is partial."""
    every = np.tile(np.random.default_rng(0).permutation(patterns(dtype)), 16)
    x = every[: shape[0] * 71].reshape(-1, 71)[:, :64] if len(shape) > 1 else every[: shape[0]]
    y = np.full(shape, 99, np.float32)
    listing = machine(kernel.trace(x, y), {"X": x, "Y": y}, toolchain=toolchain)
    assert_same(y, x.astype(np.float32))
    assert len(np.unique(x.copy().view(np.uint8))) == 256
    assert ("vpermi2b" in listing.text) == (native.host_arch() == "x86-64-v4")


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_every_tie_rounds_to_even(machine: Machine, dtype: DType, toolchain: native.Toolchain) -> None:
    x = hard_f32(dtype)
    assert_same(converted(machine, x, dtype, toolchain=toolchain), x.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", [tw.bf16, tw.f8e4m3, tw.f8e5m2], ids=str)
def test_nan_has_the_usual_pattern(machine: Machine, dtype: DType) -> None:
    x = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    assert np.array_equal(bits(converted(machine, x, dtype)), bits(x.astype(dtype.numpy)))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_random_bits_round_as_numpy_does(machine: Machine, dtype: DType) -> None:
    x = np.random.default_rng(3).integers(0, 2**32, 200_000, dtype=np.uint32).view(np.float32)
    assert_same(converted(machine, x, dtype), x.astype(dtype.numpy))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
def test_f64_rounds_once(machine: Machine, dtype: DType) -> None:
    """A value near a tie would round to the tie in f32 first, and then to even."""
    ties = hard_f32(dtype).astype(np.float64)
    x = np.concatenate([ties, ties * (1 + 2**-50), ties * (1 - 2**-50), [1e-310, -1e-310, 1e300, -1e300]])
    assert_same(converted(machine, x, dtype), conversions.convert(x, tw.f64, dtype))


@pytest.mark.parametrize("source", NARROW, ids=str)
def test_narrow_to_narrow(machine: Machine, source: DType) -> None:
    x = patterns(source)
    for target, y in zip(NARROW, converted_to_all(machine, x, NARROW), strict=True):
        assert_same(y, x.astype(np.float32).astype(target.numpy))


@pytest.mark.parametrize("source", [tw.f64, tw.f32, tw.f16, tw.bf16], ids=str)
def test_floats_become_integers_truncated_and_saturated(machine: Machine, source: DType) -> None:
    ends = [float(end) for t in INTEGERS for end in (np.iinfo(t.numpy).min, np.iinfo(t.numpy).max)]
    edge = np.array([*ends, 2.0**31, 2.0**32, 2.0**63, 2.0**64, 65504.0])
    near = [edge, np.nextafter(edge, np.inf), np.nextafter(edge, -np.inf), edge + 0.5, edge - 0.5]
    drawn = np.random.default_rng(1).uniform(-1000, 1000, 2000)
    points = np.concatenate([*near, drawn, drawn * 1e7, [np.nan, np.inf, 0.0]])
    x = np.concatenate([points, -points]).astype(source.numpy)
    for target, y in zip(INTEGERS, converted_to_all(machine, x, INTEGERS), strict=True):
        assert np.array_equal(y, conversions.convert(x, source, target)), target


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_become_floats_rounded_once(machine: Machine, source: DType) -> None:
    ends = np.iinfo(source.numpy)
    x = np.random.default_rng(2).integers(ends.min, ends.max, 5000, dtype=source.numpy, endpoint=True)
    powers = [2**n + d for n in range(source.bits) for d in (-1, 0, 1)]
    kept = [p for p in (*powers, *(-p for p in powers), ends.min, ends.max) if ends.min <= p <= ends.max]
    x = np.concatenate([x, x >> (source.bits // 2), np.array(kept, source.numpy)])
    for target, y in zip(FLOATS, converted_to_all(machine, x, FLOATS), strict=True):
        # For narrow types: exact in f64 or far past every number of the type, so one rounding.
        narrow = target in NARROW
        assert_same(
            y, conversions.convert(x.astype(np.float64), tw.f64, target) if narrow else x.astype(target.numpy)
        )


@pytest.mark.parametrize("source", INTEGERS, ids=str)
def test_integers_wrap(machine: Machine, source: DType) -> None:
    ends = np.iinfo(source.numpy)
    x = np.random.default_rng(2).integers(ends.min, ends.max, 1000, dtype=source.numpy, endpoint=True)
    for target, y in zip(INTEGERS, converted_to_all(machine, x, INTEGERS), strict=True):
        assert np.array_equal(y, x.astype(target.numpy)), target


@pytest.mark.parametrize("dtype", [*FLOATS, tw.i32, tw.u8], ids=str)
def test_truth_values(machine: Machine, dtype: DType) -> None:
    x = np.array([0, 1, 2, 0, -0.0 if dtype.is_float else 0]).astype(dtype.numpy)
    truth = converted(machine, x, boolean)
    assert truth.tolist() == [False, True, True, False, False]
    assert converted(machine, truth, dtype).tolist() == [0, 1, 1, 0, 0]


@pytest.mark.parametrize("dtype", [tw.c32, tw.c64, tw.c128], ids=str)
def test_complex_numbers_are_moved(machine: Machine, dtype: DType) -> None:
    x = np.frombuffer(np.random.default_rng(1).bytes(100 * dtype.bytes), dtype.numpy)
    y = np.zeros(100, dtype.numpy)
    machine(copy.trace(x, y), {"X": x, "Y": y})
    assert x.tobytes() == y.tobytes()
