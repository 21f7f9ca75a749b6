"""Addresses in swizzled tiles: what a thread computes once, and the bits that its loops flip in it.

In ``128*row + ((16*k + col) ^ 8*(row % 8))`` each ``k`` needs an address of its own.  It is also
``(128*row + (col ^ 8*(row % 8))) ^ 16*k``, because no other part has the bits of ``16*k``: one address of the
thread, in which each step flips bits that are known when the text is compiled.
"""

from __future__ import annotations

from collections.abc import Collection

from tilewright.symbolic.arithmetic import parts_of
from tilewright.symbolic.expr import add, expand, mul, xor
from tilewright.symbolic.nodes import Int, Sym, Xor, bounds, divisor
from tilewright.symbolic.rebuilding import symbols


def split_flips(offset: Int, own: Collection[Sym]) -> tuple[Int, Int] | None:
    """``(start, flips)`` with ``offset == start ^ flips``, where ``flips`` does not depend on the thread.

    Terms of ``start`` that do not depend on the thread alone lie above all bits that are flipped: they may as
    well be added afterwards.  None if the offset has no such form.

    Args:
        offset: not negative.
        own: the symbols that depend on the thread.

    Example:
        >>> row, col, k = Sym("row", 0, 15), Sym("col", 0, 8, 8), Sym("k", 0, 7)
        >>> split_flips(128 * row + ((16 * k + col) ^ (8 * (row % 8))), {row, col})
        (128*row + ((8*(row % 8)) ^ col), 16*k)
        >>> split_flips(128 * row + col, {row, col})
    """
    parts, constant = parts_of(expand(offset))
    for term, factor in parts:
        if not isinstance(term, Xor) or factor < 1 or factor & (factor - 1):
            continue
        for value, other in ((term.left, term.right), (term.right, term.left)):
            still, flips = _split(value, own)
            if flips == 0 or not symbols(other) | symbols(still) <= set(own):
                continue
            kept = xor(still, other)
            rest = add(constant, *(mul(t, f) for t, f in parts if t is not term))
            low = (mul(kept, factor), mul(flips, factor))
            if _apart(still, flips) and all(_apart(part, rest) for part in low):
                return add(rest, mul(kept, factor)), mul(flips, factor)
    return None


def _split(value: Int, own: Collection[Sym]) -> tuple[Int, Int]:
    """The terms that depend on the thread, with the constant, and the others."""
    parts, constant = parts_of(expand(value))
    mine = [mul(term, factor) for term, factor in parts if symbols(term) & set(own)]
    others = [mul(term, factor) for term, factor in parts if not symbols(term) & set(own)]
    return add(constant, *mine), add(*others)


def _apart(low: Int, high: Int) -> bool:
    """Whether ``low`` lies in bits below all those that ``high`` can have."""
    if bounds(low)[0] < 0 or bounds(high)[0] < 0:
        return False
    step = divisor(high)
    return high == 0 or bounds(low)[1] < (step & -step)
