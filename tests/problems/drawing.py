"""Problems drawn at random: kernel, dtypes, layouts, strides, extents, schedule; several share a kernel."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from tests.movers.random_movers import Placed
from tests.problems.kernels import ACTIVATIONS, SUBJECTS, Subject

import tilewright as tw
from tilewright.schedule.schedule import Schedule
from tilewright.targets.atoms import MMA_SYNC, WGMMA

EACH = 5
"""Problems that share a kernel, a schedule and a class of arrays, mostly, so that one text serves them."""

KINDS = ("f16", "f16", "bf16", "f32", "f32", "f64", "i8", "f8e4m3", "f8e5m2")
SUMS = {"f64": "f64", "i8": "i32"}
NARROW = ("f16", "bf16")
BULK_ROWS = 16
"""Bytes of which rows are a multiple where bulk copies move them."""


@dataclass(frozen=True)
class Group:
    """What several problems share.

    Args:
        number: of the group.
        subject: one of `SUBJECTS`.
        kind: the dtype of A.
        out: that of what is stored.
        other: that of what is added to the sums.
        layout: a letter each for A, B and the rest: ``"n"`` row by row, ``"t"`` column by column.
        padded: whether rows begin at multiples of 16 bytes.
        activation: one of `ACTIVATIONS`.
        schedule: None: the one that is chosen.
    """

    number: int
    subject: str
    kind: str
    out: str
    other: str
    layout: str
    padded: bool
    activation: str
    schedule: Schedule | None

    @property
    def about(self) -> Subject:
        """The kernel, and what it must be given."""
        return SUBJECTS[self.subject]

    @property
    def bound(self) -> Any:
        """The kernel under the schedule."""
        constants = {"activation": self.activation} if self.about.activates else {}
        return self.about.kernel.bind(schedule=self.schedule, **constants)

    def dtype(self, name: str) -> tw.DType:
        """Of an array, by its name."""
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
            f"{self.number}: {group.subject} {group.kind}->{group.out} {group.layout} {extents}, {schedule}"
        )


def problem(number: int, target: str) -> Problem:
    """A problem, always the same for a number and a target."""
    index, place = divmod(number, EACH)
    made = group(index, target)
    draw = random.Random(f"problem {number} {target}")
    extents = extents_of(draw, made, target)
    places = []
    for parameter in made.about.kernel.program.parameters:
        if parameter.kind == "tensor":
            shape = tuple(extents[dim] for dim in parameter.dims or ())
            places.append((parameter.name, placed(draw, made, parameter.name, shape, odd=place == EACH - 1)))
    return Problem(number, made, tuple(extents.items()), tuple(places), draw.random() < 0.3)


def group(index: int, target: str) -> Group:
    """A group, always the same for a number and a target."""
    draw = random.Random(f"group {index} {target}")
    # One thread runs a block of a processor, which has no place for what is decoded between products.
    known = [name for name in SUBJECTS if target != "cpu" or name != "decoded"]
    subject, kind = draw.choice(known), draw.choice(KINDS)
    if subject == "decoded":
        kind = draw.choice(NARROW)
    sums = SUMS.get(kind, "f32")
    outs = ("f32", "f16", "bf16") if SUBJECTS[subject].in_f32 else (sums, sums, *outs_of(kind))
    made = Group(
        index,
        subject,
        kind,
        draw.choice(outs),
        draw.choice(("f32", "f16", "bf16")),
        "".join(draw.choice("nt") for _ in range(2)) + draw.choice("nnnt"),
        draw.random() < 0.6,
        draw.choice([*ACTIVATIONS]),
        None,
    )
    if subject == "decoded" or draw.random() < 0.6:
        made = replace(made, schedule=schedule_for(draw, made, target))
    return made


def outs_of(kind: str) -> tuple[str, ...]:
    """What sums of products of a dtype are rounded to, besides their own."""
    return () if kind in SUMS else ("f16", "bf16", kind) if kind in NARROW else ("f16", "bf16")


# ---------------------------------------------------------------- schedules


def schedule_for(draw: random.Random, made: Group, target: str) -> Schedule:
    """A schedule that most likely is legal."""
    kind = tw.dtype(made.kind)
    if target == "cpu":
        atom = tw.atoms.fma(kind)
        m, n, _ = atom.shape
        tile = (m * draw.choice((1, 2, 5)), n * draw.choice((1, 2, 4)), draw.choice((16, 64, 256)))
        return Schedule(atom, tile)
    if made.subject != "decoded" and draw.random() < (0.6 if target == "cuda" else 0.3):
        rows = [row for row in WGMMA if row.a == row.b == kind and str(row.c) == SUMS.get(made.kind, "f32")]
        rows = [row for row in rows if made.kind != "f32"]  # whose products of f32 keep 10 bits
        if rows:
            return hopper(draw, made)
    fitting = [
        atom
        for atom in MMA_SYNC
        if atom.a_dtype == atom.b_dtype == kind
        and str(atom.c_dtype) == SUMS.get(made.kind, "f32")
        and atom.precision is None
    ]
    atom = (
        draw.choice(fitting)
        if fitting
        else tw.atoms.fma(kind, each=draw.choice(((1, 1), (4, 4))), paired=False)
    )
    m, n, k = atom.shape
    warps = draw.choice(((1, 1), (2, 1), (2, 2)))
    tile = (m * warps[0] * draw.choice((1, 2)), n * warps[1] * draw.choice((1, 2, 4)))
    staging = (
        "fragments"
        if made.subject == "decoded"
        else draw.choice(("direct", "registers", "cp_async", "cp_async", "fragments"))
    )
    ring = staging in ("cp_async", "fragments")
    return Schedule(
        atom,
        (*tile, max(k, 8) * draw.choice((2, 4))),
        warps,
        stages=draw.choice((3, 4) if made.subject == "decoded" else (2, 3, 4)) if ring else 1,
        staging=staging,
        blocks=draw.choice((0, 0, 3, 64)),
        group_m=draw.choice((1, 2, 8)),
        promote=draw.choice((0, 0, 1, 3)),
        epilogue=draw.choice(("direct", "direct", "staged")),
    )


def hopper(draw: random.Random, made: Group) -> Schedule:
    """One for Hopper's multiply."""
    kind = tw.dtype(made.kind)
    columns, width = draw.choice((64, 128)), 128 // kind.bytes
    atom = tw.atoms.wgmma(kind, columns)
    promote = draw.choice((1, 4)) if kind.bits == 8 and kind.is_float else draw.choice((0, 0, 2))
    bulk = made.padded and draw.random() < 0.8
    if not bulk:
        staging = draw.choice(("direct", "registers", "cp_async"))
        stages = draw.choice((2, 3, 4)) if staging == "cp_async" else 1
        return Schedule(
            atom, (64, columns, width), stages=stages, staging=staging, group_m=1, promote=promote
        )
    roles = draw.choice(("cooperative", "ping-pong"))
    groups = draw.choice((1, 2)) if roles == "cooperative" else 2
    cluster = draw.choice(((1, 1), (1, 1), (1, 1), (2, 1), (1, 2), (2, 2)))
    once = roles == "cooperative" and draw.random() < 0.2
    return Schedule(
        atom,
        (64 * (groups if roles == "cooperative" else 1), columns, width),
        stages=draw.choice((2, 3, 4)),
        staging="tma",
        roles=roles,
        groups=groups,
        blocks=0 if once else draw.choice((4, 16, 132)),
        cluster=cluster,
        group_m=draw.choice((1, 4)),
        promote=promote,
        epilogue=draw.choice(("direct", "staged", "overlapped")),
        buffers=draw.choice((1, 2)),
        registers=0 if once else 232,
    )


