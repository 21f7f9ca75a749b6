"""Reductions of one kind into memory need no order among themselves, but all other accesses need one."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import run
from tilewright.targets.reference.findings import Kind


@tw.kernel(X="N", Y="K")
def from_all_blocks(X, Y, *, other=None, last=None, tidy=True):
    """Every block adds to Y, and accesses it in another way before or after."""
    block = tw.block_index(tw.ceil_div(X.shape[0], 32))
    x = tw.load(X.tile((32,), (block,)).partition((32,)))
    target = Y.tile((32,), (0,)) if tidy else Y.tile((32,), (0,))[0:1].broadcast(0, 32)[:, 0]
    tw.copy(x, target, reduction="add")
    if other == "read":
        tw.copy(tw.load(Y.tile((32,), (0,)).partition((32,))), Y.tile((32,), (1 + block,)))
    elif other is not None:
        tw.copy(x, target, reduction=other if other != "write" else None)


def findings(blocks: int = 3, **constants: object) -> list[Kind]:
    x, y = np.ones(32 * blocks, np.float32), np.zeros(32 * (blocks + 1), np.float32)
    kernel = from_all_blocks.bind(**constants).trace(x, y)
    return [found.kind for found in run(kernel, {"X": x, "Y": y}).findings]


def test_reductions_of_one_kind_by_many_blocks_are_no_race() -> None:
    assert findings() == []
    assert findings(tidy=False) == []


@pytest.mark.parametrize(
    ("other", "kinds"),
    [
        ("read", {Kind.WRITE_READ, Kind.READ_WRITE}),
        ("write", {Kind.WRITE_WRITE}),
        ("max", {Kind.WRITE_WRITE}),
    ],
)
def test_what_another_block_does_to_the_same_elements_races(other, kinds) -> None:
    assert set(findings(other=other)) == kinds
    assert findings(blocks=1, other=other) == []  # one thread's own accesses are in order


def test_an_output_that_holds_nothing_is_not_reduced_into() -> None:
    x, y = np.ones(32, np.float32), np.zeros(64, np.float32)
    report = run(from_all_blocks.trace(x, y), {"X": x, "Y": y}, outputs=("Y",))
    assert [found.kind for found in report.findings] == [Kind.UNWRITTEN]


def test_elements_that_are_reduced_into_count_as_written() -> None:
    x, y = np.ones(64, np.float32), np.zeros(40, np.float32)
    report = run(from_all_blocks.trace(x, y), {"X": x, "Y": y}, whole=("Y",))
    assert report.uncovered == {"Y": 8}
