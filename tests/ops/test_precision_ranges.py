"""The bounds of docs/precision.md hold for numbers of all sizes: denormal, largest, infinite, NaN."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.functions.conversions import keep_fraction
from tilewright.ops.wanted import HALVES_OF

MOST = np.finfo(np.float32).max

OF_HALVES = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2), stages=3, staging="cp_async", promote=1)
"""By which also the reference multiplies halves."""

BY_PANELS = tw.Schedule(
    tw.atoms.fma("f16", acc="f32", lanes=(1, 1), each=(6, 16)), (48, 32, 64), staging="panels"
)
"""By which a processor does."""

CUT_OFF = tw.Schedule(
    tw.atoms.wgmma("f32", 32), (64, 32, 32), stages=3, staging="tma", roles="cooperative", groups=1
)
"""By which operands are multiplied as they lie, and cut off."""

WAYS = {
    ("reference", "exact"): None,
    ("reference", "tf32"): None,
    ("reference", "tf32, cut off"): CUT_OFF,
    ("reference", "f32"): OF_HALVES,
    ("reference", "f16"): replace(OF_HALVES, promote=0),
    ("cpu", "exact"): None,
    ("cpu", "tf32"): None,
    ("cpu", "f32"): None,
    ("cpu", "f16"): BY_PANELS,
}
"""A target and a precision, and the schedule that asks for it."""


def product(a: Any, b: Any, target: str, way: str) -> Any:
    """Return the product of real or complex numbers; both parts are in one array."""
    schedule = None if (target, np.iscomplexobj(a)) == ("cpu", True) else WAYS[target, way]
    if way == "tf32, cut off":  # along K, as it must be
        b = np.asfortranarray(b)
        if np.iscomplexobj(a):
            a, b = ((one.real.copy("K"), one.imag.copy("K")) for one in (a, b))
    with np.errstate(all="ignore"):
        made = tw.matmul(a, b, precision=way.split(",")[0], schedule=schedule, target=target)
    return made[0] + 1j * made[1] if isinstance(made, tuple) else made


EXPONENTS = {
    "any": ((-149, 60), (-149, 60)),
    "denormal x large": ((-149, -127), (60, 127)),
    "denormal x 1": ((-149, -127), (-2, 2)),
    "largest x small": ((127, 127), (-12, -8)),
    "largest x denormal": ((120, 127), (-149, -120)),
    "to denormal": ((-72, -68), (-72, -60)),
}
"""Of the numbers of A, and of those of B."""


def drawn(rng: np.random.Generator, shape: tuple[int, int], ends: tuple[int, int]) -> Any:
    """Return numbers with exponents in a range, including the least and the largest number."""
    sizes = (1 + rng.random(shape)) * np.exp2(rng.integers(ends[0], ends[1] + 1, shape).astype(float))
    sizes[0, 0], sizes[-1, -1] = 2.0 ** ends[0], 2.0 ** (ends[1] + 1)
    return (rng.choice([-1, 1], shape) * np.minimum(sizes, MOST)).astype(np.float32)


def as_real(a: Any, b: Any) -> list[tuple[Any, Any]]:
    """Return the real products that make both parts of a complex one, or one real product."""
    if not np.iscomplexobj(a):
        return [(a.astype(np.float64), b.astype(np.float64))]
    wide = [(one.real.astype(np.float64), one.imag.astype(np.float64)) for one in (a, b)]
    (re, im), (b_re, b_im) = wide
    return [
        (np.hstack([re, -im]), np.vstack([b_re, b_im])),
        (np.hstack([re, im]), np.vstack([b_im, b_re])),
    ]


PERIOD = 128
"""Places of K after which ``"f32"`` adds its sums to others."""


def sums_of(way: str, depth: int, parts: int = 1) -> float:
    """Return the loss of tensor cores in sums over K (two products per index if complex), in 2**-24."""
    if way == "f32":
        return 2 * parts * min(depth + 15, PERIOD) + depth / PERIOD + 1
    return parts * (2 / 3 * (depth + 15) if way == "f16" else 5 / 6 * (depth + 7))


@pytest.mark.parametrize("depth", [1, 16, 19, 100, 128, 129, 768, 5000])
def test_what_the_page_says_of_sums_follows_from_what_the_atoms_keep(depth: int) -> None:
    u, sums = 2.0**-24, {atom: atom.sums for atom in (tw.atoms.MMA_F16, tw.atoms.MMA_TF32)}
    assert sums[tw.atoms.MMA_F16] == tw.atoms.wgmma("f16", 64).sums
    assert sums[tw.atoms.MMA_TF32] == tw.atoms.wgmma("f32", 64).sums
    of_f16, of_tf32 = (one.lost(depth, tw.f32) / u for one in sums.values())
    assert of_f16 <= sums_of("f16", depth)
    assert of_tf32 <= sums_of("tf32", depth)
    a_period = 3 * sums[tw.atoms.MMA_F16].lost(min(depth, PERIOD), tw.f32) / u
    added = -(-depth // PERIOD) - 1
    assert (a_period + added) * (1 + 2.0**-9) <= sums_of("f32", depth), "two products of three are 2**-11"


def bound_of(way: str, a: Any, b: Any, target: str = "cuda", parts: int = 1) -> Any:
    """Return the error bound of an element by docs/precision.md; complex numbers have 2 K columns."""
    left, right, depth = np.abs(a), np.abs(b), a.shape[1]
    sizes, sums = left @ right, (left.sum(1, keepdims=True), right.sum(0, keepdims=True))
    tops = left.max(1, keepdims=True), right.max(0, keepdims=True)
    of_rows = tops[0] * sums[1] + tops[1] * sums[0]
    on_tensor_cores = target != "cpu" and way != "exact"
    added = sums_of(way.split(",")[0], depth // parts, parts) if on_tensor_cores else depth + 1
    bound = added * 2.0**-24 * sizes + (depth + 1) * 2.0**-150
    if way.startswith("tf32"):
        last = -9 if way.endswith("cut off") else -10
        bound += 2.0**last * sizes + 2.0 ** (last - 127) * (sums[0] + sums[1])
    elif way in HALVES_OF:
        bound += (12 * 2.0**-24 if way == "f32" else 2.0**-10) * sizes + 2.0**-38 * of_rows
    if on_tensor_cores:  # zeros and denormal factors have the exponent of the least normal number
        bound += 2.0**-44 * of_rows if way in HALVES_OF else 2.0**-147 * (sums[0] + sums[1])
    return bound


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize("kind", EXPONENTS)
@pytest.mark.parametrize(("target", "way"), WAYS)
def test_numbers_of_all_sizes(target: str, way: str, kind: str, is_complex: bool) -> None:
    rng, made = np.random.default_rng(0), []
    for shape, ends in zip(((37, 19), (19, 41)), EXPONENTS[kind], strict=True):
        parts = [drawn(rng, shape, ends) for _ in range(2)]
        made.append((parts[0] + 1j * parts[1]).astype(np.complex64) if is_complex else parts[0])
    found = product(*made, target, way)
    parts = [found.real, found.imag] if is_complex else [found]
    for (left, right), part in zip(as_real(*made), parts, strict=True):
        assert np.isfinite(part).all()
        ratio = np.abs(part - left @ right) / bound_of(way, left, right, target, 1 + is_complex)
        assert (ratio <= 1).all(), f"{ratio.max():.3} of the bound"


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize(("target", "way"), WAYS)
def test_the_largest_number_does_not_become_infinite(target: str, way: str, is_complex: bool) -> None:
    a = np.array([[MOST, 0], [-MOST, 0], [0, MOST], [0, 0]], np.float32)
    b = np.array([[2.0**-20, 0, -0.5], [0, 1, 2.0**-149]], np.float32)
    b *= np.float32(0.99) if way == "f16" else 1  # its result may be nearer to 2**128
    want = a.astype(np.float64) @ b
    kind = np.complex64 if is_complex else np.float32
    made = product(a.astype(kind), b.astype(kind), target, way)
    np.testing.assert_allclose(made, want, rtol=2.0**-9, atol=2.0**-136 * float(MOST))


@pytest.mark.parametrize("is_complex", [False, True])
@pytest.mark.parametrize(("target", "way"), WAYS)
def test_infinities_and_nan_stay_in_their_rows_and_columns(target: str, way: str, is_complex: bool) -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.random(shape, np.float32) + 1 for shape in ((20, 40), (40, 24)))
    a[3, 5], a[7, 2], b[4, 13] = np.inf, np.nan, -np.inf
    if is_complex:
        a, b = a.astype(np.complex64), b.astype(np.complex64)
    made = product(a, b, target, way)
    touched = np.zeros(made.shape, bool)
    touched[[3, 7]], touched[:, 13] = True, True
    assert np.isfinite(made[~touched]).all()
    assert not np.isfinite(made[touched]).any()
    assert np.isnan(made[7]).all()
    if way not in HALVES_OF and not is_complex:
        assert (made[3, np.arange(24) != 13] == np.inf).all()


def test_tf32_ends_below_the_largest_number() -> None:
    """Ties go away from zero, except to infinity; denormal numbers are multiples of 2**-136."""
    end = 2.0**128 - 2.0**117
    given = np.float32([MOST, end + 2.0**116, end + 2.0**116 - 2.0**104, 2.0**-137, 2.0**-138, 3 * 2.0**-137])
    assert keep_fraction(given, 10).tolist() == [end, end, end, 2.0**-136, 0, 2.0**-135]
    assert keep_fraction(-given, 10).tolist() == [-end, -end, -end, -(2.0**-136), 0, -(2.0**-135)]
    assert keep_fraction(given, 10, "truncate").tolist() == [end, end, end, 0, 0, 2.0**-136]


@pytest.mark.parametrize("target", ["reference", "cpu"])
def test_each_target_rounds_the_largest_numbers_alike(target: str) -> None:
    bits = np.concatenate([np.arange(0x7F7F_C000, 0x7F80_0001, 0x100), np.arange(0x7F7F_EFFF, 0x7F7F_F002)])
    x = bits.astype(np.uint32).view(np.float32)[:, None]
    small = np.float32([[2.0**-100, -(2.0**-100)]])
    made = tw.matmul(x, small, precision="tf32", target=target)
    np.testing.assert_array_equal(made, keep_fraction(x, 10) * small)


BULK = tw.Schedule(
    tw.atoms.wgmma("f16", 64),
    (128, 64, 64),
    stages=2,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=4,
    epilogue="staged",
    promote=2,
)


def least_favourable(depth: int, size: float) -> tuple[Any, Any]:
    """Return a large product followed by small equal ones; each of these loses the most bits."""
    row = np.full(depth, np.float32(size) * np.float32(1 + 2**-11.5), np.float32)
    row[::PERIOD] = 1
    return np.tile(row, (64, 1)), np.tile(row, (64, 1)).T


@pytest.mark.parametrize("depth", [64, 1280])
@pytest.mark.parametrize("schedule", [replace(OF_HALVES, promote=4), BULK], ids=["mma.sync", "wgmma"])
def test_sums_are_promoted_before_they_lose_too_much(schedule: tw.Schedule, depth: int) -> None:
    """The worst numbers are within the bound, and with a longer period they exceed it."""
    worst = {}
    for promote in (schedule.promote, depth // schedule.block_k):
        ratios = []
        for size in (2.0**-6.15, 2.0**-7.15):
            a, b = least_favourable(depth, size)
            a[0, ::PERIOD], b[::PERIOD, 0] = 0, 0
            a[0, 0], b[0, 0] = 1, 1
            made = tw.matmul(
                a, b, precision="f32", schedule=replace(schedule, promote=promote), target="reference"
            )
            ((left, right),) = as_real(a, b)
            ratios.append((np.abs(made - left @ right) / bound_of("f32", left, right)).max())
        worst[promote] = max(ratios)
    assert worst[schedule.promote] <= 1
    assert worst[schedule.promote] > 0.1, "these numbers lose too little to show anything"
    if depth > PERIOD:
        assert worst[depth // schedule.block_k] > 1, "a broken period would go unnoticed"


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt"])
@pytest.mark.parametrize("kind", EXPONENTS)
@pytest.mark.parametrize("precision", ["exact", "tf32", "f32", "f16"])
@pytest.mark.parametrize("extent", [48, 720])
def test_a_gpu_multiplies_numbers_of_all_sizes(precision: str, kind: str, layout: str, extent: int) -> None:
    """Small products have no prepass, large ones have one."""
    from tilewright.runtime.cuda import CUDA_DRIVER
    from tilewright.runtime.gpu_memory import DeviceArray

    rng = np.random.default_rng(2)
    a, b = (
        drawn(rng, shape, ends)
        for shape, ends in zip(((extent, 768), (768, extent + 4)), EXPONENTS[kind], strict=True)
    )
    b = b if layout == "nn" else b.T.copy().T
    there = [DeviceArray.of(one) for one in (a, b, np.zeros((extent, extent + 4), np.float32))]
    tw.matmul(*there[:2], there[2], precision=precision)
    CUDA_DRIVER.synchronize()
    ((left, right),) = as_real(a, b)
    want, way = left @ right, "tf32, cut off" if precision == "tf32" else precision
    bound = bound_of(way, left, right)
    if kind == "largest x small":  # sums of 768 of them may be beyond the largest number
        bound = np.where(np.abs(want) + bound < MOST / 2, bound, np.inf)
    off = np.abs(there[2].host() - want)
    assert (off <= bound).all(), f"{np.nanmax(off / bound):.3} of the bound"
