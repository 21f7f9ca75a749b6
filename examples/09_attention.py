"""Attention forward, O = softmax(scale Q Kᵀ) V for every batch and head, in one pass over the keys.

    python examples/09_attention.py [--small] [--target cuda|cpu|reference]

A block takes 128 queries and loops over the keys, 64 at a time.  For each row it keeps the largest score and
the sum of weights so far; when a larger score comes, it scales the sums down.  Keys and values are copied
asynchronously, with two stages each.  Scores stay in registers: their exponentials are operand A of the
second product.

Causal: query i sees the keys up to i + shift (a 32-bit sum).  A query that sees no key gives zeros.
"""

from __future__ import annotations

import math

import numpy as np

import tilewright as tw

LOWEST = float(np.finfo(np.float32).min)
"""Initial value of the largest score.  -inf would give NaN, as -inf minus -inf, in rows without keys."""


@tw.kernel(Q="B H M D", K="B H N D", V="B H N D", O="B H M D", scale=tw.f32, shift=int)
def attention(Q, K, V, O, scale, shift, *, causal, tile, atom, warps):
    rows, keys, depth = tile
    tw.require(Q.shape[3] <= depth, f"the head dimension exceeds the tile's {depth}")
    repeats = rows // atom.shape[0] // warps
    by_keys, by_depth = (tw.TiledMma(atom, (warps, 1), (repeats, n // atom.shape[1])) for n in (keys, depth))
    m, h, b = tw.block_index((tw.ceil_div(Q.shape[2], rows), Q.shape[1], Q.shape[0]))
    sQ = tw.shared((rows, depth), Q.dtype)
    sK = tw.shared((2, keys, depth), K.dtype)
    sV = tw.shared((2, keys, depth), V.dtype)
    seen = K.shape[2]  # number of keys that the block's last query sees
    if causal:
        m = tw.let(tw.ceil_div(Q.shape[2], rows) - 1 - m)  # blocks with the most keys begin first
        seen = tw.minimum(seen, tw.maximum((m + 1) * rows + shift, 0))
    count = tw.let(tw.ceil_div(seen, keys))
    # mma.sync's accumulator has the thread layout of operand A; other atoms exchange through memory.
    scratch = None if atom.instruction == "mma.sync" else tw.shared((rows, keys), V.dtype)
    by_query = tw.raked((rows, depth), (by_keys.threads * 8 // depth, depth // 8), vector=8, vector_dim=1)

    def fetch(source, target, at):
        tw.copy_async(source[b, h].tile((keys, depth), (at, 0)), target, threads=by_keys.threads)

    fetch(K, sK[0], 0)
    fetch(V, sV[0], 0)
    tw.async_commit()
    # Maxima are taken before scaling, so the scale must be positive; -Q with -scale gives the same.
    query = tw.load(Q[b, h].tile((rows, depth), (m, 0)), by_query)
    tw.copy(tw.where(scale < 0, -query, query), sQ)
    exponent = (tw.absolute(scale) + 1e-30) * math.log2(math.e)  # never 0: -inf of a masked key stays -inf
    acc = tw.accumulator(by_depth)
    largest = tw.fragment(by_keys.c().projected((rows, 1)), tw.f32, LOWEST)
    total = tw.fragment(largest, fill=0)
    for j in tw.range(count, provenance="mainloop"):
        tw.async_wait(0)
        tw.barrier()  # all threads see tile j, and have read tile j - 1
        with tw.when(j + 1 < count):
            fetch(K, sK[(j + 1) % 2], j + 1)
            fetch(V, sV[(j + 1) % 2], j + 1)
        tw.async_commit()
        scores = tw.accumulator(by_keys)
        tw.mma(sQ, sK[j % 2], scores)
        with tw.when((j + 1) * keys > K.shape[2]):
            there = tw.coordinates(scores, 1) < K.shape[2] - j * keys
            scores.assign(tw.where(there, scores, -math.inf))
        if causal:
            with tw.when((j + 1) * keys > m * rows + shift + 1):
                scores.assign(tw.causal_mask(scores, m * rows + shift, j * keys))

        highest = tw.maximum(largest, tw.reduce_max(scores, 1))
        weights = tw.exp2((scores - highest) * exponent)  # 1 for the largest score, however large it is
        decay = tw.exp2((largest - highest) * exponent)
        total.assign(tw.fma(total, decay, tw.reduce_sum(weights, 1)))
        largest.assign(highest)
        acc *= decay
        operand = tw.redistribute(weights.to(V.dtype), tw.operand_a(by_depth, keys), scratch=scratch)
        tw.mma(operand, sV[j % 2].permute(1, 0), acc)
    tw.copy(tw.where(total == 0, 0.0, acc * (1 / total)), O[b, h].tile((rows, depth), (m, 0)))


# Depth -> ((queries, keys, depth) of a tile, warps); these tiles use all registers.
TILES = {64: ((128, 64, 64), 4), 128: ((128, 64, 128), 4)}
ATOMS = {"f16": tw.atoms.MMA_F16, "bf16": tw.atoms.MMA_BF16}


def bound(dtype, depth, *, causal):
    """Bind the kernel for a dtype and a head dimension."""
    fitting = [most for most in TILES if most >= depth]
    if not fitting:
        raise ValueError(f"head dimension {depth}: there are tiles for at most {max(TILES)}")
    tile, warps = TILES[min(fitting)]
    return attention.bind(causal=causal, tile=tile, atom=ATOMS[str(tw.dtype(dtype))], warps=warps)


SHAPES = {"cuda": (4, 16, 4096, 4096), "cpu": (1, 4, 1024, 1024), "reference": (1, 2, 150, 200)}
SMALL = {"cuda": (2, 4, 500, 700), "cpu": (1, 2, 300, 500), "reference": (1, 1, 130, 150)}


def main():
    asked = tw.testing.parse_args(__doc__, SHAPES, SMALL)
    for depth, dtype in ((64, tw.f16), (128, tw.bf16)):
        for causal in (False, True):
            kernel, shape = bound(dtype, depth, causal=causal), (*asked.shape, depth)
            print(tw.testing.run_attention(kernel, dtype, shape, asked.target, causal=causal))


if __name__ == "__main__":
    main()
