"""Prepared launches and known products on a GPU: tensors at new addresses, streams, threads."""

from __future__ import annotations

import threading
from importlib import import_module
from typing import Any

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.runtime.exact import count

import tilewright as tw
from tilewright.runtime.cuda import CUDA_DRIVER

pytestmark = pytest.mark.gpu


@tw.kernel(X="N", Y="N", alpha=tw.f32)
def scale(X, Y, alpha):
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    x = tw.load(X.tile((64,), (n,)).partition((32,)))
    tw.copy(x * alpha, Y.tile((64,), (n,)))


def vectors(torch: Any, canaries: Canaries, n: int = 5000) -> tuple[Any, Any]:
    torch.manual_seed(n)
    return torch.randn(n, device="cuda"), canaries.torch(np.full(n, np.nan, np.float32))


def test_it_launches_again_with_numbers_given_anew(canaries: Canaries) -> None:
    torch = import_module("torch")
    x, y = vectors(torch, canaries)
    again = scale.bind().prepare(x, y, 2.0)
    for given, alpha in (({}, 2.0), ({"alpha": 3.0}, 3.0), ({}, 2.0)):
        x.normal_()
        assert again(**given).target == "cuda"
        assert torch.equal(y, alpha * x)


def test_tensors_that_moved_or_were_resized_are_noticed(canaries: Canaries) -> None:
    torch = import_module("torch")
    changes = (
        lambda x: x.set_(torch.randn_like(x)),
        lambda x: setattr(x, "data", torch.randn_like(x)),
        lambda x: x.resize_(4000),
        lambda x: x.resize_(1 << 22),
        lambda x: x.untyped_storage().resize_(0),
    )
    for change in changes:
        x, y = vectors(torch, canaries)
        again = scale.bind().prepare(x, y, 2.0)
        change(x)
        with pytest.raises(tw.LaunchError):
            again()
        assert bool(y.isnan().all())


def test_streams_that_run_together_have_counters_of_their_own(canaries: Canaries) -> None:
    torch = import_module("torch")
    zeros = np.zeros(64 * 500, np.float32)
    x = canaries.torch(zeros)
    launches = []
    for turns in (40, 60):
        made = canaries.torch(zeros)
        launches.append((count.bind().prepare(made, turns), made, turns, torch.cuda.Stream()))
    shared = count.bind().prepare(x, 50)
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    for _ in range(50):
        for again, _, _, stream in launches:
            with torch.cuda.stream(stream):
                again()
        for stream in streams:
            shared(stream=stream)
    torch.cuda.synchronize()
    assert bool((x == 50).all())
    for _, made, turns, _ in launches:
        assert bool((made == turns).all())


def test_a_stream_that_comes_after_one_destroyed_at_work_has_counters_of_its_own(canaries: Canaries) -> None:
    torch = import_module("torch")
    made = [canaries.torch(np.zeros(64 * 500, np.float32)) for _ in range(100)]
    bound = count.bind()
    torch.cuda.synchronize()
    for x in made:
        stream = CUDA_DRIVER.call("cuStreamCreate", 1)  # which waits for no other stream
        assert bound(x, 40, stream=int(stream)).target == "cuda"
        CUDA_DRIVER.call("cuStreamDestroy", stream)
    torch.cuda.synchronize()
    assert all(bool((x == 40).all()) for x in made)


def test_threads_take_turns(canaries: Canaries) -> None:
    torch = import_module("torch")
    x, y = vectors(torch, canaries)
    again = scale.bind().prepare(x, y, 2.0)
    finished: list[bool] = []

    def work() -> None:
        for _ in range(500):
            again()
        finished.append(True)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert len(finished) == len(threads)
    assert torch.equal(y, 2 * x)


def test_remembered_products_are_those_of_their_own_arrays(canaries: Canaries) -> None:
    torch = import_module("torch")
    torch.manual_seed(0)
    base = torch.randint(-4, 5, (200, 200), device="cuda").half()
    for _ in range(2):
        for a, b in (
            (base[:70, :33], base[:33, :50]),
            (base[:70, 1:34], base[:33, :50]),
            (base[:33, :70].T, base[:50, :33].T),
            (base[:70, :33], base[1:34, 1:51]),
            (base[:71, :33], base[:33, :50]),
        ):
            out = canaries.torch(np.full((len(a), b.shape[1]), np.nan, np.float16))
            assert tw.matmul(a, b, out=out) is out
            assert torch.equal(out.float(), a.float() @ b.float())
    with pytest.raises(tw.LaunchError, match="out and a share memory"):
        tw.matmul(base[:50, :50], base[100:150, :50], out=base[:50, 25:75])
