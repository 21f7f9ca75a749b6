"""Conversion of operand B in memory, before the product, to the dtype of the multiplication.

One pass reads the narrow numbers once for all rows, and writes them exactly; to weights in groups along K it
also applies their zero points and scales. Then both operands have one dtype, bulk copies load them, and
``wgmma`` reads them from shared memory. Each weight is rounded as the single kernel rounds it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd, prod
from typing import Any

from tilewright.dtypes import DType, i8
from tilewright.lang import operations as tw
from tilewright.lang.exact_functions import take
from tilewright.lang.launch import batch_index, block_index
from tilewright.lang.scalars import ceil_div
from tilewright.ops.launching import OWN, Call, Launch, LaunchPlan, Prepass
from tilewright.ops.planning import MOST_RANK
from tilewright.ops.splitting import Part, once, transposed, turned
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Kernel, kernel
from tilewright.threads.distribution import Distribution, raked

SPREAD = raked((8, 512), (8, 32), 16, 1)
"""The threads that widen a tile: a warp for each row, 16 bytes of narrow numbers at once for each thread."""

VECTOR = 16
"""Numbers that a thread widens at once in groups."""

UNIT = 8
"""Rows have a multiple of this number of elements, because bulk copies require it."""


@lru_cache(maxsize=MOST_RANK + 1)
def widen(rank: int) -> Kernel:
    """``Y[..., r, c] = X[..., r, c]``, in the dtype of Y, with ``rank`` batch dimensions."""
    lead = "".join(f"B{dim} " for dim in range(rank))

    @kernel(X=f"{lead}R C", Y=f"{lead}R C")
    def widened_in_memory(X: Any, Y: Any) -> None:
        tile = SPREAD.shape
        r, c = block_index(ceil_div(X.shape[-2:], tile))
        batch = tuple(batch_index(extent) for extent in X.shape[:-2])
        tw.copy(tw.load(X[batch].tile(tile, (r, c)), SPREAD).to(Y.dtype), Y[batch].tile(tile, (r, c)))

    return widened_in_memory


def spread_over(group: int) -> Distribution:
    """Distribution of a tile among threads; tiles lie in one group, so that each row has one scale.

    Args:
        group: number of neighbours that share a scale.

    Example:
        >>> spread_over(128).shape, spread_over(96).shape, spread_over(5).shape
        ((32, 128), (128, 32), (8, 512))
    """
    columns = gcd(group, SPREAD.shape[1])
    if columns < VECTOR:
        return SPREAD
    rows = SPREAD.shape[0] * SPREAD.shape[1] // columns
    return raked((rows, columns), (rows, columns // VECTOR), VECTOR, 1)


@lru_cache(maxsize=1)
def widen_in_groups() -> Kernel:
    """``Y[r, c] = (X[r, c] - Z[r, c // group]) * S[r, c // group]``, in the dtype of Y.

    With a table, ``table[X[r, c]]`` replaces ``X[r, c]``.
    """

    @kernel(X="R C", S="R G", Z="R G", Y="R C")
    def widened_groups(
        X: Any, S: Any, Z: Any, Y: Any, *, group: int, terms: frozenset[str], table: tuple[float, ...] = ()
    ) -> None:
        spread = spread_over(group)
        tile = spread.shape
        r, c = block_index(ceil_div(X.shape, tile))

        def of_group(array: Any) -> Any:
            if group % tile[1]:
                every = array.broadcast(2, group).merge(1)
                return tw.load(every.tile(tile, (r, c)), spread).to(Y.dtype)
            one = array.tile((tile[0], 1), (r, c * tile[1] // group))
            return tw.load(one, spread.projected((tile[0], 1))).to(Y.dtype)

        wide = tw.load(X.tile(tile, (r, c)), spread, element=i8 if table else Y.dtype)
        wide = take(table, wide, Y.dtype) if table else wide
        if "zero_b" in terms:
            wide = wide - of_group(Z)
        if "scale_b" in terms:
            wide = wide * of_group(S)
        tw.copy(wide, Y.tile(tile, (r, c)))

    return widened_groups


@dataclass(frozen=True)
class Wide:
    """An operand and its wide copy, both as (batches, rows, columns) with contiguous rows.

    Args:
        given: the operand.
        copy: the wide copy in scratch memory.
        is_turned: whether rows and columns of the operand are exchanged.
    """

    given: Strided
    copy: Part
    is_turned: bool

    @staticmethod
    def of(seen: Strided, dtype: DType) -> Wide:
        """The wide copy of an operand, with the same contiguous dimension."""
        info = seen.info
        is_turned = info.strides[-2] == 1 and info.strides[-1] != 1
        shape, strides = (turned(values, is_turned) for values in (info.shape, info.strides))
        *batch, rows, columns = shape
        pitch = -(-columns // UNIT) * UNIT
        own = [extent if step else 1 for extent, step in zip(batch, strides, strict=False)]
        lead = [step and pitch * rows * prod(own[at + 1 :]) for at, step in enumerate(strides[:-2])]
        given = Strided(seen.array, replace(info, shape=shape, strides=strides))
        return Wide(given, Part(dtype, shape, (*lead, pitch, 1)), is_turned)

    def seen(self) -> Strided:
        """The wide copy with the extents of the operand."""
        placed = self.copy.at(0, self.given)
        shape, strides = (turned(of, self.is_turned) for of in (placed.info.shape, placed.info.strides))
        return Strided(placed.array, replace(placed.info, shape=shape, strides=strides))


def plan_widened(
    call: Call,
    product: Launch,
    groups: tuple[int, Mapping[str, tuple[str, Strided]]] | None = None,
    table: tuple[float, ...] = (),
) -> LaunchPlan:
    """The launches that widen operand B, and multiply.

    An operand that is broadcast along a batch is widened once.

    Args:
        call: the arrays of the call.
        product: multiplies operands of one dtype; its ``b`` is replaced by the wide copy.
        groups: the length of groups along K, and for ``"scale_b"`` and ``"zero_b"`` the name and the view
            (groups, columns) of the array that the pass is given; None: there are no groups.
        table: the number of each code, if the elements of groups are codes; else empty.
    """
    seen = dict(zip(product.names, product.arrays, strict=True))
    wide = Wide.of(seen["b"], seen["a"].info.dtype)
    copy, made = wide.copy.at(0, wide.given), {"b": wide.seen()}
    if groups is None:
        rank = len(wide.copy.shape) - 2
        arrays = once(wide.given, rank), once(copy, rank)
        before = Prepass(widen(rank).bind(), arrays, ("b", OWN), made=made)
    else:
        assert wide.is_turned, "b must be contiguous along K"
        size, of_groups = groups
        rows = [transposed(one) for _, one in of_groups.values()]
        bound = widen_in_groups().bind(group=size, terms=frozenset({*of_groups} & call.there), table=table)
        names = ("b", *(name for name, _ in of_groups.values()), OWN)
        before = Prepass(bound, (wide.given, *rows, copy), names, made=made)
    reason = "a prepass widens the narrow weights once for all rows"
    return call.plan_with_prepass(before, product, wide.copy.bytes, reason)
