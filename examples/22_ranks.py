"""Products over several ranks whose kernels overlap with the copies, with every rank on this machine.

    python examples/22_ranks.py [--small]

All-gather and product, C = A B: each rank holds rows of A. Copy engines bring the shards of other ranks while
the kernel multiplies. It begins with its own shard, and waits for every other shard before it loads that.

Product and reduce-scatter, C = A B: each rank holds columns of A and rows of B. Its kernel stores each tile
of its product into the memory of the rank that owns the tile, which adds them up in the order of the ranks.

The checker runs two calls on 2, 3 and 4 ranks, and compares every element with a product of higher precision.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np

import tilewright as tw

TILE = (32, 32, 16)
SCHEDULE = tw.Schedule(tw.atoms.fma(tw.f32), TILE, warps=(2, 1))


@tw.kernel(A="M K", B="K N", C="M N", READY="R", rank=int, epoch=int)
def all_gather_matmul(A, B, C, READY, rank, epoch):
    """C = A B; shard p of the rows of A has arrived once READY[p] is epoch."""
    for m, n in tw.tiles(C):
        tw.arrives(A, READY, epoch, first=rank)  # the local shard first
        acc = tw.zeros()
        for k in tw.steps(A.shape[1]):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc


@tw.kernel(A="P S K", B="K N", PARTS="P S N", SENT="P", rank=int)
def matmul_scatter(A, B, PARTS, SENT, rank):
    """PARTS[p] = A[p] B in the memory of rank p; SENT[p] there counts the parts that are stored."""
    for p, m, n in tw.tiles(PARTS):
        tw.leaves(PARTS, SENT, first=rank + 1)  # the local part last: it needs no wire
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A[p, m, k] @ B[k, n]
        PARTS[p, m, n] = acc


@tw.kernel(PARTS="Q S N", SENT="Q", C="S N", epoch=int)
def add_parts(PARTS, SENT, C, epoch, *, ranks):
    """C = PARTS[0] + PARTS[1] + ... in the order of the ranks, once all have arrived."""
    for m, n in tw.tiles(C):
        tw.arrives(PARTS, SENT, epoch)
        total = PARTS[0][m, n]
        for rank in range(1, ranks):
            total = total + PARTS[rank][m, n]
        C[m, n] = total


class AllGather:
    """The memory of all ranks for `all_gather_matmul`, and the programs of the ranks."""

    def __init__(self, a: np.ndarray, b: list[np.ndarray], ranks: int) -> None:
        self.ranks, self.b = ranks, b
        self.rows = -(-len(a) // ranks)
        padded = np.zeros((ranks * self.rows, a.shape[1]), np.float32)
        padded[: len(a)] = a
        self.shards = padded.reshape(ranks, self.rows, -1)
        self.gathered = np.full((ranks, *self.shards.shape), np.nan, np.float32)
        for rank, shard in enumerate(self.shards):
            self.gathered[rank, rank] = shard  # its own shard lies there from the start
        self.c = np.full((ranks, ranks, self.rows, b[0].shape[1]), np.nan, np.float32)
        self.ready, self.free = (np.zeros((ranks, ranks), np.uint32) for _ in range(2))

    def program(self, rank: int, epochs: int) -> list[list[object]]:
        """The streams of a rank: the copy engine, and the kernels."""
        copies, kernels = [], []
        bound = all_gather_matmul.bind(schedule=SCHEDULE)
        a, c = (array[rank].reshape(-1, array.shape[-1]) for array in (self.gathered, self.c))
        for epoch in range(1, epochs + 1):
            copies.append(tw.testing.post(self.ready[rank, rank : rank + 1], epoch))
            for turn in range(1, self.ranks):
                to = (rank - turn) % self.ranks  # the rank that needs the shard next
                if epoch > 1:
                    copies.append(tw.testing.hold(self.free[to, rank : rank + 1], epoch - 1))
                ready = self.ready[to, rank : rank + 1]
                copies.append(
                    tw.testing.send(self.gathered[rank, rank], self.gathered[to, rank], ready, epoch)
                )
            given = a, self.b[rank], c, self.ready[rank], rank, epoch
            kernels.append(tw.testing.launch(bound, *given))
            kernels += [tw.testing.post(self.free[rank, p : p + 1], epoch) for p in range(self.ranks)]
        return [copies, kernels]

    def result(self, rank: int, rows: int) -> np.ndarray:
        """The rank's result: all rows, and its columns."""
        return self.c[rank].reshape(self.ranks * self.rows, -1)[:rows]


