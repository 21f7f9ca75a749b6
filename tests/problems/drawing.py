"""Random problems: kernel, dtypes, layouts, strides, extents, schedule; several problems share a kernel."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.movers.random_movers import Placed
from tests.problems.kernels import ACTIVATIONS, SUBJECTS, Subject
from tests.problems.partitions import CHOSEN, PARTITIONS, way_of
from tests.problems.schedules import SUMS, schedule_for

import tilewright as tw
from tilewright.schedule.question import Splitting
from tilewright.schedule.schedule import Schedule

EACH = 5
"""Problems that share a kernel, a schedule and a class of arrays, mostly, so that one text serves them."""

KINDS = ("f16", "f16", "bf16", "f32", "f32", "f64", "i8", "f8e4m3", "f8e5m2")
NARROW = ("f16", "bf16")
BULK_ROWS = 16
"""Bytes of which rows are a multiple where bulk copies move them."""

WITH_BATCHES = ("batched", "shared weights")
"""Subjects whose result has a leading dimension."""

MOST = {"cuda": 700, "cpu": 300, "reference": 90}
"""Rows and columns, mostly; twice as many at most."""

DEEPEST = {"cuda": 6000, "cpu": 4000, "reference": 700}
"""Along K, where that is split."""

STEP = {"cuda": 64, "cpu": 256, "reference": 32}
"""How deep a tile is, where it is chosen."""

ITEMS = {"cuda": 700, "cpu": 100, "reference": 20}
"""Batch items of small products, and how large one of them is at most."""
SMALL = 40


@dataclass(frozen=True)
class Group:
    """Properties that several problems share.

    Args:
        number: number of the group.
        partition: one of `PARTITIONS`, for all of them.
        subject: one of `SUBJECTS`.
        kind: the dtype of A.
        out: the dtype of the result.
        other: the dtype of arrays that are added to the sums.
        layout: a letter each for A, B and the others: ``"n"`` row by row, ``"t"`` column by column.
        padded: whether rows begin at multiples of 16 bytes.
        activation: one of `ACTIVATIONS`.
        schedule: the schedule that they run under; None: the chosen one, for the requested split of K.
    """

    number: int
    partition: str
    subject: str
    kind: str
    out: str
    other: str
    layout: str
    padded: bool
    activation: str
    schedule: Schedule | Splitting | None = None

    @property
    def about(self) -> Subject:
        """The kernel, and its arguments."""
        return SUBJECTS[self.subject]

    @property
    def bound(self) -> Any:
        """The kernel under the schedule."""
        constants = {"activation": self.activation} if self.about.activates else {}
        return self.about.kernel.bind(schedule=self.schedule, **constants)

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns and depth of a tile; an example if the schedule is chosen."""
        if not isinstance(self.schedule, Schedule):
            return (32, 32, 32)
        m, n, k = self.schedule.tile
        return (n, m, k) if self.schedule.swap_ab else (m, n, k)

    def dtype(self, name: str) -> tw.DType:
        """Return the dtype of an array, by its name."""
        if name == "B" and self.subject == "decoded":
            return tw.i8
        if name in "AB":
            return tw.dtype(self.kind)
        if name == "top":
            return tw.dtype(SUMS.get(self.kind, "f32"))
        return tw.dtype(self.out if name in self.about.stored else self.other)


@dataclass(frozen=True)
class Problem:
    """One problem.

    Args:
        number: of the problem.
        group: what it shares with others.
        extents: by name of the dimension.
        places: strides and start of each array, in elements.
        integers: whether all numbers are small integers, so that sums are exact.
    """

    number: int
    group: Group
    extents: tuple[tuple[str, int], ...]
    places: tuple[tuple[str, Placed], ...]
    integers: bool

    def __str__(self) -> str:
        group = self.group
        schedule = "chosen" if group.schedule is None else repr(group.schedule)
        extents = " ".join(f"{name}={extent}" for name, extent in self.extents)
        return (
            f"{self.number}, {group.partition}: {group.subject} {group.kind}->{group.out} {group.layout} "
            f"{extents}, {schedule}"
        )


def problem(number: int, target: str, partition: str = "") -> Problem:
    """Return the problem of a number, a target and a partition; None: all partitions in turn."""
    index, place = divmod(number, EACH)
    made = group(index, target, partition)
    draw = random.Random(f"problem {number} {target} {partition}")
    extents = extents_of(draw, made, target)
    places = []
    for parameter in made.about.kernel.program.parameters:
        if parameter.kind == "tensor":
            shape, name = tuple(extents[dim] for dim in parameter.dims or ()), parameter.name
            letter = made.layout["AB".index(name) if name in "AB" else 2]
            stored, odd = name in made.about.stored, place == EACH - 1 and not made.padded
            places.append((name, placed(draw, shape, made.dtype(name), letter, made.padded, stored, odd)))
    return Problem(number, made, tuple(extents.items()), tuple(places), draw.random() < 0.3)


