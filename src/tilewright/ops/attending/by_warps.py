"""Attention by ``mma.sync`` or multiply-adds: ``cp.async`` loads keys and values one step ahead.

A block takes a tile of queries of one head and walks over the keys.  Scores never leave registers: their
weights are operand A of the second product.  ``examples/09_attention.py`` is the lesson that leads here.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.mma import TiledMma
from tilewright.lang import operations as tw
from tilewright.lang.control import let, when
from tilewright.lang.control import range as traced_range
from tilewright.lang.scalars import Index, ceil_div, maximum, minimum
from tilewright.lang.tensors import Tensor
from tilewright.lang.tile_arithmetic import redistribute
from tilewright.ops.attending.parameters import CHAINED, PARAMETERS
from tilewright.ops.attending.softmax import BySoftmax, Softmax
from tilewright.ops.attending.tiles import ByActivation, WarpTiles
from tilewright.runtime.kernel import kernel


@kernel(**PARAMETERS)
def attention(
    Q: Any,
    K: Any,
    V: Any,
    O: Any,
    L: Any,
    exponent: Any,
    diagonal: Any,
    *,
    causal: bool,
    between: BySoftmax,
    with_lse: bool,
    tiles: WarpTiles,
) -> None:
    """``O = softmax(scale Q Kᵀ) V``, and L the logarithms of the sums of exponentials.

    ``exponent`` is that of `BySoftmax.of`.  If ``causal``, row i sees the keys up to ``i + diagonal``.
    """
    _compute((Q, K, V, O), L if with_lse else None, exponent, diagonal if causal else None, between, tiles)


@kernel(**CHAINED)
def gemm_chain(A: Any, B: Any, C: Any, D: Any, *, between: ByActivation, tiles: WarpTiles) -> None:
    """``D = function(A Bᵀ) C``."""
    _compute((A, B, C, D), None, 1.0, None, between, tiles)


def _compute(
    arrays: tuple[Tensor, Tensor, Tensor, Tensor],
    L: Tensor | None,
    exponent: Any,
    diagonal: Index | None,
    between: BySoftmax | ByActivation,
    tiles: WarpTiles,
) -> None:
    Q, K, V, O = arrays
    rows, keys, depth, width = tiles.rows, tiles.keys, tiles.depth, tiles.width
    atom, warps = tiles.atom, tiles.warps
    # Warps lie one below the other, so that each has whole rows of scores.
    m_atom, n_atom, _ = atom.shape
    by_keys, by_width = (
        TiledMma(atom, (warps, 1), (rows // m_atom // warps, columns // n_atom)) for columns in (keys, width)
    )
    number, queries = K.shape[2], Q.shape[2]
    per_head = ceil_div(queries, rows)
    block = tw.block_index(per_head * Q.shape[1] * Q.shape[0])
    b, h, m = _place(block, Q.shape[1], per_head)
    g = let(h // tw.derived(Q.shape[1] // maximum(K.shape[1], 1)))
    seen = number
    if diagonal is not None:
        m = let(per_head - 1 - m)  # rows with the most keys begin first
        seen = minimum(number, maximum((m + 1) * rows + diagonal, 0))
    count = let(ceil_div(seen, keys))

    sQ = tw.shared((rows, depth), Q.dtype)
    sK = tw.shared((2, depth, keys) if tiles.keys_by_column else (2, keys, depth), K.dtype)
    sV = tw.shared((2, keys, width), V.dtype)
    # If fragments of A and C have one layout, weights stay in their threads.
    scratch = tw.shared((rows, keys), V.dtype) if tiles.is_exchanged else None

    def fetch(source: Tensor, target: Tensor, at: Index) -> None:
        tw.copy_async(source.tile(target.shape, (at, 0)), target, threads=atom.lanes * warps)

    def fetch_keys(j: Index) -> None:
        """Load keys and values of step j."""
        if tiles.keys_by_column:
            held = K[b, g].permute(1, 0).tile((depth, keys), (0, j))
            tw.copy_async(held, sK[j % 2], threads=atom.lanes * warps)
        else:
            fetch(K[b, g], sK[j % 2], j)
        fetch(V[b, g], sV[j % 2], j)

    fetch(Q[b, h], sQ, m)
    fetch_keys(0)
    tw.async_commit()
    acc = tw.accumulator(by_width)
    state = between.begin(by_keys, exponent)
    for j in traced_range(count, provenance="mainloop"):
        tw.async_wait(0)
        tw.barrier()  # all threads see tile j, and have read tile j - 1
        with when(j + 1 < count):
            fetch_keys(j + 1)
        tw.async_commit()
        scores = tw.accumulator(by_keys)
        tw.mma(sQ, sK[j % 2].permute(1, 0) if tiles.keys_by_column else sK[j % 2], scores)
        state.hide(scores, j * keys, number, None if diagonal is None else m * rows + diagonal)
        state.weigh(scores)
        if state.decay is not None:
            acc *= state.decay
        weights = redistribute(scores.to(V.dtype), tw.operand_a(by_width, keys), scratch=scratch)
        tw.mma(weights, sV[j % 2].permute(1, 0), acc)
    tw.copy(state.averages(acc), O[b, h].tile((rows, width), (m, 0)))
    if L is not None and isinstance(state, Softmax):
        tw.copy(state.log_sum_exp(), L[b, h].tile((rows, 1), (m, 0)))


def _place(number: Index, heads: Index, tiles: Index) -> tuple[Index, Index, Index]:
    """Return batch, head and tile of a block; tiles of one head are consecutive."""
    over = let(number // tiles)
    return let(over // heads), let(over % heads), let(number % tiles)
