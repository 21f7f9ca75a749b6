"""Blocks that signal, on the reference and on the CPU: repeated launches, and legality errors."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.checking.compare import Accumulation, compare_gemm
from tilewright.errors import LaunchError, LegalityError

from . import signals
from .poisoned import Poisoned

pytestmark = pytest.mark.in_turns(3)

TARGETS = ("reference", "cpu")

rng = np.random.default_rng(11)


def numbers(*shape: int) -> np.ndarray[Any, Any]:
    return rng.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("shape", [(70, 50, 90), (33, 31, 17)])
def test_blocks_add_up_parts_of_a_product_in_turn(shape, target) -> None:
    m, n, k = shape
    a, b = numbers(m, k), numbers(n, k)
    results = []
    for _ in range(3):
        c = Poisoned((m, n), tw.f32)
        c.array[...] = np.nan
        assert signals.SMALL_TURNSTILE(a, b, c.array, target=target).target == target
        assert compare_gemm(a, b.T, c.array, Accumulation.of(signals.FMA.atom)).ok
        assert c.is_intact()
        results.append(c.array.tobytes())
    assert len(set(results)) == 1


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("size", [1, 1000, 256 * 37])
def test_the_last_block_adds_up_what_all_left(size, target) -> None:
    x = numbers(size)
    for _ in range(3):
        y = np.full(1, np.float32(np.nan))
        assert signals.last_block_sum(x, y, target=target).target == target
        assert abs(float(y[0]) - x.sum(dtype=np.float64)) <= size * 2**-24 * np.abs(x).sum(dtype=np.float64)


@pytest.mark.parametrize("target", TARGETS)
def test_all_blocks_count_into_one_histogram(target) -> None:
    x, h = rng.integers(-3, 70, 3001).astype(np.int32), np.ones(64, np.int32)
    assert signals.histogram(x, h, target=target).target == target
    np.testing.assert_array_equal(h, 1 + np.bincount(x[(x >= 0) & (x < 64)], minlength=64))


@pytest.mark.parametrize("target", TARGETS)
def test_a_reset_counter_serves_the_next_launch(target) -> None:
    x, y = numbers(128), np.zeros(128, np.float32)
    for _ in range(4):
        y[:] = np.nan
        assert signals.hand_over(x, y, target=target).target == target
        np.testing.assert_array_equal(y, np.append(x[:64], x[64:] + x[:64]))


def test_a_wait_of_the_first_block_is_refused_on_a_cpu() -> None:
    x, y = numbers(192), np.zeros(192, np.float32)
    assert signals.around.bind(blocks=3)(x, y, target="reference").target == "reference"
    np.testing.assert_array_equal(y, x + np.roll(x, -64))
    with pytest.raises(
        LegalityError, match="the first block waits until came\\[0\\] is 3; blocks run in order"
    ):
        signals.around.bind(blocks=3)(x, y, target="cpu")


@tw.kernel(X="N")
def backwards(X, *, blocks):
    """Every block waits for the blocks with higher numbers."""
    block, turn = tw.block_index(tw.ceil_div(X.shape[0], 32)), tw.counter(1)
    tw.await_(turn[0], tw.ceil_div(X.shape[0], 32) - 1 - block)
    part = X.tile((32,), (block,)).partition((32,))
    tw.copy(tw.load(part) + 1, part)
    tw.signal(turn[0], of=tw.ceil_div(X.shape[0], 32))


def test_a_wait_that_cannot_end_stops_the_launch_on_a_cpu_and_the_next_one_is_whole() -> None:
    bound, x = backwards.bind(blocks=0), np.zeros(32 * 500, np.float32)
    with pytest.raises(LaunchError) as stuck:
        bound(x, target="cpu")
    assert "can go on; blocks run in order, and on a CPU a block may wait only for" in str(stuck.value)
    assert re.search(r"test_signals.py:\d+:\d+ in backwards\n *tw.await_\(turn", str(stuck.value))
    one = np.zeros(20, np.float32)  # a single block waits for nobody
    assert bound(one, target="cpu").target == "cpu"
    assert (one == 1).all()


@tw.kernel(X="N")
def two_behind(X, *, blocks):
    """Each block waits for the block two before it; block 0 waits for a count below 0, which always holds."""
    block, turn = tw.block_index(blocks), tw.counter(1)
    tw.await_(turn[0], block - 1)
    part = X.tile((32,), (block,)).partition((32,))
    tw.copy(tw.load(part) + 1, part)
    tw.signal(turn[0], of=blocks)


@pytest.mark.parametrize("target", TARGETS)
def test_a_wait_for_less_than_0_is_none(target) -> None:
    x = np.zeros(96, np.float32)
    assert two_behind.bind(blocks=3)(x, target=target).target == target
    assert (x == 1).all()


@tw.kernel(X="N")
def fewer_counters(X, *, less):
    """An unused array of counters with fewer elements than X."""
    tw.counter(X.shape[0] - less)
    part = X.tile((32,), (0,)).partition((32,))
    tw.copy(tw.load(part) + 1, part)


@pytest.mark.parametrize("target", TARGETS)
def test_fewer_than_0_counters_are_none(target) -> None:
    x = np.zeros(32, np.float32)
    assert fewer_counters.bind(less=40)(x, target=target).target == target
    assert (x == 1).all()


@tw.kernel(X="N")
def refused(X, *, wrong):
    counts, floats = tw.counter((4, 2)), tw.workspace(4, tw.f32)
    if wrong == "rank":
        tw.signal(counts[0])
    elif wrong == "dtype":
        tw.await_(floats[0], 1)
    elif wrong == "shared":
        tw.reset(tw.shared((1,), tw.u32)[0])
    elif wrong == "value":
        tw.signal(counts[0, 0], 0)
    elif wrong == "of":
        tw.signal(counts[0, 0], of=0)
    elif wrong == "by ones":
        tw.signal(counts[0, 0], 2, of=4)
    elif wrong == "extent":
        tw.counter(-1)
    elif wrong == "barrier":
        tw.ticket(counts[0, 0], barrier=1)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("rank", "has 1 dimensions; a counter is a single element"),
        ("dtype", "is f32; counters are u32"),
        ("shared", "does not lie in global memory"),
        ("value", "a signal of 0 counts nothing up"),
        ("of", "of=0: a counter wraps round after one signal or more"),
        ("by ones", "value=2 with of=4: a counter wraps round by ones"),
        ("extent", "an extent of a workspace is -1; nearest legal choice: 0"),
        ("barrier", "barrier=1.* outside of a role"),
    ],
)
def test_what_is_no_counter_is_refused(wrong, words) -> None:
    with pytest.raises((LegalityError, tw.TraceError), match=words):
        refused.bind(wrong=wrong)(np.zeros(64, np.float32), target="reference")
