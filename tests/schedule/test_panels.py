"""The thread that multiplies packs tiles into panels."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tests.eight_lines import product_in_f32 as gemm

import tilewright as tw
from tilewright.arch import REFERENCE
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.ir.kernel import layout_shared
from tilewright.runtime.binding import specs_of
from tilewright.schedule.form import form_of
from tilewright.schedule.legality import reasons
from tilewright.schedule.proposals_cpu import COLUMNS, ROWS, tile_for, tile_time
from tilewright.schedule.resources import ScheduleOnMachine

from .drawing import compare, problem_for
from .forms import flow_of, specs

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(A="M K", B="N K", bias="N", C="M N")
def biased(A, B, bias, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[n, k].T
        C[m, n] = acc + bias[n]


def panels(dtype: str = "f32") -> tw.Schedule:
    return tw.Schedule(tw.atoms.fma(dtype, lanes=(1, 1), each=(6, 16)), (24, 32, 16), staging="panels")


def operands(shape: tuple[int, int, int], layout: str, dtype: Any) -> tuple[Any, Any, Any]:
    """A (M, K), B (N, K), stored along K (n for A, t for B) or across; C is inside of an array of NaN."""
    m, n, k = shape
    rng = np.random.default_rng(m + 7 * n + k)
    a, b = (rng.standard_normal((rows, k)).astype(dtype) for rows in (m, n))
    if layout[0] == "t":
        a = np.asfortranarray(a)
    if layout[1] == "n":
        b = np.asfortranarray(b)
    return a, b, np.full((m + 2, n + 3), np.nan, np.float32)[1 : 1 + m, 1 : 1 + n]


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
@pytest.mark.parametrize("shape", [(48, 64, 32), (29, 33, 45), (1, 70, 17), (31, 1, 16), (25, 40, 0)])
@pytest.mark.parametrize("dtype", ["f32", "f16", "f8e4m3"])
def test_products(target: str, layout: str, shape: tuple[int, int, int], dtype: str) -> None:
    schedule = panels(dtype)
    a, b, c = operands(shape, layout, tw.dtype(dtype).numpy)
    made = gemm.bind(schedule=schedule)(a, b, c, target=target)
    assert (made.target, made.kernel.threads) == (target, 1)
    compare_gemm(a, b.T, c, Accumulation.of(schedule.atom)).raise_if_wrong()
    assert np.isnan(c.base).sum() == c.base.size - c.size


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("shape", [(48, 64, 32), (50, 65, 20), (1, 70, 17), (101, 34, 0), (0, 5, 3)])
def test_equal_shares(target: str, shape: tuple[int, int, int]) -> None:
    """Rows and columns are divided into whole micro-tiles, with the terms that are added last."""
    rng = np.random.default_rng(5)
    m, n, k = shape
    a, b, bias = (rng.integers(-8, 8, extents).astype(np.float32) for extents in ((m, k), (n, k), (n,)))
    c = np.full((m + 2, n + 3), np.nan, np.float32)[1 : 1 + m, 1 : 1 + n]
    made = biased.bind(schedule=replace(panels(), balanced=True))(a, b, bias, c, target=target)
    assert made.target == target
    assert np.array_equal(c, a @ b.T + bias)
    assert np.isnan(c.base).sum() == c.base.size - c.size


@pytest.mark.parametrize("layout", ["nn", "nt", "tn", "tt"])
def test_the_processor_changes_nothing_of_what_was_packed(layout: str) -> None:
    """If panels are as high and wide as the machine's own micro-tiles, no pass changes their layout."""
    a, b, _ = operands((200, 200, 200), layout, np.float32)
    schedule = tw.Schedule(tw.atoms.fma("f32", lanes=(1, 1), each=(6, 16)), (192, 256, 256), staging="panels")
    made = gemm.bind(schedule=schedule).compile(
        a, b, np.empty((200, 200), np.float32), target="cpu", arch="x86-64-v3"
    )
    assert made.notes == ("accumulators of 192x256 lie in micro-tiles of 6x16",)


def test_several_threads_are_refused() -> None:
    given = specs()
    schedule = tw.Schedule(tw.atoms.MMA_F16, (32, 64, 32), warps=(2, 1), staging="panels", stages=2)
    found = reasons(schedule, form_of(flow_of(given)), given, REFERENCE)
    said = {violation.rule: violation.message for violation in found}
    assert "64 threads" in said["staging"]
    assert "shared memory holds one tile" in said["stages"]