def group(index: int, target: str, partition: str = "") -> Group:
    """Return the group of a number, a target and a partition."""
    draw = random.Random(f"group {index} {target} {partition}")
    partition = partition or PARTITIONS[index % len(PARTITIONS)]
    # One thread runs a block of a processor, which has no place for what is decoded between products.
    known = [name for name in SUBJECTS if target != "cpu" or name != "decoded"]
    subject = draw.choice(WITH_BATCHES if partition == "batches" else known)
    kind = draw.choice(NARROW if subject == "decoded" else KINDS)
    sums = SUMS.get(kind, "f32")
    outs = ("f32", "f16", "bf16") if SUBJECTS[subject].in_f32 else (sums, sums, *outs_of(kind))
    made = Group(
        index,
        partition,
        subject,
        kind,
        draw.choice(outs),
        draw.choice(("f32", "f16", "bf16")),
        "".join(draw.choice("nt") for _ in range(2)) + draw.choice("nnnt"),
        draw.random() < 0.6,
        draw.choice([*ACTIVATIONS]),
    )
    return replace(made, schedule=way(draw, made, target, decodes=subject == "decoded"))


def way(draw: random.Random, made: Any, target: str, *, decodes: bool = False) -> Schedule | Splitting | None:
    """Draw how problems of a partition are computed: under a drawn schedule, or a chosen one.

    Args:
        draw: where the numbers come from.
        made: what the problems share: partition, kind, subject, padded.
        target: what runs them.
        decodes: whether an operand is computed from the elements in memory.
    """
    is_chosen = made.partition in CHOSEN and not decodes and draw.random() < 0.4
    # On the reference small products are not dealt out several at a time.
    if is_chosen and (made.partition != "batches" or target != "reference"):
        return way_of(draw, made.partition, target)
    given = {"decodes": decodes, "reduces": made.subject == "largest", "aligned": made.padded}
    return schedule_for(draw, made.kind, target, made.partition, **given)


def outs_of(kind: str) -> tuple[str, ...]:
    """Return dtypes, besides their own, to which sums of products are rounded."""
    return () if kind in SUMS else ("f16", "bf16", kind) if kind in NARROW else ("f16", "bf16")


# ---------------------------------------------------------------- extents, strides


def extents_of(draw: random.Random, made: Group, target: str) -> dict[str, int]:
    """Draw extents that suit a partition: a few tiles, ragged or whole, and sometimes 0 or 1."""
    most = MOST[target]
    found = {"L": draw.choice((0, 1, 2, 3, 3))}
    for name, side in zip("MNK", made.tile, strict=True):
        found[name] = min(_extent(draw, side, most), 2 * most)
    if made.partition == "batches":
        found = {name: min(extent, SMALL) for name, extent in found.items()}
        found["L"] = draw.randint(0, ITEMS[target]) if made.schedule else ITEMS[target]
    elif made.partition == "swapped" and draw.random() < 0.7:
        found["M"] = draw.randint(1, 64)
    if made.partition in ("split", "stream", "swapped") and draw.random() < 0.7:
        step = made.tile[2] if isinstance(made.schedule, Schedule) else STEP[target]
        found["K"] = min(_deep(draw, made.schedule, step), DEEPEST[target])
    if made.padded and draw.random() < 0.7:
        found["N"] += -found["N"] % BULK_ROWS
    if made.subject == "largest":
        found["N"] = min(found["N"], made.tile[1])
    return found


def _extent(draw: random.Random, side: int, most: int) -> int:
    """Draw one extent, for tiles of one side."""
    kind = draw.random()
    if kind < 0.06:
        return draw.choice((0, 1))
    if kind < 0.3:
        return side * draw.randint(1, 3)
    return draw.randint(1, side + 1) if kind < 0.5 else draw.randint(1, most)


def _deep(draw: random.Random, schedule: Schedule | Splitting | None, step: int) -> int:
    """Draw K for its parts: fewer steps than parts, as many, many more; whole steps, or a cut last one."""
    wanted = None if schedule is None else schedule.split_k
    parts = wanted if isinstance(wanted, int) else draw.choice((2, 5, 16))
    steps = draw.choice((1, max(parts - 1, 1), parts, parts + 1, draw.randint(1, 4 * parts)))
    return max(steps * step - draw.choice((0, 0, 1, draw.randrange(step))), 0)


def placed(
    draw: random.Random,
    shape: Sequence[int],
    kind: tw.DType,
    letter: str,
    padded: bool,
    stored: bool,
    odd: bool,
) -> Placed:
    """Draw strides and start of an array: row-major, column-major, or any.

    Args:
        draw: where the numbers come from.
        shape: of the array.
        kind: its dtype.
        letter: ``"n"`` row by row, ``"t"`` column by column.
        padded: whether rows begin at multiples of 16 bytes.
        stored: whether it is written, so that no two elements may share memory.
        odd: whether it lies anywhere: dimensions in any order, strides below 0, and of 0 where it is read.
    """
    order = list(range(len(shape)))
    if letter == "t" and len(order) > 1:
        order[-2:] = order[:-3:-1]
    unit, start = 1, draw.choice((0, 16))
    if odd:
        unit, start = draw.choice((1, 1, 2)), draw.choice((0, 1, 3, 8))
        order = draw.sample(order, len(order)) if draw.random() < 0.3 else order
    strides = [0] * len(shape)
    reach = unit
    for rank, dim in enumerate(reversed(order)):
        strides[dim] = reach
        reach *= max(shape[dim], 1)
        if padded and rank == 0:
            row = BULK_ROWS // min(kind.bytes, BULK_ROWS)
            reach += -reach % row + row * draw.choice((0, 1, 2))
        elif not padded:
            reach += draw.choice((0, 0, 1, 5))
    for dim in range(len(shape)) if odd else ():
        turn = draw.random()
        if turn < 0.2:
            strides[dim] = -strides[dim]
        elif turn < 0.3 and not stored:
            strides[dim] = 0
    return Placed(tuple(strides), start)  # type: ignore[arg-type]
