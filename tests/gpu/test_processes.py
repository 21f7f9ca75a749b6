"""Launches on a GPU from many threads, in forked children, and after machine code was unloaded."""

from __future__ import annotations

import gc
import os
import threading
from importlib import import_module

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.runtime.exact import count

import tilewright as tw
from tilewright.runtime import driver, recent
from tilewright.runtime.cuda import CUDA_DRIVER
from tilewright.runtime.driver import UnwantedCode
from tilewright.runtime.recent import Recent

pytestmark = pytest.mark.gpu


@tw.kernel(X="N", Y="N", alpha=tw.f32)
def scale(X, Y, alpha, *, seed=0):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    x = tw.load(X.tile((64,), (n,)).partition((32,)))
    tw.copy(x * (alpha + float(seed)), Y.tile((64,), (n,)))


def test_threads_launch_one_shape_on_one_stream_at_the_same_time(canaries: Canaries) -> None:
    torch = import_module("torch")
    bound, wrong = count.bind(), []

    def work(turns: int) -> None:
        x = canaries.torch(np.zeros(5000, np.float32))
        for _ in range(200):
            x.fill_(float("nan"))
            bound(x, turns)
            wrong.append((x != turns).sum())

    threads = [threading.Thread(target=work, args=(turns,)) for turns in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wrong) == 1200
    assert int(torch.stack(wrong).sum()) == 0


# Other tests of the process may have threads, and JAX says of its own what comes of that.
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:os.fork.* was called:RuntimeWarning")
def test_a_forked_child_is_refused_and_its_parent_goes_on(canaries: Canaries) -> None:
    torch = import_module("torch")
    x, y = torch.randn(1000, device="cuda"), canaries.torch(np.full(1000, np.nan, np.float32))
    bound, again = scale.bind(), scale.bind().prepare(x, y, 2.0)
    bound(x, y, 2.0)
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            for call in (lambda: bound(x, y, 3.0), again, CUDA_DRIVER.synchronize):
                with pytest.raises(tw.LaunchError, match=r"forked.*get_context\('spawn'\)"):
                    call()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    y.fill_(float("nan"))
    again()
    assert torch.equal(y, 2 * x)


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Record unloaded machine code; 8 executables are kept, and no code waits to be unloaded."""
    gc.collect()
    before, made = recent._entered, []
    monkeypatch.setattr(recent, "_entered", Recent(8, before._used, before._dropped))
    monkeypatch.setattr(CUDA_DRIVER, "unwanted", UnwantedCode())
    real = CUDA_DRIVER.bindings().cuModuleUnload
    monkeypatch.setattr(
        CUDA_DRIVER.bindings(), "cuModuleUnload", lambda what: (made.append(what), real(what))[1]
    )
    return made


def test_machine_code_is_unloaded_when_the_device_has_been_waited_for(
    unloaded: list[object], canaries: Canaries
) -> None:
    torch = import_module("torch")
    x = torch.randn(1 << 20, device="cuda")
    ys = [canaries.torch(np.full(1 << 20, np.nan, np.float32)) for _ in range(30)]
    held = scale.bind(seed=1000).prepare(x, ys[0], 0.0)
    launches = [scale.bind(seed=seed).prepare(x, y, 1.0) for seed, y in enumerate(ys)]
    torch.cuda._sleep(2_000_000_000)  # about a second, before the first of them begins
    for launch in launches:
        launch()
    del launch
    launches.clear()
    gc.collect()
    assert not torch.cuda.current_stream().query(), "the launches are over already"
    assert len(CUDA_DRIVER.unwanted) >= 15
    assert not unloaded
    for seed, y in enumerate(ys):
        assert torch.equal(y, x * (1.0 + seed))
    assert not unloaded
    CUDA_DRIVER.synchronize()
    assert len(unloaded) >= 15
    assert not CUDA_DRIVER.unwanted
    held()
    assert torch.equal(ys[0], x * 1000.0)


def test_machine_code_that_waits_to_be_unloaded_is_bounded(
    unloaded: list[object], monkeypatch: pytest.MonkeyPatch, canaries: Canaries
) -> None:
    torch = import_module("torch")
    monkeypatch.setattr(driver, "MOST_UNWANTED", 2)
    x = torch.randn(1 << 20, device="cuda")
    ys = [canaries.torch(np.full(1 << 20, np.nan, np.float32)) for _ in range(24)]
    for seed, y in enumerate(ys):
        scale(x, y, 1.0, seed=seed)  # nobody waits for it, but the next that is loaded
        gc.collect()
        assert len(CUDA_DRIVER.unwanted) <= 2 + 2
    assert len(unloaded) >= 8
    for seed, y in enumerate(ys):
        assert torch.equal(y, x * (1.0 + seed))
