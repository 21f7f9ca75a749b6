"""Complex products of f32 by halves of 11 bits: halves are exact, products within a derived bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import compare_complex, planes
from tilewright.ops.complex_matmul import ComplexWanted, plan_complex
from tilewright.ops.complex_products import products_of_halves
from tilewright.ops.complex_splitting import PartsTiling, splitting_of_both
from tilewright.ops.complex_strategies import by_halves
from tilewright.ops.problem import problem_of
from tilewright.runtime.arrays import describe
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import ALIGNMENT, DeviceArray
from tilewright.schedule.choice import choose
from tilewright.schedule.resources import ScheduleOnMachine

from .complex_cases import poisoned

pytestmark = pytest.mark.in_turns(3)

BULK = tw.Schedule(
    tw.atoms.wgmma("f16", 64),
    (128, 64, 32),
    stages=3,
    staging="tma",
    roles="cooperative",
    groups=2,
    blocks=4,
    promote=1,
    epilogue="staged",
)
SYNC = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2), stages=3, staging="cp_async", promote=1)


def drawn(kind: str, shape: tuple[int, ...], order: str, seed: int) -> Any:
    """Return complex numbers of f32; each row has its own range, and there are gaps between rows."""
    rng = np.random.default_rng(seed)
    rows, depth = shape
    extents = (rows, depth + 3) if order == "n" else (depth, rows + 3)
    draw = rng.random if kind == "positive" else rng.standard_normal
    whole = draw((*extents, 2), np.float32).view(np.complex64)[..., 0]
    found = whole[:, :depth] if order == "n" else whole[:, :rows].T
    if kind == "wide":
        found *= np.exp2(rng.integers(-60, 60, (rows, 1))).astype(np.float32)
    return found


def operands(kind: str, shape: tuple[int, int, int], order: str) -> tuple[Any, Any]:
    """Return A and B; if ``kind`` is wide, rows of A and columns of B have different scales."""
    m, n, k = shape
    turned = "t" if order[1] == "n" else "n"
    return drawn(kind, (m, k), order[0], 0), drawn(kind, (n, k), turned, 1).T


def assert_right(
    a: Any, b: Any, d: Any, schedule: Any, conjugates: tuple[int, int] = (0, 0), **factors: Any
) -> None:
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    sides = [
        (re, -im if wanted else im) for (re, im), wanted in zip(map(planes, (a, b)), conjugates, strict=True)
    ]
    compare_complex(*sides, planes(d), **{"how": how, "halves": 2, **factors}).raise_if_wrong()


@pytest.mark.parametrize(("order", "packed"), [("nt", True), ("tn", False)])
def test_both_operands_are_split_as_near_as_they_say(order: str, packed: bool) -> None:
    arrays: list[Any] = []
    found = []
    for at, (rows, depth, kind) in enumerate([(19, 270, "wide"), (17, 270, "normal")]):
        x = drawn(kind, (rows, depth), order[at], at)
        x[3], x[4], x[5, 7], x[6, 8] = 0, x[7] * np.float32(1e-44), np.inf + 1j, 1 + 1j * np.nan
        halves = [np.full((depth, rows), np.nan, np.float16).T for _ in range(4)]
        unit = np.full(rows, np.nan, np.float32)
        given = [x.view(np.int64)] * 2 if packed else [x.real, x.imag]
        arrays += [*given, *halves, unit]
        found.append((x, halves, unit))
    tilings = [PartsTiling.of(270, turned=letter == "n", packed=packed) for letter in order]
    kernel = splitting_of_both(0, 0).bind(tilings=tuple(tilings))
    assert kernel(*arrays, target="reference").target == "reference"
    for x, halves, unit in found:
        assert np.array_equal(np.exp2(np.log2(unit)), unit), "powers of 2"
        sizes = np.abs(np.hstack([x.real, x.imag]))
        top = np.where(np.isfinite(sizes), sizes, 0).max(1, keepdims=True)
        for part, (high, low) in zip((x.real, x.imag), (halves[:2], halves[2:]), strict=True):
            seen = np.isfinite(part)
            with np.errstate(all="ignore"):
                total = (high.astype(np.float64) + low) * unit.astype(np.float64)[:, None] ** 2
                off = np.abs(total - part)
                bound = 2.0**-22 * np.abs(part) + 2.0**-38 * top.astype(np.float64) + 2.0**-151
            assert (off <= bound)[seen].all()
            np.testing.assert_array_equal(high[~seen].astype(np.float32), part[~seen])
            assert (low[~seen] == 0).all()


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(
    ("kind", "order", "conjugates", "schedule"),
    [
        ("normal", "tn", (1, 0), SYNC),
        ("positive", "nt", (0, 1), BULK),
        ("wide", "tt", (1, 1), SYNC),
    ],
)
def test_the_reference_multiplies_halves(
    kind: str, order: str, conjugates: tuple[int, int], schedule: tw.Schedule
) -> None:
    a, b = operands(kind, (66, 50, 72), order)
    out = poisoned((66, 50), tw.f32, "interleaved")
    flags = {"conjugate_a": bool(conjugates[0]), "conjugate_b": bool(conjugates[1])}
    made = tw.complex_matmul(a, b, out=out, precision="f32", schedule=schedule, target="reference", **flags)
    assert made is out
    assert_right(a, b, out, schedule, conjugates)
    with pytest.raises(tw.WrongResultError):
        assert_right(a[:, 1:], b[1:], out, schedule, conjugates)


@pytest.mark.parametrize(("kind", "order"), [("normal", "nn"), ("wide", "tt")])
def test_the_reference_multiplies_first_halves(kind: str, order: str) -> None:
    a, b = operands(kind, (66, 50, 72), order)
    out, schedule = poisoned((66, 50), tw.f32, "interleaved"), replace(SYNC, promote=0)
    tw.complex_matmul(a, b, out=out, precision="f16", schedule=schedule, target="reference")
    assert_right(a, b, out, schedule, halves=1)
    with pytest.raises(tw.WrongResultError):
        assert_right(a, b, out, schedule)
    with pytest.raises(tw.WrongResultError):
        assert_right(a[:, 1:], b[1:], out, schedule, halves=1)


def test_batches_planes_and_what_is_added() -> None:
    """A repeats along one dimension of the batches, B along the other; the sums are added to the result."""
    rng = np.random.default_rng(4)
    a = (rng.standard_normal((3, 1, 20, 40), np.float32), rng.standard_normal((3, 1, 20, 40), np.float32))
    b = rng.standard_normal((2, 40, 24, 2), np.float32).view(np.complex64)[..., 0]
    c = rng.standard_normal((20, 24, 2), np.float32).view(np.complex64)[..., 0]
    d = tw.complex_matmul(a, b, c, alpha=2j, beta=1 - 1j, precision="f32", schedule=SYNC, target="reference")
    wide = a[0].astype(np.float64) + 1j * a[1]
    want = 2j * (wide @ b) + (1 - 1j) * c
    assert d[0].shape == (3, 2, 20, 24)
    np.testing.assert_allclose(d[0] + 1j * d[1], want, rtol=0, atol=1e-4)


def test_elsewhere_products_are_exact_and_three_are_refused() -> None:
    a, b = operands("normal", (20, 30, 40), "nn")
    for target in ("cpu", "reference"):
        exact = tw.complex_matmul(a, b, target=target)
        np.testing.assert_array_equal(tw.complex_matmul(a, b, precision="f32", target=target), exact)
        np.testing.assert_array_equal(tw.matmul(a, b, precision="f16", target=target), exact)
    with pytest.raises(tw.LaunchError, match='nearest legal choice: method="4m"'):
        tw.complex_matmul(a, b, precision="f32", method="3m")


def test_halves_take_little_more_memory_than_the_operands() -> None:
    a, b = np.empty((1000, 2001), np.complex64), np.empty((2001, 504), np.complex64)
    arrays = {"a": a, "b": b, "out": np.empty((1000, 504), np.complex64)}
    infos = {
        name + end: describe(getattr(one, part))
        for name, one in arrays.items()
        for end, part in (("", "real"), ("_im", "imag"))
    }
    way = by_halves(infos, problem_of(layouts(infos)))
    assert way.halves is not None
    assert (way.halves.a.tiling.turned, way.halves.b.tiling.turned) == (True, False)
    assert way.halves.a.tiling.packed
    assert a.nbytes + b.nbytes <= way.size_bytes <= (a.nbytes + b.nbytes) * 1.01 + 10 * ALIGNMENT
    assert len(way.operands) == 10
    first = by_halves(infos, problem_of(layouts(infos)), both=False)
    assert first.size_bytes < 0.51 * way.size_bytes + 10 * ALIGNMENT
    assert "four products of the leading halves" in str(first)


def like_halves(n: int) -> tuple[Any, ...]:
    half, line, out = np.empty((n, n), np.float16), np.empty(n, np.float32), np.empty((n, n), np.complex64)
    parts = (out.real, out.imag)
    return (*[half.T] * 4, *[half] * 4, line, line, *parts, *parts, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("arch", "n", "tile"),
    [("sm_90a", 4096, (128, 128, 32)), ("sm_90a", 1024, (128, 64, 32)), ("sm_80", 4096, None)],
)
def test_what_is_launched_compiles(arch: str, n: int, tile: tuple[int, int, int] | None) -> None:
    """Both totals are promoted from one set of sums, so a thread holds three sets, not four."""
    constants = {"terms": frozenset[str](), "conjugates": (False, False, False)}
    kernel = products_of_halves(0, tw.f32).bind(**constants)
    question = replace(kernel.question(*like_halves(n), target="cuda", arch=arch), processors=132)
    schedule = choose(replace(question, extents=(n, n, n)))
    assert tile in (None, schedule.tile)
    assert schedule.promote == 1
    case = ScheduleOnMachine(schedule, question.form, question.specs, question.arch)
    assert case.accumulators == schedule.mma.c().size_values * (3 if tile else 4)
    bound = products_of_halves(0, tw.f32).bind(**constants, schedule=schedule)
    ran = bound.compile(*like_halves(n), target="cuda", arch=arch)
    assert ran.target == "cuda"
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


def test_four_products_of_first_halves_compile() -> None:
    words = {"terms": frozenset[str](), "conjugates": (False, False, False)}
    kernel = products_of_halves(0, tw.f32, both=False).bind(**words)
    ran = kernel.compile(*like_halves(4096), target="cuda", arch="sm_90a")
    assert ran.schedule is not None
    assert (ran.target, ran.schedule.promote, ran.schedule.staging) == ("cuda", 0, "tma")
    assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


@pytest.mark.parametrize("packed", [True, False])
def test_what_splits_compiles(packed: bool) -> None:
    for depth in (1024, 4096):
        x = np.empty((512, depth), np.int64 if packed else np.float32)
        half, unit = np.empty((depth, 512), np.float16).T, np.empty(512, np.float32)
        turned, along = (PartsTiling.of(depth, turned=one, packed=packed) for one in (True, False))
        across = np.empty((depth, 512), x.dtype).T
        kernel = splitting_of_both(0, 0).bind(tilings=(turned, along))
        given = (x, x, *[half] * 4, unit, across, across, *[half] * 4, unit)
        ran = kernel.compile(*given, target="cuda", arch="sm_90a")
        assert ran.resources["spill_store_bytes"] == ran.resources["stack_bytes"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("order", ["nn", "nt", "tn"])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_a_gpu_multiplies_halves(kind: str, order: str) -> None:
    a, b = operands(kind, (700, 901, 1003), order)
    there = [DeviceArray.of(one) for one in (a, b, np.full((700, 901), np.nan, np.complex64))]
    given = {"a": there[0], "b": there[1], "c": None, "out": there[2]}
    product = plan_complex(given, ComplexWanted(precision="f32", conjugate_a=True))
    ran = product.run()
    CUDA_DRIVER.synchronize()
    assert [(one.kernel.name, one.target) for one in ran] == [
        ("complex_halves", "cuda"),
        ("gemm_complex_halves", "cuda"),
    ]
    schedule = ran[-1].schedule
    assert schedule is not None
    rows = slice(0, 700, 5)
    assert_right(a[rows], b, there[2].host()[rows], schedule, (1, 0))


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["normal", "wide"])
def test_a_gpu_multiplies_first_halves(kind: str) -> None:
    a, b = operands(kind, (700, 901, 1003), "nn")
    there = [DeviceArray.of(one) for one in (a, b, np.full((700, 901), np.nan, np.complex64))]
    given = {"a": there[0], "b": there[1], "c": None, "out": there[2]}
    ran = plan_complex(given, ComplexWanted(precision="f16")).run()
    CUDA_DRIVER.synchronize()
    assert [one.target for one in ran] == ["cuda", "cuda"]
    assert ran[-1].schedule is not None
    assert_right(a, b, there[2].host(), ran[-1].schedule, halves=1)


@pytest.mark.gpu
def test_a_gpu_multiplies_halves_again() -> None:
    """The second call launches the first call's kernels on other arrays."""
    for seed in range(3):
        a, b = drawn("normal", (600, 640), "n", seed), drawn("normal", (640, 640), "n", seed + 9)
        there = [DeviceArray.of(one) for one in (a, b, np.full((600, 640), np.nan, np.complex64))]
        tw.complex_matmul(there[0], there[1], out=there[2], alpha=2.0, precision="f32")
        CUDA_DRIVER.synchronize()
        assert_right(a, b, there[2].host(), replace(BULK, promote=1), alpha=2)
