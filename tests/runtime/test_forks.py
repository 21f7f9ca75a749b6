"""Launches around forks, in signal handlers, and on many threads: every result is exact, and nobody waits."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import cuda.bindings
import numpy as np
import pytest

import tilewright as tw
from tilewright.runtime import cuda as driver
from tilewright.runtime import workers
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.forks import renew_after_fork
from tilewright.runtime.workers import Scratch

from .fake_gpu import Driver, OnGpu

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@tw.kernel(X="N", turns=int)
def count(X, turns):
    """Each element gets the number of turns, through counters that start at 0."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    counters = tw.workspace((tw.ceil_div(X.shape[0], 64), 64), tw.f32, zeroed=True)
    mine = counters[n]
    for _ in tw.range(turns):
        tw.copy(tw.load(mine.partition((32,))) + 1.0, mine)
    tw.copy(tw.load(mine.partition((32,))), X.tile((64,), (n,)))


@tw.kernel(X="N", alpha=tw.f32)
def scale(X, alpha):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    part = X.tile((64,), (n,))
    tw.copy(tw.load(part.partition((32,))) * alpha, part)


class Product:
    """A product of small whole numbers in f16, whose every element is known exactly."""

    def __init__(self, seed: int, m: int = 130, n: int = 97, k: int = 75) -> None:
        drawn = np.random.default_rng(seed)
        self.a = drawn.integers(-2, 3, (m, k)).astype(np.float16)
        self.b = drawn.integers(-2, 3, (k, n)).astype(np.float16)
        self.exact = self.a.astype(np.int64) @ self.b.astype(np.int64)
        self.out = np.empty((m, n), np.float16)

    def wrong(self, turns: int = 1) -> int:
        """How many elements differ in so many launches."""
        found = 0
        for _ in range(turns):
            self.out.fill(np.nan)
            tw.matmul(self.a, self.b, self.out, target="cpu")
            found += int((self.out != self.exact).sum())
        return found


def in_child(work: Callable[[], bool], seconds: float = 60.0) -> Callable[[], int]:
    """Fork; the function returned waits for the child and gives its exit status: 0 if ``work`` was true."""
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
    """Another thread repeats some work."""
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


@contextmanager
def interrupted_by(handler: Callable[[], object], every: float = 0.0005) -> Iterator[list[int]]:
    """A timer's signal runs ``handler`` in this thread, over and over; the list counts how often."""
    ran, inside = [0], [False]

    def handle(*_: object) -> None:
        if not inside[0]:
            inside[0] = True
            handler()
            ran[0] += 1
            inside[0] = False

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, every, every)
    try:
        yield ran
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


# Memory.


def test_scratch_memory_is_not_shared_with_a_forked_child() -> None:
    import ctypes

    for size in (100, 3 << 20):
        memory = Scratch(size)
        ctypes.memset(memory.address, 1, size)

        def write(memory: Scratch = memory) -> bool:
            ctypes.memset(memory.address, 7, memory.size_bytes)
            return True

        assert in_child(write)() == 0
        assert ctypes.string_at(memory.address, size) == b"\1" * size


