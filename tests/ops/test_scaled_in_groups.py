"""`scaled_mm` of weights in groups along K: 4-bit numbers, scales, zero points, and refusals."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.ops.products import scaled_in_groups
from tilewright.ops.scales import pays_widened_groups
from tilewright.ops.widening import widen_in_groups
from tilewright.runtime.arrays import describe
from tilewright.targets.target import CPU, CUDA

pytestmark = pytest.mark.in_turns(3)

ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
Array = np.ndarray[Any, Any]
CODES = np.arange(16, dtype=np.uint8)


def weights(numbers: Array, kind: Any, target: str, *, along: str = "k") -> Any:
    """Return numbers (K, N), two in each byte, which are neighbours along K or along N."""
    held = tw.pack(numbers.T if along == "k" else numbers, kind)
    there = tw.testing.device_put(held, target)
    return tw.packed(there.T if along == "k" else there, kind)


def on(target: str, array: Array) -> Any:
    return tw.testing.device_put(array, target)


def back(array: Any) -> Array:
    return np.asarray(tw.testing.device_get(array))


def drawn(m: int, n: int, k: int, group: int, wide: Any) -> tuple[Array, ...]:
    """Return A, weights, their scales and zero points, and a bias."""
    rng = np.random.default_rng(m + n + k)
    scales = rng.uniform(0.5, 2, (k // group, n)).astype(wide)
    zeros = rng.integers(-8, 8, (k // group, n)).astype(np.int8)
    bias = rng.standard_normal(n).astype(np.float16)
    return rng.standard_normal((m, k)).astype(wide), rng.integers(-8, 8, (k, n)), scales, zeros, bias


@ON_ALL
@pytest.mark.parametrize(
    ("kind", "wide"), [(tw.i4, "f16"), (tw.i4, "bf16"), (tw.u4, "f16"), (tw.f4e2m1, "f16")], ids=str
)
def test_every_code_is_multiplied_as_what_it_is(kind: Any, wide: str, target: str) -> None:
    """With one number in each row of A, the products are the weights, rounded as documented."""
    rng = np.random.default_rng(0)
    dtype, codes = tw.dtype(wide).numpy, np.tile(CODES, 4).view(kind.numbers)
    numbers = np.stack([np.roll(codes, shift) for shift in range(16)], axis=1)
    scales = rng.standard_normal((2, 16)).astype(dtype)
    zeros = rng.integers(-8, 8, (2, 16)).astype(np.int8)
    eye, there = on(target, np.eye(64).astype(dtype)), weights(numbers, kind, target)
    shifted = (numbers.astype(np.float32) - zeros.astype(np.float32).repeat(32, 0)).astype(dtype)
    scaled = (shifted.astype(np.float32) * scales.astype(np.float32).repeat(32, 0)).astype(dtype)
    made = tw.scaled_mm(eye, there, out_dtype="f32", target=target)
    assert np.array_equal(back(made), numbers.astype(np.float32))
    given = {"scale_b": on(target, scales), "zero_b": on(target, zeros), "group": 32}
    made = tw.scaled_mm(eye, there, **given, out_dtype="f32", target=target)
    assert np.array_equal(back(made), scaled.astype(np.float32))


@ON_ALL
@pytest.mark.parametrize("wide", ["f16", "bf16", "f32"])
def test_codes_are_multiplied_as_the_numbers_of_a_table(wide: str, target: str) -> None:
    """With one number in each row of A, the products are the weights of NF4, rounded as documented."""
    rng = np.random.default_rng(0)
    dtype = tw.dtype(wide).numpy
    for along, prepass in (("k", False), ("n", False), ("k", True)):
        codes = rng.integers(0, 16, (64, 18))
        scales = rng.standard_normal((2, 18)).astype(dtype)
        there, eye = weights(codes, tw.u4, target, along=along), on(target, np.eye(64).astype(dtype))
        words = {"scale_b": on(target, scales), "group": 32, "table": tw.NF4, "out_dtype": "f32"}
        made = tw.scaled_mm(eye, there, **words, prepass=prepass, target=target)
        numbers = np.array(tw.NF4).astype(dtype).astype(np.float32)[codes]
        exact = (numbers * scales.astype(np.float32).repeat(32, 0)).astype(dtype).astype(np.float32)
        assert np.array_equal(back(made), exact)
    for rows in (1, 4, 40):  # as it is chosen
        a = rng.standard_normal((rows, 64)).astype(dtype)
        made = tw.scaled_mm(on(target, a), there, **words, target=target)
        a = a.astype(np.float64)
        assert (np.abs(back(made) - a @ exact) <= 66 * 2.0**-24 * (np.abs(a) @ np.abs(exact))).all()


def test_tables_that_do_not_fit_are_refused() -> None:
    a, scales = np.ones((1, 8), np.float16), np.ones((1, 2), np.float16)
    codes = tw.pack(np.zeros((2, 8)), tw.u4).T
    words = {"scale_b": scales, "group": 8, "target": "reference"}
    with pytest.raises(tw.LaunchError, match=r"table is 2 numbers, \(1, 2\); .* 16 finite numbers"):
        tw.scaled_mm(a, tw.packed(codes, tw.u4), **words, table=(1, 2))
    with pytest.raises(tw.LaunchError, match=r"b is i4; nearest legal choice: tw\.packed"):
        tw.scaled_mm(a, tw.packed(codes, tw.i4), **words, table=tw.NF4)
    with pytest.raises(tw.LaunchError, match="group is None; nearest legal choice: group=8"):
        tw.scaled_mm(a, tw.packed(codes, tw.u4), table=tw.NF4, target="reference")
    for target in ("reference", "cpu"):  # the CPU widens weights in a pass of its own
        with pytest.raises(tw.LaunchError, match=r"scaled_mm: in table, 100000.0 .* f16; .* choice: 65504.0"):
            tw.scaled_mm(a, tw.packed(codes, tw.u4), **{**words, "target": target}, table=(*tw.NF4[:15], 1e5))


@ON_ALL
@pytest.mark.parametrize("kind", [tw.i4, tw.f4e2m1], ids=str)
@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_few_places_along_k_are_seen_as_they_lie(n: int, kind: Any, target: str) -> None:
    """With K = 2, the bytes of all columns are neighbours, and both dimensions have stride 1."""
    rng = np.random.default_rng(n)
    for k in (2, 4, 6):
        numbers = rng.integers(-4, 5, (k, n))
        a = rng.integers(-4, 5, (5, k)).astype(np.float16)
        scales = np.full((k // 2, n), 2, np.float16)
        for along in ("k", "n")[: 1 + (n % 2 == 0)]:
            there = weights(numbers, kind, target, along=along)
            if k == 2 and n == 1:  # of a single byte nothing says along which dimension
                there = tw.packed(there.array, kind, axis=0)
            assert describe(there).shape == (k, n)
            wide = tw.unpack(tw.pack(numbers.T, kind), kind).astype(np.float64).T
            made = tw.scaled_mm(on(target, a), there, out_dtype="f32", target=target)
            assert np.array_equal(back(made), a @ wide)
            words = {"scale_b": on(target, scales), "group": 2, "out_dtype": "f32", "target": target}
            assert np.array_equal(back(tw.scaled_mm(on(target, a), there, **words)), 2 * a @ wide)


def test_the_dimension_of_packed_neighbours_may_be_said() -> None:
    codes = np.array([[1, -2]])
    held = tw.pack(codes, tw.i4)
    assert describe(tw.packed(held, tw.i4)).shape == (1, 2)
    assert describe(tw.packed(held, tw.i4, axis=-2)).shape == (2, 1)
    assert describe(tw.packed(np.zeros((3, 1), np.uint8).T, tw.i4)).shape == (2, 3)
    assert describe(tw.packed(tw.pack(np.zeros((9, 2)), tw.i4), tw.i4)).shape == (9, 2)
    for axis, nearest in ((0, 1), (2, 1), (-3, 1)):
        with pytest.raises(
            tw.LaunchError, match=f"axis={axis} of packed i4.*nearest legal choice: axis={nearest}"
        ):
            describe(tw.packed(np.zeros((2, 3), np.uint8), tw.i4, axis=axis))
    message = "2 numbers along N into each byte; nearest legal choice: b=tw.packed.*axis=0"
    with pytest.raises(tw.LaunchError, match=message):
        tw.scaled_mm(np.ones((3, 2), np.float16), tw.packed(held.T, tw.i4), target="reference")
    nothing = tw.packed(np.zeros((0, 2), np.uint8), tw.i4, axis=1)
    made = tw.scaled_mm(np.ones((3, 0), np.float16), nothing, target="reference")
    assert made.tolist() == [[0] * 4] * 3


@pytest.mark.in_turns(4)
@ON_ALL
@pytest.mark.parametrize(
    ("extents", "group", "wide", "along"),
    [
        ((37, 29, 160), 32, np.float16, "k"),
        ((5, 70, 192), 64, ml_dtypes.bfloat16, "k"),
        ((3, 34, 384), 128, np.float16, "n"),
        ((2, 9, 24), 8, np.float16, "k"),
    ],
    ids=str,
)
def test_every_element_is_within_the_bound_of_its_graph(
    extents: tuple[int, int, int], group: int, wide: Any, along: str, target: str
) -> None:
    m, n, k = extents
    a, numbers, scales, zeros, bias = drawn(m, n, k, group, wide)
    out = np.full((m, n), np.nan, np.float32)
    there, b = on(target, out), weights(numbers, tw.i4, target, along=along)
    beside = {"scale_b": on(target, scales), "zero_b": on(target, zeros), "bias": on(target, bias)}
    for _ in calls_on(target):
        made = tw.scaled_mm(on(target, a), b, there, **beside, group=group, activation="silu", target=target)
        assert made is there
    kernel = scaled_in_groups(0).bind(
        multiplied=tw.dtype(wide), group=group, terms=frozenset({*beside}), activation="silu"
    )
    given = {"A": a, "B": numbers.astype(ml_dtypes.int4), "scale_a": bias, "scale_b": scales, "zero_b": zeros}
    given["bias"] = bias
    given["scale_a"] = np.ones(m, np.float32)
    seen = {**given, "B": b}
    arrays = (*seen.values(), there, 1.0)
    atom = kernel.schedule_for(*arrays, target=target).atom
    found = compare_flow(
        kernel.flow(*arrays), {"D": back(there)}, given, {"alpha": 1.0}, Accumulation.of(atom)
    )
    found.raise_if_wrong()


FEW_ROWS = tw.Schedule(
    tw.atoms.MMA_F16, (64, 8, 128), (4, 1), stages=3, staging="fragments", swap_ab=True, group_m=8
)


@pytest.mark.in_turns(4)
@ON_ALL
@pytest.mark.parametrize(
    ("extents", "group", "change"),
    [
        ((7, 70, 512), 128, {"tile": (128, 8, 256), "split_k": 2}),
        ((9, 34, 320), 64, {"stages": 4}),
        ((1, 16, 96), 32, {}),
    ],
    ids=str,
)
def test_lanes_take_runs_of_few_rows(
    extents: tuple[int, int, int], group: int, change: dict[str, Any], target: str
) -> None:
    """The results equal those of the chosen schedule, except for the order in which products are added."""
    m, n, k = extents
    a, numbers, scales, zeros, _ = drawn(m, n, k, group, np.float16)
    b, there = weights(numbers, tw.i4, target), on(target, a)
    beside = {"scale_b": on(target, scales), "zero_b": on(target, zeros), "group": group}
    schedule = replace(FEW_ROWS, **change)
    made = tw.scaled_mm(there, b, **beside, out_dtype="f32", schedule=schedule, target=target)
    zero, scale = (one.astype(np.float64).repeat(group, 0) for one in (zeros, scales))
    wide = ((numbers - zero) * scale).astype(np.float16).astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(wide)
    assert (np.abs(back(made) - a.astype(np.float64) @ wide) <= k * 2.0**-22 * size).all()


@pytest.mark.parametrize("roles", ["cooperative", "ping-pong"])
@pytest.mark.parametrize("group", [32, 128])
def test_weights_of_8_bits_have_groups_behind_bulk_copies(roles: Any, group: int) -> None:
    """Bulk copies load the weights; each group of warps decodes its own rows with their scales."""
    m, n, k = 20, 272, 384
    a, _, scales, zeros, _ = drawn(m, n, k, group, np.float16)
    b = np.asfortranarray(np.random.default_rng(1).integers(-128, 128, (k, n)).astype(np.int8))
    rows, blocks = (128, 0) if roles == "cooperative" else (64, 3)
    schedule = tw.Schedule(
        tw.atoms.wgmma("f16", 16),
        (rows, 16, 128),
        stages=3,
        staging="tma",
        roles=roles,
        groups=2,
        blocks=blocks,
        swap_ab=True,
    )
    made = tw.scaled_mm(
        a,
        b,
        scale_b=scales,
        zero_b=zeros,
        group=group,
        schedule=schedule,
        out_dtype="f32",
        target="reference",
    )
    zero, scale = (one.astype(np.float64).repeat(group, 0) for one in (zeros, scales))
    wide = ((b - zero) * scale).astype(np.float16).astype(np.float64)
    size = np.abs(a.astype(np.float64)) @ np.abs(wide)
    assert (np.abs(made - a.astype(np.float64) @ wide) <= k * 2.0**-22 * size).all()


@pytest.mark.parametrize("given", ["scale_b", "zero_b"])
def test_one_of_scales_and_zero_points_is_enough(given: str) -> None:
    a, numbers, scales, zeros, _ = drawn(4, 6, 64, 32, np.float16)
    beside = {"scale_b": scales, "zero_b": zeros.astype(np.float32)}[given]
    made = tw.scaled_mm(
        a, weights(numbers, tw.i4, "cpu"), **{given: beside}, group=32, out_dtype="f32", target="cpu"
    )
    whole = beside.astype(np.float64).repeat(32, 0)
    wide = numbers * whole if given == "scale_b" else numbers - whole
    assert np.allclose(made, a.astype(np.float64) @ wide, rtol=1e-2, atol=1e-1)


def test_batches_of_rows_share_the_weights() -> None:
    a, numbers, scales, _, _ = drawn(6, 4, 64, 64, np.float16)
    b = weights(numbers, tw.i4, "reference")
    made = tw.scaled_mm(a, b, scale_b=scales, group=64, target="reference")
    batches = a.reshape(2, 3, 64)
    apart = tw.scaled_mm(batches, b, scale_b=scales, group=64, target="reference")
    assert np.array_equal(apart.reshape(6, 4), made)
    strided = np.ascontiguousarray(batches.transpose(1, 0, 2)).transpose(1, 0, 2)
    assert np.array_equal(tw.scaled_mm(strided, b, scale_b=scales, group=64, target="reference"), apart)


@pytest.mark.in_turns(4)
@ON_ALL
@pytest.mark.parametrize(("given", "group"), [(("scale_b", "zero_b"), 32), (("zero_b",), 64)], ids=str)
def test_a_pass_of_its_own_widens_weights_to_the_same_numbers(
    given: tuple[str, ...], group: int, target: str
) -> None:
    """One number in each row of A gives the weights themselves; then random rows, twice."""
    a, numbers, scales, zeros, bias = drawn(40, 35, 128, group, np.float16)
    b = weights(numbers, tw.i4, target)
    beside = {"scale_b": on(target, scales), "zero_b": on(target, zeros)}
    asked = {name: beside[name] for name in given} | {"group": group, "out_dtype": "f32", "target": target}
    eye = on(target, np.eye(128).astype(np.float16))
    expected = back(tw.scaled_mm(eye, b, **asked, prepass=False))
    assert np.array_equal(back(tw.scaled_mm(eye, b, **asked, prepass=True)), expected)
    asked |= {"bias": on(target, bias), "scale_a": 2.0}
    size = np.abs(a).astype(np.float64) @ np.abs(expected) * 2 + np.abs(bias)
    exact = a.astype(np.float64) @ expected * 2 + bias
    for seed in range(2):
        there = on(target, np.roll(a, seed, axis=0))
        made = back(tw.scaled_mm(there, b, **asked, prepass=True))
        assert (np.abs(made - np.roll(exact, seed, axis=0)) <= 2.0**-14 * np.roll(size, seed, axis=0)).all()


@ON_ALL
@pytest.mark.parametrize("kind", [tw.i4, tw.f4e2m1], ids=str)
def test_weights_that_are_turned_around_are_the_same_product(kind: Any, target: str) -> None:
    a, _, scales, zeros, _ = drawn(5, 70, 96, 32, np.float16)
    numbers = np.random.default_rng(3).integers(0, 16, (96, 70), np.uint8).view(kind.numbers)
    beside = on(target, scales), on(target, zeros)
    along_n, along_k = (weights(numbers, kind, target, along=along) for along in "nk")
    made = tw.rearrange_weights(along_n, *beside, group=32, target=target)
    assert (made.shape, made.group) == ((96, 70), 32)
    assert np.array_equal(back(made.b.array), back(along_k.array)), "the same bytes"
    assert tw.rearrange_weights(along_k, *beside, group=32, target=target).b is along_k
    there = on(target, a)
    given = {"scale_b": beside[0], "zero_b": beside[1], "group": 32}
    expected = tw.scaled_mm(there, along_k, **given, target=target)
    assert np.array_equal(back(tw.scaled_mm(there, made, target=target)), back(expected))


def test_packed_weights_have_their_own_scales() -> None:
    a, numbers, scales, _, _ = drawn(3, 6, 64, 32, np.float16)
    made = tw.rearrange_weights(weights(numbers, tw.i4, "cpu"), scales, group=32)
    with pytest.raises(
        tw.LaunchError, match="i4 weights 64 x 6, groups of 32>, which already contain scale_b"
    ):
        tw.scaled_mm(a, made, scale_b=scales)
    with pytest.raises(tw.DTypeError, match=r"b is i8, .*; nearest legal choice: b=tw\.packed"):
        tw.rearrange_weights(numbers.astype(np.int8))
    with pytest.raises(tw.LaunchError, match=r"scale_b has shape \(2, 6\)"):
        tw.rearrange_weights(weights(numbers, tw.i4, "cpu"), scales, group=16)


@pytest.mark.parametrize("along", ["n", "k"])
def test_scales_that_do_not_fit_are_refused_when_weights_are_rearranged(along: str) -> None:
    numbers = np.zeros((64, 6), np.uint8).view(tw.i4.numbers)
    codes = weights(numbers, tw.i4, "cpu", along=along)
    for shape in ((3,), (64,), (6, 1), (2, 6)):
        with pytest.raises(
            tw.LaunchError, match=r"rearrange_weights: scale_b has shape .*one for each column of b"
        ):
            tw.rearrange_weights(codes, np.ones(shape, np.float32), target="cpu")
    for beside in ({}, {"zero_b": np.zeros((2, 6), np.int8)}):
        with pytest.raises(
            tw.DTypeError, match="rearrange_weights: scale_b is f64; nearest legal choice: f32"
        ):
            tw.rearrange_weights(codes, np.ones((2, 6)), group=32, **beside, target="cpu")
    with pytest.raises(tw.DTypeError, match="rearrange_weights: zero_b is i32; nearest legal choice"):
        tw.rearrange_weights(codes, zero_b=np.zeros((2, 6), np.int32), group=32, target="cpu")
    with pytest.raises(tw.DTypeError, match="rearrange_weights: scale_b is f64"):
        tw.rearrange_weights(codes, np.ones(6), target="cpu")
    for zero in (0, 2.0):
        with pytest.raises(tw.LaunchError, match="rearrange_weights, argument zero_b"):
            tw.rearrange_weights(codes, zero_b=zero, group=32, target="cpu")
    with pytest.raises(
        tw.LaunchError, match=r"rearrange_weights: scale_b=.*, which is beyond the range of f64"
    ):
        tw.rearrange_weights(codes, 10**400, target="cpu")


@pytest.mark.parametrize(
    "scale",
    [2, np.float32(2), np.float64(2), np.int32(2), *(np.full(one, 2, "f2") for one in ((), 1, 6, (1, 6)))],
)
def test_scales_that_fit_are_those_of_scaled_mm(scale: Any) -> None:
    numbers = np.arange(64 * 6).reshape(64, 6) % 15 - 7
    codes = weights(numbers.astype(tw.i4.numbers), tw.i4, "cpu", along="n")
    made = tw.scaled_mm(np.ones((1, 64), np.float16), tw.rearrange_weights(codes, scale, target="cpu"))
    assert np.array_equal(made, 2.0 * numbers.sum(0, keepdims=True))
    blocks = tw.rearrange_weights(codes, np.full((1, 1), 0.5, np.float32), target="cpu")
    assert np.array_equal(tw.scaled_mm(np.ones((1, 64), np.float16), blocks), made / 4)


A, B = np.ones((4, 64), np.float16), np.ones((64, 6), np.int8)
SCALES = np.ones((2, 6), np.float16)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"group": 24, "scale_b": SCALES},
            tw.LaunchError,
            "does not divide K, 64; nearest legal choice: group=16",
        ),
        ({"group": 16, "scale_b": SCALES}, tw.LaunchError, r"scale_b has shape \(2, 6\).*choice: \(4, 6\)"),
        ({"group": 32}, tw.LaunchError, r"neither scale_b nor zero_b.*scale_b of shape \(2, 6\)"),
        ({"zero_b": SCALES}, tw.LaunchError, "zero_b needs groups.*group=64"),
        ({"zero_b": SCALES.astype(np.int32), "group": 32}, tw.DTypeError, "zero_b is i32; nearest.*i8, u8"),
        (
            {"b": np.ones((2, 64, 6), np.int8), "group": 32, "scale_b": SCALES},
            tw.LaunchError,
            "needs a matrix",
        ),
        ({"a": tw.packed(np.ones((4, 32), np.uint8), "i4")}, tw.DTypeError, "a is packed i4"),
        (
            {"group": 32, "scale_b": SCALES, "prepass": True},
            tw.LaunchError,
            "contiguous along K; .*prepass=None$",
        ),
        (
            {
                "b": tw.packed(np.ones((64, 3), np.uint8), "i4"),
                "group": 32,
                "scale_b": SCALES,
                "prepass": True,
            },
            tw.LaunchError,
            r"contiguous along K; .*prepass=None, or b=tw\.rearrange_weights\(b, \.\.\.\)",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_its_terms(change: dict[str, Any], error: Any, message: str) -> None:
    given = {"a": A, "b": B, **change}
    with pytest.raises(error, match=message):
        tw.scaled_mm(given.pop("a"), given.pop("b"), **given, target="reference")


def test_many_rows_on_hopper_are_multiplied_after_a_pass() -> None:
    b = describe(tw.packed(np.empty((4096, 2048), np.uint8).T, tw.i4))
    for rows, arch, expected in ((257, "sm_90a", True), (256, "sm_90a", False), (512, "sm_80", False)):
        infos = {"a": describe(np.empty((rows, 4096), np.float16)), "b": b}
        assert pays_widened_groups(infos, tw.f16, CUDA.architecture(arch).features, CUDA) == expected
    along_n = describe(tw.packed(np.empty((4096, 2048), np.uint8), tw.i4))
    assert not pays_widened_groups(
        {**infos, "b": along_n}, tw.f16, CUDA.architecture("sm_90a").features, CUDA
    )
    for group, expected in ((128, False), (8, False), (4, True)):
        grouped = {**infos, "scale_b": describe(np.empty((4096 // group, 2048), np.float16))}
        assert pays_widened_groups(grouped, tw.f16, frozenset(), CPU) == expected
        assert not pays_widened_groups({**grouped, "b": along_n}, tw.f16, frozenset(), CPU)
    for rows, group, expected in ((512, 8 * 17, True), (256, 8 * 17, False), (512, 4096, False)):
        of = describe(tw.packed(np.empty((2048, group * 2), np.uint8).T, tw.i4))
        given = {"a": describe(np.empty((rows, group * 4), np.float16)), "b": of}
        given["scale_b"] = describe(np.empty((4, 2048), np.float16))
        assert pays_widened_groups(given, tw.f16, frozenset(), CPU) == expected
    widening = widen_in_groups().bind(group=128, terms=frozenset({"scale_b", "zero_b"}))
    groups = tw.like("f16", 4096, 32)
    made = widening.compile(
        tw.packed(np.empty((4096, 2048), np.uint8), tw.i4),
        *(groups, tw.like("i8", 4096, 32), tw.like("f16", 4096, 4096)),
        target="cuda",
        arch="sm_90a",
    )
    assert made.resources["spill_store_bytes"] == 0


@ON_ALL
@pytest.mark.parametrize("prepass", [None, False, True])
@pytest.mark.parametrize(("k", "n"), [(0, 6), (0, 5), (0, 1), (64, 0), (0, 0)])
def test_empty_weights(k: int, n: int, prepass: bool | None, target: str) -> None:
    """Without K, the sums are 0, and the result is the bias; without columns it is empty."""
    a, bias = np.ones((3, k), np.float16), np.arange(n, dtype=np.float16)
    b = tw.packed(on(target, np.zeros((n, k // 2), np.uint8).T), tw.i4, axis=0)
    scales = on(target, np.ones((k // 32, n), np.float16))
    words = {"group": 32, "bias": on(target, bias), "prepass": prepass, "target": target}
    found = back(tw.scaled_mm(on(target, a), b, scale_b=scales, **words))
    assert np.array_equal(found, np.broadcast_to(bias, (3, n)))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_gpu_decodes_weights_in_registers(arch: str) -> None:
    terms = frozenset({"scale_b", "zero_b"})
    kernel = scaled_in_groups(0).bind(multiplied=tw.f16, group=128, terms=terms, activation=None)
    b = tw.packed(np.empty((4096, 2048), np.uint8).T, tw.i4)
    wide, groups = tw.like("f16", 16, 4096), tw.like("f16", 32, 4096)
    given = (wide, b, tw.like("f32", 16), groups, tw.like("i8", 32, 4096), tw.like("f32", 4096), wide, 1.0)
    made = kernel.compile(*given, target="cuda", arch=arch)
    assert made.schedule is not None
    assert made.schedule.staging == "fragments"
    assert made.resources["spill_store_bytes"] == 0
