"""Asynchronous products of operands along K or along M and N, in one or several panels."""

from __future__ import annotations

import itertools
from typing import Any

import tilewright as tw

WIDTH = 64  # 16-bit elements in a row of 128 bytes


@tw.kernel(A="P Q", B="R S", C="M N")
def majors_gemm(A, B, C, *, mma, panels, along):
    """C = A Bᵀ; operands along M or N are stored K x M or K x N. One tile per block, one stage."""
    tile_m, tile_n, _ = mma.tile
    depth = panels * WIDTH
    m, n = tw.block_index(tw.ceil_div(C.shape, (tile_m, tile_n)))
    sides = []
    for X, rows, number, letter in ((A, tile_m, m, "m"), (B, tile_n, n, "n")):
        if letter in along:
            held = tw.shared((rows // WIDTH, depth, WIDTH), X.dtype, swizzle=128, name=f"s{letter}")
            sides.append((X, held, held.permute(0, 2, 1).merge(0), number * (rows // WIDTH), True))
        else:
            held = tw.shared((panels, rows, WIDTH), X.dtype, swizzle=128, name=f"s{letter}")
            sides.append((X, held, held.permute(1, 0, 2).merge(1), number, False))
    full = tw.hopper.mbarrier(1, arrivals=1)
    tw.barrier()
    acc = tw.accumulator(mma)
    length = A.shape[0] if "m" in along else A.shape[1]
    for k in tw.range(tw.ceil_div(length, depth)):
        tw.hopper.arrive(full[0], expect_bytes=(tile_m + tile_n) * depth * A.dtype.bytes)
        for X, held, _, first, is_along in sides:
            for p in tw.unroll(held.shape[0]):
                at = (k, first + p) if is_along else (first, k * panels + p)
                tw.hopper.tma_load(X.tile(held.shape[1:], at), held[p], full[0])
        tw.hopper.wait(full[0], k % 2)
        tw.hopper.mma_fence()
        tw.hopper.mma_async(sides[0][2], sides[1][2], acc)
        tw.hopper.mma_commit()
        tw.hopper.mma_wait(0)
        tw.barrier()
    tw.copy(acc, C.tile((tile_m, tile_n), (m, n)))


def bind(along: str, panels: int, *, n: int = 128, warps=(1, 1), repeats=(1, 1), dtype=tw.bf16):
    """Bind the kernel for one choice of layouts."""
    mma = tw.TiledMma(tw.atoms.wgmma(dtype, n), warps, repeats)
    return majors_gemm.bind(mma=mma, panels=panels, along=along)


CASES: dict[str, dict[str, Any]] = {
    f"{along or 'k'}-{panels}-{how}": {"along": along, "panels": panels, **shape}
    for along, panels, (how, shape) in itertools.product(
        ("", "m", "n", "mn"),
        (1, 2),
        {
            "one": {"n": 64},
            "warpgroups along M": {"n": 128, "warps": (2, 1)},
            "warpgroups along N": {"n": 64, "warps": (1, 2), "repeats": (2, 1)},
        }.items(),
    )
}
