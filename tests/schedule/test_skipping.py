"""Masks of positions: the tiles and steps of a product that they leave out, and every result."""

from __future__ import annotations

import functools
import re
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from tests.problems import masked_problems as masks
from tests.problems.masked_problems import KERNELS, SCHEDULES, carried_out, lower

import tilewright as tw
from tilewright.checking.flows import compare_flow
from tilewright.schedule.form import form_of
from tilewright.schedule.resources import partition_of
from tilewright.schedule.skipping import NeededTiles, TileBoundary, floor_sum, kept_results, kept_steps

from .forms import FORMS, SYNC

# ---------------------------------------------------------------- numbers of tiles


def test_sums_of_quotients() -> None:
    draw = np.random.default_rng(0)
    for _ in range(300):
        count, unit, slope, offset = (int(draw.integers(low, 200)) for low in (0, 1, 0, 0))
        assert floor_sum(count, unit, slope, offset) == sum(
            (slope * i + offset) // unit for i in range(count)
        )


def test_sums_along_a_line() -> None:
    draw = np.random.default_rng(1)
    for _ in range(300):
        slope, offset, unit, most, rows = (int(draw.integers(low, 40)) for low in (0, -200, 1, 0, 0))
        line = TileBoundary(slope, offset, unit, most)
        assert line.before(rows) == sum(line.at(row) for row in range(rows)), line


@functools.cache
def numbered() -> Any:
    """Return a kernel that stores the place of every tile."""

    @tw.kernel(P="T two")
    def places(P, *, tiles):
        one = tw.fragment(tw.blocked((1, 1), (1, 1)), tw.i32, fill=0)
        tw.block_index(1)
        for number in tw.range(P.shape[0]):
            for dim, place in enumerate(tiles.place(number, tiles.needed)):
                tw.copy(one + place, P.tile((1, 1), (number, dim)))

    return places


@pytest.mark.parametrize("seed", range(12))
def test_needed_tiles_have_the_first_numbers(seed: int) -> None:
    draw = np.random.default_rng(seed)
    rows, columns, band, unit = (int(draw.integers(1, most)) for most in (12, 12, 6, 20))
    slope = int(draw.integers(0, 30))
    first = int(draw.integers(-slope * rows, unit * columns))
    begin = TileBoundary(slope if seed % 3 else 0, first if seed % 3 else 0, unit, columns)
    width = unit - 1 + int(draw.integers(0, 3 * unit)) if seed % 3 else first + slope * rows
    end = TileBoundary(slope, first + width, unit, columns)
    mirrored, turned = bool(draw.integers(2)), bool(draw.integers(2))
    tiles = NeededTiles(begin, end, rows, columns, band, mirrored, turned)
    needed = set()
    for i in range(rows):
        row = rows - 1 - i if mirrored else i
        needed |= {(j, row) if turned else (row, j) for j in range(begin.at(i), end.at(i))}
    found = np.full((rows * columns, 2), -1, np.int32)
    numbered().bind(tiles=tiles)(found, target="reference")
    places = [tuple(place) for place in found.tolist()]
    assert len(needed) == tiles.needed
    assert {*places[: len(needed)]} == needed, tiles
    assert len({*places}) == rows * columns, tiles
    if band > 1 and len(needed) == rows * columns and not turned:  # a band goes down its columns
        assert [place[1] for place in places[: min(band, rows)]] == [places[0][1]] * min(band, rows)


# ---------------------------------------------------------------- the work of blocks