# ---------------------------------------------------------------- extents, strides


def extents_of(draw: random.Random, made: Group, target: str) -> dict[str, int]:
    """Extents: of a few tiles, ragged or whole, and now and then 0 or 1."""
    tile = made.schedule.tile if made.schedule else (32, 32, 32)
    most = {"cuda": 700, "cpu": 300, "reference": 90}[target]
    found = {"L": draw.choice((0, 1, 2, 3, 3))}
    for name, side in zip("MNK", tile, strict=True):
        kind = draw.random()
        if kind < 0.06:
            found[name] = draw.choice((0, 1))
        elif kind < 0.3:
            found[name] = side * draw.randint(1, 3)
        elif kind < 0.5:
            found[name] = draw.randint(1, side + 1)
        else:
            found[name] = draw.randint(1, most)
    found = {name: min(extent, 2 * most) for name, extent in found.items()}
    if made.padded and draw.random() < 0.7:
        found["N"] += -found["N"] % BULK_ROWS
    if made.subject == "largest":
        found["N"] = min(found["N"], tile[1])
    return found


def placed(draw: random.Random, made: Group, name: str, shape: tuple[int, ...], odd: bool) -> Placed:
    """Where an array lies: as the group says, or anywhere."""
    size = made.dtype(name).bytes
    letter = made.layout["AB".index(name) if name in "AB" else 2]
    order = list(range(len(shape)))
    if letter == "t" and len(order) > 1:
        order[-2:] = order[:-3:-1]
    unit, start = 1, draw.choice((0, 16))
    if odd and not made.padded:
        unit, start = draw.choice((1, 1, 2)), draw.choice((0, 1, 3, 8))
        order = draw.sample(order, len(order)) if draw.random() < 0.3 else order
    strides = [0] * len(shape)
    reach = unit
    for rank, dim in enumerate(reversed(order)):
        strides[dim] = reach
        reach *= max(shape[dim], 1)
        if made.padded and rank == 0:
            row = BULK_ROWS // min(size, BULK_ROWS)
            reach += -reach % row + row * draw.choice((0, 1, 2))
        elif not made.padded:
            reach += draw.choice((0, 0, 1, 5))
    if odd and not made.padded:
        for dim in range(len(shape)):
            kind = draw.random()
            if kind < 0.2:
                strides[dim] = -strides[dim]
            elif kind < 0.3 and name not in made.about.stored:
                strides[dim] = 0
    return Placed(tuple(strides), start)  # type: ignore[arg-type]
