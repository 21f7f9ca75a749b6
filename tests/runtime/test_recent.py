"""Caches are bounded: caches of values, and the compiled code that a process has loaded."""

from __future__ import annotations

import gc
import itertools
import re
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
from tilewright.ops import matmul as in_ops
from tilewright.ops.products import plain
from tilewright.runtime import host, recent, specialise
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.executable import Executable
from tilewright.runtime.libraries import Library, damage
from tilewright.runtime.plans import Plans
from tilewright.runtime.recent import Recent, clock
from tilewright.runtime.workers import Launcher

from .fake_gpu import Driver, OnGpu

pytestmark = pytest.mark.in_turns(3)


@tw.kernel(X="N", Y="N")
def double(X, Y, *, tile=64, seed=0):
    n = tw.block_index(tw.ceil_div(X.shape[0], tile))
    x = tw.load(X.tile((tile,), (n,)).partition((32,)))
    tw.copy(x + x, Y.tile((tile,), (n,)))


def mapped() -> int:
    """Return how many of our libraries this process has mapped."""
    gc.collect()
    text = Path("/proc/self/maps").read_text()
    return len(set(re.findall(r"\S+ +\S+ (\d+) +/memfd:tilewright", text)))


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """Use a bound of 8 executables, and forget those of earlier tests."""
    before = recent._entered
    monkeypatch.setattr(recent, "_entered", Recent(8, before._used, before._dropped))
    for kernel in (double, plain(0)):
        kernel._bound.forget()
        monkeypatch.setattr(kernel, "_last", ((), None))
    yield 8
    double._bound.forget()


# Values.


@given(st.integers(1, 8), st.lists(st.tuples(st.booleans(), st.integers(0, 12)), max_size=80))
def test_the_least_recently_used_go(most: int, steps: list[tuple[bool, int]]) -> None:
    kept: Recent[int, int] = Recent(most)
    known: dict[int, None] = {}  # in the order of their last uses
    for look, key in steps:
        there = key in known
        known.pop(key, None)
        if look:
            assert kept.get(key) == (key if there else None)
            if there:
                known[key] = None
            continue
        kept.keep(key, key)
        known[key] = None
        if len(known) > most:
            known.pop(next(iter(known)))
        assert sorted(kept) == sorted(known)


def test_a_large_one_lets_a_sixteenth_go_at_once_and_never_what_is_used() -> None:
    used: dict[int, int] = {}
    kept: Recent[int, int] = Recent(320, lambda value: used.get(value, 0))
    for key in range(5000):
        kept.keep(key, key)
        used[3] = used[7] = next(clock)
        assert len(kept) <= 320
        assert kept.find(3) is not None or key < 3
    assert {3, 7} <= set(kept)
    assert len(kept) >= 300
    assert min(set(kept) - {3, 7}) >= 4680
    assert len(kept._uses) <= 320


def test_threads_keep_and_look_up_at_the_same_time() -> None:
    kept: Recent[int, int] = Recent(16)
    wrong: list[object] = []

    def work(seed: int) -> None:
        drawn = np.random.default_rng(seed)
        try:
            for key in map(int, drawn.integers(0, 64, 4000)):
                found = kept.get(key)
                if found is None:
                    kept.keep(key, key)
                elif found != key:
                    wrong.append(key)
                if key == 0:
                    kept.forget(lambda value: value % 3 == 0)
        except Exception as error:  # noqa: BLE001 of any kind
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    kept.keep(100, 100)
    assert not wrong
    assert len(kept) <= 16


# Compiled code.


