"""Launches around forks: parent and child compute exact results, and no child waits for its parent."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import cuda.bindings
import numpy as np
import pytest

import tilewright as tw
from tilewright.namespaces import import_whole
from tilewright.runtime import workers
from tilewright.runtime.cache import Cache, key
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.environment import renew_after_fork
from tilewright.runtime.workers import Scratch

from .exact import Product, count, in_child, meanwhile
from .fake_gpu import Driver, OnGpu

pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")


@tw.kernel(X="N", alpha=tw.f32)
def scale(X, alpha):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    part = X.tile((64,), (n,))
    tw.copy(tw.load(part.partition((32,))) * alpha, part)


# Memory.


def test_scratch_memory_is_not_shared_with_a_forked_child() -> None:
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


@pytest.mark.timeout(120)
def test_a_fork_waits_for_an_import_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = "import time\ntime.sleep(0.5)\n"
    (tmp_path / "slow_inner.py").write_text(inner)
    (tmp_path / "slow_outer.py").write_text("import slow_inner\nwhole = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        thread = threading.Thread(target=import_whole, args=("slow_outer",))
        thread.start()
        while "slow_inner" not in sys.modules:
            time.sleep(0.001)
        join = in_child(lambda: bool(import_whole("slow_outer").whole), 20)
        assert join() == 0
        thread.join()
        # A fork of the thread that imports waits for nobody, and its child goes on importing.
        forking = "import os\nchild = os.fork()\nif child == 0: import slow_inner; os._exit(7)\n"
        (tmp_path / "forking.py").write_text(forking + "ended = os.waitpid(child, 0)[1]\n")
        assert os.waitstatus_to_exitcode(import_whole("forking").ended) == 7
    finally:
        for name in ("slow_outer", "slow_inner", "forking"):
            sys.modules.pop(name, None)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("after", ["tilewright.dtypes", "tilewright.ops"])
def test_a_child_that_is_forked_during_the_first_call_computes(after: str) -> None:
    code = f"""
import os, signal, sys, threading, time
import numpy as np
import tilewright as tw
def multiply():
    a = np.arange(12, dtype=np.float32).reshape(4, 3)
    return bool((tw.matmul(a, a.T, target="reference") == a @ a.T).all())
threading.Thread(target=multiply).start()
while {after!r} not in sys.modules: time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(90)
    os._exit(0 if multiply() else 1)
print(os.waitpid(child, 0)[1])
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["0"], ran.stderr


def test_what_is_renewed_is_not_kept_alive() -> None:
    class Owner:
        renewed = 0

        def renew(self) -> None:
            Owner.renewed += 1

    kept = renew_after_fork(Owner())
    renew_after_fork(Owner())
    assert in_child(lambda: kept.renewed == 1)() == 0
    assert Owner.renewed == 0


# The CUDA driver.


def test_a_forked_child_is_told_that_the_driver_cannot_be_used(
    gpu: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CUDA_DRIVER, "bindings", DRIVER)
    x = OnGpu(np.ones(200, np.float32))
    bound, again = scale.bind(), scale.bind().prepare(x, 2.0)
    for _ in range(2):
        bound(x, 2.0), again()
    launched = len(gpu.launched)
    fresh = OnGpu(np.ones(7, np.float32))

    def refused() -> bool:
        for call in (lambda: bound(x, 2.0), again, lambda: bound(fresh, 3.0), DRIVER):
            with pytest.raises(tw.LaunchError, match=r"forked.*nearest: .*get_context\('spawn'\)"):
                call()
        return len(gpu.launched) == launched

    assert in_child(refused)() == 0
    bound(x, 2.0)
    assert len(gpu.launched) == launched + 1


DRIVER = CUDA_DRIVER.bindings


def test_a_child_that_uses_the_driver_first_may(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Driver()
    monkeypatch.setattr(CUDA_DRIVER._process, "bindings", None)
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
