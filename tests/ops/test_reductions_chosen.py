"""The reduction that the rules choose for parts of K, and the reasons why others are refused."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

import tilewright as tw
from tilewright.ops.products import plain
from tilewright.schedule.choice import split_candidates
from tilewright.schedule.question import IN_ORDER, Splitting
from tilewright.schedule.splitting import period_of

from .test_products import drawn

pytestmark = pytest.mark.in_turns(3)


def refused_on_a_gpu(kind: str, shape: tuple[int, ...], asked: Splitting, arch: str = "sm_90a") -> str:
    """Return why a split of K is refused, or "" if it has a schedule."""
    *lead, m, n, k = shape
    arrays = (tw.like(kind, *lead, *extents) for extents in ((m, k), (k, n), (m, n)))
    try:
        bound = plain(len(lead)).bind(precision="exact", schedule=asked)
        bound.schedule_for(*arrays, target="cuda", arch=arch)
    except tw.LaunchError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("kind", "shape", "parts", "blocks", "most"),
    [
        ("f32", (3, 683, 16, 1600), 25, "18 tiles in 25 parts need at least 450 blocks", 7),
        ("f64", (1, 359, 634, 1151), 13, "15 tiles in 13 parts need at least 195 blocks", 8),
        ("f16", (3, 629, 532, 709), 13, "45 tiles in 12 parts need at least 540 blocks", 2),
    ],
)
def test_more_blocks_that_wait_for_each_other_than_run_at_once_are_refused(
    kind: str, shape: tuple[int, ...], parts: int, blocks: str, most: int
) -> None:
    """The number named in the error is legal, and no number between it and the requested one is."""
    said = refused_on_a_gpu(kind, shape, Splitting(parts, "reduce-scatter"))
    assert "its blocks wait for each other" in said
    assert f"{blocks}, and 132 can run at the same time" in said
    near = f'split_k={most}, or reduction="workspace"' if most > 1 else 'reduction="workspace"'
    assert said.endswith(f"nearest legal choice: {near}")
    found = [not refused_on_a_gpu(kind, shape, Splitting(n, "reduce-scatter")) for n in range(2, parts + 1)]
    assert found == [n <= most for n in range(2, parts + 1)]
    assert not refused_on_a_gpu(kind, shape, Splitting(parts, "workspace"))


def test_periods_are_one_part_where_their_blocks_would_wait_for_more_than_run_at_once() -> None:
    for shape, is_split in (((629, 532, 709), True), ((3, 629, 532, 709), False)):
        *lead, m, n, k = shape
        asked = Splitting("auto", "reduce-scatter", batch_invariant=True)
        bound = plain(len(lead)).bind(precision="exact", schedule=asked)
        given = (tw.like("f16", *lead, *extents) for extents in ((m, k), (k, n), (m, n)))
        made = bound.schedule_for(*given, target="cuda", arch="sm_90a")
        assert made.promote * made.block_k == period_of(k)
        assert (made.split_k != 1) == is_split


@pytest.mark.parametrize(
    ("asked", "arch", "why", "nearest"),
    [
        (Splitting(13, "cluster"), "sm_90a", "has at most 8", 'split_k=8, or reduction="workspace"'),
        (Splitting(2, "cluster"), "sm_80", "sm_80 has no clusters", 'reduction="workspace"'),
        (
            Splitting("stream", "turnstile"),
            "sm_90a",
            "the one that other blocks await",
            'reduction="workspace"',
        ),
        (
            Splitting("stream", "reduce-scatter"),
            "sm_90a",
            "blocks would wait for each other at the end of every tile",
            'reduction="workspace", or split_k="auto"',
        ),
    ],
)
def test_another_reason_is_named_with_what_is_near(
    asked: Splitting, arch: str, why: str, nearest: str
) -> None:
    said = refused_on_a_gpu("f16", (200, 200, 709), asked, arch)
    assert why in said
    assert said.endswith(f"nearest legal choice: {nearest}")


def chosen_on_a_gpu(shape: tuple[int, int, int], asked: Splitting | None, **given: str) -> tw.Schedule:
    """Return the schedule of a product of rows by columns."""
    m, n, k = shape
    kind, arch = given.get("kind", "bf16"), given.get("arch", "sm_90a")
    arrays = (tw.like(kind, m, k), tw.like(kind, k, n, order="F"), tw.like(kind, m, n))
    bound = plain(0).bind(precision="exact", schedule=asked)
    schedule = bound.schedule_for(*arrays, target="cuda", arch=arch)
    assert schedule is not None
    return schedule


@pytest.mark.parametrize("side", [(64, 65536), (16, 262144), (128, 16384), (256, 65536), (512, 32768)])
def test_the_reduction_is_the_fastest_in_one_order_as_where_nothing_is_asked(side: tuple[int, int]) -> None:
    n, k = side
    auto = chosen_on_a_gpu((n, n, k), Splitting("auto"))
    nothing = chosen_on_a_gpu((n, n, k), None)
    assert replace(auto, stages=nothing.stages) == nothing
    assert auto.reduction == ("workspace" if n == 16 else "reduce-scatter")
    if n != 16:
        assert chosen_on_a_gpu((n, n, k), Splitting(7)).reduction == "reduce-scatter"
    for reduction in ("workspace", "cluster"):
        assert chosen_on_a_gpu((n, n, k), Splitting("auto", reduction)).reduction == reduction


def test_no_named_reduction_is_estimated_to_be_faster() -> None:
    for shape in ((64, 64, 65536), (1, 4096, 4096), (300, 200, 5000)):
        given = (tw.like("bf16", *shape[::2]), tw.like("bf16", *shape[:0:-1], order="F"))
        given = (*given, tw.like("bf16", *shape[:2]))
        for split_k in ("auto", 7, 4):
            asked = plain(0).bind(precision="exact", schedule=Splitting(split_k))
            question = asked.question(*given, target="cuda", arch="sm_90a")
            first = next(split_candidates(question))
            for reduction in IN_ORDER:
                named = replace(question, splitting=Splitting(split_k, reduction))
                with suppress(tw.LaunchError):  # of more blocks than run at once
                    assert first.estimate <= next(split_candidates(named)).estimate
            assert first.schedule.split_k in (split_k, 2, 4, 8)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (Splitting("stream"), {}),
        (Splitting(batch_invariant=True), {}),
        (Splitting("auto", batch_invariant=True), {}),
        (Splitting("auto"), {"kind": "f32"}),
        (Splitting("auto"), {"arch": "sm_80"}),
        (Splitting(40), {"arch": "sm_86"}),
    ],
)
def test_a_workspace_is_what_the_others_do_not_serve_or_nothing_is_known_of(
    asked: Splitting, given: dict[str, str]
) -> None:
    """The workspace serves stream-K, batch-invariant products, and copies whose waiting was never timed."""
    assert chosen_on_a_gpu((512, 512, 32768), asked, **given).reduction == "workspace"


def test_no_more_parts_are_refused_than_of_a_workspace() -> None:
    for kind, shape, parts in (("f32", (3, 683, 16, 1600), 25), ("f16", (3, 629, 532, 709), 13)):
        assert refused_on_a_gpu(kind, shape, Splitting(parts, "reduce-scatter"))
        assert not refused_on_a_gpu(kind, shape, Splitting(parts))


@pytest.mark.parametrize("split_k", [3, 7])
def test_what_may_be_chosen_has_the_bits_of_every_run_and_of_a_workspace(split_k: int) -> None:
    a, b = drawn(1, 19, 911), drawn(2, 911, 23)
    ways: tuple[dict[str, Any], ...] = ({}, *({"reduction": name} for name in IN_ORDER))
    made = {
        tw.matmul(a, b, split_k=split_k, target="reference", **way).tobytes()
        for way in ways
        for _ in range(2)
    }
    assert len(made) == 1
