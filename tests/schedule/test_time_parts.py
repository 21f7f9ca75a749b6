"""The estimate of time is near measured times on two cards, ordered, monotone, and finite."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.arch import Board
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.specimens import Specimen
from tilewright.schedule.choice import candidates, choose
from tilewright.schedule.family_estimates import COLUMN_US
from tilewright.schedule.legality import with_fallback
from tilewright.schedule.load import Load
from tilewright.schedule.question import Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.tables import read_schedule
from tilewright.schedule.time_parts import TimeParts, WorkCounts, joined, parts_of, ranked_us, time_parts
from tilewright.targets.nvidia import SM_90A

ROOT = Path(__file__).parents[2]
HOPPER = SM_90A.times
H100 = Board("H100 SXM", 132, 1980, 3350, 50)
"""Of which no constant was fitted: only the memory's rate differs from that of an H200."""

EVERY = 3
"""Every third measured product is enough."""


def question(
    kind: str, shape: tuple[int, int, int], layout: str = "nt", arch: str = "sm_90a", items: int = 0
) -> Question:
    m, n, k = shape
    dtype, precision = ("f32", "tf32") if kind == "tf32" else (kind, "exact")
    lead = (items,) if items else ()

    def array(element: Any, rows: int, columns: int, letter: str = "n") -> Specimen:
        inner = (columns, 1) if letter == "n" else (1, rows)
        strides = (rows * columns, *inner) if lead else inner
        return tw.like(element, *lead, rows, columns, strides=strides)

    a, b = layout
    given = array(dtype, m, k, a), array(dtype, k, n, b), array(output_dtype(tw.dtype(dtype)), m, n)
    target = "hip" if arch.startswith("gfx") else "cuda"
    found = plain(len(lead)).bind(precision=precision).question(*given, target=target, arch=arch)
    assert found is not None
    return found


def measured(card: str, board: Board | None = None) -> tuple[list[str], list[float]]:
    """Return the kinds of the measured products of a card, and log(estimate / time) of each."""
    found = json.loads((ROOT / "benchmarks" / "products" / f"{card}.json").read_text())
    kinds, off = [], []
    for dtype, layout, items, m, n, k, us, at in found["rows"][::EVERY]:
        asked = question(dtype, (m, n, k), layout, items=items)
        work = WorkCounts(Load(asked, read_schedule(found["schedules"][at])), board)
        is_odd = any(asked.is_cut(factor) and width < 16 for factor, width in widths(work))
        kind = "batches" if items else "odd rows" if is_odd else "few rows" if min(m, n) <= 64 else "others"
        kinds.append(kind)
        off.append(math.log(parts_of(work, HOPPER).total / us))
    return kinds, off


def widths(work: WorkCounts) -> list[tuple[Any, int]]:
    return [(factor, at) for (factor, _, _), at in zip(work.sides, work._access_bytes, strict=True)]


@pytest.mark.parametrize(("card", "board", "most"), [("h200", None, 0.10), ("h100", H100, 0.12)])
def test_estimates_are_near_measured_times(card: str, board: Board | None, most: float) -> None:
    kinds, off = measured(card, board)
    size = np.abs(off)
    assert len(size) > 90
    assert np.median(size) < most
    assert np.percentile(size, 90) < 0.27
    for kind in {*kinds} - {"batches"}:
        own = [one for one, name in zip(size, kinds, strict=True) if name == kind]
        assert len(own) > 20, kind
        assert np.median(own) < 0.15, kind


def test_slower_candidates_have_larger_estimates() -> None:
    """The estimate orders 19 of 20 pairs of schedules whose times differ by 30 per cent."""
    found = json.loads((ROOT / "benchmarks" / "results" / "h200_candidates.json").read_text())
    right = pairs = 0
    for row in found["rows"]:
        if row["sizes"] or row["items"]:
            continue
        asked = question(row["dtype"], tuple(row["shape"]), row["layout"])
        rated = [(us[0], ranked_us(Load(asked, read_schedule(text)))) for text, us in row["times"].items()]
        both = [(one, other) for one in rated for other in rated if other[0] > 1.3 * one[0]]
        pairs += len(both)
        right += sum(slow[1] > fast[1] for fast, slow in both)
    assert pairs > 1000
    assert right > 0.94 * pairs


def parts(asked: Question, schedule: Schedule) -> TimeParts:
    found = time_parts(Load(asked, schedule))
    assert found is not None
    return found


GROWING: dict[str, Callable[[int, int, int], tuple[int, int, int]]] = {
    "rows": lambda m, n, k: (2 * m, n, k),
    "columns": lambda m, n, k: (m, 2 * n, k),
    "depth": lambda m, n, k: (m, n, 2 * k),
}


