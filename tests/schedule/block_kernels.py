"""Dataflow kernels whose blocks are kept in lists of integers, and random arrays for them."""

from __future__ import annotations

from typing import Any

import numpy as np

import tilewright as tw

Arrays = dict[str, np.ndarray[Any, Any]]


@tw.kernel(values="R E", columns="J", begins="G", ends="G", B="Q S N", C="G R N")
def by_blocks(values, columns, begins, ends, B, C, *, block):
    """Products of a matrix with kept blocks, one beside the other, by a dense one."""
    tw.require(values.shape[1] == columns.shape[0] * block, "an integer for each kept block")
    tw.require(B.shape[1] == block, "blocks of rows")
    for g, m, n in tw.tiles(C):
        acc = tw.zeros()
        rows = B[:, :block].rows(columns, padded=True).merge(0)
        for k in tw.steps(columns.shape[0] * block, begin=begins[g], end=ends[g], block=block):
            acc += values[m, k] @ rows[k, n]
        C[g, m, n] = acc


@tw.kernel(A="I R K", B="J S K", rows="E", columns="E", C="E R S")
def sampled(A, B, rows, columns, C):
    """The kept blocks of a product."""
    for i, m, n in tw.tiles(C):
        acc = tw.zeros()
        for k in tw.steps(A.shape[2]):
            acc += A.rows(rows, padded=True)[i, m, k] @ B.rows(columns, padded=True)[i, n, k].T
        C[i, m, n] = acc


@tw.kernel(
    Q="H G R D", K="H Q S D", V="H Q S D", columns="E", begins="G", ends="G", O="H G R D", scale=tw.f32
)
def attention(Q, K, V, columns, begins, ends, O, scale, *, block):
    """Attention of rows of blocks to the kept blocks of keys."""
    tw.require(K.shape[2] == block, "blocks of keys")
    for h, g, m, e in tw.tiles(O):
        top, total, out = tw.full((m,), -1e38, tw.f32), tw.zeros((m,), tw.f32), tw.zeros((m, e), tw.f32)
        keys, values = (one[:, :, :block].rows(columns, 1).merge(1) for one in (K, V))
        for n in tw.steps(columns.shape[0] * block, begin=begins[g], end=ends[g], block=block):
            s = tw.zeros(dtype=tw.f32)
            for d in tw.steps(Q.shape[3]):
                s += Q[h, g, m, d] @ keys[h, n, d].T
            s = s * scale
            new = tw.maximum(top, s.max(axis=1))
            p, keep = tw.exp(s - new[:, None]), tw.exp(top - new)
            total.assign(total * keep + p.sum(axis=1))
            out.assign(out * keep[:, None] + p.to(V.dtype) @ values[h, n, e])
            top.assign(new)
        O[h, g, m, e] = out / total[:, None]


def inside(draw: Any, shape: tuple[int, ...], kind: Any = np.float16) -> np.ndarray[Any, Any]:
    """Return normal numbers in a larger array of NaN, with rows that begin at multiples of 16 bytes."""
    wider = np.full((*shape[:-1], -(-shape[-1] // 8) * 8 + 8), np.nan, kind)
    found = wider[..., : shape[-1]]
    found[...] = draw.standard_normal(shape)
    return found


def lists(mask: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], ...]:
    """Return the columns of kept blocks, row by row, and where each row begins and ends."""
    counts = mask.sum(1)
    ends = np.cumsum(counts)
    return tuple(one.astype(np.int32) for one in (np.nonzero(mask)[1], ends - counts, ends))


def product(
    seed: int, block: int, rows: int = 70, columns: int = 56, kind: Any = np.float16
) -> tuple[Arrays, np.ndarray[Any, Any]]:
    """Return arrays of `by_blocks`, and the exact product.

    Blocks of B that no row keeps are NaN; a row without blocks gives 0, and so does a block outside of B.
    """
    draw = np.random.default_rng(seed)
    mask = draw.random((5, 6)) < 0.4
    mask[1], mask[0, 0], mask[:, 3] = False, True, False
    kept, begins, ends = lists(mask)
    values, b = inside(draw, (rows, len(kept) * block), kind), inside(draw, (6, block, columns), kind)
    b[3] = np.nan
    exact = np.zeros((5, rows, columns))
    for at, (row, column) in enumerate(np.argwhere(mask)):
        part = values[:, at * block : (at + 1) * block].astype(np.float64)
        exact[row] += part @ b[column].astype(np.float64)
    first = np.nonzero(kept == 0)[0][0]
    outside = values[:, first * block : (first + 1) * block].astype(np.float64)
    kept[first] = (-1, 6)[seed % 2]
    exact[0] -= outside @ b[0].astype(np.float64)
    made = np.full((5, rows, columns), np.nan, np.float32)
    return {"values": values, "columns": kept, "begins": begins, "ends": ends, "B": b, "C": made}, exact


def samples(seed: int, kind: Any = np.float16) -> tuple[Arrays, np.ndarray[Any, Any]]:
    """Return arrays of `sampled`, and the exact blocks; a block of integers outside is 0."""
    draw = np.random.default_rng(seed)
    a, b = inside(draw, (4, 70, 136), kind), inside(draw, (5, 40, 136), kind)
    mask = draw.random((4, 5)) < 0.5
    mask[0, 0], mask[2] = True, False
    a[2] = np.nan
    rows, columns = (one.astype(np.int64) for one in np.nonzero(mask))
    exact = np.einsum("emk,enk->emn", a[rows].astype(np.float64), b[columns].astype(np.float64))
    columns[0], exact[0] = (-1, 5)[seed % 2], 0
    made = np.full(exact.shape, np.nan, np.float32)
    return {"A": a, "B": b, "rows": rows, "columns": columns, "C": made}, exact


def attended(seed: int, block: int, rows: int = 70, depth: int = 64) -> tuple[Arrays, np.ndarray[Any, Any]]:
    """Return arrays of `attention`, and the exact result; keys that no row keeps are NaN."""
    draw = np.random.default_rng(seed)
    mask = draw.random((3, 5)) < 0.5
    mask[:, 1], mask[:, 4] = True, False
    kept, begins, ends = lists(mask)
    q = inside(draw, (2, 3, rows, depth))
    k, v = (inside(draw, (2, 5, block, depth)) for _ in range(2))
    k[:, 4] = v[:, 4] = np.nan
    made = np.full(q.shape, np.nan, np.float16)
    keys, mixed = (np.nan_to_num(one.astype(np.float64)).reshape(2, 5 * block, depth) for one in (k, v))
    scores = 0.125 * np.einsum("hgrd,hnd->hgrn", q.astype(np.float64), keys)
    powers = np.exp(scores) * np.repeat(mask, block, 1)[:, None]
    exact = np.einsum("hgrn,hnd->hgrd", powers / powers.sum(-1, keepdims=True), mixed)
    arrays = {"Q": q, "K": k, "V": v, "columns": kept, "begins": begins, "ends": ends, "O": made}
    return arrays, exact