@pytest.mark.parametrize("seed", range(40))
def test_formulas_say_what_expanded_kernels_say(seed: int) -> None:
    draw = random.Random(seed)
    problem = replace(problem_for(draw), arch=draw.choice(("numpy", "x86-64-v3")))
    side_m, side_n = draw.choice(((6, 16), (12, 32), (1, 4)))
    schedule = tw.Schedule(
        tw.atoms.fma(problem.arrays["A"].dtype, lanes=(1, 1), each=(side_m, side_n)),
        (side_m * draw.randint(1, 4), side_n * draw.randint(1, 4), draw.choice((1, 16, 24))),
        stages=draw.choice((1, 1, 1, 2)),
        staging="panels",
        blocks=draw.choice((0, 3)),
        group_m=draw.choice((1, 8)),
        promote=draw.choice((0, 0, 4)),
    )
    if draw.random() < 0.5:
        schedule = replace(schedule, balanced=True, blocks=0, group_m=0)
    found = compare(problem, schedule)
    assert not found.difference
    # Neither rows that are reduced as a whole nor groups of rows are dealt out in equal shares.
    uneven = schedule.balanced and problem.program in ("normed", "grouped")
    assert found.verdict == ("refused" if schedule.stages > 1 or uneven else "legal")


# ---------------------------------------------------------------- choosing


def shapes(count: int) -> list[tuple[int, int, int]]:
    drawn = random.Random(0)
    return [(drawn.randint(1, 4096), drawn.randint(1, 4096), drawn.randint(1, 4096)) for _ in range(count)]


@pytest.mark.parametrize("threads", [1, 2, 16])
def test_few_tiles_serve_all_shapes(threads: int) -> None:
    used = {tile_for(shape, threads, balanced=True) for shape in shapes(300)}
    assert len(used) < 40
    assert used <= {(rows, columns) for rows in ROWS for columns in COLUMNS}


@pytest.mark.parametrize("shape", [(2048, 256, 256), (100, 33, 64), (128, 1000, 256), (3000, 129, 64)])
def test_tiles_that_are_computed_as_a_whole_are_no_larger_than_the_problem(
    shape: tuple[int, int, int],
) -> None:
    for least in ((0, 0), (0, min(shape[1], COLUMNS[-1]))):
        tile = tile_for(shape, 2, least)
        for extent, side, sides in zip(shape, tile, (ROWS, COLUMNS), strict=False):
            assert not any(extent <= smaller < side for smaller in sides)


@pytest.mark.parametrize(("threads", "loss"), [(2, 1.01), (8, 1.05)])
def test_tiles_are_near_the_best_of_many(threads: int, loss: float) -> None:
    """The rivals are tiles of all multiples of 48 rows and 64 columns, rated by the same estimate."""

    finer = [(rows, columns) for rows in range(48, 769, 48) for columns in range(64, 2049, 64)]

    def ratio(shape: tuple[int, int, int]) -> float:
        chosen = tile_time(tile_for(shape, threads, balanced=True), shape, threads, balanced=True)
        return chosen / min(tile_time(tile, shape, threads, balanced=True) for tile in finer)

    ratios = [ratio(shape) for shape in shapes(40)]
    assert sum(ratios) / len(ratios) <= loss


def test_one_class_serves_all_divisors() -> None:
    """Shapes with the same tile share an executable, whatever divides their extents."""
    bound = gemm.bind(schedule=panels())
    made = {
        id(bound.compile(tw.like("f32", m, k), tw.like("f32", n, k), tw.like("f32", m, n), target="cpu"))
        for m, n, k in [(64, 64, 64), (63, 60, 1024), (4095, 4096, 33)]
    }
    assert len(made) == 1


@tw.kernel(A="M K", B="N K", C="M N")
def converted(A, B, C):
    for m, n in tw.tiles(C):
        acc = tw.zeros(dtype=tw.f32)
        for k in tw.steps(A.shape[1]):
            acc += A[m, k].to(tw.f16) @ B[n, k].to(tw.f16).T
        C[m, n] = acc


@pytest.mark.parametrize("target", ["reference", "cpu"])
@pytest.mark.parametrize("layout", ["nn", "nt", "tt"])
def test_operands_are_converted_as_they_are_packed(target: str, layout: str) -> None:
    """Conversion is exact, and shared memory has the size of the formula, including packed panels."""
    schedule = panels("f16")
    for shape in ((29, 33, 45), (1, 70, 17), (25, 40, 0)):
        _, n, k = shape
        a, _, c = operands(shape, layout, tw.f8e4m3.numpy)
        b = np.random.default_rng(n).integers(-128, 128, (n, k)).astype(np.int8)
        b = np.asfortranarray(b) if layout[1] == "n" else b
        made = converted.bind(schedule=schedule)(a, b, c, target=target)
        assert (made.target, made.schedule.staging) == (target, "panels")
        how = Accumulation.of(schedule.atom)
        compare_gemm(a.astype(np.float16), b.T.astype(np.float16), c, how).raise_if_wrong()
        assert np.isnan(c.base).sum() == c.base.size - c.size
    classes = specs_of(converted.program, (a, b, c))
    held = ScheduleOnMachine(schedule, form_of(converted.flow(a, b, c)), classes, REFERENCE).shared_bytes
    assert held == layout_shared(made.kernel)[1]
