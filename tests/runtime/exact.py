"""Exact work for tests that fork, interrupt and use threads."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

import tilewright as tw


@tw.kernel(X="N", turns=int)
def count(X, turns):
    """Store the number of iterations in each element, through counters that start at 0."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    counters = tw.workspace((tw.ceil_div(X.shape[0], 64), 64), tw.f32, zeroed=True)
    mine = counters[n]
    for _ in tw.range(turns):
        tw.copy(tw.load(mine.partition((32,))) + 1.0, mine)
    tw.copy(tw.load(mine.partition((32,))), X.tile((64,), (n,)))


class Product:
    """A product of small whole numbers in f16, with exact elements."""

    def __init__(self, seed: int, m: int = 130, n: int = 97, k: int = 75) -> None:
        drawn = np.random.default_rng(seed)
        self.a = drawn.integers(-2, 3, (m, k)).astype(np.float16)
        self.b = drawn.integers(-2, 3, (k, n)).astype(np.float16)
        self.exact = self.a.astype(np.int64) @ self.b.astype(np.int64)
        self.out = np.empty((m, n), np.float16)

    def wrong(self, turns: int = 1) -> int:
        """Launch several times; return the number of wrong elements."""
        found = 0
        for _ in range(turns):
            self.out.fill(np.nan)
            tw.matmul(self.a, self.b, self.out, target="cpu")
            found += int((self.out != self.exact).sum())
        return found


def in_child(work: Callable[[], bool], seconds: float = 60.0) -> Callable[[], int]:
    """Fork; return a function that waits for the child and returns its status, 0 if ``work`` was true."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if work() else 2
        finally:
            os._exit(status)

    def join() -> int:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.005)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"the child still ran after {seconds} s")

    return join


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Another thread repeats some work meanwhile."""
    stop = threading.Event()

    def repeat() -> None:
        while not stop.is_set():
            work()

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
