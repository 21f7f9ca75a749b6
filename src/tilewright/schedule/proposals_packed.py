"""Products with packed weights on NVIDIA GPUs, decoded between shared memory and ``mma.sync``.

Weights lie along the rows of the instruction, whether they are A or B, so that few rows of the other operand
cost little.  Two things count then: how many warps decode on each multiprocessor, and that no block waits for
the end of another, so that K is split if tiles are few.  The estimate models how fast warps decode, and the
bytes; it was fitted to products of 1 to 64 rows on an H200.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from tilewright.schedule.estimate import PackedEstimate
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

LEAST_STAGES, MOST_STAGES = 3, 5

ROWS_TOO = 16
"""Rows of a tile of the other operand that must be whole too; see `_whole`."""

PAIR = 2
"""Blocks of a cluster; with four and more a workspace was faster."""


@dataclass(frozen=True)
class PackedForm:
    """A tile of packed weights, and how warps and groups share it.

    Args:
        rows: columns of the weights in a tile.
        warps: that share them.
        depth: of a tile along K.
        beside: blocks that share a multiprocessor.
        groups: that share a tile along K, each with this number of warps.
        columns: rows of the other operand for which the form was measured; 0: any.
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
    """Legal forms in the order of their estimates; none unless one operand is packed along K.

    Args:
        question: a problem with an operand that is decoded.
    """
    form = question.form
    packed = [factor.dtype.is_packed for factor in form.factors]
    if packed.count(True) != 1 or question.dtype.name not in ("f16", "bf16") or question.majors != ("k", "k"):
        return
    swap = packed[1]
    asked = question.transposed() if swap else question
    if asked.shape[1] <= COLUMNS[-1]:
        made = [*_of_few_rows(asked, swap)]
    else:  # multiplications bound these tiles; if tiles are few, warps decode different rows
        n, m, _ = asked.shape
        forms = [((128, 128, 64), (4, 2), 3)]
        if -(-n // 128) * -(-m // 128) < asked.processors:
            forms = [((64, 64, 128), (4, 1), 4), ((64, 64, 64), (4, 1), 5), ((64, 64, 64), (2, 2), 4)]
        made = [
            Candidate(
                _schedule(asked, tile, warps, stages, swap),
                1.0 + at,
                f"packed weights decoded for tiles of {tile[0]} x {tile[1]}",
            )
            for at, (tile, warps, stages) in enumerate(forms)
        ]
    made.sort(key=lambda one: (one.estimate, -one.schedule.stages))
    yield from (one for one in made if is_carried(question, one.schedule))


def _of_few_rows(asked: Question, swap: bool) -> Iterator[Candidate]:
    """Every form, with each number of parts of K."""
    (_, m, k), a = asked.shape, asked.form.a
    columns = next(count for count in COLUMNS if m <= count)
    is_free = asked.splitting is None
    splits = SPLITS if asked.splitting is None or asked.splitting.split_k is None else SPLITS[:1]
    side_bytes = sum(part.operand.dtype.bytes for part in a.beside)
    for form, split in product(FORMS, splits):
        rows, depth, shared = form.rows, form.depth, form.groups > 1
        # Seen with NVRTC 13: zero points do not fit into registers together with the scales, and spill.
        spills = len(a.beside) > 1 and columns > COLUMNS[0] and (rows > MOST_SPLIT_ROWS or shared)
        if spills or form.columns not in (0, columns):
            continue
        if split > 1 and (k < split * LEAST_STEPS * depth or rows > MOST_SPLIT_ROWS):
            continue
        # Groups share K if each has enough steps, and nothing else splits K.
        if shared and (split > 1 or not is_free or k < form.groups * LEAST_STEPS * depth):
            continue
        # A stage holds scales and zero points of at most two groups along K.
        groups_along_k = max((1, *(depth // run for run in a.runs)))
        stage = a.dtype.bytes_of(rows * (depth + row_gap(a.dtype, depth)))
        stage += columns * depth * asked.dtype.bytes + side_bytes * rows * groups_along_k
        for reduction in ("cluster", "workspace") if split == PAIR and is_free else ("workspace",):
            room = asked.arch.shared_bytes // form.beside - BARRIERS_BYTES
            if reduction == "cluster" or shared:  # sums for the other block of a cluster, or the first group
                room -= form.groups * rows * (columns + 8) * 4
            stages = min(room // (stage * form.groups), MOST_STAGES)
            if stages < LEAST_STAGES:
                continue
            tile = (rows, columns, depth)
            schedule = replace(
                _schedule(asked, tile, (form.warps, 1), stages, swap),
                group_m=0,  # one tile holds all rows of the other operand: the order of tiles does not matter
                whole=_whole(asked, tile, form),
                split_k=split,
                reduction=reduction,
                groups=form.groups,
            )
            how = f", K in {split} parts" if split > 1 else ""
            how = f", {form.groups} groups that share K" if shared else how
            rule = f"{rows} packed rows by {columns}, {depth} deep, {form.beside} blocks at once{how}"
            time = PackedEstimate(beside=form.beside).time_us(Load(asked, schedule))
            yield Candidate(schedule, time, rule)


def _whole(asked: Question, tile: tuple[int, int, int], form: PackedForm) -> str:
    """Dimensions that are multiples of a tile, along which no access checks where an array ends.

    On an H200 that, and no order of tiles, takes 0.1 to 0.4 us off a product of 4096 x 4096 weights.  Rows of
    the other operand belong to them only if there are 16 and groups share K, which gains 2 per cent.
    Elsewhere it gains nothing, some kernels spill, and each number of rows would have its own kernel.
    """
    if asked.form.flow.grouped is not None or asked.form.lists:
        return ""
    sides = zip("mnk", asked.shape, tile, strict=True)
    found = [dim for dim, extent, unit in sides if extent and extent % unit == 0]
    rows_too = form.groups > 1 and tile[1] == ROWS_TOO
    return "".join(dim for dim in found if dim != "n" or rows_too)


def _schedule(
    asked: Question, tile: tuple[int, int, int], warps: tuple[int, int], stages: int, swap: bool
) -> Schedule:
    atom = tensor_core(asked)
    assert atom is not None, "halves have an atom"
    return Schedule(atom, tile, warps, stages=stages, staging="fragments", group_m=BAND, swap_ab=swap)
