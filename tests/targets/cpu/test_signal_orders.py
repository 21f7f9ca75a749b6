"""Memory orders of counters in C++ text: x86 orders more than the text asks for, so results cannot tell."""

from __future__ import annotations

import re

import numpy as np
import pytest
from tests.targets import signals

from tilewright.targets import cpu


def text(bound, *arrays: np.ndarray) -> str:
    return cpu.emit(bound.trace(*arrays), "aarch64").text


X, Y = np.zeros(128, np.float32), np.zeros(128, np.float32)


def test_a_signal_releases_what_came_before_it() -> None:
    (order,) = re.findall(r"__atomic_fetch_add\(ready.*, 1, (\w+)\)", text(signals.hand_over, X, Y))
    assert order == "__ATOMIC_RELEASE"


def test_a_wait_acquires_each_time_that_it_looks() -> None:
    (body,) = re.findall(r"^static bool await_counter.*?^}", text(signals.hand_over, X, Y), re.S | re.M)
    assert re.findall(r"load_n\(counter, (\w+)\)", body) == ["__ATOMIC_ACQUIRE"] * 2


@pytest.mark.parametrize("bound", [signals.last_block_sum, signals.SMALL_TURNSTILE])
def test_the_last_of_several_releases_and_acquires(bound) -> None:
    arrays = (X, Y[:1]) if bound is signals.last_block_sum else [np.zeros((64, 64), np.float32)] * 3
    (body,) = re.findall(r"^static inline unsigned take_ticket_of.*?^}", text(bound, *arrays), re.S | re.M)
    assert "true, __ATOMIC_ACQ_REL" in body