class ReduceScatter:
    """The memory of all ranks for `matmul_scatter` and `add_parts`, and the programs of the ranks."""

    def __init__(self, a: list[np.ndarray], b: list[np.ndarray], ranks: int) -> None:
        self.ranks, self.b = ranks, b
        m, n = len(a[0]), b[0].shape[1]
        self.rows = -(-m // ranks)
        self.a = [np.zeros((ranks * self.rows, one.shape[1]), np.float32) for one in a]
        for padded, one in zip(self.a, a, strict=True):
            padded[:m] = one
        self.parts = np.full((ranks, ranks, self.rows, n), np.nan, np.float32)
        self.sent, self.free = (np.zeros((ranks, ranks), np.uint32) for _ in range(2))
        self.c = np.full((ranks, self.rows, n), np.nan, np.float32)

    def program(self, rank: int, epochs: int) -> list[object]:
        """The steps of a rank."""
        steps = []
        scatter, add = matmul_scatter.bind(schedule=SCHEDULE), add_parts.bind(ranks=self.ranks)
        a = self.a[rank].reshape(self.ranks, self.rows, self.a[rank].shape[1])
        parts, sent = self.parts[:, rank], self.sent[:, rank]  # in the memory of each rank
        for epoch in range(1, epochs + 1):
            if epoch > 1:
                own = range(self.ranks)
                steps += [tw.testing.hold(self.free[p, rank : rank + 1], epoch - 1) for p in own]
            steps.append(tw.testing.launch(scatter, a, self.b[rank], parts, sent, rank))
            steps.append(tw.testing.launch(add, self.parts[rank], self.sent[rank], self.c[rank], epoch))
            steps += [tw.testing.post(self.free[rank, p : p + 1], epoch) for p in range(self.ranks)]
        return steps

    def result(self, rows: int) -> np.ndarray:
        """The rows of all ranks."""
        return self.c.reshape(self.ranks * self.rows, -1)[:rows]


def check_all_gather(ranks, shape, epochs, rng):
    """Run the calls, compare the results of all ranks with the product, and return the results."""
    m, n, k = shape
    a = rng.standard_normal((m, k), np.float32)
    b = [rng.standard_normal((k, n), np.float32) for _ in range(ranks)]  # each rank has its columns of B
    memory = AllGather(a, b, ranks)
    tw.testing.ranks([memory.program(rank, epochs) for rank in range(ranks)]).raise_if_any()
    results = [memory.result(rank, m) for rank in range(ranks)]
    for own, c in zip(b, results, strict=True):
        tw.testing.compare_gemm(a, own, c).raise_if_wrong()
    return results


def check_reduce_scatter(ranks, shape, epochs, rng):
    """Run the calls, compare the rows of all ranks with the product, and return them."""
    m, n, k = shape
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    ends = np.linspace(0, k, ranks + 1).astype(int)
    spans = list(pairwise(ends))
    memory = ReduceScatter([a[:, i:j] for i, j in spans], [b[i:j] for i, j in spans], ranks)
    tw.testing.ranks([memory.program(rank, epochs) for rank in range(ranks)]).raise_if_any()
    c = memory.result(m)
    tw.testing.compare_gemm(a, b, c).raise_if_wrong()
    return [c]


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="2 and 3 ranks")
    small = parser.parse_args().small
    for ranks in (2, 3) if small else (2, 3, 4):
        shape = (33 * ranks - 1, 40, 24)
        for check in (check_all_gather, check_reduce_scatter):
            check(ranks, shape, 2, np.random.default_rng(ranks))
            print(f"{check.__name__}: {ranks} ranks, {'x'.join(map(str, shape))}: no findings, correct")


if __name__ == "__main__":
    main()
