"""Attention forward on Hopper, O = softmax(scale Q Kᵀ) V: warp roles, TMA, and wgmma with P from registers.

    python examples/10_hopper_attention.py [--small]

One warp loads keys and values into two rings.  Each of two or three warpgroups takes 64 queries.  It issues
two products together, with the next keys and with the previous values, and computes exponentials while the
second runs.  Scores stay in registers: their exponentials are operand A of the second product.

Causal: query i sees the keys up to i + shift.  A query that sees no key gives zeros.  Without a GPU the
kernel is only compiled, for sm_90a.
"""

from __future__ import annotations

import argparse
import math
import sys

import tilewright as tw

WARPS, ROWS, WIDTH = 4, 64, 64


@tw.kernel(Q="B H M D", K="B H N D", V="B H N D", O="B H M D", scale=tw.f32, shift=int)
def hopper_attention(Q, K, V, O, scale, shift, *, causal, keys, depth, stages, groups, atom):
    by_keys, by_depth = (tw.TiledMma(atom(Q.dtype, n)) for n in (keys, depth))
    panels = depth // WIDTH
    tw.require(Q.shape[3] <= depth, f"the head dimension exceeds the tile's {depth}")
    tiles = tw.ceil_div(Q.shape[2], groups * ROWS)
    block, h, b = tw.block_index((tiles, Q.shape[1], Q.shape[0]))
    m = tw.let((tiles - 1 - block if causal else block) * groups * ROWS)  # the most keys first
    seen = tw.let(tw.minimum(K.shape[2], tw.maximum(m + groups * ROWS + shift, 0))) if causal else K.shape[2]
    count = tw.ceil_div(seen, keys)

    sQ = tw.shared((groups, panels, ROWS, WIDTH), Q.dtype, swizzle=128)
    sK = tw.shared((stages, panels, keys, WIDTH), K.dtype, swizzle=128)
    sV = tw.shared((stages, panels, keys, WIDTH), V.dtype, swizzle=128)
    full_q = tw.hopper.mbarrier(1, arrivals=1)
    full_k, full_v = tw.hopper.mbarrier(stages, arrivals=1), tw.hopper.mbarrier(stages, arrivals=1)
    empty_k, empty_v = (tw.hopper.mbarrier(stages, arrivals=groups * WARPS) for _ in range(2))
    tw.barrier()

    with tw.role(warps=WARPS, registers={2: 24, 3: 32}[groups]), tw.role(warps=1):
        tw.hopper.arrive(full_q[0], expect_bytes=groups * ROWS * depth * Q.dtype.bytes)
        for g in tw.unroll(groups):
            for p in tw.unroll(panels):
                tw.hopper.tma_load(Q[b, h].tile((ROWS, WIDTH), (m // ROWS + g, p)), sQ[g, p], full_q[0])
        for j in tw.range(count):
            stage, parity = tw.let(j % stages), tw.let(j // stages % 2)
            for X, held, full, empty in ((K, sK, full_k, empty_k), (V, sV, full_v, empty_v)):
                tw.hopper.wait(empty[stage], 1 - parity)
                tw.hopper.arrive(full[stage], expect_bytes=keys * depth * X.dtype.bytes)
                for p in tw.unroll(panels):
                    tw.hopper.tma_load(X[b, h].tile((keys, WIDTH), (j, p)), held[stage, p], full[stage])

    def attend(g):
        """Compute one warpgroup's 64 queries."""
        first = m + g * ROWS
        q = sQ[g].permute(1, 0, 2).merge(1)
        acc, scores = tw.accumulator(by_depth), tw.accumulator(by_keys)
        largest = tw.fragment(by_keys.c().projected((ROWS, 1)), tw.f32, -math.inf)
        total, decay = tw.fragment(largest, fill=0), tw.fragment(largest, fill=1)
        weights = tw.fragment(tw.operand_a(by_depth, keys), Q.dtype)
        exponent = scale * math.log2(math.e)

        def multiply_keys(j):
            tw.fill(scores, 0)
            tw.hopper.wait(full_k[j % stages], j // stages % 2)
            tw.hopper.mma_fence()
            tw.hopper.mma_async(q, sK[j % stages].permute(1, 0, 2).merge(1), scores)
            tw.hopper.mma_commit()

        def multiply_values(j):
            tw.hopper.wait(full_v[j % stages], j // stages % 2)
            tw.hopper.mma_fence()
            tw.hopper.mma_async(weights, sV[j % stages].permute(0, 2, 1).merge(0), acc)
            tw.hopper.mma_commit()

        def exponentials(j):
            """Turn a tile of scores into weights, and set the factor by which earlier sums shrink."""
            scores.assign(scores * exponent)
            with tw.when((j + 1) * keys > K.shape[2]):
                there = tw.coordinates(scores, 1) < K.shape[2] - j * keys
                scores.assign(tw.where(there, scores, -math.inf))
            if causal:
                with tw.when((j + 1) * keys > first + shift + 1):
                    scores.assign(tw.causal_mask(scores, first + shift, j * keys))
            highest = tw.maximum(largest, tw.reduce_max(scores, 1))
            base = tw.where(highest == -math.inf, 0.0, highest)  # rows without keys so far
            scores.assign(tw.exp2(scores - base))
            decay.assign(tw.exp2(largest - base))
            total.assign(total * decay + tw.reduce_sum(scores, 1))
            largest.assign(highest)

        tw.hopper.wait(full_q[0], 0)
        with tw.when(count > 0):
            multiply_keys(0)
            tw.hopper.mma_wait(0)
            tw.hopper.arrive(empty_k[0], each="warp")
            exponentials(0)
            weights.assign(tw.redistribute(scores.to(Q.dtype), weights))
        for j in tw.range(1, count, provenance="mainloop"):
            multiply_keys(j)
            multiply_values(j - 1)
            tw.hopper.mma_wait(1)
            tw.hopper.arrive(empty_k[j % stages], each="warp")
            exponentials(j)
            tw.hopper.mma_wait(0)
            tw.hopper.arrive(empty_v[(j - 1) % stages], each="warp")
            acc.assign(acc * decay)
            weights.assign(tw.redistribute(scores.to(Q.dtype), weights))
        with tw.when(count > 0):
            multiply_values(count - 1)
            tw.hopper.mma_wait(0)

        tw.role_barrier(1 + g, threads=128)  # all warps have finished reading Q; O takes its memory
        tw.copy(tw.where(total == 0, 0.0, acc * (1 / total)), q)
        tw.hopper.fence_async()
        tw.role_barrier(1 + g, threads=128)
        for p in tw.unroll(panels):
            tw.hopper.tma_store(sQ[g, p], O[b, h].tile((ROWS, WIDTH), (first // ROWS, p)))
        tw.hopper.bulk_commit()
        tw.hopper.bulk_wait(0)

    registers = {2: 240, 3: 160}[groups]
    if causal or depth > 64:  # sharing one text costs time with a mask: 1.4 % at depth 128, 8 % at 64
        for g in tw.unroll(groups):
            with tw.role(warps=WARPS, registers=registers):
                attend(g)
    else:
        with tw.role(warps=WARPS, groups=groups, registers=registers) as g:
            attend(g)


CHOICES = {64: (128, 2, 3), 128: (128, 2, 2)}
"""Head dimension -> (keys of a tile, stages of each ring, warpgroups) that registers and memory can hold."""


def bound(dtype, depth, *, causal, **chosen):
    """Bind the kernel for a dtype and a head dimension of at most 128."""
    if depth > max(CHOICES):
        raise ValueError(f"head dimension {depth}: there are tiles for at most {max(CHOICES)}")
    depth = min(most for most in CHOICES if most >= depth)
    keys, stages, groups = CHOICES[depth]
    if causal:
        groups = 2  # the mask needs the registers of a third group
    choice = {"keys": keys, "stages": stages, "groups": groups, **chosen}
    return hopper_attention.bind(causal=causal, depth=depth, atom=tw.atoms.wgmma, **choice)


SHAPE, SMALL = (4, 16, 4096, 4096), (2, 4, 500, 700)
"""Batches, heads, queries, keys."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--small", action="store_true", help="short sequences")
    asked = parser.parse_args()
    if not tw.device_count():
        spec = tw.TensorSpec(tw.bf16, 4, 3, (8, 8, 8, 8), (8, 8, 8, 1), 16, False)
        kernel = bound(tw.bf16, 128, causal=False)
        compiled = kernel.compile(*[spec] * 4, 1.0, 0, target="cuda", arch="sm_90a")
        print(f"no GPU here; compiled for {compiled.arch}: {dict(compiled.resources)}")
        return
    for depth, dtype in ((64, tw.f16), (128, tw.bf16)):
        for causal in (False, True):
            kernel, shape = bound(dtype, depth, causal=causal), (*(SMALL if asked.small else SHAPE), depth)
            print(tw.testing.run_attention(kernel, dtype, shape, "cuda", causal=causal))


if __name__ == "__main__":
    try:
        main()
    except tw.ToolchainError as missing:  # without NVRTC there is nothing to compile with
        sys.exit(str(missing))
