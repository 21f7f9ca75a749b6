"""Launching a product again, on other arrays that are like those of a product that was launched before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.runtime.arrays import LOCATORS, locate_new
from tilewright.runtime.plans import Plan

OUT = 2
"""The place of the result among the arrays of a product, which are ``a``, ``b``, ``out``, and then others."""


def located(arrays: Sequence[Any]) -> tuple[tuple[Any, ...], list[int | None]]:
    """All that a plan depends on of arrays but their addresses, and the addresses.

    Args:
        arrays: of a product, in an order of its own; None for one that is not given.
    """
    keys: list[Any] = [type(arrays[0])]
    at: list[int | None] = []
    for array in arrays:
        key, address = (None, None) if array is None else LOCATORS.get(type(array), locate_new)(array, 0)
        keys.append(key)
        at.append(address)
    return tuple(keys), at


def again(
    plan: Plan,
    arrays: Sequence[Any],
    at: Sequence[int | None],
    order: Sequence[int],
    numbers: tuple[complex, ...],
    stream: Any,
) -> Any:
    """Launch what is known on other arrays; None, and nothing is done, if that cannot be.

    Args:
        plan: the launch.
        arrays: those of the product; for one that is not given the result stands.
        at: their addresses.
        order: which of them each array of the kernel is.
        numbers: the kernel's arguments behind its arrays.
        stream: the caller's.
    """
    out, address = arrays[OUT], at[OUT]
    if address is None:
        if plan.fresh is None:
            return None
        out = plan.fresh.make()
        address = plan.fresh.address(out)
        if address & 15:  # not as its kernel was told
            return None
    given = [out if arrays[place] is None else arrays[place] for place in order]
    pointers = [address if (there := at[place]) is None else there for place in order]
    if not plan.apart(pointers):
        return None
    # A kernel takes as many of the numbers as it has.
    plan.prepared.launch((*given, *numbers), pointers, stream)
    return out
