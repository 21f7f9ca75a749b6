"""Bank conflicts and coalescing equal counts in plain loops, and known hardware cases."""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from tilewright.errors import LayoutError
from tilewright.symbolic.expr import ceil_div
from tilewright.symbolic.nodes import Sym
from tilewright.threads.banks import Sectors, bank_conflicts, coalescing
from tilewright.threads.distribution import Distribution, Mode, blocked
from tilewright.views.transforms import Slice, Swizzle, Tile
from tilewright.views.view import View

# The rows of a matrix that ldmatrix.x4 loads: lanes 0-7 give eight rows of 16 bytes, the next eight lanes the
# rows of the matrix to the right, and so on.
LDMATRIX = Distribution((8, 64), (Mode(8, 0, 1), Mode(4, 1, 8)), (Mode(8, 1, 1), Mode(2, 1, 32)))
LDMATRIX_64 = Distribution((8, 32), (Mode(8, 0, 1), Mode(4, 1, 8)), (Mode(8, 1, 1),))


def naive_conflicts(view: View, distribution: Distribution, vector: int, size: int, lanes: int) -> int:
    together = min(lanes, 32, max(1, 128 // (vector * size)))
    worst = 1
    for access in range(distribution.size_values // vector):
        for first in range(0, distribution.size_threads, lanes):
            for begin in range(first, min(first + lanes, distribution.size_threads), together):
                banks: dict[int, set[int]] = defaultdict(set)
                for thread in range(begin, min(begin + together, first + lanes, distribution.size_threads)):
                    at = distribution.coordinate(thread, access * vector)
                    if view.valid_at(at):
                        for byte in range(view.at(at) * size, (view.at(at) + vector) * size):
                            banks[byte // 4 % 32].add(byte // 4)
                worst = max([worst, *map(len, banks.values())])
    return worst


@pytest.mark.parametrize(
    ("view", "distribution", "vector", "size", "degree"),
    [
        (View.strided((8, 64), (64, 1)), LDMATRIX, 8, 2, 8),
        (Swizzle(3, 3, 3).apply(View.strided((8, 64), (64, 1))), LDMATRIX, 8, 2, 1),
        (View.strided((8, 64), (72, 1)), LDMATRIX, 8, 2, 1),
        (View.strided((8, 32), (32, 1)), LDMATRIX_64, 8, 2, 4),
        (Swizzle(2, 3, 2).apply(View.strided((8, 32), (32, 1))), LDMATRIX_64, 8, 2, 2),
        (Swizzle(2, 3, 3).apply(View.strided((8, 32), (32, 1))), LDMATRIX_64, 8, 2, 1),
    ],
    ids=["plain", "128 bytes", "padded", "64 bytes plain", "64 bytes", "64 bytes, shifted by 3"],
)
def test_ldmatrix(view: View, distribution: Distribution, vector: int, size: int, degree: int) -> None:
    assert bank_conflicts(view, distribution, vector, size) == degree


def test_ldmatrix_of_floats() -> None:
    rows = Distribution((8, 32), (Mode(8, 0, 1), Mode(4, 1, 4)), (Mode(4, 1, 1), Mode(2, 1, 16)))
    plain = View.strided((8, 32), (32, 1))
    assert bank_conflicts(plain, rows, 4, 4) == 8
    assert bank_conflicts(Swizzle(3, 2, 3).apply(plain), rows, 4, 4) == 1


@pytest.mark.parametrize(("vector", "degree"), [(1, 32), (2, 16), (4, 8)])
def test_wide_accesses_go_in_parts_of_a_warp(vector: int, degree: int) -> None:
    """Lanes go down the rows of a tile of 32 words: 32, 16 or 8 lanes access together, all in one bank."""
    column = blocked((32, 32), (32, 32 // vector), order=(0, 1))
    assert bank_conflicts(View.strided((32, 32), (32, 1)), column, vector, 4) == degree
    assert bank_conflicts(View.strided((32, 32), (32, 1)), column, vector, 4, phase=4) == 4


def test_one_word_read_by_all_is_no_conflict() -> None:
    view = View.strided((32,), (0,))
    assert bank_conflicts(view, Distribution((32,), (Mode(32, 0, 1),), ()), 1, 4) == 1
    pairs = View.strided((64,), (1,))
    assert bank_conflicts(pairs, Distribution((64,), (Mode(64, 0, 1),), ()), 1, 2) == 1


@pytest.mark.parametrize("seed", range(4))
def test_counts_agree_with_plain_loops(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(12):
        rows, columns = rng.choice([8, 16, 32]), rng.choice([16, 32, 64])
        vector, size = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4])
        across = columns // vector // rng.choice([1, 2])
        threads = (rows // rng.choice([1, 2, 4]), across)
        distribution = blocked((rows, columns), threads, order=rng.choice([(0, 1), (1, 0)]))
        view = View.strided((rows, columns), (columns + rng.choice([0, 8, 16]), 1))
        if rng.random() < 0.5:
            view = Swizzle(rng.choice([1, 2, 3]), 3, 3).apply(View.strided((rows, columns), (columns, 1)))
        if rng.random() < 0.3:
            view = Tile((rows, columns), (0, 0)).apply(Slice(((0, rows - 3), None)).apply(view))
        lanes = rng.choice([32, 64])
        expected = naive_conflicts(view, distribution, vector, size, lanes)
        assert bank_conflicts(view, distribution, vector, size, lanes=lanes) == expected


def test_a_stage_index_is_tried_through() -> None:
    stage = Sym("stage", 0, 2)
    tiles = View.strided((3, 8, 64), (8 * 64 + 8, 64, 1))
    one = Slice((stage, None, None)).apply(tiles)
    assert bank_conflicts(one, LDMATRIX, 8, 2) == 8
    assert bank_conflicts(one, LDMATRIX, 8, 2, at={stage: 1}) == 8


def naive_sectors(view: View, distribution: Distribution, vector: int, size: int) -> Sectors:
    requests = sectors = minimum = 0
    for access in range(distribution.size_values // vector):
        for first in range(0, distribution.size_threads, 32):
            touched = set()
            for thread in range(first, min(first + 32, distribution.size_threads)):
                at = distribution.coordinate(thread, access * vector)
                if view.valid_at(at):
                    touched |= set(range(view.at(at) * size, (view.at(at) + vector) * size))
            requests += bool(touched)
            sectors += len({byte // 32 for byte in touched})
            minimum += -(-len(touched) // 32)
    return Sectors(requests, sectors, minimum)


@pytest.mark.parametrize("seed", range(4))
def test_sectors_agree_with_plain_loops(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):
        rows, columns = rng.choice([8, 16]), rng.choice([16, 32])
        vector, size = rng.choice([1, 2, 4, 8]), rng.choice([1, 2, 4, 8])
        threads = (rows // rng.choice([1, 2, 4]), columns // vector // rng.choice([1, 2]))
        distribution = blocked((rows, columns), threads, order=rng.choice([(0, 1), (1, 0)]))
        big = View.strided((rows + 5, columns * 3), (columns * 3 + vector * rng.choice([0, 1, 3]), 1))
        view = Tile((rows, columns), (rng.choice([0, 1]), rng.choice([0, 1, 2]))).apply(big)
        expected = naive_sectors(view, distribution, vector, size)
        assert coalescing(view, distribution, vector, size) == expected


def test_a_tile_of_a_tensor_with_sizes_given() -> None:
    M, K = Sym("M", 1), Sym("K", 8, divisor=8)
    m, k = Sym("m", 0, None, 1, ceil_div(M, 128)), Sym("k", 0, None, 1, ceil_div(K, 32))
    tile = Tile((128, 32), (m, k)).apply(View.strided((M, K), (K, 1)))
    rows = blocked((128, 32), (64, 4), order=(1, 0))
    assert coalescing(tile, rows, 8, 2, at={M: 256, K: 64}) == Sectors(16, 256, 256)
    # Rows of 144 bytes: every second one starts in the middle of a sector, and its 64 bytes touch three.
    assert coalescing(tile, rows, 8, 2, at={M: 256, K: 72}) == Sectors(16, 320, 256)
    with pytest.raises(LayoutError, match="`at`"):
        coalescing(tile, rows, 8, 2)


@pytest.mark.parametrize(
    ("view", "vector", "message"),
    [
        (View.strided((8, 32), (32, 1)), 8, "tile of"),
        (View.strided((8, 64), (64, 1)), 3, "not a multiple of vectors"),
        (View.strided((8, 64), (1, 8)), 8, "not contiguous"),
        (View.strided((8, 64), (68, 1)), 8, "nearest legal: 4"),
        (Tile((8, 64), (0, 0)).apply(View.strided((8, 60), (64, 1))), 8, "an edge cuts"),
    ],
)
def test_what_cannot_be_counted_is_refused(view: View, vector: int, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        bank_conflicts(view, LDMATRIX, vector, 2)