@pytest.mark.parametrize("growing", GROWING)
@pytest.mark.parametrize("arch", ["sm_80", "sm_89", "sm_90a"])
def test_larger_products_take_longer_under_the_same_schedule(growing: str, arch: str) -> None:
    draw = np.random.default_rng(3)
    for _ in range(6):
        m, n, k = (int(2 ** draw.uniform(3, 12)) // 8 * 8 + 8 for _ in range(3))
        asked, larger = (
            question("bf16", shape, arch=arch) for shape in ((m, n, k), GROWING[growing](m, n, k))
        )
        schedule = choose(asked)
        small, large = parts(asked, schedule), parts(larger, schedule)
        assert large.memory > small.memory
        assert large.total >= small.total - 1e-6, (m, n, k, schedule)


EXTREMES = (
    (1, 1, 1),
    (1, 1, 1 << 22),
    (1 << 20, 1, 1),
    (1, 1 << 20, 7),
    (65537, 65539, 3),
    (16384, 16384, 16384),
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_90a", "gfx942"])
@pytest.mark.parametrize("kind", ["bf16", "f32"])
def test_every_candidate_of_extreme_shapes_has_a_finite_time(arch: str, kind: str) -> None:
    for shape in EXTREMES:
        asked = question(kind, shape, "nn", arch)
        for one in candidates(asked):
            found = parts(asked, one.schedule)
            values = [*asdict(found).values(), found.main_loop, found.total]
            assert all(math.isfinite(us) and us >= 0 for us in values), (shape, one.schedule)
            assert found.total >= found.launch > 0
            assert found.total <= sum(asdict(found).values()) + 1e-9, "nothing takes longer than one by one"


def test_only_the_memory_of_another_card_changes_what_waits_for_memory() -> None:
    schedule = choose(asked := question("bf16", (16, 14336, 4096)))
    assert parts(asked, schedule).limit == "memory"
    rows = {
        board.name: parts_of(WorkCounts(Load(asked, schedule), board), HOPPER) for board in (H100, sheet())
    }
    slow, fast = rows["H100 SXM"], rows["H200 SXM"]
    assert slow.memory / fast.memory == pytest.approx(4800 / 3350, rel=0.01)
    assert 1.2 < slow.total / fast.total < 4800 / 3350
    assert (slow.multiply, slow.cache, slow.chain) == (fast.multiply, fast.cache, fast.chain)
    dense = question("bf16", (8192, 8192, 8192))
    schedule = choose(dense)
    both = [parts_of(WorkCounts(Load(dense, schedule), board), HOPPER).total for board in (H100, sheet())]
    assert both[0] == pytest.approx(both[1], rel=0.01)


def sheet() -> Board:
    """Return an H200 from the data sheet alone, without its measured copy."""
    rates = question("bf16", (8, 8, 8)).arch.rates
    assert rates is not None
    return replace(rates.boards[0], copied_gbytes_per_s=0)


@pytest.mark.parametrize(("arch", "tflops"), [("sm_80", 312), ("sm_89", 366)])
def test_cards_that_were_not_measured_are_limited_by_their_data_sheets(arch: str, tflops: float) -> None:
    asked = question("bf16", (4096, 4096, 4096), arch=arch)
    found = parts(asked, choose(asked))
    least = 2 * 4096**3 / tflops / 1e6
    assert least <= found.total < 3 * least
    few = question("bf16", (16, 14336, 4096), arch=arch)
    assert few.arch.rates is not None
    moved = 2 * (16 * 4096 + 4096 * 14336 + 16 * 14336)
    copied = 0.885e3 * few.arch.rates.boards[0].memory_gbytes_per_s
    assert parts(few, choose(few)).memory == pytest.approx(moved / copied)


def test_no_time_is_estimated_without_rates() -> None:
    given = (tw.like("f32", 64, 64), tw.like("f32", 64, 64), tw.like("f32", 64, 64))
    asked = plain(0).bind(precision="exact").question(*given, target="cpu")
    assert asked is not None
    assert time_parts(Load(asked, choose(asked))) is None
    assert ranked_us(Load(asked, choose(asked))) == 0


def test_threads_wait_for_rows_that_no_instruction_copies_in_the_background() -> None:
    schedule = Schedule(tw.atoms.MMA_BF16, (64, 64, 64), (2, 2), stages=4, staging="cp_async")
    assert not WorkCounts(Load(question("bf16", (512, 512, 4098)), schedule)).awaits_copies
    asked = question("bf16", (512, 512, 4097))
    assert WorkCounts(Load(asked, schedule)).awaits_copies
    fallen, _ = with_fallback(choose(asked), asked.form, asked.classes, asked.arch)
    assert WorkCounts(Load(asked, fallen)).awaits_copies


def test_parts_of_k_meet_and_clusters_fill_whole_tiles() -> None:
    asked = question("bf16", (64, 64, 65536))
    chosen = choose(asked)
    found = parts(asked, chosen)
    assert found.meeting > 0
    assert WorkCounts(Load(asked, chosen)).parts > 1
    whole = parts(asked, replace(choose(question("bf16", (512, 512, 512))), blocks=0))
    assert whole.meeting == 0
    assert found.total < whole.total / 4
    wide = replace(choose(question("bf16", (8192, 8192, 4096))), cluster=(2, 1))
    ragged = WorkCounts(Load(question("bf16", (8193, 8192, 4096)), wide))
    assert ragged.tiles == 66 * -(-8192 // wide.tile[1])


def test_times_that_overlap_take_the_longest_at_least_and_the_sum_at_most() -> None:
    draw = np.random.default_rng(0)
    for _ in range(50):
        times: Sequence[float] = draw.uniform(0, 10, 3).tolist()
        assert max(times) <= joined(*times) <= sum(times)


def test_a_column_takes_as_long_as_tensor_cores_need() -> None:
    rates = SM_90A.rates
    assert rates is not None
    # 64 rows by one column along 128 bytes of bf16.
    reached, peak = 2 * 64 * 64 / COLUMN_US, rates.tensor_flops["bf16"] * rates.boards[0].clock_mhz
    assert 0.6 < reached / peak < 1
