"""A schedule is a value: it is compared, printed and read back, and illegal ones are refused."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.schedule.schedule import (
    BYPASSES,
    DIMS,
    EPILOGUES,
    REDUCTIONS,
    ROLES,
    SPLITS,
    STAGINGS,
    changed,
)
from tilewright.targets.atoms import MMA_SYNC, WGMMA, spelled

ATOMS = [
    *MMA_SYNC,
    *(tw.atoms.wgmma(row.a, 64, row.b, row.c) for row in WGMMA),
    tw.atoms.wgmma("bf16", 256),
    tw.atoms.fma("f32"),
    tw.atoms.fma("i8", each=(2, 3)),
    tw.atoms.fma("f16", acc="f16", lanes=(2, 16)),
    tw.atoms.fma("f64", lanes=(8, 8), each=(4, 4), paired=True),
    tw.atoms.fma("f32", lanes=(1, 1), each=(6, 16)),
]


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_an_atom_is_spelled_as_an_author_writes_it(atom: tw.MmaAtom) -> None:
    assert eval(spelled(atom), {"tw": tw}) == atom


def test_an_atom_made_by_hand_shows_what_it_is() -> None:
    atom = dataclasses.replace(tw.atoms.MMA_F16, sum_bits=None)
    assert spelled(atom) == repr(atom)


def drawn(draw: random.Random) -> tw.Schedule:
    """Draw any schedule, legal or not."""
    return tw.Schedule(
        draw.choice(ATOMS),
        (draw.randint(1, 300), draw.randint(1, 300), draw.randint(1, 300)),
        warps=(draw.randint(1, 4), draw.randint(1, 4)),
        stages=draw.randint(1, 9),
        staging=draw.choice([*STAGINGS]),
        roles=draw.choice(ROLES),
        groups=draw.randint(1, 3),
        blocks=draw.choice((0, 1, 132)),
        group_m=draw.choice((0, 8)),
        promote=draw.choice((0, 1, 4)),
        epilogue=draw.choice([*EPILOGUES]),
        buffers=draw.randint(1, 4),
        registers=draw.choice((0, 232, 240)),
        swap_ab=draw.random() < 0.5,
        split_k=draw.choice((1, 2, 64, *SPLITS)),
        reduction=draw.choice([*REDUCTIONS]),
        bypass=draw.choice(BYPASSES),
        k1=(draw.choice((0, 8)), draw.choice((0, 4))),
        extra_rows=(draw.choice((0, 1)), 0),
        dealt=draw.choice((((0, 0), (0, 0)), ((64, 4), (32, 8)))),
        turned=draw.choice(BYPASSES),
        batches=draw.choice((1, 16)),
        whole=draw.choice(DIMS),
        interleaved=draw.random() < 0.5,
        prefetch=draw.random() < 0.5,
    )


def test_500_schedules_print_as_python_that_makes_them() -> None:
    draw = random.Random(0)
    for schedule in (drawn(draw) for _ in range(500)):
        assert eval(repr(schedule), {"tw": tw}) == schedule


def test_what_is_left_out_is_not_printed() -> None:
    assert repr(tw.Schedule(tw.atoms.MMA_F16, (16, 8, 16))) == "tw.Schedule(tw.atoms.MMA_F16, (16, 8, 16))"


def test_numbers_of_any_kind_make_equal_schedules() -> None:
    plain = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32), (2, 2), 3, "cp_async")
    other = tw.Schedule(tw.atoms.MMA_F16, np.array([64, 64, 32]), [2, 2], np.int8(3), "cp_async")  # type: ignore[arg-type]
    assert plain == other
    assert hash(plain) == hash(other)
    assert repr(plain) == repr(other)


def test_a_changed_schedule_is_a_new_one_with_these_fields() -> None:
    draw = random.Random(1)
    names = [one.name for one in dataclasses.fields(tw.Schedule)]
    for _ in range(100):
        one, other = drawn(draw), drawn(draw)
        hash(one)  # is kept, but not for the changed schedule
        fields = {name: getattr(other, name) for name in draw.sample(names, draw.randint(0, 5))}
        made, wanted = changed(one, **fields), dataclasses.replace(one, **fields)
        assert made == wanted
        assert hash(made) == hash(wanted)
        assert repr(made) == repr(wanted)
    made = changed(one, tile=[64, 64, 32], stages=np.int8(3))
    assert made == dataclasses.replace(one, tile=(64, 64, 32), stages=3)
    assert type(made.stages) is int


@pytest.mark.parametrize(
    "wrong", [{"stages": 0}, {"tile": (64, 64)}, {"staging": "tam"}, {"width": 1, "a": 2}]
)
def test_a_change_to_a_value_that_no_schedule_has_is_refused(wrong: dict[str, Any]) -> None:
    one = tw.Schedule(tw.atoms.MMA_F16, (64, 64, 32))
    messages = []
    for change in (changed, dataclasses.replace):
        with pytest.raises((tw.LaunchError, TypeError)) as refused:
            change(one, **wrong)
        messages.append(str(refused.value))
    assert messages[0] == messages[1]


def test_the_tiled_mma_is_that_of_one_group() -> None:
    atom = tw.atoms.wgmma("bf16", 128)
    shared = tw.Schedule(atom, (256, 128, 64), groups=2, staging="tma", roles="cooperative")
    own = dataclasses.replace(shared, roles="ping-pong")
    assert shared.mma == tw.TiledMma(atom, (1, 1), (2, 1))
    assert own.mma == tw.TiledMma(atom, (1, 1), (4, 1))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"staging": "tam"}, "staging must be one of 'direct', "),
        ({"roles": None}, "roles must be one of 'none', 'cooperative', 'ping-pong', 'alternating'"),
        ({"epilogue": "TMA"}, "epilogue must be one of 'direct', 'staged'"),
        ({"stages": 0}, "stages must be a positive integer"),
        ({"blocks": -1}, "blocks must be an integer of at least 0"),
        ({"tile": (64, 64)}, "tile must be"),
        ({"warps": (0, 1)}, "warps must be 2 positive integers; nearest legal choice: warps=(1, 1)"),
        ({"warps": (2, -1)}, "warps must be 2 positive integers; nearest legal choice: warps=(2, 1)"),
        ({"cluster": (1, 0)}, "cluster must be 2 positive integers; nearest legal choice: cluster=(1, 1)"),
        ({"split_k": 0}, "split_k must be an integer of at least 1, 'auto' or 'stream'"),
        ({"split_k": "all"}, "split_k must be an integer of at least 1, 'auto' or 'stream'"),
        ({"reduction": "two-stage"}, "reduction must be one of 'workspace', 'reduce-scatter'"),
        ({"atom": "wgmma"}, "one of tw.atoms"),
    ],
)
def test_a_value_that_no_schedule_has_is_refused(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(tw.LaunchError) as refused:
        tw.Schedule(**{"atom": tw.atoms.MMA_F16, "tile": (64, 64, 32)} | wrong)
    assert said in str(refused.value)


VALUES: dict[str, list[Any]] = {
    "tile": [(32, 32, 8), (16, 16, 16), (0, 32, 8), (-1, 2, 3), (33, 7, 5), (2**40, 32, 8)],
    "warps": [(1, 1), (2, 2), (4, 1), (2**40, 1)],
    "stages": [1, 3, 2**40],
    "staging": ["direct", "registers", "cp_async", "tma"],
    "roles": ["none", "cooperative", "ping-pong", "alternating"],
    "groups": [1, 2, 3, 2**40],
    "cluster": [(1, 1), (2, 1), (3, 3), (2**20, 2**20)],
    "epilogue": ["direct", "staged", "overlapped"],
    "split_k": [1, 2, 7, "auto", "stream", 2**40],
    "reduction": ["workspace", "reduce-scatter", "cluster", "atomic"],
    "promote": [0, 1, 16, 2**40],
    "blocks": [0, 7, 2**40],
    "group_m": [0, 8, 2**40],
    "k1": [(0, 0), (3, 0), (2**40, 1)],
    "extra_rows": [(0, 0), (2**40, 0)],
    "buffers": [1, 2**40],
    "swap_ab": [False, True],
}


@pytest.mark.parametrize("epilogue", ["direct", "staged", "overlapped"])
@pytest.mark.parametrize("split", ["auto", "stream", 17, 2**40])
def test_a_split_whose_blocks_have_no_number_and_a_cluster_is_refused_by_name(
    epilogue: Any, split: Any
) -> None:
    schedule = tw.Schedule(
        tw.atoms.fma("f32", "f32", (4, 8)), (32, 32, 8), split_k=split, reduction="cluster", epilogue=epilogue
    )
    a, b = np.ones((33, 17), np.float32), np.ones((17, 21), np.float32)
    with pytest.raises(tw.ScheduleError, match="the schedule is refused"):
        tw.matmul(a, b, schedule=schedule, target="reference")


def test_random_schedules_compute_the_product_or_are_refused() -> None:
    rng, computed = random.Random(11), 0
    values = np.random.default_rng(11)
    a = values.integers(-4, 5, (33, 17)).astype(np.float32)
    b = values.integers(-4, 5, (17, 21)).astype(np.float32)
    for _ in range(250):
        named = {
            name: rng.choice(VALUES[name]) for name in rng.sample([*VALUES], rng.choice([1, 2, 2, 3, 5]))
        }
        try:
            schedule = tw.Schedule(
                **{"atom": tw.atoms.fma("f32", "f32", (4, 8)), "tile": (32, 32, 8)} | named
            )
            found = tw.matmul(a, b, schedule=schedule, target="reference")
        except tw.TilewrightError:
            continue
        np.testing.assert_array_equal(found, a @ b)
        computed += 1
    assert computed > 5
