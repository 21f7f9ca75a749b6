"""Products with packed weights on NVIDIA GPUs, decoded between shared memory and ``mma.sync``.

Weights lie along the rows of the instruction, whatever side they are on, so that few rows of the other
operand cost little.  What counts then is how many bytes are on their way: deep tiles in rings that fill the
shared memory of a multiprocessor, and K in parts where tiles are few.  Estimates are a model of bytes and of
instructions for each weight, as the text has them; they were not fitted to a machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.schedule.choose import Candidate, Question
from tilewright.schedule.choose_few_rows import BARRIERS_BYTES
from tilewright.schedule.choose_forms import BAND
from tilewright.schedule.choose_reference import tensor_core
from tilewright.schedule.choose_waiting import is_carried
from tilewright.schedule.lane_runs import row_gap
from tilewright.schedule.schedule import Schedule

COLUMNS = (8, 16, 32, 64)
"""Rows of the other operand that a tile takes: the smallest that hold all of them."""

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16)
"""Parts of K that are tried."""

LEAST_STEPS = 3
"""Of a part of K: fewer end before the ring is filled."""

MOST_STAGES = 8

LAUNCH_US, PART_US, WAVE_US = 2.5, 1.5, 1.0
"""A launch; that parts of K meet; that a block's first tiles come and its results go."""

WEIGHTS_PER_CLOCK = 26
"""That a multiprocessor decodes: 128 lanes, 3.2 instructions for each, two thirds of the time."""

CLOCKS_PER_US = 1700

REACHED = 0.85
"""Of the memory's rate, by what streams."""


@dataclass(frozen=True)
class Form:
    """How many weights a block takes at once.

    Args:
        rows: columns of the weights in a tile.
        warps: that share them.
        depth: of a tile along K.
        beside: blocks that share a multiprocessor.
    """

    rows: int
    warps: int
    depth: int
    beside: int


FORMS = (
    Form(64, 4, 256, 3),
    Form(64, 4, 256, 2),
    Form(64, 4, 128, 4),
    Form(64, 4, 128, 2),
    Form(128, 4, 128, 3),
    Form(128, 4, 128, 2),
    Form(128, 4, 256, 2),
    Form(128, 8, 256, 2),
    Form(32, 2, 256, 6),
    Form(32, 2, 256, 4),
)
"""Those for few rows."""


def candidates(question: Question) -> Iterator[Candidate]:
    """Forms in the order of their estimates, all of which are legal; none where nothing is packed along K.

    Args:
        question: a problem with an operand that is computed from what lies in memory.
    """
    form = question.form
    packed = [factor.dtype.is_packed for factor in form.factors]
    if packed.count(True) != 1 or question.dtype.name not in ("f16", "bf16") or question.majors != ("k", "k"):
        return
    swap = packed[1]
    asked = question
    if swap:
        *batch, m, n, k = question.extents
        asked = replace(question, form=form.arranged(True), extents=(*batch, n, m, k))
    made = [*_of_few_rows(asked, swap)] if asked.shape[1] <= COLUMNS[-1] else [_of_many(asked, swap)]
    made.sort(key=lambda one: one.estimate)
    yield from (one for one in made if is_carried(question, one.schedule))


def _of_few_rows(asked: Question, swap: bool) -> Iterator[Candidate]:
    """Every form, with its K in every number of parts."""
    _, m, k = asked.shape
    columns = next(count for count in COLUMNS if m <= count)
    splits = SPLITS if asked.splitting is None or asked.splitting.split_k is None else SPLITS[:1]
    for form, split in product(FORMS, splits):
        if split > 1 and k < split * LEAST_STEPS * form.depth:
            continue
        stages = min(_room(asked, form) // _stage_bytes(asked, form, columns), MOST_STAGES)
        if stages < 3:
            continue
        schedule = _schedule(asked, (form.rows, columns, form.depth), (form.warps, 1), stages, swap)
        rule = f"{form.rows} packed rows by {columns}, {form.depth} deep, {form.beside} blocks at once"
        how = f", K in {split} parts" if split > 1 else ""
        yield Candidate(replace(schedule, split_k=split), _time_us(asked, form, split), rule + how)


def _of_many(asked: Question, swap: bool) -> Candidate:
    """A tile that is bound by its multiplications."""
    n, m, _ = asked.shape
    small = -(-n // 128) * -(-m // 128) < asked.processors
    tile, warps = ((64, 64, 64), (2, 2)) if small else ((128, 128, 64), (4, 2))
    made = _schedule(asked, tile, warps, 4 if small else 3, swap)
    return Candidate(made, 1.0, f"packed weights decoded for tiles of {tile[0]} x {tile[1]}")


def _schedule(
    asked: Question, tile: tuple[int, int, int], warps: tuple[int, int], stages: int, swap: bool
) -> Schedule:
    atom = tensor_core(asked)
    assert atom is not None, "there is one for halves"
    return Schedule(atom, tile, warps, stages=stages, staging="fragments", group_m=BAND, swap_ab=swap)


def _room(asked: Question, form: Form) -> int:
    """Bytes of shared memory that a block has."""
    return asked.arch.shared_bytes // form.beside - BARRIERS_BYTES


def _stage_bytes(asked: Question, form: Form, columns: int) -> int:
    """Of a stage, with the scales and zero points of two groups at most."""
    kind = asked.form.a.dtype
    weights = kind.bytes_of(form.rows * (form.depth + row_gap(kind, form.depth)))
    beside = sum(part.operand.dtype.bytes for part in asked.form.a.beside) * form.rows
    groups = max((form.depth // run for run in asked.form.a.runs), default=1)
    return weights + columns * form.depth * asked.dtype.bytes + beside * max(groups, 1)


def _time_us(asked: Question, form: Form, split: int) -> float:
    """Waves of blocks, each bound by memory or by what a multiprocessor decodes."""
    n, _, k = asked.shape
    rates = asked.arch.rates
    if rates is None:
        return float(split)
    blocks, at_once = -(-n // form.rows) * split, asked.processors * form.beside
    waves = -(-blocks // at_once)
    weights = form.rows * -(-k // split) * min(blocks, at_once)
    busy = min(blocks, asked.processors)
    bytes_ = asked.form.a.dtype.bytes_of(weights)
    memory = bytes_ / (rates.boards[0].memory_gbytes_per_s * 1e3 * REACHED)
    decoding = weights / busy / (WEIGHTS_PER_CLOCK * min(form.beside * form.warps / 8, 1)) / CLOCKS_PER_US
    parts = PART_US if split > 1 else 0.0
    return LAUNCH_US + parts + waves * (WAVE_US + max(memory, decoding))
