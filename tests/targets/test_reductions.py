"""Copies that reduce into global memory, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import LegalityError

from .reductions import COMBINED, EVERY, expected, into_one_row, over_rows, values

TARGETS = ("reference", "cpu")


@pytest.mark.in_turns(5)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize(("kind", "name"), EVERY)
def test_blocks_reduce_into_one_tile(kind, name, target) -> None:
    x, start = values(name, (100, 61), 1), values(name, (16, 61), 2)
    bound = over_rows.bind(kind=kind)
    y = start.copy()
    assert bound(x, y, target=target).target == target
    np.testing.assert_array_equal(y, expected(kind, x, start))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("through", [False, True])
def test_the_source_may_lie_in_memory_and_have_another_dtype(through, target) -> None:
    x, start = values("f16", (40, 64), 3), values("f32", (16, 64), 4)
    y = np.full((16, 128), np.float32(np.nan))[:, ::1][:, :64]
    y[...] = start
    assert over_rows.bind(kind="add", through=through)(x, y, target=target).target == target
    np.testing.assert_array_equal(y, expected("add", x, start))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["add", "max"])
def test_threads_of_a_block_reduce_into_one_element(kind, target) -> None:
    x, start = values("i32", (37, 64), 5), values("i32", (64,), 6)
    y = start.copy()
    assert into_one_row.bind(kind=kind)(x, y, target=target).target == target
    whole = COMBINED[kind].reduce(np.concatenate([start[None], x]), axis=0)
    # Rows past the last one read as 0, and take part: the target has a place for them.
    np.testing.assert_array_equal(y, whole if kind == "add" else np.maximum(whole, 0))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("kind", ["min", "max"])
def test_extremes_of_floats_keep_nan_and_infinities(kind, target) -> None:
    x = np.zeros((16, 64), np.float32)
    x[0, :4] = np.nan, np.inf, -np.inf, -1e-40
    y = np.full((16, 64), np.float32(0.5))
    want = COMBINED[kind](x, y)
    over_rows.bind(kind=kind)(x, y, target=target)
    np.testing.assert_array_equal(y, want)


@tw.kernel(X="N")
def wrong(X, *, kind, place):
    x = tw.load(X.tile((32,), (0,)).partition((32,)))
    target = {"registers": tw.fragment(x), "global": X.tile((32,), (0,))}
    tw.copy(x, target[place], reduction=kind)


@pytest.mark.parametrize(
    ("dtype", "kind", "place", "words"),
    [
        (np.float32, "mul", "global", "is none of 'add', 'min', 'max', 'and', 'or'"),
        (np.float32, "add", "registers", "reduces nothing from registers into registers"),
        (np.float32, "or", "global", "no 'or' of f32 in memory"),
        (np.int8, "add", "global", "nearest legal choice: a target of i32"),
        (np.float16, "max", "global", "nearest legal choice: a target of f32"),
    ],
)
def test_what_cannot_be_reduced_is_refused_with_what_can(dtype, kind, place, words) -> None:
    with pytest.raises(LegalityError, match=words):
        wrong.bind(kind=kind, place=place)(np.zeros(32, dtype), target="reference")
