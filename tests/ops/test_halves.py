"""Products of f32 by halves of 11 bits, on the reference and a GPU, within a derived bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.ops.layouts import layouts

import tilewright as tw
from tilewright.checking.compare import Accumulation
from tilewright.checking.composed_products import halves_bound
from tilewright.ops import matmul as matmuls
from tilewright.ops.matmul import matmul
from tilewright.ops.planning import pays
from tilewright.ops.problem import problem_of
from tilewright.ops.products import in_halves
from tilewright.ops.splitting import SHALLOW, Split, Tiling, splitting_of_both
from tilewright.runtime.arrays import describe
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.gpu_memory import ALIGNMENT, DeviceArray
from tilewright.schedule.choice import choose

pytestmark = pytest.mark.in_turns(3)

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
SYNC = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), warps=(2, 2), stages=3, staging="cp_async", promote=4)


def assert_right(a: Any, b: Any, made: Any, schedule: Any, halves: int = 2) -> None:
    """Check every element within a bound that a missing k (in long sums: a missing atom step) exceeds."""
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    want, bound = a.astype(np.float64) @ b.astype(np.float64), halves_bound(a, b, how, halves)
    off = np.abs(made - want)
    assert (off <= bound).all(), f"{(off / bound).max():.3} of the bound"
    step = 1 if a.shape[1] <= 256 else 16
    lost = a[:, :step].astype(np.float64) @ b[:step].astype(np.float64)
    assert (np.abs(lost) > 2 * bound).mean() > 0.5, "what is lost would go unnoticed"


def operands(kind: str, shape: Any, layout: str, seed: int = 0) -> Any:
    """Return numbers of f32 whose rows and columns have different ranges, with gaps between rows."""
    (m, n, k), rng = shape, np.random.default_rng(seed)
    made = []
    for rows, columns, along in ((m, k, layout[0]), (k, n, layout[1])):
        whole = np.full((rows, columns + 4) if along == "n" else (columns, rows + 4), np.nan, np.float32)
        view = whole[:, :columns] if along == "n" else whole[:, :rows].T
        view[...] = (
            rng.standard_normal((rows, columns)) if kind != "positive" else rng.random((rows, columns))
        )
        made.append(view)
    if kind == "wide":
        made[0] *= np.exp2(rng.integers(-60, 60, (m, 1)))
        made[1] *= np.exp2(rng.integers(-60, 60, (1, n)))
    return made


def wild(rng: np.random.Generator, shape: tuple[int, int, int], along: str) -> list[Any]:
    """Return numbers of all sizes, and poisoned memory for their halves and units."""
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-120, 110, (*shape[:2], 1)))
    x = x.astype(np.float32)
    x[0, 3], x[0, 4], x[1, 2, 5], x[1, 3, 6] = 0, x[0, 5] * 1e-44, np.inf, np.nan
    x[1, 4, 0] = np.finfo(np.float32).max
    made = [x, *(np.full(shape, np.nan, np.float16) for _ in range(2))]
    if along == "rows":
        made = [np.ascontiguousarray(one.swapaxes(1, 2)).swapaxes(1, 2) for one in made]
    return [*made, np.full(shape[:2], np.nan, np.float32)]


@pytest.mark.in_turns(3)
@pytest.mark.parametrize("along", [("k", "rows"), ("rows", "k")])
@pytest.mark.parametrize("depth", [700, SHALLOW + 3])
@pytest.mark.parametrize("both", [True, False])
def test_halves_are_as_near_as_they_say(along: tuple[str, str], depth: int, both: bool) -> None:
    rng, rows = np.random.default_rng(1), (37, 21)
    given = [wild(rng, (2, count, depth), one) for count, one in zip(rows, along, strict=True)]
    tilings = tuple(
        Tiling.of(count, depth, along_rows=one == "rows") for count, one in zip(rows, along, strict=True)
    )
    kernel = splitting_of_both(1, 1).bind(tilings=tilings, both=both)
    assert kernel(*given[0], *given[1], target="reference").target == "reference"
    for one in given:
        assert_split(*one, both=both)


def assert_split(x: Any, high: Any, low: Any, unit: Any, *, both: bool) -> None:
    finite, wide = np.isfinite(x), x.astype(np.float64)
    top = np.abs(np.where(finite, wide, 0)).max(-1, keepdims=True)
    found = high.astype(np.float64) + (low if both else 0)
    part, least = (2.0**-22, 2.0**-38) if both else (2.0**-11, 2.0**-38)
    with np.errstate(all="ignore"):
        off = np.abs(found * unit.astype(np.float64)[..., None] ** 2 - wide)
    assert (off <= part * np.abs(wide) + least * top + 2.0**-151)[finite].all()
    assert (np.abs(high[finite]) <= 2**15).all()
    np.testing.assert_array_equal(high[~finite].astype(np.float32), x[~finite])
    assert np.isnan(low).all() if not both else (low[~finite] == 0).all()
    assert np.array_equal(np.exp2(np.log2(unit)), unit), "powers of 2"


def test_a_tile_that_is_too_shallow_is_refused() -> None:
    given = [wild(np.random.default_rng(2), (2, 9, SHALLOW + 1), "k") for _ in range(2)]
    tiling = Tiling.of(9, SHALLOW, along_rows=False)
    with pytest.raises(tw.LaunchError, match=f"K must be at most {SHALLOW}"):
        splitting_of_both(1, 1).bind(tilings=(tiling, tiling), both=True)(
            *given[0], *given[1], target="reference"
        )


def test_factors_that_are_huge_where_the_other_one_is_tiny() -> None:
    """Their halves are lost, as `docs/precision.md` says, unless columns and rows are scaled before."""
    rng = np.random.default_rng(2)
    unit = np.exp2(rng.integers(-32, 33, 72)).astype(np.float32)
    a = rng.standard_normal((40, 72)).astype(np.float32) * unit
    b = rng.standard_normal((72, 56)).astype(np.float32) / unit[:, None]
    alike = np.exp2(np.round(np.log2(np.abs(a).max(0) / np.abs(b).max(1)) / 2))
    want = a.astype(np.float64) @ b
    off, how = [], Accumulation.of(SYNC.atom, SYNC.promote * SYNC.block_k)
    for left, right in ((a, b), (a / alike, b * alike[:, None])):
        made = tw.matmul(left, right, precision="f32", schedule=SYNC, target="reference")
        assert (np.abs(made - want) <= halves_bound(left, right, how)).all()
        off.append(np.linalg.norm(made - want) / np.linalg.norm(want))
    assert off[0] > 0.5
    assert off[1] < off[0] * 2.0**-20


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_the_reference_multiplies_halves(kind: str, layout: str) -> None:
    """There are two tiles along M or N; the second tile and the last step along K are cut."""
    m, n, k = (70, 56, 136) if layout[0] == "t" else (56, 90, 136)
    a, b = operands(kind, (m, n, k), layout)
    for schedule in (SYNC, BULK):
        out = np.full((m, n), np.nan, np.float32)
        assert tw.matmul(a, b, out=out, precision="f32", schedule=schedule, target="reference") is out
        assert_right(a, b, out, schedule)
    out = tw.matmul(a, b, precision="f16", schedule=replace(SYNC, promote=0), target="reference")
    assert_right(a, b, out, replace(SYNC, promote=0), halves=1)


@pytest.mark.parametrize("precision", ["exact", "f32", "tf32", "f16"])
def test_what_is_not_finite_stays_in_its_row_and_column(precision: str) -> None:
    """All other elements are as near as among finite numbers; denormal rows keep their bits."""
    a, b = operands("normal", (40, 50, 200), "nt")
    halves = {"exact": 0, "tf32": 0, "f32": 2, "f16": 1}[precision]
    schedule = replace(SYNC, promote=4 if halves == 2 else 0) if halves else None
    if halves:
        a[9] *= np.float32(2.0**-139)
        b[:, 11] *= np.float32(2.0**120)
    a[3, 5], a[7, 2], b[4, 13] = np.inf, np.nan, -np.inf
    made = tw.matmul(a, b, precision=precision, schedule=schedule, target="reference")
    touched = np.zeros(made.shape, bool)
    touched[[3, 7]], touched[:, 13] = True, True
    assert not np.isfinite(made[touched]).any()
    assert np.isfinite(made[~touched]).all()
    assert np.isnan(made[7]).all()
    rows, columns = np.delete(np.arange(40), [3, 7]), np.delete(np.arange(50), 13)
    a, b, made = a[rows], b[:, columns], made[np.ix_(rows, columns)]
    if halves:
        assert_right(a, b, made, schedule, halves)
    else:
        exact, size = (x.astype(np.float64) @ y for x, y in ((a, b), (np.abs(a), np.abs(b))))
        unit = {"exact": 201 * 2.0**-24, "tf32": 2.0**-10 + 201 * 2.0**-23}[precision]
        assert (np.abs(made - exact) <= unit * size).all()


def test_batches_that_repeat_an_operand_and_what_is_added() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 1, 40, 72), np.float32), rng.standard_normal((2, 72, 24), np.float32)
    bias, c = rng.standard_normal(24, np.float32), rng.standard_normal((40, 24), np.float32)
    made = tw.matmul(
        a, b, c=c, alpha=2.0, beta=-0.5, bias=bias, precision="f32", schedule=SYNC, target="reference"
    )
    want = 2 * (a.astype(np.float64) @ b) - 0.5 * c + bias
    assert made.shape == (3, 2, 40, 24)
    how = Accumulation.of(SYNC.atom, SYNC.promote * SYNC.block_k)
    for i, j in np.ndindex(3, 2):
        bound = 2 * halves_bound(a[i, 0], b[j], how)
        bound += 4 * 2.0**-24 * (2 * np.abs(a[i, 0].astype(np.float64) @ b[j]) + np.abs(c) + np.abs(bias))
        assert (np.abs(made[i, j] - want[i, j]) <= bound).all()
        assert bound.max() < np.abs(a[i, 0, :, :1] * b[j, :1]).mean(), "a lost k would go unnoticed"


def test_elsewhere_products_are_exact() -> None:
    a, b = operands("normal", (20, 30, 40), "nn")
    for target in ("cpu", "reference"):
        exact = tw.matmul(a, b, target=target)
        for precision in ("f32", "f16"):
            np.testing.assert_array_equal(tw.matmul(a, b, precision=precision, target=target), exact)


def test_numbers_of_16_bits_are_summed_as_f32_is() -> None:
    a, b = (one.astype(np.float16) for one in operands("positive", (64, 64, 256), "nn"))
    tw.matmul(a, b, precision="f32", schedule=replace(SYNC, promote=1), target="reference")
    with pytest.raises(tw.ScheduleError, match="sums in full f32"):
        tw.matmul(a, b, precision="f32", schedule=replace(SYNC, promote=0), target="reference")


def test_halves_take_no_more_memory_than_the_operands() -> None:
    a, b = np.empty((1000, 2000), np.float32), np.empty((2000, 504), np.float32)
    problem = problem_of(
        layouts({"a": describe(a), "b": describe(b), "out": describe(np.empty((1000, 504), "f4"))})
    )
    for array, name, transposed in ((a, "a", False), (b, "b", True)):
        made = Split.of(array, describe(array), problem.operands[name], transposed)
        assert array.nbytes <= made.bytes <= array.nbytes * 1.01 + 4 * ALIGNMENT
    assert pays(problem, batch_invariant=False)


def test_what_is_invariant_of_batches_does_not_depend_on_them() -> None:
    found = set()
    for rows in (1, 8, 4096):
        a, b, out = np.empty((rows, 512), "f4"), np.empty((512, 512), "f4"), np.empty((rows, 512), "f4")
        problem = problem_of(layouts({"a": describe(a), "b": describe(b), "out": describe(out)}))
        found.add((pays(problem, batch_invariant=True), pays(problem, batch_invariant=False)))
    assert found == {(True, False), (True, True)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_is_launched_compiles(arch: str) -> None:
    for depth in (SHALLOW, 4 * SHALLOW):
        x, half, unit = tw.like("f32", (512, depth)), tw.like("f16", (512, depth)), tw.like("f32", (512,))
        turned = (tw.like(one, (512, depth), order="F") for one in ("f32", "f16", "f16"))
        tilings = tuple(Tiling.of(512, depth, along_rows=along) for along in (False, True))
        kernel = splitting_of_both(0, 0).bind(tilings=tilings, both=True)
        made = kernel.compile(x, half, half, unit, *turned, unit, target="cuda", arch=arch)
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
        assert made.resources["registers"] <= 128, "two blocks on a multiprocessor at least"
    square, line = tw.like("f32", (1024, 1024)), tw.like("f32", (1024,))
    halves = [tw.like("f16", (1024, 1024))] * 4
    kernel = in_halves(0, tw.f32).bind(both=True, terms=frozenset({"bias"}), activation="relu")
    given = (*halves, line, line, square, line, square, square, 1.0, 1.0)
    question = replace(kernel.question(*given, target="cuda", arch=arch), processors=132)
    for extents in ((4096, 4096, 4096), (1024, 1024, 1024)):
        schedule = choose(replace(question, extents=extents))
        assert 0 < schedule.promote * schedule.block_k <= 128, "docs/precision.md counts on that period"
        kernel = in_halves(0, tw.f32).bind(
            both=True, terms=frozenset({"bias"}), activation="relu", schedule=schedule
        )
        assert kernel.compile(*given, target="cuda", arch=arch).resources["spill_store_bytes"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_a_gpu_multiplies_halves(kind: str, layout: str) -> None:
    shape = (700, 900, 1003)
    a, b = operands(kind, shape, layout)
    there = [DeviceArray.of(one) for one in (a, b, np.full(shape[:2], np.nan, np.float32))]
    matmuls._PLANS.forget()  # what is launched again says nothing of its arrays
    for precision, halves in (("f32", 2), ("f16", 1)):
        matmul(*there[:2], out=there[2], precision=precision)
        CUDA_DRIVER.synchronize()
        made = there[2].host()
        assert_right(a, b, made, SYNC if halves == 2 else replace(SYNC, promote=0), halves)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert not np.array_equal(made, exact.astype(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("depth", [1001, 2500])
def test_a_gpu_splits_within_its_arrays(depth: int) -> None:
    rng = np.random.default_rng(4)
    given = [wild(rng, (2, rows, depth), along) for rows, along in ((333, "k"), (197, "rows"))]
    there = [DeviceArray.of(one) for array in given for one in array]
    tilings = tuple(Tiling.of(rows, depth, along_rows=along) for rows, along in ((333, False), (197, True)))
    splitting_of_both(1, 1).bind(tilings=tilings, both=True)(*there)
    CUDA_DRIVER.synchronize()
    made = [one.host() for one in there]
    assert_split(*made[:4], both=True)
    assert_split(*made[4:], both=True)


def test_a_processor_multiplies_halves_where_its_schedule_says_so() -> None:
    a, b = operands("normal", (40, 30, 70), "nn")
    one = tw.Schedule(
        tw.atoms.fma("f16", acc="f32", lanes=(1, 1), each=(6, 16)), (48, 32, 64), staging="panels", promote=0
    )
    out = tw.matmul(a, b, precision="f16", schedule=one, target="cpu")
    assert_right(a, b, out, one, halves=1)
