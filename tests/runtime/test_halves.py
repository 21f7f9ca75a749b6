"""Launches of a product in halves on a GPU: the memory of the halves, and a second call's launches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tilewright.ops import matmul as in_ops
from tilewright.ops.products import in_halves
from tilewright.ops.splitting import splitting_of_both
from tilewright.runtime import gpu_memory
from tilewright.runtime.device import PreparedCuda

from .fake_gpu import Driver, OnGpu

N = 1024


@pytest.fixture
def forgotten(gpu: Driver, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A GPU with empty caches of launches and memory."""
    monkeypatch.setattr(gpu_memory._idle, "held", {})
    in_ops._PLANS.forget()
    splitting_of_both.cache_clear()  # what was prepared launches through the driver of another test
    in_halves.cache_clear()
    gpu.arguments = 8
    return gpu


def matrix() -> OnGpu:
    return OnGpu(np.zeros((N, N), np.float32))


def called(gpu: Driver, a: OnGpu, b: OnGpu, out: OnGpu, stream: int = 77) -> list[tuple[int, ...]]:
    """Return the first arguments of one call's launches."""
    before = len(gpu.launched)
    tw.matmul(a, b, out=out, precision="f32", stream=stream)
    made = gpu.launched[before:]
    assert [one.stream for one in made] == [stream] * 2, "operands are split, halves are multiplied"
    return [one.words for one in made]


def test_each_call_splits_its_own_operands_into_the_memory_of_its_stream(forgotten: Driver) -> None:
    a, b, out = matrix(), matrix(), matrix()
    first = called(forgotten, a, b, out)
    known = len(in_ops._PLANS)
    again = called(forgotten, b, a, out)
    assert len(in_ops._PLANS) == known == 1
    starts = [one.__cuda_array_interface__["data"][0] for one in (a, b)]
    assert [first[0][0], first[0][4]] == starts
    assert [again[0][0], again[0][4]] == starts[::-1]
    halves, others = ([*words[1:4], *words[5:8]] for words in (first[0], again[0]))
    assert halves == others
    places = sorted(halves)
    assert len({*places}) == 6
    assert all(after - before >= N * 4 for before, after in pairwise(places))
    other = called(forgotten, a, b, out, stream=78)
    assert not {*other[0][1:4], *other[0][5:8]} & {*places}, "memory of another stream"


def test_what_shares_memory_is_found_each_time(forgotten: Driver) -> None:
    a, b, out = matrix(), matrix(), matrix()
    called(forgotten, a, b, out)
    with pytest.raises(tw.LaunchError, match="share memory"):
        tw.matmul(a, b, out=a, precision="f32", stream=77)


def test_numbers_are_those_of_each_call(forgotten: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, out = (matrix() for _ in range(4))
    given: list[tuple[float, ...]] = []
    launch = PreparedCuda.launch

    def noted(self: PreparedCuda, arguments: Any, pointers: Any, stream: Any) -> None:
        given.append(tuple(one for one in arguments if isinstance(one, float)))
        launch(self, arguments, pointers, stream)

    monkeypatch.setattr(PreparedCuda, "launch", noted)
    for alpha, beta in ((2.0, 0.5), (3.5, -1.5)):
        tw.matmul(a, b, c=c, out=out, alpha=alpha, beta=beta, precision="f32", stream=77)
        assert given[-1] == (alpha, beta)
    assert len(given) == 4
    # Nothing is added where beta is 0, and what is added in place is the result: kernels of their own.
    known = len(in_ops._PLANS)
    tw.matmul(a, b, c=c, out=out, alpha=2.0, beta=0.0, precision="f32", stream=77)
    tw.matmul(a, b, c=out, out=out, alpha=2.0, beta=0.5, precision="f32", stream=77)
    assert len(in_ops._PLANS) > known
    assert given[-1] == (2.0, 0.5)
