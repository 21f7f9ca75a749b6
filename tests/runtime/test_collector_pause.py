"""The garbage collector pauses while a kernel is made."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Iterator

import pytest

import tilewright as tw
from tilewright.runtime.environment import COLLECTOR_PAUSE, CollectorPause


@pytest.fixture(autouse=True)
def on() -> Iterator[None]:
    assert gc.isenabled()
    yield
    assert gc.isenabled()


def test_the_collector_goes_on_after_the_last_block() -> None:
    pause = CollectorPause()
    with pause:
        with pause:
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_a_collector_that_is_off_stays_off() -> None:
    gc.disable()
    try:
        with CollectorPause():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_it_goes_on_after_an_error() -> None:
    with pytest.raises(ValueError, match="no"), CollectorPause():
        raise ValueError("no")


def test_it_waits_for_the_blocks_of_other_threads() -> None:
    pause, entered, leave = CollectorPause(), threading.Event(), threading.Event()

    def other() -> None:
        with pause:
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with pause:
        thread.start()
        assert entered.wait(60)
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_it_goes_on_in_a_child_that_is_forked_within_a_block() -> None:
    pause = CollectorPause()
    with pause:
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_it_is_paused_while_a_kernel_is_traced() -> None:
    seen = []

    @tw.kernel(A="M K", B="K N", C="M N")
    def product(A, B, C):
        seen.append(gc.isenabled())
        for m, n in tw.tiles(C):
            acc = tw.zeros()
            for k in tw.steps(A.shape[1]):
                acc += A[m, k] @ B[k, n]
            C[m, n] = acc

    product.compile(*[tw.like("f16", (64, 64))] * 3, target="cuda", arch="sm_80")
    assert seen
    assert not any(seen)
    assert COLLECTOR_PAUSE._inside == 0
