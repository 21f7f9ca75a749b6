"""Tiles that are fitted to a problem: they divide it evenly, fill their ring, and run at once or split K."""

from __future__ import annotations

import random
from dataclasses import replace
from math import inf

import pytest

import tilewright as tw
from tilewright.ops.products import plain
from tilewright.schedule.choice import choose
from tilewright.schedule.legality import reasons
from tilewright.schedule.load import Load
from tilewright.schedule.proposals_wgmma import FITTED_STAGES, _doubted_us, _fitted, _with_full_ring
from tilewright.schedule.question import Question
from tilewright.schedule.resources import ScheduleOnMachine

PROCESSORS = (132, 114, 66, 7)
"""Multiprocessors of an H200, of two smaller cards, and of a share of one."""


def asked(m: int, n: int, k: int, layout: str = "nt", items: int = 0, processors: int = 132) -> Question:
    lead = (items,) if items else ()
    a = tw.like("bf16", *lead, m, k, order="C" if layout[0] == "n" else "F")
    b = tw.like("bf16", *lead, k, n, order="C" if layout[1] == "n" else "F")
    kernel = plain(len(lead)).bind(precision="exact")
    found = kernel.question(a, b, tw.like("bf16", *lead, m, n), target="cuda", arch="sm_90a")
    assert isinstance(found, Question)
    return replace(found, processors=processors)


def drawn(number: int) -> Question:
    draw = random.Random(number)
    m, n, k = (8 * int(2 ** draw.uniform(0, most)) for most in (9, 9, 12))
    items = draw.choice([0, 0, 0, 2, 5])
    layout = draw.choice(["nt", "nn", "tn", "tt"]) if not items else "nn"
    return asked(m, n, k, layout, items, draw.choice(PROCESSORS))


@pytest.mark.parametrize("number", range(24))
def test_fitted_tiles_divide_the_columns_and_run_at_once(number: int) -> None:
    question = drawn(number)
    for one in _fitted(question, inf):
        load = Load(question, one.schedule)
        (m, n), (rows, columns, _) = load.extents, one.schedule.tile
        across, beside = load.tiles_along
        assert rows <= 64 or 2 * m > rows, "more than half of each tile would lie outside"
        assert (beside - 1) * columns < n <= beside * columns
        assert load.tiles * load.parts <= question.processors
        assert (load.parts > 1) == one.schedule.is_split
        if one.schedule.is_split:
            assert 2 * across * beside * max(question.items, 1) <= question.processors


@pytest.mark.parametrize("number", range(24))
def test_the_ring_of_a_fitted_tile_is_full(number: int) -> None:
    question, (least, most) = drawn(number), FITTED_STAGES
    for one in _fitted(question, inf):
        case = ScheduleOnMachine(one.schedule, question.form, question.specs, question.arch)
        assert case.shared_bytes <= question.arch.shared_bytes
        assert least <= one.schedule.stages <= most
        full = _with_full_ring(question, one.schedule)
        assert full is not None
        if full != one.schedule:  # K in parts needs less memory for results than the tile that was fitted
            assert one.schedule.is_split
            assert one.schedule.stages < full.stages
        more = replace(full, stages=full.stages + 1)
        taken = ScheduleOnMachine(more, question.form, question.specs, question.arch).shared_bytes
        assert full.stages == most or taken > question.arch.shared_bytes


@pytest.mark.parametrize("number", range(24))
def test_tiles_that_are_too_slow_are_left_out_and_no_others(number: int) -> None:
    question = drawn(number)
    every = _fitted(question, inf)
    for most in {_doubted_us(one) for one in every}:
        assert _fitted(question, most) == [one for one in every if _doubted_us(one) < most]


@pytest.mark.parametrize("number", range(24, 40))
def test_the_choice_is_legal_on_any_number_of_processors(number: int) -> None:
    question = drawn(number)
    chosen = choose(question)
    assert not reasons(chosen, question.form, question.classes, question.arch)


def test_rows_outside_the_array_are_avoided() -> None:
    """192 rows in two tiles of 128 took twice the time: a quarter of the rows lay outside."""
    for rows, tile in ((64, 64), (96, 96), (192, 192)):
        question = asked(rows, 8192, 8192)
        load = Load(question, choose(question))
        m_side = 1 if load.schedule.swap_ab else 0
        assert load.schedule.tile[m_side] * load.tiles_along[m_side] == tile
        assert load.extents[m_side] == rows


def test_nothing_is_fitted_to_problems_of_nothing() -> None:
    for shape in ((0, 64, 64), (64, 0, 64)):
        assert not _fitted(asked(*shape), inf)
