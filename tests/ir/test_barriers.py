"""The rules of barriers: they have whole existing warps, and transaction barriers are made once."""

from __future__ import annotations

import pytest

import tilewright as tw

from .broken import said


def meeting(threads, warps=2):
    def author():
        with tw.role(warps=warps):
            tw.role_barrier(1, threads)

    return author


@pytest.mark.parametrize(
    ("threads", "message", "nearest"),
    [
        (0, "0 threads are not whole warps", "32"),
        (-64, "-64 threads are not whole warps", "32"),
        (33, "33 threads are not whole warps", "64"),
        (96, "waits for 96 threads; the block has 64", "64"),
    ],
)
def test_a_role_barrier_waits_for_whole_warps_of_the_block(threads, message, nearest) -> None:
    assert said(meeting(threads)) == [("role_barrier", message, nearest)]


@pytest.mark.parametrize("threads", [32, 64])
def test_a_role_barrier_of_threads_that_exist(threads) -> None:
    assert said(meeting(threads)) == []


def ringed(place):
    """Make a transaction barrier before a loop, in it, or in a branch in it."""

    def author():
        barrier = tw.hopper.mbarrier(1, arrivals=1) if place == "before" else None
        with tw.role(warps=1):
            for i in tw.range(3):
                if place == "in it":
                    barrier = tw.hopper.mbarrier(1, arrivals=1)
                with tw.when(i > 1):
                    if place == "in a branch in it":
                        barrier = tw.hopper.mbarrier(1, arrivals=1)
                    tw.hopper.arrive(barrier[0])

    return author


def test_a_transaction_barrier_is_made_before_a_loop() -> None:
    """The text would initialise it again in every iteration; phases of earlier iterations would be lost."""
    assert said(ringed("before")) == []
    for place in ("in it", "in a branch in it"):
        [(rule, message, nearest)] = said(ringed(place))
        assert (rule, nearest) == ("mbarrier", "make it before the loop")
        assert "each iteration would initialise it again" in message


def test_each_turn_of_an_unrolled_loop_has_a_barrier_of_its_own() -> None:
    def author():
        with tw.role(warps=1):
            for _ in tw.unroll(2):
                barrier = tw.hopper.mbarrier(1, arrivals=1)
                tw.hopper.arrive(barrier[0])

    assert said(author) == []
