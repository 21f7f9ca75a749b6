"""A run of sampled blocks has the findings of all blocks: random kernels run both ways."""

from __future__ import annotations

import random

import numpy as np
import pytest

import tilewright as tw


def place(draw: random.Random):
    """Return a tile's place for a block's place: usually the same, sometimes another one."""
    kind = draw.choice(["own", "own", "own", "shifted", "folded", "turned", "late", "swapped"])
    by, at = draw.randint(1, 4), draw.randint(2, 9)

    def where(m, n, rows, columns):
        match kind:
            case "shifted":
                return tw.minimum(m + by, rows - 1), n
            case "folded":
                return m % at, n
            case "turned":
                return rows - 1 - m, n
            case "late":
                return m, tw.minimum(n, at)
            case "swapped":
                return m, columns - 1 - n
        return m, n

    return where


def kernel(seed: int):
    """Copy tiles through shared memory, with random loops, branches and places."""
    draw = random.Random(seed)
    source, target = place(draw), place(draw)
    turns, odd, safe = draw.choice([1, 2]), draw.randint(0, 11), draw.random() < 0.7
    ragged, in_place = draw.random() < 0.5, draw.random() < 0.4
    shape = (32 * 12 - 8 * ragged, 32 * 7 - 8 * ragged)
    how = draw.choice(["all", "one row", "loop"])

    @tw.kernel(X="M N", Y="M N")
    def moved(X, Y):
        rows, columns = (tw.ceil_div(extent, 32) for extent in X.shape)
        m, n = tw.block_index((rows, columns))
        held = tw.shared((32, 32), X.dtype)
        whence, to = (X, X) if in_place else (X, Y)
        for _ in tw.range(tw.minimum(m, turns) + 1 if how == "loop" else turns):
            tw.copy(whence.tile((32, 32), source(m, n, rows, columns)), held, threads=64)
            if safe:
                tw.barrier()
            elif how == "one row":
                with tw.when(m != odd):
                    tw.barrier()
            tw.copy(held, to.tile((32, 32), target(m, n, rows, columns)), threads=(2, 32))
            tw.barrier()

    return moved, [np.ones(shape, np.float32), np.zeros(shape, np.float32)]


def kinds(report) -> set[str]:
    return {finding.kind.value for finding in report.findings}


@pytest.mark.in_turns(4)
@pytest.mark.parametrize("seed", range(12))
def test_the_same_is_found(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    moved, arrays = kernel(seed)
    whole = moved.check(*arrays, blocks="all")
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    sampled = moved.check(*arrays)
    # A block that reads what two others write meets the last of them: of several races one may be missing.
    assert sampled.is_clean == whole.is_clean
    assert kinds(sampled) <= kinds(whole)
    assert ("elements never written" in kinds(sampled)) == ("elements never written" in kinds(whole))
    assert sampled.uncovered == whole.uncovered
    assert whole.blocks == 12 * 7 or not whole.is_clean


@tw.kernel(X="N", Y="N")
def own_tiles(X, Y, *, right):
    """Each block writes its first tile and reads it; if not ``right``, blocks 4 to 7 of 8 read the second."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 128))
    other = 0 if right else (n // 4) % 2
    tw.copy(X.tile((64,), (2 * n,)), Y.tile((64,), (2 * n,)), threads=32)
    values = tw.load(Y.tile((64,), (2 * n + other,)).partition((32,)))
    tw.barrier()
    tw.copy(values, Y.tile((64,), (2 * n,)).partition((32,)))


@tw.kernel(X="N", Y="N")
def own_races(X, Y, *, right):
    """Two thread maps meet in one tile, but only in blocks 4 to 7 of each eight."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 128))
    other = 1 if right else 1 - (n // 4) % 2
    tw.copy(X.tile((64,), (2 * n,)), Y.tile((64,), (2 * n,)), threads=64)
    tw.copy(Y.tile((64,), (2 * n + other,)), Y.tile((64,), (2 * n + 1,)), threads=32)


@pytest.mark.parametrize(
    ("kernel", "asked", "wrong"),
    [
        (own_tiles, {"outputs": "Y", "partial": "Y"}, {"read-write race", "unwritten read"}),
        (own_races, {}, {"read-write race", "write-read race"}),
    ],
)
def test_what_a_block_does_to_its_own_elements_is_seen_though_other_blocks_do_not(
    kernel, asked, wrong, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.ones(18 * 128, np.float32)
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    right = kernel.check(x, x.copy(), right=True, **asked)
    assert right.is_clean
    assert right.blocks < 6
    report = kernel.check(x, x.copy(), right=False, **asked)
    assert kinds(report)
    assert kinds(report) <= wrong
    assert report.blocks < 12


@tw.kernel(X="N", Y="N")
def exchanged(X, Y, *, right):
    """Blocks of a cluster write each other's tiles after a barrier; some write another cluster's tiles."""
    n = tw.block_index(tw.ceil_div(X.shape[0], 64))
    rank = tw.hopper.cluster_index(2)
    tw.copy(X.tile((64,), (n,)), Y.tile((64,), (n,)), threads=32)
    tw.hopper.cluster_barrier()
    peer = n + 1 - 2 * rank - (0 if right else 4 * ((n // 18) % 2))
    tw.copy(X.tile((64,), (n,)), Y.tile((64,), (peer,)), threads=32)
    tw.hopper.cluster_barrier()


def test_blocks_that_meet_in_their_cluster_hide_none_that_meet_across_clusters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    x = np.ones(36 * 64, np.float32)
    monkeypatch.setattr("tilewright.runtime.reference.WORK", 1)
    assert exchanged.check(x, x.copy(), right=True).is_clean
    assert kinds(exchanged.check(x, x.copy(), right=False)) == {"write-write race"}
