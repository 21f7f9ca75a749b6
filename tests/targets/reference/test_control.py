"""Control, integers, clusters and workspaces on the reference."""

from __future__ import annotations

import numpy as np

import tilewright as tw
from tilewright.lang.program import Program
from tilewright.targets.reference import Kind, run
from tilewright.threads.distribution import Distribution, Mode

from .calls import MOVE, launch, spec, square


def test_loops_branches_and_variables() -> None:
    def collatz(X, Y, start):
        x = tw.load(X.tile((16, 16), (0, 0)).partition((4, 8)))
        total = tw.fragment(x, fill=0)
        n = tw.var(start)
        for step in tw.range(0, 20, 2):
            now = tw.let(n.get() + 0 * step)
            parity = tw.let(now % 2)
            with tw.when(parity == 0):
                n.set(now // 2)
                total += x
            with tw.otherwise():
                n.set(now * 3 + step)
        with tw.when(n.get() < 100):
            total += 1.0
        tw.copy(total, Y.tile((16, 16), (0, 0)))

    def plain(start):
        n, evens = start, 0
        for step in range(0, 20, 2):
            evens += n % 2 == 0
            n = n // 2 if n % 2 == 0 else n * 3 + step
        return evens, n < 100

    for start in (7, 64, 1000):
        x, y = square(), np.zeros((16, 16), np.float32)
        launch(collatz, {**MOVE, "start": int}, {"X": x, "Y": y}, sizes={"start": start})
        evens, small = plain(start)
        want = np.zeros_like(x)
        for _ in range(evens):
            want += x
        np.testing.assert_array_equal(y, want + np.float32(small))


def test_clusters_know_their_blocks() -> None:
    def number(Y):
        b = tw.block_index(8)
        inner = tw.hopper.cluster_index(2)
        y = tw.fragment(Distribution((8,), (Mode(8, 0, 1),), ()), tw.f32, fill=1)
        with tw.when(inner == 1):
            tw.fill(y, 2.0)
        tw.copy(y, Y.tile((8,), (b,)))

    y = np.zeros(64, np.float32)
    launch(number, {"Y": "N"}, {"Y": y})
    np.testing.assert_array_equal(y.reshape(8, 8)[:, 0], [1, 2] * 4)


def test_workspaces_are_zeroed_or_poison() -> None:
    def through(Y, *, zeroed):
        space = tw.workspace((Y.shape[0],), tw.f32, zeroed=zeroed)
        tw.copy(space.tile((32,), (0,)), Y.tile((32,), (0,)), threads=(32,))

    y = np.ones(32, np.float32)
    launch(through, {"Y": "N"}, {"Y": y}, zeroed=True)
    assert (y == 0).all()
    kernel = Program(through, {"Y": "N"}).trace({"Y": spec(y)}, {"zeroed": False})
    [finding] = run(kernel, {"Y": y}).findings
    assert finding.kind is Kind.UNWRITTEN
    assert np.isnan(y).all()


def test_some_blocks_alone() -> None:
    def ones(Y):
        b = tw.block_index(tw.ceil_div(Y.shape[0], 8))
        tw.copy(tw.fragment(Distribution((8,), (Mode(8, 0, 1),), ()), tw.f32, fill=1), Y.tile((8,), (b,)))

    y = np.zeros(64, np.float32)
    kernel = Program(ones, {"Y": "N"}).trace({"Y": spec(y)})
    report = run(kernel, {"Y": y}, blocks=[(1,), (3,)])
    assert (report.blocks, report.uncovered) == (2, {"Y": 48})
    assert y.sum() == 16
