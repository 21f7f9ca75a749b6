"""`scaled_mm`: mixtures of widths, scales by their shapes, saturation and NaN, views, refusals."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tests.schedule.small import CASES

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.flows import compare_flow
from tilewright.ops.products import scaled
from tilewright.ops.scales import OPERANDS, multiplied_as, multiplied_on
from tilewright.runtime.arrays import describe
from tilewright.schedule.choice import proposals
from tilewright.targets.target import CPU, CUDA, HIP
from tilewright.testing import device_get, device_put

pytestmark = pytest.mark.in_turns(3)

TARGETS = pytest.mark.parametrize("target", ["reference", "cpu"])
ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
MIXTURES = [
    *(("f16", narrow) for narrow in ("f8e4m3", "f8e5m2", "i8", "f16")),
    *(("bf16", "f8e4m3"), ("bf16", "i8"), ("f8e5m2", "f16"), ("f32", "i8")),
    *(("f8e4m3", "f8e4m3"), ("f8e4m3", "f8e5m2"), ("i8", "i8"), ("f8e5m2", "i8")),
    *(("f16", "f8e4m3fnuz"), ("f8e5m2fnuz", "f8e5m2fnuz"), ("f8e4m3fnuz", "f8e4m3")),
]
ON_CPU = [("f16", "f8e4m3"), ("bf16", "i8"), ("f8e4m3", "f8e5m2"), ("i8", "i8"), ("f8e4m3fnuz", "f16")]
"""Few, for each is compiled."""
FP8 = ("f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz")
Array = np.ndarray[Any, Any]


def drawn(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    dtype = tw.dtype(kind)
    if dtype.is_float:
        return rng.standard_normal(shape).astype(dtype.numpy)
    return rng.integers(-128, 128, shape).astype(dtype.numpy)


def whole(rng: np.random.Generator, shape: tuple[int, ...], kind: str) -> Array:
    """Return integers so small that all their sums and products are exact."""
    return rng.integers(-3, 4, shape).astype(tw.dtype(kind).numpy)


def on(target: str, array: Array) -> Any:
    return tw.testing.device_put(array, target)


def back(array: Any) -> Array:
    found: Array = tw.testing.device_get(array)
    return found


@pytest.mark.in_turns(5)
@pytest.mark.parametrize(
    ("kind", "other", "target"),
    [*((*pair, "reference") for pair in MIXTURES), *((*pair, "cpu") for pair in ON_CPU)],
)
@pytest.mark.parametrize("shape", [(37, 29, 70), (1, 5, 3), (3, 4, 0)], ids=str)
def test_every_element_is_within_the_bound_of_its_graph(
    kind: str, other: str, shape: tuple[int, int, int], target: str
) -> None:
    m, n, k = shape
    rng = np.random.default_rng(m)
    a, b = drawn(rng, (m, k), kind), drawn(rng, (n, k), other).T
    scales = rng.uniform(0.5, 2, m).astype(np.float32), rng.uniform(0.01, 0.02, n).astype(np.float32)
    bias = rng.standard_normal(n).astype(np.float16)
    out = np.full((m + 2, n + 3), np.nan, np.float32)
    inner = out[1:-1, 2:-1]
    made = tw.scaled_mm(
        a, b, inner, scale_a=scales[0], scale_b=scales[1], bias=bias, activation="silu", target=target
    )
    assert made is inner
    multiplied = multiplied_as(tw.dtype(kind), tw.dtype(other))
    kernel = scaled(0).bind(
        multiplied=multiplied, terms=frozenset({"scale_a", "scale_b", "bias"}), activation="silu"
    )
    given = {"A": a, "B": b, "scale_a": scales[0], "scale_b": scales[1], "bias": bias}
    flow = kernel.flow(*given.values(), inner, 1.0)
    atom = kernel.schedule_for(*given.values(), inner, 1.0, target=target).atom
    compare_flow(flow, {"D": inner}, given, {"alpha": 1.0}, Accumulation.of(atom)).raise_if_wrong()
    inner[...] = np.nan
    assert np.isnan(out).all(), "written outside of the array"


@ON_ALL
def test_shapes_of_scales_say_what_they_belong_to(target: str) -> None:
    rng = np.random.default_rng(0)
    a, b = whole(rng, (2, 5, 4), "f16"), whole(rng, (4, 3), "i8")
    rows, columns = (rng.integers(1, 4, shape).astype(np.float32) for shape in ((2, 5), (3,)))
    product = a.astype(np.float64) @ b
    there, weights = on(target, a), on(target, b)
    for scale_a, scale_b, factor in (
        (2, 0.5, 1.0),
        (np.float32(3), columns, 3 * columns),
        (np.full((1, 1), 2, np.float16), columns[None], 2 * columns),
        (rows, columns, rows[..., None] * columns),
        (rows[..., None], None, rows[..., None]),
        (rows[:1], None, rows[:1, :, None]),
    ):
        given = [on(target, one) if isinstance(one, np.ndarray) else one for one in (scale_a, scale_b)]
        made = tw.scaled_mm(there, weights, scale_a=given[0], scale_b=given[1], target=target)
        assert np.array_equal(back(made), product * factor)


EXTREMES = ("rows and columns", "a number and columns", "rows and a number", "rows and a number of all")


@ON_ALL
@pytest.mark.parametrize("which", EXTREMES)
def test_scales_of_any_size_are_combined_without_leaving_f32(which: str, target: str) -> None:
    """If the result is a number of f32, the two roundings of a product are the only errors."""
    rng = np.random.default_rng(len(which))
    m, n, k = (5, 6, 4) if target == "reference" else (61, 47, 24)
    for size in (-60, -1, 0, 40, 100):
        a = (rng.integers(1, 5, (m, k)) * 2.0**size).astype(np.float32)
        b = rng.integers(1, 4, (k, n)).astype(np.int8)
        rows, columns = ((2.0 ** rng.uniform(-149, 127.4, extent)).astype(np.float32) for extent in (m, n))
        rows[0], columns[0] = 2.0**-149, -np.finfo(np.float32).max
        rows[1], columns[1] = 0, 2.0**-126
        given: dict[str, Any] = {"scale_a": rows, "scale_b": columns}
        if which.startswith("a number"):
            given["scale_a"] = float(2.0 ** rng.uniform(-126, 127))
        if which.endswith("number"):
            given["scale_b"] = float(2.0 ** rng.uniform(-126, 127))
        if which.endswith("of all"):
            given["scale_b"] = np.float32([2.0 ** rng.uniform(-149, 127)])
        there = {key: on(target, one) if isinstance(one, np.ndarray) else one for key, one in given.items()}
        made = back(tw.scaled_mm(on(target, a), on(target, b), **there, out_dtype="f32", target=target))
        by_row, by_column = (np.atleast_1d(np.asarray(given[name], np.float32)) for name in given)
        want = (a.astype(np.float64) @ b) * by_row[:, None].astype(np.float64) * by_column
        held = np.abs(want) <= np.finfo(np.float32).max
        assert held.any()
        assert (np.abs(made - want)[held] <= 2.0**-22 * np.abs(want[held]) + 2.0**-149).all()
        assert np.isinf(made[np.abs(want) > 2.0**128 * (1 + 2.0**-22)]).all()


@ON_ALL
def test_nothing_times_any_scales_is_nothing(target: str) -> None:
    largest = np.full(4, np.finfo(np.float32).max)
    zeros, ones = (on(target, np.full(shape, value, np.int8)) for shape, value in (((4, 8), 0), ((8, 4), 1)))
    scales = {"scale_a": on(target, largest), "scale_b": on(target, largest * np.float32([1, 1, -1, 0]))}
    made = back(tw.scaled_mm(zeros, ones, **scales, out_dtype="f32", target=target))
    assert not made.any()
    for wrong in (np.nan, np.inf):
        scales["scale_b"] = on(target, np.float32([wrong, 1, 1, 1]))
        made = back(tw.scaled_mm(zeros, ones, **scales, out_dtype="f32", target=target))
        assert np.isnan(made[:, 0]).all()
        assert not made[:, 1:].any()


@TARGETS
def test_vectors_and_batches_follow_numpy(target: str) -> None:
    rng = np.random.default_rng(1)
    a, b = whole(rng, (3, 4, 6), "bf16"), whole(rng, (3, 6, 5), "f8e5m2")
    rows, columns = (rng.integers(1, 4, shape).astype(np.float32) for shape in ((3, 4), (3, 5)))
    made = tw.scaled_mm(a, b, scale_a=rows, scale_b=columns, target=target)
    product = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(made, product * rows[..., None] * columns[:, None])
    made = tw.scaled_mm(a[0, 0], b, scale_b=columns[:, None], target=target)
    expected = np.einsum("k,bkn->bn", a[0, 0].astype(float), b.astype(float)) * columns
    assert np.array_equal(made, expected)
    made = tw.scaled_mm(a, b[0, :, 0], scale_a=rows[..., None], target=target)
    assert np.array_equal(made, a.astype(float) @ b[0, :, 0].astype(float) * rows)


@pytest.mark.in_turns(4)
@ON_ALL
@pytest.mark.parametrize("kind", ["f8e4m3", "f8e5m2", "f8e4m3fnuz", "f8e5m2fnuz", "i8"])
@pytest.mark.parametrize("wide", ["f16", "bf16"])
def test_every_code_is_multiplied_as_what_it_is(kind: str, wide: str, target: str) -> None:
    codes = np.arange(256, dtype=np.uint8).view(tw.dtype(kind).numpy)
    expected = codes.astype(np.float32)
    with np.errstate(invalid="ignore"):
        # In rows of their own, so that NaN and infinities are alone; K is long enough for every path.
        a = np.zeros((8, 72), tw.dtype(wide).numpy)
        finite = np.where(np.isfinite(expected), codes, np.zeros_like(codes))
        a[0, 0] = 1
        b = np.zeros((72, 256), codes.dtype)
        b[0] = finite
        made = back(tw.scaled_mm(on(target, a), on(target, b), out_dtype="f32", target=target))
        assert np.array_equal(made[0], finite.astype(np.float32))
        one, row = np.ones((1, 1), a.dtype), codes[None]
        made = back(tw.scaled_mm(on(target, one), on(target, row), out_dtype="f32", target=target))
    assert np.array_equal(made[0], expected, equal_nan=True)


@ON_ALL
def test_results_of_8_bits_saturate_and_nan_is_what_it_can_be(target: str) -> None:
    given = np.float16([[1000, -1000, np.inf, -np.inf, np.nan, 2.5, 3.5, -0.4, 1e-4]])
    one = on(target, np.ones((1, 1), np.float16))
    made = {
        kind: back(tw.scaled_mm(one, on(target, given), out_dtype=kind, target=target)).astype(np.float32)[0]
        for kind in (*FP8, "i8", "f16")
    }
    ends = {kind: float(ml_dtypes.finfo(tw.dtype(kind).numpy).max) for kind in FP8}
    for kind, most in ends.items():
        inside = given[0, 5:].astype(tw.dtype(kind).numpy).astype(np.float32)
        expected = [min(1000, most) if most < 1000 else 1024, 0, most, -most, np.nan]
        expected[1] = -expected[0]
        assert np.array_equal(made[kind], [*expected, *inside], equal_nan=True)
    assert np.array_equal(made["i8"], [127, -128, 127, -128, 0, 2, 4, 0, 0])
    assert np.array_equal(made["f16"], given[0], equal_nan=True)


@TARGETS
def test_what_is_called_again_sees_other_arrays(target: str) -> None:
    rng = np.random.default_rng(2)
    for seed in range(3):
        a, b = whole(rng, (4, 6), "f16"), whole(rng, (6, 5), "f8e4m3")
        scale = np.full(5, seed + 1, np.float32)
        made = tw.scaled_mm(a, b, scale_a=2.0 * seed, scale_b=scale, target=target)
        assert np.array_equal(made, a.astype(float) @ b.astype(float) * scale * 2 * seed)


def test_the_default_dtype_holds_what_is_multiplied() -> None:
    for kind, other, expected in (
        *(("bf16", "i8", "bf16"), ("f8e4m3", "f32", "f32"), ("f8e4m3", "f8e5m2", "f16")),
        *(("i8", "i8", "f32"), ("f8e4m3", "f8e4m3", "f16")),
    ):
        a, b = (np.ones((1, 1), tw.dtype(name).numpy) for name in (kind, other))
        assert tw.dtype(tw.scaled_mm(a, b, target="reference").dtype) == tw.dtype(expected)


A, B = np.ones((4, 6), np.float16), np.ones((6, 5), np.int8)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (
            {"scale_a": np.ones(5, np.float32)},
            tw.LaunchError,
            r"scale_a.*row of a, of shape \(4,\) or \(4, 1\)",
        ),
        (
            {"scale_b": np.ones((5, 1), np.float32)},
            tw.LaunchError,
            r"column of b, of shape \(5,\) or \(1, 5\)",
        ),
        ({"scale_b": np.ones(5)}, tw.DTypeError, "scale_b is f64; nearest legal choice: f32"),
        ({"scale_a": -(10**400)}, tw.LaunchError, r"scale_a=an integer of 1329 bits.*choice: scale_a=-3\.40"),
        ({"bias": np.ones(5, np.int32)}, tw.DTypeError, "bias is i32"),
        ({"bias": np.ones(4, np.float32)}, tw.LaunchError, "bias"),
        ({"out_dtype": "i32"}, tw.DTypeError, "out_dtype is i32; nearest"),
        ({"activation": "rely"}, tw.LaunchError, "relu"),
        ({"b": np.ones((6, 5))}, tw.DTypeError, "scaled_mm of f64"),
        ({"b": np.ones((6, 5), np.float32)}, tw.DTypeError, "f16 and f32"),
        ({"b": np.ones((6, 5), np.uint8)}, tw.DTypeError, r"of u8; .*tw.packed\(b, 'i4'\)"),
        (
            {"b": np.ones((5, 6), np.int8)},
            tw.LaunchError,
            "scaled_mm of .* K is 6 in a and 5 in b; nearest: b.T",
        ),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_in_its_terms(change: dict[str, Any], error: Any, message: str) -> None:
    given = {"a": A, "b": B, **change}
    with pytest.raises(error, match=message):
        tw.scaled_mm(given.pop("a"), given.pop("b"), **given)


def test_results_share_no_memory_with_what_is_read() -> None:
    a = np.ones((4, 4), np.float16)
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.scaled_mm(a, a, a)


@pytest.mark.parametrize(
    ("a", "b", "multiplied"),
    [("f16", "f8e4m3", "f16"), ("i8", "bf16", "bf16"), ("i8", "f8e5m2", "f16"), ("i8", "i8", "i8")],
)
def test_two_dtypes_are_multiplied_as_one_that_holds_both(a: str, b: str, multiplied: str) -> None:
    assert multiplied_as(tw.dtype(a), tw.dtype(b)) == tw.dtype(multiplied)
    assert all(multiplied_as(kind, kind) == kind for kind in OPERANDS)


def test_fp8_is_widened_where_a_gpu_multiplies_it_badly() -> None:
    nt, nn = (describe(np.ones((4, 8), tw.f8e4m3.numpy).T), describe(np.ones((8, 4), tw.f8e4m3.numpy)))
    a, half = describe(np.ones((2, 8), tw.f8e4m3.numpy)), describe(np.ones((2, 8), np.float16))
    gpu, host = CUDA, CPU
    for arch, b, expected in (("sm_90a", nt, "f8e4m3"), ("sm_90a", nn, "f16"), ("sm_89", nt, "f16")):
        assert multiplied_on(a, b, gpu, gpu.architecture(arch)) == tw.dtype(expected)
        other = replace(b, dtype=tw.f8e5m2)
        assert multiplied_on(a, other, gpu, gpu.architecture(arch)) == tw.dtype(expected)
        assert multiplied_on(half, b, gpu, gpu.architecture(arch)) == tw.f16
        assert multiplied_on(a, b, host, host.architecture("x86-64-v3")) == tw.f8e4m3
        unknown = [replace(one, dtype=tw.f8e4m3fnuz) for one in (a, b)]  # to NVIDIA's GPUs
        assert multiplied_on(*unknown, gpu, gpu.architecture(arch)) == tw.f16


@pytest.mark.parametrize(
    ("arch", "kind", "other", "multiplied"),
    [
        ("gfx942", "f8e4m3fnuz", "f8e4m3fnuz", "f8e4m3fnuz"),
        ("gfx942", "f8e4m3fnuz", "f8e5m2fnuz", "f16"),
        ("gfx942", "f8e4m3", "f8e4m3", "f16"),
        ("gfx950", "f8e5m2", "f8e5m2", "f8e5m2"),
        ("gfx1151", "f8e4m3fnuz", "f8e4m3fnuz", "f16"),
    ],
)
def test_amd_multiplies_two_of_fp8_as_they_are_where_it_can(
    arch: str, kind: str, other: str, multiplied: str
) -> None:
    """Operands in any layout work: those not along K are transposed when they are loaded."""
    a, b = (describe(np.ones((8, 8), tw.dtype(name).numpy)) for name in (kind, other))
    assert multiplied_on(a, b, HIP, HIP.architecture(arch)) == tw.dtype(multiplied)


@pytest.mark.parametrize("rows", [16, 512])
@pytest.mark.parametrize(("a", "b"), [("f8e4m3", "f8e5m2"), ("f8e5m2", "f8e4m3")])
def test_both_kinds_of_fp8_are_multiplied_as_they_are_on_hopper(a: str, b: str, rows: int) -> None:
    given = [tw.like(a, rows, 4096), tw.like(b, (4096, 1024), order="F"), tw.like("f16", rows, 1024)]
    held = np.ones((2, 16), tw.dtype(a).numpy), np.ones((8, 16), tw.dtype(b).numpy).T
    multiplied = multiplied_on(*(describe(one) for one in held), CUDA, CUDA.architecture("sm_90a"))
    kernel = scaled(0).bind(multiplied=multiplied, terms=frozenset(), activation=None)
    row, line = tw.like("f32", rows), tw.like("f32", 1024)
    made = kernel.compile(*given[:2], row, line, line, given[2], 1.0, target="cuda", arch="sm_90a")
    assert made.schedule is not None
    atom = made.schedule.atom
    assert (atom.instruction, {atom.a_dtype, atom.b_dtype}) == ("wgmma", {tw.dtype(a), tw.dtype(b)})
    assert made.schedule.promote
    assert made.resources["spill_store_bytes"] == 0
    assert "serialized_wgmma" not in made.resources


@pytest.mark.parametrize(
    ("out", "tile", "promote"), [("bf16", (128, 256, 256), 1), ("f8e4m3", (128, 128, 128), 4)]
)
def test_many_rows_of_fp8_promote_slices_of_deep_tiles(
    out: str, tile: tuple[int, int, int], promote: int
) -> None:
    """Storing a whole slice of fp8 at once would spill."""
    m, n, k = 1024, 4096, 4096
    terms = frozenset({"scale_a", "scale_b", "bias"})
    kernel = scaled(0).bind(multiplied=tw.f8e4m3, terms=terms, activation=None)
    given = [tw.like("f8e4m3", m, k), tw.like("f8e4m3", k, n, order="F")]
    given += [*(tw.like("f32", extent) for extent in (m, n, n)), tw.like(out, m, n)]
    made = kernel.compile(*given, 1.0, target="cuda", arch="sm_90a")
    assert made.schedule is not None
    assert (made.schedule.tile, made.schedule.promote) == (tile, promote)
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    assert "serialized_wgmma" not in made.resources


@pytest.mark.parametrize(("rows", "wide", "narrow"), [(16, "f16", "f8e4m3"), (4096, "bf16", "i8")])
def test_one_kernel_on_hopper_widens_in_registers(rows: int, wide: str, narrow: str) -> None:
    m, n, k = rows, 4096, 4096
    terms = frozenset({"scale_a", "scale_b", "bias"})
    kernel = scaled(0).bind(multiplied=tw.dtype(wide), terms=terms, activation="silu")
    given = [tw.like(wide, m, k), tw.like(narrow, k, n, order="F"), *(tw.like("f32", e) for e in (m, n, n))]
    made = kernel.compile(*given, tw.like(wide, m, n), 1.0, target="cuda", arch="sm_90a")
    assert made.schedule is not None
    assert (made.schedule.staging, made.schedule.atom.instruction) == ("tma", "wgmma")
    assert made.schedule.swap_ab
    assert made.resources["spill_store_bytes"] == 0
    assert "serialized_wgmma" not in made.resources


@pytest.mark.parametrize(
    ("along", "rows", "tile"),
    [
        ("k", 1, (48, 32, 64)),
        ("k", 6, (48, 32, 64)),
        ("k", 7, None),
        ("n", 48, (48, 512, 64)),
        ("n", 49, None),
    ],
)
def test_few_rows_by_narrow_weights_take_shallow_tiles_on_processors(
    along: str, rows: int, tile: tuple[int, int, int] | None
) -> None:
    rng = np.random.default_rng(0)
    a, weights = drawn(rng, (rows, 130), "f16"), drawn(rng, (1030, 130), "f8e4m3")
    b = weights.T if along == "k" else np.ascontiguousarray(weights.T)
    scale, bias, out = (
        np.float32(rng.random(1030)),
        np.float32(rng.random(1030)),
        np.zeros((rows, 1030), np.float16),
    )
    kernel = scaled(0).bind(multiplied=tw.f16, terms=frozenset({"scale_b", "bias"}), activation=None)
    question = kernel.question(a, b, scale[:1].repeat(rows), scale, bias, out, 1.0, target="cpu")
    assert question is not None
    first = next(proposals(replace(question, processors=2)))
    assert (first.schedule.tile == tile) == (tile is not None)
    assert (first.schedule.block_k == 64) == (tile is not None)
    made = tw.scaled_mm(a, b, scale_b=scale, bias=bias, schedule=first.schedule, target="cpu")
    exact = a.astype(float) @ b.astype(float) * scale + bias
    sizes = np.abs(a.astype(float)) @ np.abs(b.astype(float)) * scale + bias
    assert (np.abs(made - exact) <= 2.0**-11 * np.abs(exact) + 134 * 2.0**-24 * sizes + 2.0**-25).all()


def test_sums_of_many_bytes_do_not_wrap() -> None:
    depth = 140000
    a = np.full((1, depth), -128, np.int8)
    made = tw.scaled_mm(a, a.T, scale_b=np.float32(2.0**-20), target="cpu")
    assert abs(made.item() - depth / 64) <= depth / 64 * 2.0**-16
    short = describe(np.empty((1, 1000), np.int8)), describe(np.empty((1000, 1), np.int8))
    assert multiplied_on(*short, CPU, CPU.architecture("x86-64-v3")) == tw.i8
    with pytest.raises(
        tw.LaunchError, match="sums of 140000 products of i8 may overflow the i32 accumulator"
    ):
        tw.einsum("ij,jk->ik", a, a.T, out_dtype="i8", saturate=True, target="cpu")
    for words in ({"saturate": True}, {"activation": "relu"}):
        with pytest.raises(tw.LaunchError, match="einsum: sums of 140000 products"):
            tw.einsum("ij,jk->ik", a, a.T, **words, target="cpu")
    for more in ({"out_dtype": "f32"}, {"activation": "relu"}):
        with pytest.raises(tw.LaunchError, match="matmul: sums of 140000 products"):
            tw.matmul(a, a.T, **more, target="cpu")
    assert tw.einsum("ij,jk->ik", a[:, :131071], a.T[:131071], target="cpu").item() == 131071 * 2**14


@pytest.mark.parametrize("scale", [1e20, 1e-25, 1e200, 1e-200])
def test_scales_that_are_numbers_have_a_product_that_is_one(scale: float) -> None:
    a = np.full((1, 4), 1e-15 if scale > 1 else 1e15, np.float32)
    beyond = "overflows" if scale > 1 else "underflows"
    fits = 1e-38 < scale < 1e38
    bound = re.escape(str(float(np.finfo(np.float32).max if scale > 1 else np.finfo(np.float32).tiny)))
    nearest = rf"which {beyond} f32; nearest legal choice: "
    with pytest.raises(
        tw.LaunchError, match=f"scale_a times scale_b is .*, {nearest}{'arrays' if fits else bound}"
    ):
        tw.scaled_mm(a, a.T, scale_a=scale, scale_b=scale, target="cpu")
    if not fits:
        with pytest.raises(tw.LaunchError, match=f"scaled_mm: scale_b is -.*, {nearest}-{bound}"):
            tw.scaled_mm(a, a.T, scale_b=-scale, target="cpu")
    unscaled = tw.scaled_mm(a, a.T, scale_a=1e-50, scale_b=1e50, target="cpu").item()
    assert abs(unscaled / (4 * float(a[0, 0]) ** 2) - 1) < 1e-6
    if not fits:  # no number of f32 either
        return
    one = np.full(1, scale, np.float32)
    made = tw.scaled_mm(a, a.T, scale_a=one, scale_b=one, target="cpu").item()
    assert abs(made / (4 * float(a[0, 0]) ** 2 * scale**2) - 1) < 1e-6


def _kinds_of_scales(k: int, n: int, m: int) -> dict[str, tuple[Any, dict[str, Any]]]:
    """Return weights (K, N), and their scales for columns, for groups and for blocks."""
    rng = np.random.default_rng(k + n)
    codes = tw.packed(tw.pack(rng.integers(-8, 8, (n, k)), tw.i4).T, tw.i4)
    wide = rng.standard_normal((k, n)).astype(np.float16)
    groups = rng.uniform(0.5, 1, (k // 32, n)).astype(np.float16)
    blocks = np.ones((m, -(-k // 128)), np.float32)
    return {
        "columns": (wide.astype(tw.f8e4m3.numpy), {"scale_b": rng.uniform(0.5, 1, n).astype(np.float32)}),
        "groups": (codes, {"scale_b": groups, "group": 32}),
        "blocks": (wide, {"scale_a": blocks}),
    }


@pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("scales", ["columns", "groups", "blocks"])
def test_k_is_split(scales: str, target: str) -> None:
    """Every partition gives the sums of the whole up to rounding, which is far less than one product."""
    a = np.random.default_rng(3).standard_normal((7, 384)).astype(np.float16)
    b, words = _kinds_of_scales(384, 40, 7)[scales]
    there = {
        name: device_put(one, target) if isinstance(one, np.ndarray) else one for name, one in words.items()
    }
    if isinstance(b, np.ndarray):
        held = device_put(b, target)
    else:  # the bytes of packed weights, (N, K / 2)
        held = tw.packed(device_put(np.ascontiguousarray(b.array.T), target).T, tw.i4)
    how: list[dict[str, Any]] = [
        {"split_k": 3},
        {"split_k": "auto"},
        {"split_k": 2, "reduction": "turnstile"},
    ]
    given = device_put(a, target), held
    whole = device_get(tw.scaled_mm(*given, **there, out_dtype="f32", target=target))
    if scales != "blocks":
        how.append({"split_k": "stream"})
    elif target == "reference":  # whose tiles take several shares
        with pytest.raises(tw.LaunchError, match='nearest legal choice: split_k="auto"'):
            tw.scaled_mm(*given, **there, split_k="stream", target=target)
    for one in (*how, {"batch_invariant": True}):
        made = device_get(tw.scaled_mm(*given, **there, **one, out_dtype="f32", target=target))
        assert np.abs(made - whole).max() < 1e-5 * np.abs(whole).max(), one


@pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("scales", ["columns", "blocks"])
def test_the_bits_of_a_row_do_not_depend_on_the_others(scales: str, target: str) -> None:
    a = np.random.default_rng(3).standard_normal((300, 512)).astype(np.float16)
    b, words = _kinds_of_scales(512, 40, 300)[scales]
    bits = set()
    for rows in (1, 5, 64, 300):
        own = {name: one[:rows] if name == "scale_a" else one for name, one in words.items()}
        own = {name: device_put(np.ascontiguousarray(one), target) for name, one in own.items()}
        given = (device_put(np.ascontiguousarray(one), target) for one in (a[:rows], b))
        made = tw.scaled_mm(*given, **own, out_dtype="f32", batch_invariant=True, target=target)
        bits.add(device_get(made)[0].tobytes())
    assert len(bits) == 1


def test_a_schedule_says_itself_how_k_is_split() -> None:
    a = np.ones((8, 8), np.float16)
    with pytest.raises(tw.LaunchError, match="scaled_mm: schedule= already fixes the split of K"):
        tw.scaled_mm(a, a, schedule=CASES["split"].schedule, split_k=2, target="reference")


@TARGETS
def test_a_scale_of_0_is_the_plan_of_no_other_scale(target: str) -> None:
    """A replay of a call with scale_a=0 once served other scales, and returned zeros."""
    rng = np.random.default_rng(4)
    a, b, c = whole(rng, (4, 6), "f32"), whole(rng, (6, 7), "f32"), whole(rng, (6, 7), "f32")
    for scale in (0.0, 2.0, 0.0, 3.0):
        words = {"scale_a": scale, "target": target}
        assert np.array_equal(tw.scaled_mm(a, b, **words), scale * (a @ b))
        found = tw.gated_matmul(a, b, c, activation="relu", **words)
        assert np.array_equal(found, np.maximum(scale * (a @ b), 0) * (scale * (a @ c)))
