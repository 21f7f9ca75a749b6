"""`einsum` with scales: a number, one element, or one for each index of an operand's axes in the result."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
from tests.turns import calls_on

import tilewright as tw
from tilewright.ops import einsum as contractions
from tilewright.ops import launching
from tilewright.testing import device_get, device_put
from tilewright.tune.einsum_trial import Contracted, EinsumTrial

from .test_einsum import HEADS, whole
from .test_halves import SYNC

Array = np.ndarray[Any, Any]
ALL_TARGETS = pytest.mark.parametrize(
    "target", ["reference", "cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
)
CONTRACTIONS = {
    # subscripts, shapes of the operands, axes of the scales in the result: einsum of ones repeats them
    "a product": ("mk,kn->mn", (35, 41), (41, 70), "m", "n"),
    "heads": (HEADS, (2, 35, 17), (17, 3, 4), "bs", "hd"),
    "a turned result": ("ab,cb->ca", (35, 17), (66, 17), "a", "c"),
    "batches": ("bij,bjk->bik", (3, 34, 5), (3, 5, 33), "bi", "bk"),
    "a permuted view": ("abcd,dcef->bfae", (3, 4, 5, 6), (6, 5, 2, 7), "ab", "ef"),
    "an outer product": ("i,j->ij", (33,), (34,), "i", "j"),
    "rows of batches": ("bi,bi->b", (35, 4), (35, 4), "b", "b"),
    "a diagonal": ("aab,bc->ac", (33, 33, 4), (4, 5), "a", "c"),
    "no products": ("mk,kn->mn", (5, 0), (0, 6), "m", "n"),
}


def powers(rng: np.random.Generator, shape: tuple[int, ...], kind: str = "f32") -> Array:
    """Return powers of 2 with both signs, with gaps between them."""
    held = 2.0 ** rng.integers(-2, 3, (*shape, 2)) * rng.choice([-1, 1], (*shape, 2))
    return held.astype(tw.dtype(kind).numpy)[..., 0]


def scaled(product: Array, axes: str, result: str, scale: Array) -> Array:
    """Return the product times a scale along some axes of the result."""
    index = tuple(slice(None) if axis in axes else None for axis in result)
    order = sorted(range(len(axes)), key=lambda at: result.index(axes[at]))
    return product * scale.astype(np.float64).transpose(order)[index]


@ALL_TARGETS
@pytest.mark.parametrize("name", CONTRACTIONS)
def test_scales_belong_to_the_axes_of_their_operand(name: str, target: str) -> None:
    """With whole numbers and powers of 2, every element equals NumPy's."""
    subscripts, shape_a, shape_b, of_a, of_b = CONTRACTIONS[name]
    result, rng = subscripts.split("->")[1], np.random.default_rng(len(name))
    a, b = whole(rng, shape_a, "f32"), whole(rng, shape_b, "f32")
    product = np.einsum(subscripts, a.astype(np.float64), b.astype(np.float64))
    extents = dict(zip(result, product.shape, strict=True))
    by_a, by_b = (powers(rng, tuple(extents[one] for one in axes)) for axes in (of_a, of_b))
    bias = whole(rng, product.shape, "f32")
    want = scaled(scaled(product, of_a, result, by_a), of_b, result, by_b)
    held = device_put(np.full((*product.shape[:-1], product.shape[-1] + 5), np.nan, np.float32), target)
    there = [device_put(one, target) for one in (a, b, by_a, by_b, bias)]
    scales = {"scale_a": there[2], "scale_b": there[3]}
    for _ in calls_on(target):
        made = tw.einsum(subscripts, *there[:2], held[..., 2:-3], **scales, target=target)
        assert np.array_equal(device_get(made), want)
    tw.einsum(subscripts, *there[:2], held[..., 2:-3], **scales, alpha=-0.5, bias=there[4], target=target)
    back = device_get(held)
    assert np.array_equal(back[..., 2:-3], -0.5 * want + bias)
    assert np.isnan(back[..., :2]).all()
    assert np.isnan(back[..., -3:]).all()
    tw.einsum(subscripts, *there[:2], held[..., 2:-3], scale_b=there[3], alpha=2, target=target)
    assert np.array_equal(device_get(held)[..., 2:-3], 2 * scaled(product, of_b, result, by_b))


