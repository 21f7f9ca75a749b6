"""Extents that are whole tiles: nothing is asked about where they end."""

from __future__ import annotations

from typing import Any

from tilewright.dataflow.nodes import Operand, Part
from tilewright.lang.launch import require
from tilewright.schedule.form import Form, extent_of
from tilewright.schedule.schedule import Schedule


def whole_tiles(form: Form, schedule: Schedule, arguments: dict[str, Any]) -> dict[str, Any]:
    """The arrays, each with the whole tiles that it has along the dimensions that a schedule says are whole.

    The launch requires that these are all of it.

    Args:
        form: what is computed, as the schedule multiplies it.
        schedule: how.
        arguments: the kernel's, by name.
    """
    spans = dict(zip("mnk", (form.m, form.n, form.a.depth), strict=True))
    units = {spans[dim]: schedule.tile["mnk".index(dim)] for dim in schedule.whole}
    if not units:
        return arguments
    for dim in schedule.whole:
        unit, extent = units[spans[dim]], extent_of(form, arguments, spans[dim])
        text = f"{spans[dim].name} must be a multiple of {unit}: the schedule has whole={schedule.whole!r}"
        require(extent % unit == 0, text)
    places = {
        node.operand.name: (node.operand, node.at) for node in form.flow.walk() if isinstance(node, Part)
    }
    places |= {store.operand.name: (store.operand, store.at) for store in form.stores}
    return arguments | {
        name: _cut(arguments[name], operand, [units.get(span, 0) for span in at])
        for name, (operand, at) in places.items()
    }


def _cut(array: Any, operand: Operand, units: list[int]) -> Any:
    """The whole tiles of an array along each of its dimensions, where these are not 0."""
    if operand.transforms or not any(units):
        return array
    ends = ((array.shape[dim] // unit) * unit if unit else None for dim, unit in enumerate(units))
    return array[tuple(slice(0, end) for end in ends)]
