"""The finding of a race names the lines between which a barrier is missing."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import tilewright as tw
from tilewright.targets.reference import Kind
from tilewright.threads.distribution import Distribution, Mode

from .test_aliases import matrix

ROWS, HALVES, RUN = Mode(32, 0, 1), Mode(2, 1, 16), (Mode(16, 1, 1),)
IN, OUT = (Distribution((32, 32), threads, RUN) for threads in ((HALVES, ROWS), (ROWS, HALVES)))
"""Half a row for each of 64 threads: one warp brings half of the rows, and takes half of the columns."""


@tw.kernel(X="M N", Y="M N")
def turned(X, Y, *, first=True, second=True, count=3):
    """Transpose tile after tile through shared memory, with a barrier before and after each."""
    held = tw.shared((32, 32), X.dtype)
    for k in tw.range(X.shape[1] // 32) if count is None else tw.unroll(count):
        tw.copy(X.tile((32, 32), (0, k)), held, threads=IN)  # in
        if first:
            tw.barrier()
        with tw.when(X.shape[0] > 0):
            tw.copy(held, Y.tile((32, 32), (0, k)), threads=OUT)  # out
        if second:
            tw.barrier()


@tw.kernel(X="M N", Y="M N")
def after_a_loop(X, Y):
    """One loop loads all stages, and another one reads them."""
    held = tw.shared((2, 32, 32), X.dtype)
    for k in tw.range(X.shape[1] // 32):
        tw.copy(X.tile((32, 32), (0, k)), held[k % 2], threads=IN)  # in
    for k in tw.range(X.shape[1] // 32):  # again
        tw.copy(held[k % 2], Y.tile((32, 32), (0, k)), threads=OUT)  # out


@tw.kernel(X="M N", Y="M N")
def of_one_warp(X, Y):
    held = tw.shared((32, 32), X.dtype)
    tw.copy(X.tile((32, 32), (0, 0)), held, threads=(32, 1))  # in
    tw.copy(held, Y.tile((32, 32), (0, 0)), threads=(1, 32))  # out


@tw.kernel(X="M N", Y="M N")
def of_a_role(X, Y):
    held = tw.shared((32, 32), X.dtype)
    with tw.role(warps=2):
        tw.copy(X.tile((32, 32), (0, 0)), held, threads=IN)  # in
        tw.copy(held, Y.tile((32, 32), (0, 0)), threads=OUT)  # out
    with tw.role(warps=1):
        pass


@tw.kernel(X="M N", Y="M N")
def waited_for(X, Y):
    held = tw.shared((32, 32), X.dtype)
    tw.copy_async(X.tile((32, 32), (0, 0)), held, threads=IN)  # in
    tw.async_commit()
    tw.async_wait(0)  # wait
    tw.copy(held, Y.tile((32, 32), (0, 0)), threads=OUT)  # out


def line(kernel, mark):
    """Return the number of the line of a kernel that ends in a comment."""
    lines, start = inspect.getsourcelines(kernel.program.function)
    return start + next(n for n, text in enumerate(lines) if text.rstrip().endswith(f"# {mark}"))


def told(kernel, columns=96, **constants):
    """Return the messages of a kernel's races, without the lines of its accesses."""
    x = matrix(32, columns)
    found = kernel.check(x, np.zeros_like(x), **constants).findings
    races = [f for f in found if f.kind in (Kind.READ_WRITE, Kind.WRITE_READ, Kind.WRITE_WRITE)]
    assert races, found
    return {finding.reason.partition("; ")[2] for finding in races}


def test_the_kernel_with_both_barriers_is_clean() -> None:
    x = matrix(32, 96)
    for count in (3, None):
        assert turned.check(x, np.zeros_like(x), count=count).is_clean


def test_a_barrier_is_missing_between_two_lines() -> None:
    first, second = line(turned, "in"), line(turned, "out")
    where = f"a tw.barrier() belongs between line {first} and line {second}, before line {second - 1}"
    assert told(turned, 32, first=False, count=None) == {where}
    assert told(turned, first=False, count=None) == {where}, "whichever access ran first, and in which turn"


def test_a_barrier_is_missing_at_the_end_of_a_loop() -> None:
    first, second = line(turned, "in"), line(turned, "out")
    where = f"at the end of the body of the loop in line {first - 1}, after line {second}"
    assert told(turned, second=False, count=None) == {f"a tw.barrier() belongs {where}"}


def test_a_loop_of_its_own_comes_after_the_barrier() -> None:
    first, outer, second = (line(after_a_loop, mark) for mark in ("in", "again", "out"))
    where = f"between line {first} and line {second}, before line {outer}"
    assert told(after_a_loop, 64) == {f"a tw.barrier() belongs {where}"}


def test_lanes_of_one_warp_need_less() -> None:
    first, second = line(of_one_warp, "in"), line(of_one_warp, "out")
    where = f"between line {first} and line {second}, before line {second}"
    assert told(of_one_warp, 32) == {f"a tw.warp_barrier() belongs {where}"}


def test_warps_of_a_role_have_a_barrier_of_their_own() -> None:
    first, second = line(of_a_role, "in"), line(of_a_role, "out")
    where = f"between line {first} and line {second}, before line {second}"
    assert told(of_a_role, 32) == {f"a tw.role_barrier(...) belongs {where}"}


@pytest.mark.parametrize("count", [2, 3])
def test_turns_that_are_written_out_have_no_end_to_name(count) -> None:
    first, second = line(turned, "in"), line(turned, "out")
    where = f"a tw.barrier() belongs between line {second} and line {first}, before line {first}"
    assert told(turned, second=False, count=count) == {where}


def test_an_asynchronous_copy_needs_the_barrier_after_the_wait() -> None:
    first, wait, second = (line(waited_for, mark) for mark in ("in", "wait", "out"))
    # The copy is seen by a thread that reads too early, or comes after one that has read.
    where = (f"between line {begin} and line {second}, before line {second}" for begin in (first, wait))
    assert told(waited_for, 32) == {f"a tw.barrier() belongs {each}" for each in where}