@ALL_TARGETS
def test_shapes_of_scales_say_what_they_belong_to(target: str) -> None:
    rng = np.random.default_rng(2)
    a, b = whole(rng, (2, 7, 6), "f16"), whole(rng, (6, 3, 4), "f16")
    product = np.einsum(HEADS, a.astype(np.float64), b.astype(np.float64))
    rows, columns = powers(rng, (2, 7), "f16"), powers(rng, (3, 4), "bf16")
    by_rows, by_columns = rows[:, None, :, None].astype(np.float64), columns[None, :, None].astype(np.float64)
    there = [device_put(one, target) for one in (a, b)]
    for scale_a, scale_b, factor in (
        (2, 0.5, 1.0),
        (np.float32(3), columns, 3 * by_columns),
        (np.full((1, 1), 2, np.float16), columns[None], 2 * by_columns),
        (np.float32(2), None, 2.0),
        (rows[..., None], None, by_rows),
        (rows[:1], 2, 2 * by_rows[:1]),
        (rows[:, :1], columns[:1], by_rows[:, :, :1] * by_columns[:, :1]),
        (None, np.float32([4]), 4.0),
    ):
        given = [
            device_put(one, target) if isinstance(one, np.ndarray) else one for one in (scale_a, scale_b)
        ]
        words = {"scale_a": given[0], "scale_b": given[1], "out_dtype": "f32", "target": target}
        for _ in range(2):
            assert np.array_equal(device_get(tw.einsum(HEADS, *there, **words)), product * factor)


@ALL_TARGETS
@pytest.mark.parametrize("kind", ["f64", "f32", "f16", "bf16", "f8e4m3", "i8"])
def test_every_element_lies_under_the_bound_of_its_graph(
    kind: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    drawn = Contracted.drawn(HEADS, ((2, 35, 24), (24, 3, 20)), tw.dtype(kind), bias=False)
    wide = "f64" if kind == "f64" else "f32"
    drawn.arrays["scale_a"] = rng.uniform(-2, 2, (2, 35)).astype(tw.dtype(wide).numpy)
    drawn.arrays["scale_b"] = rng.uniform(0.01, 0.02, (3, 40)).astype(tw.dtype(wide).numpy)[:, ::2]
    drawn.arrays["out"] = np.full((2, 3, 35, 20), np.nan, tw.dtype(wide).numpy)
    trial = EinsumTrial(drawn, target, "silu", alpha=1.5)
    monkeypatch.setattr(launching, "_SAID", set())
    with (
        pytest.warns(tw.SlowWarning, match=f"{kind} is multiplied by scalar fma instructions")
        if target == "cuda" and kind == "f8e4m3"  # rows of b are not contiguous along K, as wgmma needs
        else nullcontext()
    ):
        trial.run()
    trial.verify().raise_if_wrong()
    given = {name: one.astype(np.float64) for name, one in drawn.arrays.items()}
    factor = 1.5 * given["scale_a"][:, None, :, None] * given["scale_b"][None, :, None]
    sums = np.einsum(HEADS, given["a"], given["b"]) * factor
    sizes = np.einsum(HEADS, abs(given["a"]), abs(given["b"])) * abs(factor)
    with np.errstate(over="ignore"):
        want = sums / (1 + np.exp(-sums))
    unit = 2.0 ** (-48 if kind == "f64" else -13 if kind.startswith("f8") else -18)
    # The slope of silu is below 1.1, and its own error is that of a few roundings.
    assert (np.abs(trial.result() - want) <= unit * (1.1 * sizes + np.abs(want) + 2.0**-6)).all()


@ALL_TARGETS
@pytest.mark.parametrize("given", ["alpha and both", "both", "alpha and rows", "alpha and columns"])
def test_scales_of_any_size_are_combined_without_leaving_f32(given: str, target: str) -> None:
    """If the result is a normal number of f32, the only errors are the roundings of a few products."""
    rng = np.random.default_rng(len(given))
    m, n, k, held = 31, 29, 12, 0
    for size in (-60, -1, 0, 40, 100):
        a = (rng.integers(1, 5, (m, k)) * 2.0**size).astype(np.float32)
        b = rng.integers(1, 4, (k, n)).astype(np.float32)
        rows, columns = ((2.0 ** rng.uniform(-149, 127.4, extent)).astype(np.float32) for extent in (m, n))
        rows[:2], columns[:2] = (2.0**-149, 0), (-np.finfo(np.float32).max, 2.0**-126)
        scales = {"scale_a": rows, "scale_b": columns}
        if "both" not in given:
            del scales["scale_b" if "rows" in given else "scale_a"]
        alpha = float(np.float32(2.0 ** rng.uniform(-120, 120))) if "alpha" in given else 1.0
        there = {name: device_put(one, target) for name, one in scales.items()}
        operands = [device_put(one, target) for one in (a, b)]
        made = device_get(tw.einsum("mk,kn->mn", *operands, alpha=alpha, **there, target=target))
        want = alpha * (a.astype(np.float64) @ b)
        want = (
            want * scales.get("scale_a", np.ones(1))[:, None].astype(np.float64) * scales.get("scale_b", 1.0)
        )
        size_of = np.abs(want)
        is_normal = (size_of <= np.finfo(np.float32).max) & ((size_of >= 2.0**-126) | (size_of == 0))
        held += is_normal.sum()
        assert (np.abs(made - want) <= 2.0**-20 * size_of)[is_normal].all()
    assert held > m * n


@pytest.mark.parametrize("schedule", [SYNC, None], ids=["halves", "exact"])
def test_halves_of_f32_take_scales(schedule: tw.Schedule | None) -> None:
    rng = np.random.default_rng(4)
    a, b = whole(rng, (2, 35, 72), "f32"), whole(rng, (72, 2, 20), "f32")
    rows, columns = powers(rng, (2, 35)), powers(rng, (2, 20))
    want = np.einsum(HEADS, a, b) * rows[:, None, :, None] * columns[None, :, None]
    words = {"scale_a": rows, "scale_b": columns, "precision": "f32", "target": "reference"}
    assert np.array_equal(tw.einsum(HEADS, a, b, schedule=schedule, **words), want)


@pytest.mark.gpu
def test_halves_on_a_gpu_take_scales() -> None:
    rng = np.random.default_rng(5)
    a, b = whole(rng, (2, 350, 1003), "f32"), whole(rng, (1003, 6, 150), "f32")
    rows, columns = powers(rng, (2, 350)), powers(rng, (6, 150))
    want = np.einsum(HEADS, a, b, optimize=True) * rows[:, None, :, None] * columns[None, :, None]
    there = [device_put(one, "cuda") for one in (a, b, rows, columns)]
    contractions._PLANS.forget()
    for precision in ("f32", "tf32"):
        for _ in range(2):
            made = tw.einsum(HEADS, *there[:2], scale_a=there[2], scale_b=there[3], precision=precision)
            assert np.array_equal(device_get(made), want)


@ALL_TARGETS
def test_results_of_8_bits_saturate_after_the_scales(target: str) -> None:
    rng = np.random.default_rng(6)
    a, b = whole(rng, (40, 16), "i8"), whole(rng, (16, 33), "i8")
    rows = np.float32(2.0 ** rng.integers(-3, 4, 40))
    there = [device_put(one, target) for one in (a, b, rows)]
    made = tw.einsum("mk,kn->nm", *there[:2], scale_a=there[2], saturate=True, out_dtype="i8", target=target)
    want = np.einsum("mk,kn->nm", a.astype(np.int64), b.astype(np.int64)) * rows
    assert (np.abs(want) > 127).any()
    assert np.array_equal(device_get(made), np.clip(np.rint(want), -128, 127))


X, W = np.ones((2, 7, 6), np.float32), np.ones((6, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            {"scale_a": np.ones((3, 4), np.float32)},
            r"scale_a has shape \(3, 4\); nearest .*: a number, or an array of shape \(2, 7\) or \(2, 7, 1\)",
        ),
        ({"scale_a": np.ones((2, 7, 6), np.float32)}, r"scale_a has shape \(2, 7, 6\); nearest"),
        ({"scale_b": np.ones(4, np.float32)}, r"scale_b has shape \(4,\); .* \(3, 4\) or \(1, 3, 4\)"),
        ({"scale_a": 1e30, "scale_b": 1e30}, r"alpha times scale_a times scale_b=1.*e\+60 becomes infinite"),
        ({"scale_a": 10**400}, "scale_a=.*, which is beyond the range of f64; nearest"),
        ({"alpha": 2.0**100, "scale_a": 2.0**100}, "alpha times scale_a=1.*e.60 becomes infinite in f32"),
    ],
)
def test_scales_that_do_not_fit_are_refused(words: dict[str, Any], message: str) -> None:
    with pytest.raises(tw.LaunchError, match=message):
        tw.einsum(HEADS, X, W, **words, target="reference")


