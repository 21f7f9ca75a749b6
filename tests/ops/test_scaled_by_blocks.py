"""`scaled_mm` with scales of blocks of 128 places along K, on every target, element by element."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
from tilewright.ops.products import scaled_by_blocks

FP8 = ml_dtypes.float8_e4m3fn
Array = np.ndarray[Any, Any]
ON_ALL = pytest.mark.parametrize("target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def whole(rng: np.random.Generator, shape: tuple[int, ...], kind: Any) -> Array:
    """Return integers so small that all their sums and products, also with integer scales, are exact."""
    return rng.integers(-2, 3, shape).astype(kind)


def counts(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(1, 5, shape).astype(np.float32)


def spread(scale: Array | None, shape: tuple[int, ...]) -> Array | float:
    """Repeat scales to the shape of the scaled array."""
    if scale is None:
        return 1.0
    made = scale.astype(np.float64)
    for dim in (-2, -1):
        if made.shape[dim] not in (1, shape[dim]):
            made = made.repeat(128, dim).take(range(shape[dim]), dim)
    return made


def multiplied(a: Array, b: Array, target: str, **named: Any) -> Array:
    there = {name: tw.testing.device_put(one, target) for name, one in (("a", a), ("b", b))}
    for name in ("scale_a", "scale_b", "bias"):
        if isinstance(named.get(name), np.ndarray):
            named[name] = tw.testing.device_put(named[name], target)
    made = tw.scaled_mm(**there, **named, target=target)
    found: Array = tw.testing.device_get(made)
    return found


@pytest.mark.in_turns(4)
@ON_ALL
@pytest.mark.parametrize(
    ("scale_a", "scale_b"),
    [
        ((20, 3), (3, 2)),
        ((1, 3), (3, 136)),
        ((20, 1), (3, 2)),
        (None, (3, 2)),
        ((20, 3), None),
        ((20, 3), (1, 1)),
    ],
    ids=str,
)
def test_shapes_say_what_scales_belong_to(scale_a: Any, scale_b: Any, target: str) -> None:
    rng = np.random.default_rng(1)
    a, b = whole(rng, (20, 272), FP8), whole(rng, (136, 272), FP8).T
    scales = [None if one is None else counts(rng, *one) for one in (scale_a, scale_b)]
    made = multiplied(a, b, target, scale_a=scales[0], scale_b=scales[1], out_dtype="f32")
    wanted = (a.astype(float) * spread(scales[0], (20, 272))) @ (
        b.astype(float) * spread(scales[1], (272, 136))
    )
    assert made.shape == (20, 136)
    assert np.array_equal(made, wanted)


@pytest.mark.parametrize("scale_a", [(20, 0), (1, 0)], ids=str)
@pytest.mark.parametrize("scale_b", [(0, 2), (0, 136)], ids=str)
def test_without_k_there_are_no_blocks(scale_a: Any, scale_b: Any) -> None:
    a, b = np.zeros((20, 0), tw.f8e4m3.numpy), np.zeros((0, 136), tw.f8e4m3.numpy)
    scales = {"scale_a": np.zeros(scale_a, np.float32), "scale_b": np.zeros(scale_b, np.float32)}
    bias = np.arange(136, dtype=np.float32)
    made = multiplied(a, b, "reference", **scales, bias=bias, out_dtype="f32")
    assert np.array_equal(made, np.broadcast_to(bias, (20, 136)))


@ON_ALL
@pytest.mark.parametrize(
    ("kind", "other"), [(np.float16, FP8), (np.float16, np.int8), (np.int8, np.int8)], ids=str
)
def test_weights_that_are_widened(kind: Any, other: Any, target: str) -> None:
    rng = np.random.default_rng(2)
    a, b = whole(rng, (9, 144), kind), whole(rng, (40, 144), other).T
    scale_b, bias = counts(rng, 2, 1).astype(np.float16), counts(rng, 40)
    made = multiplied(
        a, b, target, scale_a=0.5, scale_b=scale_b, bias=bias, activation="relu", out_dtype="f32"
    )
    wanted = a.astype(float) @ (b.astype(float) * spread(scale_b, (144, 40))) * 0.5 + bias
    assert np.array_equal(made, np.maximum(wanted, 0))


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_blocks_of_rows_and_batches(target: str) -> None:
    rng = np.random.default_rng(3)
    a, b = whole(rng, (2, 130, 160), FP8), whole(rng, (160, 8), FP8)
    scale_a, scale_b = counts(rng, 2, 2, 2), counts(rng, 2, 8)
    made = tw.scaled_mm(a, b, scale_a=scale_a, scale_b=scale_b, out_dtype="f32", target=target)
    wanted = (a.astype(float) * spread(scale_a, (2, 130, 160))) @ (
        b.astype(float) * spread(scale_b, (160, 8))
    )
    assert np.array_equal(made, wanted)
    rows = counts(rng, 2, 130, 2)
    made = tw.scaled_mm(a, b, scale_a=rows, out_dtype="f32", target=target)
    assert np.array_equal(made, (a.astype(float) * spread(rows, (2, 130, 160))) @ b.astype(float))
    made = tw.scaled_mm(
        a[0, 0], b, scale_a=rows[0, 0], scale_b=counts(rng, 8), out_dtype="f32", target=target
    )
    assert made.shape == (8,)


def test_one_block_of_rows_is_no_number_for_each_row() -> None:
    """With K = 128 and 130 rows, two scales are for blocks, and 130 for rows."""
    rng = np.random.default_rng(4)
    a, b = whole(rng, (130, 128), FP8), whole(rng, (128, 8), FP8)
    for rows in (2, 130):
        scale = counts(rng, rows, 1)
        made = tw.scaled_mm(a, b, scale_a=scale, out_dtype="f32", target="cpu")
        assert np.array_equal(made, (a.astype(float) * spread(scale, (130, 128))) @ b.astype(float))


@ON_ALL
@pytest.mark.parametrize("sign", [1, -1], ids=["large by small", "small by large"])
@pytest.mark.parametrize("scale_b", [(2, 1), (2, 40)], ids=["blocks", "columns"])
@pytest.mark.parametrize(("kind", "size"), [(FP8, 0), (np.int8, 0), (np.float32, 90)], ids=str)
def test_only_the_product_of_two_scales_must_fit(
    kind: Any, size: int, scale_b: tuple[int, int], sign: int, target: str
) -> None:
    """A sum times one of its scales, and then the other, would leave f32."""
    rng = np.random.default_rng([size, *scale_b])
    # On Hopper the sum times `scale_a` must be a number of f32 too, where each column has a scale.
    ends = (95, 115) if target == "cuda" and scale_b[1] > 1 else (110, 126)
    a, b = whole(rng, (20, 144), kind), whole(rng, (40, 144), np.int8 if size else kind).T
    a = (a * kind(2.0**size)).astype(kind)
    scales = [
        np.exp2(by * rng.uniform(*ends, shape)).astype(np.float32)
        for by, shape in ((sign, (20, 2)), (-sign, scale_b))
    ]
    made = multiplied(a, b, target, scale_a=scales[0], scale_b=scales[1], out_dtype="f32")
    wide = [one.astype(np.float64) for one in (a, b)]
    wide = [one * spread(scale, one.shape) for one, scale in zip(wide, scales, strict=True)]
    # The sums of a block are exact; their scales are rounded once, and two blocks are added up.
    bound = 4 * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))
    assert (np.abs(made - wide[0] @ wide[1]) <= bound).all()


@pytest.mark.parametrize("shape", [(3, 3), (20, 2), (2, 2), (3,)], ids=str)
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    a, b = np.zeros((20, 272), FP8), np.zeros((272, 8), FP8)
    near, good = "one for each 128 elements along K", np.ones((3, 1), np.float32)
    with pytest.raises(tw.LaunchError, match=near):
        tw.scaled_mm(a, b, scale_a=np.ones(shape, np.float32), target="reference")
    with pytest.raises(tw.LaunchError, match=near):
        tw.scaled_mm(a, b, scale_a=np.ones(shape, np.float32), scale_b=good, target="reference")


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
def test_one_kernel_and_its_schedule(arch: str) -> None:
    """On Hopper fp8 uses wgmma and bulk copies, elsewhere it is widened to f16; nothing is spilled."""
    a, b = np.zeros((4096, 512), FP8), np.zeros((512, 512), FP8).T
    scales = np.ones((4096, 4), np.float32), np.ones((4, 4), np.float32)
    words = {"terms": frozenset({"scale_a", "scale_b"}), "activation": None, "shared": (1, 128)}
    multiplied_as = tw.f8e4m3 if arch == "sm_90a" else tw.f16
    out = np.empty((4096, 512), ml_dtypes.bfloat16)
    kernel = scaled_by_blocks(0).bind(multiplied=multiplied_as, **words)
    made = kernel.compile(a, b, *scales, scales[0][:, 0], out, 1.0, target="cuda", arch=arch)
    staging, atom = (made.schedule.staging, made.schedule.atom.instruction)
    assert (staging, atom) == (("tma", "wgmma") if arch == "sm_90a" else ("fragments", "mma.sync"))
    assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    assert "serialized_wgmma" not in made.resources


def test_slices_of_many_tiles_have_three_stages_and_copies_of_the_loop() -> None:
    given = [tw.like("f8e4m3", 4096, 4096), tw.like("f8e4m3", 4096, 4096, order="F")]
    given += [tw.like("f32", 4096, 32, order="F"), tw.like("f32", 32, 32, order="F"), tw.like("f32", 4096)]
    words = {"terms": frozenset({"scale_a", "scale_b"}), "activation": None, "shared": (1, 128)}
    for out in ("bf16", "f32", "f8e4m3"):
        kernel = scaled_by_blocks(0).bind(multiplied=tw.f8e4m3, **words)
        made = kernel.compile(*given, tw.like(out, 4096, 4096), 1.0, target="cuda", arch="sm_90a")
        assert (made.schedule.stages, made.schedule.buffers, made.schedule.unroll) == (3, 4, 4)
        assert "#pragma unroll 4\n" in made.source
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
