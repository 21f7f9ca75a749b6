"""Orders along K: both operands of a multiply must have the same order, but any order is legal."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from tilewright.threads.distribution import Distribution


@lru_cache(maxsize=256)
def order_along_k(held: Distribution, wanted: Distribution) -> tuple[int, ...] | None:
    """Return, for each k of an instruction's operand, the tile's k in its position.

    Args:
        held: the map of a fragment.
        wanted: the map of the operand.

    Returns:
        None if rows differ, or if lanes disagree on the order.

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
