"""Chosen schedules of products are legal for every shape, and so are their kernels."""

from __future__ import annotations

import random

import pytest
from tests.turns import Turns

import tilewright as tw
from tilewright.ir import verify
from tilewright.ops.products import output_dtype, plain
from tilewright.runtime.backends import backend_named
from tilewright.runtime.binding import spec_of
from tilewright.runtime.scheduled import Scheduled, TraceRequest
from tilewright.schedule.question import SUPPORTED
from tilewright.targets.target import TARGETS

SHAPES = 300
"""For each dtype on each machine."""

MACHINES = (
    ("reference", "numpy", 1),
    ("cpu", "x86-64-v3", 2),
    ("cuda", "sm_80", 108),
    ("cuda", "sm_90a", 132),
)

TURNS = 3
"""After so many turns of a case every shape has been asked for."""


def shapes(count: int) -> list[tuple[int, int, int]]:
    drawn = random.Random(0)

    def extent() -> int:
        return drawn.randint(1, drawn.choice((8, 64, 300, 4096)))

    return [(extent(), extent(), extent()) for _ in range(count)]


@pytest.mark.in_turns(4)
@pytest.mark.parametrize(("target", "arch", "processors"), MACHINES, ids=[arch for _, arch, _ in MACHINES])
@pytest.mark.parametrize(
    ("name", "precision"), [*((name, "exact") for name in SUPPORTED if name != "f8e5m2fnuz"), ("f32", "tf32")]
)
def test_shapes_have_legal_schedules(
    name: str, precision: str, target: str, arch: str, processors: int, turns: Turns
) -> None:
    """Each run tries a part of the shapes."""
    element, machine = tw.dtype(name), TARGETS[target].architecture(arch)
    bound = plain(0).bind(precision=precision)
    scheduled = Scheduled(bound.program, bound.constants, None)
    drawn, seen, wanted = random.Random(1), {}, turns.among(range(SHAPES), TURNS)
    for number, (m, n, k) in enumerate(shapes(SHAPES)):
        orders = [drawn.choice("CF") for _ in range(2)]
        if number not in wanted:
            continue
        arrays = {"A": tw.like(element, m, k, order=orders[0]), "B": tw.like(element, k, n, order=orders[1])}
        arrays["D"] = tw.like(output_dtype(element), m, n)
        specs = {name: spec_of(array.info) for name, array in arrays.items()}
        extents = {name: array.shape for name, array in arrays.items()}
        # It refuses what is not legal.
        made = scheduled.explicit(TraceRequest(specs, machine, extents, processors))
        assert made.schedule is not None
        tile, schedule = made.schedule.mma.tile, made.schedule
        groups = schedule.groups if schedule.roles == "cooperative" else 1
        assert (tile[0] * groups, tile[1]) == schedule.tile[:2]
        assert schedule.tile[2] % tile[2] == 0
        seen[(schedule, *made.specs.items())] = made
    kinds = list({made.schedule: made for made in seen.values()}.values())
    for made in drawn.sample(kinds, min(len(kinds), 4)):
        kernel = made.program.trace(made.specs, made.constants, machine)
        assert [*verify.violations(kernel), *backend_named(target).violations(kernel, arch)] == []