@pytest.mark.timeout(120)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_parent_and_child_multiply_at_the_same_time_after_a_fork(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", threads)
    monkeypatch.setattr(workers, "_shared", workers._Shared())
    ours, theirs = Product(1), Product(2)
    assert ours.wrong() == theirs.wrong() == 0  # the workspaces and the pool exist before the fork
    joins = [in_child(lambda: theirs.wrong(200) == 0) for _ in range(2)]
    assert ours.wrong(200) == 0
    assert [join() for join in joins] == [0, 0]
    workers._shared.close()


def test_workspaces_that_start_with_zeros_are_the_childs_own() -> None:
    again = count.bind().prepare(np.zeros(5000, np.float32), 3, target="cpu")
    x = np.zeros(5000, np.float32)

    def counts() -> bool:
        found = True
        for _ in range(150):
            count(x, 5, target="cpu")
            found = found and bool((x == 5).all())
            again()
        return found

    assert counts()
    join = in_child(counts)
    assert counts()
    assert join() == 0


# Locks.


@pytest.mark.timeout(120)
def test_a_child_that_is_forked_while_another_thread_launches_does_not_hang() -> None:
    ours, theirs = Product(3), Product(4)
    x = np.zeros(300, np.float32)
    with meanwhile(lambda: (ours.wrong(), count(x, 2, target="cpu"))):
        for turn in range(15):

            def launch(turn: int = turn) -> bool:
                fresh = Product(5, 20 + turn % 2, 18, 7)
                y = np.zeros(100, np.float32)
                count(y, 4, target="cpu")
                return theirs.wrong(3) == 0 and fresh.wrong() == 0 and bool((y == 4).all())

            assert in_child(launch)() == 0


@pytest.mark.timeout(120)
def test_a_child_that_is_forked_during_a_build_builds_by_itself(cache: Cache) -> None:
    building, stop = threading.Event(), threading.Event()

    def slow() -> bytes:
        building.set()
        assert stop.wait(60)
        return b"code"

    thread = threading.Thread(target=cache.get_or_build, args=(key(["slow"]), ".bin", slow, {}))
    thread.start()
    assert building.wait(30)

    def build_another() -> bool:
        made = cache.get_or_build(key(["another"]), ".bin", lambda: b"other", {})
        return made.data == b"other" and cache.stats().builds == 1

    assert in_child(build_another, 20)() == 0
    join = in_child(lambda: cache.get_or_build(key(["slow"]), ".bin", lambda: b"twice", {}).data == b"code")
    stop.set()
    assert join() == 0
    thread.join()


@pytest.mark.timeout(60)
def test_locks_that_are_held_during_a_fork_are_free_in_the_child(cache: Cache) -> None:
    shared = workers._Shared()
    shared._opening.acquire()
    cache._counting.acquire()
    try:
        assert (
            in_child(lambda: shared._opening.acquire(timeout=5) and cache._counting.acquire(timeout=5))() == 0
        )
    finally:
        shared._opening.release()
        cache._counting.release()


def test_what_is_renewed_is_not_kept_alive() -> None:
    class Owner:
        renewed = 0

        def renew(self) -> None:
            Owner.renewed += 1

    kept = renew_after_fork(Owner())
    renew_after_fork(Owner())
    assert in_child(lambda: kept.renewed == 1)() == 0
    assert Owner.renewed == 0


# Signals.


@pytest.mark.timeout(60)
@pytest.mark.parametrize("threads", ["1", "2"])
def test_a_signal_handler_may_launch_the_kernel_that_it_interrupts(
    threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILEWRIGHT_THREADS", threads)
    monkeypatch.setattr(workers, "_shared", workers._Shared())
    ours, theirs, larger = Product(6), Product(7), Product(8, 300, 200, 100)
    x, y = np.zeros(300, np.float32), np.zeros(300, np.float32)
    wrong = [0]

    def handler() -> None:
        wrong[0] += theirs.wrong() + larger.wrong()
        count(y, 6, target="cpu")
        wrong[0] += int((y != 6).sum())

    handler()
    ours.wrong()
    with interrupted_by(handler) as ran:
        until = time.monotonic() + 1.0
        while time.monotonic() < until or ran[0] < 20:
            wrong[0] += ours.wrong()
            count(x, 2, target="cpu")
            wrong[0] += int((x != 2).sum())
    assert wrong == [0]
    workers._shared.close()


@pytest.mark.timeout(60)
def test_a_signal_handler_may_build_what_its_thread_is_building(cache: Cache) -> None:
    """It cannot wait for the build that it interrupts."""
    found = []

    def build() -> bytes:
        if not found:
            found.append(None)
            signal.raise_signal(signal.SIGUSR1)
        return b"code"

    def handle(*_: object) -> None:
        found.append(cache.get_or_build(key(["one"]), ".bin", build, {}).data)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        assert cache.get_or_build(key(["one"]), ".bin", build, {}).data == b"code"
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert found == [None, b"code"]


@pytest.mark.timeout(60)
def test_a_signal_handler_that_launches_while_a_kernel_is_compiled() -> None:
    @tw.kernel(X="N")
    def fill(X, *, seed):
        n = tw.block_index(tw.ceil_div(X.shape[0], 64))
        part = X.tile((64,), (n,))
        tw.copy(tw.fragment(part.partition((32,)), fill=seed), part)

    y = np.zeros(70, np.float32)
    seeds = iter(range(1000, 10_000))

    def handler() -> None:
        seed = next(seeds)
        fill(y, seed=seed, target="reference")
        assert (y == seed).all()

    handler()
    with interrupted_by(handler, 0.01) as ran:
        x = np.zeros(100, np.float32)
        for seed in range(3):
            fill(x, seed=seed, target="cpu")
            assert (x == seed).all()
        while not ran[0]:
            fill(x, seed=5, target="reference")


# Threads.


def test_launches_of_one_shape_on_several_threads_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound, xs = count.bind(), [np.zeros(100, np.float32) for _ in range(4)]
    bound(xs[0], 1, target="cpu")
    prepared = bound.launcher((xs[0], 1), "cpu")[0]
    inside = threading.Barrier(4)
    real = prepared._launcher.launch  # type: ignore[attr-defined]

    def launch(*arguments: Any) -> None:
        inside.wait(10)  # broken, were there a lock around the launch
        real(*arguments)

    monkeypatch.setattr(prepared._launcher, "launch", launch)  # type: ignore[attr-defined]
    threads = [
        threading.Thread(target=bound, args=(x, turns), kwargs={"target": "cpu"})
        for turns, x in enumerate(xs)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [set(x.tolist()) for x in xs] == [{float(turns)} for turns in range(4)]


def test_on_a_gpu_launches_on_several_threads_have_arguments_of_their_own(gpu: Driver) -> None:
    gpu.arguments = 2
    bound = count.bind()
    xs = [OnGpu(np.zeros(130, np.float32)) for _ in range(4)]
    bound(xs[0], 3)
    inside, real = threading.Barrier(4), gpu._launch

    def launch(*arguments: Any) -> Any:
        inside.wait(10)
        return real(*arguments)

    gpu._launch = launch  # type: ignore[method-assign]
    threads = [threading.Thread(target=bound, args=(x, 3)) for x in xs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = gpu.launched[1:]
    assert {launched.words[0] for launched in together} == {x.address for x in xs}
    assert len({launched.words[1] for launched in together}) == 4, "they share counters on one stream"


# The CUDA driver.


def test_a_forked_child_is_told_that_the_driver_cannot_be_used(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = driver._start
    monkeypatch.setattr(driver, "driver", DRIVER)
    x = OnGpu(np.ones(200, np.float32))
    bound, again = scale.bind(), scale.bind().prepare(x, 2.0)
    for _ in range(2):
        bound(x, 2.0), again()
    launched = len(gpu.launched)
    fresh = OnGpu(np.ones(7, np.float32))

    def refused() -> bool:
        for call in (lambda: bound(x, 2.0), again, lambda: bound(fresh, 3.0), real):
            with pytest.raises(tw.LaunchError, match=r"forked.*nearest: .*get_context\('spawn'\)"):
                call()
        return len(gpu.launched) == launched

    assert in_child(refused)() == 0
    bound(x, 2.0)
    assert len(gpu.launched) == launched + 1


DRIVER = driver.driver


def test_a_child_that_uses_the_driver_first_may(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Driver()
    monkeypatch.setattr(driver._process, "bindings", None)
    monkeypatch.setattr(cuda.bindings, "driver", made)
    made.__dict__["cuInit"] = lambda flags: (made.CUresult.CUDA_SUCCESS,)
    assert in_child(lambda: DRIVER() is made)() == 0


def square(seed: int) -> int:
    return Product(seed).wrong(3)


@pytest.mark.timeout(120)
def test_a_pool_of_forked_processes_multiplies() -> None:
    assert Product(9).wrong() == 0
    with multiprocessing.get_context("fork").Pool(3) as pool:
        assert pool.map(square, range(12), chunksize=1) == [0] * 12
