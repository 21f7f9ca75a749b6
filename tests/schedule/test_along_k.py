"""Groups of warps that share a tile along K: results, shared memory, refusals and loads."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import ScheduleError
from tilewright.ops.products import scaled_in_groups
from tilewright.schedule.fixup import add_parts
from tilewright.schedule.resources import ScheduleOnMachine

GROUP = 128
ALONE = tw.Schedule(
    tw.atoms.MMA_F16, (16, 8, 128), stages=3, staging="fragments", groups=3, group_m=8, swap_ab=True
)
"""A warp for each group."""
WIDE = replace(ALONE, tile=(32, 16, 128), warps=(2, 1), stages=2, groups=2)
"""Two warps for each group, which meet at barriers of their own."""


def posed(shape: tuple[int, int, int], schedule: tw.Schedule) -> tuple[Any, tuple[Any, ...]]:
    """Return the kernel of f16 by grouped 4-bit weights, and the classes of its arrays."""
    m, n, k = shape
    words: dict[str, Any] = {"group": GROUP, "terms": frozenset({"scale_b"}), "activation": None}
    kernel = scaled_in_groups(0).bind(multiplied=tw.f16, **words, schedule=schedule)
    b = tw.packed(np.empty((n, k // 2), np.uint8).T, tw.i4)
    wide, groups = tw.like("f16", m, k), tw.like("f16", k // GROUP, n)
    return kernel, (wide, b, tw.like("f32", m), groups, groups, tw.like("f32", n), tw.like("f16", m, n), 1.0)


@pytest.mark.parametrize(
    ("shape", "schedule"),
    [((13, 40, 640), ALONE), ((5, 40, 256), ALONE), ((21, 72, 640), WIDE)],
    ids=["a warp each", "one without steps", "two warps each"],
)
def test_sums_of_all_groups_are_the_product(shape: tuple[int, int, int], schedule: tw.Schedule) -> None:
    m, n, k = shape
    rng = np.random.default_rng(0)
    a, numbers = rng.standard_normal((m, k)).astype(np.float16), rng.integers(-8, 8, (k, n))
    b = tw.packed(tw.pack(numbers.T, tw.i4).T, tw.i4)
    scales = rng.uniform(0.5, 2, (k // GROUP, n)).astype(np.float16)
    weights = (numbers.astype(np.float16) * scales.repeat(GROUP, 0)).astype(np.float64)
    made = np.full((m, n), np.nan, np.float32)
    given = {"scale_b": scales, "group": GROUP, "schedule": schedule}
    assert tw.scaled_mm(a, b, made, **given, target="reference") is made
    exact, size = a.astype(np.float64) @ weights, np.abs(a.astype(np.float64)) @ np.abs(weights)
    assert (np.abs(made - exact) <= k * 2.0**-23 * size).all()


@pytest.mark.parametrize("schedule", [ALONE, WIDE], ids=["a warp each", "two warps each"])
def test_shared_memory_is_that_of_the_closed_form(schedule: tw.Schedule) -> None:
    kernel, given = posed((16, 4096, 4096), schedule)
    made = kernel.compile(*given, target="cuda", arch="sm_90a")
    asked = kernel.question(*given, target="cuda", arch="sm_90a")
    case = ScheduleOnMachine(schedule, asked.form, asked.specs, asked.arch)
    assert case.threads == made.kernel.threads == schedule.groups * schedule.warps[0] * 32
    assert case.shared_bytes == made.resources["shared_bytes"]
    assert made.resources["spill_store_bytes"] == 0
    assert made.source.count("< cut") >= 4  # what lies behind a part of K is not loaded for it


@tw.kernel(X="P M N", Y="M N")
def added(X, Y, *, count):
    place = Y.tile((32, 32), (0, 0))
    total = tw.load(place.partition((4, 8)))
    add_parts(total, count, count, lambda part: X[part].tile((32, 32), (0, 0)))
    tw.copy(total, place)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
def test_parts_that_are_not_read_at_once_are_all_added(count: int) -> None:
    """Each thread has 32 values of a part, so two parts are read at once."""
    x = np.random.default_rng(count).integers(-99, 100, (count, 32, 32)).astype(np.float32)
    y = np.full((32, 32), np.nan, np.float32)
    assert added.bind(count=count)(x, y, target="reference").target == "reference"
    np.testing.assert_array_equal(y, x.sum(0))


CHANGES = {
    "split_k": ({"split_k": 2}, "split_k=1"),
    "epilogue": ({"epilogue": "staged"}, 'epilogue="direct"'),
    "blocks": ({"blocks": 132}, "blocks=0"),
    "groups": ({"groups": 20, "warps": (2, 1), "tile": (32, 8, 128), "stages": 2}, "groups=15"),
}


@pytest.mark.parametrize(("target", "arch"), [("cpu", "x86-64-v3"), ("hip", "gfx1151")])
def test_machines_without_roles_of_warps_refuse_groups(target: str, arch: str) -> None:
    kernel, given = posed((8, 256, 4096), replace(ALONE, atom=tw.atoms.fma("f16", "f32"), warps=(2, 1)))
    with pytest.raises(ScheduleError, match=f"{arch} does not support warp roles"):
        kernel.compile(*given, target=target, arch=arch)


@pytest.mark.parametrize("field", CHANGES)
def test_what_groups_do_not_do_is_refused(field: str) -> None:
    changes, nearest = CHANGES[field]
    kernel, given = posed((8, 256, 4096), replace(ALONE, **changes))
    with pytest.raises(ScheduleError, match="groups without roles") as caught:
        kernel.compile(*given, target="cuda", arch="sm_90a")
    assert f"nearest legal choice: {nearest}" in str(caught.value)
