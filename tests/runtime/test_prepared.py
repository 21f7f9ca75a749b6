"""Prepared launches: real ones on host arrays, and the driver calls of a GPU."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tests.runtime.exact import count

import tilewright as tw

from .fake_gpu import Driver, OnGpu

TARGETS = ("reference", "cpu")


@tw.kernel(X="N", Y="N", alpha=tw.f32)
def scale(X, Y, alpha):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    x = tw.load(X.tile((64,), (n,)).partition((32,)))
    tw.copy(x * alpha, Y.tile((64,), (n,)))


@tw.kernel(A="M K", B="M K")
def move_box(A, B):
    staged = tw.shared((64, 64), A.dtype, swizzle=128)
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    tw.hopper.arrive(full[0], expect_bytes=64 * 64 * A.dtype.bytes)
    tw.hopper.tma_load(A.tile((64, 64), (0, 0)), staged, full[0])
    tw.hopper.wait(full[0], 0)
    tw.hopper.tma_store(staged, B.tile((64, 64), (0, 0)))
    tw.hopper.bulk_commit()
    tw.hopper.bulk_wait()


def arrays(n: int = 200) -> tuple[Any, Any]:
    return np.random.default_rng(n).standard_normal(n).astype(np.float32), np.full(n, np.nan, np.float32)


@pytest.mark.parametrize("target", TARGETS)
def test_it_launches_again_on_what_the_arrays_hold_now(target: str) -> None:
    x, y = arrays()
    again = scale.bind().prepare(x, y, 2.0, target=target)
    assert again.executable.target == target
    for turn in range(3):
        x[:] += turn
        y[:] = np.nan
        assert again() is again.executable
        assert (y == 2 * x).all()


@pytest.mark.parametrize("target", TARGETS)
def test_numbers_may_be_given_anew_for_one_call(target: str) -> None:
    x, y = arrays()
    again = scale.bind().prepare(x, y, 2.0, target=target)
    for given, alpha in (({"alpha": 3.0}, 3.0), ({}, 2.0), ({"alpha": np.float32(0.5)}, 0.5), ({}, 2.0)):
        again(**given)
        assert (y == np.float32(alpha) * x).all()


def test_a_number_that_changes_its_value_in_place_is_read_again() -> None:
    x, y = arrays()
    alpha = np.array(2.0, np.float32)
    again = scale.bind().prepare(x, y, alpha, target="cpu")
    for value in (2.0, 5.0):
        alpha[...] = value
        again()
        assert (y == np.float32(value) * x).all()


@pytest.mark.parametrize("target", TARGETS)
def test_counters_start_at_zero_every_time(target: str) -> None:
    x = np.full(130, np.nan, np.float32)
    again = count.bind().prepare(x, 3, target=target)
    for _ in range(3):
        again()
        assert (x == 3).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"X": 1}, r"kernel scale: X= is not one of the numbers .* \(alpha\)"),
        ({"beta": 1.0}, "kernel scale: beta= is not one of the numbers"),
        ({"alpha": "two"}, "alpha='two' must be a number"),
        ({"stream": 7}, "stream=7 is for GPUs; the cpu target runs before it returns; .* stream=None"),
    ],
)
def test_what_a_call_refuses(given: dict[str, Any], message: str) -> None:
    x, y = arrays()
    again = scale.bind().prepare(x, y, 2.0, target="cpu")
    with pytest.raises(tw.LaunchError, match=message):
        again(**given)
    assert np.isnan(y).all()
    again()
    assert (y == 2 * x).all()


def test_an_integer_is_fixed_when_it_is_prepared() -> None:
    again = count.bind().prepare(np.zeros(64, np.float32), 3, target="cpu")
    with pytest.raises(tw.LaunchError, match=r"turns= is not one of the numbers .*\(it has none\)"):
        again(turns=4)


def test_preparing_checks_what_a_launch_checks() -> None:
    x, y = arrays()
    for wrong, message in (
        ((x, y), "takes 3 arguments"),
        ((x, y[:7], 1.0), "N is 200 in X.shape"),
        ((x, np.broadcast_to(y[0], 200), 1.0), "read-only"),
    ):
        with pytest.raises(tw.LaunchError, match=message):
            scale.bind().prepare(*wrong)


def test_arrays_that_moved_or_were_resized() -> None:
    def resize(array: Any, n: int) -> None:
        array.resize(n, refcheck=False)

    changes: tuple[tuple[Callable[[Any], None], str], ...] = (
        (lambda array: resize(array, 1 << 20), "kernel scale: X moved since the launch was prepared"),
        (lambda array: setattr(array, "shape", (2, 100)), "kernel scale: an array was resized since"),
    )
    for change, message in changes:
        x, y = arrays()
        again = scale.bind().prepare(x, y, 2.0, target="cpu")
        change(x)
        with pytest.raises(tw.LaunchError, match=message):
            again()
        assert np.isnan(y).all()


def test_it_keeps_its_arrays() -> None:
    x, y = arrays()
    again = scale.bind().prepare(x.copy(), y, 2.0, target="cpu")
    others = [np.zeros_like(x) for _ in range(50)]
    again()
    assert len(others) == 50
    assert (y == 2 * x).all()


@pytest.mark.parametrize("target", ["cpu"])
def test_threads_launch_at_the_same_time(target: str) -> None:
    x, y = arrays(5000)
    again = scale.bind().prepare(x, y, 2.0, target=target)
    wrong: list[int] = []

    def work() -> None:
        for _ in range(200):
            again()
            wrong.extend(np.flatnonzero(y != 2 * x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_on_a_gpu_the_addresses_are_written_once_and_the_stream_is_asked_each_time(gpu: Driver) -> None:
    gpu.arguments = 2
    x, y = (OnGpu(a, stream=5) for a in arrays())
    again = scale.bind().prepare(x, y, 2.0)
    again()
    x.stream = 9
    again(alpha=3.0)
    again(stream=11)
    assert [launched.stream for launched in gpu.launched] == [5, 9, 11]
    assert {launched.words for launched in gpu.launched} == {(x.address, y.address)}
    x.array = x.array.copy()
    with pytest.raises(tw.LaunchError, match="X moved since"):
        again()
    assert len(gpu.launched) == 3


def test_on_a_gpu_numbers_are_those_of_the_call(gpu: Driver) -> None:
    gpu.arguments = 3
    again = scale.bind().prepare(*(OnGpu(a) for a in arrays()), 2.0)
    for given in ({}, {"alpha": 3.0}, {}):
        again(**given)
    found = [np.uint32(launched.words[2] & 0xFFFFFFFF).view(np.float32) for launched in gpu.launched]
    assert found == [2.0, 3.0, 2.0]


def test_on_a_gpu_each_stream_has_counters_of_its_own_cleared_before_each_launch(gpu: Driver) -> None:
    gpu.arguments = 2
    again = count.bind().prepare(OnGpu(np.zeros(130, np.float32)), 3)
    for stream in (5, 5, 9, 5):
        again(stream=stream)
    counters = [launched.words[1] for launched in gpu.launched]
    assert counters[0] == counters[1] == counters[3] != counters[2]
    assert gpu.cleared == [(at, 3 * 64 * 4, on) for at, on in zip(counters, (5, 5, 9, 5), strict=True)]


def test_on_a_gpu_a_stream_with_the_handle_of_another_has_counters_of_its_own(gpu: Driver) -> None:
    """The stream before it may have been destroyed while its work went on."""
    gpu.arguments = 2
    again = count.bind().prepare(OnGpu(np.zeros(130, np.float32)), 3)
    for number in (70, 70, 71, 70, 71):
        gpu.stream_ids[5] = number
        again(stream=5)
    first, same, other, once_more, too = (launched.words[1] for launched in gpu.launched)
    assert first == same == once_more != other == too


def test_on_a_gpu_the_default_stream_of_each_thread_has_counters_of_its_own(gpu: Driver) -> None:
    """A thread may have the number of an ended thread whose work is unfinished."""
    gpu.arguments = 2
    again = count.bind().prepare(OnGpu(np.zeros(130, np.float32)), 3)
    for _ in range(4):
        thread = threading.Thread(target=lambda: [again(stream=2) for _ in range(2)])
        thread.start()
        thread.join()
    again(stream=0)
    again(stream=1)
    counters = [launched.words[1] for launched in gpu.launched]
    assert counters[0:8:2] == counters[1:8:2]
    assert len(set(counters)) == 6


def test_on_a_gpu_the_workspaces_of_the_oldest_streams_are_freed(gpu: Driver) -> None:
    again = count.bind().prepare(OnGpu(np.zeros(130, np.float32)), 3)
    for stream in range(10, 30):
        again(stream=stream)
    assert len(gpu.freed) == 4
    assert [at for at, _, _ in gpu.cleared[:4]] == gpu.freed


def test_on_a_gpu_tensor_maps_are_encoded_once(gpu: Driver) -> None:
    gpu.arguments = 2
    a, b = (OnGpu(np.zeros((64, 64), np.float16)) for _ in range(2))
    again = move_box.bind().prepare(a, b)
    for _ in range(3):
        again()
    assert gpu.maps == [a.address, b.address]
    assert {launched.words for launched in gpu.launched} == {(a.address, b.address)}


def test_on_a_gpu_a_launch_that_fails_says_so(gpu: Driver) -> None:
    again = scale.bind().prepare(*(OnGpu(a) for a in arrays()), 2.0)
    gpu.status = gpu.CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(tw.LaunchError, match="the launch failed with CUDA_ERROR_INVALID_VALUE: as the test"):
        again()