def work_of(name: str, schedule: tw.Schedule, made: dict[str, Any], numbers: dict[str, int]) -> Any:
    """Return each tile's row, column, first step and steps, and the steps that its block did before."""
    flow = KERNELS[name][0](*made.values(), **numbers, target="reference").flow
    form = form_of(flow).arranged(schedule.swap_ab)

    @tw.kernel(**DIMS, P="T five", shift=int, window=int)
    def dealt(A, B, C, P, shift, window):
        one = tw.fragment(tw.blocked((1, 1), (1, 1)), tw.i32, fill=0)
        arguments = {"A": A, "B": B, "C": C, "shift": shift, "window": window}
        partition = partition_of(form, schedule).of(form, schedule, arguments)
        for work in partition.items():
            at = work.m * tw.ceil_div(C.shape[1], schedule.tile[1]) + work.n
            values = (work.m, work.n, work.segment.begin, work.steps, work.first)
            for dim, value in enumerate(values):
                tw.copy(one + value, P.tile((1, 1), (at, dim)))

    m, n = made["A"].shape[0], made["B"].shape[0]
    tiles = -(-m // schedule.tile[0]) * -(-n // schedule.tile[1])
    found = np.full((tiles, 5), -1, np.int32)
    dealt(made["A"], made["B"], made["C"], found, **{"window": 0, **numbers}, target="reference")
    return found


DIMS = {"A": "M K", "B": "N K", "C": "M N"}

ORDERS = {
    "a block for each tile": replace(SYNC, tile=(32, 16, 16), warps=(1, 1)),
    "bands": replace(SYNC, tile=(16, 48, 16), warps=(1, 1), group_m=3),
    "bands of columns": replace(SYNC, tile=(32, 16, 32), warps=(1, 1), group_n=2),
    "persistent": replace(SYNC, tile=(16, 16, 16), warps=(1, 1), group_m=2, blocks=3),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ["lower", "others", "against", "corner", "triangular", "banded"])
def test_blocks_take_needed_steps_alone(name: str, order: str) -> None:
    schedule = ORDERS[order]
    draw = np.random.default_rng(len(name) + len(order))
    rows, columns, depth = schedule.tile
    for _ in range(2):
        m, n, k = (int(draw.integers(20, 150)) for _ in range(3))
        numbers = {"shift": int(draw.integers(-m, n))}
        numbers |= {"window": int(draw.integers(0, k))} if name == "banded" else {}
        made = {"A": np.zeros((m, k), np.float16), "B": np.zeros((n, k), np.float16)}
        found = work_of(name, schedule, made | {"C": np.zeros((m, n), np.float32)}, numbers)
        wanted = needed(name, (m, n, k), **numbers)
        taken = 0
        for at_m, at_n, begin, steps, _ in found:
            part = wanted[at_m * rows : (at_m + 1) * rows, at_n * columns : (at_n + 1) * columns]
            used = np.flatnonzero(part.any(axis=(0, 1)))
            if not used.size:
                # A tile between two lines that cross may be left in: each of them needs it.
                assert steps == 0 or name in ("corner", "banded"), (at_m, at_n)
                continue
            exact = used[0] // depth, used[-1] // depth + 1
            assert begin <= exact[0] < exact[1] <= begin + steps, (at_m, at_n)
            if name != "banded":
                assert (begin, begin + steps) == exact, (at_m, at_n)
            taken += steps
        assert (found[:, 3] >= 0).all(), "a tile that no block takes"
        if schedule.blocks == 0:
            assert (found[:, 4] == 0).all()
        else:  # a ring goes on where the last tile of the block left it
            assert found[:, 4].min() == 0
            assert found[:, 4].max() <= taken


def needed(name: str, shape: tuple[int, ...], shift: int, window: int = 0) -> Any:
    """Return for each element of the result and each k whether the product enters the element."""
    m, n, k = np.ogrid[: shape[0], : shape[1], : shape[2]]
    return np.broadcast_to(
        {
            "lower": n <= m + shift,
            "others": m + shift <= n,
            "against": m + n < shift + shape[0],
            "corner": (m >= n) & (m + n >= shift),
            "triangular": k <= m + shift,
            "banded": (k >= n + shift) & (k < n + shift + window) & (m >= n),
        }[name]
        & (k >= 0),
        shape,
    )


# ---------------------------------------------------------------- what is recognised


def flow_of(kernel: Any, **numbers: int) -> Any:
    a, b, c = np.zeros((40, 40), np.float16), np.zeros((40, 40), np.float16), np.zeros((40, 40), np.float32)
    return form_of(kernel(a, b, c, **numbers, target="reference").flow)


def stored(value: Any, operand: Any = lambda a, k, m: a) -> Any:
    """Return a kernel that stores a value of a sum, with a function of the first operand."""

    @tw.kernel(A="M K", B="N K", C="M N", shift=int)
    def made(A, B, C, shift):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += operand(A[m, k], tw.positions(k), tw.positions(m)[:, None]) @ B[n, k].T
            C[m, n] = value(acc, tw.positions(m)[:, None], tw.positions(n), shift)

    return made


RECOGNISED = {
    "twice": (lambda acc, m, n, s: tw.where(m >= n, acc, 0) + tw.where(m >= n, acc * acc, 1), 1),
    "inside of a function": (
        lambda acc, m, n, s: tw.exp(tw.where(m >= n, tw.where(n > m - 8, acc, 0), 0)),
        2,
    ),
    "with a condition that is no comparison of both": (
        lambda acc, m, n, s: tw.where((m >= n) & (acc > 0), 1, acc),
        0,
    ),
    "one of two": (lambda acc, m, n, s: tw.where(m >= n, acc, 0) + tw.where(m <= n, acc, 0), 0),
    "one of two in common": (
        lambda acc, m, n, s: tw.where((m >= n) & (m + n > s), acc, 0) + tw.where(m + n > s, acc, 0),
        1,
    ),
    "everywhere": (lambda acc, m, n, s: tw.where(m >= n, acc, 0) + acc, 0),
    "a mask of the sum": (lambda acc, m, n, s: tw.where(acc > 0, acc, 0), 0),
    "not": (lambda acc, m, n, s: tw.where(m < n, 0, acc), 1),
    "not both": (lambda acc, m, n, s: tw.where((m < n) & (m + n > s), 0, acc), 0),
    "either": (lambda acc, m, n, s: tw.where((m < n) | (m + n > s), acc, 0), 0),
    "of every second column": (lambda acc, m, n, s: tw.where(m >= n + n, acc, 0), 0),
}
"""Values of a sum, and the number of comparisons that hold wherever the sum enters."""


@pytest.mark.parametrize("name", RECOGNISED)
def test_what_is_recognised(name: str) -> None:
    value, count = RECOGNISED[name]
    form = flow_of(stored(value), shift=5)
    assert len(kept_results(form, form.n)) == count
    assert kept_steps(form) == ()


OPERANDS = {
    "masked": (lambda a, k, m: tw.where(k <= m, a, 0), 1),
    "masked twice": (lambda a, k, m: tw.where(k <= m, tw.where(k > m - 8, a, 0), 0), 2),
    "negative": (lambda a, k, m: -tw.where(k <= m, a, 0), 1),
    "another number elsewhere": (lambda a, k, m: tw.where(k <= m, a, 1), 0),
    "masked before an addition": (lambda a, k, m: tw.where(k <= m, a, 0) + 1, 0),
}
"""Functions of an operand, and the number of comparisons that hold wherever it is not 0."""


@pytest.mark.parametrize("name", OPERANDS)
def test_operands_that_are_recognised(name: str) -> None:
    function, count = OPERANDS[name]
    form = flow_of(stored(lambda acc, m, n, s: acc, function), shift=0)
    assert len(kept_steps(form)) == count
    draw = np.random.default_rng(3)
    a, b = (draw.standard_normal((rows, 70)).astype(np.float16) for rows in (50, 40))
    c = np.full((50, 40), np.nan, np.float32)
    # The checker takes rows past the end of A for rows inside if a mask gives them other numbers than 0.
    for target in ("reference", "cpu") if name != "masked before an addition" else ("cpu",):
        launch = stored(lambda acc, m, n, s: acc, function)(a, b, c, 0, target=target)
        assert launch.target == target
        found = compare_flow(launch.flow, {"C": c}, {"A": a, "B": b}, {"shift": 0})
        assert found.ok, found


# ---------------------------------------------------------------- every result


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("number", range(24))
def test_random_problems_on_the_reference(number: int) -> None:
    assert not (wrong := carried_out(number, "reference")), wrong


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("number", range(8))
def test_random_problems_on_the_cpu(number: int) -> None:
    assert not (wrong := carried_out(number, "cpu")), wrong


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule(name: str) -> None:
    schedule = SCHEDULES[name]
    deep = name.startswith(("deep", "persistent fragments"))
    draw = np.random.default_rng(5)
    a, b = (draw.standard_normal((rows, 136)).astype(np.float16) for rows in (264, 200))
    c = np.full((264, 200), np.nan, np.float32)
    kernel, numbers = (masks.triangular, {"shift": 7}) if deep else (lower, {"shift": -20})
    launch = kernel.bind(schedule=schedule)(a, b, c, **numbers, target="reference")
    assert launch.schedule == schedule
    found = compare_flow(launch.flow, {"C": c}, {"A": a, "B": b}, numbers)
    assert found.ok, found


def test_a_missing_comparison_is_found() -> None:
    """A kernel that leaves out one more tile stores wrong numbers."""
    draw = np.random.default_rng(6)
    a, b = (draw.standard_normal((96, 40)).astype(np.float16) for _ in range(2))
    c = np.full((96, 96), np.nan, np.float32)
    numbers = {"shift": 3}
    flow = lower(a, b, c, **numbers, target="reference").flow
    assert compare_flow(flow, {"C": c}, {"A": a, "B": b}, numbers).ok
    wrong = c.copy()
    wrong[64:, 32:64] = 0
    assert not compare_flow(flow, {"C": wrong}, {"A": a, "B": b}, numbers).ok
    wrong = c.copy()
    wrong[0, 95] = 1e-3
    assert not compare_flow(flow, {"C": wrong}, {"A": a, "B": b}, numbers).ok


# ---------------------------------------------------------------- symmetric results


@pytest.mark.in_turns(2)
@pytest.mark.parametrize("name", [name for name in SCHEDULES if name not in (*masks.UNEVEN, *masks.DECODING)])
def test_every_schedule_of_a_symmetric_result(name: str) -> None:
    draw = np.random.default_rng(7)
    a = draw.standard_normal((264, 72)).astype(np.float16)
    c = np.full((264, 264), np.nan, np.float32)
    launch = masks.gram.bind(schedule=SCHEDULES[name])(a, c, target="reference")
    assert launch.schedule == SCHEDULES[name]
    found = compare_flow(launch.flow, {"C": c}, {"A": a})
    assert found.ok, found
    for at in ((3, 200), (200, 3), (130, 131)):
        wrong = c.copy()
        wrong[at] += 0.01
        assert not compare_flow(launch.flow, {"C": wrong}, {"A": a}).ok


@pytest.mark.parametrize("name", ["parts of K", "stream", "shares", "persistent, wide"])
def test_schedules_that_no_symmetric_result_has(name: str) -> None:
    a, c = np.zeros((64, 32), np.float16), np.zeros((64, 64), np.float32)
    with pytest.raises(tw.ScheduleError, match=r"stored twice|one extent must divide|square blocks"):
        masks.gram.bind(schedule=SCHEDULES[name])(a, c, target="reference")


def test_the_refusal_of_split_k_names_fields_of_a_schedule() -> None:
    a, c = np.zeros((64, 32), np.float16), np.zeros((64, 64), np.float32)
    with pytest.raises(tw.ScheduleError) as refused:
        masks.gram.bind(schedule=SCHEDULES["parts of K"])(a, c, target="reference")
    named = set(re.findall(r"(\w+)=", str(refused.value)))
    assert "split_k" in named
    assert named <= {field.name for field in fields(tw.Schedule)}


def test_another_result_beside_a_symmetric_one_is_refused() -> None:
    @tw.kernel(A="M K", C="M M", D="M M")
    def both(A, C, D):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ A[n, k].T
            C[m, n] = acc
            C[n, m] = acc.T
            D[m, n] = acc * 2

    a, c = np.zeros((70, 32), np.float16), np.zeros((70, 70), np.float32)
    with pytest.raises(tw.TraceError, match=r"C is stored twice.* D is stored once"):
        both(a, c, c.copy(), target="reference")


UNEQUAL = {
    "scaled": lambda acc, m, n: (acc, 2 * acc),
    "another sign": lambda acc, m, n: (acc, tw.relu(acc)),
    "other numbers": lambda acc, m, n: (tw.maximum(acc, 1), tw.maximum(acc, 2)),
    "one side of the diagonal": lambda acc, m, n: (tw.where(m > n, acc, 0),) * 2,
    "a shifted band": lambda acc, m, n: (tw.where((m >= n) & (m < n + 20), acc, 0),) * 2,
}
"""Values below and above the diagonal that do not agree, of a sum and of the numbers of rows and columns."""


def stored_twice(values: Any) -> Any:
    """Return a kernel that stores two values of a sum, below and above the diagonal."""

    @tw.kernel(A="M K", C="M M")
    def made(A, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ A[n, k].T
            below, above = values(acc, tw.positions(m)[:, None], tw.positions(n))
            C[m, n] = below
            C[n, m] = above.T

    return made


@pytest.mark.parametrize("name", UNEQUAL)
def test_unequal_values_of_a_symmetric_result_are_refused(name: str) -> None:
    a, c = np.zeros((70, 32), np.float16), np.zeros((70, 70), np.float32)
    with pytest.raises(tw.TilewrightError, match=r"computed differently|its mask is not symmetric"):
        stored_twice(UNEQUAL[name])(a, c, target="reference")


def test_symmetric_bands_and_equal_formulas_are_stored_twice() -> None:
    draw = np.random.default_rng(8)
    a, c = draw.standard_normal((150, 32)).astype(np.float16), np.full((150, 150), np.nan, np.float32)
    for values in (
        lambda acc, m, n: (tw.where((m < n + 20) & (n < m + 20), acc, 0),) * 2,
        lambda acc, m, n: (tw.maximum(2 * acc, 1), tw.maximum(2 * acc, 1)),
    ):
        c[...] = np.nan
        launch = stored_twice(values)(a, c, target="reference")
        found = compare_flow(launch.flow, {"C": c}, {"A": a})
        assert found.ok, found


def test_half_of_the_tiles_are_computed() -> None:
    flow = masks.gram(np.zeros((64, 32), np.float16), np.zeros((64, 64), np.float32), target="reference").flow
    form = form_of(flow)
    for schedule in (SYNC, replace(SYNC, tile=(64, 32, 32)), replace(SYNC, tile=(32, 64, 32), group_n=2)):

        @tw.kernel(A="M K", C="M M", P="I J")
        def counted(A, C, P, *, schedule=schedule):
            one = tw.fragment(tw.blocked((1, 1), (1, 1)), tw.i32, fill=0)
            partition = partition_of(form, schedule).of(form, schedule, {"A": A, "C": C})
            for work in partition.items():
                tw.copy(one + 1, P.tile((1, 1), (work.m, work.n)))

        rows, columns, _ = schedule.tile
        found = np.zeros((-(-300 // rows), -(-300 // columns)), np.int32)
        counted(np.zeros((300, 40), np.float16), np.zeros((300, 300), np.float32), found, target="reference")
        i, j = np.indices(found.shape)
        side = max(rows, columns)
        assert ((i * rows // side >= j * columns // side) == found).all()


@pytest.mark.parametrize(
    ("store", "says"),
    [
        (lambda C, m, n, acc: C.__setitem__((m, n), acc), "stored twice"),
        (lambda C, m, n, acc: C.__setitem__((n, m), acc.T + C[n, m]), "is read and"),
    ],
)
def test_other_second_stores_are_refused(store: Any, says: str) -> None:
    @tw.kernel(A="M K", C="M M")
    def twice(A, C):
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ A[n, k].T
            C[m, n] = acc
            store(C, m, n, acc)

    with pytest.raises(tw.TraceError, match=says):
        twice(np.zeros((8, 4), np.float32), np.zeros((8, 8), np.float32), target="reference")


# ---------------------------------------------------------------- compiled kernels

BULK_TRIANGLE = replace(FORMS["cooperative"], tile=(128, 128, 64), stages=4, blocks=132, group_m=8)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "gfx942", "gfx1100"])
@pytest.mark.parametrize("name", ["lower", "others", "triangular", "gram"])
def test_compiles_without_spills(name: str, arch: str) -> None:
    dims = {"M": 4096, "N": 4096, "K": 4096, "B": 1}
    given = {}
    for text in KERNELS[name][1].split(", "):
        array, letters = text.split()
        given[array] = tw.like(tw.f32 if array == "C" else tw.bf16, *(dims[one] for one in letters))
    numbers = {} if name == "gram" else {"shift": 0}
    target = "hip" if arch.startswith("gfx") else "cuda"
    compiled = KERNELS[name][0].compile(*given.values(), **numbers, target=target, arch=arch)
    spilled = "spilled_registers" if target == "hip" else "spill_store_bytes"
    assert compiled.resources[spilled] == 0
