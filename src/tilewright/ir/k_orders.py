"""Orders along K: operands may be held in any, as long as both of a multiply are in the same."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.threads.distribution import Distribution


@lru_cache(maxsize=256)
def order_along_k(held: Distribution, wanted: Distribution) -> tuple[int, ...] | None:
    """For each k of an operand, as an instruction counts them, the k of the tile that stands in its place.

    Args:
        held: the map of a fragment.
        wanted: that of the operand.

    Returns:
        None where rows differ, or where lanes do not agree on an order.

    Example:
        >>> from tilewright.threads.distribution import Mode
        >>> wanted = Distribution((1, 4), (Mode(2, 1, 1),), (Mode(2, 1, 2),))
        >>> held = Distribution((1, 4), (Mode(2, 1, 2),), (Mode(2, 1, 1),))
        >>> order_along_k(held, wanted), order_along_k(wanted, wanted)
        ((0, 2, 1, 3), (0, 1, 2, 3))
    """
    if held.shape != wanted.shape or held.table.shape != wanted.table.shape:
        return None
    (rows, there), (wanted_rows, counted) = (
        (spread.table[..., 0], spread.table[..., 1]) for spread in (held, wanted)
    )
    order = np.zeros(wanted.shape[1], np.int64)
    order[counted] = there
    if (rows != wanted_rows).any() or (order[counted] != there).any() or len({*order.tolist()}) < len(order):
        return None
    return tuple(order.tolist())
