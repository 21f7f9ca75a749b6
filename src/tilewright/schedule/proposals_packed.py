"""Products with packed weights on NVIDIA GPUs, decoded between shared memory and ``mma.sync``.

Weights lie along the rows of the instruction, whatever side they are on, so that few rows of the other
operand cost little.  What counts then is how many warps decode on each multiprocessor, and that no block has
to wait for the end of another: K is split where tiles are few.  Estimates are a model of what warps decode,
and of bytes, fitted to products of 1 to 64 rows on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.schedule.estimate_forms import PackedEstimate
from tilewright.schedule.fallback import is_carried
from tilewright.schedule.load import BARRIERS_BYTES, Load
from tilewright.schedule.proposals_reference import tensor_core
from tilewright.schedule.question import BAND, Candidate, Question
from tilewright.schedule.schedule import Schedule
from tilewright.schedule.sides import row_gap

COLUMNS = (8, 16, 32, 64)
"""Rows of the other operand that a tile takes: the smallest that hold all of them."""

SPLITS = (1, 2, 4, 8, 16)
"""Parts of K that are tried."""

MOST_SPLIT_ROWS = 64
"""Rows of weights in a tile whose K is split, at most; larger tiles took longer."""

LEAST_STEPS = 3
"""Steps of a part of K, at least; with fewer the ring is never full."""

MOST_STAGES = 5

ROWS_TOO = 16
"""Rows of the other operand that are whole tiles, too."""

PAIR = 2
"""Blocks of a cluster; four and more took longer than by a workspace."""


@dataclass(frozen=True)
class PackedForm:
    """How many weights a block takes at once.

    Args:
        rows: columns of the weights in a tile.
        warps: that share them.
        depth: of a tile along K.
        beside: blocks that share a multiprocessor.
        groups: that share a tile along K, each of so many warps.
        columns: rows of the other operand for which it was measured; 0: any.
    """

    rows: int
    warps: int
    depth: int
    beside: int
    groups: int = 1
    columns: int = 0


FORMS = (
    PackedForm(16, 1, 128, 2, groups=8, columns=8),
    PackedForm(32, 2, 256, 1, groups=4, columns=16),
    PackedForm(64, 2, 128, 1, groups=4, columns=16),
    PackedForm(64, 4, 256, 3),
    PackedForm(64, 4, 256, 4),
    PackedForm(64, 4, 256, 2),
    PackedForm(64, 4, 128, 4),
    PackedForm(64, 4, 128, 2),
    PackedForm(128, 4, 256, 2),
    PackedForm(128, 4, 128, 2),
    PackedForm(32, 2, 256, 6),
    PackedForm(32, 2, 256, 4),
)
"""Forms for few rows."""


def packed_weights(question: Question) -> Iterator[Candidate]:
    """Forms in the order of their estimates, all of which are legal; none where nothing is packed along K.

    Args:
        question: a problem with an operand that is computed from what lies in memory.
    """
    form = question.form
    packed = [factor.dtype.is_packed for factor in form.factors]
    if packed.count(True) != 1 or question.dtype.name not in ("f16", "bf16") or question.majors != ("k", "k"):
        return
    swap = packed[1]
    asked = question.transposed() if swap else question
    made = [*(_of_few_rows if asked.shape[1] <= COLUMNS[-1] else _of_many)(asked, swap)]
    made.sort(key=lambda one: (one.estimate, -one.schedule.stages))
    yield from (one for one in made if is_carried(question, one.schedule))


def _of_few_rows(asked: Question, swap: bool) -> Iterator[Candidate]:
    """Every form, with its K in every number of parts."""
    _, m, k = asked.shape
    columns = next(count for count in COLUMNS if m <= count)
    splits = SPLITS if asked.splitting is None or asked.splitting.split_k is None else SPLITS[:1]
    for form, split in product(FORMS, splits):
        if _spills(asked, form, columns):
            continue
        if split > 1 and (k < split * LEAST_STEPS * form.depth or form.rows > MOST_SPLIT_ROWS):
            continue
        if form.columns not in (0, columns) or not _fits_groups(asked, form, split):
            continue
        ways = ("cluster", "workspace") if split == PAIR and asked.splitting is None else ("workspace",)
        for reduction in ways:
            meets = reduction == "cluster" or form.groups > 1
            room = _room(asked, form) - (_sums_bytes(form, columns) if meets else 0)
            stages = min(room // (_stage_bytes(asked, form, columns) * form.groups), MOST_STAGES)
            if stages < LEAST_STEPS:
                continue
            tile = (form.rows, columns, form.depth)
            # One tile holds all rows of the other operand, so that no order of tiles is better than another.
            schedule = replace(
                _schedule(asked, tile, (form.warps, 1), stages, swap),
                group_m=0,
                whole=_whole(asked, tile, form),
            )
            rule = f"{form.rows} packed rows by {columns}, {form.depth} deep, {form.beside} blocks at once"
            how = f", K in {split} parts" if split > 1 else ""
            how = f", {form.groups} groups that share K" if form.groups > 1 else how
            parted = replace(schedule, split_k=split, reduction=reduction, groups=form.groups)
            time = PackedEstimate(beside=form.beside).time_us(Load(asked, parted))
            yield Candidate(parted, time, rule + how)


def _whole(asked: Question, tile: tuple[int, int, int], form: PackedForm) -> str:
    """The dimensions that are multiples of a tile, along which nothing is asked about where arrays end.

    On an H200 that, and no order of tiles, takes 0.1 to 0.4 us off a product of 4096 x 4096 weights.  Rows of
    the other operand are among them where there are 16 of groups that share K, which gain 2 per cent by it;
    elsewhere nothing is gained, some kernels spill, and each number of rows would have a kernel of its own.
    """
    if asked.form.flow.grouped is not None or asked.form.lists:
        return ""
    sides = zip("mnk", asked.shape, tile, strict=True)
    found = [dim for dim, extent, unit in sides if extent and extent % unit == 0]
    rows_too = form.groups > 1 and tile[1] == ROWS_TOO
    return "".join(dim for dim in found if dim != "n" or rows_too)


def _fits_groups(asked: Question, form: PackedForm, split: int) -> bool:
    """Whether groups may share K: with steps enough for each, where nothing else splits K."""
    alone = split == 1 and asked.splitting is None
    return form.groups == 1 or (alone and asked.shape[2] >= form.groups * LEAST_STEPS * form.depth)


def _of_many(asked: Question, swap: bool) -> Iterator[Candidate]:
    """Tiles that are bound by multiplications; where they are few, of warps that decode different rows."""
    n, m, _ = asked.shape
    small = -(-n // 128) * -(-m // 128) < asked.processors
    forms = [((128, 128, 64), (4, 2), 3)]
    if small:
        forms = [((64, 64, 128), (4, 1), 4), ((64, 64, 64), (4, 1), 5), ((64, 64, 64), (2, 2), 4)]
    for at, (tile, warps, stages) in enumerate(forms):
        made = _schedule(asked, tile, warps, stages, swap)
        yield Candidate(made, 1.0 + at, f"packed weights decoded for tiles of {tile[0]} x {tile[1]}")


def _schedule(
    asked: Question, tile: tuple[int, int, int], warps: tuple[int, int], stages: int, swap: bool
) -> Schedule:
    atom = tensor_core(asked)
    assert atom is not None, "there is one for halves"
    return Schedule(atom, tile, warps, stages=stages, staging="fragments", group_m=BAND, swap_ab=swap)


def _room(asked: Question, form: PackedForm) -> int:
    """Bytes of shared memory that a block has."""
    return asked.arch.shared_bytes // form.beside - BARRIERS_BYTES


def _stage_bytes(asked: Question, form: PackedForm, columns: int) -> int:
    """Bytes of a stage, with the scales and zero points of at most two groups."""
    kind = asked.form.a.dtype
    weights = kind.bytes_of(form.rows * (form.depth + row_gap(kind, form.depth)))
    beside = sum(part.operand.dtype.bytes for part in asked.form.a.beside) * form.rows
    groups = max((form.depth // run for run in asked.form.a.runs), default=1)
    return weights + columns * form.depth * asked.dtype.bytes + beside * max(groups, 1)


def _spills(asked: Question, form: PackedForm, columns: int) -> bool:
    """Whether zero points do not fit into registers beside the scales, as seen with NVRTC 13."""
    many = form.rows > MOST_SPLIT_ROWS or form.groups > 1
    return len(asked.form.a.beside) > 1 and columns > COLUMNS[0] and many


def _sums_bytes(form: PackedForm, columns: int) -> int:
    """Bytes of the sums that a block keeps for the other block of its cluster, or for its first group."""
    return form.groups * form.rows * (columns + 8) * 4
