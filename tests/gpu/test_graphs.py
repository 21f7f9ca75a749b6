"""Launches captured into a CUDA graph, which replays them when nobody else holds the kernel."""

from __future__ import annotations

import gc
from importlib import import_module

import numpy as np
import pytest
from tests.canaries import Canaries
from tests.gpu.test_prepared import count, scale

pytestmark = pytest.mark.gpu


def test_a_graph_launches_what_was_let_go_of(canaries: Canaries) -> None:
    torch = import_module("torch")
    x = torch.randn(5000, device="cuda")
    y, counted, again = (canaries.torch(np.full(5000, np.nan, np.float32)) for _ in range(3))
    scaled, counts = scale.bind(), count.bind()
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        executables = [scaled(x, y, 2.0), counts(counted, 5)]
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, stream=stream):
        scaled(x, y, 3.0)
        counts(counted, 7)
        counts(again, 9)
    for bound, executable in zip((scaled, counts), executables, strict=True):
        bound.forget(executable)
    del bound, executable, executables, scaled, counts
    gc.collect()
    for _ in range(3):
        x.normal_()
        y.fill_(float("nan"))
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(y, 3.0 * x)
        assert bool((counted == 7).all())
        assert bool((again == 9).all())
