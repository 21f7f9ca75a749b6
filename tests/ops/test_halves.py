"""Products of f32 by halves of 11 bits, on the reference and a GPU, under a derived bound."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.canaries import scratch_between

import tilewright as tw
from tilewright.checking.compare import Accumulation, gemm_bound
from tilewright.ops import halves as in_ops
from tilewright.ops import matmul as matmuls
from tilewright.ops.grades import pays
from tilewright.ops.halves import Split
from tilewright.ops.matmul import matmul
from tilewright.ops.problem import describe
from tilewright.ops.products import in_halves
from tilewright.ops.splitting import ALONG_K, ALONG_ROWS, split
from tilewright.runtime import cuda
from tilewright.runtime.arrays import describe as described
from tilewright.runtime.device_array import DeviceArray
from tilewright.runtime.scratch import ALIGNMENT
from tilewright.schedule.choose import choose

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


def bound_of(a: Any, b: Any, halves: int, how: Accumulation) -> Any:
    """How far off a product of halves can be, for rows of A and columns of B of any range.

    A number is off by 2**-22 of itself with two halves, by 2**-11 with one, or by 2**-38 (2**-25) of the
    largest of its row; the product of both second halves is 2**-22 of that of the numbers.  Sums are those of
    three products, of which two are 2**-11 of the first.
    """
    sizes = np.abs(a).astype(np.float64), np.abs(b).astype(np.float64)
    tops = sizes[0].max(axis=1, initial=0)[:, None], sizes[1].max(axis=0, initial=0)[None, :]
    part, least = (2.0**-22, 2.0**-38) if halves == 2 else (2.0**-11, 2.0**-25)
    off = tuple(part * size + least * top for size, top in zip(sizes, tops, strict=True))
    represented = off[0] @ sizes[1] + sizes[0] @ off[1] + off[0] @ off[1]
    represented += 2.0**-22 * (sizes[0] @ sizes[1]) if halves == 2 else 0
    # Scaled, no sum is subnormal; the scale is taken off as exact powers of 2.
    up = tuple(1 / np.maximum(top, np.finfo(np.float64).tiny) for top in tops)
    scaled = a * up[0], b * up[1]
    left, right = scaled
    stacked = np.hstack([left, left * 2.0**-11, left * 2.0**-11]), np.vstack([right] * 3)
    summed = gemm_bound(*stacked, how, tw.f32, twice=False)[2] / (up[0] * up[1])
    return represented + summed + np.finfo(np.float32).smallest_subnormal


def assert_right(a: Any, b: Any, made: Any, schedule: Any, halves: int = 2) -> None:
    """Every element within the bound, which a lost k would break; of long sums, a lost step of the atom."""
    how = Accumulation.of(schedule.atom, schedule.promote * schedule.block_k or None)
    want, bound = a.astype(np.float64) @ b.astype(np.float64), bound_of(a, b, halves, how)
    off = np.abs(made - want)
    assert (off <= bound).all(), f"{(off / bound).max():.3} of the bound"
    step = 1 if a.shape[1] <= 256 else 16
    lost = a[:, :step].astype(np.float64) @ b[:step].astype(np.float64)
    assert (np.abs(lost) > 2 * bound).mean() > 0.5, "what is lost would go unnoticed"


def operands(kind: str, shape: Any, layout: str, seed: int = 0) -> Any:
    """Numbers of f32 whose rows and columns have ranges of their own, with gaps between rows."""
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


@pytest.mark.parametrize("along", ["k", "rows"])
@pytest.mark.parametrize("both", [True, False])
def test_halves_are_as_near_as_they_say(along: str, both: bool) -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((2, 37, 700)) * np.exp2(rng.integers(-120, 110, (2, 37, 1)))).astype(np.float32)
    x[0, 3], x[0, 4], x[1, 2, 5], x[1, 3, 6] = 0, x[0, 5] * 1e-44, np.inf, np.nan
    x[1, 4, 0] = np.finfo(np.float32).max
    high, low = (np.full(x.shape, np.nan, np.float16) for _ in range(2))
    if along == "rows":
        x, high, low = (np.ascontiguousarray(one.swapaxes(1, 2)).swapaxes(1, 2) for one in (x, high, low))
    unit = np.full(x.shape[:2], np.nan, np.float32)
    kernel = split(1).bind(spread=ALONG_K if along == "k" else ALONG_ROWS, both=both)
    kernel.check(x, high, low, unit).raise_if_any()
    assert kernel(x, high, low, unit, target="reference").target == "reference"
    finite, wide = np.isfinite(x), x.astype(np.float64)
    top = np.abs(np.where(finite, wide, 0)).max(-1, keepdims=True)
    found = high.astype(np.float64) + (low if both else 0)
    part, least = (2.0**-22, 2.0**-38) if both else (2.0**-11, 2.0**-38)
    with np.errstate(all="ignore"):
        off = np.abs(found * unit.astype(np.float64)[..., None] ** 2 - wide)
    assert (off <= part * np.abs(wide) + least * top + 2.0**-151)[finite].all()
    assert (np.abs(high[finite]) < 2**15).all()
    np.testing.assert_array_equal(high[~finite].astype(np.float32), x[~finite])
    assert np.isnan(low).all() if not both else (low[~finite] == 0).all()
    assert np.array_equal(np.exp2(np.log2(unit)), unit), "powers of 2"


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_the_reference_multiplies_halves(kind: str, layout: str) -> None:
    a, b = operands(kind, (70, 90, 200), layout)
    for schedule in (SYNC, BULK):
        out = np.full((70, 90), np.nan, np.float32)
        assert tw.matmul(a, b, out=out, precision="f32", schedule=schedule, target="reference") is out
        assert_right(a, b, out, schedule)
    out = tw.matmul(a, b, precision="f16", schedule=replace(SYNC, promote=0), target="reference")
    assert_right(a, b, out, replace(SYNC, promote=0), halves=1)


def test_batches_that_repeat_an_operand_and_what_is_added() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.standard_normal((3, 1, 40, 72), np.float32), rng.standard_normal((2, 72, 24), np.float32)
    bias, c = rng.standard_normal(24, np.float32), rng.standard_normal((40, 24), np.float32)
    made = tw.matmul(
        a, b, c=c, alpha=2.0, beta=-0.5, bias=bias, precision="f32", schedule=SYNC, target="reference"
    )
    want = 2 * (a.astype(np.float64) @ b) - 0.5 * c + bias
    assert made.shape == (3, 2, 40, 24)
    np.testing.assert_allclose(made, want, rtol=0, atol=2e-5)


def test_elsewhere_products_are_exact() -> None:
    a, b = operands("normal", (20, 30, 40), "nn")
    for target in ("cpu", "reference"):
        exact = tw.matmul(a, b, target=target)
        for precision in ("f32", "f16"):
            np.testing.assert_array_equal(tw.matmul(a, b, precision=precision, target=target), exact)


def test_numbers_of_16_bits_are_summed_as_f32_is() -> None:
    a, b = (one.astype(np.float16) for one in operands("positive", (64, 64, 256), "nn"))
    tw.matmul(a, b, precision="f32", schedule=replace(SYNC, promote=1), target="reference")
    with pytest.raises(tw.ScheduleError, match="sums as f32 adds them"):
        tw.matmul(a, b, precision="f32", schedule=replace(SYNC, promote=0), target="reference")


def test_halves_take_no_more_memory_than_the_operands() -> None:
    a, b = np.empty((1000, 2000), np.float32), np.empty((2000, 504), np.float32)
    problem = describe({"a": described(a), "b": described(b), "out": described(np.empty((1000, 504), "f4"))})
    for array, name, transposed in ((a, "a", False), (b, "b", True)):
        made = Split.of(array, described(array), problem.operands[name], transposed)
        assert array.nbytes <= made.bytes <= array.nbytes * 1.01 + 4 * ALIGNMENT
    assert pays(problem, batch_invariant=False)


def test_what_is_invariant_of_batches_does_not_depend_on_them() -> None:
    found = set()
    for rows in (1, 8, 4096):
        a, b, out = np.empty((rows, 512), "f4"), np.empty((512, 512), "f4"), np.empty((rows, 512), "f4")
        problem = describe({"a": described(a), "b": described(b), "out": described(out)})
        found.add((pays(problem, batch_invariant=True), pays(problem, batch_invariant=False)))
    assert found == {(True, False), (True, True)}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_what_is_launched_compiles(arch: str) -> None:
    x, half, unit = tw.like("f32", (512, 1024)), tw.like("f16", (512, 1024)), tw.like("f32", (512,))
    for spread in (ALONG_K, ALONG_ROWS):
        made = split(0).bind(spread=spread, both=True).compile(x, half, half, unit, target="cuda", arch=arch)
        assert made.resources["spill_store_bytes"] == made.resources["stack_bytes"] == 0
    square, line = tw.like("f32", (1024, 1024)), tw.like("f32", (1024,))
    halves = [tw.like("f16", (1024, 1024))] * 4
    kernel = in_halves(0, tw.f32).bind(both=True, terms=frozenset({"bias"}), activation="relu")
    given = (*halves, line, line, square, line, square, square, 1.0, 1.0)
    question = replace(kernel.question(*given, target="cuda", arch=arch), processors=132)
    for extents in ((4096, 4096, 4096), (1024, 1024, 1024)):
        schedule = choose(replace(question, extents=extents))
        assert schedule.promote
        kernel = in_halves(0, tw.f32).bind(
            both=True, terms=frozenset({"bias"}), activation="relu", schedule=schedule
        )
        assert kernel.compile(*given, target="cuda", arch=arch).resources["spill_store_bytes"] == 0


@pytest.mark.gpu
@pytest.mark.parametrize("layout", ["nn", "nt", "tn"])
@pytest.mark.parametrize("kind", ["normal", "positive", "wide"])
def test_a_gpu_multiplies_halves(kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    shape = (700, 900, 1003)
    a, b = operands(kind, shape, layout)
    there = [DeviceArray.of(one) for one in (a, b, np.full(shape[:2], np.nan, np.float32))]
    monkeypatch.setattr(in_ops, "scratch", scratch_between)
    matmuls._PLANS.forget()  # what is launched again says nothing of its arrays
    for precision, halves in (("f32", 2), ("f16", 1)):
        matmul(*there[:2], out=there[2], precision=precision)
        cuda.synchronize()
        made = there[2].host()
        assert_right(a, b, made, SYNC if halves == 2 else replace(SYNC, promote=0), halves)
        exact = a.astype(np.float64) @ b.astype(np.float64)
        assert not np.array_equal(made, exact.astype(np.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("along", ["k", "rows"])
def test_a_gpu_splits_within_its_arrays(along: str) -> None:
    x = operands("wide", (333, 1, 1001), "nn" if along == "k" else "tn")[0]
    half = np.full(x.shape, np.nan, np.float16, order="C" if along == "k" else "F")
    given = [DeviceArray.of(one) for one in (x, half, half, np.full(333, np.nan, np.float32))]
    split(0).bind(spread=ALONG_K if along == "k" else ALONG_ROWS, both=True)(*given)
    cuda.synchronize()
    high, low, unit = (one.host().astype(np.float64) for one in given[1:])
    off, top = np.abs((high + low) * unit[:, None] ** 2 - x), np.abs(x).max(axis=1, keepdims=True)
    assert (off <= 2.0**-22 * np.abs(x) + 2.0**-38 * top).all()


def test_a_processor_multiplies_halves_where_its_schedule_says_so() -> None:
    a, b = operands("normal", (40, 30, 70), "nn")
    one = tw.Schedule(
        tw.atoms.fma("f16", acc="f32", lanes=(1, 1), each=(6, 16)), (48, 32, 64), staging="panels", promote=0
    )
    out = tw.matmul(a, b, precision="f16", schedule=one, target="cpu")
    assert_right(a, b, out, one, halves=1)
