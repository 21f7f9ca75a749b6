"""Launches in signal handlers and on several threads: results are exact, and no call waits for another."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.namespaces import import_whole
from tilewright.runtime import workers
from tilewright.runtime.cache import Cache, key

from .exact import Product, count
from .fake_gpu import Driver, OnGpu


@contextmanager
def interrupted_by(handler: Callable[[], object], every: float = 0.0005) -> Iterator[list[int]]:
    """Run ``handler`` in this thread at each signal of a timer; return a list that counts the calls."""
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


class Launching:
    """A number whose conversion launches the same launch, on another array."""

    def __init__(self, value: float, launch: Callable[[], object]) -> None:
        self.value, self.launch = value, launch

    def __float__(self) -> float:
        self.launch()
        return self.value


@tw.kernel(X="N", alpha=tw.f32)
def scale(X, alpha):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    part = X.tile((64,), (n,))
    tw.copy(tw.load(part.partition((32,))) * alpha, part)


def test_a_launch_inside_of_a_launch_has_arguments_of_its_own() -> None:
    """This is like a signal handler, but a second lock would be noticed."""
    bound, x, y = scale.bind(), np.ones(100, np.float32), np.ones(100, np.float32)
    bound(x, 2.0, target="cpu")
    bound(x, Launching(3.0, lambda: bound(y, 5.0, target="cpu")), target="cpu")
    assert (x == 6).all()
    assert (y == 5).all()


def test_on_a_gpu_a_launch_inside_of_a_launch_has_arguments_of_its_own(gpu: Driver) -> None:
    gpu.arguments = 3
    x, y = OnGpu(np.ones(100, np.float32)), OnGpu(np.ones(100, np.float32))
    bound = scale.bind()
    bound(x, 2.0)
    bound(x, Launching(3.0, lambda: bound(y, 5.0)))
    bound(x, 4.0)
    found = [np.uint32(launched.words[1] & 0xFFFFFFFF).view(np.float32) for launched in gpu.launched]
    assert found == [2.0, 5.0, 3.0, 4.0]
    assert [launched.words[0] for launched in gpu.launched] == [x.address, y.address, x.address, x.address]


# Threads.


def test_launches_of_one_shape_on_several_threads_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bound, xs = count.bind(), [np.zeros(100, np.float32) for _ in range(4)]
    bound(xs[0], 1, target="cpu")
    prepared = bound.planned((xs[0], 1), "cpu")[0].prepared
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


DURING_IMPORT = """
import signal, sys, numpy as np, tilewright as tw
x, results = np.eye(8, dtype=np.float32), []

class Interrupting:
    \"\"\"Sends a signal when one module in 20 of the library is looked for.\"\"\"
    asked, inside = 0, 0
    def find_spec(self, name, path=None, target=None):
        if name.startswith("tilewright."):
            self.asked += 1
            if self.asked % 20 == 3:
                signal.raise_signal(signal.SIGUSR1)

def handler(number, frame):
    if not finder.inside:  # its own imports send signals too
        finder.inside = 1
        results.append(float(tw.matmul(x, x, target="reference").sum()))
        results.append(tw.ir.parse_kernel.__name__)
        finder.inside = 0

finder = Interrupting()
signal.signal(signal.SIGUSR1, handler)
sys.meta_path.insert(0, finder)
print(tw.matmul(x, x, target="reference").sum(), finder.asked > 100, len(results) > 10, set(results))
assert signal.getsignal(signal.SIGUSR1) is handler
"""


def test_a_signal_handler_that_interrupts_an_import_uses_the_whole_library() -> None:
    done = subprocess.run([sys.executable, "-c", DURING_IMPORT], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("8.0 True True {")
    assert "8.0" in done.stdout[4:]
    assert "'parse_kernel'" in done.stdout


def test_signals_during_an_import_reach_every_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also if the first handler raises; a handler that the module sets stays."""
    (tmp_path / "signals_itself.py").write_text(
        "import signal\n"
        "signal.raise_signal(signal.SIGUSR1)\n"
        "signal.raise_signal(signal.SIGUSR2)\n"
        "signal.signal(signal.SIGALRM, print)\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    ran = list[int]()

    def handle(number: int, _: object) -> None:
        ran.append(number)
        if number == signal.SIGUSR1:
            raise InterruptedError("by the first handler")

    numbers = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM)
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        with pytest.raises(InterruptedError, match="by the first handler"):
            import_whole("signals_itself")
        assert ran == [signal.SIGUSR1, signal.SIGUSR2]
        assert [signal.getsignal(number) for number in numbers] == [handle, handle, print]
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# Small stacks.


@pytest.mark.timeout(120)
def test_threads_with_the_stack_that_the_readme_asks_make_the_first_call(tmp_path: Path) -> None:
    code = """
import threading
import numpy as np
import tilewright as tw
a = np.arange(600, dtype=np.float32).reshape(30, 20) % 5
right = []
def first():
    right.append(bool((tw.matmul(a, a.T, target="cpu") == a @ a.T).all()))
threading.stack_size(128 * 1024)
threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(right)
"""
    assert "set at least 128 KiB" in (Path(__file__).parents[2] / "README.md").read_text()
    environment = {**os.environ, "TILEWRIGHT_CACHE_DIR": str(tmp_path), "TILEWRIGHT_THREADS": "3"}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert (ran.returncode, ran.stdout.strip()) == (0, str([True] * 4)), ran.stderr


# The interpreter's end.


@pytest.mark.timeout(120)
@pytest.mark.parametrize("earlier", [1, 3])
def test_a_launch_while_the_interpreter_ends_runs_on_its_callers_thread(earlier: int) -> None:
    code = f"""
import atexit, sys
import numpy as np
import tilewright as tw
class Late:
    def __init__(self):
        self.a = np.random.default_rng(0).integers(-3, 4, (300, 300)).astype(np.float32)
        self.exact = self.a @ self.a
    def right(self):
        return bool((tw.matmul(self.a, self.a, target="cpu") == self.exact).all())
    def __del__(self):
        print("del", self.right(), flush=True)
late = Late()
atexit.register(lambda: print("atexit", late.right(), flush=True))
assert all([late.right() for _ in range({earlier})])
atexit.register(lambda: print("atexit", late.right(), flush=True))
sys.modules["late"] = late
"""
    environment = {**os.environ, "TILEWRIGHT_THREADS": "2"}
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=90,
        env=environment,
    )
    assert ran.stdout.splitlines() == ["atexit True", "atexit True", "del True"], ran.stderr