def test_scales_of_other_dtypes_are_refused() -> None:
    scale = np.ones((2, 7))
    with pytest.raises(tw.DTypeError, match="scale_a is f64; nearest legal choice: f32, f16, bf16"):
        tw.einsum(HEADS, X, W, scale_a=scale, target="reference")
    with pytest.raises(tw.DTypeError, match="scale_b is i32; nearest legal choice: f32, f16, bf16, f64"):
        tw.einsum(
            HEADS, X.astype("f8"), W.astype("f8"), scale_b=np.ones((3, 4), np.int32), target="reference"
        )
    ones = X.astype(np.int8), W.astype(np.int8)
    with pytest.raises(tw.DTypeError, match="scale_a: the result has fractions, and i32 cannot hold them"):
        tw.einsum(HEADS, *ones, scale_a=scale.astype(np.float32), target="reference")
    with pytest.raises(tw.LaunchError, match="scale_a with complex arrays; nearest legal choice: alpha="):
        tw.einsum(HEADS, X.astype("c8"), W.astype("c8"), scale_a=scale.astype("f4"), target="reference")
    out = np.ones((7, 7), np.float32)
    with pytest.raises(tw.LaunchError, match="out and scale_a"):
        tw.einsum("mk,kn->mn", out.copy(), out.copy(), out, scale_a=out[0], target="reference")