def test_many_shapes_leave_at_most_the_bound_of_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every shape really loads its own library; only the compiler runs once."""
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    first = double.compile(x, y, target="cpu", seed=-1)
    entry = first.handle[0]

    def compile_quickly(self: Any, kernel: Any, arch: Any, listing: Any = None) -> Executable:
        launcher = Launcher(Library(entry.data), first.listing.entry, first.listing.shared_bytes)  # type: ignore[union-attr]
        return Executable("cpu", "x", first.kernel, first.listing, handle=(entry, launcher))

    monkeypatch.setattr(host.CpuBackend, "compile", compile_quickly)
    monkeypatch.setattr(double.program, "trace", lambda *given: first.kernel)
    before = mapped()
    held = double.bind(seed=-2).prepare(x, y, target="cpu")
    try:
        for seed in range(2 * recent.MOST_EXECUTABLES):
            y.fill(np.nan)
            double(x, y, seed=seed, target="cpu")
            assert (y == 2).all()
        assert mapped() - before <= recent.MOST_EXECUTABLES + 1
        assert len(double._bound) <= 256
        y.fill(np.nan)
        held()  # a prepared launch keeps its library
        assert (y == 2).all()
    finally:
        double._bound.forget()
        double._last = ((), None)
        del held
    assert mapped() <= before + 1


def test_what_is_launched_stays_and_what_is_not_goes(few: int) -> None:
    x, y = np.ones(64, np.float32), np.zeros(64, np.float32)
    hot, cold = double.bind(seed=1), double.bind(seed=2)
    kept, gone = hot(x, y, target="reference"), cold(x, y, target="reference")
    for seed in range(10, 10 + 2 * few):
        double(x, y, seed=seed, target="reference")
        assert hot(x, y, target="reference") is kept
    assert cold(x, y, target="reference") is not gone


@tw.kernel(X="M N", Y="M N")
def double_rows(X, Y):
    m = tw.block_index(tw.ceil_div(X.shape[0], 32))
    x = tw.load(X.tile((32, 64), (m, 0)).partition((1, 32)))
    tw.copy(x + x, Y.tile((32, 64), (m, 0)))


def test_a_shape_that_is_launched_stays_however_many_others_its_kernel_meets(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both the kernel's own cache and that of the process take the time of use from the launches."""
    monkeypatch.setattr(specialise, "MOST_CLASSES", few)
    bound = double_rows.bind()
    x, y = np.ones((32, 64), np.float32), np.zeros((32, 64), np.float32)
    kept, others = bound(x, y, target="reference"), []
    for m, n in itertools.product([1, 2, 4, 8, 16], repeat=2):
        x_other, y_other = np.ones((m, n), np.float32), np.zeros((m, n), np.float32)
        others.append(bound(x_other, y_other, target="reference"))
        assert (y_other == 2).all()
        assert bound(x, y, target="reference") is kept
    assert len(set(map(id, others))) > 2 * few


def test_a_plan_goes_with_its_executable(few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plans = Plans()
    in_ops._PLANS.forget()
    monkeypatch.setattr("tilewright.ops.matmul._PLANS", plans)
    kernels = itertools.product((np.float64, np.float32, np.float16), "CF", "CF")
    for size, (dtype, *orders) in enumerate(kernels, 2):
        a, b = (np.ones((size, size), dtype, order) for order in orders)
        out = np.zeros_like(a)
        tw.matmul(a, b, out, target="cpu")
        assert (out == size).all()
    known = [plan for key in plans._plans if (plan := plans.find(key)) is not None]
    executables = {id(one.executable) for plan in known for one in plan.prepared_launches}
    assert 0 < len(executables) <= few
    assert len(list(plain(0)._bound)) > 0


def test_on_a_gpu_a_module_is_unloaded_with_the_last_that_holds_it(gpu: Driver) -> None:
    gc.collect()
    CUDA_DRIVER.synchronize()
    gpu.unloaded.clear()  # modules of other tests
    x, y = OnGpu(np.ones(64, np.float32)), OnGpu(np.zeros(64, np.float32))
    bound = double.bind(seed=77)
    executable = bound(x, y)
    again = bound.prepare(x, y)
    number = gpu.loaded
    bound.forget(executable)
    double._bound.forget()
    del executable
    gc.collect()
    assert gpu.unloaded == []
    again()
    del again
    gc.collect()
    assert gpu.unloaded == []  # its launches may still run
    bound(x, y)
    assert gpu.unloaded == []
    CUDA_DRIVER.synchronize()
    assert gpu.unloaded == [number]
    assert gpu.loaded == number + 1


def test_a_library_that_is_cut_off_anywhere_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.ones(64, np.float32)
    data = double.compile(x, x, target="cpu").handle[0].data
    assert damage(data) is None
    for size in (0, 3, 40, 64, 100, len(data) // 2, len(data) - 1):
        with pytest.raises(tw.ToolchainError, match="cannot load the compiled library cut: it"):
            Library(data[:size], "cut")
    (sections,) = struct.unpack_from("<Q", data, 40)
    assert damage(data[:sections]) is not None
    with pytest.raises(tw.ToolchainError, match="it is not an ELF file"):
        Library(b"no library")


@pytest.mark.usefixtures("no_known_products")
def test_what_executables_were_made_of_goes_with_them(few: int) -> None:
    product, drawn = plain(0), np.random.default_rng(7)
    kinds = (np.float32, np.float16, np.float64)
    for kind, m, n, k in itertools.product(kinds, (3, 8), (5, 16), (4, 7)):
        a, b = (drawn.integers(-3, 4, shape).astype(kind) for shape in ((m, k), (k, n)))
        assert (tw.matmul(a, b, target="reference") == a.astype(np.int64) @ b.astype(np.int64)).all()
    gc.collect()
    made = [
        found
        for found in gc.get_objects()
        if isinstance(found, specialise.Builds) and found.around is product._around
    ]
    assert sum(len(found._executables) for found in made) > 4
    for kept in ("_executables", "_traces"):
        assert sum(len(getattr(found, kept)) for found in made) <= few
    for kept in ("_flows", "_programs"):
        assert sum(len(getattr(found.scheduled, kept)) for found in made) <= few
