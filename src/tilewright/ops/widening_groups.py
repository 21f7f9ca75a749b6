"""Weights in groups along K, widened in memory with their scales before they are multiplied by many rows.

One pass reads the narrow numbers, takes their zero points away, scales them, and writes what is multiplied;
the product then is one of two operands of one width.  Each weight is rounded as it is in the one kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import gcd
from typing import Any

from tilewright.lang import operations as tw
from tilewright.lang.copies import copy
from tilewright.lang.launch import block_index
from tilewright.lang.scalars import ceil_div
from tilewright.ops.launching import Launch, LaunchPlan
from tilewright.ops.recalled import OWN
from tilewright.ops.widening import REASON, SPREAD, Wide
from tilewright.runtime.frameworks import Strided
from tilewright.runtime.kernel import Bound, Kernel, kernel
from tilewright.threads.distribution import Distribution, raked

VECTOR = 16
"""Numbers that a thread widens at once."""


def spread_over(group: int) -> Distribution:
    """Which threads widen what: tiles that lie in a group, so that each row of them has one scale.

    Args:
        group: how many neighbours have a scale in common.

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
    """``Y[r, c] = (X[r, c] - Z[r, c // group]) * S[r, c // group]``, in the dtype of Y."""

    @kernel(X="R C", S="R G", Z="R G", Y="R C")
    def widened_groups(X: Any, S: Any, Z: Any, Y: Any, *, group: int, terms: frozenset[str]) -> None:
        spread = spread_over(group)
        tile = spread.shape
        r, c = block_index(ceil_div(X.shape, tile))

        def of_group(array: Any) -> Any:
            if group % tile[1]:
                every = array.broadcast(2, group).merge(1)
                return tw.load(every.tile(tile, (r, c)), spread).to(Y.dtype)
            one = array.tile((tile[0], 1), (r, c * tile[1] // group))
            return tw.load(one, spread.projected((tile[0], 1))).to(Y.dtype)

        wide = tw.load(X.tile(tile, (r, c)), spread, element=Y.dtype)
        if "zero_b" in terms:
            wide = wide - of_group(Z)
        if "scale_b" in terms:
            wide = wide * of_group(S)
        copy(wide, Y.tile(tile, (r, c)))

    return widened_groups


def plan_product(
    product: Bound,
    seen: Sequence[Strided],
    widening: Bound,
    beside: Sequence[Strided],
    numbers: tuple[complex, ...],
) -> LaunchPlan:
    """The launches that widen operand B, and multiply.

    Args:
        product: the kernel of a product without groups, which multiplies operands of one dtype.
        seen: its arrays, the operands first.
        widening: `widen_in_groups`, with how large groups are and what they have.
        beside: scales and zero points, (groups, columns).
        numbers: of the product.
    """
    a, b, *rest = seen
    wide = Wide.of(b, a.info.dtype)
    assert wide.turned, "neighbours along K are neighbours in memory"
    of_rows = [
        Strided(one.array, replace(one.info, shape=one.info.shape[::-1], strides=one.info.strides[::-1]))
        for one in beside
    ]
    given = (wide.given, *of_rows, wide.copy.at(0, wide.given))
    # The call's are a, b, scale_a, scale_b, zero_b, bias and out; no scale of columns is read.
    launches = (
        Launch(widening, given, (1, 3, 4, OWN)),
        Launch(product, (a, wide.seen(), *rest), (0, OWN, 2, 6, 5, 6), numbers),
    )
    return LaunchPlan(launches, (*seen, *beside), wide.copy.bytes, REASON)


def widening_of(group: int, terms: frozenset[str]) -> Bound:
    """The kernel that widens weights in groups.

    Args:
        group: how many neighbours along K have a scale in common.
        terms: which of ``"scale_b"`` and ``"zero_b"`` there are.
    """
    return widen_in_groups().bind(group=group, terms=terms)
